package install

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/agent/unpack/proto"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/internal/headtail"
	"github.com/boxd/boxd/internal/linux"
)

// pipeBytes is the size of the pipes of the tar stream, and of the buffer between them.
const pipeBytes = 1 << 20

// endPatience bounds the wait for the end of a box, after a command in it has failed. The box may be the cause.
const endPatience = 2 * time.Second

// box is a box that unpacks a layer. The archive may have subverted everything in it.
type box struct {
	*Unpacker
	engine.Box
}

// unpack has the box write the layer, and returns the digest of the tar stream from which it did.
func (b *box) unpack(ctx context.Context, l images.Layer) (diffID string, r proto.Result, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var pipes [2][2]*os.File // from inflate, to write
	defer func() {
		for _, p := range pipes {
			linux.CloseAll(p[:])
		}
	}()
	for i := range pipes {
		if pipes[i][0], pipes[i][1], err = os.Pipe(); err != nil {
			return "", r, err
		}
		// The end of the command, which may block. A user's share of large pipes is limited: then it is only slower.
		_ = linux.SetPipeSize(pipes[i][1-i], pipeBytes)
	}
	blob := &counter{r: l.Blob}
	defer blob.stop()
	inflate, err := b.start(ctx, engine.Command{User: &engine.User{UID: proto.InflateUser, GID: proto.InflateUser}, Stdin: blob, Stdout: pipes[0][1]},
		"inflate", strconv.FormatInt(streamLimit(l), 10))
	if err != nil {
		return "", r, err
	}
	limits, _ := json.Marshal(proto.Limits{Bytes: l.MaxBytes, Entries: MaxEntries, Below: len(l.Below), Root: l.DiffID == ""}) // numbers and a bool
	answer := &headtail.Buffer{Limit: maxAnswer}
	write, err := b.start(ctx, engine.Command{User: &engine.User{}, Stdin: pipes[1][0], Stdout: answer}, "write", string(limits))
	if err != nil {
		cancel(err)
		_ = inflate.wait(ctx)
		return "", r, err
	}
	linux.CloseAll([]*os.File{pipes[0][1], pipes[1][0]}) // the commands have theirs

	var watch sync.WaitGroup
	done := make(chan struct{})
	watch.Go(func() { b.watch(cancel, blob, l.Progress, done) })
	var inflated, written error
	var ended sync.WaitGroup
	// Only copying makes the digest that of what write reads: pages that inflate has put into a pipe, it can still
	// change if tee(2) or splice(2) pass them on.
	hash := sha256.New()
	var relayed error
	ended.Go(func() {
		_, relayed = io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(hash, pipes[1][1])}, struct{ io.Reader }{pipes[0][0]}, make([]byte, pipeBytes))
		linux.CloseAll([]*os.File{pipes[1][1], pipes[0][0]})
	})
	// A command that fails ends the other one by the end of a pipe, and what it says is the cause. Pipes also end
	// with the commands, however those end: each is killed with its descendants.
	ended.Go(func() { inflated = inflate.wait(ctx) })
	ended.Go(func() {
		written = write.wait(ctx)
		// write has read the end of the stream or has failed. A hostile PID 1 of the box could hold the other ends.
		_ = pipes[0][0].SetReadDeadline(time.Unix(1, 0))
		_ = pipes[1][1].SetWriteDeadline(time.Unix(1, 0))
	})
	ended.Wait()
	close(done)
	watch.Wait()

	switch {
	case context.Cause(ctx) != nil:
		return "", r, context.Cause(ctx)
	case relayed != nil && written == nil: // EPIPE
		written = fmt.Errorf("the unpacker did not read the archive to its end: %w", relayed)
	}
	if relayed == nil {
		// The stream ended by itself, so inflate has not failed because of write.
		written = cmp.Or(inflated, written)
	}
	if err := cmp.Or(written, inflated); err != nil {
		return "", r, err
	}
	text, _ := answer.Bytes()
	r, err = parseResult(text, l.MaxBytes)
	return hex.EncodeToString(hash.Sum(nil)), r, err
}

// watch ends the box's commands when the disk fills up, and reports the progress, until done is closed.
func (b *box) watch(cancel context.CancelCauseFunc, blob *counter, progress func(int64), done <-chan struct{}) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if progress != nil {
			progress(blob.n.Load())
		}
		select {
		case <-done:
			if progress != nil {
				progress(blob.n.Load())
			}
			return
		case <-tick.C:
		}
		if b.Room == nil {
			continue
		}
		if err := b.Room(); err != nil {
			cancel(fmt.Errorf("%w: %w", images.ErrNoSpace, err))
		}
	}
}

