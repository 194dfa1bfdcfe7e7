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

// optionalRequest is w as package policy wants to know it, or nil if w is: the session
// must exist then.
func optionalRequest(w *apitypes.SessionSpec) *policy.Request {
	if w == nil {
		return nil
	}
	return &policy.Request{Wishes: *w}
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
	r := &v.Resolved
	s := apitypes.Session{
		ID: v.ID, Tenant: v.Tenant, State: string(v.State), Reason: v.Reason, Box: v.Box, Generation: v.Generation,
		Profile: r.Profile, Image: r.Image, Workspace: r.Workspace, Hostname: r.Hostname, User: r.User, Env: slices.Clone(r.Env),
		TimeoutCap: r.TimeoutCap, Overridden: r.Overridden, WorkspaceBytes: v.WorkspaceBytes,
		CreatedAt: v.CreatedAt, LastUsedAt: v.LastUsed, ExpiresAt: timePtr(v.ExpiresAt),
		Execs: v.Execs, Processes: v.Processes, Created: v.Created, Recreated: v.Recreated,
		WorkspaceTarget: r.Target(), Unenforced: v.Unenforced, Warnings: r.Warnings,
	}
	spec.CopyFields(&s, r.Settings)
	for _, m := range r.Mounts {
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
