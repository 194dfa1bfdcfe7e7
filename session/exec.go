package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// Exec runs a command in session key and waits for it. r describes the session, as in
// Ensure; with nil it must exist. Cancelling ctx kills the command.
//
// If the box turns out to be lost before the program runs, Exec builds a new one and starts
// the command there. If the box is lost later, the result has the verdict engine.BoxLost:
// nobody knows what the command has done by then, so Exec does not repeat it.
func (m *Manager) Exec(ctx context.Context, c Caller, key Key, r *policy.Request, e Exec) (ExecResult, error) {
	// Check the command before creating a session for it.
	if err := m.checkCommand(e); err != nil {
		return ExecResult{}, err
	}
	key, a, err := m.resolve(c, key, r)
	if err != nil {
		return ExecResult{}, err
	}
	return m.exec(ctx, c, key, a, e)
}

// checkCommand checks what can be known of a command before its session is.
func (m *Manager) checkCommand(e Exec) error {
	if e.Code != nil {
		e.Args = append([]string{e.Code.Dir}, e.Args...) // the language's command is not known yet
	} else if len(e.Args) == 0 {
		e.Args = defaultProgram
	}
	return m.command(ground{}, e).Validate()
}

// exec is Exec, once the command was checked and the session decided about.
func (m *Manager) exec(ctx context.Context, c Caller, key Key, a *asked, e Exec) (ExecResult, error) {
	began := time.Now()
	if a != nil && e.Code == nil && a.resolved.Image == engine.HostImage {
		if _, _, err := (ground{Resolved: a.resolved}).program(e.Args, ""); err != nil {
			return ExecResult{}, err
		}
	}
	if a != nil && e.Zygote != "" && len(e.Args) > 0 {
		if _, err := spec.FindZygote(m.policy.Zygotes(a.resolved), e.Zygote, e.Args); err != nil {
			return ExecResult{}, err
		}
	}
	if a != nil && e.Code != nil {
		if _, _, err := m.policy.Language(a.resolved.Profile, e.Code.Language, e.Code.File); err != nil {
			return ExecResult{}, err
		}
	}
	if !e.admitted {
		if err := m.admitStart(c, key, a); err != nil {
			return ExecResult{}, err
		}
	}
	u, err := m.acquireEarly(ctx, c, key, a)
	if err != nil {
		return ExecResult{}, err
	}
	defer func() { // not "defer u.release()": u may be replaced below
		_ = u.awaitRecord() // confirm reports an error; a command that has run has a result even so
		u.release()
	}()
	if err := u.refusePaused(); err != nil {
		m.deny(c, key, "exec", err)
		return ExecResult{}, err
	}
	run, err := m.admitExec(ctx, c, u, e)
	if err != nil {
		return ExecResult{}, err
	}
	defer run.release()
	ctx, stop := u.s.callContext(ctx)
	defer stop()
	ctx, ended := u.s.commandContext(ctx)
	defer ended()
	if e.Interrupt != nil {
		defer context.AfterFunc(ctx, e.Interrupt)()
	}
	if err := u.recordError(); err != nil { // it may have become known meanwhile
		return ExecResult{}, m.noteFailure(c, key, "exec", err)
	}

	if err := u.wake(ctx, c); err != nil {
		m.deny(c, key, "exec", err)
		return ExecResult{}, err
	}

	codeLeft := e.Code != nil
	defer func() {
		if codeLeft {
			u.s.removeCode(e.Code, u.box)
		}
	}()
	started, denied := time.Now(), u.s.refusals()
	p, err := run.start(ctx, u.box, e.Code)
	if errors.Is(err, engine.ErrPaused) && u.wake(ctx, c) == nil { // paused since
		p, err = run.start(ctx, u.box, e.Code)
	}
	if unstarted(err) {
		if u, err = m.again(ctx, c, u, a); err == nil {
			started, denied = time.Now(), u.s.refusals()
			p, err = run.start(ctx, u.box, e.Code)
		}
	}
	if errors.Is(err, engine.ErrMayHaveRun) {
		res := engine.Result{Verdict: engine.BoxLost, ExitCode: -1}
		m.rememberExec(c, u, run, started, res)
		return m.finishExec(c, u, run, res, nil, time.Since(began))
	}
	if err = u.s.orPaused(err); err != nil {
		return ExecResult{}, m.noteFailure(c, key, "exec", startError(run.cmd.Args[0], causeOf(ctx, err)))
	}
	u.s.publish(EventExecStarted, c, u.box.ID(), map[string]any{"program": run.cmd.Args[0]})
	if e.Started != nil {
		e.Started(p)
	}
	res, err := p.Wait()
	res = diskQuotaResult(res, context.Cause(ctx))
	refused := u.s.refusedSince(denied)
	if err == nil || res.Verdict != "" { // also of a command whose caller failed
		m.rememberExec(c, u, run, started, res) // before anybody learns of the result
	}
	if e.Ended != nil && err == nil {
		e.Ended(ExecResult{Result: res, Timeout: run.cmd.Timeout, Denied: refused})
	}
	took := time.Since(began)
	if e.Collect != nil && err == nil && res.Verdict != engine.BoxLost {
		if codeLeft { // it is no output
			e.Code.Remove(u.box)
			codeLeft = false
		}
		e.Collect(ctx, u.s.forAccess(u.box, nil))
	}
	out, err := m.finishExec(c, u, run, res, err, took)
	out.Denied = refused
	return out, err
}

