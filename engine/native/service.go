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
	// Socket of the launcher service.
	Socket string
	// Logger gets what is not an error of a call; nil discards it.
	Logger *slog.Logger
}

// Service is an engine.Service: a connection to a launcher that runs as a service.
// When the launcher dies its boxes and what runs in them go on, and the connection
// is made again. It needs no privilege.
//
// What is asked of a launcher that is lost meanwhile is asked again of the next
// one. Only a Create begins anew: what has come of the first is removed.
type Service struct {
	core
	socket string
}

var _ engine.Service = (*Service)(nil)

// Connect connects to the launcher service, which serves one client at a time, and
// waits until ctx ends for one that is just starting.
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

// helloPatience bounds the wait for one answer of a launcher that is starting: it
// adopts its boxes first.
const helloPatience = 30 * time.Second

// dialPatiently is dialService until it succeeds, ctx ends, or it never will.
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

// find returns the box of that name, nil if there is none.
func (c *core) find(id string) *box {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.findLocked(id)
}

// createTries is how many launchers may be lost while they are at one box: it may be
// the box that they do not survive.
const createTries = 10

// Create implements engine.Service.
func (s *Service) Create(ctx context.Context, spec engine.Spec) (engine.LiveBox, error) {
	if spec.ID == "" {
		spec.ID = randomID() // so that it can be found when the launcher is lost
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

// Adopt implements engine.Service. With the zero Spec the launcher's own record of
// the box counts, as it does for what was changed in a live box.
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

// healthTime bounds the launcher's word about its health. It may build a box before it answers.
const healthTime = 5 * time.Second

// Health implements engine.Service. If no box was built within the last seconds the launcher
// builds one and removes it; ask no more often than the answer is needed.
func (s *Service) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	_, err := s.link.call(ctx, rpc.TypePing, struct{}{}, nil)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: it does not answer: %w", engine.ErrNoLauncher, err)
	}
	return err
}

// Close lets go of the boxes, which stay, with all that runs in them but commands:
// those are killed when the box is adopted. Closing twice is no error.
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

// Stop ends the launcher service, on request with its boxes, and closes s. It returns
// when the service is gone. When ctx ends first, the launcher goes on with it.
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

// servers are pidfds of the processes behind a socket, keeper first. What cannot be
// found out is left out.
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

// awaitEnd waits for the end of a process that has been told to end.
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
