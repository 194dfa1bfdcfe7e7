package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newStatus() *cobra.Command {
	var f remoteFlags
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show whether the daemon can serve, and what it is running",
		Long: `Show whether the daemon can serve, and what it is running.

Exit status: 0 if daemon and engine can serve, 1 if not, 125 if the daemon does not
answer within 20s. --wait gives both that much time to start first.`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				s, err := awaitStatus(ctx, c, wait, answerPatience)
				if err != nil {
					return err
				}
				err = a.printOne(&f.formatFlags, s, func(out screen) error { return writeStatus(out, s) })
				if err == nil && !s.Available {
					err = &statusError{status: statusUnwell}
				}
				return err
			})
		},
	}
	cmd.Flags().Var(durationValue(&wait, ""), "wait", "wait up to `DURATION` for a daemon that is starting")
	completeFlag(cmd, "wait")
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

// statusPause is the time between two requests for the status.
const statusPause = 20 * time.Millisecond

// awaitStatus asks for the status until the daemon can serve, or wait has passed. Then the daemon has patience to answer.
func awaitStatus(ctx context.Context, c *client.Client, wait, patience time.Duration) (s apitypes.Status, err error) {
	deadline := time.Now().Add(wait)
	err = patiently(ctx, wait+patience, func(ctx context.Context) error {
		for {
			s, err = c.Status(ctx)
			up := err == nil && s.Available
			// Any other error is retried: a dying daemon resets connections that it has not accepted.
			_, answered := errors.AsType[*client.Error](err)
			if up || answered || !time.Now().Before(deadline) {
				return err
			}
			select {
			case <-time.After(statusPause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	return s, err
}

func writeStatus(w screen, s apitypes.Status) error {
	state := "yes"
	if !s.Available {
		state = "no" + reason(s.Reason)
	}
	t := newTable(w, "available", state)
	t.row("version", s.Version)
	t.row("uptime", short(s.Uptime.D()))
	for _, name := range slices.Sorted(maps.Keys(s.Sessions)) {
		t.row("sessions "+name, fmt.Sprint(s.Sessions[name]))
	}
	for _, e := range s.Engines {
		text := "available"
		if !e.Available {
			text = "not available" + reason(e.Reason)
		}
		if e.Runtime != "" {
			text += " (" + e.Runtime + ")"
		}
		t.row("engine "+e.Engine+" "+e.Isolation, text)
		for _, d := range s.Capabilities {
			if e.Available && d.Engine == e.Engine && d.Isolation == e.Isolation {
				t.row("  differs in "+d.Capability, d.Instead)
			}
		}
	}
	if p := s.Pool; p != nil {
		misses := int64(0)
		for _, n := range p.Misses {
			misses += n
		}
		t.row("pool", fmt.Sprintf("%d boxes ready, %d wanted, at most %d; %d taken, %d built on request", p.Ready, p.Wanted, p.Limit, p.Hits, misses))
	}
	t.row("processes", fmt.Sprint(s.Processes))
	t.row("commands", fmt.Sprint(s.Execs))
	for _, warning := range s.Warnings {
		t.row("warning", warning)
	}
	for _, h := range s.Webhooks {
		t.row("webhook "+h.Name, webhookText(&h))
	}
	if s.Audit != nil {
		t.row("audit", auditText(s.Audit))
	}
	for _, q := range s.Quota {
		t.row("quota "+q.Scope+" "+q.Name, quotaText(q))
	}
	return t.flush()
}

func webhookText(h *apitypes.WebhookState) string {
	text := fmt.Sprintf("%s: %d delivered, %d pending", h.Host, h.Delivered, h.Pending)
	if h.Dropped > 0 {
		text += fmt.Sprintf(", %d dropped", h.Dropped)
	}
	return text + reason(h.Error)
}

func auditText(h *apitypes.AuditHead) string {
	if !h.OK {
		return "cannot be written" + reason(h.Reason)
	}
	return fmt.Sprintf("%s, %.12s", counted(h.Seq, "entry", "entries"), h.Hash)
}

func quotaText(q apitypes.QuotaUse) string {
	format := func(n float64) string { return fmt.Sprint(n) }
	if q.Name == "memory" || q.Name == "workspace_bytes" || q.Name == "volume_bytes" {
		format = func(n float64) string { return spec.FormatSize(int64(n)) }
	}
	if q.Limit < 0 {
		return format(q.InUse) + ", no limit"
	}
	return format(q.InUse) + " of " + format(q.Limit)
}

// counted returns n with the word that goes with it.
func counted[N int | int64 | uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
