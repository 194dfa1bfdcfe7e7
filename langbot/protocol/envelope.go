package protocol

import (
	"encoding/json"
	"strconv"
)

// MaxMessage is the maximum size of a message in either direction, in bytes.
const MaxMessage = 16 << 20

// maxSeq is the maximum length of a seq_id in bytes: longer than any counter, and short
// enough to repeat in the reply.
const maxSeq = 64

// noSeq is the seq_id of a reply to a request without a valid one.
var noSeq = json.RawMessage("-1")

// Request is a client's request for one action.
type Request struct {
	Seq     json.RawMessage // a JSON number, verbatim
	Action  string
	Data    json.RawMessage // a JSON object
	Context *Context        // nil if there is none
}

// Parse parses a message, which must be UTF-8. The error is ErrIgnore for a message that
// gets no reply; otherwise it is an *Error, to be answered with Failure(Request.Seq, err).
// The request refers to msg.
func Parse(msg []byte) (Request, error) {
	r := Request{Seq: noSeq}
	var seq, action, data, context field
	m := object(msg)
	for m.next() {
		f := field{validation, string(m.name), m.value}
		switch f.name {
		case "code":
			return r, ErrIgnore // a reply
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

// fill sets the request from the members of an envelope, which it checks.
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

// isSeq reports whether f can be repeated as a seq_id: a number that every JSON reader
// accepts.
func (f field) isSeq() bool {
	if f.raw == nil || len(f.raw) > maxSeq || f.raw[len(f.raw)-1] == 'y' { // Infinity
		return false
	}
	return f.raw[0] == '-' || isDigit(f.raw[0])
}
