package cli

import (
	"context"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/spf13/cobra"
)

func (a *App) newSensitive() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sensitive",
		Short: "List and forget directories of the host that sensitive sessions could write to",
		Long: `List and forget paths of the host that sensitive sessions could write to. A session that
mounts one becomes sensitive: it has no network, for good. boxd sessions and boxd volumes have
commands of their own that mark sessions and volumes.`,
	}
	cmd.AddCommand(a.newSensitiveList(), a.newSensitiveForget())
	return cmd
}

func (a *App) newSensitiveList() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the paths",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				list, err := c.SensitivePaths(ctx)
				if err != nil {
					return err
				}
				doc := apitypes.SensitivePathList{Paths: orEmpty(list)}
				return printList(a, &f.formatFlags, doc, list, func(p apitypes.SensitivePath) string { return p.Path }, func(out screen) error {
					t := newTable(out, "PATH", "TENANT", "SENSITIVE")
					for _, p := range list {
						t.row(p.Path, p.Tenant, sensitiveText(&p.Sensitive))
					}
					return t.flush()
				})
			})
		},
	}
	f.registerQuiet(cmd, "the paths")
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

func (a *App) newSensitiveForget() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "forget PATH [flags]",
		Short: "Forget that a path is sensitive",
		Long: `Forget that a path of the host is sensitive, after its content was removed. Sessions that
have it must be removed before. Only administrators can do this.`,
		Args: exactly("PATH"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				return c.ForgetSensitivePath(ctx, args[0])
			})
		},
		ValidArgsFunction: a.completeNames(&f, func(ctx context.Context, c *client.Client, _ []string) (names []cobra.Completion, err error) {
			list, err := c.SensitivePaths(ctx)
			for _, p := range list {
				names = append(names, p.Path)
			}
			return names, err
		}),
	}
	f.register(cmd)
	return cmd
}
