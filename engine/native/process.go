package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/sys/unix"
)

const (
	// startDeadline bounds the start of a command. The agent needs microseconds,
	// unless it was stopped or subverted by a command.
	startDeadline = 30 * time.Second
	// emptyDeadline bounds the end of a killed command: SIGKILL takes effect only
	// when a process leaves an uninterruptible wait.
	emptyDeadline = 30 * time.Second
	// drainDelay is how long output is read after the end of a command that may
	// leave background processes, which can hold the pipe forever.
	drainDelay = 250 * time.Millisecond
	// cutDelay is how long the pipes and the terminal of a dead command may take to
	// end by themselves. They end at once, unless a process outside the command
	// holds the other end.
	cutDelay = 2 * time.Second
)

// process is a command. One goroutine, supervise, waits for its end and sets the result;
// all others wait for done.
type process struct {
	account
	cmd engine.Command
	io  stdio
	// pausedBefore is how long the box had been paused before the command began.
	pausedBefore time.Duration
	tty          *os.File // our side of its terminal, nil without one
	id           uint32
	*reports                  // of the agent about id; both change together, under box.mu
	zygote       *spec.Zygote // whose spares can take it over; nil if none can

	lost chan struct{}       // closed when the box is gone
	stop chan engine.Verdict // why boxd ends it; the first reason counts
	done chan struct{}       // closed when result and err are final
	// canceled is when the context of Start ended, if that was during Start.
	canceled time.Time

	lostOnce sync.Once
}

var _ engine.Process = (*process)(nil)

// Start implements engine.Box.
func (b *box) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	if err := cmd.Validate(); err != nil {
		return nil, err
	}
	warm, err := spec.FindZygote(b.spec.Zygotes, cmd.Zygote, cmd.Args)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &process{
		account: account{box: b},
		cmd:     cmd.WithDefaults(b.spec),
		reports: newReports(),
		lost:    make(chan struct{}),
		stop:    make(chan engine.Verdict, 4),
		done:    make(chan struct{}),
	}
	if err := b.pauses.beginStart(); err != nil {
		return nil, fmt.Errorf("starting command in box %q: %w", b.id, err)
	}
	defer b.pauses.endStart()
	if err := b.register(p); err != nil {
		return nil, err
	}
	err = p.startWarm(ctx, warm)
	if errors.Is(err, errNoSpare) {
		err = p.start(ctx)
	}
	p.io.closeChild()
	if err != nil {
		p.io.close()
		p.io.copies.Wait()
		if p.slot != nil {
			b.slots.release(p.slot)
		}
		b.unregister(p)
		b.running.Done()
		return nil, err
	}
	b.warm.used(p, false)
	go p.supervise(ctx)
	return p, nil
}

// startWarm starts the command in a spare of zygote, if there is one. After errNoSpare no code of the command
// has run.
func (p *process) startWarm(ctx context.Context, zygote *spec.Zygote) error {
	if !p.box.warm.mayTake(zygote, p) {
		return errNoSpare
	}
	// Before a spare is taken: one that gets no command would wait for ever.
	if err := p.openStdio(); err != nil {
		return err
	}
	if !p.box.warm.take(zygote, p) {
		return errNoSpare
	}
	err := p.ask(ctx, wire.TypeUse, nil)
	failed, ok := errors.AsType[*wire.FailedMsg](err)
	if !ok || failed.Step != wire.StepSpare {
		p.result.Warm = err == nil && p.warm
		return err
	}
	p.box.warm.spoiled(p, failed)
	p.box.slots.release(p.slot) // the agent has killed the spare
	p.slot = nil
	p.box.renumber(p, p.box.newID())
	return errNoSpare
}

// start starts the command. When it returns, the program runs.
func (p *process) start(ctx context.Context) error {
	var err error
	if p.slot, err = p.box.slots.takeAny(); err != nil {
		return err
	}
	if err := p.openStdio(); err != nil {
		return err
	}
	return p.ask(ctx, wire.TypeSpawn, p.slot.birth)
}

