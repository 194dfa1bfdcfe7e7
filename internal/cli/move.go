package cli

import (
	"cmp"
	"context"
	"fmt"
	"path"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newMove() *cobra.Command {
	var f remoteFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "mv SESSION:PATH DESTINATION [flags]",
		Short: "Rename a file or directory in a session",
		Long: `Rename a file, symlink or directory in a session. DESTINATION is another path of the
same session, with or without "SESSION:". If it is an existing directory, the file is
moved into it. Both must be in one file system of the session: boxd cp copies between
others.`,
		Example: `  boxd mv lab:result.csv final.csv
  boxd mv -f lab:new.conf lab:/workspace/app/app.conf`,
		Args: exactly("SESSION:PATH", "DESTINATION"),
		RunE: func(_ *cobra.Command, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			to.session = cmp.Or(to.session, from.session)
			switch {
			case from.session == "":
				return &engine.FieldError{Field: "SESSION:PATH", Value: spec.Quote(args[0]), Rule: "must name a session"}
			case from.session != to.session:
				return &engine.FieldError{Field: "DESTINATION", Value: spec.Quote(args[1]), Rule: "must be in the session " + spec.Quote(from.session) + "; boxd cp copies between sessions"}
			}
			if err := checkPlaces(from, to); err != nil {
				return err
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				return (&copier{app: a, c: c, session: from.session}).move(ctx, from, to, force)
			})
		},
	}
	cmd.ValidArgsFunction = a.completePlace(&f)
	cmd.Flags().BoolVarP(&force, "force", "f", false, "replace a file at DESTINATION, atomically")
	f.registerDaemon(cmd)
	return cmd
}

// move renames within the session.
func (j *copier) move(ctx context.Context, from, to place, force bool) error {
	remote, err := j.inSession(ctx, from.path)
	if err != nil {
		return err
	}
	t, err := j.sessionTarget(ctx, to)
	if err != nil {
		return err
	}
	at := t.remote
	if t.dir {
		at = path.Join(at, path.Base(remote))
	}
	err = j.c.RenameFile(ctx, j.session, apitypes.RenameRequest{Path: remote, To: at, Replace: force})
	if client.IsCode(err, apitypes.CodeFileExists) && !force {
		return fmt.Errorf("session %s: %s exists: --force replaces a file", j.session, spec.Quote(at))
	}
	return j.failed(err)
}
