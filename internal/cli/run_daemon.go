package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneshot"
)

// runSomewhere has a daemon run the command if there is one that gives the same result, and otherwise runs
// it with a launcher of its own.
func (a *App) runSomewhere(r request, f *runFlags, signals *signalWatch) (engine.Result, []egress.Denial, error) {
	result, err := a.runByDaemon(r, f, signals)
	none, ok := errors.AsType[*oneshot.Unused](err)
	switch {
	case !ok:
		return result, nil, err
	case none.Problem != nil && isOwnFault(none.Problem.Code):
		return result, nil, f.nameFlag(&client.Error{Problem: *none.Problem})
	case f.socket != "":
		return result, nil, fmt.Errorf("--socket %s: %w", spec.Quote(f.socket), err)
	case !signals.restart():
		return result, nil, stoppedBy(signals.received())
	}
	if f.explain {
		a.say("boxd: run without a daemon: %s", printable(none.Reason))
	}
	result, denied, err := a.execute(r, f, signals)
	if err != nil && !none.Absent && !f.direct && !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrNotExecutable) {
		err = fmt.Errorf("%w (no daemon was used: %s)", err, none.Reason)
	}
	return result, denied, err
}

// isOwnFault reports whether a code says that the command cannot be started, by whomever.
func isOwnFault(code string) bool {
	return slices.Contains([]string{apitypes.CodeProgramNotFound, apitypes.CodeProgramNotExecutable, apitypes.CodeNoDirectory}, code)
}

// runByDaemon has the daemon run the command. An error of type *[oneshot.Unused] says why it does not.
func (a *App) runByDaemon(r request, f *runFlags, signals *signalWatch) (result engine.Result, err error) {
	socket, checked := f.socket, false
	if reason := a.needsLauncher(&r, f); reason != "" {
		return result, &oneshot.Unused{Reason: reason, Absent: f.direct}
	}
	if socket == "" {
		if socket = a.env("", "BOXD_SOCKET"); socket == "" {
			socket, checked = defaultSocket, true
		}
	}
	run, err := oneshot.Ask(socket, checked, r.forDaemon())
	if err != nil {
		return result, err
	}
	defer run.Close()
	if err := signals.ctx.Err(); err != nil {
		return result, err
	}
	signals.start()
	cmd := &r.cmd
	if f.interactive {
		cmd.Stdin = a.Stdin
	}
	if err := run.Start(cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.OutputLimit > 0); err != nil {
		return result, fmt.Errorf("passing the command to the daemon: %w", err)
	}
	signals.forwardTo(run.Signal)
	stop := context.AfterFunc(signals.ctx, run.Cancel)
	defer stop()
	result, _, err = run.Wait()
	if err == nil && f.explain {
		a.say("boxd: run by the daemon at %s", printable(socket))
	}
	return result, err
}

// needsLauncher says why a daemon cannot run the command as a launcher of this process would; empty: it can. A
// daemon has mount roots, images, a network and engines of its own.
func (a *App) needsLauncher(r *request, f *runFlags) string {
	own := func(flag string) string { return flag + " needs a launcher of its own" }
	switch {
	case f.direct:
		return "--direct"
	case f.image != engine.HostImage:
		return own("--image")
	case f.network != spec.None:
		return own("--network")
	case len(f.publish) > 0:
		return own("--publish")
	case len(r.spec.Mounts) > 0:
		return own("--mount or --workspace")
	case f.tty:
		return own("--tty")
	case r.spec.Engine != spec.EngineNative || f.wishes.Engine != nil && *f.wishes.Engine != spec.EngineNative:
		return own("--engine")
	case !slices.Equal(r.engines.Walls, []string{spec.IsolationNamespaces}):
		return own("--isolation")
	case f.initPath != "":
		return own("--init")
	case f.stateDir != "":
		return own("--state-dir")
	case f.socket == "" && a.env("", "BOXD_INIT") != "":
		return own("BOXD_INIT")
	case f.socket == "" && a.env("", "BOXD_STATE_DIR") != "":
		return own("BOXD_STATE_DIR")
	case f.socket == "" && a.env("", "BOXD_SOCKET") == "" && a.env("", "BOXD_URL") != "":
		return "BOXD_URL names a daemon of another host"
	}
	for _, text := range slices.Concat(r.cmd.Args, r.cmd.Env, []string{r.cmd.Dir}) {
		if !utf8.ValidString(text) { // which JSON would change
			return own("text that is not UTF-8")
		}
	}
	return ""
}

// forDaemon returns the request in the form of the API. It leaves no setting to the daemon.
func (r *request) forDaemon() *apitypes.RunRequest {
	s, native, namespaces := &r.spec, spec.EngineNative, spec.IsolationNamespaces
	q := &apitypes.RunRequest{Argv: r.cmd.Args, Cwd: r.cmd.Dir, Mkdir: r.cmd.MakeDir, Timeout: apitypes.Duration(r.cmd.Timeout),
		Grace: apitypes.Duration(r.cmd.Grace), OutputLimit: apitypes.Size(r.cmd.OutputLimit)}
	for _, kv := range r.cmd.Env {
		if q.Env == nil {
			q.Env = map[string]string{}
		}
		name, value, _ := strings.Cut(kv, "=")
		q.Env[name] = value
	}
	memory, tmp, upper := spec.Size(s.Limits.Memory), spec.Size(s.TmpSize), spec.Size(s.UpperSize)
	b := &q.Box
	b.Engine, b.Isolation, b.Hostname, b.User = &native, &namespaces, s.Hostname, &s.User
	b.CPUs, b.PIDs, b.Memory, b.TmpSize, b.WritableRoot = &s.Limits.CPUs, &s.Limits.PIDs, &memory, &tmp, &s.WritableRoot
	if s.WritableRoot {
		b.UpperSize = &upper
	}
	return q
}
