package cli

import (
	"bytes"
	"io"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
)

// output receives what a command prints and reports how it ended.
type output struct {
	app            *App
	json, receipt  bool
	stdout, stderr bytes.Buffer // with --json
	limit          int64        // with --json: bytes per stream, 0 is none
}

func (a *App) newOutput(f *runFlags) *output {
	return &output{app: a, json: f.json, receipt: f.receipt}
}

// plainWriter hides that w is a file. A file would be passed to the command itself, and its
// output would not be counted.
type plainWriter struct{ io.Writer }

// attach sets the streams of cmd. A terminal has no stderr of its own.
func (o *output) attach(cmd *engine.Command, tty bool) {
	var stdout, stderr io.Writer = o.app.Stdout, o.app.Stderr
	switch {
	case o.json:
		stdout, stderr, o.limit = &o.stdout, &o.stderr, cmd.OutputLimit
	case cmd.OutputLimit > 0:
		stdout, stderr = plainWriter{stdout}, plainWriter{stderr}
	}
	cmd.Stdout = stdout
	if !tty {
		cmd.Stderr = stderr
	}
}

// ended reports a command that ran. The returned error carries its status.
func (o *output) ended(result engine.Result, status int) error {
	if o.json {
		if err := writeJSON(o.app.Stdout, o.report(result, status)); err != nil {
			return err
		}
	}
	if line := verdictLine(result); line != "" {
		o.app.say("%s", line)
	} else if n := result.Receipt.OOMKills; n != nil && *n > 0 {
		o.app.say("memory limit reached, kills: %d", *n) // although the command coped with it
	}
	if o.receipt {
		writeReceipt(o.app.Stderr, result.Receipt)
	}
	if status == 0 {
		return nil
	}
	return &statusError{status: status}
}

// failed reports that there is no result.
func (o *output) failed(status int, err error) error {
	if o.json {
		if err := writeJSON(o.app.Stdout, failure{Status: status, Error: oneline.Error(err)}); err != nil {
			return err
		}
	}
	return &statusError{status: status, err: err}
}

// verdictLine says why a command ended if that was not its own doing.
func verdictLine(r engine.Result) string {
	if r.Verdict == engine.Exited || r.Verdict == engine.Signaled {
		return ""
	}
	line := "verdict: " + string(r.Verdict)
	if r.Limit != "" {
		line += " (limit " + r.Limit + ")"
	}
	return line
}
