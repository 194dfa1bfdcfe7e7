package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/spf13/cobra"
)

func (a *App) newPrune() *cobra.Command {
	var f remoteFlags
	var dryRun bool
	var idle time.Duration
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Remove ended processes and unused sessions",
		Long: `Remove managed processes that have ended, with their kept output.

With --idle, sessions are removed as well in which nothing runs and which were not used
for that long, including persistent ones. A session's workspace is removed with it if
boxd created it.

--dry-run only prints what would be removed. Exit status: 125 if something could not be
removed; the rest is removed anyway.`,
		Example: `  boxd prune --dry-run
  boxd prune --idle 24h`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				garbage, err := findGarbage(ctx, c, idle)
				if err != nil {
					return err
				}
				return a.prune(ctx, c, garbage, dryRun, f.json)
			})
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be removed")
	cmd.Flags().Var(durationValue(&idle, ""), "idle", "also remove sessions not used for `DURATION`")
	f.register(cmd)
	completeFlag(cmd, "idle", "1h", "24h")
	return cmd
}

// garbage is something to remove: a session, or a process of one.
type garbage struct {
	Session string `json:"session"`
	Process string `json:"process,omitempty"`
	idle    time.Duration
}

func (g garbage) String() string {
	if g.Process == "" {
		return "session " + printable(g.Session)
	}
	return "process " + printable(g.Session) + " " + printable(g.Process)
}

// findGarbage lists the sessions that have been idle for at least idle, unless that is 0, and the
// ended processes of the other sessions.
func findGarbage(ctx context.Context, c *client.Client, idle time.Duration) (list []garbage, err error) {
	sessions, err := c.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range sessions {
		if isIdle(s, idle) {
			list = append(list, garbage{Session: s.ID, idle: idle})
			continue
		}
		processes, err := c.Processes(ctx, s.ID)
		if client.IsCode(err, apitypes.CodeSessionNotFound) {
			continue // it ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		for _, p := range processes {
			if hasEnded(p) {
				list = append(list, garbage{Session: s.ID, Process: p.ID})
			}
		}
	}
	return list, nil
}

func isIdle(s apitypes.Session, idle time.Duration) bool {
	return idle > 0 && s.Processes == 0 && s.Execs == 0 && time.Since(s.LastUsedAt) >= idle
}

// prune removes list. If one cannot be removed, the others still are.
func (a *App) prune(ctx context.Context, c *client.Client, list []garbage, dryRun, asJSON bool) error {
	bar := a.newProgress("removing", int64(len(list)), plainCount)
	defer bar.end()
	failed := 0
	removed := []garbage{}
	for _, g := range list {
		still := true
		if !dryRun {
			var err error
			if still, err = g.remove(ctx, c); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				failed++
				bar.pause(func() { a.say("boxd: %s: %s", g, oneline.Error(err)) })
				continue
			}
		}
		bar.add(1)
		if still {
			removed = append(removed, g)
		}
		if still && !asJSON {
			verb := map[bool]string{true: "would remove ", false: "removed "}[dryRun]
			bar.pause(func() { fmt.Fprintln(a.Stdout, verb+g.String()) })
		}
	}
	if asJSON {
		if err := writeJSON(a.Stdout, map[string]any{"dry_run": dryRun, "removed": removed, "failed": failed}); err != nil {
			return err
		}
	}
	if failed > 0 {
		return &statusError{status: statusFailed}
	}
	return nil
}

// remove checks again first: a session that is now in use stays, and so does a process that was
// started again under the same ID. It reports whether it removed something.
func (g garbage) remove(ctx context.Context, c *client.Client) (bool, error) {
	if g.Process == "" {
		s, err := c.Session(ctx, g.Session)
		if err == nil && !isIdle(s, g.idle) {
			return false, nil
		}
		if err == nil {
			err = c.Remove(ctx, g.Session)
		}
		return err == nil, ignoreGone(err)
	}
	p, err := c.Process(ctx, g.Session, g.Process)
	if err == nil && !hasEnded(p) {
		return false, nil
	}
	if err == nil {
		err = c.RemoveProcess(ctx, g.Session, g.Process)
	}
	return err == nil, ignoreGone(err)
}

// ignoreGone returns err, or nil if err says that there is nothing to remove.
func ignoreGone(err error) error {
	if client.IsCode(err, apitypes.CodeSessionNotFound) || client.IsCode(err, apitypes.CodeProcessNotFound) {
		return nil
	}
	return err
}
