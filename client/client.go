// Package client is the Go client of the boxd daemon. Each method is one request of the
// HTTP API, with the types of package apitypes; docs/api.md describes what they mean.
//
//	c, err := client.New(client.Options{Socket: "/run/boxd/boxd.sock"})
//	...
//	result, err := c.Exec(ctx, "demo", apitypes.ExecRequest{
//		Shell:   "python3 job.py",
//		Session: &apitypes.SessionSpec{}, // create the session if it does not exist
//	})
//	fmt.Println(result.Verdict, result.Stdout)
//
// A session is a box with a workspace that the daemon keeps between commands. A managed
// process of a session keeps running when its client disconnects ([Client.Start],
// [Client.Attach]). Parameters called session and process are their IDs.
//
// The client makes no decisions and keeps no state but idle connections. To build
// boxes without a daemon, use package engine and engine/native.
//
// # Errors
//
// If the daemon answers with an error, that is an [*Error]; test its code with [IsCode]. A
// command that exits with a status other than 0, or is killed by a limit, is not an
// error: the result says so. All other errors come from the network, from ctx, or from
// an answer that is not the daemon's.
//
// # Retries
//
// The client does not retry, except as package net/http does: it resends a request if a
// kept connection turns out to be closed, and then only a request that never reached the
// daemon or that changes nothing. [Client.Attach] reconnects by itself and continues at
// its offset.
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

// Options say where the daemon is and how to authenticate. Exactly one of Socket, URL and
// Dial must be set.
type Options struct {
	// Socket is the path of the daemon's Unix socket. The daemon identifies the caller
	// by the user of this process.
	Socket string
	// URL is the address of a TCP listener: "http://127.0.0.1:5411" or "https://…".
	URL string
	// Dial connects to the daemon in another way.
	Dial func(ctx context.Context) (net.Conn, error)
	// Token, if not empty, is sent as a bearer token.
	Token string
	// TLS configures https. Nil means the system's root certificates and no client
	// certificate.
	TLS *tls.Config
	// Tenant selects the tenant, for callers who may act for others. Empty means the
	// caller's own; "*" means all tenants in Sessions, Events and Status.
	Tenant string
}

// Client talks to one daemon. It is safe for concurrent use.
type Client struct {
	base   string // without a trailing slash
	http   *http.Client
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	tls    *tls.Config
	header http.Header
}

// New returns a client. It does not connect before the first request, which therefore is
// the first to fail if the address is wrong. Close the client when it is no longer needed.
func New(o Options) (*Client, error) {
	ways := 0
	for _, set := range []bool{o.Socket != "", o.URL != "", o.Dial != nil} {
		if set {
			ways++
		}
	}
	if ways != 1 {
		return nil, errors.New("client options: exactly one of Socket, URL and Dial must be set")
	}
	c := &Client{base: "http://boxd", header: http.Header{}, tls: o.TLS}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	c.dial = dialer.DialContext
	if o.Dial != nil {
		c.dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Dial(ctx) }
	} else if o.Socket != "" {
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
		// Below the daemon's 120 s, so that the client closes an idle connection first
		// and no request meets a closed one.
		IdleConnTimeout: 90 * time.Second,
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// Close closes idle connections. Requests in progress continue, and so do attachments.
func (c *Client) Close() { c.http.CloseIdleConnections() }