// admitStart counts a command or process that is about to start in session key, unless the session is
// missing and is not created: then nothing starts.
func (m *Manager) admitStart(c Caller, key Key, a *asked) error {
	if a == nil {
		if _, err := m.find(key); err != nil {
			return err
		}
	}
	return m.throttle.Admit(key.Tenant, c.Limits, policy.ExecRate)
}

// startError adds the program's name to the error of a command that could not be started,
// unless err has it.
func startError(program string, err error) error {
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrNotExecutable) || errors.Is(err, engine.ErrNoDir) || errors.Is(err, engine.ErrPaused) || errors.Is(err, ErrCodeUnwritten) {
		return err
	}
	return fmt.Errorf("starting %s: %w", spec.Quote(program), err)
}

// unstarted reports whether a start failed because the box is lost and without having
// begun: it can be repeated in another box.
func unstarted(err error) bool {
	return errors.Is(err, engine.ErrBoxLost) && !errors.Is(err, engine.ErrMayHaveRun)
}

// lostTimeout bounds the time between the engine's report that a box is lost and the event
// that its PID 1 has ended.
const lostTimeout = 2 * time.Second

// again releases u, whose box is lost, and returns a hold on the box that replaces it. After
// an error it returns u, which is still held.
func (m *Manager) again(ctx context.Context, c Caller, u *use, a *asked) (*use, error) {
	select {
	case <-u.box.Done():
	case <-ctx.Done():
	case <-time.After(lostTimeout): // as far as is known, the box is not lost
	}
	u.s.markLost(u.box)
	next, err := m.acquire(ctx, c, u.s.key, a)
	if err != nil {
		return u, err
	}
	next.created = next.created || u.created
	u.release()
	return next, nil
}

// admittedExec is a command that may run and counts as running until release.
type admittedExec struct {
	cmd            engine.Command
	file           string           // of the code, if there is any
	stdout, stderr *headtail.Buffer // nil where the caller receives the output itself
	release        func()           // may be called more than once

	resolved policy.Resolved
	kept     keptOutput
}

