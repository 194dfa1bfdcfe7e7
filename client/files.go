package client

import (
	"context"
	"io"
	"net/url"
	"strconv"

	"github.com/boxd/boxd/api/apitypes"
)

func filesPath(session string, more ...string) []string {
	return append([]string{"sessions", session, "files"}, more...)
}

// ReadFile reads a file in the box from offset on, up to limit bytes; limit 0 is
// all of it. The caller closes what is returned; reading it fails if the daemon
// could not read to the end.
func (c *Client) ReadFile(ctx context.Context, session, path string, offset, limit int64) (io.ReadCloser, error) {
	q := url.Values{"path": {path}}
	if offset != 0 {
		q.Set("offset", strconv.FormatInt(offset, 10))
	}
	if limit != 0 {
		q.Set("limit", strconv.FormatInt(limit, 10))
	}
	resp, err := c.send(ctx, call{method: "GET", path: filesPath(session, "content"), query: q})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteOptions say how a file is written.
type WriteOptions struct {
	Mode    string // permission bits in octal of a new file; empty: 0644
	Append  bool
	Parents bool // make missing directories
}

// WriteFile writes what r gives to a file in the box.
func (c *Client) WriteFile(ctx context.Context, session, path string, r io.Reader, o WriteOptions) (apitypes.FileInfo, error) {
	var info apitypes.FileInfo
	q := url.Values{"path": {path}}
	if o.Mode != "" {
		q.Set("mode", o.Mode)
	}
	if o.Append {
		q.Set("append", "1")
	}
	if o.Parents {
		q.Set("parents", "1")
	}
	err := c.do(ctx, call{method: "PUT", path: filesPath(session, "content"), query: q, raw: r}, &info)
	return info, err
}

// ListFiles lists the first files of a directory in the box, as many as a daemon lists
// at most.
func (c *Client) ListFiles(ctx context.Context, session, path string) (apitypes.FileList, error) {
	var l apitypes.FileList
	q := url.Values{"path": {path}, "limit": {"10000"}}
	err := c.do(ctx, call{method: "GET", path: filesPath(session), query: q}, &l)
	return l, err
}

// StatFile describes what path leads to; for a symlink, Target is set.
func (c *Client) StatFile(ctx context.Context, session, path string) (apitypes.FileInfo, error) {
	var info apitypes.FileInfo
	err := c.do(ctx, call{method: "GET", path: filesPath(session, "stat"), query: url.Values{"path": {path}}}, &info)
	return info, err
}

// RemoveFile removes a file or directory in the box.
func (c *Client) RemoveFile(ctx context.Context, session, path string, recursive bool) error {
	q := url.Values{"path": {path}}
	if recursive {
		q.Set("recursive", "1")
	}
	return c.do(ctx, call{method: "DELETE", path: filesPath(session, "content"), query: q}, nil)
}

// Mkdir makes a directory in the box.
func (c *Client) Mkdir(ctx context.Context, session string, r apitypes.MkdirRequest) error {
	return c.do(ctx, call{method: "POST", path: filesPath(session, "mkdir"), body: r}, nil)
}

// Symlink makes a symlink in the box, in place of a file or symlink that is there.
func (c *Client) Symlink(ctx context.Context, session, path, target string) error {
	q := url.Values{"path": {path}, "target": {target}}
	return c.do(ctx, call{method: "PUT", path: filesPath(session, "symlink"), query: q}, nil)
}
