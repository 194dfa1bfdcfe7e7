package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"golang.org/x/sys/unix"
)

// managed is the client's half of a managed process. The agent keeps its stdio.
type managed struct {
	account
	key    string
	wanted *wire.LaunchMsg // the request; nil after an adoption
	known  chan struct{}   // closed when account is complete
	done   chan struct{}   // closed when result is final

	// From the agent's description; set before other goroutines see the process.
	link     *managedLink
	number   uint32
	pid      int
	tty      bool
	age      time.Duration // at attached
	attached time.Time
	input    *input
	outputs  []*output

	// Only the reader of the agent's frames uses it.
	sawEnd bool

	isLost atomic.Bool // the connection to the agent has ended

	mu        sync.Mutex // held during Forget
	forgotten bool
}

var _ engine.ManagedProcess = (*managed)(nil)

func newManaged(b *box, key string) *managed {
	return &managed{account: account{box: b}, key: key, known: make(chan struct{}), done: make(chan struct{})}
}

// event handles a frame from the agent.
func (p *managed) event(frame *wire.Frame) error {
	switch frame.Type {
	case wire.TypeHead:
		var m wire.HeadMsg
		if err := m.Unmarshal(frame.Body); err != nil {
			return err
		}
		if int(m.Stream) >= len(p.outputs) {
			return fmt.Errorf("stream %d of a terminal: %w", m.Stream, wire.ErrProtocol)
		}
		return p.outputs[m.Stream].grown(m.Head, m.Ended)
	case wire.TypeAccepted:
		var m wire.AcceptedMsg
		if err := m.Unmarshal(frame.Body); err != nil {
			return err
		}
		p.input.progress(&m)
		return nil
	}
	var m wire.EndedMsg
	if err := m.Unmarshal(frame.Body); err != nil {
		return err
	}
	return p.end(&m)
}

// end handles the agent's message that the process has ended. After an adoption the agent
// may repeat it.
func (p *managed) end(m *wire.EndedMsg) error {
	if p.sawEnd {
		return nil
	}
	for i, o := range p.outputs {
		if err := o.grown(m.Heads[i], true); err != nil {
			return err
		}
	}
	p.sawEnd = true
	p.input.stop(nil)
	p.link.wg.Go(func() { p.finish(unix.WaitStatus(m.Status), time.Duration(m.Wall)) })
	return nil
}

// finish determines how the process ended.
func (p *managed) finish(status unix.WaitStatus, wall time.Duration) {
	<-p.known
	defer close(p.done)
	r := &p.result
	r.Receipt.Wall = wall
	for i, o := range p.outputs {
		_, n := o.Bounds()
		if i == wire.Stdout {
			r.Receipt.StdoutBytes = &n
		} else {
			r.Receipt.StderrBytes = &n
		}
	}
	p.readUse()
	if p.box.isEnding() && status.Signaled() && status.Signal() == unix.SIGKILL {
		// The agent reported it before it was killed itself.
		p.conclude(ending{reason: engine.BoxLost})
		return
	}
	background, err := p.slot.stats.Populated()
	p.note(err)
	p.askOutside(status)
	p.conclude(ending{status: status, exited: true, background: background})
}

// lose handles the end of the connection to the agent, because the box is lost, or with letGo
// because this process closes its service.
func (p *managed) lose(err error, letGo bool) {
	p.isLost.Store(true)
	if letGo {
		for _, o := range p.outputs {
			o.stop(err)
		}
		p.input.stop(err)
		return
	}
	for _, o := range p.outputs {
		o.stop(nil)
	}
	p.input.stop(err)
	if p.sawEnd {
		return
	}
	p.sawEnd = true
	p.link.wg.Go(func() {
		<-p.known
		p.result.Receipt.Wall = time.Since(p.began)
		ctx, cancel := context.WithTimeout(context.Background(), cutDelay)
		_ = p.slot.stats.WaitEmpty(ctx) // it dies with PID 1, unless the agent only hung up
		cancel()
		p.readUse()
		var e ending
		e.reason, e.limit = p.whyLost()
		p.conclude(e)
		close(p.done)
	})
}

