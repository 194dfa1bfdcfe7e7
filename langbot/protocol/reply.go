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

// encoder encodes one reply at a time.
type encoder struct {
	buf bytes.Buffer
	enc *json.Encoder
}

var encoders = sync.Pool{New: func() any {
	e := new(encoder)
	e.enc = json.NewEncoder(&e.buf)
	e.enc.SetEscapeHTML(false) // escapes take six bytes, and no browser reads replies
	return e
}}

// maxPooled is the maximum size of a buffer that is kept for later replies.
const maxPooled = 64 << 10

// reply encodes a reply. seq is copied verbatim.
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

// value appends v, or an empty object if v is nil or encodes to null.
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

// Success returns the reply of an action that succeeded. data must encode to a JSON object;
// nil means an empty one. If the reply cannot be encoded or is too long, it becomes a
// failure.
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

// Failure returns the reply of an action that failed. An err without an *Error in its chain
// is reported as a BoxError.
func Failure(seq json.RawMessage, err error) []byte {
	b, _ := reply(seq, 1, message(err), nil) // encoding a string cannot fail
	return b
}

// message returns the message that reports err to the client.
func message(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{BoxError, err.Error()}
	}
	text := e.Text
	if strings.Contains(text, "Error:") {
		text = classNames.Replace(text)
	}
	text = truncate(text)
	if e.Class == "" {
		return text
	}
	return string(e.Class) + ": " + text
}

// maxText is the maximum length of an error's text, in characters. truncated follows a text
// that was cut.
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

// classNames makes class names in a text ineffective by inserting a space before the colon.
// The client searches the whole message for them, in an order of its own, so a class name
// quoted in the text could determine the kind of error that the client sees.
var classNames = func() *strings.Replacer {
	var pairs []string
	for _, c := range [...]Class{Admission, Readiness, CapacityExceeded, BoxValidation, SessionNotFound, SessionConflict,
		ManagedProcessNotFound, ManagedProcessConflict, BackendUnavailable, RuntimeUnavailable, BoxError,
		PermissionError, ValueError, KeyError, validation} {
		pairs = append(pairs, string(c)+":", string(c)+" :")
	}
	return strings.NewReplacer(pairs...)
}()
