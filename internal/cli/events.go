package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/spf13/cobra"
)

func (a *App) newEvents() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "events [flags]",
		Short: "Print what happens to sessions and processes, as it happens",
		Long: `Print what happens to sessions and processes, as it happens, until it is
interrupted or the daemon ends. --json prints one object a line.`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error { return a.events(ctx, c, f.json) })
		},
	}
	f.register(cmd)
	return cmd
}

func (a *App) events(ctx context.Context, c *client.Client, asJSON bool) error {
	stream, err := c.Events(ctx, "")
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		e, err := stream.Next()
		if missed, ok := errors.AsType[*client.MissedError](err); ok {
			a.say("boxd: %s", missed)
			continue
		}
		switch {
		case err == io.EOF:
			err = errors.New("the daemon has ended the stream of events")
		case err != nil:
		case asJSON:
			err = writeJSON(a.Stdout, e)
		default:
			_, err = fmt.Fprintln(a.Stdout, eventLine(e))
		}
		if err != nil {
			return err
		}
	}
}

// eventLine is an event for people.
func eventLine(e apitypes.Event) string {
	line := e.Time.Local().Format(time.TimeOnly) + " " + e.Type
	for _, part := range []struct{ name, value string }{
		{"tenant", e.Tenant}, {"session", e.Session}, {"process", e.Process}, {"box", e.Box},
	} {
		if part.value != "" {
			line += " " + part.name + "=" + printable(part.value)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(e.Details)) {
		line += " " + key + "=" + printable(fmt.Sprint(e.Details[key]))
	}
	return line
}
