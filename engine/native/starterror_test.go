package native

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
)

// The error of a command that did not start follows from the step and the kernel's errno. A
// box whose memory is full of files does not mean that a program cannot be executed.
func TestStartError(t *testing.T) {
	b := &box{limits: engine.Limits{Memory: 48 << 20, PIDs: 7}}
	long := []string{strings.Repeat("x", 100<<10), strings.Repeat("y", 100<<10)}
	for _, c := range []struct {
		step  string
		errno syscall.Errno
		args  []string
		is    error
		says  string
	}{
		{wire.StepExec, syscall.ENOENT, nil, engine.ErrNotFound, ""},
		{wire.StepExec, syscall.EACCES, nil, engine.ErrNotExecutable, "permission denied"},
		{wire.StepExec, syscall.E2BIG, long, engine.ErrNotExecutable, "argument list too long"},
		{wire.StepExec, syscall.E2BIG, nil, engine.ErrAtLimit, "memory limit of 48 MiB"},
		{wire.StepExec, syscall.ENOMEM, nil, syscall.ENOMEM, "memory limit of 48 MiB"},
		{wire.StepClone, syscall.ENOMEM, nil, syscall.ENOMEM, "memory limit of 48 MiB"},
		{wire.StepClone, syscall.EAGAIN, nil, engine.ErrAtLimit, "pids limit of 7"},
		{wire.StepChdir, syscall.ENOENT, nil, engine.ErrNoDir, "create it first, or set mkdir;"},
		{wire.StepChdir, syscall.ENOTDIR, nil, engine.ErrInvalid, `dir "/d": entering working directory: not a directory`},
		{wire.StepMkdir, syscall.EROFS, nil, engine.ErrInvalid, "creating working directory: read-only"},
		{wire.StepMkdir, syscall.ENOENT, nil, engine.ErrInvalid, "creating working directory"},
		{wire.StepMkdir, syscall.ENAMETOOLONG, nil, engine.ErrInvalid, "name too long"},
		{wire.StepChdir, syscall.EACCES, nil, engine.ErrInvalid, `user 7:8: entering working directory "/d": permission denied; the user of the box is 0:0`},
		{wire.StepChdir, syscall.EIO, nil, syscall.EIO, "input/output"},
	} {
		cmd := &engine.Command{Args: append([]string{"sh"}, c.args...), Dir: "/d", User: &engine.User{UID: 7, GID: 8}}
		err := b.startError(cmd, &wire.FailedMsg{Step: c.step, Errno: c.errno})
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s, %v: %v", c.step, c.errno, err)
		}
		ofDir := c.step != wire.StepExec && c.step != wire.StepClone && c.is != engine.ErrNoDir
		if dir := new(engine.DirError); errors.As(err, &dir) != ofDir {
			t.Errorf("%s, %v: a DirError: %v", c.step, c.errno, !ofDir)
		}
		if errors.Is(err, engine.ErrNotExecutable) != (c.is == engine.ErrNotExecutable) {
			t.Errorf("%s, %v: %v", c.step, c.errno, err)
		}
	}
}
