// Package rpcline reads and writes messages of JSON-RPC 2.0, a line each, as MCP has them on stdin and stdout. It checks
// their form, and knows no methods.
package rpcline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
)

// Codes of errors (JSON-RPC 2.0, section 5.1).
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
)

// ErrMembers is about an object that another reader could understand as another one.
var ErrMembers = errors.New("ambiguous members")

var (
	errSyntax  = errors.New("not JSON")
	errMessage = errors.New("not a message of JSON-RPC 2.0") // but JSON
)

// Code returns the code of the answer to bytes that Parse has refused with err.
func Code(err error) int {
	if errors.Is(err, errSyntax) {
		return codeParse
	}
	return codeInvalidRequest
}

// Refusal returns the answer to bytes that are not a message, for the reason err. Its ID is null, because theirs is not known.
func Refusal(err error) []byte {
	type failure struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	b, wrong := json.Marshal(struct {
		JSONRPC string  `json:"jsonrpc"`
		ID      any     `json:"id"`
		Error   failure `json:"error"`
	}{"2.0", nil, failure{Code(err), err.Error()}})
	if wrong != nil {
		panic(wrong) // strings and a number
	}
	return b
}

// Message is one message. Its members are kept as they were written.
type Message struct {
	Members map[string]json.RawMessage
	ID      json.RawMessage // nil: a notification
	Method  string          // empty: a response
}

// Parse reads a message. It does not keep b.
func Parse(b []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(b, &m.Members); err != nil {
		if _, ok := errors.AsType[*json.SyntaxError](err); ok {
			return Message{}, fmt.Errorf("%w: %w", errSyntax, err)
		}
		if bytes.TrimLeft(b, " \t\r\n")[0] == '[' {
			return Message{}, fmt.Errorf("%w: batches are not accepted: send one message", errMessage)
		}
		return Message{}, fmt.Errorf("%w: %w", errMessage, err)
	}
	if err := CheckMembers(b, false, "jsonrpc", "id", "method", "params", "result", "error"); err != nil {
		return Message{}, err
	}
	if string(m.Members["jsonrpc"]) != `"2.0"` {
		return Message{}, fmt.Errorf("%w: jsonrpc must be \"2.0\"", errMessage)
	}
	if id, ok := m.Members["id"]; ok {
		if id[0] != '"' && id[0] != '-' && (id[0] < '0' || id[0] > '9') {
			return Message{}, fmt.Errorf("%w: id must be a string or a number", errMessage)
		}
		m.ID = id
	}
	if method, ok := m.Members["method"]; ok {
		if err := json.Unmarshal(method, &m.Method); err != nil || m.Method == "" {
			return Message{}, fmt.Errorf("%w: method must be a name", errMessage)
		}
		return m, nil
	}
	_, result := m.Members["result"]
	if _, failed := m.Members["error"]; m.ID == nil || result == failed {
		return Message{}, fmt.Errorf("%w: neither a request, a notification nor a response", errMessage)
	}
	return m, nil
}

// CheckMembers refuses an object in raw, which is JSON, if readers can disagree about it: a member is there
// twice, or its name is a known one but for the case, which encoding/json and others ignore. With deep,
// no object within it may have a member twice either. The error wraps ErrMembers.
func CheckMembers(raw []byte, deep bool, known ...string) error {
	var names []map[string]bool // of the open objects and arrays; nil: not checked
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '{':
			var of map[string]bool
			if deep || len(names) == 0 {
				of = map[string]bool{}
			}
			names = append(names, of)
		case '[':
			names = append(names, nil)
		case '}', ']':
			names = names[:len(names)-1]
		case '"':
			start := i
			for i++; raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
			if len(names) == 0 || names[len(names)-1] == nil || !bytes.HasPrefix(bytes.TrimLeft(raw[i+1:], " \t\r\n"), []byte(":")) {
				continue // no name
			}
			var name string
			_ = json.Unmarshal(raw[start:i+1], &name) // a string
			of := names[len(names)-1]
			if of[name] {
				return fmt.Errorf("%w: %.100q is there twice", ErrMembers, name)
			}
			of[name] = true
			for _, k := range known {
				if len(names) == 1 && name != k && strings.EqualFold(name, k) {
					return fmt.Errorf("%w: %.100q must be written %q", ErrMembers, name, k)
				}
			}
		}
	}
	return nil
}

// Lines cuts a stream into lines of at most Max bytes.
type Lines struct {
	Max  int
	rest []byte // an incomplete line
	skip bool   // until the next newline
}

// SkipLine drops the current line: the part that Add has seen, and the rest of it later.
func (l *Lines) SkipLine() { l.rest, l.skip = nil, true }

// Add calls line for each line that p completes, without its newline, and tooLong once for each longer
// one. The lines are valid during the call.
func (l *Lines) Add(p []byte, line func([]byte), tooLong func()) {
	for len(p) > 0 {
		part, after, complete := bytes.Cut(p, []byte("\n"))
		p = after
		switch {
		case l.skip:
			l.skip = !complete
			continue
		case len(l.rest)+len(part) > l.Max:
			tooLong()
			l.rest, l.skip = nil, !complete
			continue
		case complete && len(l.rest) == 0:
			line(part)
			continue
		}
		l.rest = append(l.rest, part...)
		if complete {
			line(l.rest)
			if l.rest = l.rest[:0]; cap(l.rest) > 64<<10 {
				l.rest = nil // one large message must not hold memory for good
			}
		}
	}
}

// Read returns the lines of in that are not blank, until it ends or ctx does; then the channel is closed. A last line needs no
// newline. refuse gets the answer to a line of more than limit bytes. Reading is not interrupted: the goroutine ends with in.
func Read(ctx context.Context, in io.Reader, limit int, refuse func([]byte) error) <-chan []byte {
	input := make(chan []byte)
	go func() {
		defer close(input)
		l := Lines{Max: limit}
		line := func(b []byte) {
			if len(bytes.TrimSpace(b)) == 0 {
				return
			}
			select {
			case input <- bytes.Clone(b):
			case <-ctx.Done():
			}
		}
		tooLong := func() {
			_ = refuse(Refusal(fmt.Errorf("a message must have at most %d bytes", limit))) // a program that reads nothing ends by itself
		}
		buf := make([]byte, 64<<10)
		for {
			n, err := in.Read(buf)
			l.Add(buf[:n], line, tooLong)
			if err != nil {
				line(l.rest)
			}
			if err != nil || ctx.Err() != nil {
				return
			}
		}
	}()
	return input
}

// Writer writes messages, each as a line. It is safe for concurrent use.
type Writer struct {
	W  io.Writer
	mu sync.Mutex
}

// Write writes one message, without its newline.
func (w *Writer) Write(b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.W.Write(append(b, '\n'))
	return err
}
