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
session ends. It listens on port LOCAL, by default PORT, of 127.0.0.1, or of the address HOST;
port 0, or none before the colon, is any free one. A line says when each is ready; --json prints
an object per line. Everyone who can connect to the local port reaches the session with the
rights of this command.

A connection to which nothing in the session listens is reset, and a message says why; so are
those while the daemon is restarted.`,
		Example: `  boxd forward lab 8080
  boxd forward lab 8080:80 :8888 '[::1]:5432:5432'`,
		Args: exactly("SESSION", "[LOCAL:]PORT..."),
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
	if _, err := c.Session(ctx, session); err != nil {
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
					cancel(err)
					return
				}
				a.say("boxd: port %d: %s", r.port, oneline.Error(err))
			})
			cancel(nil)
		})
	}
	running.Wait()
	if gone := context.Cause(ctx); client.IsCode(gone, apitypes.CodeSessionNotFound) {
		return gone
	}
	return errors.Join(errs...)
}
