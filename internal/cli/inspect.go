package cli

import (
	"context"
	"encoding/json"

	"github.com/boxd/boxd/client"
	"github.com/spf13/cobra"
)

func (a *App) newInspect() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "inspect SESSION [PROCESS] [flags]",
		Short: "Print all details of a session or a process, as JSON",
		Long: `Print all details of a session, or of one of its managed processes, as indented JSON:
the answer of the API. --json prints it on one line.`,
		Example: `  boxd inspect lab
  boxd inspect lab server --format '{{.state}} {{.exit_code}}'`,
		Args: exactly("SESSION", "[PROCESS]"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				if len(args) == 2 {
					p, err := c.Process(ctx, args[0], args[1])
					if err != nil {
						return err
					}
					return printOne(a, &f.formatFlags, p, func(out screen) error { return indented(out, p) })
				}
				s, err := c.Session(ctx, args[0])
				if err != nil {
					return err
				}
				return printOne(a, &f.formatFlags, s, func(out screen) error { return indented(out, s) })
			})
		},
		ValidArgsFunction: a.completeNames(&f, completeSession, completeProcess),
	}
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

func indented(out screen, v any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
