package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

// firstConnection connects. With await it tries again while no relay answers.
func (a *Attachment) firstConnection(await bool) (*Client, error) {
	for since := time.Now(); ; {
		c, err := Dial(a.ctx, a.dial)
		switch {
		case err == nil || a.ctx.Err() != nil || !await || !isAbsent(err):
			return c, err
		case a.give > 0 && time.Since(since) > a.give:
			return nil, gaveUp(a.give, err)
		}
		a.lost(err)
		a.wait()
	}
}

// isAbsent reports whether err comes from a server that is stopped or starting. Any other
// error of a first connection may be a mistake in the address, which a retry cannot fix.
func isAbsent(err error) bool {
	var refused *DialError
	if errors.As(err, &refused) {
		return refused.Status == http.StatusBadGateway || refused.Status == http.StatusServiceUnavailable || refused.Status == http.StatusGatewayTimeout
	}
	for _, absent := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, fs.ErrNotExist, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, absent) {
			return true
		}
	}
	var closed *CloseError
	return errors.As(err, &closed) && worthRetrying(err)
}

func gaveUp(after time.Duration, err error) error {
	return fmt.Errorf("giving up after %v: %w", after, err)
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
			return gaveUp(a.give, err)
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
	return errors.As(err, &refused) && refused.WriterTaken ||
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

// connect makes a connection that continues where the last one ended.
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

// resumeLocked sends stdin again that the process has not accepted.
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
