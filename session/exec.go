package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/headtail"
	"github.com/boxd/boxd/policy"
)

// Exec runs a command in session key and waits for it. r says what session is
// wanted, as in Ensure; with nil it must exist. Cancelling ctx kills the command.
//
// A box that turns out to be lost before the program runs is replaced, and the
// command is started in the new one. One that is lost later is a result with the
// verdict engine.BoxLost: what the command has done by then is not known, so it is
// not repeated.
func (m *Manager) Exec(ctx context.Context, c Caller, key Key, r *policy.Request, e Exec) (ExecResult, error) {
	began := time.Now()
	// Before a session is made for it.
	if err := m.command(policy.Resolved{}, e).Validate(); err != nil {
		return ExecResult{}, err
	}
	key, a, err := m.resolve(c, key, r)
	if err != nil {
		return ExecResult{}, err
	}
	u, err := m.acquireEarly(ctx, c, key, a)
	if err != nil {
		return ExecResult{}, err
	}
	defer func() { // u may become another
		_ = u.awaitRecord() // reported there; what has run has a result all the same
		u.release()
	}()
	run, err := m.admit(ctx, c, u, e)
	if err != nil {
		return ExecResult{}, err
	}
	defer run.release()
	ctx, stop := u.s.context(ctx)
	defer stop()
	ctx, ended := u.s.working(ctx)
	defer ended()
	if err := u.unrecorded(); err != nil { // meanwhile
		return ExecResult{}, m.fail(c, key, "exec", err)
	}

	p, err := u.box.Start(ctx, run.cmd)
	if unstarted(err) {
		var again *use
		if again, err = m.again(ctx, c, u, a); err == nil {
			u.release()
			u = again
			p, err = u.box.Start(ctx, run.cmd)
		}
	}
	if errors.Is(err, engine.ErrMayHaveRun) {
		return m.finish(c, u, run, engine.Result{Verdict: engine.BoxLost, ExitCode: -1}, nil, time.Since(began))
	}
	if err != nil {
		return ExecResult{}, m.fail(c, key, "exec", startError(run.cmd.Args[0], causeOf(ctx, err)))
	}
	m.tell(u.s.event(EventExecStarted, c, u.box.ID(), map[string]any{"program": run.cmd.Args[0]}))
	if e.Started != nil {
		e.Started(p)
	}
	res, err := p.Wait()
	res = overDisk(res, context.Cause(ctx))
	if e.Ended != nil && err == nil {
		e.Ended(ExecResult{Result: res, Timeout: run.cmd.Timeout})
	}
	return m.finish(c, u, run, res, err, time.Since(began))
}

// startError names the program of a command that could not be started, unless err does.
func startError(program string, err error) error {
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrNotExecutable) || errors.Is(err, engine.ErrNoDir) {
		return err
	}
	return fmt.Errorf("starting %s: %w", spec.Quote(program), err)
}

// unstarted says that a start failed because the box is lost, and that it was not
// begun: it can be done again in another box.
func unstarted(err error) bool {
	return errors.Is(err, engine.ErrBoxLost) && !errors.Is(err, engine.ErrMayHaveRun)
}

// lostTimeout bounds the time between the engine's word that a box is lost and the
// news of the end of its PID 1.
const lostTimeout = 2 * time.Second

// again gets a hold on the box that replaces the one of u, which is lost.
func (m *Manager) again(ctx context.Context, c Caller, u *use, a *asked) (*use, error) {
	select {
	case <-u.box.Done():
	case <-ctx.Done():
	case <-time.After(lostTimeout): // the box is not lost, as far as is known
	}
	u.s.lost(u.box)
	next, err := m.acquire(ctx, c, u.s.key, a)
	if err != nil {
		return nil, err
	}
	next.created = next.created || u.created
	return next, nil
}

// run is a command that may run.
type run struct {
	cmd            engine.Command
	stdout, stderr *headtail.Buffer // nil where the caller takes the output
	release        func()           // once is enough, more do nothing
}

