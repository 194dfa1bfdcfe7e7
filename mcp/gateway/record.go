package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// Verdicts of a [ToolCall].
const (
	CallOK        = "ok"
	CallError     = "error"     // the tool or the server failed
	CallRefused   = "refused"   // the server has not got the call
	CallCancelled = "cancelled" // by the client, or because it or its credentials were gone, or the gateway was closed
)

// ToolCall is a call of a tool that has ended. It has nothing of the arguments, and of the server's answer only a code.
type ToolCall struct {
	Caller  Caller
	Server  string
	Tool    string // as the client wrote it, at most maxTool bytes
	Session string // of the box; empty if the call does not say whose it is
	Process string // empty: it has reached none
	Verdict string
	Reason  string // empty if the verdict is CallOK
}

// maxTool bounds the name of a tool in a record.
const maxTool = 128

// outcome is the end of a call.
type outcome struct{ verdict, reason string }

// record begins the record of a request. It returns nil for one that is no call of a tool, or if there are no records. The caller
// calls writeRecord.
func (g *Gateway) record(s *Server, who Caller, m *message) *ToolCall {
	if m.method != "tools/call" || g.opt.Record == nil {
		return nil
	}
	c := &ToolCall{Caller: who, Server: s.Name, Tool: cutText(text(object(m.members["params"])["name"]), maxTool), Session: s.BoxID()}
	if s.Mode == ModeSession { // the session of the protocol says which box
		c.Session = ""
	}
	return c
}

// at notes the box and the process of the call.
func (c *ToolCall) at(session, process string) {
	if c != nil {
		c.Session, c.Process = session, process
	}
}

// ended notes how the call has ended. The first one counts.
func (c *ToolCall) ended(o outcome) {
	if c != nil && c.Verdict == "" {
		c.Verdict, c.Reason = o.verdict, o.reason
	}
}

// writeRecord writes the record of a call; nil: there is none. A call that has not got further is refused.
func (g *Gateway) writeRecord(c *ToolCall) {
	if c == nil {
		return
	}
	c.ended(outcome{CallRefused, "the gateway has refused the request"})
	if err := g.opt.Record(*c); err != nil {
		g.opt.Logger.Error("mcp: a call of a tool could not be recorded", "server", c.Server, "session", c.Session, "verdict", c.Verdict, "error", err)
	}
}

// failedCall returns the outcome of a call that err has ended.
func failedCall(ctx context.Context, err error) outcome {
	f, ok := errors.AsType[*Failure](err)
	switch {
	case ctx.Err() != nil:
		return endedEarly
	case errors.Is(err, errNoProcess):
		return outcome{CallRefused, "the session has ended"}
	case !ok:
		return outcome{CallError, "the server cannot be reached"}
	case f.Phase == PhaseTools, f.Problem != nil && (f.Problem.Status == http.StatusForbidden || f.Problem.Status == http.StatusTooManyRequests):
		return outcome{CallRefused, "phase " + f.Phase}
	}
	return outcome{CallError, "phase " + f.Phase}
}

// endedEarly is the outcome of a call that ended before the server has answered. Some clients cancel it by a message and by
// closing the connection at once, so nothing more can be said.
var endedEarly = outcome{CallCancelled, "by the client, or its connection, its credentials or the daemon has ended"}

// answeredCall returns the outcome of a call that the server has answered.
func answeredCall(answer *message) outcome {
	if e := object(answer.members["error"]); e != nil {
		code, err := strconv.ParseInt(string(e["code"]), 10, 64)
		if err != nil { // the server may have written anything
			return outcome{CallError, "error of JSON-RPC"}
		}
		return outcome{CallError, fmt.Sprintf("error %d of JSON-RPC", code)}
	}
	if string(object(answer.members["result"])["isError"]) == "true" {
		return outcome{CallError, "the tool reports an error"}
	}
	return outcome{CallOK, ""}
}