// sum has the box compute the sum of its layer.
func (b *box) sum(ctx context.Context) (proto.Sum, error) {
	answer := &headtail.Buffer{Limit: maxAnswer}
	c, err := b.start(ctx, engine.Command{User: &engine.User{}, Stdout: answer}, "sum")
	if err == nil {
		err = c.wait(ctx)
	}
	if err != nil {
		return proto.Sum{}, err
	}
	var s proto.Sum
	text, _ := answer.Bytes()
	if err := json.Unmarshal(text, &s); err != nil || !spec.IsLayerID(s.SHA256) || s.Files < 0 || s.Bytes < 0 {
		return proto.Sum{}, fmt.Errorf("the unpacker's sum of the layer is malformed: %s", spec.Quote(string(text)))
	}
	return s, nil
}

// command is a command of the box that runs.
type command struct {
	engine.Process
	box    engine.Box
	name   string
	stderr *headtail.Buffer
}

// start starts a command of the builtin.
func (b *box) start(ctx context.Context, c engine.Command, args ...string) (*command, error) {
	if b.Commands != nil {
		other := b.Commands(args)
		c.Args, c.Builtin, c.Env = other.Args, other.Builtin, other.Env
	} else {
		c.Args, c.Builtin = args, engine.BuiltinUnpack
	}
	run := &command{box: b.Box, name: args[0], stderr: &headtail.Buffer{Limit: maxAnswer}}
	c.Dir, c.Stderr, c.Timeout, c.Grace = "/", run.stderr, patience, time.Millisecond
	var err error
	if run.Process, err = b.Start(ctx, c); err != nil {
		return nil, fmt.Errorf("unpacking (%s): %w", run.name, err)
	}
	return run, nil
}

// wait waits for the end of the command. The error has its last line, and the kind that its status says.
func (c *command) wait(ctx context.Context) error {
	r, err := c.Wait()
	if r.Verdict == engine.Exited && r.ExitCode == 0 {
		return err
	}
	said, _ := c.stderr.Bytes()
	kind, cause := error(nil), lastLine(said)
	switch r.Verdict {
	case engine.Exited, engine.DiskQuota: // the status knows whether the disk is full or a limit is reached
		kind = map[int]error{proto.Corrupt: images.ErrCorrupt, proto.Refused: images.ErrRefused, proto.NoSpace: images.ErrNoSpace}[r.ExitCode]
		if r.ExitCode < 0 {
			kind, cause = images.ErrRefused, "one of its files is larger than "+strings.TrimPrefix(r.Limit, "file size ")
		}
		cause = cmp.Or(cause, fmt.Sprintf("it ended with status %d without saying why", r.ExitCode))
	case engine.OOM:
		kind, cause = images.ErrRefused, "unpacking it takes more memory than "+r.Limit
	case engine.PIDsLimit:
		kind, cause = images.ErrRefused, "unpacking it takes more processes than "+r.Limit
	case engine.TimedOut:
		kind, cause = images.ErrRefused, fmt.Sprintf("unpacking it takes longer than %v", patience)
	case engine.Canceled:
		return cmp.Or(context.Cause(ctx), context.Canceled)
	case engine.Signaled:
		cause = cmp.Or(cause, fmt.Sprintf("it was ended by signal %v", r.Signal))
	case engine.BoxLost:
		return fmt.Errorf("unpacking layer (%s): %w", c.name, engine.ErrBoxLost)
	default: // Wait has failed
		return fmt.Errorf("unpacking layer (%s): %w", c.name, cmp.Or(err, errors.New(string(r.Verdict))))
	}
	if kind != nil {
		return fmt.Errorf("%w: %s", kind, cause)
	}
	// A launcher that was started again deletes the layers that were being written, and ends their boxes: both a
	// file that is gone and a command's death can be known before the end of its box.
	select {
	case <-c.box.Done():
		return fmt.Errorf("unpacking layer (%s): %w", c.name, engine.ErrBoxLost)
	case <-time.After(endPatience):
		return fmt.Errorf("unpacking layer (%s): %s", c.name, cause)
	}
}

// parseResult checks what write says of the layer.
func parseResult(text []byte, maxBytes int64) (r proto.Result, err error) {
	err = json.Unmarshal(text, &r)
	ok := err == nil && r.Bytes >= 0 && r.Bytes <= maxBytes && r.Entries >= 0 && r.Entries <= MaxEntries
	for kind, n := range r.Skipped {
		ok = ok && len(kind) <= 32 && strings.Trim(kind, "abcdefghijklmnopqrstuvwxyz-") == "" && n >= 0 && n <= MaxEntries
	}
	if !ok {
		return proto.Result{}, fmt.Errorf("the unpacker's result is malformed: %s", spec.Quote(string(text)))
	}
	return r, nil
}

// counter counts what is read until stop. The engine may read a little after the end of a command.
type counter struct {
	n atomic.Int64

	mu sync.Mutex
	r  io.Reader // nil after stop
}

func (c *counter) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.r = nil
}

func (c *counter) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.r == nil {
		return 0, os.ErrClosed
	}
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// lastLine returns the last line of text, printable and short.
func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	line := string(text[bytes.LastIndexByte(text, '\n')+1:])
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, line[:min(len(line), 400)])
}