// ask has the agent start the command in its slot by a frame of type typ.
func (p *process) ask(ctx context.Context, typ byte, birth []*os.File) error {
	p.levels = levels(p.box.volumes)
	p.slot.begin()
	m := p.spawnMsg(&p.cmd, birth)
	files := append([]*os.File{p.io.child[0], p.io.child[1], p.io.child[2]}, birth...)
	p.began = time.Now()
	p.pausedBefore, _, _ = p.box.pauses.now()
	if err := p.box.agent.Send(typ, p.id, m.Marshal(), files...); err != nil {
		err = fmt.Errorf("starting command in box %q: %w: %w", p.box.id, engine.ErrBoxLost, err)
		if typ == wire.TypeUse { // the spare still waits
			err = errors.Join(err, p.kill(unix.SIGKILL))
		}
		return err
	}
	return p.awaitStart(ctx)
}

// awaitStart waits until the program runs. If it gives up, it kills whatever was started.
//
// The program may have run for a while when the agent's answer is read. So if ctx ends first, a
// command with a CancelGrace still gets its SIGTERM: awaitStart waits for the answer, at most for
// the grace, and leaves the rest to supervise.
func (p *process) awaitStart(ctx context.Context) error {
	timer := time.NewTimer(startDeadline)
	defer timer.Stop()
	canceled := ctx.Done()
	var hurry <-chan time.Time
	for {
		select {
		case failed := <-p.started:
			p.box.slots.refill()
			return p.box.startError(&p.cmd, failed)
		case <-p.lost:
			select {
			case failed := <-p.started: // the agent's last message
				return p.box.startError(&p.cmd, failed)
			default:
			}
			return fmt.Errorf("starting command in box %q: %w: %w", p.box.id, engine.ErrBoxLost, engine.ErrMayHaveRun)
		case <-canceled:
			if p.cmd.CancelGrace == 0 {
				return errors.Join(context.Cause(ctx), p.kill(unix.SIGKILL))
			}
			p.canceled = time.Now()
			canceled, hurry = nil, time.After(p.cmd.CancelGrace)
		case <-hurry:
			return errors.Join(context.Cause(ctx), p.kill(unix.SIGKILL))
		case <-timer.C:
			err := fmt.Errorf("starting command in box %q: no answer in %v: %w: %w", p.box.id, startDeadline, engine.ErrBoxLost, engine.ErrMayHaveRun)
			return errors.Join(err, p.kill(unix.SIGKILL))
		}
	}
}

// cancelGrace returns how much of the command's CancelGrace is left. It was waited for the start of a
// young command since its cancellation.
func (p *process) cancelGrace() time.Duration {
	if p.canceled.IsZero() {
		return p.cmd.CancelGrace
	}
	return p.cmd.CancelGrace - time.Since(p.canceled)
}

// startError translates the agent's answer into an error that callers can distinguish.
func (b *box) startError(cmd *engine.Command, failed *wire.FailedMsg) error {
	if failed == nil {
		return nil
	}
	program, limits := cmp.Or(cmd.Builtin, cmd.Args[0]), b.currentLimits()
	switch {
	case failed.Step == wire.StepUnsure:
		return fmt.Errorf("executing %q: the warm interpreter gave no answer and was killed: %w: %w", program, failed.Errno, engine.ErrMayHaveRun)
	case failed.Step == wire.StepExec && (failed.Errno == syscall.ENOENT || failed.Errno == syscall.ENOTDIR):
		return fmt.Errorf("executing %q: %w", program, engine.ErrNotFound)
	case failed.Step == wire.StepExec && !noMemory(cmd, failed.Errno):
		return fmt.Errorf("executing %q: %w: %w", program, engine.ErrNotExecutable, failed.Errno)
	case failed.Step == wire.StepChdir && failed.Errno == syscall.ENOENT:
		return fmt.Errorf("entering %q: %w (create it first, or set mkdir; --mkdir on the command line)", cmd.Dir, engine.ErrNoDir)
	case failed.Step == wire.StepChdir || failed.Step == wire.StepMkdir || failed.Step == wire.StepCwd:
		return b.dirError(cmd, failed)
	case failed.Step == wire.StepClone && failed.Errno == syscall.EAGAIN && limits.PIDs != engine.Unlimited:
		return fmt.Errorf("executing %q: %w: %w: the box is at its pids limit of %d", program, engine.ErrAtLimit, failed.Errno, limits.PIDs)
	case noMemory(cmd, failed.Errno) && limits.Memory != engine.Unlimited:
		return fmt.Errorf("executing %q: %w: %w: the box is at its memory limit of %s, to which files in /tmp, the home directory and /dev/shm count",
			program, engine.ErrAtLimit, syscall.ENOMEM, spec.FormatSize(limits.Memory))
	case noMemory(cmd, failed.Errno):
		return fmt.Errorf("executing %q: %w: the host has no memory for it", program, syscall.ENOMEM)
	}
	return fmt.Errorf("executing %q: %w", program, failed)
}

