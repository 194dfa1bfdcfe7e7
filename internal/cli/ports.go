package cli

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/spf13/cobra"
)

func (a *App) newPorts() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "ports SESSION [flags]",
		Short: "Show on which ports programs of a session listen, and which are published",
		Long: `Show on which ports programs of a session listen in its box, and which ports of the host
lead to ports of the box (--publish). boxd forward makes a port of the box a local one; boxd
events reports ports that open and close.`,
		Args: exactly("SESSION"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				l, err := c.PortList(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printOne(&f.formatFlags, l, func(out screen) error { return writePorts(out, l) })
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

func writePorts(w screen, l apitypes.PortList) error {
	t := newTable(w, "PORT", "PROTOCOL", "ADDRESS", "PUBLISHED")
	published := map[int]string{}
	for _, p := range l.Published {
		published[p.Port] = publishedText(p)
	}
	shown := map[int]bool{}
	for _, p := range l.Ports {
		text := ""
		if p.Protocol == "tcp" || p.Protocol == "tcp6" {
			text, shown[p.Port] = published[p.Port], true
		}
		t.row(strconv.Itoa(p.Port), p.Protocol, p.Address, text)
	}
	for _, p := range l.Published {
		if !shown[p.Port] {
			t.row(strconv.Itoa(p.Port), "", "nothing listens", publishedText(p))
		}
	}
	return t.flush()
}

// publishedText says where a published port is open, or why it is not.
func publishedText(p apitypes.Published) string {
	at := net.JoinHostPort(p.Address, strconv.Itoa(p.Host))
	if p.Address == "" {
		at = fmt.Sprintf("port %d of the host", p.Host)
	}
	switch {
	case p.Reason != "":
		return at + " is closed: " + p.Reason
	case p.Connections > 0:
		return fmt.Sprintf("%s, %d open", at, p.Connections)
	}
	return at
}
