package relay

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/wsconn"
)

// CloseError reports that the relay closed the connection, with a WebSocket close code;
// docs/relay.md lists the codes.
type CloseError struct {
	Code int
	Text string
}

func (e *CloseError) Error() string { return fmt.Sprintf("relay closed: %d %s", e.Code, e.Text) }

// ErrNotWriter: the client sends input, and is not the writer.
var ErrNotWriter = errors.New("not the writer")

// maxAckDelay is how long consumed output may stay unacknowledged. Of a stream that is at
// most a quarter of the window, or maxUnacked bytes if that is less.
const (
	maxAckDelay = 5 * time.Millisecond
	maxUnacked  = 256 << 10
)

// Client is a single connection to a relay. One goroutine must call Recv in a loop,
// because Recv acknowledges output and answers pings. The other methods are safe for
// concurrent use.
type Client struct {
	ws    *websocket.Conn
	dead  time.Duration // how long the relay may be silent
	hello Hello
	buf   []byte // of Recv
	exit  bool   // seen by Recv
	fail  error  // of Recv, final

	wmu sync.Mutex // serialises messages

	amu     sync.Mutex
	streams [3]progress // by Stream
	timer   *time.Timer // acknowledges later; nil while not armed
	closed  bool

	imu    sync.Mutex // serialises Write and CloseStdin
	smu    sync.Mutex
	sent   int64 // of stdin
	stdin  StdinState
	writer bool
	ended  bool          // Recv has failed
	moved  chan struct{} // closed and replaced when one of these changes
}

// progress is the state of one output stream.
type progress struct {
	next     int64 // offset of the byte that the relay sends next
	consumed int64
	acked    int64
}

// Hello returns the relay's first message.
func (c *Client) Hello() Hello { return c.hello }

// alive restarts the period of silence after which the relay counts as dead.
func (c *Client) alive() { c.ws.SetReadDeadline(time.Now().Add(c.dead)) }

// message reads one message. It is valid until the next call.
func (c *Client) message() (msg []byte, err error) {
	kind, r, err := c.ws.NextReader()
	if err == nil && kind != websocket.BinaryMessage {
		return nil, malformed("text message")
	}
	if err == nil {
		msg, c.buf, err = readMessage(r, c.buf, maxToClient)
	}
	peer, isClose := errors.AsType[*websocket.CloseError](err)
	switch {
	case err == nil:
		return msg, nil
	case isClose && peer.Code != websocket.CloseAbnormalClosure:
		return nil, &CloseError{peer.Code, peer.Text}
	case isClose, wsconn.IsLost(err):
		return nil, fmt.Errorf("relay connection lost: %w", err)
	}
	return nil, malformed("%v", err)
}

// Recv waits for the next event. It acknowledges the output of the previous event, whose
// bytes are no longer valid. io.EOF follows Exited. Other errors: *CloseError,
// ErrProtocol, and those of the network. Errors are final.
func (c *Client) Recv() (Event, error) {
	if c.fail != nil {
		return nil, c.fail
	}
	c.consume()
	ev, err := c.recv()
	if err != nil {
		if errors.Is(err, ErrProtocol) {
			c.closeWith(websocket.CloseProtocolError, err.Error())
		}
		c.shut(err)
		return nil, err
	}
	return ev, nil
}

func (c *Client) recv() (Event, error) {
	if c.exit {
		return nil, io.EOF
	}
	c.alive()
	msg, err := c.message()
	if err != nil {
		return nil, err
	}
	f, err := parseServer(msg)
	if err != nil {
		return nil, err
	}
	switch f := f.(type) {
	case Data:
		return f, c.forward(f.Stream, f.Offset, f.Offset+int64(len(f.Bytes)))
	case Gap:
		return f, c.forward(f.Stream, f.From, f.To)
	case StdinState:
		return f, c.stdinState(f)
	case WriterChanged:
		c.change(func() { c.writer = f.Writer })
		return f, nil
	case Refused:
		return f, nil
	case exitFrame:
		return c.exited(f)
	}
	return nil, malformed("a second Hello")
}

// forward checks that a stream continues where it stopped.
func (c *Client) forward(s Stream, from, to int64) error {
	c.amu.Lock()
	defer c.amu.Unlock()
	if s == Stderr && !c.hello.HasStderr {
		return malformed("stderr, which the Hello does not announce")
	}
	p := &c.streams[s]
	if from != p.next {
		return malformed("%v continues at %d, want %d", s, from, p.next)
	}
	p.next = to
	return nil
}

func (c *Client) exited(f exitFrame) (Event, error) {
	c.amu.Lock()
	defer c.amu.Unlock()
	if f.stdout != c.streams[Stdout].next || f.stderr != c.streams[Stderr].next {
		return nil, malformed("exit at %d, %d, but the streams are at %d, %d",
			f.stdout, f.stderr, c.streams[Stdout].next, c.streams[Stderr].next)
	}
	c.exit = true
	return Exited{f.Exit}, nil
}

// send writes one message.
func (c *Client) send(msg []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.ws.SetWriteDeadline(time.Now().Add(30 * time.Second))
	if err := c.ws.WriteMessage(websocket.BinaryMessage, msg); err != nil {
		return fmt.Errorf("relay connection lost: %w", err)
	}
	return nil
}

// Close ends the connection; the process keeps running. Recv and Write return.
func (c *Client) Close() error {
	// A peer that reads nothing must not delay this.
	defer time.AfterFunc(time.Second, func() { c.ws.Close() }).Stop()
	c.acknowledge()
	c.closeWith(websocket.CloseNormalClosure, "")
	c.release()
	return nil
}

func (c *Client) closeWith(code int, text string) {
	why := &closing{Code: code, Text: text}
	c.ws.WriteControl(websocket.CloseMessage, why.Message(), time.Now().Add(time.Second))
}

// shut ends the connection because of an error of Recv.
func (c *Client) shut(err error) {
	c.fail = err
	if err == io.EOF {
		c.acknowledge()
		c.closeWith(websocket.CloseNormalClosure, "")
	}
	c.release()
}

func (c *Client) release() {
	c.amu.Lock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	c.amu.Unlock()
	c.change(func() { c.ended = true })
	c.ws.Close()
}

// consume records that all output so far was consumed, and acknowledges it now or soon.
func (c *Client) consume() {
	if c.hello.Window == 0 {
		return
	}
	c.amu.Lock()
	defer c.amu.Unlock()
	now, later := false, false
	for i := range c.streams {
		p := &c.streams[i]
		p.consumed = p.next
		now = now || p.consumed-p.acked >= min(maxUnacked, max(c.hello.Window/4, 1))
		later = later || p.consumed > p.acked
	}
	switch {
	case now:
		c.acknowledgeLocked()
	case later && c.timer == nil && !c.closed:
		c.timer = time.AfterFunc(maxAckDelay, c.acknowledge)
	}
}

func (c *Client) acknowledge() {
	c.amu.Lock()
	defer c.amu.Unlock()
	c.acknowledgeLocked()
}

func (c *Client) acknowledgeLocked() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	for i := range c.streams {
		if p := &c.streams[i]; p.consumed > p.acked && !c.closed {
			p.acked = p.consumed
			c.send(appendAck(nil, Stream(i), p.acked)) // Recv notices a failure
		}
	}
}
