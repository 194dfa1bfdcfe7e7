package native

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
)

// answerDeadline bounds every request to an agent except those that wait for a process. An
// agent that does not answer was stopped or subverted: its box is lost.
const answerDeadline = 30 * time.Second

// managedLink is the connection to an agent for managed processes. A message that breaks
// the protocol ends the connection, and the box counts as lost.
type managedLink struct {
	box  *box
	conn *wire.Conn
	done chan struct{} // closed when the reader has ended and all waiting callers are told
	wg   sync.WaitGroup
	wait time.Duration // answerDeadline; tests shorten it

	mu        sync.Mutex
	next      uint32
	asked     map[uint32]*question
	processes map[uint32]*managed
	err       error // why there will be no more answers
}

// question is a request that waits for its answer.
type question struct {
	typ    byte
	launch *managed   // the process that a Launch starts
	listed []*managed // the answer to a List so far
	sent   bool       // the agent may have received it
	reply  chan error // one value
}

// newManagedLink takes ownership of conn.
func newManagedLink(b *box, conn *wire.Conn) *managedLink {
	conn.Distrust()
	l := &managedLink{
		box: b, conn: conn, done: make(chan struct{}), wait: answerDeadline,
		asked: map[uint32]*question{}, processes: map[uint32]*managed{},
	}
	go l.run()
	go func() {
		select {
		case <-b.done:
		case <-l.done:
		}
		conn.Close()
	}()
	return l
}

// run handles the agent's frames until one breaks the protocol or the connection ends.
func (l *managedLink) run() {
	defer close(l.done)
	for {
		frame, err := l.conn.Receive()
		if err == nil {
			err = l.take(frame)
			frame.Close()
		}
		if err != nil {
			l.conn.Discard()
			l.fail(err)
			return
		}
	}
}

// fail ends all requests and processes with err.
func (l *managedLink) fail(err error) {
	letGo := l.box.engine.service && l.box.engine.closedError() != nil
	if letGo {
		err = os.ErrClosed
	} else {
		err = fmt.Errorf("box %q: %w: %w", l.box.id, engine.ErrBoxLost, err)
		l.box.agent.Close()
	}
	l.mu.Lock()
	l.err = err
	for _, q := range l.asked {
		q.reply <- err
	}
	clear(l.asked)
	l.mu.Unlock()
	for _, p := range l.all() {
		p.lose(err, letGo)
	}
}

// ask sends a request and waits for its answer.
func (l *managedLink) ask(q *question, body []byte, files ...*os.File) error {
	q.reply = make(chan error, 1)
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return l.err
	}
	l.next++
	id := l.next
	l.asked[id] = q
	l.mu.Unlock()
	if q.sent = l.conn.Send(q.typ, id, body, files...) == nil; !q.sent {
		l.conn.Close() // then the reader answers
	}
	t := time.AfterFunc(l.wait, func() { l.conn.Close() })
	defer t.Stop()
	return <-q.reply
}

// tell sends a frame without waiting for an answer. If the connection is lost, the reader
// notices.
func (l *managedLink) tell(typ byte, number uint32, body []byte) {
	_ = l.conn.Send(typ, number, body)
}

// take handles a frame from the agent.
func (l *managedLink) take(frame *wire.Frame) error {
	if len(frame.FDs) > 0 && frame.Type != wire.TypeManaged {
		return fmt.Errorf("frame of type %d with descriptors: %w", frame.Type, wire.ErrProtocol)
	}
	switch frame.Type {
	case wire.TypeHead, wire.TypeAccepted, wire.TypeEnded:
		l.mu.Lock()
		p := l.processes[frame.ID]
		l.mu.Unlock()
		if p == nil {
			return nil // the process was forgotten meanwhile
		}
		return p.event(frame)
	case wire.TypeManaged:
		return l.takeManaged(frame)
	}
	l.mu.Lock()
	q := l.asked[frame.ID]
	delete(l.asked, frame.ID)
	l.mu.Unlock()
	if q == nil {
		return fmt.Errorf("answer of type %d to nothing: %w", frame.Type, wire.ErrProtocol)
	}
	err := q.answer(frame)
	q.reply <- err
	if errors.Is(err, wire.ErrProtocol) {
		return err
	}
	return nil
}

