package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/boxd/boxd/api/apitypes"
)

// Exec runs a command and returns how it ended, output included. A command that
// fails is no error; one that could not be run is. Cancelling ctx kills it.
func (c *Client) Exec(ctx context.Context, session string, r apitypes.ExecRequest) (*apitypes.ExecResult, error) {
	var res apitypes.ExecResult
	if err := c.do(ctx, call{method: "POST", path: []string{"sessions", session, "exec"}, body: r}, &res); err != nil {
		return nil, err
	}
	return &res, nil
}

// ExecStream runs a command and hands its output to stdout and stderr as it comes;
// nil discards it. The result has no output. Cancelling ctx, or an error of a
// writer, kills the command.
func (c *Client) ExecStream(ctx context.Context, session string, r apitypes.ExecRequest, stdout, stderr io.Writer) (*apitypes.ExecResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.send(ctx, call{method: "POST", path: []string{"sessions", session, "exec"}, body: r, accept: "application/x-ndjson"})
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
		if err := writePiece(&e, stdout, stderr); err != nil {
			return nil, err
		}
	}
}

func writePiece(e *apitypes.ExecEvent, stdout, stderr io.Writer) error {
	w := stdout
	if e.Stream == "stderr" {
		w = stderr
	}
	if w == nil {
		return nil
	}
	if _, err := w.Write(e.Bytes()); err != nil {
		return fmt.Errorf("exec: writing %s: %w", e.Stream, err)
	}
	return nil
}
