package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/files"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/session"
)

// exec runs one command. If the client disconnects, the context of the request ends, and
// with it the command.
func (c *call) exec(key session.Key) error {
	var q apitypes.ExecRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	e, err := execOf(&q)
	if err != nil {
		return err
	}
	return c.run(key.Tenant, q.Outputs, e, c.execIn(key, q.Session), func(err error) error { return commandError(err, q.Argv) })
}

// runner runs a command.
type runner func(context.Context, session.Exec) (session.ExecResult, error)

// execIn returns the runner of commands in a session.
func (c *call) execIn(key session.Key, settings *apitypes.SessionSpec) runner {
	return func(ctx context.Context, e session.Exec) (session.ExecResult, error) {
		return c.s.opt.Sessions.Exec(ctx, c.caller(), key, optionalRequest(settings), e)
	}
}

// run has do run e, and answers with its result or streams its output. The result has the files that e made
// and that match the patterns outputs, which count for tenant. explain translates an error into the terms of the request.
func (c *call) run(tenant string, outputs []string, e session.Exec, do runner, explain func(error) error) error {
	if accepts(c.r, ndjson) {
		return c.runStream(tenant, outputs, e, do, explain)
	}
	ctx, cancel := c.untilGone()
	defer cancel()
	out, err := c.collectOutputs(tenant, outputs, &e)
	if err != nil {
		return err
	}
	defer out.release()
	start := time.Now()
	res, err := do(ctx, e)
	if err != nil {
		return explain(err)
	}
	result := resultOf(&res, time.Since(start), out)
	result.Stdout, result.StdoutBase64 = textOrBytes(res.Stdout)
	result.Stderr, result.StderrBase64 = textOrBytes(res.Stderr)
	result.StdoutMissing, result.StderrMissing = (*apitypes.Missing)(res.StdoutMissing), (*apitypes.Missing)(res.StderrMissing)
	result.StdoutTruncated, result.StderrTruncated = res.StdoutMissing != nil, res.StderrMissing != nil
	return c.reply(http.StatusOK, &result)
}

// execOf returns q in the form of package session.
func execOf(q *apitypes.ExecRequest) (session.Exec, error) {
	args, env, err := programOf(q.Argv, q.Shell, q.Env)
	if err != nil {
		return session.Exec{}, err
	}
	e, err := boundsOf(q)
	e.Args, e.Env, e.KeepBackground, e.Zygote = args, env, q.KeepBackground, q.Zygote
	return e, err
}

// boundsOf returns everything in q but the command itself.
func boundsOf(q *apitypes.ExecRequest) (session.Exec, error) {
	stdin, err := stdinOf(q)
	if err != nil {
		return session.Exec{}, err
	}
	if q.Timeout < 0 || q.Grace < 0 {
		return session.Exec{}, &engine.FieldError{Field: "timeout", Value: q.Timeout.D().String(), Rule: "must not be negative, nor must grace"}
	}
	if q.OutputLimit < 0 {
		return session.Exec{}, &engine.FieldError{Field: "output_limit", Value: spec.FormatSize(int64(q.OutputLimit)), Rule: "must be 0 or more"}
	}
	if err := files.CheckOutputs(q.Outputs); err != nil {
		return session.Exec{}, err
	}
	return session.Exec{
		Dir: q.Cwd, MakeDir: q.Mkdir, User: q.User, Stdin: stdin, Timeout: q.Timeout.D(),
		Grace: q.Grace.D(), OutputLimit: int64(q.OutputLimit),
	}, nil
}

func stdinOf(q *apitypes.ExecRequest) (io.Reader, error) {
	switch {
	case q.Stdin != "" && len(q.StdinBase64) > 0:
		return nil, &engine.FieldError{Field: "stdin_base64", Value: spec.Quote(string(q.StdinBase64)), Rule: "must be absent if stdin is given"}
	case q.Stdin != "":
		return strings.NewReader(q.Stdin), nil
	case len(q.StdinBase64) > 0:
		return bytes.NewReader(q.StdinBase64), nil
	}
	return nil, nil
}

// resultOf returns how a command ended, without its output.
func resultOf(res *session.ExecResult, took time.Duration, out *outputs) apitypes.ExecResult {
	return apitypes.ExecResult{
		Outputs: out.files, OutputsTruncated: out.truncated, OutputsError: out.failure,
		ExitCode: res.Exit(), Signal: linux.SignalName(res.Signal), Status: res.Status(), Verdict: string(res.Verdict), Limit: res.Limit,
		Denied: denialsOf(res.Denied), Warm: res.Warm, Receipt: receiptOf(&res.Receipt), Duration: apitypes.Duration(took),
		Created: res.Session.Created, Recreated: res.Session.Recreated,
	}
}

// textOrBytes returns b as text if it is UTF-8, and otherwise as bytes, which JSON encodes
// in base64.
func textOrBytes(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", b
}

// accepts reports whether the client asked for this type of answer by name.
func accepts(r *http.Request, kind string) bool {
	for _, header := range r.Header["Accept"] {
		for part := range strings.SplitSeq(header, ",") {
			name, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(name), kind) {
				return true
			}
		}
	}
	return false
}

// runStream runs e and sends its output while it runs, as a line of JSON for each piece. An
// error before the program runs is answered like any request's.
func (c *call) runStream(tenant string, outputs []string, e session.Exec, do runner, explain func(error) error) error {
	ctx, cancel := c.untilGone()
	defer cancel()
	out := &lineWriter{call: c, cancel: cancel}
	e.Stdout = &pieceWriter{out: out, stream: "stdout"}
	e.Stderr = &pieceWriter{out: out, stream: "stderr"}
	e.Started = func(engine.Process) { out.begin() }
	made, err := c.collectOutputs(tenant, outputs, &e)
	if err != nil {
		return err
	}
	defer made.release()
	start := time.Now()
	res, err := do(ctx, e)
	if err != nil {
		err = noSession(explain(err))
		if !c.w.started() {
			return err
		}
		p := c.problem(err)
		return out.send(&apitypes.ExecEvent{Error: &p})
	}
	result := resultOf(&res, time.Since(start), made)
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

func (w *lineWriter) send(e any) error {
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
