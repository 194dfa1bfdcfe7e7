package enginetest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

var (
	lost     = engine.Result{Verdict: engine.BoxLost, ExitCode: -1}
	canceled = engine.Result{Verdict: engine.Canceled, ExitCode: -1, Signal: syscall.SIGKILL}
)

// Box is the host's view of a box.
type Box struct {
	// Written is how many bytes the box's processes have written to disks.
	Written atomic.Int64
	// Memory is how many bytes it holds.
	Memory atomic.Int64

	host   *Host
	id     string
	dead   chan struct{}
	events chan engine.Event

	mu        sync.Mutex
	spec      engine.Spec
	processes map[string]*Process
	commands  map[*command]struct{} // running
	last      engine.Command
	ports     []engine.Port
	answer    func(port, request string) string // nil: no port accepts connections
	listeners map[netip.AddrPort]net.Listener   // that the client serves, on ports of this host
	paused    bool
	spare     *int64 // bytes that the host takes from the paused box; nil: it takes none
}

// SetSpare has Reclaim of the paused box give bytes to the host; until then it is refused.
func (b *Box) SetSpare(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spare = &bytes
}

// SetPaused does what a client does that pauses the box, or resumes it.
func (b *Box) SetPaused(paused bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = paused
}

// Paused reports whether a client has paused the box.
func (b *Box) Paused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused
}

// ID returns the box's id.
func (b *Box) ID() string { return b.id }

// Done is closed when the box has died.
func (b *Box) Done() <-chan struct{} { return b.dead }

// Spec returns the spec of the box with all changes, and without defaults.
func (b *Box) Spec() engine.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec
}

// Last returns the command that was started last.
func (b *Box) Last() engine.Command {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// Commands returns the number of running commands.
func (b *Box) Commands() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.commands)
}

// Listen replaces the ports on which something listens.
func (b *Box) Listen(ports ...engine.Port) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ports = ports
}

// Serve makes the ports accept connections, which send a request and get its answer.
func (b *Box) Serve(answer func(port, request string) string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = answer
}

// Connect connects to a listener that the client has opened in the box, as a program in it would.
// syscall.ECONNREFUSED: there is none.
func (b *Box) Connect(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	b.mu.Lock()
	l := b.listeners[at]
	b.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("connecting to %s: %w", at, syscall.ECONNREFUSED)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp4", l.Addr().String())
}

// Report tells the client that the box ran into a limit.
func (b *Box) Report(e engine.Event) { b.events <- e }

// Die ends PID 1 and with it all processes. The client gets the events before that.
func (b *Box) Die(events ...engine.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if isClosed(b.dead) {
		return
	}
	for _, e := range events {
		b.events <- e
	}
	close(b.dead)
	for _, p := range b.processes {
		p.endLocked(lost)
	}
	for run := range b.commands {
		run.endLocked(lost)
	}
}

// Change applies a change, as Update of a client does.
func (b *Box) Change(change engine.Change) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := slices.Clone(b.spec.Mounts)
	for _, target := range change.Detach {
		at := slices.IndexFunc(list, func(m spec.Mount) bool { return m.Target == target })
		if at < 0 {
			return fmt.Errorf("nothing is attached at %q", target)
		}
		list = slices.Delete(list, at, at+1)
	}
	for _, m := range change.Attach {
		if slices.ContainsFunc(list, func(o spec.Mount) bool { return o.Target == m.Target }) {
			return fmt.Errorf("%q is attached already", m.Target)
		}
		list = append(list, m)
	}
	b.spec.Mounts = list
	if change.Limits != nil {
		b.spec.Limits = b.spec.Limits.Apply(*change.Limits)
	}
	return nil
}

// liveBox is a client's view of a box.
type liveBox struct {
	b *Box
	c *Client

	remove sync.Once
	err    error // of Remove
}

func (l *liveBox) ID() string                  { return l.b.id }
func (l *liveBox) Done() <-chan struct{}       { return l.b.dead }
func (l *liveBox) Spec() engine.Spec           { return l.b.Spec().WithDefaults() }
func (l *liveBox) Events() <-chan engine.Event { return l.b.events }
func (l *liveBox) Usage() (engine.Usage, error) {
	n, memory := l.b.Written.Load(), l.b.Memory.Load()
	return engine.Usage{Written: &n, Memory: &memory}, nil
}

