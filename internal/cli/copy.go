package cli

import (
	"cmp"
	"context"
	"errors"
	"path"
	"strings"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/spf13/cobra"
)

func (a *App) newCopy() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION [flags]",
		Short: "Copy files between the host and a session",
		Long: `Copy a file, or a directory with all in it, between the host and a session. One of
both is SESSION:PATH; the other is a path of the host, or "-": a single file goes to
stdout or comes from stdin. A path with a colon is written ./PATH.

If the destination is a directory, the copy is made in it. Permission bits are kept,
owners are not. Symbolic links, devices and the like are left out, and said so on
stderr. Relative paths in a session begin at the workspace.`,
		Example: `  boxd cp lab:result.csv .
  boxd cp src lab:/workspace
  tar c src | boxd cp - lab:src.tar`,
		Args: exactly("SOURCE", "DESTINATION"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				return a.copyBetween(ctx, c, args[0], args[1], f.json)
			})
		},
	}
	cmd.ValidArgsFunction = a.completePlace(&f)
	f.register(cmd)
	return cmd
}

// completePlace completes "SESSION:"; a shell knows the files of the host itself.
func (a *App) completePlace(f *remoteFlags) cobra.CompletionFunc {
	sessions := a.completeNames(f, completeSession)
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 1 || strings.ContainsAny(word, "/.") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		ids, _ := sessions(cmd, nil, word)
		for i, id := range ids {
			name, state, _ := strings.Cut(id, "\t")
			ids[i] = cobra.CompletionWithDesc(name+":", state)
		}
		return ids, cobra.ShellCompDirectiveNoSpace
	}
}

// place is a side of a copy.
type place struct {
	session string // "": the host
	path    string // in a session maybe relative to its workspace
}

// parsePlace reads SESSION:PATH or a path of the host. What is in front of the
// colon has no slash.
func parsePlace(s string) place {
	session, p, ok := strings.Cut(s, ":")
	if !ok || session == "" || strings.Contains(session, "/") {
		return place{path: s}
	}
	return place{session, p}
}

// resolve makes the path of a place in a session absolute.
func (p *place) resolve(ctx context.Context, c *client.Client) error {
	if p.session == "" || path.IsAbs(p.path) {
		return nil
	}
	s, err := c.Session(ctx, p.session)
	if err != nil {
		return err
	}
	p.path = path.Join(cmp.Or(s.WorkspaceTarget, engine.WorkspaceTarget), p.path)
	return nil
}

// copier counts what it copies.
type copier struct {
	app     *App
	c       *client.Client
	session string

	Files       int   `json:"files"`
	Directories int   `json:"directories"`
	Bytes       int64 `json:"bytes"`
	Skipped     int   `json:"skipped"`
}

func (a *App) copyBetween(ctx context.Context, c *client.Client, source, destination string, asJSON bool) error {
	from, to := parsePlace(source), parsePlace(destination)
	if (from.session == "") == (to.session == "") {
		return errors.New("cp: one of source and destination must be SESSION:PATH, the other a path of the host or -")
	}
	job := &copier{app: a, c: c, session: from.session + to.session}
	err := errors.Join(from.resolve(ctx, c), to.resolve(ctx, c)) // one of them is of the host
	switch {
	case err != nil:
		return err
	case from.session != "" && to.path == "-":
		err = job.print(ctx, from.path)
	case from.session != "":
		err = job.download(ctx, from.path, to.path)
	case from.path == "-":
		err = job.write(ctx, a.Stdin, to.path, "")
	default:
		err = job.upload(ctx, from.path, to.path)
	}
	if err == nil && asJSON && to.path != "-" {
		err = writeJSON(a.Stdout, job)
	}
	return err
}

// skip tells of what cannot be copied.
func (j *copier) skip(name, kind string) {
	j.Skipped++
	j.app.say("boxd: %s is a %s, left out", printable(name), kind)
}
