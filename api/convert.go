package api

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// requestOf is s as package policy wants to know it.
func requestOf(s *apitypes.SessionSpec) policy.Request {
	return policy.Request{
		Profile: s.Profile, Image: s.Image, Network: s.Network, CPUs: s.CPUs, Memory: (*spec.Size)(s.Memory), PIDs: s.PIDs,
		WritableRoot: s.WritableRoot, WorkspaceMode: s.WorkspaceMode, Workspace: s.Workspace, Mounts: mountsOf(s.Mounts),
		User: s.User, Env: s.Env, IdleTTL: (*spec.Duration)(s.IdleTTL), MaxLifetime: (*spec.Duration)(s.MaxLifetime),
		Persistent: s.Persistent, Timeout: (*spec.Duration)(s.Timeout), TmpSize: (*spec.Size)(s.TmpSize),
		UpperSize: (*spec.Size)(s.UpperSize), Hostname: s.Hostname,
		WorkspaceSize: (*spec.Size)(s.WorkspaceSize), WorkspaceInodes: s.WorkspaceInodes, WorkspaceTarget: s.WorkspaceTarget,
	}
}

// optionalRequest is requestOf(s), or nil if s is: the session must exist then.
func optionalRequest(s *apitypes.SessionSpec) *policy.Request {
	if s == nil {
		return nil
	}
	r := requestOf(s)
	return &r
}

// mountsOf keeps the difference between none and not said.
func mountsOf(list []apitypes.Mount) []policy.Mount {
	if list == nil {
		return nil
	}
	all := make([]policy.Mount, len(list))
	for i, m := range list {
		all[i] = policy.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly}
	}
	return all
}

func updateOf(u *apitypes.SessionUpdate) session.Update {
	return session.Update{
		Attach: mountsOf(u.Attach), Detach: u.Detach, Network: u.Network, IdleTTL: (*spec.Duration)(u.IdleTTL),
		MaxLifetime: (*spec.Duration)(u.MaxLifetime), Persistent: u.Persistent, CPUs: u.CPUs,
		Memory: (*spec.Size)(u.Memory), PIDs: u.PIDs,
	}
}

// session is v for this caller. Values of the environment may be secrets of those
// who run commands: a viewer gets the names.
func (c *call) session(v *session.View) apitypes.Session {
	s := sessionOf(v)
	if c.who.Role < Operator {
		for i, e := range s.Env {
			s.Env[i], _, _ = strings.Cut(e, "=")
		}
	}
	return s
}

