package api

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/files"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// inBox calls fn with the session's box, for one operation on a path.
func (c *call) inBox(a session.Access, fn func(box engine.LiveBox, path string) error) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	if a.Path == "" {
		return &engine.FieldError{Field: "path", Value: `""`, Rule: "must not be empty"}
	}
	box, release, err := c.box(key, a)
	if err != nil {
		return noSession(err)
	}
	defer release()
	err = fn(box, a.Path)
	if k := match(fileKinds, err); k != nil {
		return &refusal{code: k.code, detail: err.Error(), err: err}
	}
	return err
}

// inBoxUntilGone is inBox for an operation that may take long: its context ends with the client.
func (c *call) inBoxUntilGone(a session.Access, fn func(ctx context.Context, box engine.LiveBox, path string) error) error {
	ctx, cancel := c.untilGone()
	defer cancel()
	return c.inBox(a, func(box engine.LiveBox, path string) error { return fn(ctx, box, path) })
}

// box returns the session's box. A viewer gets only an existing box: looking must not keep
// a session alive, nor replace a lost box.
func (c *call) box(key session.Key, a session.Access) (engine.LiveBox, func(), error) {
	if c.who.Role >= Operator {
		return c.s.opt.Sessions.Access(c.r.Context(), c.caller(), key, nil, a)
	}
	box, release, err := c.s.opt.Sessions.Look(c.r.Context(), c.caller(), key, a)
	if err == nil && box == nil {
		err = refuse(apitypes.CodeBoxLost, "", "session %s: has no box now, and a viewer's request makes none", spec.Quote(key.ID))
	}
	return box, release, err
}

// contentTimeout bounds the transfer of content; a client that stalls is disconnected much
// earlier.
const contentTimeout = time.Hour

func (c *call) statFile() error {
	return c.inBox(session.Access{Action: "file-stat", Path: c.query("path")}, func(box engine.LiveBox, path string) error {
		info, err := files.Stat(c.r.Context(), box, files.Options{}, path)
		if err != nil {
			return err
		}
		return c.reply(http.StatusOK, fileInfoOf(info))
	})
}

func (c *call) listFiles() error {
	limit, err := c.queryInt("limit", 0)
	if err != nil {
		return err
	}
	if limit > files.MaxEntries {
		return &engine.FieldError{Field: "limit", Value: strconv.FormatInt(limit, 10), Rule: "must be at most " + strconv.Itoa(files.MaxEntries)}
	}
	return c.inBox(session.Access{Action: "file-list", Path: c.query("path")}, func(box engine.LiveBox, path string) error {
		infos, truncated, err := files.List(c.r.Context(), box, files.Options{}, path, int(limit))
		if err != nil {
			return err
		}
		list := apitypes.FileList{Files: make([]apitypes.FileInfo, len(infos)), Truncated: truncated}
		for i, info := range infos {
			list.Files[i] = fileInfoOf(info)
		}
		return c.reply(http.StatusOK, list)
	})
}

func (c *call) readFile() error {
	offset, err := c.queryInt("offset", 0)
	if err != nil {
		return err
	}
	limit, err := c.queryInt("limit", 0)
	if err != nil {
		return err
	}
	most := c.s.opt.MaxFile
	if limit > 0 {
		most = min(most, limit)
	}
	return c.inBoxUntilGone(session.Access{Action: "file-read", Path: c.query("path")}, func(ctx context.Context, box engine.LiveBox, path string) error {
		out := &lazyWriter{c: c}
		info, err := files.Read(ctx, box, files.Options{Timeout: contentTimeout}, path, offset, most, out)
		if err != nil {
			return err
		}
		// The client must not mistake a part of the file for all of it.
		if most != limit && info.Size > offset+out.sent {
			return refuse(apitypes.CodeFileTooLarge, "", "file %s of %s: at most %s are sent: ask for a part with offset and limit",
				spec.Quote(path), spec.FormatSize(info.Size), spec.FormatSize(most))
		}
		out.begin()
		return nil
	})
}

// fileInfoOf also passes on names that are not UTF-8 as bytes, so that a client can use
// them.
func fileInfoOf(i files.Info) apitypes.FileInfo {
	f := apitypes.FileInfo{Name: i.Name, Path: i.Path, Size: i.Size, Mode: i.Mode, Type: i.Type, ModTime: i.ModTime, UID: i.UID, GID: i.GID, Target: i.Target}
	if !utf8.ValidString(i.Name) || !utf8.ValidString(i.Path) {
		f.RawName, f.RawPath = []byte(i.Name), []byte(i.Path)
	}
	return f
}