// Listen implements engine.Networked. The listeners are on free ports of this host; [Box.Connect]
// leads to them.
func (l *liveBox) Listen(ctx context.Context, at ...netip.AddrPort) (list []net.Listener, err error) {
	if err := l.pass(ctx, "listen"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, one := range list {
				one.Close()
			}
			list = nil
		}
	}()
	for range at {
		one, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return list, err
		}
		list = append(list, one)
	}
	if err := l.c.pass(ctx, "listening", l.b.id); err != nil {
		return list, err
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	for i, one := range list {
		l.b.listeners[at[i]] = one
	}
	return list, nil
}

// Dial implements engine.Networked for what the client serves.
func (l *liveBox) Dial(ctx context.Context, port int) (net.Conn, error) {
	if err := l.pass(ctx, "dial"); err != nil {
		return nil, err
	}
	return l.b.Connect(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)))
}

func (l *liveBox) Ports() ([]engine.Port, error) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	return slices.Clone(l.b.ports), nil
}

// pass is Client.pass for an operation that a dead box refuses.
func (l *liveBox) pass(ctx context.Context, op string) error {
	if err := l.c.pass(ctx, op, l.b.id); err != nil {
		return err
	}
	if isClosed(l.b.dead) {
		return fmt.Errorf("%s: %w", op, engine.ErrBoxLost)
	}
	return nil
}

// Remove works once, as in the native engine: after a failure, each later call returns the
// same error.
func (l *liveBox) Remove(ctx context.Context) error {
	l.remove.Do(func() {
		if l.err = l.c.pass(ctx, "remove", l.b.id); l.err == nil {
			l.c.host.Remove(l.b.id)
			l.err = l.c.pass(ctx, "removed", l.b.id)
		}
	})
	return l.err
}

func (l *liveBox) Update(ctx context.Context, change engine.Change) error {
	if err := l.pass(ctx, "update"); err != nil {
		return err
	}
	if err := change.Validate(); err != nil {
		return err
	}
	if err := l.b.Change(change); err != nil {
		return err
	}
	return l.c.pass(ctx, "updated", l.b.id)
}

// Pause implements engine.Pausable. What runs goes on; nothing starts.
func (l *liveBox) Pause(ctx context.Context) error { return l.setPaused(ctx, "pause", true) }

// Resume implements engine.Pausable.
func (l *liveBox) Resume(ctx context.Context) error { return l.setPaused(ctx, "resume", false) }

// Paused implements engine.Pausable.
func (l *liveBox) Paused() bool { return l.b.Paused() }

// CanReclaim implements engine.Pausable.
func (l *liveBox) CanReclaim(ctx context.Context) error {
	if err := l.pass(ctx, "can-reclaim"); err != nil {
		return err
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if l.b.spare == nil {
		return fmt.Errorf("this host has no swap: %w", engine.ErrUnenforceable)
	}
	return nil
}

// Reclaim implements engine.Pausable: see [Box.SetSpare].
func (l *liveBox) Reclaim(ctx context.Context) (int64, error) {
	if err := l.CanReclaim(ctx); err != nil {
		return 0, err
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if !l.b.paused {
		return 0, nil
	}
	bytes := *l.b.spare
	*l.b.spare = 0
	return bytes, nil
}

func (l *liveBox) setPaused(ctx context.Context, op string, paused bool) error {
	if err := l.pass(ctx, op); err != nil {
		return err
	}
	l.b.SetPaused(paused)
	return l.c.pass(ctx, op+"d", l.b.id)
}

// passStart is pass for the start of something, which a paused box refuses.
func (l *liveBox) passStart(ctx context.Context, op string) error {
	if err := l.pass(ctx, op); err != nil {
		return err
	}
	if l.b.Paused() {
		return fmt.Errorf("%s: %w", op, engine.ErrPaused)
	}
	return nil
}
