package relay

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

// DialOptions say what to attach to, and how.
type DialOptions struct {
	// URL is that of the relay, with the scheme http, https, ws or wss, and without
	// a query.
	URL string
	// NetDial makes the connection; nil is TCP.
	NetDial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is for https and wss; nil has the defaults.
	TLS *tls.Config
	// Header is sent with the request, for example Authorization.
	Header http.Header
	// Write asks to be the writer; TakeOver to become it in place of another.
	Write, TakeOver bool
	Since           Since
	// ClientID, 16 to 64 of a-z, A-Z, 0-9, "-" and "_", names the client across its
	// connections: a new one replaces an older one of the same id. It may be empty.
	ClientID string
	// Dead is how long the relay may be silent; zero is 60 s.
	Dead time.Duration
}

// DialError is a refusal of the relay.
type DialError struct {
	Status int    // of the HTTP answer
	Text   string // its body, up to 1 KiB
}

func (e *DialError) Error() string {
	return fmt.Sprintf("attaching: %d %s: %s", e.Status, http.StatusText(e.Status), e.Text)
}

// CloseError is a connection that the relay has closed, see docs/relay.md.
type CloseError struct {
	Code int
	Text string
}

func (e *CloseError) Error() string { return fmt.Sprintf("relay closed: %d %s", e.Code, e.Text) }

// ErrNotWriter is that of input from a client that is not the writer.
var ErrNotWriter = errors.New("not the writer")

// maxAckDelay is how long what was consumed may be unacknowledged; most that may
// be of a stream is a quarter of the window, or maxUnacked if that is less.
const (
	maxAckDelay = 5 * time.Millisecond
	maxUnacked  = 256 << 10
)

// Client is one connection to a relay. One goroutine calls Recv, all the time: it
// is what acknowledges and what answers pings. The other methods are safe for
// concurrent use.
type Client struct {
	ws    *websocket.Conn
	dead  time.Duration
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

// progress is how far a stream has come.
type progress struct {
	next     int64 // what the relay sends next begins here
	consumed int64
	acked    int64
}

// Dial connects. Errors: *DialError; ErrProtocol; those of the network.
func Dial(ctx context.Context, o DialOptions) (*Client, error) {
	u, err := relayURL(o)
	if err != nil {
		return nil, err
	}
	d := websocket.Dialer{
		NetDialContext:  o.NetDial,
		TLSClientConfig: o.TLS,
		ReadBufferSize:  32 << 10,
		WriteBufferSize: maxToServer,
	}
	ws, resp, err := d.DialContext(ctx, u, o.Header)
	if err != nil {
		return nil, dialError(resp, err)
	}
	c := &Client{ws: ws, dead: orDefault(o.Dead, time.Minute), moved: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { ws.Close() })
	err = c.open(o)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		ws.Close()
		return nil, err
	}
	return c, nil
}

func relayURL(o DialOptions) (string, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return "", err
	}
	if s, ok := strings.CutPrefix(u.Scheme, "http"); ok {
		u.Scheme = "ws" + s
	}
	r := request{write: o.Write, takeOver: o.TakeOver, since: o.Since, client: o.ClientID}
	u.RawQuery = r.query().Encode()
	return u.String(), nil
}

// dialError makes a refusal of an answer that is none to an upgrade.
func dialError(resp *http.Response, err error) error {
	if resp == nil || !errors.Is(err, websocket.ErrBadHandshake) {
		return fmt.Errorf("attaching: %w", err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
	return &DialError{Status: resp.StatusCode, Text: strings.TrimSpace(string(body))}
}

// open takes the Hello, and checks that it is what was asked for.
func (c *Client) open(o DialOptions) error {
	c.ws.SetReadLimit(maxToClient)
	c.ws.SetPingHandler(func(data string) error {
		c.alive()
		c.ws.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(time.Second))
		return nil
	})
	c.alive()
	msg, err := c.message()
	if err != nil {
		return err
	}
	f, err := parseServer(msg)
	h, ok := f.(Hello)
	if err == nil && !ok {
		err = malformed("the first frame is no Hello")
	}
	if err != nil {
		return err
	}
	for s, at := range map[Stream]Position{Stdout: o.Since.Stdout, Stderr: o.Since.Stderr} {
		b := h.Stdout
		if s == Stderr {
			b = h.Stderr
		}
		if s == Stderr && !h.HasStderr {
			continue
		}
		if at.Kind == At && b.Start != at.Offset {
			return malformed("%v begins at %d, asked was %d", s, b.Start, at.Offset)
		}
		c.streams[s] = progress{b.Start, b.Start, b.Start}
	}
	c.hello, c.writer = h, h.Writer
	c.sent, c.stdin.Accepted = h.StdinAccepted, h.StdinAccepted
	return nil
}

// Hello is what the relay said first.
func (c *Client) Hello() Hello { return c.hello }

// alive puts off the time at which the relay counts as dead.
func (c *Client) alive() { c.ws.SetReadDeadline(time.Now().Add(c.dead)) }

// message reads one message; it is valid until the next.
func (c *Client) message() (msg []byte, err error) {
	kind, r, err := c.ws.NextReader()
	if err == nil && kind != websocket.BinaryMessage {
		return nil, malformed("text message")
	}
	if err == nil {
		msg, c.buf, err = readMessage(r, c.buf, maxToClient)
	}
	var peer *websocket.CloseError
	switch {
	case err == nil:
		return msg, nil
	case errors.As(err, &peer) && peer.Code != websocket.CloseAbnormalClosure:
		return nil, &CloseError{peer.Code, peer.Text}
	case errors.As(err, &peer), isNetError(err):
		return nil, fmt.Errorf("relay connection lost: %w", err)
	}
	return nil, malformed("%v", err)
}

// Recv waits for the next event. What the event before it carried counts as
// consumed, and is acknowledged. io.EOF follows Exited. Other errors: *CloseError;
// ErrProtocol; those of the network. After an error there is nothing more.
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

// forward checks that a stream goes on where it was.
func (c *Client) forward(s Stream, from, to int64) error {
	c.amu.Lock()
	defer c.amu.Unlock()
	if s == Stderr && !c.hello.HasStderr {
		return malformed("stderr, which Hello does not have")
	}
	p := &c.streams[s]
	if from != p.next {
		return malformed("%v goes on at %d, want %d", s, from, p.next)
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

// consume notes that everything up to now was consumed, and acknowledges it now or
// soon.
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
			c.send(appendAck(nil, Stream(i), p.acked)) // a failure shows in Recv
		}
	}
}

