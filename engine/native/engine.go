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
	"github.com/boxd/boxd/internal/linux"
)

// DefaultStateDir is where launchers keep what must be found again after a
// crash.
const DefaultStateDir = "/run/boxd"

// Options of [Start].
type Options struct {
	// InitPath is the boxd-init binary. It is copied once into sealed memory and
	// never executed in place.
	InitPath string
	// StateDir is a directory of root's; empty is DefaultStateDir. It must not
	// lie above or below the directory of InitPath.
	StateDir string
	// Logger gets what is not an error of a call; nil discards it.
	Logger *slog.Logger
}

// Engine is an engine.Engine whose boxes end with it, or with the process that
// holds it.
type Engine struct {
	core
	launcher *exec.Cmd
}

var _ engine.Engine = (*Engine)(nil)

// Start runs a launcher. Leftovers of launchers that died are removed first.
func Start(ctx context.Context, o Options) (*Engine, error) {
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
		return nil, errors.Join(err, ignoreExit(e.endLauncher(startPatience)))
	}
	e.link = newLink(conn, linkOptions{})
	return e, nil
}

// greet checks that the launcher is the one that belongs to this program.
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

// How long a launcher may take to end by itself once its client is gone. After
// that it is killed: its boxes end with it, and the next one removes the rest.
const (
	startPatience = time.Second // it has no boxes yet
	closePatience = 15 * time.Second
	boxPatience   = 200 * time.Millisecond // more for each of its boxes
	killPatience  = 5 * time.Second        // after SIGKILL
	// lingerPatience is how long it may need for its last threads.
	lingerPatience = time.Second
)

// endLauncher waits until the launcher has ended. One with a thread that hangs in the kernel is
// not waited for: the error says where.
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

// ignoreExit drops the exit status of a launcher whose failure is known already.
func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (engine.Box, error) {
	b, err := e.create(ctx, spec)
	if err != nil {
		return nil, err // and not a box that is nil
	}
	return b, nil
}

// Close implements engine.Engine: the launcher destroys its boxes when the
// connection ends, and Close waits until it has.
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
