package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// encoder makes one reply at a time.
type encoder struct {
	buf bytes.Buffer
	enc *json.Encoder
}

var encoders = sync.Pool{New: func() any {
	e := new(encoder)
	e.enc = json.NewEncoder(&e.buf)
	e.enc.SetEscapeHTML(false) // six bytes for one, and no browser reads this
	return e
}}

// maxPooled is how large a buffer may have become that is kept for later.
const maxPooled = 64 << 10

// reply encodes a reply. message and data are encoded, seq stands there as it is.
func reply(seq json.RawMessage, code int, message string, data any) ([]byte, error) {
	e := encoders.Get().(*encoder)
	defer func() {
		if e.buf.Cap() <= maxPooled {
			encoders.Put(e)
		}
	}()
	e.buf.Reset()
	if len(seq) == 0 {
		seq = noSeq
	}
	fmt.Fprintf(&e.buf, `{"seq_id":%s,"code":%d,"message":`, seq, code)
	if err := e.value(message); err != nil {
		return nil, err
	}
	e.buf.WriteString(`,"data":`)
	if err := e.value(data); err != nil {
		return nil, err
	}
	e.buf.WriteString(`,"chunk_status":"continue"}`)
	return bytes.Clone(e.buf.Bytes()), nil
}

// value appends v, an empty object if it is nil.
func (e *encoder) value(v any) error {
	if v != nil {
		start := e.buf.Len()
		if err := e.enc.Encode(v); err != nil {
			return err
		}
		e.buf.Truncate(e.buf.Len() - 1) // the newline
		if string(e.buf.Bytes()[start:]) != "null" {
			return nil
		}
		e.buf.Truncate(start)
	}
	e.buf.WriteString("{}")
	return nil
}

// Success returns the reply of an action that went well. data is to become a JSON
// object; nil is the empty one. What does not become a message that the peer would
// take becomes a failure.
func Success(seq json.RawMessage, data any) []byte {
	b, err := reply(seq, 0, "success", data)
	if err != nil {
		return Failure(seq, fmt.Errorf("encoding the reply: %w", err))
	}
	if len(b) > MaxMessage {
		return Failure(seq, Errorf(BoxError, "the reply has %d bytes, a message has %d at most: ask for less at a time", len(b), MaxMessage))
	}
	return b
}

// Failure returns the reply of an action that failed. An err that has no *Error in
// its chain is a BoxError.
func Failure(seq json.RawMessage, err error) []byte {
	b, e := reply(seq, 1, message(err), nil)
	if e != nil { // a seq that is no number cannot cause it: it is not looked at
		return nil
	}
	return b
}

// message is how the client is told of err.
func message(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{BoxError, err.Error()}
	}
	text := truncate(neutralise(e.Text))
	if e.Class == "" {
		return text
	}
	return string(e.Class) + ": " + text
}

// The most characters of an error's text, and what stands behind a longer one.
const (
	maxText   = 4096
	truncated = "... [protocol error truncated]"
)

func truncate(s string) string {
	if len(s) <= maxText || utf8.RuneCountInString(s) <= maxText {
		return s
	}
	n := 0
	for i := range s {
		if n == maxText {
			return s[:i] + truncated
		}
		n++
	}
	return s
}

// neutralise takes the meaning from the names of classes in a text. The client looks for
// them in the whole message, in an order of its own, so a text that quotes one would decide
// what kind of error it sees.
func neutralise(s string) string {
	if !strings.Contains(s, "Error:") {
		return s
	}
	return classNames.Replace(s)
}

// classNames puts a space between the name of a class and a colon.
var classNames = func() *strings.Replacer {
	var pairs []string
	for _, c := range [...]Class{Admission, Readiness, CapacityExceeded, BoxValidation, SessionNotFound, SessionConflict,
		ManagedProcessNotFound, ManagedProcessConflict, BackendUnavailable, RuntimeUnavailable, BoxError,
		PermissionError, ValueError, KeyError, validation} {
		pairs = append(pairs, string(c)+":", string(c)+" :")
	}
	return strings.NewReplacer(pairs...)
}()
