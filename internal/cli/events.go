package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/spf13/cobra"
)

func (a *App) newEvents() *cobra.Command {
	var f remoteFlags
	var since uint64
	cmd := &cobra.Command{
		Use:   "events [flags]",
		Short: "Print events of sessions and processes as they happen",
		Long: `Print events of sessions and processes as they happen, until the command is
interrupted or the daemon ends. --json prints one object per line.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			last := ""
			if cmd.Flags().Changed("since") {
				last = strconv.FormatUint(max(since, 1), 10)
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error { return a.events(ctx, c, last, &f.formatFlags) })
		},
	}
	cmd.Flags().Uint64Var(&since, "since", 0, "start after the event with this `ID`, if later events are still kept; 0: with the oldest kept (default: now)")
	completeFlag(cmd, "since")
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

// fromOldest is an ID before that of every event. 0 would mean no ID.
const fromOldest = "1"

func (a *App) events(ctx context.Context, c *client.Client, last string, f *formatFlags) error {
	stream, err := c.Events(ctx, last)
	if err != nil {
		return err
	}
	defer stream.Close()
	return a.followEvents(stream, f, last == fromOldest, eventLine)
}

// followEvents prints events until the stream ends. line formats one for people; empty: it is not
// wanted. With kept, followEvents is silent about events that are no longer kept.
func (a *App) followEvents(stream *client.Events, f *formatFlags, kept bool, line func(apitypes.Event) string) error {
	for {
		e, err := stream.Next()
		if missed, ok := errors.AsType[*client.MissedError](err); ok {
			if !kept || missed.Missed > 0 {
				a.say("boxd: %s", missed)
			}
			continue
		}
		switch {
		case err == io.EOF:
			err = errors.New("the daemon ended the event stream")
		case err != nil || line(e) == "":
		default:
			err = a.printOne(f, e, func(out screen) error {
				_, err := fmt.Fprintln(out, line(e))
				return err
			})
		}
		if err != nil {
			return err
		}
	}
}

// eventLine formats an event for people.
func eventLine(e apitypes.Event) string {
	line := e.Time.Local().Format(time.DateTime) + " " + e.Type
	for _, part := range []struct{ name, value string }{
		{"tenant", e.Tenant}, {"session", e.Session}, {"process", e.Process}, {"box", e.Box},
	} {
		if part.value != "" {
			line += " " + part.name + "=" + printable(part.value)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(e.Details)) {
		line += " " + key + "=" + printable(detailText(e.Details[key]))
	}
	return line
}

// detailText formats a value that was decoded from JSON, large numbers without an exponent.
func detailText(v any) string {
	if n, ok := v.(float64); ok {
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}
