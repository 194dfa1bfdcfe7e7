package relay

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

// AttachOptions say what to attach to, and how an Attachment behaves when its
// connection is lost. TakeOver is for the first connection only; an empty ClientID
// becomes a random one.
type AttachOptions struct {
	DialOptions
	// GiveUp is how long to try to get a new connection; zero is for ever.
	GiveUp time.Duration
	// Lost, if not nil, is told of each lost connection and each attempt in vain, by
	// the goroutine that is in Recv.
	Lost func(err error)
}

// Pauses between attempts to connect.
const (
	minPause = 20 * time.Millisecond
	maxPause = time.Second
	// maxDial bounds one attempt.
	maxDial = 30 * time.Second
)

// Attachment is a client that replaces its connection when it is lost, so that its
// user sees each byte of output, and the process each byte of stdin, exactly once.
// Where that cannot be, it says so, with a Gap or a StdinLost. One goroutine calls
// Recv, all the time: it is what notices and replaces a lost connection. The other
// methods are safe for concurrent use.
type Attachment struct {
	ctx    context.Context
	cancel context.CancelFunc
	give   time.Duration
	lost   func(error)

	// Used by Recv only.
	events []Event // to be returned before anything else
	next   [3]int64
	pause  time.Duration // before the next attempt
	fail   error         // final

	imu sync.Mutex // serialises Write and CloseStdin; before mu

	mu      sync.Mutex
	dial    DialOptions
	c       *Client // nil while there is no connection
	hello   Hello
	writer  bool
	base    int64  // offset of unacked
	unacked []byte // stdin that the process may not have taken
	closing bool   // stdin ends behind unacked
	closed  bool   // stdin is closed
	size    *[2]uint16
	done    bool
	moved   chan struct{} // closed and replaced when one of these changes
}

// Attach connects for the first time; its errors are those of Dial. ctx bounds the
// life of the attachment.
func Attach(ctx context.Context, o AttachOptions) (*Attachment, error) {
	if o.ClientID == "" {
		o.ClientID = rand.Text()
	}
	c, err := Dial(ctx, o.DialOptions)
	if err != nil {
		return nil, err
	}
	h := c.Hello()
	a := &Attachment{
		give: o.GiveUp, lost: o.Lost, dial: o.DialOptions, moved: make(chan struct{}),
		c: c, hello: h, writer: h.Writer, base: h.StdinAccepted,
		next: [3]int64{Stdout: h.Stdout.Start, Stderr: h.Stderr.Start},
	}
	if a.lost == nil {
		a.lost = func(error) {}
	}
	a.dial.TakeOver = false
	a.ctx, a.cancel = context.WithCancel(ctx)
	context.AfterFunc(a.ctx, a.drop)
	return a, nil
}

// Hello is what the relay said on the latest connection.
func (a *Attachment) Hello() Hello {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hello
}

// Close ends the attachment; the process goes on. Stdin that was not acknowledged
// may not be taken.
func (a *Attachment) Close() error {
	a.cancel()
	a.drop()
	return nil
}

