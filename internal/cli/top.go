package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

// defaultInterval is the time between two refreshes of boxd top.
const defaultInterval = 2 * time.Second

func (a *App) newTop() *cobra.Command {
	var f remoteFlags
	var once bool
	interval := defaultInterval
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "Show the resource use of sessions, live",
		Long: `Show the resource use of all sessions, live, until the command is interrupted. This does
not count as use of a session. A figure that this host cannot measure is shown as "-".

--once prints the current figures and ends; processor time is then the total since the
box was created. --json prints one object per line and refresh.`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				return a.top(ctx, c, once, interval, &f.formatFlags)
			})
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print once and end")
	cmd.Flags().Var(durationValue(&interval, defaultInterval.String()), "interval", "time between refreshes: `DURATION`")
	f.registerFormat(cmd)
	f.register(cmd)
	completeFlag(cmd, "interval", "1s", "2s", "10s")
	return cmd
}

// sessionUse is the resource use of a session at a moment.
type sessionUse struct {
	Session string         `json:"session"`
	Tenant  string         `json:"tenant"`
	State   string         `json:"state"`
	Limits  limitsDoc      `json:"limits"`
	Usage   apitypes.Usage `json:"usage"`
	Percent *float64       `json:"cpu_percent,omitempty"` // of one processor, since the previous look
	procs   int
}

type limitsDoc struct {
	Memory apitypes.Size `json:"memory"`
	PIDs   int64         `json:"pids"`
	CPUs   float64       `json:"cpus"`
}

// look is the resource use of all sessions at a moment.
type look struct {
	Time     time.Time    `json:"time"`
	Sessions []sessionUse `json:"sessions"`
}

func (a *App) top(ctx context.Context, c *client.Client, once bool, interval time.Duration, f *formatFlags) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var before look
	for {
		now, err := lookAt(ctx, c, before)
		if err != nil {
			return err
		}
		err = printList(a, f, now, now.Sessions, func(s sessionUse) string { return s.Session }, func(out screen) error {
			if !once && out.terminal {
				fmt.Fprint(out, "\x1b[H\x1b[2J") // home, clear: ECMA-48
			}
			return writeLook(out, now)
		})
		if err != nil || once {
			return err
		}
		before = now
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func lookAt(ctx context.Context, c *client.Client, before look) (look, error) {
	now := look{Time: time.Now(), Sessions: []sessionUse{}}
	sessions, err := c.Sessions(ctx)
	if err != nil {
		return now, err
	}
	for _, s := range sessions {
		use := sessionUse{Session: s.ID, Tenant: s.Tenant, State: s.State, Limits: limitsDoc{s.Memory, s.PIDs, s.CPUs}, procs: s.Processes + s.Execs}
		// A session without a box uses nothing. That is no error.
		if u, err := c.Usage(ctx, s.ID); err == nil {
			use.Usage = u
		} else if ctx.Err() != nil {
			return now, ctx.Err()
		}
		use.Percent = percent(before, now.Time, use)
		now.Sessions = append(now.Sessions, use)
	}
	return now, nil
}

// percent returns the processor time that was used since the look before, or nil if that look
// does not have the session.
func percent(before look, at time.Time, use sessionUse) *float64 {
	for _, old := range before.Sessions {
		if old.Session != use.Session || old.Tenant != use.Tenant || old.Usage.CPU == nil || use.Usage.CPU == nil {
			continue
		}
		spent, passed := use.Usage.CPU.D()-old.Usage.CPU.D(), at.Sub(before.Time)
		if spent < 0 || passed <= 0 {
			return nil // the session has another box now
		}
		p := 100 * spent.Seconds() / passed.Seconds()
		return &p
	}
	return nil
}

func writeLook(w screen, l look) error {
	t := newTable(w, "SESSION", "STATE", "CPU", "CPU TIME", "MEMORY", "OF", "PIDS", "OF", "RUNNING")
	for _, s := range l.Sessions {
		cpu, spent, memory, pids := "", "", "", ""
		if s.Percent != nil {
			cpu = fmt.Sprintf("%.1f%%", *s.Percent)
		}
		if s.Usage.CPU != nil {
			spent = s.Usage.CPU.D().Round(time.Millisecond).String()
		}
		if s.Usage.Memory != nil {
			memory = spec.FormatSize(*s.Usage.Memory)
		}
		if s.Usage.PIDs != nil {
			pids = fmt.Sprint(*s.Usage.PIDs)
		}
		t.row(s.Session, s.State, cpu, spent, memory, spec.FormatSize(int64(s.Limits.Memory)), pids, limitText(s.Limits.PIDs, plainCount), fmt.Sprint(s.procs))
	}
	return t.flush()
}
