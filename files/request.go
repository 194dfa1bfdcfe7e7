package files

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// grace is the time between SIGTERM and SIGKILL. It is short because an operation has
// nothing to tidy up.
const grace = 100 * time.Millisecond

// request is one operation in progress.
type request struct {
	verb string // for errors, such as "reading"
	path string
	args []string
	in   io.Reader // nil: no input
	out  io.Writer // bounded; nil: no output is expected
	// relative: another path of the operation is relative, although path is not.
	relative bool
	endless  bool // it runs until it is ended
}

// run has the box carry out the operation.
func (r *request) run(ctx context.Context, box engine.Box, o Options) (proto.Reply, error) {
	if err := checkPath("path", r.path); err != nil {
		return proto.Reply{}, err
	}
	timeout := cmp.Or(o.Timeout, DefaultTimeout)
	if r.endless {
		timeout = 0
	}
	var answer bytes.Buffer
	if r.out == nil {
		r.out = &bounded{w: io.Discard}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &outlet{w: r.out, cancel: cancel}
	defer out.stop()
	cmd := engine.Command{
		Builtin: engine.BuiltinFiles,
		Args:    r.args,
		User:    o.User,
		Stdin:   r.in,
		Stdout:  out,
		Stderr:  &bounded{w: &answer, left: proto.MaxReply},
		Timeout: timeout,
		Grace:   grace,
	}
	if strings.HasPrefix(r.path, "/") && !r.relative {
		cmd.Dir = "/" // the usual directory may be gone
	}
	result, err := engine.Run(ctx, box, cmd)
	if err != nil {
		return proto.Reply{}, r.failed(err)
	}
	return r.judge(ctx, result, answer.Bytes(), timeout)
}

// judge turns the box's answer, or the lack of one, into a reply or an error.
func (r *request) judge(ctx context.Context, result engine.Result, answer []byte, timeout time.Duration) (proto.Reply, error) {
	switch result.Verdict {
	case engine.TimedOut:
		return proto.Reply{}, r.failed(fmt.Errorf("%w after %v", ErrTimeout, timeout))
	case engine.Canceled:
		return proto.Reply{}, r.failed(cmp.Or(context.Cause(ctx), context.Canceled))
	case engine.BoxLost:
		return proto.Reply{}, r.failed(engine.ErrBoxLost)
	}
	reply, err := proto.ParseReply(answer)
	switch {
	case err == nil && reply.Failure != nil:
		return proto.Reply{}, r.explain(reply.Failure, result)
	case err == nil && result.ExitCode == 0:
		return reply, nil
	case result.Verdict == engine.OOM:
		return proto.Reply{}, r.failed(fmt.Errorf("%w: %w: the box is at its memory limit of %s", engine.ErrAtLimit, syscall.ENOMEM, result.Limit))
	case result.Verdict == engine.PIDsLimit || strings.HasPrefix(string(answer), noThread):
		return proto.Reply{}, r.failed(fmt.Errorf("%w: %w: the box is at its pids limit", engine.ErrAtLimit, syscall.EAGAIN))
	case err == nil:
		err = errors.New("it failed without saying why")
	}
	return proto.Reply{}, r.disturbed(fmt.Errorf("%w (%s)", err, ending(result)))
}

// noThread begins the Go runtime's last words when it cannot create another thread.
const noThread = "runtime: failed to create new OS thread"

// ending describes for people how a command ended.
func ending(r engine.Result) string {
	if r.Signal != 0 {
		return fmt.Sprintf("%s by %v", r.Verdict, r.Signal)
	}
	return fmt.Sprintf("%s, status %d", r.Verdict, r.ExitCode)
}

// explain turns the kernel's refusal inside the box into an error.
func (r *request) explain(f *proto.Failure, result engine.Result) error {
	if f.Errno == syscall.ENOMEM || f.Errno == syscall.EAGAIN || f.Errno == syscall.EMFILE {
		return r.failed(fmt.Errorf("%w: %w", engine.ErrAtLimit, f.Errno))
	}
	return refusedError{r.refused(f, result)}
}

// refusedError is a refusal by the kernel inside the box. It matches [ErrRefused].
type refusedError struct{ error }

func (e refusedError) Is(target error) bool { return target == ErrRefused }

func (e refusedError) Unwrap() error { return e.error }

func (r *request) refused(f *proto.Failure, result engine.Result) error {
	if f.Type != 0 {
		return r.failed(fmt.Errorf("%w but a %s: %w", ErrNotRegular, typeName(f.Type), f.Errno))
	}
	if f.Step != "" {
		return r.failed(fmt.Errorf("%s %s: %w", printable(f.Step), spec.Quote(string(f.Path)), f.Errno))
	}
	if result.Limit != "" && (f.Errno == syscall.ENOSPC || f.Errno == syscall.EFBIG) {
		return r.failed(fmt.Errorf("%w: limit %s", f.Errno, result.Limit))
	}
	return r.failed(f.Errno)
}

func (r *request) failed(err error) error {
	return fmt.Errorf("%s %s: %w", r.verb, spec.Quote(r.path), err)
}

// disturbed is the error for a malformed answer.
func (r *request) disturbed(err error) error { return r.failed(fmt.Errorf("%w: %w", ErrProtocol, err)) }

// info returns the Info of a reply that must contain one.
func (r *request) info(reply proto.Reply) (Info, error) {
	if reply.Info == nil {
		return Info{}, r.disturbed(errors.New("it describes no file"))
	}
	i, err := describe(*reply.Info, path.Base(r.path), r.path)
	if err != nil {
		return Info{}, r.disturbed(err)
	}
	return i, nil
}