// Key implements engine.ManagedProcess.
func (p *managed) Key() string { return p.key }

// Stdio implements engine.ManagedProcess.
func (p *managed) Stdio() engine.Stdio {
	s := engine.Stdio{Stdin: p.input, Stdout: p.outputs[wire.Stdout]}
	if !p.tty {
		s.Stderr = p.outputs[wire.Stderr]
	}
	return s
}

// Hold implements engine.ManagedProcess.
func (p *managed) Hold() (release func()) {
	for _, o := range p.outputs {
		o.hold()
	}
	return sync.OnceFunc(func() {
		for _, o := range p.outputs {
			o.unhold()
		}
	})
}

// Control implements engine.ManagedProcess.
func (p *managed) Control() engine.ProcessControl { return control{p} }

// Done implements engine.ManagedProcess.
func (p *managed) Done() <-chan struct{} { return p.done }

// Result implements engine.ManagedProcess.
func (p *managed) Result() engine.Result {
	<-p.done
	return p.result
}

// Forget implements engine.ManagedProcess.
func (p *managed) Forget(ctx context.Context) error {
	select {
	case <-p.done:
	default:
		return fmt.Errorf("forgetting process %q: it has not ended", p.key)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forgotten {
		return nil
	}
	if !p.isLost.Load() {
		if err := p.giveBack(ctx); err != nil {
			return fmt.Errorf("forgetting process %q: %w", p.key, err)
		}
	}
	p.forgetLocked()
	return nil
}

// giveBack kills what is left of the process and has the agent forget it.
func (p *managed) giveBack(ctx context.Context) error {
	if populated, err := p.slot.stats.Populated(); err == nil && populated {
		if err := p.box.slots.kill(ctx, p.slot, int(unix.SIGKILL)); err != nil {
			return err
		}
		if err := p.slot.stats.WaitEmpty(ctx); err != nil {
			return err
		}
	}
	m := wire.ForgetMsg{Number: p.number}
	err := p.link.ask(&question{typ: wire.TypeForget}, m.Marshal())
	if err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, engine.ErrBoxLost) {
		return err
	}
	return nil
}

// forgetLocked releases everything that this process holds. If the box is lost its slot is
// gone; if this process merely disconnects from the box, the slot stays in use.
func (p *managed) forgetLocked() {
	p.forgotten = true
	for _, o := range p.outputs {
		o.close()
	}
	if p.isLost.Load() {
		p.slot.close()
	} else {
		p.box.slots.release(p.slot)
	}
	p.link.mu.Lock()
	delete(p.link.processes, p.number)
	p.link.mu.Unlock()
	p.box.unaccount(&p.account)
}

// control is the engine.ProcessControl of a managed process.
type control struct{ *managed }

// PID implements engine.ProcessControl.
func (c control) PID() int { return c.pid }

// Signal implements engine.ProcessControl. A process that has ended is not
// signalled.
func (c control) Signal(sig syscall.Signal) error {
	m := wire.SignalMsg{Signal: uint32(sig)}
	return c.link.conn.Send(wire.TypeManagedSignal, c.number, m.Marshal())
}

// Resize implements engine.ProcessControl.
func (c control) Resize(size engine.WindowSize) error {
	if !c.tty {
		return errors.New("resizing: the process has no terminal")
	}
	m := wire.ResizeMsg{Rows: size.Rows, Cols: size.Cols}
	return c.link.conn.Send(wire.TypeResize, c.number, m.Marshal())
}

// Kill implements engine.ProcessControl.
func (c control) Kill(ctx context.Context) error { return c.Terminate(ctx, unix.SIGKILL) }

// Terminate implements engine.ProcessControl.
func (c control) Terminate(ctx context.Context, sig syscall.Signal) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	forgotten := c.forgotten
	c.mu.Unlock()
	if forgotten || c.isLost.Load() {
		return nil // it has no processes any more, or the box is ending
	}
	return c.box.slots.kill(ctx, c.slot, int(sig))
}
