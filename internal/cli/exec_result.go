package cli

import (
	"errors"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
)

// execFailed reports that there is no result.
func (a *App) execFailed(f *execFlags, err error) error {
	status := statusFailed
	var known *statusError
	switch {
	case errors.As(err, &known):
		status = known.status
	case client.IsCode(err, apitypes.CodeProgramNotFound):
		status = statusNotFound
	case client.IsCode(err, apitypes.CodeProgramNotExecutable):
		status = statusNotExecutable
	}
	if f.json {
		if err := writeJSON(a.Stdout, failure{Status: status, Error: oneline.Error(bare(err))}); err != nil {
			return err
		}
	}
	return &statusError{status: status, err: bare(err)}
}

// bare is the error inside a statusError.
func bare(err error) error {
	var known *statusError
	if errors.As(err, &known) && known.err != nil {
		return known.err
	}
	return err
}

// execEnded reports a command that ran, as boxd run does.
func (a *App) execEnded(f *execFlags, r *apitypes.ExecResult) error {
	if f.json {
		if err := writeJSON(a.Stdout, r); err != nil {
			return err
		}
	}
	if r.Recreated {
		a.say("boxd: the session's box was lost, this is a new one on the same workspace")
	}
	if r.Verdict != string(engine.Exited) && r.Verdict != string(engine.Signaled) {
		a.say("%s", verdictLine(engine.Result{Verdict: engine.Verdict(r.Verdict), Limit: r.Limit}))
	} else if n := r.Receipt.OOMKills; n != nil && *n > 0 {
		a.say("memory limit reached, kills: %d", *n)
	}
	if f.receipt {
		writeReceipt(a.Stderr, engineReceipt(r.Receipt))
	}
	if r.Status == 0 {
		return nil
	}
	return &statusError{status: r.Status}
}

func engineReceipt(r apitypes.Receipt) engine.Receipt {
	return engine.Receipt{
		Wall: r.Wall.D(), User: (*time.Duration)(r.User), System: (*time.Duration)(r.System), Throttled: (*time.Duration)(r.Throttled),
		MemoryPeak: r.MemoryPeak, PIDsPeak: r.PIDsPeak, StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes,
		IOReadBytes: r.IOReadBytes, IOWriteBytes: r.IOWriteBytes, OOMKills: r.OOMKills, PIDsLimitReached: r.PIDsLimitReached,
	}
}
