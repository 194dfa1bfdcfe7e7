package client

import (
	"context"
	"io"
	"net/url"
	"strconv"

	"github.com/boxd/boxd/api/apitypes"
)

func processPath(session, process string, more ...string) []string {
	return append([]string{"sessions", session, "processes", process}, more...)
}

// Processes lists the managed processes of a session that have all of labels, including
// ended ones that were not removed. A label is "key=value", or "key" for any value.
func (c *Client) Processes(ctx context.Context, session string, labels ...string) ([]apitypes.Process, error) {
	l, err := fetch[apitypes.ProcessList](ctx, c, call{method: "GET", path: []string{"sessions", session, "processes"}, query: url.Values{"label": labels}})
	return l.Processes, err
}

// Process returns one managed process as it is now.
func (c *Client) Process(ctx context.Context, session, process string) (apitypes.Process, error) {
	return fetch[apitypes.Process](ctx, c, call{method: "GET", path: processPath(session, process)})
}

// Start starts a managed process and returns once its program runs. The process runs
// until it ends or is stopped, with or without an attached client. If a process with the
// same ID has ended, the new one replaces it; if it is running, Start fails with
// apitypes.CodeExists.
//
// With r.Wait, Start returns when the process is ready. If it fails before that, the error is
// apitypes.CodeNotReady, with the end of what the process had written in Output.
//
// If r.Session is set the session is created first, unless it exists.
func (c *Client) Start(ctx context.Context, session string, r apitypes.ProcessRequest) (apitypes.Process, error) {
	return fetch[apitypes.Process](ctx, c, call{method: "POST", path: []string{"sessions", session, "processes"}, body: r})
}

// Stop closes the process's stdin, sends SIGTERM, kills it after r.Grace, and returns
// when it has ended. Its output is kept until RemoveProcess.
func (c *Client) Stop(ctx context.Context, session, process string, r apitypes.StopRequest) (apitypes.Process, error) {
	return fetch[apitypes.Process](ctx, c, call{method: "POST", path: processPath(session, process, "stop"), body: r})
}

// Signal sends a signal to a managed process, by name or number: "SIGHUP", "HUP" or "1".
func (c *Client) Signal(ctx context.Context, session, process, signal string) error {
	return c.do(ctx, call{method: "POST", path: processPath(session, process, "signal"), body: apitypes.SignalRequest{Signal: signal}}, nil)
}

// RemoveProcess removes a managed process and its output. If it is running, it is ended.
func (c *Client) RemoveProcess(ctx context.Context, session, process string) error {
	return c.do(ctx, call{method: "DELETE", path: processPath(session, process)}, nil)
}

// LogOptions select a part of a managed process's output. The zero value selects all of
// stdout that is kept now.
type LogOptions struct {
	Stream string // "stdout" (the default) or "stderr"
	// Offset of the first byte from the start of the stream; a negative one counts from
	// the end. If that byte is no longer kept, Logs.Gap says how many are missing.
	Offset int64
	Follow bool  // continue until the process has ended
	Limit  int64 // maximum number of bytes; 0: none
	// Tail is the number of last lines to select; nil selects all.
	Tail *int64
	// Since selects output from that time on: a duration before now, such as "1h", or
	// a time in RFC 3339.
	Since string
	// Timestamps puts the time of its arrival in front of each line.
	Timestamps bool
}

// Logs is a part of a process's output, as plain bytes. The caller closes it. A read
// error other than io.EOF means that the part is incomplete.
type Logs struct {
	io.ReadCloser
	// Offset is the position of the first byte in the stream. Gap is how many of the
	// requested bytes before it are no longer kept.
	Offset, Gap int64
}

// Logs reads the kept output of a managed process, running or ended. Unlike Attach it
// does not reconnect, and it never makes the process wait.
func (c *Client) Logs(ctx context.Context, session, process string, o LogOptions) (*Logs, error) {
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
	resp, err := c.send(ctx, call{method: "GET", path: processPath(session, process, "logs"), query: q})
	if err != nil {
		return nil, err
	}
	l := &Logs{ReadCloser: resp.Body}
	l.Offset, _ = strconv.ParseInt(resp.Header.Get("X-Boxd-Offset"), 10, 64)
	l.Gap, _ = strconv.ParseInt(resp.Header.Get("X-Boxd-Gap"), 10, 64)
	return l, nil
}
