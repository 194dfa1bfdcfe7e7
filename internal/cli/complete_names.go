package cli

import (
	"context"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/spf13/cobra"
)

// What the arguments of a command are, for completion.
type nameKind int

const (
	completeSession nameKind = iota
	completeProcess
)

// completionPatience bounds how long a shell waits for the daemon.
const completionPatience = time.Second

// completeNames completes ids of sessions, and of processes in the one that was
// named before. A daemon that cannot be asked completes nothing.
func (a *App) completeNames(f *remoteFlags, kinds ...nameKind) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= len(kinds) {
			return nil, cobra.ShellCompDirectiveDefault
		}
		c, err := a.newClient(f)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), completionPatience)
		defer cancel()
		return names(ctx, c, kinds[len(args)], args), cobra.ShellCompDirectiveNoFileComp
	}
}

func names(ctx context.Context, c *client.Client, kind nameKind, args []string) (ids []string) {
	if kind == completeProcess {
		processes, err := c.Processes(ctx, args[0])
		if err != nil {
			return nil
		}
		for _, p := range processes {
			ids = append(ids, cobra.CompletionWithDesc(p.ID, p.State))
		}
		return ids
	}
	sessions, err := c.Sessions(ctx)
	if err != nil {
		return nil
	}
	for _, s := range sessions {
		ids = append(ids, cobra.CompletionWithDesc(s.ID, s.State))
	}
	return ids
}
