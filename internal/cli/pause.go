package cli

import (
	"context"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/spf13/cobra"
)

func (a *App) newPause() *cobra.Command {
	return a.pauseCommand("pause", "Stop everything that runs in sessions, until they are resumed", `Stop everything that runs in sessions, until boxd resume.

Commands and processes execute nothing, and keep their memory and files. Timeouts
and the idle time of the session stand still, its lifetime does not. What needs a
new command is refused, or resumes the session if that has auto_resume.

A paused session can be changed and removed, and its processes can be stopped. A
pause outlives the daemon. Pausing a paused session does nothing.`, (*client.Client).Pause)
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
