package relay

import (
	"context"
	"crypto/rand"
	"io"
	"sync"
	"time"
)

// AttachOptions say what to attach to, and how an Attachment behaves when its
// connection is lost. TakeOver is for the first connection only; an empty ClientID
// becomes a random one.
type AttachOptions struct {
	DialOptions
	// Await says that Attach itself tries again while no relay answers, as it does not
	// while a daemon is being started.
	Await bool
	// GiveUp is how long to try to get a connection; zero is for ever.
	GiveUp time.Duration
	// Lost, if not nil, is told of each lost connection and each attempt in vain, by
	// the goroutine that is in Attach or Recv.
	Lost func(err error)
	// Explain, if not nil, is what Recv returns in place of its last error.
	Explain func(err error) error
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
	ctx     context.Context
	cancel  context.CancelFunc
	give    time.Duration
	lost    func(error)
	explain func(error) error

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
	a := &Attachment{give: o.GiveUp, lost: o.Lost, explain: o.Explain, dial: o.DialOptions, moved: make(chan struct{})}
	if a.lost == nil {
		a.lost = func(error) {}
	}
	if a.explain == nil {
		a.explain = func(err error) error { return err }
	}
	a.ctx, a.cancel = context.WithCancel(ctx)
	c, err := a.firstConnection(o.Await)
	if err != nil {
		a.cancel()
		return nil, err
	}
	h := c.Hello()
	a.c, a.hello, a.writer, a.base = c, h, h.Writer, h.StdinAccepted
	a.next = [3]int64{Stdout: h.Stdout.Start, Stderr: h.Stderr.Start}
	a.dial.TakeOver = false
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
			a.fail = a.explain(err)
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
