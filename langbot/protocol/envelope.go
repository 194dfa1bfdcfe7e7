package protocol

import (
	"encoding/json"
)

// MaxMessage is the most bytes that a message can have, either way.
const MaxMessage = 16 << 20

// Request is one action that a client asks for.
type Request struct {
	Seq     json.RawMessage // a JSON number, verbatim
	Action  string
	Data    json.RawMessage // a JSON object
	Context *Context        // nil if there is none
}

// Parse reads a message. The error is ErrIgnore for what gets no answer, or an
// *Error to be answered with Failure(Request.Seq, err). The request keeps parts of msg.
func Parse(msg []byte) (Request, error) {
	return Request{}, ErrIgnore
}

// Success returns the reply of an action that went well. data is to become a JSON
// object; nil is the empty one.
func Success(seq json.RawMessage, data any) []byte {
	return nil
}

// Failure returns the reply of an action that failed. An err that has no *Error in
// its chain is a BoxError.
func Failure(seq json.RawMessage, err error) []byte {
	return nil
}