func (c *call) writeFile() error {
	o, err := c.writeOptions()
	if err != nil {
		return err
	}
	if c.r.ContentLength > o.MaxBytes {
		return tooLarge(o.MaxBytes)
	}
	body := &bodyReader{conn: http.NewResponseController(c.w), r: c.r.Body}
	defer body.close()
	return c.inBoxUntilGone(session.Access{Action: "file-write", Path: c.query("path"), Write: true}, func(ctx context.Context, box engine.LiveBox, path string) error {
		info, err := files.Write(ctx, box, files.Options{Timeout: contentTimeout}, path, body, o)
		if err != nil {
			return err
		}
		c.bodyRead = true
		return c.reply(http.StatusOK, fileInfoOf(info))
	})
}

// parseMode reads permission bits; "" is 0, the default.
func parseMode(mode string) (uint32, error) {
	if mode == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(mode, 8, 32)
	if err != nil || n == 0 || n > 0o777 {
		return 0, &engine.FieldError{Field: "mode", Value: spec.Quote(mode), Rule: "must be permission bits in octal, such as 0644"}
	}
	return uint32(n), nil
}

func (c *call) writeOptions() (o files.WriteOptions, err error) {
	o.MaxBytes = c.s.opt.MaxFile
	var errs [3]error
	o.Mode, errs[0] = parseMode(c.query("mode"))
	o.Append, errs[1] = c.queryBool("append")
	o.MakeParents, errs[2] = c.queryBool("parents")
	return o, cmp.Or(errs[:]...)
}

// bodyReader disconnects a client that sends nothing for the time stall. A read may outlive
// the request, and must not leave a deadline behind.
type bodyReader struct {
	conn *http.ResponseController
	r    io.Reader

	mu     sync.Mutex
	closed bool
}

func (b *bodyReader) Read(p []byte) (int, error) {
	if !b.expect(time.Now().Add(stall)) {
		return 0, io.ErrClosedPipe
	}
	n, err := b.r.Read(p)
	if err != nil {
		b.expect(time.Time{}) // whatever uses the content may take longer
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("the client ended the body early: %w", context.Canceled)
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = refuse(apitypes.CodeBodyTimeout, "", "the client sent nothing of the body for %s", stall)
	}
	return n, err
}

// expect sets the deadline, and reports false if the request is over.
func (b *bodyReader) expect(deadline time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.conn.SetReadDeadline(deadline)
	}
	return !b.closed
}

func (b *bodyReader) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.conn.SetReadDeadline(time.Time{})
}

func (c *call) removeFile() error {
	recursive, err := c.queryBool("recursive")
	if err != nil {
		return err
	}
	return c.inBox(session.Access{Action: "file-remove", Path: c.query("path")}, func(box engine.LiveBox, path string) error {
		if err := files.Remove(c.r.Context(), box, files.Options{}, path, recursive); err != nil {
			return err
		}
		return c.empty()
	})
}

func (c *call) mkdir() error {
	var q apitypes.MkdirRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	mode, err := parseMode(q.Mode)
	if err != nil {
		return err
	}
	return c.inBox(session.Access{Action: "file-mkdir", Path: q.Path, Write: true}, func(box engine.LiveBox, path string) error {
		if err := files.Mkdir(c.r.Context(), box, files.Options{}, path, files.MkdirOptions{Mode: mode, Parents: q.Parents}); err != nil {
			return err
		}
		return c.empty()
	})
}

func (c *call) symlink() error {
	return c.inBox(session.Access{Action: "file-symlink", Path: c.query("path"), Write: true}, func(box engine.LiveBox, path string) error {
		if err := files.Symlink(c.r.Context(), box, files.Options{}, path, c.query("target")); err != nil {
			return err
		}
		return c.empty()
	})
}

func (c *call) renameFile() error {
	var q apitypes.RenameRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	return c.inBox(session.Access{Action: "file-rename", Path: q.Path}, func(box engine.LiveBox, path string) error {
		if err := files.Rename(c.r.Context(), box, files.Options{}, path, q.To, q.Replace); err != nil {
			return err
		}
		return c.empty()
	})
}

func (c *call) packFiles() error {
	p := files.PackOptions{Globs: c.values["glob"], MaxBytes: c.s.opt.MaxTree}
	out := &lazyWriter{c: c, kind: tarball}
	c.w.Header().Set("Vary", "Accept-Encoding")
	return c.inBoxUntilGone(session.Access{Action: "file-pack", Path: c.query("path")}, func(ctx context.Context, box engine.LiveBox, path string) error {
		o := files.Options{Timeout: contentTimeout}
		if !acceptsGzip(c.r) {
			return files.Pack(ctx, box, o, path, p, out)
		}
		out.encoding = "gzip"
		z, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
		if err != nil {
			return err
		}
		if err := files.Pack(ctx, box, o, path, p, z); err != nil {
			return err
		}
		return z.Close()
	})
}

