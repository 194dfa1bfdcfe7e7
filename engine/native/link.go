package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"golang.org/x/sys/unix"
)

// link sends requests to the launcher and hands out the replies.
type link struct {
	o    linkOptions
	done chan struct{} // closed when the reader has ended
	ctx  context.Context
	end  context.CancelFunc

	removals chan struct{} // has one element for each Remove that was sent and has no reply
	removed  atomic.Int64  // how many Removes have succeeded

	mu      sync.Mutex
	conn    *wire.Conn    // nil while there is none
	up      chan struct{} // closed when there is a connection again, or when there will be none
	next    uint32
	waiting map[uint32]chan *wire.Frame
	given   map[uint32]request // requests whose callers gave up
	orphans []string           // boxes that such requests may have made
	err     error              // why there is no connection
	final   bool               // there will be no further connection
}

// linkOptions are the options of a link.
type linkOptions struct {
	// dial connects again after a connection was lost. If it is nil, the loss is final.
	dial func(context.Context) (*wire.Conn, error)
	// event receives the launcher's events. The reader calls it.
	event func(rpc.Event)
}

// request describes a request in progress.
type request struct {
	typ byte
	box string // the box that a Create makes
}

// requestDeadline bounds every request whose caller sets no shorter deadline. The
// launcher needs milliseconds; a launcher that was stopped never answers.
const requestDeadline = 2 * time.Minute

// maxRemovals is how many Removes the launcher gets at a time: twice as many as it carries out
// in parallel. Further Removes wait here. So, however many boxes are removed at once, the
// launcher can read other requests, and it answers within requestDeadline.
const maxRemovals = 64

// askTime is how long before the deadline of a request the launcher is asked for its current
// step.
const askTime = 500 * time.Millisecond

// newLink takes ownership of conn.
func newLink(conn *wire.Conn, o linkOptions) *link {
	l := &link{
		o: o, conn: conn, done: make(chan struct{}), up: make(chan struct{}),
		waiting: map[uint32]chan *wire.Frame{}, given: map[uint32]request{},
		removals: make(chan struct{}, maxRemovals),
	}
	l.ctx, l.end = context.WithCancel(context.Background())
	go l.run(conn)
	return l
}

// close ends the connection and waits for the reader.
func (l *link) close() {
	l.end()
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
	<-l.done
}

// run reads one connection after another.
func (l *link) run(conn *wire.Conn) {
	defer close(l.done)
	for {
		err := l.read(conn)
		conn.Close()
		l.lose(err)
		if conn, err = l.redial(); err != nil {
			l.give(nil, err)
			return
		}
		if !l.give(conn, nil) {
			conn.Close()
			return
		}
	}
}

// read hands out replies until the connection ends.
func (l *link) read(conn *wire.Conn) error {
	for {
		frame, err := conn.Receive()
		if err != nil {
			return err
		}
		if frame.Type == rpc.TypeEvent {
			l.event(frame)
			continue
		}
		l.mu.Lock()
		ch, r := l.waiting[frame.ID], l.given[frame.ID]
		delete(l.waiting, frame.ID)
		delete(l.given, frame.ID)
		l.mu.Unlock()
		if ch == nil || frame.Type != rpc.TypeReply {
			l.undo(r.typ, frame)
			continue
		}
		ch <- frame
	}
}

func (l *link) event(frame *wire.Frame) {
	frame.Close()
	var e rpc.Event
	if l.o.event != nil && json.Unmarshal(frame.Body, &e) == nil {
		l.o.event(e)
	}
}

// undo removes the box of a Create whose caller gave up.
func (l *link) undo(typ byte, frame *wire.Frame) {
	frame.Close()
	var created rpc.Created
	answer := rpc.Reply{Body: &created}
	if typ != rpc.TypeCreate || json.Unmarshal(frame.Body, &answer) != nil || created.ID == "" {
		return
	}
	_ = l.tell(rpc.TypeRemove, rpc.Box{ID: created.ID}) // unnecessary if the launcher is gone
}

// giveUp stops waiting for a reply. It returns false if the reply has arrived.
func (l *link) giveUp(id uint32, r request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.waiting[id]; !ok {
		return false
	}
	delete(l.waiting, id)
	l.given[id] = r
	return true
}

// register reserves an id for a request over conn.
func (l *link) register(conn *wire.Conn) (uint32, chan *wire.Frame, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn {
		return 0, nil, fmt.Errorf("%w: %w", errUnsent, l.lostErrorLocked())
	}
	l.next++
	ch := make(chan *wire.Frame, 1)
	l.waiting[l.next] = ch
	return l.next, ch, nil
}

// tell sends a request that has no reply. It is lost with the connection.
func (l *link) tell(typ byte, request any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encoding request: %w", err)
	}
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn == nil {
		return engine.ErrNoLauncher
	}
	return conn.Send(typ, 0, body)
}

// call sends a request and waits for the reply. reply may be nil. The caller owns the
// returned files. If ctx ends first, the launcher continues, and a box that it makes is
// removed again. If the connection is lost meanwhile, a request that may be carried out
// twice is sent again over the next one.
func (l *link) call(ctx context.Context, typ byte, request, reply any) ([]*os.File, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestDeadline,
		fmt.Errorf("%w: no answer in %v", engine.ErrNoLauncher, requestDeadline))
	defer cancel()
	for {
		files, err := l.callOnce(ctx, typ, request, reply)
		if l.o.dial != nil && errors.Is(err, errUnsent) {
			continue
		}
		if !errors.Is(err, errLost) || l.o.dial == nil || typ == rpc.TypeCreate || typ == rpc.TypeStop {
			return files, err
		}
		if u, ok := request.(rpc.Update); ok {
			u.Again = true
			request = u
		}
	}
}

