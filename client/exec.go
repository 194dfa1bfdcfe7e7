package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/boxd/boxd/api/apitypes"
)

// Exec runs a command in a session and returns its result, including the output. A command
// that fails or runs into a limit has a result; an error means that it could not be run,
// or that its result is unknown. Cancelling ctx kills the command with all its
// descendants.
//
// If r.Session is set the session is created first, unless it exists.
func (c *Client) Exec(ctx context.Context, session string, r apitypes.ExecRequest) (*apitypes.ExecResult, error) {
	res := new(apitypes.ExecResult)
	if err := c.do(ctx, call{method: "POST", path: []string{"sessions", session, "exec"}, body: r}, res); err != nil {
		return nil, err
	}
	return res, nil
}

// ExecStream runs a command like [Client.Exec], but writes its output to stdout and
// stderr while the command runs; a nil writer discards it. The result contains no
// output. Cancelling ctx kills the command, and so does an error of a writer, which is
// returned.
func (c *Client) ExecStream(ctx context.Context, session string, r apitypes.ExecRequest, stdout, stderr io.Writer) (*apitypes.ExecResult, error) {
	return c.stream(ctx, call{method: "POST", path: []string{"sessions", session, "exec"}, body: r}, stdout, stderr)
}

// Run runs a command in a box of its own, of which nothing stays, and returns its result like [Client.Exec]. The
// box is exactly what r asks for, or the run is refused.
func (c *Client) Run(ctx context.Context, r apitypes.RunRequest) (*apitypes.ExecResult, error) {
	res := new(apitypes.ExecResult)
	if err := c.do(ctx, call{method: "POST", path: []string{"run"}, body: r}, res); err != nil {
		return nil, err
	}
	return res, nil
}

// RunStream runs a command like [Client.Run], but writes its output to stdout and stderr while it runs, like
// [Client.ExecStream].
func (c *Client) RunStream(ctx context.Context, r apitypes.RunRequest, stdout, stderr io.Writer) (*apitypes.ExecResult, error) {
	return c.stream(ctx, call{method: "POST", path: []string{"run"}, body: r}, stdout, stderr)
}

// stream makes a request whose answer is the output and the result of a command.
func (c *Client) stream(ctx context.Context, request call, stdout, stderr io.Writer) (*apitypes.ExecResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request.accept = "application/x-ndjson"
	resp, err := c.send(ctx, request)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	for {
		var e apitypes.ExecEvent
		if err := dec.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("exec: the stream ended before the command did: %w", err)
		}
		switch {
		case e.Error != nil:
			return nil, &Error{*e.Error}
		case e.Result != nil:
			return e.Result, nil
		}
		w := stdout
		if e.Stream == "stderr" {
			w = stderr
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(e.Bytes()); err != nil {
			return nil, fmt.Errorf("exec: writing %s: %w", e.Stream, err)
		}
	}
}
