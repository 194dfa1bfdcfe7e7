package gateway

import (
	"encoding/json"

	"github.com/boxd/boxd/internal/rpcline"
)

// maxMessage bounds a message in bytes, in both directions. Results contain files and images.
const maxMessage = 16 << 20

// message is one message of JSON-RPC. Its members are kept as they were written.
type message struct {
	members map[string]json.RawMessage
	id      json.RawMessage // nil: a notification
	method  string          // empty: a response
}

// parse reads a message. It does not keep b.
func parse(b []byte) (*message, error) {
	m, err := rpcline.Parse(b)
	if err != nil {
		return nil, err
	}
	return &message{members: m.Members, id: m.ID, method: m.Method}, nil
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
