package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/spf13/cobra"
)

func (a *App) newLogs() *cobra.Command {
	var f remoteFlags
	var o client.LogOptions
	cmd := &cobra.Command{
		Use:   "logs SESSION PROCESS [flags]",
		Short: "Print the output of a managed process that is kept",
		Long: `Print the output of a managed process that is kept, byte for byte. It does not
disturb others who read it. What is gone already is told on stderr.

--since is an offset in bytes from the start of the stream.`,
		Example: `  boxd logs lab server
  boxd logs -f --stream stderr lab server
  boxd logs --since 4096 lab server`,
		Args: exactly("SESSION", "PROCESS"),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case o.Stream != "stdout" && o.Stream != "stderr":
				return &engine.FieldError{Field: "--stream", Value: engine.Quote(o.Stream), Rule: "must be stdout or stderr"}
			case o.Offset < 0:
				return &engine.FieldError{Field: "--since", Value: fmt.Sprint(o.Offset), Rule: "must be an offset of 0 or more"}
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				return a.logs(ctx, c, args[0], args[1], o, f.json)
			})
		},
		ValidArgsFunction: a.completeNames(&f, completeSession, completeProcess),
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on until the process has ended")
	cmd.Flags().StringVar(&o.Stream, "stream", "stdout", "`STREAM` to print: stdout or stderr")
	cmd.Flags().Int64Var(&o.Offset, "since", 0, "start at `OFFSET`, in bytes")
	f.register(cmd)
	must(cmd.RegisterFlagCompletionFunc("stream", cobra.FixedCompletions([]string{"stdout", "stderr"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("since", cobra.NoFileCompletions))
	return cmd
}

// logPiece is one line of boxd logs --json.
type logPiece struct {
	Stream string  `json:"stream"`
	Offset int64   `json:"offset"`
	Gone   int64   `json:"gone,omitempty"` // bytes in front of it that are not kept
	Data   *string `json:"data,omitempty"`
	Base64 *string `json:"data_base64,omitempty"`
}

func (a *App) logs(ctx context.Context, c *client.Client, session, process string, o client.LogOptions, asJSON bool) error {
	l, err := c.Logs(ctx, session, process, o)
	if err != nil {
		return err
	}
	defer l.Close()
	if !asJSON {
		if l.Gap > 0 {
			a.say("boxd: %d bytes of %s are gone", l.Gap, o.Stream)
		}
		_, err := io.Copy(a.Stdout, l)
		return err
	}
	piece := logPiece{Stream: o.Stream, Offset: l.Offset, Gone: l.Gap}
	buf := make([]byte, 64<<10)
	for {
		n, err := l.Read(buf)
		if n > 0 {
			piece.Data, piece.Base64 = text(buf[:n])
			if err := writeJSON(a.Stdout, piece); err != nil {
				return err
			}
			piece.Offset, piece.Gone = piece.Offset+int64(n), 0
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
