package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newLogs() *cobra.Command {
	var f remoteFlags
	var o client.LogOptions
	cmd := &cobra.Command{
		Use:   "logs SESSION PROCESS [flags]",
		Short: "Print the kept output of a managed process",
		Long: `Print the kept output of a managed process, byte for byte. Other readers are not
affected. If output is no longer kept, stderr says how much.

--timestamps shows when boxd read a line. Times are exact to the millisecond for about
the last thousand reads; in older output more and more lines share one time.
--offset is a position in bytes from the start of the stream.`,
		Example: `  boxd logs lab server
  boxd logs -f --tail 20 --timestamps lab server
  boxd logs --since 1h --stream stderr lab server`,
		Args: exactly("SESSION", "PROCESS"),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case o.Stream != "stdout" && o.Stream != "stderr":
				return &engine.FieldError{Field: "--stream", Value: spec.Quote(o.Stream), Rule: "must be stdout or stderr"}
			case o.Offset < 0:
				return &engine.FieldError{Field: "--offset", Value: fmt.Sprint(o.Offset), Rule: "must be an offset of 0 or more"}
			case o.Timestamps && f.json:
				return &engine.FieldError{Field: "--timestamps", Value: "with --json", Rule: "cannot be used together: JSON has the bytes as they are"}
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				return a.logs(ctx, c, args[0], args[1], o, f.json)
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions, listProcesses),
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "continue until the process has ended")
	cmd.Flags().StringVar(&o.Stream, "stream", "stdout", "`STREAM` to print: stdout or stderr")
	cmd.Flags().Var(tailValue(&o.Tail), "tail", "only the last `N` lines, or \"all\"")
	cmd.Flags().Var(momentValue(&o.Since, "; --offset takes a position in bytes"), "since", "only output since `TIME`: a duration before now such as 1h, or 2006-01-02T15:04:05Z")
	cmd.Flags().BoolVarP(&o.Timestamps, "timestamps", "t", false, "print the time in front of each line")
	cmd.Flags().Int64Var(&o.Offset, "offset", 0, "start at `OFFSET`, in bytes")
	f.register(cmd)
	completeFlag(cmd, "stream", "stdout", "stderr")
	completeFlag(cmd, "since", "10m", "1h", "24h")
	completeFlag(cmd, "tail", "20", "100", "all")
	completeFlag(cmd, "offset")
	return cmd
}

// tailValue is a number of lines, or "all".
func tailValue(dst **int64) *textValue {
	return &textValue{"all", func(s string) error {
		if s == "all" {
			*dst = nil
			return nil
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return errors.New(`must be a number of lines, or "all"`)
		}
		*dst = &n
		return nil
	}}
}

// momentValue is a moment in a form of the API. It stays text, because the clock of the daemon
// counts. An error ends in more.
func momentValue(dst *string, more string) *textValue {
	return &textValue{"", func(s string) error {
		d, err := time.ParseDuration(s)
		if _, terr := time.Parse(time.RFC3339, s); terr != nil && (err != nil || d <= 0) {
			return errors.New("must be a duration before now such as 10m or 1h30m, or a time such as 2006-01-02T15:04:05Z" + more)
		}
		*dst = s
		return nil
	}}
}

// logPiece is one line of boxd logs --json.
type logPiece struct {
	Stream string  `json:"stream"`
	Offset int64   `json:"offset"`
	Gone   int64   `json:"gone,omitempty"` // bytes before it that are no longer kept
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
