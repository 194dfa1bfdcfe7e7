package client

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/boxd/boxd/relay"
)

// AttachOptions say how to attach to a managed process.
type AttachOptions struct {
	// Write asks to be the writer; TakeOver to become it in place of another.
	Write, TakeOver bool
	// Since says where the streams begin; the zero value is the oldest bytes kept.
	Since relay.Since
	// ClientID names the client across its connections; see [relay.DialOptions].
	ClientID string
	// Await says that Attach tries again while no daemon answers.
	Await bool
	// GiveUp is how long to try to get a connection; zero is for ever.
	GiveUp time.Duration
	// Lost, if not nil, is told of each lost connection and each attempt in vain.
	Lost func(err error)
}

// Attach connects to the relay of a managed process. It connects again by itself,
// without losing or repeating a byte, until ctx ends.
func (c *Client) Attach(ctx context.Context, session, id string, o AttachOptions) (*relay.Attachment, error) {
	d, err := c.dialOptions(session, id, o)
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

// AttachOnce connects to the relay of a managed process, once.
func (c *Client) AttachOnce(ctx context.Context, session, id string, o AttachOptions) (*relay.Client, error) {
	d, err := c.dialOptions(session, id, o)
	if err != nil {
		return nil, err
	}
	conn, err := relay.Dial(ctx, d)
	return conn, attachError(err)
}

// attachError is err, or the [*Error] that the daemon refused with.
func attachError(err error) error {
	var refused *relay.DialError
	if errors.As(err, &refused) {
		e := &Error{}
		if json.Unmarshal([]byte(refused.Text), &e.Problem) == nil && e.Code != "" {
			return e
		}
	}
	return err
}

func (c *Client) dialOptions(session, id string, o AttachOptions) (relay.DialOptions, error) {
	address, err := c.url(processPath(session, id, "relay"), nil)
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
