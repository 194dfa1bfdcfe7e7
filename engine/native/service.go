package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
)

// ServiceOptions of [Connect].
type ServiceOptions struct {
	// Socket is the path of the launcher service's socket: the one that StartLauncher
	// returned, or SocketName in its state directory.
	Socket string
	// Logger receives problems that no call returns as an error; nil discards them.
	Logger *slog.Logger
}

// Service is an [engine.Service], an [engine.Storage] and an [engine.Layers]: a connection to a launcher that
// runs as a service.
//
// If the launcher dies, its boxes and everything in them keep running, and the Service
// reconnects to the next launcher. A call that was interrupted is then repeated. A Create
// is not continued but started over: the incomplete box is removed first.
type Service struct {
	core
	socket string
}

var _ engine.Service = (*Service)(nil)

// Connect connects to a launcher service. If that is just starting, or still serves
// another client, Connect waits until ctx ends. The caller closes the Service.
func Connect(ctx context.Context, o ServiceOptions) (*Service, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	conn, err := dialPatiently(ctx, o.Socket)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		conn.Close()
		return nil, err
	}
	s := &Service{
		core:   core{log: o.Logger, null: null, service: true, boxes: map[*box]struct{}{}},
		socket: o.Socket,
	}
	s.link = newLink(conn, linkOptions{
		dial: func(ctx context.Context) (*wire.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, helloPatience)
			defer cancel()
			return dialService(ctx, o.Socket)
		},
		event: s.event,
	})
	return s, nil
}

// helloPatience bounds the wait for the greeting of a launcher that is starting: it adopts
// its boxes first.
const helloPatience = 30 * time.Second

