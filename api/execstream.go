package api

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/session"
)

// execStream runs one command and sends its output while it runs, as a line of JSON for
// each piece. An error before the program runs is answered like that of any request.
func (c *call) execStream(key session.Key, q *apitypes.ExecRequest, e session.Exec) error {
	ctx, cancel := c.untilGone()
	defer cancel()
	out := &lineWriter{call: c, cancel: cancel}
	e.Stdout = &pieceWriter{out: out, stream: "stdout"}
	e.Stderr = &pieceWriter{out: out, stream: "stderr"}
	e.Started = func(engine.Process) { out.begin() }
	start := time.Now()
	res, err := c.s.opt.Sessions.Exec(ctx, c.caller(), key, optionalRequest(q.Session), e)
	if err = noSession(commandError(err, q.Argv)); err != nil {
		if !c.w.started() {
			return err
		}
		p := problemOf(err, c.id)
		return out.send(&apitypes.ExecEvent{Error: &p})
	}
	result := resultOf(&res, time.Since(start))
	return out.send(&apitypes.ExecEvent{Result: &result})
}

// lineWriter sends lines of JSON, each of them at once. Two streams share it.
type lineWriter struct {
	mu     sync.Mutex
	call   *call
	cancel context.CancelFunc // ends the command when the client accepts no more
}

// begin sends the header, so that the client knows that the program runs.
func (w *lineWriter) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beginLocked()
	w.call.w.Flush()
}

func (w *lineWriter) beginLocked() {
	if !w.call.w.started() {
		w.call.w.Header().Set("Content-Type", ndjson)
		w.call.w.WriteHeader(http.StatusOK)
	}
}

func (w *lineWriter) send(e *apitypes.ExecEvent) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beginLocked()
	if _, err := w.call.w.Write(append(line, '\n')); err != nil {
		w.cancel()
		return err
	}
	w.call.w.Flush()
	return nil
}

// pieceWriter is one output stream of a command.
type pieceWriter struct {
	out    *lineWriter
	stream string
	offset int64
}

func (w *pieceWriter) Write(p []byte) (int, error) {
	e := apitypes.ExecEvent{Stream: w.stream, Offset: w.offset}
	e.Data, e.DataBase64 = textOrBytes(p)
	if err := w.out.send(&e); err != nil {
		return 0, err
	}
	w.offset += int64(len(p))
	return len(p), nil
}
