package client

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/boxd/boxd/preview"
	"github.com/boxd/boxd/relay"
)

// AttachOptions control an attachment. With the zero value the client observes: it
// receives all output that is kept, and may not write.
type AttachOptions struct {
	// Write asks to be the writer, who may send input, signals and window sizes. A
	// process has at most one. TakeOver, with Write, displaces the current writer;
	// without it the daemon refuses with apitypes.CodeWriterTaken.
	Write, TakeOver bool
	// Since says where the output begins; the zero value means the oldest byte kept.
	Since relay.Since
	// ClientID identifies this client, so that its new connection replaces an old one
	// that the daemon has not yet noticed to be dead: 16 to 64 of a-z, A-Z, 0-9, "-"
	// and "_". Attach chooses a random ID if it is empty; a program that attaches
	// again after Close, as the writer, passes the same one each time.
	ClientID string
	// Await makes Attach itself keep trying while no daemon answers. Otherwise only
	// an attachment that was established reconnects. AttachOnce ignores it.
	Await bool
	// GiveUp is how long to try to connect or reconnect; 0 means forever.
	// AttachOnce ignores it.
	GiveUp time.Duration
	// Lost, if not nil, is called after each lost connection and each failed attempt
	// to reconnect, by the goroutine that is in Attach or Recv. AttachOnce ignores it.
	Lost func(err error)
}

// Attach connects to the streams of a managed process. The attachment reconnects when
// its connection is lost, also across restarts of the daemon, and then neither loses nor
// repeats a byte. It lives until ctx ends or it is closed; the process keeps running.
func (c *Client) Attach(ctx context.Context, session, process string, o AttachOptions) (*relay.Attachment, error) {
	d, err := c.dialOptions(session, process, o)
	if err != nil {
		return nil, err
	}
	r := relay.AttachOptions{DialOptions: d, Await: o.Await, GiveUp: o.GiveUp, Explain: attachError}
	if o.Lost != nil {
		r.Lost = func(err error) { o.Lost(attachError(err)) }
	}
	a, err := relay.Attach(ctx, r)
	return a, attachError(err)
}

// AttachOnce is Attach without reconnecting: when the connection is lost, Recv returns
// the error. ctx bounds only the connecting.
func (c *Client) AttachOnce(ctx context.Context, session, process string, o AttachOptions) (*relay.Client, error) {
	d, err := c.dialOptions(session, process, o)
	if err != nil {
		return nil, err
	}
	conn, err := relay.Dial(ctx, d)
	return conn, attachError(err)
}

// attachError returns the [*Error] with which the daemon refused, or else err.
func attachError(err error) error {
	var text string
	if refused, ok := errors.AsType[*relay.DialError](err); ok {
		text = refused.Text
	} else if refused, ok := errors.AsType[*preview.TunnelError](err); ok {
		text = refused.Text
	}
	e := &Error{}
	if json.Unmarshal([]byte(text), &e.Problem) == nil && e.Code != "" {
		return e
	}
	return err
}

func (c *Client) dialOptions(session, process string, o AttachOptions) (relay.DialOptions, error) {
	address, err := c.url(processPath(session, process, "relay"), nil)
	return relay.DialOptions{
		URL:      "ws" + strings.TrimPrefix(address, "http"),
		NetDial:  c.dial,
		TLS:      c.tls,
		Header:   c.header.Clone(),
		Write:    o.Write,
		TakeOver: o.TakeOver,
		Since:    o.Since,
		ClientID: o.ClientID,
	}, err
}
