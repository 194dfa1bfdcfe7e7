package relay

import (
	"context"
	"crypto/rand"
	"io"
	"sync"
	"time"
)

// AttachOptions say what to attach to, and how an [Attachment] behaves when its
// connection is lost. TakeOver applies to the first connection only. An empty ClientID is
// replaced by a random one.
type AttachOptions struct {
	DialOptions
	// Await makes Attach itself retry while no relay answers, for example because the
	// daemon is starting. Without it only an established attachment reconnects.
	Await bool
	// GiveUp is how long to try to connect or reconnect; 0 means without end.
	GiveUp time.Duration
	// Lost, if not nil, is called after each lost connection and each failed attempt, by
	// the goroutine that is in Attach or Recv.
	Lost func(err error)
	// Explain, if not nil, replaces the final error of Recv.
	Explain func(err error) error
}

// Pauses between attempts to connect.
const (
	minPause = 20 * time.Millisecond
	maxPause = time.Second
	// maxDial bounds one attempt.
	maxDial = 30 * time.Second
)

// Attachment is a client that reconnects when its connection is lost, so that its user
// sees every byte of output, and the process every byte of stdin, exactly once. If that
// is impossible, Recv reports a [Gap] or a [StdinLost].
//
// One goroutine must call Recv in a loop, because Recv notices and replaces a lost
// connection. The other methods are safe for concurrent use.
type Attachment struct {
	ctx     context.Context
	cancel  context.CancelFunc
	giveUp  time.Duration
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
	unacked []byte // stdin that the process may not have accepted
	closing bool   // stdin ends after unacked
	closed  bool   // stdin is closed
	size    *[2]uint16
	done    bool
	moved   chan struct{} // closed and replaced when one of these changes
}

// Attach connects to a relay. Its errors are those of [Dial]. ctx bounds the life of the
// attachment, not only the connecting.
func Attach(ctx context.Context, o AttachOptions) (*Attachment, error) {
	if o.ClientID == "" {
		o.ClientID = rand.Text()
	}
	a := &Attachment{giveUp: o.GiveUp, lost: o.Lost, explain: o.Explain, dial: o.DialOptions, moved: make(chan struct{})}
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

// Hello returns the Hello of the latest connection.
func (a *Attachment) Hello() Hello {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hello
}

// Close ends the attachment; the process keeps running. Stdin that was not acknowledged
// may be lost.
func (a *Attachment) Close() error {
	a.cancel()
	a.drop()
	return nil
}

// drop closes the connection, and wakes everything that waits.
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

// Recv waits for the next event, reconnecting as needed. It acknowledges the output of
// the previous event. io.EOF follows Exited; net.ErrClosed means that the attachment was
// closed; any other error says why reconnecting is pointless. Errors are final.
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

// note keeps the state that the next connection needs.
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

// takenLocked forgets stdin below offset to, which the process has accepted.
func (a *Attachment) takenLocked(to int64) {
	n := copy(a.unacked, a.unacked[to-a.base:])
	a.unacked, a.base = a.unacked[:n], to
}

// demoteLocked makes the attachment an observer, also on later connections.
func (a *Attachment) demoteLocked() {
	a.writer, a.dial.Write = false, false
	a.loseLocked()
}

// loseLocked gives up stdin of which it is unknown whether the process accepted it.
func (a *Attachment) loseLocked() {
	if len(a.unacked) > 0 {
		a.events = append(a.events, StdinLost{Bytes: int64(len(a.unacked))})
	}
	a.unacked = nil
	a.changedLocked()
}