// dialPatiently repeats dialService until it succeeds, fails for good, or ctx ends.
func dialPatiently(ctx context.Context, socket string) (*wire.Conn, error) {
	for {
		conn, err := dialService(ctx, socket)
		if err == nil || !errors.Is(err, errNotNow) {
			return conn, err
		}
		select {
		case <-time.After(lastPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// find returns the box with an ID, or nil.
func (c *core) find(id string) *box {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.findLocked(id)
}

// createTries is how many launchers may be lost while they create one box: creating that
// very box may be what kills them.
const createTries = 10

// Create implements engine.Service.
func (s *Service) Create(ctx context.Context, spec engine.Spec) (engine.LiveBox, error) {
	if spec.ID == "" {
		spec.ID = randomID() // chosen here, to find the box again if the launcher is lost
	}
	for try := 1; ; try++ {
		b, err := s.create(ctx, spec)
		if err == nil {
			return b, nil
		}
		if !errors.Is(err, errLost) {
			return nil, err
		}
		if try < createTries {
			derr := s.Discard(ctx, spec.ID)
			if derr == nil {
				continue
			}
			err = fmt.Errorf("creating box: removing what was made when the launcher was lost: %w", derr)
		}
		s.link.forsake(spec.ID)
		return nil, err
	}
}

// Adopt implements engine.Service. The launcher keeps a record of every box, so the Spec
// that is passed is ignored.
func (s *Service) Adopt(ctx context.Context, id string, _ engine.Spec) (engine.LiveBox, error) {
	if s.find(id) != nil {
		return nil, fmt.Errorf("adopting box %q: it is adopted already", id)
	}
	var m rpc.Adopted
	files, err := s.link.call(ctx, rpc.TypeAdopt, rpc.Box{ID: id}, &m)
	if err != nil {
		return nil, fmt.Errorf("adopting box: %w", err)
	}
	b, err := newBox(&s.core, m.Spec, m.Created, files)
	if err != nil {
		return nil, fmt.Errorf("adopting box %q: %w", id, err)
	}
	b.managedSlots = m.Managed
	b.pauses.set(m.Paused, time.Now())
	if !s.adopt(b) {
		b.abandon()
		return nil, os.ErrClosed
	}
	if err := b.openManaged(ctx); err != nil {
		b.abandon()
		return nil, fmt.Errorf("adopting box %q: %w", id, err)
	}
	return b, nil
}

// Boxes implements engine.Service.
func (s *Service) Boxes(ctx context.Context) ([]string, error) {
	var list rpc.List
	if _, err := s.link.call(ctx, rpc.TypeList, struct{}{}, &list); err != nil {
		return nil, fmt.Errorf("listing boxes: %w", err)
	}
	slices.Sort(list.IDs)
	return list.IDs, nil
}

// Discard implements engine.Service.
func (s *Service) Discard(ctx context.Context, id string) error {
	if err := s.link.remove(ctx, id); err != nil {
		return fmt.Errorf("removing box %q: %w", id, err)
	}
	s.forgetEvents(id)
	return nil
}

// healthTime bounds the wait for the launcher's answer. It may build a box to find out.
const healthTime = 5 * time.Second

// Health implements engine.Service. If no box was built in the last few seconds, the
// launcher builds one and removes it, so do not call it more often than necessary. It
// takes 5 s at most.
func (s *Service) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	_, err := s.link.call(ctx, rpc.TypePing, struct{}{}, nil)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: it does not answer: %w", engine.ErrNoLauncher, err)
	}
	return err
}

// Close disconnects. The boxes and their managed processes keep running; commands that
// are left are killed when the box is adopted. Closing twice does nothing.
func (s *Service) Close() error {
	boxes, first := s.shut()
	if !first {
		return nil
	}
	tellReleases(boxes)
	for _, b := range boxes {
		b.markEnding()
		b.agent.Close()
	}
	s.link.close()
	for _, b := range boxes {
		b.abandon()
	}
	return s.null.Close()
}

// Stop ends the launcher service and closes s. With removeBoxes it removes all boxes
// first; otherwise they keep running, for the next launcher to adopt. Stop returns when
// the service has ended; if ctx ends first, the launcher continues to stop.
func (s *Service) Stop(ctx context.Context, removeBoxes bool) error {
	processes := servers(ctx, s.socket)
	defer linux.CloseAll(processes)
	_, err := s.link.call(ctx, rpc.TypeStop, rpc.Stop{RemoveBoxes: removeBoxes}, nil)
	if err != nil {
		err = fmt.Errorf("stopping launcher: %w", err)
	}
	err = errors.Join(err, s.Close())
	for _, p := range processes {
		if err != nil {
			break
		}
		err = awaitEnd(ctx, p)
	}
	return err
}

// servers returns pidfds of the processes behind a socket, keeper first. It leaves out
// those that it cannot find.
func servers(ctx context.Context, socket string) (pidfds []*os.File) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if sock, err := connectUnix(ctx, socket); err == nil {
		if keeper, _, err := listenerOf(sock, filepath.Dir(socket)); err == nil && keeper != nil {
			pidfds = append(pidfds, keeper)
		}
		sock.Close()
	}
	if conn, h, err := greetService(ctx, socket); err == nil {
		conn.Close()
		if launcher, err := openOurs(h.PID, filepath.Dir(socket)); err == nil && launcher != nil {
			pidfds = append(pidfds, launcher)
		}
	}
	return pidfds
}

// awaitEnd waits for the end of a process that was told to end.
func awaitEnd(ctx context.Context, pidfd *os.File) error {
	looked, lingered := time.Now(), false
	for end := looked.Add(endPatience); time.Now().Before(end); {
		if ended, err := linux.HasExited(pidfd, 50*time.Millisecond); ended || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Since(looked) >= lingerPatience {
			looked = time.Now()
			thread, lingers := linux.Lingers(linux.PidfdPID(pidfd))
			if lingers && lingered {
				return fmt.Errorf("stopping launcher: it has ended but for a thread that hangs in the kernel: %v", thread)
			}
			lingered = lingers
		}
	}
	return fmt.Errorf("stopping launcher: it has not ended after %v", endPatience)
}
