package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/boxd/boxd/agent/wire"
)

// input is the stdin of a managed process. Bytes sent to the agent count as accepted: the
// agent keeps them until the process reads them, also when clients end.
type input struct {
	link   *managedLink
	number uint32
	turn   chan struct{} // holds a value while a caller writes

	mu       sync.Mutex
	sent     int64 // to the agent
	accepted int64 // by the process's pipe
	state    uint32
	err      error         // why no more will be accepted
	changed  chan struct{} // closed at the next change
}

// maxInput is the most that one frame carries.
const maxInput = 32 << 10

func newInput(l *managedLink, m *wire.ManagedMsg) *input {
	return &input{
		link: l, number: m.Number, turn: make(chan struct{}, 1),
		sent: int64(m.Queued), accepted: int64(m.Accepted), state: m.Input, changed: make(chan struct{}),
	}
}

// Accepted implements engine.Input.
func (in *input) Accepted() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.sent
}

// Write implements engine.Input.
func (in *input) Write(ctx context.Context, off int64, p []byte) error {
	if err := in.begin(ctx); err != nil {
		return err
	}
	defer func() { <-in.turn }()
	end := off + int64(len(p))
	if taken := in.Accepted(); off < 0 || off > taken {
		return fmt.Errorf("writing input at offset %d: the next byte is %d: %w", off, taken, os.ErrInvalid)
	}
	for {
		wait, err := in.send(off, p)
		if err != nil {
			return err
		}
		if wait == nil {
			break
		}
		if err := await(ctx, wait); err != nil {
			return err
		}
	}
	return in.awaitAccepted(ctx, end)
}

// begin waits for the turn to write.
func (in *input) begin(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case in.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func await(ctx context.Context, event <-chan struct{}) error {
	select {
	case <-event:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send sends the unsent part of p, whose first byte has the offset off, as far as the agent
// has room. If that was not all, it returns a channel to wait for. The caller's turn keeps
// the order. in's lock must not be held while a message is sent, see output.tell.
func (in *input) send(off int64, p []byte) (<-chan struct{}, error) {
	for {
		m, wait, err := in.next(off, p)
		if m == nil {
			return wait, err
		}
		in.link.tell(wire.TypeInput, in.number, m.Marshal())
	}
}

// next returns the next frame to be sent, or what to wait for before there is one.
func (in *input) next(off int64, p []byte) (*wire.InputMsg, <-chan struct{}, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.sent >= off+int64(len(p)) {
		return nil, nil, nil
	}
	if err := in.failureLocked(); err != nil {
		return nil, nil, err
	}
	room := wire.InputWindow - (in.sent - in.accepted)
	if room <= 0 {
		return nil, in.changed, nil
	}
	data := p[in.sent-off:]
	m := &wire.InputMsg{Offset: uint64(in.sent), Data: data[:min(int64(len(data)), room, maxInput)]}
	in.sent += int64(len(m.Data))
	return m, nil, nil
}

// failureLocked returns why nothing more can be sent.
func (in *input) failureLocked() error {
	switch {
	case in.state == wire.InputBroken:
		return fmt.Errorf("writing input: %w", syscall.EPIPE)
	case in.state == wire.InputClosed:
		return fmt.Errorf("writing input: %w", os.ErrClosed)
	}
	return in.err
}

// awaitAccepted waits until the process has got everything below end.
func (in *input) awaitAccepted(ctx context.Context, end int64) error {
	for {
		in.mu.Lock()
		done, err, changed := in.accepted >= end, in.failureLocked(), in.changed
		in.mu.Unlock()
		switch {
		case done:
			return nil
		case err != nil:
			return err
		}
		if err := await(ctx, changed); err != nil {
			return err
		}
	}
}

// Close implements engine.Input.
func (in *input) Close(ctx context.Context) error {
	if err := in.begin(ctx); err != nil {
		return err
	}
	defer func() { <-in.turn }()
	m := wire.CloseInputMsg{Offset: uint64(in.Accepted())}
	in.link.tell(wire.TypeCloseInput, in.number, m.Marshal())
	var err error
	for err == nil {
		in.mu.Lock()
		changed := in.changed
		err = in.failureLocked()
		in.mu.Unlock()
		if err == nil {
			if err := await(ctx, changed); err != nil {
				return err
			}
		}
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		return nil // the input has ended in either case
	}
	return err
}

// progress handles the agent's message about the input. Two messages may arrive in the wrong
// order, and bytes that an earlier client sent may be counted only now.
func (in *input) progress(m *wire.AcceptedMsg) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.accepted = max(in.accepted, int64(m.Offset))
	in.sent = max(in.sent, in.accepted)
	in.state = max(in.state, m.State)
	in.changedLocked()
}

func (in *input) changedLocked() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// stop notes that the process accepts no more input, because of err or because it ended.
func (in *input) stop(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.err = err
	if err == nil && in.state == wire.InputOpen {
		in.state = wire.InputBroken
	}
	in.changedLocked()
}
