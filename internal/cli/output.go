package cli

import (
	"bytes"
	"errors"
	"io"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/oneshot"
)

// output receives the output of a command of boxd run, and reports how the command ended.
type output struct {
	app            *App
	json, receipt  bool
	stdout, stderr bytes.Buffer // with --json
	limit          int64        // with --json: bytes per stream; 0: unlimited
	denied         []apitypes.Denial
}

// plainWriter hides that w is a file. A file would be passed to the command itself, and its
// output would not be counted.
type plainWriter struct{ io.Writer }

// attach sets the output streams of cmd. A terminal has no stderr of its own.
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

// ended reports a command that ran. The returned error carries status.
func (o *output) ended(result engine.Result, status int) error {
	if o.json {
		if err := writeJSON(o.app.Stdout, o.report(result, status)); err != nil {
			return err
		}
	}
	return o.app.ended(result, o.receipt, status)
}

// ended reports on stderr how a command ended, unless it simply exited, and its receipt if that
// was asked for. The returned error carries status.
func (a *App) ended(r engine.Result, receipt bool, status int) error {
	if text := oneshot.Ending(string(r.Verdict), r.Limit, r.Receipt.OOMKills); text != "" {
		a.say("%s", text)
	}
	if receipt {
		writeReceipt(a.Stderr, r.Receipt)
	}
	if status == 0 {
		return nil
	}
	return &statusError{status: status}
}

// fail returns the error that ends boxd because of err. If the user wants JSON, it also prints
// a failure.
func (a *App) fail(asJSON bool, err error) error {
	status := statusOf(err)
	if known, ok := errors.AsType[*statusError](err); ok && known.err != nil {
		err = known.err
	}
	if asJSON {
		if err := writeJSON(a.Stdout, failure{Status: status, Error: oneline.Error(err)}); err != nil {
			return err
		}
	}
	return &statusError{status, err}
}
