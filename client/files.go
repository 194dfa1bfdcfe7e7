package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/sse"
)

func filesPath(session string, more ...string) []string {
	return append([]string{"sessions", session, "files"}, more...)
}

// ReadFile returns the content of a file in the session's box: up to limit bytes from
// offset; a limit of 0 means up to the end. A relative path starts at the workspace. The
// caller closes the reader. Its Read fails if the daemon could not send all of the
// content, so io.EOF means that it is complete. apitypes.CodeFileTooLarge: the file must
// be read in parts.
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

// WriteOptions control WriteFile. The zero value replaces the file or creates it.
type WriteOptions struct {
	Mode    string // permission bits in octal; empty: 0644 for a new file, else unchanged
	Append  bool   // add to the end instead of replacing
	Parents bool   // create missing parent directories
}

// WriteFile stores the content of r in a file in the session's box. The file is replaced
// atomically; if r fails, it stays as it was.
func (c *Client) WriteFile(ctx context.Context, session, path string, r io.Reader, o WriteOptions) (apitypes.FileInfo, error) {
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
	return fetch[apitypes.FileInfo](ctx, c, call{method: "PUT", path: filesPath(session, "content"), query: q, raw: r})
}

// ListFiles lists a directory in the session's box, sorted by name. FileList.Truncated
// is set if it has more than 10,000 entries, the most that a daemon lists.
func (c *Client) ListFiles(ctx context.Context, session, path string) (apitypes.FileList, error) {
	q := url.Values{"path": {path}, "limit": {"10000"}}
	return fetch[apitypes.FileList](ctx, c, call{method: "GET", path: filesPath(session), query: q})
}

// StatFile describes the file at path, following symlinks. If path is a symlink, Target
// is its text.
func (c *Client) StatFile(ctx context.Context, session, path string) (apitypes.FileInfo, error) {
	return fetch[apitypes.FileInfo](ctx, c, call{method: "GET", path: filesPath(session, "stat"), query: url.Values{"path": {path}}})
}

// RemoveFile removes a file or an empty directory in the session's box; with recursive,
// a directory with everything in it.
func (c *Client) RemoveFile(ctx context.Context, session, path string, recursive bool) error {
	q := url.Values{"path": {path}}
	if recursive {
		q.Set("recursive", "1")
	}
	return c.do(ctx, call{method: "DELETE", path: filesPath(session, "content"), query: q}, nil)
}

// Mkdir creates a directory in the session's box.
func (c *Client) Mkdir(ctx context.Context, session string, r apitypes.MkdirRequest) error {
	return c.do(ctx, call{method: "POST", path: filesPath(session, "mkdir"), body: r}, nil)
}

// Symlink creates a symlink in the session's box, replacing a file or symlink at path.
func (c *Client) Symlink(ctx context.Context, session, path, target string) error {
	q := url.Values{"path": {path}, "target": {target}}
	return c.do(ctx, call{method: "PUT", path: filesPath(session, "symlink"), query: q}, nil)
}

// RenameFile renames a file, symlink or directory in the session's box.
func (c *Client) RenameFile(ctx context.Context, session string, r apitypes.RenameRequest) error {
	return c.do(ctx, call{method: "POST", path: filesPath(session, "rename"), body: r}, nil)
}

// PackFiles returns the content of a directory in the session's box as a tar archive, whose
// names are relative to the directory. globs choose a part of it, such as "*.png", "src" or
// "**/*.csv"; without any it is everything. The caller closes the reader. Its Read fails if the
// daemon could not send all of the archive, so io.EOF means that it is complete.
func (c *Client) PackFiles(ctx context.Context, session, path string, globs ...string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, call{method: "GET", path: filesPath(session, "tar"), query: url.Values{"path": {path}, "glob": globs}})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// UnpackOptions control UnpackFiles. The zero value unpacks everything.
type UnpackOptions struct {
	Globs   []string // as for PackFiles
	Parents bool     // create the directory if it is missing
}

// UnpackFiles unpacks a tar archive into a directory in the session's box. Files that are there
// are replaced, each of them atomically. After an error, what was unpacked before stays.
func (c *Client) UnpackFiles(ctx context.Context, session, path string, archive io.Reader, o UnpackOptions) (apitypes.FileTree, error) {
	q := url.Values{"path": {path}, "glob": o.Globs}
	if o.Parents {
		q.Set("parents", "1")
	}
	return fetch[apitypes.FileTree](ctx, c, call{method: "PUT", path: filesPath(session, "tar"), query: q, raw: archive})
}

// CopyFiles copies a file, or the content of a directory, into the session's box from a session
// of the same tenant.
func (c *Client) CopyFiles(ctx context.Context, session string, r apitypes.CopyRequest) (apitypes.FileTree, error) {
	return fetch[apitypes.FileTree](ctx, c, call{method: "POST", path: filesPath(session, "copy"), body: r})
}

// WatchOptions control WatchFiles. The zero value watches the directory itself.
type WatchOptions struct {
	Recursive bool     // watch the directories below too
	Globs     []string // of the reported paths, as for PackFiles
}

// WatchFiles calls each for every change in a directory in the session's box, first with type
// "ready". It returns when ctx ends, when each fails, with its error, and with nil when the
// directory is gone. io.ErrUnexpectedEOF: the daemon ended the stream; changes may be missed.
func (c *Client) WatchFiles(ctx context.Context, session, path string, o WatchOptions, each func(apitypes.FileChange) error) error {
	q := url.Values{"path": {path}, "glob": o.Globs}
	if o.Recursive {
		q.Set("recursive", "1")
	}
	resp, err := c.send(ctx, call{method: "GET", path: filesPath(session, "watch"), query: q, accept: "text/event-stream"})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	events := sse.NewReader(resp.Body, maxEvent)
	for {
		event, err := events.Next()
		if err != nil {
			// The stream ends with "gone" or an error, which the loop has returned from.
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("watching: %w", cmp.Or(ctx.Err(), err))
		}
		var change apitypes.FileChange
		if err := json.Unmarshal(event.Data, &change); err != nil {
			return fmt.Errorf("watching: %w", err)
		}
		if change.Error != nil {
			return &Error{*change.Error}
		}
		if err := each(change); err != nil || change.Type == "gone" {
			return err
		}
	}
}
