package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/preview"
	"github.com/spf13/cobra"
)

func (a *App) newForward() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "forward SESSION [[HOST:]LOCAL:]PORT... [flags]",
		Short: "Forward local TCP ports to ports of a session",
		Long: `Forward local TCP ports to ports of a session until the command is interrupted or the
session is removed or expires, which is an error. It listens on port LOCAL, by default PORT, of 127.0.0.1, or of the address HOST;
port 0, or none before the colon, is any free one. A line says when each is ready; --json prints
an object per line. Everyone who can connect to the local port reaches the session with the
rights of this command.

A connection to which nothing in the session listens is reset, and a message says why; so are
those while the daemon is restarted.`,
		Example: `  boxd forward lab 8080
  boxd forward lab 8080:80 :8888 '[::1]:5432:5432'`,
		Args: exactly("SESSION", "[[HOST:]LOCAL:]PORT..."),
		RunE: func(_ *cobra.Command, args []string) error {
			routes := make([]forwarding, len(args)-1)
			for i, arg := range args[1:] {
				var err error
				if routes[i], err = parseForwarding(arg); err != nil {
					return err
				}
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error { return a.forward(ctx, c, args[0], routes, f.json) })
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	f.register(cmd)
	return cmd
}

// forwarding is a local address and the port of a session that it leads to.
type forwarding struct {
	address string
	port    int
}

// parseForwarding reads [[HOST:]LOCAL:]PORT.
func parseForwarding(s string) (forwarding, error) {
	bad := &engine.FieldError{Field: "[[HOST:]LOCAL:]PORT", Value: spec.Quote(s), Rule: "must be a port, or two with a colon between them, after an address and a colon if it is not 127.0.0.1; an IPv6 address needs brackets"}
	host, local, remote := "127.0.0.1", s, s
	if cut := strings.LastIndexByte(s, ':'); cut >= 0 {
		local, remote = cmp.Or(s[:cut], "0"), s[cut+1:]
	}
	if strings.Contains(local, ":") {
		var err error
		if host, local, err = net.SplitHostPort(local); err != nil || host == "" { // "" would be all addresses
			return forwarding{}, bad
		}
	}
	_, err := strconv.ParseUint(local, 10, 16)
	port, err2 := strconv.ParseUint(remote, 10, 16)
	if err != nil || err2 != nil || port == 0 {
		return forwarding{}, bad
	}
	return forwarding{net.JoinHostPort(host, local), int(port)}, spec.CheckBoxPort("PORT", int(port))
}

// forwardLine is a line of boxd forward --json.
type forwardLine struct {
	Session string `json:"session"`
	Port    int    `json:"port"`
	Address string `json:"address"` // with the local port
}

// forward listens on all addresses, or on none, and forwards until ctx or the session ends or one
// fails.
func (a *App) forward(ctx context.Context, c *client.Client, session string, routes []forwarding, asJSON bool) error {
	s, err := c.Session(ctx, session)
	if err != nil {
		return err
	}
	listeners := make([]net.Listener, len(routes))
	for i, r := range routes {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", r.address)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w: choose another port, or 0 for any free one", err)
		}
		if err != nil {
			return fmt.Errorf("forwarding port %d: %w", r.port, err)
		}
		defer l.Close()
		listeners[i] = l
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(routes))
	var running sync.WaitGroup
	for i, r := range routes {
		at := listeners[i].Addr().(*net.TCPAddr)
		var err error
		if asJSON {
			err = writeJSON(a.Stdout, forwardLine{session, r.port, at.String()})
		} else {
			_, err = fmt.Fprintf(a.Stdout, "%s leads to port %d of session %s\n", at, r.port, session)
		}
		if err != nil {
			cancel(nil)
			running.Wait()
			return err
		}
		if !at.IP.IsLoopback() {
			a.say("boxd: %s is open to other hosts: whoever connects to it reaches the session", at)
		}
		running.Go(func() {
			errs[i] = preview.Forward(ctx, listeners[i], func(ctx context.Context) (*preview.Tunnel, error) {
				return c.Tunnel(ctx, session, r.port)
			}, func(err error) {
				if client.IsCode(err, apitypes.CodeSessionNotFound) {
					cancel(sessionEnded(session, ""))
					return
				}
				a.say("boxd: port %d: %s", r.port, oneline.Error(err))
			})
			cancel(nil)
		})
	}
	running.Go(func() {
		if ended := awaitEnd(ctx, c, s); ended != nil {
			cancel(ended)
		}
	})
	running.Wait()
	if ended, ok := errors.AsType[*endedError](context.Cause(ctx)); ok {
		return ended
	}
	return errors.Join(errs...)
}

// watchPause is how long awaitEnd waits for a daemon that does not answer before it asks again.
const watchPause = time.Second

// awaitEnd waits for the event that s was removed or has expired, and returns an *endedError, or nil if
// ctx ends first. It goes on with the next daemon when one ends.
func awaitEnd(ctx context.Context, c *client.Client, s apitypes.Session) error {
	for ctx.Err() == nil {
		if ended := watchEnd(ctx, c, s); ended != nil {
			return ended
		}
		select {
		case <-time.After(watchPause):
		case <-ctx.Done():
		}
	}
	return nil
}

// watchEnd is awaitEnd for one subscription. It returns nil if events cannot be had any more, or some
// were missed.
func watchEnd(ctx context.Context, c *client.Client, s apitypes.Session) error {
	events, err := c.Events(ctx, "")
	if err != nil {
		return nil
	}
	defer events.Close()
	// Asked after the subscription, so that an end in between is not missed.
	if _, err := c.Session(ctx, s.ID); client.IsCode(err, apitypes.CodeSessionNotFound) {
		return sessionEnded(s.ID, "")
	}
	for {
		e, err := events.Next()
		if err != nil {
			return nil
		}
		if e.Tenant == s.Tenant && e.Session == s.ID && (e.Type == "removed" || e.Type == "expired") {
			return sessionEnded(s.ID, e.Type)
		}
	}
}

// endedError says that a session is gone.
type endedError struct{ text string }

func (e *endedError) Error() string { return e.text }

// sessionEnded returns the error for a session that is gone. how is the type of the last event, "" if it
// was not seen.
func sessionEnded(session, how string) error {
	text := map[string]string{"removed": "it was removed", "expired": "it expired"}[how]
	return &endedError{fmt.Sprintf("session %s has ended: %s", spec.Quote(session), cmp.Or(text, "it was removed or expired"))}
}
