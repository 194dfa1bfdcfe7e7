package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newWatch() *cobra.Command {
	var f remoteFlags
	var o client.WatchOptions
	cmd := &cobra.Command{
		Use:   "watch SESSION:DIR [flags]",
		Short: "Print what changes in a directory of a session",
		Long: `Print what changes in a directory of a session as it happens, until the command is
interrupted or the directory is removed: created, modified, attributes or removed, and
the path relative to the directory. A file that is moved is removed and created. --json
prints one object per line, the first of which is "ready".`,
		Example: `  boxd watch lab:
  boxd watch -r --glob '**/*.png' lab:out`,
		Args: exactly("SESSION:DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			p := parsePlace(args[0])
			if p.session == "" {
				return &engine.FieldError{Field: "SESSION:DIR", Value: spec.Quote(args[0]), Rule: "must name a session"}
			}
			if err := checkNames([]string{p.session}, []string{"SESSION"}); err != nil {
				return err
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				return c.WatchFiles(ctx, p.session, cmp.Or(p.path, "."), o, func(change apitypes.FileChange) error { return a.printChange(&f, change) })
			})
		},
	}
	cmd.ValidArgsFunction = a.completePlace(&f)
	cmd.Flags().BoolVarP(&o.Recursive, "recursive", "r", false, "watch the directories below too")
	cmd.Flags().StringArrayVar(&o.Globs, "glob", nil, "print only what matches `GLOB`: '*.png', out or '**/*.csv'; may be repeated")
	f.register(cmd)
	return cmd
}

func (a *App) printChange(f *remoteFlags, c apitypes.FileChange) error {
	path := cmp.Or(string(c.RawPath), c.Path)
	if c.Dir {
		path += "/"
	}
	switch {
	case f.json:
		return writeJSON(a.Stdout, c)
	case c.Type == "ready":
		return nil
	case c.Type == "missed":
		a.say("boxd: some changes could not be reported")
		return nil
	case c.Type == "gone":
		return errors.New("the directory was removed or moved")
	}
	_, err := fmt.Fprintln(a.Stdout, c.Type, printable(path))
	return err
}
