package protocol

import (
	"encoding/json"
	"strconv"
)

// MaxMessage is the most bytes that a message can have, either way.
const MaxMessage = 16 << 20

// maxSeq is the most bytes of a seq_id: more digits than any counter has, and few
// enough to repeat.
const maxSeq = 64

// noSeq stands where a request had no seq_id that can be repeated.
var noSeq = json.RawMessage("-1")

// Request is one action that a client asks for.
type Request struct {
	Seq     json.RawMessage // a JSON number, verbatim
	Action  string
	Data    json.RawMessage // a JSON object
	Context *Context        // nil if there is none
}

// Parse reads a message, which has to be UTF-8. The error is ErrIgnore for what gets no
// answer, or an *Error to be answered with Failure(Request.Seq, err). The request
// keeps parts of msg.
func Parse(msg []byte) (Request, error) {
	r := Request{Seq: noSeq}
	var seq, action, data, context field
	m := object(msg)
	for m.next() {
		f := field{validation, string(m.name), m.value}
		switch f.name {
		case "code":
			return r, ErrIgnore // an answer
		case "seq_id":
			seq = f
		case "action":
			action = f
		case "data":
			data = f
		case "context":
			context = f
		}
	}
	if seq.isSeq() {
		r.Seq = seq.raw
	}
	if m.err == errDepth {
		return r, Errorf(validation, "objects and lists are nested too deep: %d levels are read", maxDepth)
	}
	if m.err != nil || action.raw == nil {
		return r, ErrIgnore
	}
	return r, r.fill(seq, action, data, context)
}

// fill checks the parts of an envelope and takes them over.
func (r *Request) fill(seq, action, data, context field) (err error) {
	switch {
	case seq.raw == nil:
		return Errorf(validation, "seq_id: is missing: it is required")
	case !seq.isSeq():
		return seq.fail("must be a number of at most " + strconv.Itoa(maxSeq) + " characters")
	case data.raw == nil:
		return Errorf(validation, "data: is missing: it is required")
	case data.raw[0] != '{':
		return data.fail("must be an object")
	}
	r.Data = data.raw
	if r.Action, err = action.str(); err != nil {
		return err
	}
	if context.raw != nil && !context.null() {
		r.Context, err = parseContext(context.raw)
	}
	return err
}

// isSeq reports whether f can be repeated as a seq_id: a number that is one in
// every reader's eyes.
func (f field) isSeq() bool {
	if f.raw == nil || len(f.raw) > maxSeq || f.raw[len(f.raw)-1] == 'y' { // Infinity
		return false
	}
	return f.raw[0] == '-' || isDigit(f.raw[0])
}