// remove has the launcher remove a box, after others if there are many. If ctx ends first,
// the launcher still removes the box.
func (l *link) remove(ctx context.Context, id string) error {
	for waits := true; waits; {
		before := l.removed.Load()
		idle := time.NewTimer(requestDeadline)
		select {
		case l.removals <- struct{}{}:
			waits = false
		case <-ctx.Done():
			l.forsake(id)
			return context.Cause(ctx)
		case <-idle.C:
			if l.removed.Load() == before {
				l.forsake(id)
				return fmt.Errorf("%w: it has removed no box in %v", engine.ErrNoLauncher, requestDeadline)
			}
		}
		idle.Stop()
	}
	defer func() { <-l.removals }()
	_, err := l.call(ctx, rpc.TypeRemove, rpc.Box{ID: id}, nil)
	if err == nil {
		l.removed.Add(1)
	}
	return err
}

func (l *link) callOnce(ctx context.Context, typ byte, ask, reply any) ([]*os.File, error) {
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("encoding request: %w", err)
	}
	if len(body) > wire.MaxBody {
		return nil, fmt.Errorf("request of %d bytes: must be at most %d, labels and environment included: %w", len(body), wire.MaxBody, engine.ErrInvalid)
	}
	r := request{typ: typ}
	if c, ok := ask.(rpc.Create); ok {
		r.box = c.Spec.ID
	}
	conn, err := l.connection(ctx)
	if err != nil {
		return nil, err
	}
	id, ch, err := l.register(conn)
	if err != nil {
		return nil, err
	}
	if err := conn.Send(typ, id, body); err != nil {
		l.unsent(conn, id)
		return nil, fmt.Errorf("%w: %w: %w: %w", engine.ErrNoLauncher, errLost, errUnsent, err)
	}
	frame, err := l.await(ctx, conn, id, ch, r)
	if err != nil {
		return nil, err
	}
	if frame == nil { // closed
		l.mu.Lock()
		defer l.mu.Unlock()
		return nil, l.lostErrorLocked()
	}
	return decodeReply(frame, reply)
}

// await returns the reply, or nil if the connection is lost. If ctx ends first, the error names
// the launcher's current step, for which await asks shortly before.
func (l *link) await(ctx context.Context, conn *wire.Conn, id uint32, ch chan *wire.Frame, r request) (*wire.Frame, error) {
	var asked chan *wire.Frame
	var question uint32
	at := "the launcher does not answer"
	end, _ := ctx.Deadline() // always set, see requestDeadline
	left := time.Until(end)
	soon := time.NewTimer(left - min(left/4, askTime))
	defer soon.Stop()
	defer func() {
		if asked != nil {
			l.giveUp(question, request{})
		}
	}()
	for {
		select {
		case frame := <-ch:
			return frame, nil
		case <-soon.C:
			question, asked = l.ask(conn, id)
		case frame := <-asked:
			asked = nil
			var answer rpc.At
			if frame != nil {
				if _, err := decodeReply(frame, &answer); err == nil {
					at = answer.Text
				}
			}
		case <-ctx.Done():
			if !l.giveUp(id, r) {
				return <-ch, nil
			}
			if r.typ == rpc.TypeCreate && r.box != "" {
				_ = l.tell(rpc.TypeRemove, rpc.Box{ID: r.box}) // if it fails, lose makes the box an orphan
			}
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, fmt.Errorf("%w: %s", context.Cause(ctx), at)
			}
			return nil, context.Cause(ctx)
		}
	}
}

// ask asks for the current step of request id. The channel is nil if it cannot ask.
func (l *link) ask(conn *wire.Conn, id uint32) (question uint32, answer chan *wire.Frame) {
	body, err := json.Marshal(rpc.Where{Request: id})
	if err != nil {
		return 0, nil
	}
	if question, answer, err = l.register(conn); err != nil {
		return 0, nil
	}
	if conn.Send(rpc.TypeWhere, question, body) != nil {
		l.unsent(conn, question)
		return 0, nil
	}
	return question, answer
}

// decodeReply decodes the reply in frame and returns its descriptors.
func decodeReply(frame *wire.Frame, reply any) ([]*os.File, error) {
	answer := rpc.Reply{Body: reply}
	if err := json.Unmarshal(frame.Body, &answer); err != nil {
		frame.Close()
		return nil, fmt.Errorf("decoding reply: %w", err)
	}
	if answer.Error != nil {
		frame.Close()
		return nil, answer.Error
	}
	if frame.Truncated {
		return nil, errTruncated
	}
	return frame.Files(), nil
}

// errTruncated means that the launcher has carried out the request, but that this process
// could not receive the descriptors. reply is filled in, so that the caller can undo the
// request.
var errTruncated = fmt.Errorf("receiving descriptors: %w (RLIMIT_NOFILE)", unix.EMFILE)

// hello waits for the first frame of a launcher.
func hello(conn *wire.Conn) (rpc.Hello, error) {
	var h rpc.Hello
	frame, err := conn.Receive()
	if err != nil {
		return h, err
	}
	defer frame.Close()
	if frame.Type != rpc.TypeHello {
		return h, fmt.Errorf("first frame is of type %d: %w", frame.Type, wire.ErrProtocol)
	}
	return h, json.Unmarshal(frame.Body, &h)
}
