package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/containerd/proto"
	"github.com/boxd/boxd/engine/oci"
	"github.com/boxd/boxd/internal/version"
)

const (
	// helloTime bounds the start of boxd-containerd, which takes some 15 ms.
	helloTime = 5 * time.Second
	// graceTime is how much longer than a request may take its answer may take. After that,
	// boxd-containerd hangs.
	graceTime = time.Second
)

// helper is a boxd-containerd that runs.
type helper struct {
	conn    *wire.Conn
	cmd     *exec.Cmd
	version string // of its build
	ended   sync.Once

	mu      sync.Mutex
	last    uint32
	waiting map[uint32]chan proto.Reply // nil once the helper has ended
	reason  error                       // why it has
}

// errEnded marks the error of a request during which boxd-containerd has ended by itself.
var errEnded = errors.New("boxd-containerd has ended")

// request sends a request to boxd-containerd, which it starts if none runs, and waits for the
// answer. If there is none in time, it kills boxd-containerd, and the next request starts another. A
// request that may be carried out twice is repeated if boxd-containerd ends: it may have been dead before.
func (e *Engine) request(ctx context.Context, typ byte, q proto.Request) (proto.Reply, error) {
	r, err := e.requestOnce(ctx, typ, q)
	if errors.Is(err, errEnded) && typ != proto.TypeCreate && typ != proto.TypeStart {
		r, err = e.requestOnce(ctx, typ, q)
	}
	return r, err
}

func (e *Engine) requestOnce(ctx context.Context, typ byte, q proto.Request) (proto.Reply, error) {
	h, err := e.running(ctx)
	if err != nil {
		return proto.Reply{}, err
	}
	body, err := json.Marshal(q)
	if err != nil {
		return proto.Reply{}, err
	}
	id, answer, err := h.expect()
	if err != nil {
		return proto.Reply{}, err
	}
	if err := h.conn.Send(typ, id, body); err != nil {
		h.end(fmt.Errorf("%w: %w: %w", engine.ErrNoEngine, errEnded, err))
	}
	hangs := time.NewTimer(q.Within + graceTime)
	defer hangs.Stop()
	select {
	case <-hangs.C:
		h.end(fmt.Errorf("%w: boxd-containerd did not answer within %v and was killed", engine.ErrNoEngine, q.Within+graceTime))
	case <-ctx.Done():
		h.forgo(id)
		return proto.Reply{}, fmt.Errorf("waiting for containerd: %w", context.Cause(ctx))
	case r, ok := <-answer:
		if ok {
			return r, failure(r)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return proto.Reply{}, h.reason
}

func failure(r proto.Reply) error {
	switch {
	case r.Failure == nil:
		return nil
	case r.Failure.NoEngine:
		return fmt.Errorf("%w: %w", engine.ErrNoEngine, r.Failure)
	}
	return r.Failure
}

// running returns the helper that runs, or starts one.
func (e *Engine) running(ctx context.Context) (*helper, error) {
	e.starts.Lock() // one start at a time, which Close does not wait for
	defer e.starts.Unlock()
	e.mu.Lock()
	h, closed := e.helper, e.closed
	e.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	if h != nil && h.runs() {
		return h, nil
	}
	h, err := startHelper(ctx, e.options)
	if err != nil {
		return nil, fmt.Errorf("%w: starting boxd-containerd: %w", engine.ErrNoEngine, err)
	}
	e.mu.Lock()
	e.helper, e.version, closed = h, h.version, e.closed
	e.mu.Unlock()
	if closed {
		h.end(errClosed)
		return nil, errClosed
	}
	e.Settle() // what is left from before the last boot has no directory
	return h, nil
}

func startHelper(ctx context.Context, o Options) (*helper, error) {
	if _, err := oci.Check(o.Program); err != nil {
		return nil, err
	}
	conn, theirs, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	conn.RefuseFDs()
	cmd := &exec.Cmd{
		Path:       o.Program,
		Args:       []string{"boxd-containerd", o.Address, o.StateDir},
		Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Dir:        "/",
		Stderr:     os.Stderr,
		ExtraFiles: []*os.File{theirs},
		// The terminal's signals are meant for others.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = cmd.Start()
	theirs.Close() // its own copy alone shall keep the connection
	if err != nil {
		conn.Close()
		return nil, err
	}
	h := &helper{conn: conn, cmd: cmd, waiting: map[uint32]chan proto.Reply{}}
	greeted := make(chan error, 1)
	go func() {
		greeted <- h.greet(o.Program)
		h.receive()
	}()
	select {
	case err = <-greeted:
	case <-time.After(helloTime):
		err = fmt.Errorf("%q: says nothing within %v", o.Program, helloTime)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		h.end(err)
		return nil, err
	}
	return h, nil
}

// greet receives the first frame.
func (h *helper) greet(program string) error {
	frame, err := h.conn.Receive()
	if err != nil {
		return fmt.Errorf("%q: %w", program, err)
	}
	var m proto.Hello
	if err := json.Unmarshal(frame.Body, &m); err != nil || frame.Type != proto.TypeHello {
		return fmt.Errorf("%q: frame of type %d: %w", program, frame.Type, errors.Join(wire.ErrProtocol, err))
	}
	sameBuild := m.Version == version.Version || version.Version == version.Unstamped
	if !sameBuild || m.Protocol != proto.Protocol {
		return fmt.Errorf("%q is version %s (protocol %d), this is version %s (protocol %d): install both from one build", program, m.Version, m.Protocol, version.Version, proto.Protocol)
	}
	h.version = m.Version
	return nil
}

// receive distributes the answers until the connection ends.
func (h *helper) receive() {
	for {
		frame, err := h.conn.Receive()
		var r proto.Reply
		if err == nil {
			err = json.Unmarshal(frame.Body, &r)
		}
		if err != nil {
			h.end(fmt.Errorf("%w: %w: %w", engine.ErrNoEngine, errEnded, err))
			return
		}
		h.mu.Lock()
		if answer := h.waiting[frame.ID]; answer != nil {
			answer <- r
			delete(h.waiting, frame.ID)
		}
		h.mu.Unlock()
	}
}

// expect registers a request.
func (h *helper) expect() (id uint32, answer chan proto.Reply, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting == nil {
		return 0, nil, h.reason
	}
	h.last++
	answer = make(chan proto.Reply, 1)
	h.waiting[h.last] = answer
	return h.last, answer, nil
}

func (h *helper) forgo(id uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiting, id)
}

func (h *helper) runs() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting != nil
}

// end kills boxd-containerd, which keeps nothing, and ends all requests. Only the first reason
// counts.
func (h *helper) end(reason error) {
	h.mu.Lock()
	if h.waiting != nil {
		h.reason = reason
		for _, answer := range h.waiting {
			close(answer)
		}
		h.waiting = nil
	}
	h.mu.Unlock()
	h.ended.Do(func() {
		_ = h.cmd.Process.Kill() // fails if it has ended
		h.conn.Close()
		_ = h.cmd.Wait()
	})
}