// admitExec decides whether a command may run, and counts it.
func (m *Manager) admitExec(ctx context.Context, c Caller, u *use, e Exec) (*admittedExec, error) {
	s := u.s
	s.mu.Lock()
	ground := s.groundLocked()
	s.mu.Unlock()
	resolved := ground.Resolved
	r := &admittedExec{resolved: resolved}
	if e.Code != nil {
		language, file, err := m.policy.Language(resolved.Profile, e.Code.Language, e.Code.File)
		if err != nil {
			return nil, err
		}
		args, env := language.In(e.Code.Dir, file)
		e.Args, e.Env, r.file = append(args, e.Args...), mergeEnv(env, e.Env), file
	}
	var err error
	if e.Args, e.Dir, err = ground.program(e.Args, e.Dir); err != nil {
		return nil, err
	}
	r.cmd = m.command(ground, e)
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
	if !e.Unseen {
		r.kept.tee(&r.cmd, int64(m.policy.Keep(resolved).Output))
	}
	if err := s.checkWorkspace(ctx); err != nil {
		m.deny(c, s.key, "exec", err)
		return nil, err
	}
	if err := m.checkBudget(s.key.Tenant); err != nil {
		m.deny(c, s.key, "exec", err)
		return nil, err
	}
	release, err := m.ledger.Reserve(s.key.Tenant, policy.Use{Execs: 1})
	if err != nil {
		m.deny(c, s.key, "exec", err)
		return nil, err
	}
	d := m.policy.MayExec(resolved, e.Timeout)
	if r.cmd.Timeout == 0 {
		d.Details["timeout"] = spec.None
	}
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

// maxAuditArgs bounds how many bytes of a command line the audit log keeps.
const maxAuditArgs = 1024

func execDetails(details map[string]any, args []string) map[string]any {
	out := map[string]any{"args": shownArgs(args, maxAuditArgs)}
	maps.Copy(out, details)
	return out
}

// shownArgs returns as much of args as fits into room bytes, for people to read.
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

// cut shortens a caller's string for the audit log, whose lines are bounded.
func cut(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxAuditArgs)], "")
}

// command returns e with the settings of the session and of the policy.
func (m *Manager) command(g ground, e Exec) engine.Command {
	limit := max(0, m.options.OutputLimit) // the engine takes 0 for no limit
	switch {
	case e.NoOutputLimit:
		limit = e.OutputLimit
	case e.OutputLimit != 0 && (limit == 0 || e.OutputLimit < limit):
		limit = e.OutputLimit // Validate refuses a negative one
	}
	timeout := m.policy.Timeout(g.Resolved, e.Timeout)
	if e.noTimeout {
		timeout = e.Timeout
	}
	dir := g.workDir(e.Dir)
	return engine.Command{
		Args: e.Args, Env: g.environ(e.Env), Dir: dir, MakeDir: g.makesDir(dir, e.MakeDir), User: e.User,
		Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, TTY: e.TTY,
		Timeout: timeout, Grace: e.Grace, CancelGrace: e.CancelGrace,
		OutputLimit: limit, KeepBackground: e.KeepBackground, Zygote: e.Zygote,
	}
}

// workDir returns the directory in which a command starts: the one asked for, or else the
// workspace, unless that is in its usual place, where the engine finds it by itself.
func workDir(r policy.Resolved, asked string) string {
	elsewhere := r.Target() != engine.WorkspaceTarget && r.WorkspaceMode != spec.None
	if asked == "" && elsewhere {
		return r.Target()
	}
	return asked
}

// mergeEnv returns base with the variables of more added or replaced.
func mergeEnv(base, more []string) []string {
	env := slices.DeleteFunc(slices.Clone(base), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(more, func(other string) bool { return strings.HasPrefix(other, name+"=") })
	})
	return append(env, more...)
}

// finishExec reports how a command ended, and returns its result.
func (m *Manager) finishExec(c Caller, u *use, r *admittedExec, res engine.Result, err error, took time.Duration) (ExecResult, error) {
	s := u.s
	if err != nil {
		return ExecResult{}, m.noteFailure(c, s.key, "exec", fmt.Errorf("waiting for %s: %w", spec.Quote(r.cmd.Args[0]), err))
	}
	if res.Verdict == engine.BoxLost {
		s.markLost(u.box) // so that the view below shows it
	}
	m.counters.verdict(res.Verdict)
	if m.options.Observe != nil {
		m.options.Observe(ExecObservation{Tenant: s.key.Tenant, Duration: took, Verdict: res.Verdict, Warm: res.Warm})
	}
	details := endDetails(res)
	s.publish(EventExecEnded, c, u.box.ID(), details)
	s.lookSoon()
	// The command has run, so a failure to audit its end is only reported.
	_ = m.audit(c, s.key, audit.Entry{Action: "exec", Decision: audit.Done, Reason: string(res.Verdict), Details: details})
	r.release()
	out := ExecResult{Result: res, Timeout: r.cmd.Timeout, Session: u.view()}
	if r.stdout != nil {
		out.Stdout, out.StdoutMissing = r.stdout.Bytes()
	}
	if r.stderr != nil {
		out.Stderr, out.StderrMissing = r.stderr.Bytes()
	}
	return out, nil
}