// admit decides whether a command may run, and counts it.
func (m *Manager) admit(ctx context.Context, c Caller, u *use, e Exec) (*run, error) {
	s := u.s
	s.mu.Lock()
	resolved := s.resolved
	s.mu.Unlock()
	r := &run{cmd: m.command(resolved, e)}
	if r.cmd.Stdout == nil {
		r.stdout = &headtail.Buffer{Limit: m.options.CaptureLimit}
		r.cmd.Stdout = r.stdout
	}
	if r.cmd.Stderr == nil && r.cmd.TTY == nil {
		r.stderr = &headtail.Buffer{Limit: m.options.CaptureLimit}
		r.cmd.Stderr = r.stderr
	}
	if err := r.cmd.Validate(); err != nil {
		return nil, err
	}
	if err := s.checkWorkspace(ctx); err != nil {
		m.deny(c, s.key, "exec", err)
		return nil, err
	}
	release, err := m.ledger.Reserve(s.key.Tenant, policy.Use{Execs: 1})
	if err != nil {
		m.deny(c, s.key, "exec", err)
		return nil, err
	}
	d := m.policy.MayExec(resolved, e.Timeout)
	entry := audit.Entry{Action: d.Action, Decision: audit.Allow, Reason: d.Rule, Details: execDetails(d.Details, r.cmd.Args)}
	if !d.Allowed {
		entry.Decision = audit.Deny
	}
	if err := m.audit(c, s.key, entry); err != nil {
		release()
		return nil, err
	}
	if !d.Allowed {
		release()
		return nil, fmt.Errorf("exec: %s: %w", d.Rule, policy.ErrDenied)
	}
	s.addExecs(1)
	r.release = sync.OnceFunc(func() {
		s.addExecs(-1)
		release()
	})
	return r, nil
}

func (s *session) addExecs(n int) {
	s.mu.Lock()
	s.execs += n
	s.mu.Unlock()
}

// maxAuditArgs bounds in bytes what the audit log keeps of a command line.
const maxAuditArgs = 1024

func execDetails(details map[string]any, args []string) map[string]any {
	out := map[string]any{}
	for k, v := range details {
		out[k] = v
	}
	out["args"] = shownArgs(args, maxAuditArgs)
	return out
}

// shownArgs is as much of args as fits into room bytes, for people.
func shownArgs(args []string, room int) (shown []string) {
	most := room / 8
	for _, arg := range args {
		if len(arg) > room || len(shown) == most {
			return append(shown, strings.ToValidUTF8(arg[:min(len(arg), room)], "")+"…")
		}
		room -= len(arg)
		shown = append(shown, arg)
	}
	return shown
}

// cut shortens a string of a caller for the audit log, whose lines are bounded.
func cut(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxAuditArgs)], "")
}

// command is e with what the session and the policy say.
func (m *Manager) command(r policy.Resolved, e Exec) engine.Command {
	return engine.Command{
		Args: e.Args, Env: mergeEnv(r.Env, e.Env), Dir: workDir(r, e.Dir), MakeDir: e.MakeDir, User: e.User,
		Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, TTY: e.TTY,
		Timeout: m.policy.Timeout(r, e.Timeout), Grace: e.Grace, CancelGrace: e.CancelGrace,
		OutputLimit: m.outputLimit(e), KeepBackground: e.KeepBackground,
	}
}

func (m *Manager) outputLimit(e Exec) int64 {
	limit := max(0, m.options.OutputLimit) // 0 is none to the engine
	switch {
	case e.NoOutputLimit:
		return 0
	case e.OutputLimit != 0 && (limit == 0 || e.OutputLimit < limit):
		return e.OutputLimit // a negative one is refused by Validate
	}
	return limit
}

// workDir is the directory that a command starts in: the one that was asked for, else
// the workspace. The engine finds one by itself where it usually is.
func workDir(r policy.Resolved, asked string) string {
	elsewhere := r.Target() != engine.WorkspaceTarget && r.WorkspaceMode != spec.None
	if asked == "" && elsewhere {
		return r.Target()
	}
	return asked
}

// mergeEnv returns base with the variables of more added or put in their place.
func mergeEnv(base, more []string) []string {
	env := slices.DeleteFunc(slices.Clone(base), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(more, func(other string) bool { return strings.HasPrefix(other, name+"=") })
	})
	return append(env, more...)
}

// finish tells everybody how a command ended.
func (m *Manager) finish(c Caller, u *use, r *run, res engine.Result, err error, took time.Duration) (ExecResult, error) {
	s := u.s
	if err != nil {
		return ExecResult{}, m.fail(c, s.key, "exec", fmt.Errorf("waiting for %s: %w", spec.Quote(r.cmd.Args[0]), err))
	}
	if res.Verdict == engine.BoxLost {
		s.lost(u.box) // so that the view below tells
	}
	m.counters.verdict(res.Verdict)
	if m.options.Observe != nil {
		m.options.Observe(ExecObservation{Tenant: s.key.Tenant, Duration: took, Verdict: res.Verdict})
	}
	details := endDetails(res)
	m.tell(s.event(EventExecEnded, c, u.box.ID(), details))
	_ = m.audit(c, s.key, audit.Entry{Action: "exec", Decision: audit.Done, Reason: string(res.Verdict), Details: details}) // it has run
	r.release()                                                                                                             // it does not run any more
	out := ExecResult{Result: res, Timeout: r.cmd.Timeout, Session: u.view()}
	if r.stdout != nil {
		out.Stdout, out.StdoutMissing = r.stdout.Bytes()
	}
	if r.stderr != nil {
		out.Stderr, out.StderrMissing = r.stderr.Bytes()
	}
	return out, nil
}
