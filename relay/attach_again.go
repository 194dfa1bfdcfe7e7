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
	"slices"
	"syscall"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/wsconn"
)

// firstConnection connects. With await it retries while no relay answers.
func (a *Attachment) firstConnection(await bool) (*Client, error) {
	for since := time.Now(); ; {
		c, err := Dial(a.ctx, a.dial)
		switch {
		case err == nil || a.ctx.Err() != nil || !await || !isAbsent(err):
			return c, err
		case a.giveUp > 0 && time.Since(since) > a.giveUp:
			return nil, gaveUp(a.giveUp, err)
		}
		a.lost(err)
		a.wait(err)
	}
}

// isAbsent reports whether err comes from a server that is stopped or starting. Any other
// error of a first connection may be a mistake in the address, which a retry cannot fix.
func isAbsent(err error) bool {
	if refused, ok := errors.AsType[*DialError](err); ok {
		return refused.Status == http.StatusBadGateway || refused.Status == http.StatusServiceUnavailable || refused.Status == http.StatusGatewayTimeout
	}
	if _, closed := errors.AsType[*CloseError](err); closed {
		return worthRetrying(err)
	}
	absent := []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, fs.ErrNotExist, io.EOF, io.ErrUnexpectedEOF}
	return slices.ContainsFunc(absent, func(e error) bool { return errors.Is(err, e) })
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
		case a.giveUp > 0 && time.Since(since) > a.giveUp:
			return gaveUp(a.giveUp, err)
		}
		a.lost(err)
		a.wait(err)
		if err = a.connect(); err == nil {
			return nil
		}
	}
}

// wait pauses before the next attempt, except before the first one, and at least as long as err asks
// for. The pause is partly random, so that many clients do not reconnect at the same moment.
func (a *Attachment) wait(err error) {
	pause := a.pause
	a.pause = min(max(2*pause, minPause), maxPause)
	if pause > 0 {
		pause = pause/2 + mathrand.N(pause/2)
	}
	if refused, ok := errors.AsType[*DialError](err); ok {
		pause = max(pause, refused.RetryAfter)
	}
	if pause > 0 {
		wsconn.Within(pause, a.ctx.Done())
	}
}

func isConflict(err error) bool {
	refused, _ := errors.AsType[*DialError](err)
	closed, _ := errors.AsType[*CloseError](err)
	return refused != nil && refused.WriterTaken || closed != nil && closed.Code == codeConflict
}

func worthRetrying(err error) bool {
	refused, _ := errors.AsType[*DialError](err)
	closed, _ := errors.AsType[*CloseError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case errors.Is(err, ErrProtocol), untrusted:
		return false
	case refused != nil:
		return refused.Status >= 500 || refused.Status == http.StatusTooManyRequests
	case closed != nil:
		return closed.Code == websocket.CloseGoingAway || closed.Code == websocket.CloseNoStatusReceived ||
			closed.Code >= websocket.CloseInternalServerErr && closed.Code <= websocket.CloseTryAgainLater
	}
	return true
}

// connect makes a connection that continues where the previous one ended.
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

// resumeLocked sends the stdin again that the process has not accepted.
func (a *Attachment) resumeLocked(c *Client) error {
	h := c.Hello()
	if !a.writer || !h.Writer {
		return nil
	}
	switch sent := a.base + int64(len(a.unacked)); {
	case h.StdinAccepted < a.base:
		return malformed("stdin was accepted up to %d before, and up to %d now", a.base, h.StdinAccepted)
	case h.Interrupted:
		a.loseLocked()
		a.base = h.StdinAccepted
	case h.StdinAccepted > sent:
		return malformed("stdin was accepted up to %d, but sent up to %d", h.StdinAccepted, sent)
	default:
		if h.StdinAccepted > a.base {
			a.pause = 0 // the previous connection made progress
		}
		a.takenLocked(h.StdinAccepted)
	}
	if a.size != nil {
		if err := c.Resize(a.size[0], a.size[1]); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(a.unacked, MaxStdin) {
		if err := c.sendStdin(part); err != nil {
			return err
		}
	}
	if a.closing && !a.closed {
		return c.CloseStdin()
	}
	return nil
}