// change changes what Write waits for.
func (c *Client) change(f func()) {
	c.smu.Lock()
	defer c.smu.Unlock()
	f()
	close(c.moved)
	c.moved = make(chan struct{})
}

func (c *Client) stdinState(f StdinState) error {
	c.smu.Lock()
	before, sent := c.stdin.Accepted, c.sent
	c.smu.Unlock()
	if f.Accepted < before || f.Accepted > sent {
		return malformed("StdinAck of %d: want %d to %d", f.Accepted, before, sent)
	}
	c.change(func() { c.stdin.Accepted, c.stdin.Closed = f.Accepted, c.stdin.Closed || f.Closed })
	return nil
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

// Write sends p to stdin, waiting while too much of it is on its way. Errors:
// ErrNotWriter; syscall.EPIPE: stdin is closed; those of the network.
func (c *Client) Write(p []byte) (int, error) {
	c.imu.Lock()
	defer c.imu.Unlock()
	done := 0
	for done < len(p) {
		room, moved, err := c.stdinRoom()
		if err != nil {
			return done, err
		}
		if room <= 0 {
			<-moved
			continue
		}
		n := int(min(room, int64(len(p)-done), MaxStdin))
		if err := c.sendStdin(p[done : done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

func (c *Client) stdinRoom() (int64, chan struct{}, error) {
	c.smu.Lock()
	defer c.smu.Unlock()
	switch {
	case c.ended:
		return 0, nil, net.ErrClosed
	case !c.writer:
		return 0, nil, ErrNotWriter
	case c.stdin.Closed || !c.hello.HasStdin:
		return 0, nil, syscall.EPIPE
	}
	return c.hello.StdinWindow - (c.sent - c.stdin.Accepted), c.moved, nil
}

// sendStdin sends the next bytes of stdin, at most MaxStdin.
func (c *Client) sendStdin(p []byte) error {
	c.smu.Lock()
	off := c.sent
	c.sent += int64(len(p))
	c.smu.Unlock()
	return c.send(append(appendOffset(append(make([]byte, 0, stdinHeader+len(p)), typeStdin), off), p...))
}

// CloseStdin ends stdin behind what was written.
func (c *Client) CloseStdin() error {
	c.imu.Lock()
	defer c.imu.Unlock()
	if _, _, err := c.stdinRoom(); err != nil {
		return err
	}
	c.smu.Lock()
	off := c.sent
	c.smu.Unlock()
	return c.send(appendOffset([]byte{typeCloseStdin}, off))
}

// control sends what only a writer may.
func (c *Client) control(msg []byte) error {
	c.smu.Lock()
	writer := c.writer
	c.smu.Unlock()
	if !writer {
		return ErrNotWriter
	}
	return c.send(msg)
}

// Resize sets the size of the terminal.
func (c *Client) Resize(rows, cols uint16) error {
	msg := binary.BigEndian.AppendUint16([]byte{typeResize}, rows)
	return c.control(binary.BigEndian.AppendUint16(msg, cols))
}

// Signal sends a signal, 1 to 64, to the process.
func (c *Client) Signal(sig int) error {
	if sig < 1 || sig > 64 {
		return fmt.Errorf("signal: %d: want 1 to 64", sig)
	}
	return c.control([]byte{typeSignal, byte(sig)})
}

// Close ends the connection; the process goes on. Recv and Write return.
func (c *Client) Close() error {
	// A peer that takes nothing must not hold this up.
	defer time.AfterFunc(time.Second, func() { c.ws.Close() }).Stop()
	c.acknowledge()
	c.closeWith(websocket.CloseNormalClosure, "")
	c.release()
	return nil
}

func (c *Client) closeWith(code int, text string) {
	c.ws.WriteControl(websocket.CloseMessage, closeMessage(code, text), time.Now().Add(time.Second))
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