func sessionOf(v *session.View) apitypes.Session {
	r, spec := &v.Resolved, &v.Resolved.Spec
	s := apitypes.Session{
		ID: v.ID, Tenant: v.Tenant, State: string(v.State), Reason: v.Reason, Box: v.Box, Generation: v.Generation,
		Profile: r.Profile, Image: spec.Image, Network: r.Network, CPUs: spec.Limits.CPUs, Memory: apitypes.Size(spec.Limits.Memory),
		PIDs: spec.Limits.PIDs, WritableRoot: spec.WritableRoot, WorkspaceMode: r.WorkspaceMode, Workspace: r.Workspace,
		TmpSize: apitypes.Size(spec.TmpSize), Hostname: spec.Hostname, User: spec.User, Env: slices.Clone(r.Env),
		Persistent: r.Persistent, IdleTTL: apitypes.Duration(r.IdleTTL), MaxLifetime: apitypes.Duration(r.MaxLifetime),
		Timeout: apitypes.Duration(r.Timeout), TimeoutCap: apitypes.Duration(r.TimeoutCap), Overridden: r.Overridden,
		WorkspaceBytes: v.WorkspaceBytes, CreatedAt: v.CreatedAt, LastUsedAt: v.LastUsed, ExpiresAt: timePtr(v.ExpiresAt),
		Execs: v.Execs, Processes: v.Processes, Created: v.Created, Recreated: v.Recreated,
		WorkspaceTarget: r.Target(), WorkspaceSize: apitypes.Size(r.WorkspaceSize), WorkspaceInodes: r.WorkspaceInodes, Unenforced: v.Unenforced, Warnings: r.Warnings,
	}
	for _, m := range spec.Mounts {
		// Where boxd keeps its own workspaces is nobody's business.
		if m.Target == r.Target() {
			continue
		}
		if m.Volume != "" {
			m.Source = "volume:" + m.Volume + m.Source
		}
		s.Mounts = append(s.Mounts, apitypes.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return s
}

func processOf(v *session.ProcessView) apitypes.Process {
	return apitypes.Process{
		ID: v.ID, Session: v.Session.ID, State: string(v.State), PID: v.PID, Argv: v.Args, TTY: v.TTY, Box: v.Box,
		History: apitypes.Size(v.History), DropOldest: v.DropOldest, DropStderr: v.DropStderr, Memory: apitypes.Size(v.Memory), StartedAt: v.StartedAt, EndedAt: timePtr(v.EndedAt),
		ExitCode: v.ExitCode, Signal: linux.SignalName(v.Signal), Verdict: string(v.Verdict), Limit: v.Limit,
	}
}

func receiptOf(r *engine.Receipt) apitypes.Receipt {
	return apitypes.Receipt{
		Wall: apitypes.Duration(r.Wall), User: durationPtr(r.User), System: durationPtr(r.System), MemoryPeak: r.MemoryPeak,
		PIDsPeak: r.PIDsPeak, StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes, Throttled: durationPtr(r.Throttled),
		IOReadBytes: r.IOReadBytes, IOWriteBytes: r.IOWriteBytes, OOMKills: r.OOMKills, PIDsLimitReached: r.PIDsLimitReached,
	}
}

func durationPtr(d *time.Duration) *apitypes.Duration { return (*apitypes.Duration)(d) }

func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// envOf is env as KEY=VALUE, sorted.
func envOf(env map[string]string) ([]string, error) {
	list := make([]string, 0, len(env))
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return nil, &engine.FieldError{Field: "env", Value: spec.Quote(k), Rule: `a name must not be empty and must hold neither "=" nor NUL`}
		}
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list, nil
}

// commandError is err in the words of a request that runs a command.
func commandError(err error, argv []string) error {
	program := "argv"
	if len(argv) == 0 {
		program = "shell"
	}
	var bad *engine.FieldError
	switch {
	case errors.As(err, &bad) && bad.Field == "dir":
		return &engine.FieldError{Field: "cwd", Value: bad.Value, Rule: bad.Rule}
	case errors.As(err, &bad) && bad.Field == "args and env":
		return &engine.FieldError{Field: program, Value: bad.Value, Rule: bad.Rule}
	case errors.As(err, &bad) && strings.HasPrefix(bad.Field, "args["):
		field := "shell"
		if len(argv) > 0 {
			field = "argv" + strings.TrimPrefix(bad.Field, "args")
		}
		return &engine.FieldError{Field: field, Value: bad.Value, Rule: bad.Rule}
	case errors.As(err, &bad) && strings.HasPrefix(bad.Field, "env["): // an index of the environment that the session has, too
		return &engine.FieldError{Field: "env", Value: bad.Value, Rule: bad.Rule}
	case errors.Is(err, engine.ErrNoDir):
		return &refusal{code: apitypes.CodeNoDirectory, field: "cwd", detail: err.Error(), err: err}
	case errors.Is(err, engine.ErrNotFound):
		return &refusal{code: apitypes.CodeProgramNotFound, field: program, detail: err.Error(), err: err}
	case errors.Is(err, engine.ErrNotExecutable):
		return &refusal{code: apitypes.CodeProgramNotExecutable, field: program, detail: err.Error(), err: err}
	}
	return err
}

// argsOf is what is to be run: argv, or a line for the shell.
func argsOf(argv []string, shell string) ([]string, error) {
	switch {
	case len(argv) > 0 && shell != "":
		return nil, &engine.FieldError{Field: "shell", Value: spec.Quote(shell), Rule: "must be absent if argv is given"}
	case shell != "":
		return []string{"/bin/sh", "-c", shell}, nil
	case len(argv) == 0:
		return nil, &engine.FieldError{Field: "argv", Value: "[]", Rule: "must name a program, or shell must be given"}
	}
	return argv, nil
}
