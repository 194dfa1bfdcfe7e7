package cli

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newHistory() *cobra.Command {
	var f remoteFlags
	var o client.HistoryOptions
	cmd := &cobra.Command{
		Use:   "history [SESSION] [flags]",
		Short: "List commands and processes that have ended, of one session or of all",
		Long: `List commands and managed processes that have ended, newest first, of one session or of
all. Those of removed sessions are kept for a while too. The profile of a session says
how much of command lines and output is kept (keep_argv, keep_output).`,
		Example: `  boxd history lab
  boxd history --since 24h --verdict oom --verdict timeout
  boxd history -n 1 --output lab
  boxd history --format '{{.id}} {{.verdict}} {{join .argv " "}}'`,
		Args: exactly("[SESSION]"),
		RunE: func(_ *cobra.Command, args []string) error {
			if o.Limit < 0 {
				return &engine.FieldError{Field: "--limit", Value: fmt.Sprint(o.Limit), Rule: "must be 0, which means all, or more"}
			}
			if len(args) == 1 {
				o.Session = args[0]
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				list, err := history(ctx, c, o)
				if err != nil {
					return err
				}
				doc := apitypes.History{Execs: orEmpty(list)}
				id := func(r apitypes.ExecRecord) string { return strconv.FormatUint(r.ID, 10) }
				return printList(a, &f.formatFlags, doc, list, id, func(out screen) error { return writeHistory(out, list, o.Output) })
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	cmd.Flags().Var(momentValue(&o.Since, ""), "since", "only what ended since `TIME`: a duration before now such as 1h, or 2006-01-02T15:04:05Z")
	cmd.Flags().Var(momentValue(&o.Until, ""), "until", "only what ended before `TIME`")
	cmd.Flags().StringArrayVar(&o.Verdicts, "verdict", nil, "only what has `VERDICT`, such as timeout (repeatable)")
	cmd.Flags().IntVarP(&o.Limit, "limit", "n", 20, "at most `N`; 0: all")
	cmd.Flags().BoolVar(&o.Output, "output", false, "print the output that is kept")
	completeFlag(cmd, "since", "10m", "1h", "24h")
	completeFlag(cmd, "until", "10m", "1h", "24h")
	completeFlag(cmd, "verdict", "exited", "signaled", "timeout", "oom", "pids-limit", "disk-quota", "output-limit", "canceled", "box-lost")
	completeFlag(cmd, "limit", "20", "100", "0")
	f.registerQuiet(cmd, "the ids")
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

// history asks until it has o.Limit records, or all if that is 0.
func history(ctx context.Context, c *client.Client, o client.HistoryOptions) (list []apitypes.ExecRecord, err error) {
	const most = 1000 // of one answer
	wanted := o.Limit
	for {
		o.Limit = most
		if wanted > 0 {
			o.Limit = min(most, wanted-len(list))
		}
		h, err := c.History(ctx, o)
		if err != nil {
			return nil, err
		}
		list = append(list, h.Execs...)
		if o.Before = h.Next; h.Next == 0 || len(list) == wanted {
			return list, nil
		}
	}
}

func writeHistory(w screen, list []apitypes.ExecRecord, output bool) error {
	if output {
		return writeOutputs(w, list)
	}
	t := newTable(w, "ID", "ENDED", "SESSION", "VERDICT", "EXIT", "WALL", "COMMAND")
	for _, r := range list {
		wall := r.Receipt.Wall.D()
		t.row(strconv.FormatUint(r.ID, 10), r.EndedAt.Local().Format(time.DateTime), r.Session, r.Verdict, exitOf(r), duration(&wall), commandOf(r))
	}
	return t.flush()
}

func exitOf(r apitypes.ExecRecord) string {
	if r.ExitCode != nil {
		return strconv.Itoa(*r.ExitCode)
	}
	return r.Signal
}

// commandOf is the command line of r, behind the ID of a managed process.
func commandOf(r apitypes.ExecRecord) string {
	command := strings.Join(r.Argv, " ")
	if r.Process != "" {
		command = strings.TrimSpace("[" + r.Process + "] " + command)
	}
	return command
}

// writeOutputs prints a line for each record and its output behind it.
func writeOutputs(w screen, list []apitypes.ExecRecord) error {
	for _, r := range list {
		_, err := fmt.Fprintf(w, "%s\n", w.paint(fmt.Sprintf("%d %s %s %s %s %s", r.ID, r.EndedAt.Local().Format(time.DateTime), printable(r.Session), r.Verdict,
			printable(exitOf(r)), printable(commandOf(r))), bold))
		if err != nil {
			return err
		}
		for _, s := range []struct {
			text    []byte
			missing *apitypes.Missing
		}{{r.Out(), r.StdoutMissing}, {r.Err(), r.StderrMissing}} {
			text := string(s.text)
			if s.missing != nil {
				at := min(s.missing.Offset, int64(len(text)))
				text = text[:at] + fmt.Sprintf("\n[%d bytes are missing]\n", s.missing.Bytes) + text[at:]
			}
			if w.terminal {
				text = printableLines(text)
			}
			if text != "" && !strings.HasSuffix(text, "\n") {
				text += "\n"
			}
			if _, err := io.WriteString(w, text); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *App) newUsage() *cobra.Command {
	var f remoteFlags
	var o client.UsageOptions
	var asCSV bool
	cmd := &cobra.Command{
		Use:   "usage [flags]",
		Short: "Show what commands and processes have used",
		Long: `Show what commands and managed processes that have ended have used: processor time, the
time that they ran, and bytes read from and written to disks; and for how long sessions
have had a box, with its memory multiplied with that time, by tenant and day (UTC).
Users are the label "user" of sessions. With --csv, a name that a spreadsheet would take
for a formula is preceded by an apostrophe.`,
		Example: `  boxd usage
  boxd usage --by user --by day --from 2026-01-01 --csv`,
		Args: exactly(),
		RunE: func(_ *cobra.Command, args []string) error {
			if asCSV && (f.json || f.format != "") {
				return &engine.FieldError{Field: "--csv", Value: "with --json or --format", Rule: "cannot be used together: choose one"}
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				list, err := c.TenantUsage(ctx, o)
				if err != nil {
					return err
				}
				if asCSV {
					w := csv.NewWriter(a.Stdout)
					return w.WriteAll(usageRows(list, o.By, true))
				}
				doc := apitypes.UsageList{Usage: orEmpty(list)}
				none := func(apitypes.UsageRow) string { return "" }
				return printList(a, &f.formatFlags, doc, list, none, func(out screen) error {
					rows := usageRows(list, o.By, false)
					t := newTable(out, rows[0]...)
					for _, row := range rows[1:] {
						t.row(row...)
					}
					return t.flush()
				})
			})
		},
	}
	cmd.Flags().StringVar(&o.From, "from", "", "first `DAY`, such as 2006-01-02")
	cmd.Flags().StringVar(&o.To, "to", "", "last `DAY`")
	cmd.Flags().StringArrayVar(&o.By, "by", nil, "tell apart by `PART`: profile, user, session or day (repeatable)")
	cmd.Flags().BoolVar(&asCSV, "csv", false, "print comma-separated values, in seconds and bytes")
	completeFlag(cmd, "from")
	completeFlag(cmd, "to")
	completeFlag(cmd, "by", "profile", "user", "session", "day")
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

// csvCell returns a text that a spreadsheet does not take for a formula: tenants and callers choose names and labels,
// and a formula of theirs could send what is in the sheet elsewhere. OWASP, "CSV Injection", lists the characters.
func csvCell(text string) string {
	if first := strings.TrimLeft(text, " "); first != "" && strings.ContainsRune("=+-@\t\r\n", rune(first[0])) {
		return "'" + text
	}
	return text
}

// usageRows are the rows of a table with a head, for programs (plain) in seconds and bytes.
func usageRows(list []apitypes.UsageRow, by []string, plain bool) [][]string {
	parts := slices.DeleteFunc([]string{"day", "profile", "user", "session"}, func(part string) bool { return !slices.Contains(by, part) })
	head := slices.Concat([]string{"tenant"}, parts, []string{"execs", "processes", "cpu", "wall", "read", "written", "session_time", "memory_gib_seconds"})
	if !plain {
		for i := range head {
			head[i] = strings.ToUpper(strings.ReplaceAll(head[i], "_", " "))
		}
		head[len(head)-1] = "GIB-SECONDS"
	}
	rows := [][]string{head}
	for _, u := range list {
		row := []string{u.Tenant}
		for _, part := range parts {
			row = append(row, map[string]string{"day": u.Day, "profile": u.Profile, "user": u.User, "session": u.Session}[part])
		}
		if plain {
			for i := range row {
				row[i] = csvCell(row[i])
			}
		}
		row = append(row, strconv.FormatInt(u.Execs, 10), strconv.FormatInt(u.Processes, 10))
		for _, d := range []time.Duration{u.CPU.D(), u.Wall.D()} {
			if plain {
				row = append(row, strconv.FormatFloat(d.Seconds(), 'f', -1, 64))
			} else {
				row = append(row, duration(&d))
			}
		}
		for _, n := range []int64{u.IOReadBytes, u.IOWriteBytes} {
			if plain {
				row = append(row, strconv.FormatInt(n, 10))
			} else {
				row = append(row, spec.FormatSize(n))
			}
		}
		if life := time.Duration(min(u.SessionTime, 1<<33) * float64(time.Second)); plain {
			row = append(row, strconv.FormatFloat(u.SessionTime, 'f', -1, 64), strconv.FormatFloat(u.MemoryGiBSeconds, 'f', -1, 64))
		} else {
			row = append(row, life.Round(100*time.Millisecond).String(), strconv.FormatFloat(u.MemoryGiBSeconds, 'f', 1, 64))
		}
		rows = append(rows, row)
	}
	return rows
}
