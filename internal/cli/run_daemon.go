package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneshot"
	"github.com/boxd/boxd/internal/sigwatch"
)

// runSomewhere has a daemon run the command if there is one that gives the same result, and otherwise runs
// it with a launcher of its own. Package quickrun does the first of the two for most command lines.
func (a *App) runSomewhere(r request, f *runFlags, signals *sigwatch.Watch) (engine.Result, []egress.Denial, error) {
	result, err := a.runByDaemon(r, f, signals)
	none, ok := errors.AsType[*oneshot.Unused](err)
	switch {
	case !ok:
		return result, nil, err
	case none.Settled() && none.Problem != nil:
		return result, nil, &client.Error{Problem: *none.Problem}
	case none.Settled():
		return result, nil, err
	case f.socket != "":
		return result, nil, fmt.Errorf("--socket %s: %w", spec.Quote(f.socket), err)
	case !signals.Restart():
		return result, nil, stoppedBy(signals.Received())
	}
	if f.explain {
		a.say("boxd: run without a daemon: %s", printable(none.Reason))
	}
	result, denied, err := a.execute(r, f, signals)
	if err != nil && !none.Absent && statusOf(err) == statusFailed {
		err = fmt.Errorf("%w (no daemon was used: %s)", err, none.Reason)
	}
	return result, denied, err
}

// runByDaemon has the daemon run the command. An error of type *[oneshot.Unused] says why it does not.
func (a *App) runByDaemon(r request, f *runFlags, signals *sigwatch.Watch) (result engine.Result, err error) {
	if reason := f.needsLauncher(); reason != "" {
		return result, &oneshot.Unused{Reason: reason, Absent: f.direct}
	}
	cmd := &r.cmd
	q, err := oneshot.Request(&r.spec, apitypes.RunRequest{Argv: cmd.Args, Env: oneshot.Env(cmd.Env), Cwd: cmd.Dir, Mkdir: cmd.MakeDir,
		Timeout: apitypes.Duration(cmd.Timeout), Grace: apitypes.Duration(cmd.Grace), OutputLimit: apitypes.Size(cmd.OutputLimit)})
	if err != nil {
		return result, err
	}
	socket, checked, err := oneshot.Find(f.socket, a.LookupEnv)
	if err != nil {
		return result, err
	}
	run, err := oneshot.Ask(socket, checked, q)
	if err != nil {
		return result, err
	}
	defer run.Close()
	if err := signals.Context.Err(); err != nil {
		return result, err
	}
	signals.Start()
	if f.interactive {
		cmd.Stdin = a.Stdin
	}
	if err := run.Start(cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.OutputLimit > 0); err != nil {
		return result, fmt.Errorf("passing the command to the daemon: %w", err)
	}
	signals.ForwardTo(run.Signal)
	stop := context.AfterFunc(signals.Context, run.Cancel)
	defer stop()
	ended, err := run.Wait()
	if err != nil {
		return result, err
	}
	if text := run.Warning(); text != "" {
		a.say("%s", text)
	}
	if f.explain {
		a.say("boxd: run by the daemon at %s", printable(socket))
	}
	return engineResult(ended), nil
}

// engineResult returns how a command of a daemon ended, in the form of package engine.
func engineResult(e *apitypes.ExecResult) engine.Result {
	r := e.Receipt
	result := engine.Result{Verdict: engine.Verdict(e.Verdict), Limit: e.Limit, ExitCode: -1, Receipt: engine.Receipt{
		Wall: r.Wall.D(), User: (*time.Duration)(r.User), System: (*time.Duration)(r.System), Throttled: (*time.Duration)(r.Throttled),
		MemoryPeak: r.MemoryPeak, PIDsPeak: r.PIDsPeak, StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes,
		IOReadBytes: r.IOReadBytes, IOWriteBytes: r.IOWriteBytes, OOMKills: r.OOMKills, PIDsLimitReached: r.PIDsLimitReached,
	}}
	if e.ExitCode != nil {
		result.ExitCode = *e.ExitCode
	}
	result.Signal, _ = linux.ParseSignal(e.Signal) // 0 without one
	return result
}

// needsLauncher says which flag a daemon cannot do as a launcher of this process would; empty: none.
func (f *runFlags) needsLauncher() string {
	for _, flag := range []struct {
		name  string
		given bool
	}{
		{"--network", f.network != spec.None}, {"--publish", len(f.publish) > 0}, {"--tty", f.tty},
		{"--engine", f.wishes.Engine != nil && *f.wishes.Engine != spec.EngineNative},
		{"--isolation", f.wishes.Isolation != nil && *f.wishes.Isolation != spec.IsolationNamespaces},
		{"--init", f.initPath != ""}, {"--state-dir", f.stateDir != ""},
	} {
		if flag.given {
			return flag.name + " needs a launcher of boxd run itself"
		}
	}
	if f.direct {
		return "--direct was given"
	}
	return ""
}
