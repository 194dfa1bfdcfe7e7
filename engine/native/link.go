package native

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"golang.org/x/sys/unix"
)

// link sends requests to the launcher and hands out the replies.
type link struct {
	conn *wire.Conn
	done chan struct{} // closed when the reader has ended

	mu      sync.Mutex
	next    uint32
	waiting map[uint32]chan *wire.Frame
	given   map[uint32]byte // type of requests whose caller gave up
	err     error           // why no more replies will come
}

// requestDeadline bounds every request whose caller sets no shorter one. The
// launcher needs milliseconds; one that was stopped never answers.
const requestDeadline = 2 * time.Minute

// newLink takes ownership of conn.
func newLink(conn *wire.Conn) *link {
	l := &link{conn: conn, done: make(chan struct{}), waiting: map[uint32]chan *wire.Frame{}, given: map[uint32]byte{}}
	go l.read()
	return l
}

// close ends the connection and waits for the reader.
func (l *link) close() {
	l.conn.Close()
	<-l.done
}

func (l *link) read() {
	defer close(l.done)
	for {
		frame, err := l.conn.Receive()
		if err != nil {
			l.fail(fmt.Errorf("%w: %w", engine.ErrNoLauncher, err))
			return
		}
		l.mu.Lock()
		ch, typ := l.waiting[frame.ID], l.given[frame.ID]
		delete(l.waiting, frame.ID)
		delete(l.given, frame.ID)
		l.mu.Unlock()
		if ch == nil || frame.Type != rpc.TypeReply {
			l.undo(typ, frame)
			continue
		}
		ch <- frame
	}
}

// undo takes back what came of a request whose caller gave up.
func (l *link) undo(typ byte, frame *wire.Frame) {
	frame.Close()
	var created rpc.Created
	answer := rpc.Reply{Body: &created}
	if typ != rpc.TypeCreate || json.Unmarshal(frame.Body, &answer) != nil || created.ID == "" {
		return
	}
	_ = l.tell(rpc.TypeRemove, rpc.Box{ID: created.ID}) // a launcher that is gone needs no telling
}

// giveUp says that nobody waits for a reply any more; false if it is there.
func (l *link) giveUp(id uint32, typ byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.waiting[id]; !ok {
		return false
	}
	delete(l.waiting, id)
	l.given[id] = typ
	return true
}

func (l *link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	for id, ch := range l.waiting {
		close(ch)
		delete(l.waiting, id)
	}
}

// register reserves an id for a request.
func (l *link) register() (uint32, chan *wire.Frame, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, nil, l.err
	}
	l.next++
	ch := make(chan *wire.Frame, 1)
	l.waiting[l.next] = ch
	return l.next, ch, nil
}

// tell sends a request that has no reply.
func (l *link) tell(typ byte, request any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encoding request: %w", err)
	}
	return l.conn.Send(typ, 0, body)
}

// call sends a request and waits for the reply. reply may be nil. The caller
// owns the returned files. When ctx ends first the launcher goes on; what comes of
// it is taken back.
func (l *link) call(ctx context.Context, typ byte, request, reply any) ([]*os.File, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encoding request: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, requestDeadline,
		fmt.Errorf("%w: no answer in %v", engine.ErrNoLauncher, requestDeadline))
	defer cancel()
	id, ch, err := l.register()
	if err != nil {
		return nil, err
	}
	if err := l.conn.Send(typ, id, body); err != nil {
		l.giveUp(id, typ)
		return nil, fmt.Errorf("%w: %w", engine.ErrNoLauncher, err)
	}
	var frame *wire.Frame
	select {
	case frame = <-ch:
	case <-ctx.Done():
		if l.giveUp(id, typ) {
			return nil, context.Cause(ctx)
		}
		frame = <-ch
	}
	if frame == nil { // closed
		l.mu.Lock()
		defer l.mu.Unlock()
		return nil, l.err
	}
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

// errTruncated says that the launcher has done what it was asked for, but that
// this process could not take the descriptors. reply is filled in, so that the
// caller can give back what was made.
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
