// Package client talks to a boxd daemon. It mirrors the HTTP API, one method for
// each thing that can be asked; it decides nothing and keeps nothing.
//
// Nothing is sent twice, with one exception that is safe: a request that net/http
// finds not to have reached the daemon, because a kept connection had been closed,
// and reading requests, which change nothing. A relay ([Client.Attach]) connects
// again by itself and goes on at its offset.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Options say where the daemon is and who asks. Exactly one of Socket and URL is
// set.
type Options struct {
	// Socket is the path of the daemon's Unix socket. Who asks is known by the
	// socket's peer credentials.
	Socket string
	// URL is that of a TCP listener: "http://127.0.0.1:5411" or "https://…".
	URL string
	// Token is sent as a bearer token if not empty.
	Token string
	// TLS is used for https; nil is the system's roots and no client certificate.
	TLS *tls.Config
	// Tenant is whose sessions are meant, for callers who may choose; empty: the
	// caller's own. "*" lists those of all tenants.
	Tenant string
}

// Client is safe for concurrent use.
type Client struct {
	base   string // without a trailing slash
	http   *http.Client
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	tls    *tls.Config
	header http.Header
}

// New returns a client. It does not connect before the first request.
func New(o Options) (*Client, error) {
	if (o.Socket == "") == (o.URL == "") {
		return nil, errors.New("client options: exactly one of Socket and URL must be set")
	}
	c := &Client{base: "http://boxd", header: http.Header{}, tls: o.TLS}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	c.dial = dialer.DialContext
	if o.Socket != "" {
		c.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", o.Socket)
		}
	} else {
		u, err := url.Parse(o.URL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("client options: URL %q: must be http://host:port or https://host:port", o.URL)
		}
		c.base = strings.TrimSuffix(o.URL, "/")
	}
	if o.Token != "" {
		c.header.Set("Authorization", "Bearer "+o.Token)
	}
	if o.Tenant != "" {
		c.header.Set("X-Boxd-Tenant", o.Tenant)
	}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:         c.dial,
		TLSClientConfig:     o.TLS,
		DisableCompression:  true,
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 256, // many small execs at once keep their connections
		// Below the daemon's 120 s, so that it is the client that closes an idle
		// connection and no request meets a closed one.
		IdleConnTimeout: 90 * time.Second,
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// Close closes kept connections. Requests under way go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }
