package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
)

// DefaultStateDir is the default directory in which launchers record what must be found
// again after a crash.
const DefaultStateDir = "/run/boxd"

// Runtimes names the programs that build boxes for a launcher.
type Runtimes = rpc.Runtimes

// Options of [Start].
type Options struct {
	// InitPath is the path of the boxd-init binary; required. The file is copied into
	// sealed memory and executed from there, so no box can tamper with it. Its directory also has
	// boxd-agent and boxd-unpacker, of the same build.
	InitPath string
	// StateDir is an absolute path; empty means DefaultStateDir. The launcher creates
	// the directory, which belongs to root. It must not lie below the directory of
	// InitPath. Several engines may share it.
	StateDir string
	// DataDir is an absolute path of a directory for layers of images, which the launcher
	// creates for root alone; its parent must exist. Several engines may share it. Empty:
	// there are no layers.
	DataDir string
	// Runtimes are programs that build boxes, besides InitPath.
	Runtimes Runtimes
	// Pool is how many boxes the launcher may build ahead of time, 0 to engine.MaxPool, see [engine.Pooled];
	// 0 is none.
	Pool int
	// OneBox is for a process that creates one box, removes it and ends. Further boxes take
	// longer, because the launcher prepares nothing for them.
	OneBox bool
	// Logger receives problems that no call returns as an error; nil discards them.
	Logger *slog.Logger
}

// Engine is an [engine.Engine] and an [engine.Layers]: its boxes end when it is closed, and when the process that
// holds it dies.
type Engine struct {
	core
	launcher *exec.Cmd
}

var _ engine.Engine = (*Engine)(nil)

// Start starts a launcher and returns when it is ready. Only root can start one. The
// launcher first removes what earlier launchers left behind when they died. ctx bounds
// the start only; the caller closes the Engine.
//
// engine.ErrNoLauncher: the launcher cannot be started, or is of another build. engine.FieldError: o.Pool.
func Start(ctx context.Context, o Options) (*Engine, error) {
	if err := checkPool(o.Pool); err != nil {
		return nil, err
	}
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	conn, theirs, err := wire.Pair()
	if err != nil {
		return nil, fmt.Errorf("making launcher socket: %w", err)
	}
	defer theirs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		conn.Close()
		return nil, err
	}
	cmd, err := launch(o, theirs)
	if err != nil {
		conn.Close()
		null.Close()
		return nil, fmt.Errorf("%w: %w", engine.ErrNoLauncher, err)
	}
	theirs.Close()
	e := &Engine{core: core{log: o.Logger, null: null, boxes: map[*box]struct{}{}}, launcher: cmd}
	if err := e.greet(ctx, conn, o); err != nil {
		conn.Close()
		null.Close()
		eerr := e.endLauncher(startPatience)
		if _, ok := errors.AsType[*exec.ExitError](eerr); ok {
			eerr = nil // err says why it failed
		}
		return nil, errors.Join(err, eerr)
	}
	e.link = newLink(conn, linkOptions{})
	return e, nil
}

// greet checks that the launcher belongs to this build of boxd.
func (e *Engine) greet(ctx context.Context, conn *wire.Conn, o Options) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	h, err := hello(conn)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("%w: %q did not answer as a launcher: %w", engine.ErrNoLauncher, o.InitPath, err)
	}
	return checkHello(h, o.InitPath)
}

// How long a launcher may take to end by itself after its client has disconnected. After
// that it is killed: its boxes end with it, and the next launcher removes the rest.
const (
	startPatience = time.Second // it has no boxes yet
	closePatience = 15 * time.Second
	boxPatience   = 200 * time.Millisecond // more for each of its boxes
	killPatience  = 5 * time.Second        // after SIGKILL
	// lingerPatience is how long its last threads may take to end.
	lingerPatience = time.Second
)

// endLauncher waits until the launcher has ended. It stops waiting if a thread of the launcher
// hangs in the kernel; the error says where.
func (e *Engine) endLauncher(patience time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- e.launcher.Wait() }()
	look := time.NewTicker(lingerPatience)
	defer look.Stop()
	kill, late := time.After(patience), time.After(patience+killPatience)
	for lingered := false; ; {
		select {
		case err := <-ended:
			return err
		case <-kill:
			_ = e.launcher.Process.Kill()
		case <-late:
			return fmt.Errorf("the launcher has not ended %v after SIGKILL", killPatience)
		case <-look.C:
			thread, lingers := linux.Lingers(e.launcher.Process.Pid)
			if lingers && lingered {
				return fmt.Errorf("the launcher has ended but for a thread that hangs in the kernel: %v", thread)
			}
			lingered = lingers
		}
	}
}

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (engine.Box, error) {
	b, err := e.create(ctx, spec)
	if err != nil {
		return nil, err // b would be a non-nil interface around a nil pointer
	}
	return b, nil
}

// Close implements engine.Engine: it disconnects from the launcher, which then removes its
// boxes and exits, and waits for that. Closing twice does nothing.
func (e *Engine) Close() error {
	boxes, first := e.shut()
	if !first {
		return nil
	}
	for _, b := range boxes {
		b.markEnding()
	}
	e.link.close()
	err := e.endLauncher(closePatience + time.Duration(len(boxes))*boxPatience)
	for _, b := range boxes {
		b.abandon()
	}
	e.null.Close()
	if err != nil {
		return fmt.Errorf("closing launcher: %w", err)
	}
	return nil
}