func (c *call) unpackFiles() error {
	parents, err := c.queryBool("parents")
	if err != nil {
		return err
	}
	o := files.UnpackOptions{Globs: c.values["glob"], MakeParents: parents, MaxBytes: c.s.opt.MaxTree}
	if c.r.ContentLength > o.MaxBytes {
		return tooLarge(o.MaxBytes)
	}
	body := &bodyReader{conn: http.NewResponseController(c.w), r: c.r.Body}
	defer body.close()
	archive, err := c.gunzipped(body)
	if err != nil {
		return err
	}
	return c.inBoxUntilGone(session.Access{Action: "file-unpack", Path: c.query("path"), Write: true}, func(ctx context.Context, box engine.LiveBox, path string) error {
		tree, err := files.Unpack(ctx, box, files.Options{Timeout: contentTimeout}, path, archive, o)
		if bad, ok := errors.AsType[*engine.FieldError](err); ok && bad.Field == "archive" && archive == io.Reader(body) {
			bad.Rule += ", or have the header Content-Encoding: gzip"
		}
		if err != nil {
			return err
		}
		c.bodyRead = true
		return c.reply(http.StatusOK, apitypes.FileTree(tree))
	})
}

// copyFiles copies from one box to another. What one box sends is checked before the other
// one gets it, and neither sees the other.
func (c *call) copyFiles() error {
	var q apitypes.CopyRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	key, err := c.key()
	if err != nil {
		return err
	}
	if q.From == "" {
		return &engine.FieldError{Field: "from", Value: `""`, Rule: "must not be empty"}
	}
	source := session.Key{Tenant: key.Tenant, ID: cmp.Or(q.FromSession, key.ID)}
	if err := policy.ValidateSessionID(source.ID); err != nil {
		return (&engine.FieldError{Field: "from_session", Value: spec.Quote(source.ID), Rule: "must be the ID of a session"}).Because(err)
	}
	return c.inBoxUntilGone(session.Access{Action: "file-copy", Path: q.Path, Write: true}, func(ctx context.Context, to engine.LiveBox, path string) error {
		from, release, err := c.box(source, session.Access{Action: "file-copied", Path: q.From})
		if err != nil {
			return noSession(err)
		}
		defer release()
		copied, err := c.s.opt.Sessions.Copying(c.caller(), source, key)
		if err != nil {
			return err
		}
		defer copied()
		tree, err := files.Copy(ctx, from, q.From, to, path, files.Options{Timeout: contentTimeout}, files.PackOptions{Globs: q.Glob, MaxBytes: c.s.opt.MaxTree})
		if err != nil {
			return err
		}
		return c.reply(http.StatusOK, apitypes.FileTree(tree))
	})
}

// watchFiles sends changes as server-sent events until the client has gone or the directory is.
func (c *call) watchFiles() error {
	recursive, err := c.queryBool("recursive")
	if err != nil {
		return err
	}
	return c.inBox(session.Access{Action: "file-watch", Path: c.query("path"), Watch: true}, func(box engine.LiveBox, path string) error {
		ctx, cancel := c.untilStopped()
		defer cancel()
		stream := &changeStream{c: c}
		var beating sync.WaitGroup
		defer beating.Wait()
		beat, still := context.WithCancel(ctx)
		defer still()
		beating.Go(func() { stream.beat(beat) })
		err := files.Watch(ctx, box, files.Options{}, path, files.WatchOptions{Recursive: recursive, Globs: c.values["glob"]}, stream.change)
		if err == nil || ctx.Err() != nil && c.w.started() {
			return nil
		}
		return stream.fail(err)
	})
}

// changeStream is the answer of a watch. Its header goes out with the first event, so that an
// error before that can still be answered.
type changeStream struct {
	mu sync.Mutex
	c  *call
}

func (s *changeStream) change(change files.Change) error {
	e := apitypes.FileChange{Type: change.Type, Path: change.Path, Dir: change.Dir}
	if !utf8.ValidString(change.Path) {
		e.RawPath = []byte(change.Path)
	}
	return s.send(&e)
}

func (s *changeStream) send(e *apitypes.FileChange) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.c.w.started() {
		s.c.w.Header().Set("Content-Type", sse)
		s.c.w.Header().Set("Cache-Control", "no-store")
		s.c.w.WriteHeader(http.StatusOK)
	}
	_, err = fmt.Fprintf(s.c.w, "event: %s\ndata: %s\n\n", e.Type, data)
	s.c.w.Flush()
	return err
}

// beat shows that the stream is alive.
func (s *changeStream) beat(ctx context.Context) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.mu.Lock()
			if s.c.w.started() {
				_, _ = io.WriteString(s.c.w, ": alive\n\n") // the next event reports an error
				s.c.w.Flush()
			}
			s.mu.Unlock()
		}
	}
}

// fail ends the stream with err.
func (s *changeStream) fail(err error) error {
	if !s.c.w.started() {
		return err
	}
	if k := match(fileKinds, err); k != nil {
		err = &refusal{code: k.code, detail: err.Error(), err: err}
	}
	p := s.c.problem(err)
	return s.send(&apitypes.FileChange{Type: "error", Error: &p})
}
