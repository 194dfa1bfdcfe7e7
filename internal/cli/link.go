package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/flagtext"
	"github.com/boxd/boxd/preview"
	"github.com/spf13/cobra"
)

func (a *App) newLink() *cobra.Command {
	var f remoteFlags
	var ttl time.Duration
	var revoke bool
	cmd := &cobra.Command{
		Use:   "link SESSION PORT [flags]",
		Short: "Make a link to a port of a session",
		Long: `Print a URL that shows what a server in the session serves on PORT to everyone who has it,
until it expires or is revoked. The daemon must have preview.url in its configuration.

boxd link SESSION --revoke makes all links to the session invalid and ends what they have
opened.`,
		Example: `  boxd link lab 8000 --ttl 30m
  boxd link lab --revoke`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if revoke {
				if len(args) != 1 || ttl != 0 {
					return usageError(cmd, "--revoke needs a SESSION and nothing else: it revokes all links to it")
				}
				return a.remote(&f, func(ctx context.Context, c *client.Client) error { return c.RevokeLinks(ctx, args[0]) })
			}
			if err := exactly("SESSION", "PORT")(cmd, args); err != nil {
				return err
			}
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 {
				return &engine.FieldError{Field: "PORT", Value: spec.Quote(args[1]), Rule: "must be 1 to 65535"}
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				link, err := c.Link(ctx, args[0], int(port), ttl)
				if err != nil {
					return err
				}
				if f.json {
					return writeJSON(a.Stdout, link)
				}
				_, err = fmt.Fprintln(a.Stdout, link.URL)
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	cmd.Flags().Var(&textValue{"1h", func(s string) error {
		err := flagtext.Duration((*spec.Duration)(&ttl), s)
		if days, ok := strings.CutSuffix(s, "d"); ok {
			var n uint64
			n, err = strconv.ParseUint(days, 10, 8)
			ttl = time.Duration(n) * 24 * time.Hour
		}
		if err != nil || ttl < time.Second || ttl > preview.MaxLinkTTL {
			return errors.New(`must be 1s to 7d, such as "30m", "12h" or "7d"`)
		}
		return nil
	}}, "ttl", "how long the link is valid: `DURATION` such as 30m or 7d, at most 7d")
	cmd.Flags().BoolVar(&revoke, "revoke", false, "make all links to the session invalid instead")
	f.register(cmd)
	return cmd
}
