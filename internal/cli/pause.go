package cli

import (
	"context"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newPause() *cobra.Command {
	var reclaim bool
	cmd := a.pauseCommand("pause", "Stop everything that runs in sessions, until they are resumed", `Stop everything that runs in sessions, until boxd resume.

Commands and processes execute nothing, and keep their memory and files. Timeouts
and the idle time of the session stand still, its lifetime does not. What needs a
new command is refused, or resumes the session if that has auto_resume.

--reclaim also gives memory of the session to the host, which needs swap, cgroup v2
and Linux 5.19. It comes back when it is used.

A paused session can be changed and removed, and its processes can be stopped. A
pause outlives the daemon. Pausing a paused session does nothing.`, func(c *client.Client, ctx context.Context, session string) (apitypes.Session, error) {
		if !reclaim {
			return c.Pause(ctx, session)
		}
		s, err := c.PauseReclaim(ctx, session)
		if err == nil {
			a.say("%s: %s given to the host", spec.Quote(session), size(s.ReclaimedBytes))
		}
		return s, err
	})
	cmd.Flags().BoolVar(&reclaim, "reclaim", false, "give memory to the host, within two seconds")
	return cmd
}

func (a *App) newResume() *cobra.Command {
	return a.pauseCommand("resume", "Let paused sessions go on", `Let paused sessions go on.

Resuming a session that is not paused does nothing.`, (*client.Client).Resume)
}

func (a *App) pauseCommand(name, short, long string, change func(*client.Client, context.Context, string) (apitypes.Session, error)) *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:     name + " SESSION... [flags]",
		Short:   short,
		Long:    long,
		Example: "  boxd " + name + " demo",
		Args:    exactly("SESSION..."),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				for _, id := range args {
					s, err := change(c, ctx, id)
					if err == nil && f.json {
						err = writeJSON(a.Stdout, s)
					}
					if err != nil {
						return err // it names the session
					}
				}
				return nil
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	f.register(cmd)
	return cmd
}