// answer decodes the answer to q. It returns wire.ErrProtocol if frame cannot be one.
func (q *question) answer(frame *wire.Frame) error {
	switch frame.Type {
	case wire.TypeFailed:
		failed := new(wire.FailedMsg)
		if err := failed.Unmarshal(frame.Body); err != nil {
			return err
		}
		return failed
	case wire.TypeForgotten:
		if q.typ == wire.TypeForget && len(frame.Body) == 0 {
			return nil
		}
	case wire.TypeListed:
		var m wire.ListedMsg
		if err := m.Unmarshal(frame.Body); err != nil {
			return err
		}
		if q.typ == wire.TypeList && int(m.Count) == len(q.listed) {
			return nil
		}
	}
	return fmt.Errorf("frame of type %d as an answer to one of type %d: %w", frame.Type, q.typ, wire.ErrProtocol)
}

// takeManaged handles the description of a process: one of several in the answer to a List,
// or the whole answer to a Launch.
func (l *managedLink) takeManaged(frame *wire.Frame) error {
	var m wire.ManagedMsg
	if err := m.Unmarshal(frame.Body); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.asked[frame.ID]
	if q == nil || q.typ == wire.TypeList && len(q.listed) == wire.MaxManaged || q.typ == wire.TypeForget {
		return fmt.Errorf("managed process that was not requested: %w", wire.ErrProtocol)
	}
	if frame.Truncated {
		delete(l.asked, frame.ID)
		q.reply <- errTruncated
		return nil
	}
	if l.processes[m.Number] != nil {
		return fmt.Errorf("managed process %d twice: %w", m.Number, wire.ErrProtocol)
	}
	p := q.launch
	if p == nil {
		p = newManaged(l.box, m.Key)
	}
	if err := p.attach(l, &m, frame); err != nil {
		return err
	}
	l.processes[m.Number] = p
	if q.typ == wire.TypeList {
		q.listed = append(q.listed, p)
		return nil
	}
	delete(l.asked, frame.ID)
	q.reply <- nil
	return nil
}

// attach fills in p from the agent's description of it, with its rings.
func (p *managed) attach(l *managedLink, m *wire.ManagedMsg, frame *wire.Frame) (err error) {
	if p.key != m.Key || p.wanted != nil && (p.wanted.Ring != m.Ring || p.wanted.StderrRing != m.StderrRing || p.wanted.Spawn.TTY != m.TTY || m.Ended) {
		return fmt.Errorf("managed process %q is not as requested: %w", m.Key, wire.ErrProtocol)
	}
	if len(frame.FDs) != m.Streams() {
		return fmt.Errorf("managed process with %d rings: %w", len(frame.FDs), wire.ErrProtocol)
	}
	files := frame.Files()
	defer func() {
		if err != nil {
			go linux.CloseAll(files) // can take hours, see wire.Conn.Distrust
		}
	}()
	for i, file := range files {
		if err := checkRing(file, int64(m.RingOf(uint32(i)))); err != nil {
			return err
		}
		o := newOutput(l, m, i, file)
		p.outputs = append(p.outputs, o)
		if _, end := o.Bounds(); o.released > end || p.wanted != nil && o.released != 0 {
			return fmt.Errorf("output that reaches %d and was released to %d: %w", end, o.released, wire.ErrProtocol)
		}
	}
	p.link, p.number, p.pid, p.tty = l, m.Number, int(m.PID), m.TTY
	p.age, p.attached = time.Duration(m.Age), time.Now()
	p.input = newInput(l, m)
	if m.Ended {
		return p.end(&wire.EndedMsg{Status: m.Status, Wall: m.Age, Heads: m.Heads})
	}
	return nil
}
