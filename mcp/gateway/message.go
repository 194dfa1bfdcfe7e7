package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// maxMessage bounds a message in bytes, in both directions. Results contain files and images.
const maxMessage = 16 << 20

// message is one message of JSON-RPC. Its members are kept as they were written.
type message struct {
	members map[string]json.RawMessage
	id      json.RawMessage // nil: a notification
	method  string          // empty: a response
}

var (
	errMessage = errors.New("not a message of JSON-RPC 2.0")
	// errMembers is about an object that another reader could understand as another one.
	errMembers = errors.New("ambiguous members")
)

// parse reads a message. It does not keep b.
func parse(b []byte) (*message, error) {
	if t := bytes.TrimLeft(b, " \t\r\n"); len(t) > 0 && t[0] == '[' {
		return nil, fmt.Errorf("%w: batches are not accepted: send one message", errMessage)
	}
	m := &message{}
	if err := json.Unmarshal(b, &m.members); err != nil {
		return nil, fmt.Errorf("%w: %v", errMessage, err) // the library's errors have no types to test for
	}
	if err := checkMembers(b, false, "jsonrpc", "id", "method", "params", "result", "error"); err != nil {
		return nil, err
	}
	if string(m.members["jsonrpc"]) != `"2.0"` {
		return nil, fmt.Errorf("%w: jsonrpc must be \"2.0\"", errMessage)
	}
	if id, ok := m.members["id"]; ok {
		if id[0] != '"' && id[0] != '-' && (id[0] < '0' || id[0] > '9') {
			return nil, fmt.Errorf("%w: id must be a string or a number", errMessage)
		}
		m.id = id
	}
	if method, ok := m.members["method"]; ok {
		if err := json.Unmarshal(method, &m.method); err != nil || m.method == "" {
			return nil, fmt.Errorf("%w: method must be a name", errMessage)
		}
		return m, nil
	}
	_, result := m.members["result"]
	if _, failed := m.members["error"]; m.id == nil || result == failed {
		return nil, fmt.Errorf("%w: neither a request, a notification nor a response", errMessage)
	}
	return m, nil
}

// encode returns the message as one line without its newline: the encoder removes newlines between the
// members.
func (m *message) encode() []byte { return encode(m.members) }

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // parsed JSON, or values of this package
	}
	return b
}

// object returns the member name of the object in raw as an object; nil if it is none.
func object(raw json.RawMessage) (o map[string]json.RawMessage) {
	if json.Unmarshal(raw, &o) != nil {
		return nil
	}
	return o
}

// checkMembers refuses an object in raw, which is JSON, if readers can disagree about it: a member is there
// twice, or its name is a known one but for the case, which encoding/json and others ignore. With deep,
// no object within it may have a member twice either. The error wraps errMembers.
func checkMembers(raw []byte, deep bool, known ...string) error {
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
			name, of := text(raw[start:i+1]), names[len(names)-1]
			if of[name] {
				return fmt.Errorf("%w: %.100q is there twice", errMembers, name)
			}
			of[name] = true
			for _, k := range known {
				if len(names) == 1 && name != k && strings.EqualFold(name, k) {
					return fmt.Errorf("%w: %.100q must be written %q", errMembers, name, k)
				}
			}
		}
	}
	return nil
}

// text returns the string in raw; empty if it is none.
func text(raw json.RawMessage) (s string) {
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// replace replaces the value at path in the objects of raw, which must have it, and returns the old value.
// Without the value, raw stays as it is and old is nil.
func replace(raw json.RawMessage, value json.RawMessage, path ...string) (changed, old json.RawMessage) {
	if len(path) == 0 {
		return value, raw
	}
	o := object(raw)
	inner, ok := o[path[0]]
	if !ok {
		return raw, nil
	}
	if o[path[0]], old = replace(inner, value, path[1:]...); old == nil {
		return raw, nil
	}
	return encode(o), old
}

// request returns a request or, without an ID, a notification. params may be nil.
func request(id json.RawMessage, method string, params any) *message {
	m := &message{members: map[string]json.RawMessage{"jsonrpc": json.RawMessage(`"2.0"`), "method": encode(method)}, id: id, method: method}
	if id != nil {
		m.members["id"] = id
	}
	if params != nil {
		m.members["params"] = encode(params)
	}
	return m
}

// rpcError is an error of JSON-RPC.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

// Codes of errors.
const (
	codeInvalidRequest     = -32600
	codeMethodNotFound     = -32601
	codeInvalidParams      = -32602
	codeFailed             = -32000 // a Failure, and refusals
	codeSession            = -32001 // as other servers answer for an unknown session
	codeHeaderMismatch     = -32020
	codeUnsupportedVersion = -32022
)

// response returns a response with a result.
func response(id json.RawMessage, result any) *message {
	return &message{id: id, members: map[string]json.RawMessage{"jsonrpc": json.RawMessage(`"2.0"`), "id": id, "result": encode(result)}}
}

// errorResponse returns a response with an error; without an ID it is null.
func errorResponse(id json.RawMessage, e rpcError) *message {
	if id == nil {
		id = json.RawMessage("null")
	}
	return errorAs(id, encode(e))
}

// errorAs returns a response with an error that is encoded already.
func errorAs(id, e json.RawMessage) *message {
	return &message{id: id, members: map[string]json.RawMessage{"jsonrpc": json.RawMessage(`"2.0"`), "id": id, "error": e}}
}

// lines cuts a stream into lines of at most maxMessage bytes.
type lines struct {
	rest []byte // an incomplete line
	skip bool   // until the next newline
}

// add calls line for each line that p completes, without its newline, and tooLong once for each longer
// one. The lines are valid during the call.
func (l *lines) add(p []byte, line func([]byte), tooLong func()) {
	for len(p) > 0 {
		part, after, complete := bytes.Cut(p, []byte("\n"))
		p = after
		switch {
		case l.skip:
			l.skip = !complete
			continue
		case len(l.rest)+len(part) > maxMessage:
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