// dirErrnos are the errors of the kernel that mean that the caller asked for a wrong working
// directory.
var dirErrnos = []syscall.Errno{syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.ENOENT, syscall.ENOTDIR, syscall.EEXIST, syscall.ELOOP,
	syscall.ENAMETOOLONG, syscall.EMLINK, syscall.EINVAL, syscall.ENOSPC, syscall.EDQUOT, syscall.EOVERFLOW}

// dirError returns why a command cannot have its working directory. If permission is denied
// to a user other than the box's, it blames the user that the caller asked for.
func (b *box) dirError(cmd *engine.Command, failed *wire.FailedMsg) error {
	if !slices.Contains(dirErrnos, failed.Errno) {
		return &engine.DirError{Err: fmt.Errorf("%s %q: %w", failed.Step, cmd.Dir, failed.Errno)}
	}
	bad := &engine.FieldError{Field: "dir", Value: spec.Quote(cmd.Dir), Rule: fmt.Sprintf("%s: %v", failed.Step, failed.Errno)}
	if errors.Is(failed.Errno, fs.ErrPermission) && cmd.User != nil && *cmd.User != b.spec.User {
		bad.Field, bad.Value = "user", fmt.Sprintf("%d:%d", cmd.User.UID, cmd.User.GID)
		bad.Rule = fmt.Sprintf("%s %s: %v; the user of the box is %d:%d", failed.Step, spec.Quote(cmd.Dir), failed.Errno, b.spec.User.UID, b.spec.User.GID)
	}
	return &engine.DirError{Err: bad}
}

// noMemory reports whether errno means a lack of memory. execve(2) returns E2BIG also when it
// gets no page for the arguments (get_arg_page in fs/exec.c). Arguments shorter than minArgs
// cannot be too long.
func noMemory(cmd *engine.Command, errno syscall.Errno) bool {
	return errno == syscall.ENOMEM || errno == syscall.E2BIG && cmd.ArgsSize() < minArgs
}

// minArgs is the size in bytes that execve(2) accepts with any RLIMIT_STACK (ARG_MAX of
// <linux/limits.h>), minus the path of the program and the variables that are added by
// default.
const minArgs = 128<<10 - 8<<10

func (p *process) lostBox() { p.lostOnce.Do(func() { close(p.lost) }) }

// end asks supervise to end the command because of v.
func (p *process) end(v engine.Verdict) {
	select {
	case p.stop <- v:
	default:
	}
}

func (p *process) kill(signal unix.Signal) error {
	return p.box.slots.kill(context.Background(), p.slot, int(signal))
}

// Wait implements engine.Process.
func (p *process) Wait() (engine.Result, error) {
	<-p.done
	return p.result, p.err
}

// Signal implements engine.Process. A command that has ended is not signalled.
func (p *process) Signal(signal syscall.Signal) error {
	m := wire.SignalMsg{Signal: uint32(signal)}
	return p.box.agent.Send(wire.TypeSignal, p.id, m.Marshal())
}

// Resize implements engine.Process.
func (p *process) Resize(size engine.WindowSize) error {
	if p.tty == nil {
		return errors.New("resizing: the command has no terminal")
	}
	ws := unix.Winsize{Row: size.Rows, Col: size.Cols}
	if err := unix.IoctlSetWinsize(int(p.tty.Fd()), unix.TIOCSWINSZ, &ws); err != nil {
		return fmt.Errorf("resizing terminal: %w", err)
	}
	return nil
}
