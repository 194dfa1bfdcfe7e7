package client

import (
	"context"
	"io"
	"net/url"
	"strconv"

	"github.com/boxd/boxd/api/apitypes"
)

func processPath(session, id string, more ...string) []string {
	return append([]string{"sessions", session, "processes", id}, more...)
}

// Processes lists the managed processes of a session, ended ones included.
func (c *Client) Processes(ctx context.Context, session string) ([]apitypes.Process, error) {
	var l apitypes.ProcessList
	err := c.do(ctx, call{method: "GET", path: []string{"sessions", session, "processes"}}, &l)
	return l.Processes, err
}

// Process returns one of them.
func (c *Client) Process(ctx context.Context, session, id string) (apitypes.Process, error) {
	var p apitypes.Process
	err := c.do(ctx, call{method: "GET", path: processPath(session, id)}, &p)
	return p, err
}

// Start starts a managed process.
func (c *Client) Start(ctx context.Context, session string, r apitypes.ProcessRequest) (apitypes.Process, error) {
	var p apitypes.Process
	err := c.do(ctx, call{method: "POST", path: []string{"sessions", session, "processes"}, body: r}, &p)
	return p, err
}

// Stop ends a managed process and returns when it has ended. What it wrote is kept
// until RemoveProcess.
func (c *Client) Stop(ctx context.Context, session, id string, r apitypes.StopRequest) (apitypes.Process, error) {
	var p apitypes.Process
	err := c.do(ctx, call{method: "POST", path: processPath(session, id, "stop"), body: r}, &p)
	return p, err
}

// Signal sends a signal, "SIGHUP" or "1", to a managed process.
func (c *Client) Signal(ctx context.Context, session, id, signal string) error {
	return c.do(ctx, call{method: "POST", path: processPath(session, id, "signal"), body: apitypes.SignalRequest{Signal: signal}}, nil)
}

// RemoveProcess forgets a managed process and its output, ending it if it runs.
func (c *Client) RemoveProcess(ctx context.Context, session, id string) error {
	return c.do(ctx, call{method: "DELETE", path: processPath(session, id)}, nil)
}

// LogOptions say which part of a process's output is wanted.
type LogOptions struct {
	Stream string // "stdout" (the default) or "stderr"
	Offset int64  // of the first byte; below what is kept: from there on, see Logs.Gap
	Follow bool   // go on until the process has ended
	Limit  int64  // bytes at most; 0: no limit
	// Tail is how many of the last lines there are; nil: all that are kept.
	Tail *int64
	// Since leaves out what came before: a duration before now such as "1h", or a time of
	// RFC 3339.
	Since string
	// Timestamps puts the time at which it came in front of each line.
	Timestamps bool
}

// Logs is a part of a process's output. Close it.
type Logs struct {
	io.ReadCloser
	// Offset is that of the first byte, Gap how many bytes before it are gone.
	Offset, Gap int64
}

// Logs reads output of a managed process that is kept.
func (c *Client) Logs(ctx context.Context, session, id string, o LogOptions) (*Logs, error) {
	q := url.Values{}
	if o.Stream != "" {
		q.Set("stream", o.Stream)
	}
	if o.Offset != 0 {
		q.Set("offset", strconv.FormatInt(o.Offset, 10))
	}
	if o.Follow {
		q.Set("follow", "1")
	}
	if o.Tail != nil {
		q.Set("tail", strconv.FormatInt(*o.Tail, 10))
	}
	if o.Since != "" {
		q.Set("since", o.Since)
	}
	if o.Timestamps {
		q.Set("timestamps", "1")
	}
	if o.Limit != 0 {
		q.Set("limit", strconv.FormatInt(o.Limit, 10))
	}
	resp, err := c.send(ctx, call{method: "GET", path: processPath(session, id, "logs"), query: q})
	if err != nil {
		return nil, err
	}
	l := &Logs{ReadCloser: resp.Body}
	l.Offset, _ = strconv.ParseInt(resp.Header.Get("X-Boxd-Offset"), 10, 64)
	l.Gap, _ = strconv.ParseInt(resp.Header.Get("X-Boxd-Gap"), 10, 64)
	return l, nil
}