// drop closes the connection and ends all waiting.
func (a *Attachment) drop() {
	a.mu.Lock()
	c := a.c
	a.done = true
	a.changedLocked()
	a.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

func (a *Attachment) changedLocked() {
	close(a.moved)
	a.moved = make(chan struct{})
}

// Recv waits for the next event, across connections. What the event before it
// carried counts as consumed. io.EOF follows Exited; net.ErrClosed is that of a
// closed attachment; other errors say why it is of no use to connect again.
func (a *Attachment) Recv() (Event, error) {
	for a.fail == nil {
		if len(a.events) > 0 {
			ev := a.events[0]
			a.events = a.events[1:]
			return ev, nil
		}
		a.mu.Lock()
		c := a.c
		a.mu.Unlock()
		ev, err := c.Recv()
		if err == nil {
			a.pause = 0
			a.note(ev)
			return ev, nil
		}
		if err != io.EOF {
			err = a.reconnect(err)
		}
		if err != nil {
			a.fail = err
			a.drop()
			a.cancel()
		}
	}
	return nil, a.fail
}

// note keeps what the next connection needs to know.
func (a *Attachment) note(ev Event) {
	switch ev := ev.(type) {
	case Data:
		a.next[ev.Stream] = ev.Offset + int64(len(ev.Bytes))
	case Gap:
		a.next[ev.Stream] = ev.To
	case StdinState:
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.writer {
			a.takenLocked(ev.Accepted)
		}
		a.closed = a.closed || ev.Closed
		a.changedLocked()
	case WriterChanged:
		a.mu.Lock()
		defer a.mu.Unlock()
		if !ev.Writer {
			a.demoteLocked()
		}
	}
}

// takenLocked forgets stdin up to offset to.
func (a *Attachment) takenLocked(to int64) {
	n := copy(a.unacked, a.unacked[to-a.base:])
	a.unacked, a.base = a.unacked[:n], to
}

// demoteLocked makes it an observer, from now on and on all later connections.
func (a *Attachment) demoteLocked() {
	a.writer, a.dial.Write = false, false
	a.loseLocked()
}

// loseLocked gives up stdin of which nobody knows whether it was taken.
func (a *Attachment) loseLocked() {
	if len(a.unacked) > 0 {
		a.events = append(a.events, StdinLost{Bytes: int64(len(a.unacked))})
	}
	a.unacked = nil
	a.changedLocked()
}

// reconnect replaces the connection that failed with cause. An error is final.
func (a *Attachment) reconnect(cause error) error {
	a.mu.Lock()
	a.c.Close()
	a.mu.Unlock()
	since := time.Now()
	for err := cause; ; {
		switch {
		case a.ctx.Err() != nil:
			return net.ErrClosed
		case isConflict(err):
			a.mu.Lock()
			if a.writer {
				a.events = append(a.events, WriterChanged{})
			}
			a.demoteLocked()
			a.mu.Unlock()
		case !worthRetrying(err):
			return err
		case a.give > 0 && time.Since(since) > a.give:
			return fmt.Errorf("giving up after %v: %w", a.give, err)
		}
		a.lost(err)
		a.wait()
		if err = a.connect(); err == nil {
			return nil
		}
	}
}

// wait pauses before the next attempt: not before the first one, and a little at
// random so that many clients do not come at once.
func (a *Attachment) wait() {
	pause := a.pause
	a.pause = min(max(2*pause, minPause), maxPause)
	if pause == 0 {
		return
	}
	t := time.NewTimer(pause/2 + mathrand.N(pause/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-a.ctx.Done():
	}
}

func isConflict(err error) bool {
	var refused *DialError
	var closed *CloseError
	return errors.As(err, &refused) && refused.Status == http.StatusConflict ||
		errors.As(err, &closed) && closed.Code == codeConflict
}

func worthRetrying(err error) bool {
	var refused *DialError
	var closed *CloseError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.Is(err, ErrProtocol), errors.As(err, &cert):
		return false
	case errors.As(err, &refused):
		return refused.Status >= 500 || refused.Status == http.StatusTooManyRequests
	case errors.As(err, &closed):
		return closed.Code == websocket.CloseGoingAway || closed.Code == websocket.CloseNoStatusReceived ||
			closed.Code >= websocket.CloseInternalServerErr && closed.Code <= websocket.CloseTryAgainLater
	}
	return true
}

// connect makes a connection that goes on where the last one ended.
func (a *Attachment) connect() error {
	a.mu.Lock()
	o := a.dial
	a.mu.Unlock()
	o.Since = Since{Stdout: Position{At, a.next[Stdout]}, Stderr: Position{At, a.next[Stderr]}}
	ctx, cancel := context.WithTimeout(a.ctx, maxDial)
	defer cancel()
	c, err := Dial(ctx, o)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err = a.resumeLocked(c); err == nil && a.done {
		err = net.ErrClosed
	}
	if err != nil {
		c.Close()
		return err
	}
	a.c, a.hello = c, c.Hello()
	a.changedLocked()
	return nil
}

// resumeLocked sends again what the process has not taken.
func (a *Attachment) resumeLocked(c *Client) error {
	h := c.Hello()
	if !a.writer || !h.Writer {
		return nil
	}
	switch sent := a.base + int64(len(a.unacked)); {
	case h.StdinAccepted < a.base:
		return malformed("stdin was taken up to %d before, and up to %d now", a.base, h.StdinAccepted)
	case h.Interrupted:
		a.loseLocked()
		a.base = h.StdinAccepted
	case h.StdinAccepted > sent:
		return malformed("stdin was taken up to %d, but sent up to %d", h.StdinAccepted, sent)
	default:
		if h.StdinAccepted > a.base {
			a.pause = 0 // the last connection was of use
		}
		a.takenLocked(h.StdinAccepted)
	}
	if a.size != nil {
		if err := c.Resize(a.size[0], a.size[1]); err != nil {
			return err
		}
	}
	for rest := a.unacked; len(rest) > 0; {
		n := min(len(rest), MaxStdin)
		if err := c.sendStdin(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	if a.closing && !a.closed {
		return c.CloseStdin()
	}
	return nil
}

// Write sends p to stdin, waiting while too much of it has not been taken. What it
// accepts is sent again if a connection is lost. Errors: ErrNotWriter;
// syscall.EPIPE: stdin is closed; net.ErrClosed.
func (a *Attachment) Write(p []byte) (int, error) {
	a.imu.Lock()
	defer a.imu.Unlock()
	done := 0
	for done < len(p) {
		n, c, err := a.reserve(p[done:])
		if err != nil {
			return done, err
		}
		if c != nil && n > 0 && c.sendStdin(p[done:done+n]) != nil {
			c.Close() // Recv notices, and sends it again
		}
		done += n
	}
	return done, nil
}

// reserve keeps a first part of p until it is acknowledged, and returns its size
// and the connection to send it on.
func (a *Attachment) reserve(p []byte) (int, *Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		if err := a.inputErrorLocked(); err != nil {
			return 0, nil, err
		}
		if room := int(a.hello.StdinWindow) - len(a.unacked); room > 0 {
			n := min(room, len(p), MaxStdin)
			a.unacked = append(a.unacked, p[:n]...)
			return n, a.c, nil
		}
		moved := a.moved
		a.mu.Unlock()
		<-moved
		a.mu.Lock()
	}
}

func (a *Attachment) inputErrorLocked() error {
	switch {
	case a.done:
		return net.ErrClosed
	case !a.writer:
		return ErrNotWriter
	case a.closed || a.closing || !a.hello.HasStdin:
		return syscall.EPIPE
	}
	return nil
}

// CloseStdin ends stdin behind what was written.
func (a *Attachment) CloseStdin() error {
	a.imu.Lock()
	defer a.imu.Unlock()
	a.mu.Lock()
	if err := a.inputErrorLocked(); err != nil {
		a.mu.Unlock()
		return err
	}
	a.closing = true
	c := a.c
	a.mu.Unlock()
	if c.CloseStdin() != nil {
		c.Close()
	}
	return nil
}

// Resize sets the size of the terminal. The last size is set again on each new
// connection.
func (a *Attachment) Resize(rows, cols uint16) error {
	a.mu.Lock()
	a.size = &[2]uint16{rows, cols}
	c, writer := a.c, a.writer
	a.mu.Unlock()
	if !writer {
		return ErrNotWriter
	}
	c.Resize(rows, cols)
	return nil
}

// Signal sends a signal, 1 to 64, to the process, at most once: an error means that
// it was not sent.
func (a *Attachment) Signal(sig int) error {
	a.mu.Lock()
	c := a.c
	a.mu.Unlock()
	return c.Signal(sig)
}
