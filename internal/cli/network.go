package cli

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newNet() *cobra.Command {
	var f remoteFlags
	var follow bool
	cmd := &cobra.Command{
		Use:   "net [flags] SESSION",
		Short: "Show the connections of a session's box, and what was refused",
		Long: `Show the connections of a session's box through its proxy: those that are open, then the
last 100 that have ended, newest first, and how often each destination was refused.
--follow goes on with what happens, one line each time a connection opens, ends or is
refused, until it is interrupted; with --json, after one object with all that, one object per line.`,
		Args: exactly("SESSION"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				var events *client.Events
				var tenant string
				if follow { // first, so that nothing happens between the table and the events
					s, err := c.Session(ctx, args[0])
					if err != nil {
						return err
					}
					tenant = s.Tenant
					if events, err = c.Events(ctx, ""); err != nil {
						return err
					}
					defer events.Close()
				}
				n, err := c.Network(ctx, args[0])
				if err != nil {
					return err
				}
				if err := a.printOne(&f.formatFlags, n, func(out screen) error { return writeNetwork(out, n) }); err != nil || !follow {
					return err
				}
				return a.followEvents(events, &f.formatFlags, false, func(e apitypes.Event) string {
					if e.Tenant != tenant || e.Session != args[0] || e.Type != "network-connection" {
						return ""
					}
					return connectionLine(e)
				})
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens until interrupted")
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

func writeNetwork(w screen, n apitypes.Network) error {
	t := newTable(w, "STARTED", "STATE", "DESTINATION", "ADDRESS", "IN", "OUT", "RULE", "REASON")
	row := func(state string, c apitypes.Connection) {
		host, _, err := net.SplitHostPort(c.Address)
		if err != nil {
			host = "-"
		}
		name := c.Name
		if name == "" {
			name = host
		}
		t.row(c.Start.Local().Format(time.DateTime), state, net.JoinHostPort(name, fmt.Sprint(c.Port)), host, spec.FormatSize(c.In), spec.FormatSize(c.Out), c.Rule, c.Reason)
	}
	for _, c := range n.Live {
		row("open", c)
	}
	for _, c := range n.Recent {
		row(map[bool]string{true: "ended", false: "denied"}[c.Allowed], c)
	}
	if err := t.flush(); err != nil || len(n.Denied) == 0 {
		return err
	}
	fmt.Fprintln(w)
	t = newTable(w, "REFUSED", "TIMES", "RULE")
	for _, d := range n.Denied {
		t.row(d.Kind+" "+d.What, strconv.FormatInt(d.Count, 10), d.Rule)
	}
	return t.flush()
}

// connectionLine formats an event about a connection for people: time, state and destination, then
// the rest.
func connectionLine(e apitypes.Event) string {
	detail := func(name string) string {
		if v := e.Details[name]; v != nil {
			return printable(detailText(v))
		}
		return ""
	}
	line := e.Time.Local().Format(time.DateTime) + " " + detail("state")
	if port := detail("port"); port != "" {
		line += " " + net.JoinHostPort(cmp.Or(detail("name"), detail("address"), "-"), port)
	}
	for _, name := range []string{"address", "in", "out", "seconds", "rule", "reason", "unreported"} {
		if v := detail(name); v != "" {
			line += " " + name + "=" + v
		}
	}
	return line
}
