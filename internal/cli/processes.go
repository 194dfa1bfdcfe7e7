package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newPs() *cobra.Command {
	var f remoteFlags
	var all bool
	var labels []string
	cmd := &cobra.Command{
		Use:   "ps [SESSION] [flags]",
		Short: "List managed processes of one session or of all",
		Long: `List the running managed processes of one session or of all. --all includes processes
that have ended; they are kept with their output until they are removed, see boxd prune.`,
		Example: `  boxd ps -a lab
  boxd ps -a --format '{{.session}} {{.id}} {{.exit_code}}'
  boxd ps -q | xargs -n 2 boxd stop`,
		Args: exactly("[SESSION]"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				list, err := processes(ctx, c, args, labels)
				if err != nil {
					return err
				}
				if !all {
					list = slices.DeleteFunc(list, hasEnded)
				}
				id := func(p apitypes.Process) string {
					if len(args) == 1 {
						return p.ID
					}
					return p.Session + " " + p.ID
				}
				doc := apitypes.ProcessList{Processes: orEmpty(list)}
				return printList(a, &f.formatFlags, doc, list, id, func(out screen) error { return writeProcesses(out, list, time.Now()) })
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	registerLabelFilter(cmd, &labels)
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include processes that have ended")
	f.registerQuiet(cmd, "the ids: those of SESSION, or else session and process")
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

// hasEnded reports whether p has ended for good.
func hasEnded(p apitypes.Process) bool {
	return p.State == "exited" || p.State == "stopped" || p.State == "failed"
}

// processes returns the processes with labels of the session in args, or of all sessions if args is
// empty.
func processes(ctx context.Context, c *client.Client, args, labels []string) ([]apitypes.Process, error) {
	if len(args) == 1 {
		return c.Processes(ctx, args[0], labels...)
	}
	sessions, err := c.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	var all []apitypes.Process
	for _, s := range sessions {
		list, err := c.Processes(ctx, s.ID, labels...)
		if client.IsCode(err, apitypes.CodeSessionNotFound) {
			continue // it ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

func writeProcesses(w screen, list []apitypes.Process, now time.Time) error {
	t := newTable(w, "SESSION", "PROCESS", "STATE", "EXIT", "RESTARTS", "AGE", "OUTPUT", "COMMAND")
	for _, p := range list {
		t.row(p.Session, p.ID, p.State, exitText(p), fmt.Sprint(p.Restarts), ago(now, p.StartedAt), outputText(p), strings.Join(p.Argv, " "))
	}
	return t.flush()
}

// exitText says how p ended, if it has.
func exitText(p apitypes.Process) string {
	switch {
	case p.ExitCode != nil:
		return fmt.Sprint(*p.ExitCode)
	case p.Signal != "":
		return p.Signal
	}
	return p.Verdict
}

// outputText says how much p has written, "" if that is no longer known.
func outputText(p apitypes.Process) string {
	var n int64
	if p.Stdout == nil && p.Stderr == nil {
		return ""
	}
	for _, s := range []*apitypes.Stream{p.Stdout, p.Stderr} {
		if s != nil {
			n += s.End
		}
	}
	return spec.FormatSize(n)
}
