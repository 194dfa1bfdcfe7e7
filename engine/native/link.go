package native

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"

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
	err     error // why no more replies will come
}

// newLink takes ownership of conn.
func newLink(conn *wire.Conn) *link {
	l := &link{conn: conn, done: make(chan struct{}), waiting: map[uint32]chan *wire.Frame{}}
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
		ch := l.waiting[frame.ID]
		delete(l.waiting, frame.ID)
		l.mu.Unlock()
		if ch == nil || frame.Type != rpc.TypeReply {
			frame.Close()
			continue
		}
		ch <- frame
	}
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
// owns the returned files. There is no way to give up early: the launcher bounds
// every step it takes, and an abandoned reply would leak what it made.
func (l *link) call(typ byte, request, reply any) ([]*os.File, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encoding request: %w", err)
	}
	id, ch, err := l.register()
	if err != nil {
		return nil, err
	}
	if err := l.conn.Send(typ, id, body); err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrNoLauncher, err)
	}
	frame, ok := <-ch
	if !ok {
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

// socketPair returns our end as a connection and the other as a file for a child.
func socketPair() (*wire.Conn, *os.File, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, nil, err
	}
	conn, err := wire.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}
