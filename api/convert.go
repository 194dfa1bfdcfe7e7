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

// optionalRequest returns w as a policy.Request, or nil if w is nil: the session must exist
// then.
func optionalRequest(w *apitypes.SessionSpec) *policy.Request {
	if w == nil {
		return nil
	}
	return &policy.Request{Wishes: *w}
}

// session returns v as this caller may see it. Values of the environment may be secrets of
// those who run commands, so a viewer gets only the names.
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
	s := apitypes.Session{State: string(v.State), LastUsedAt: v.LastUsed, ExpiresAt: timePtr(v.ExpiresAt), PausedAt: timePtr(v.PausedAt), ReclaimedBytes: v.Reclaimed}
	spec.CopyFields(&s, *v)
	spec.CopyFields(&s, *r)
	s.Engine, s.Isolation, s.EngineReason, s.Degraded = v.Built.Engine, v.Built.Isolation, v.Built.Reason, v.Built.Degraded // not what was asked for
	s.Env, s.WorkspaceTarget = slices.Clone(r.Env), r.Target()
	s.Published = publishedOf(v.Published)
	for _, w := range v.Volumes {
		s.Volumes = append(s.Volumes, apitypes.AttachedVolume{Name: w.Name, Target: w.Target, ReadOnly: w.ReadOnly})
	}
	for _, m := range r.Mounts {
		// Clients need not know where boxd keeps its own workspaces.
		if m.Target == r.Target() {
			continue
		}
		if policy.IsVolumeID(m.Volume) { // among the volumes
			continue
		}
		if m.Volume != "" {
			m.Source = "volume:" + m.Volume + m.Source
		}
		s.Mounts = append(s.Mounts, apitypes.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return s
}

func publishedOf(list []session.PublishedPort) []apitypes.Published {
	out := make([]apitypes.Published, len(list))
	for i, p := range list {
		out[i] = apitypes.Published(p)
	}
	return out
}

func processOf(v *session.ProcessView) apitypes.Process {
	return apitypes.Process{
		ID: v.ID, Session: v.Session.ID, State: string(v.State), PID: v.PID, Argv: v.Args, TTY: v.TTY, Box: v.Box,
		History: apitypes.Size(v.History), DropOldest: v.DropOldest, DropStderr: v.DropStderr, Memory: apitypes.Size(v.Memory), Labels: v.Labels, StartedAt: v.StartedAt, EndedAt: timePtr(v.EndedAt),
		Ready: (*apitypes.ProcessReady)(v.Ready), ReadyAt: timePtr(v.ReadyAt), Restart: v.Restart, Restarts: v.Restarts, RestartAt: timePtr(v.RestartAt),
		Failure: v.Failure, FailureOutput: v.FailureOutput, Denied: denialsOf(v.Denied),
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

// programOf returns the command line of a request, argv or a line for the shell, and its
// environment as KEY=VALUE. Without both, which means the default command of the image, the
// command line is empty.
func programOf(argv []string, shell string, env map[string]string) (args, list []string, err error) {
	switch {
	case len(argv) > 0 && shell != "":
		return nil, nil, &engine.FieldError{Field: "shell", Value: spec.Quote(shell), Rule: "must be absent if argv is given"}
	case shell != "":
		argv = []string{"/bin/sh", "-c", shell}
	}
	list, err = policy.EnvList(env)
	return argv, list, err
}

// commandError translates err into the terms of a request that runs a command.
func commandError(err error, argv []string) error {
	program := "argv"
	if len(argv) == 0 {
		program = "shell"
	}
	if bad, ok := errors.AsType[*engine.FieldError](err); ok {
		field := ""
		switch {
		case bad.Field == "dir":
			field = "cwd"
		case bad.Field == "args":
			field = "argv"
		case bad.Field == "args and env" || strings.HasPrefix(bad.Field, "args[") && len(argv) == 0:
			field = program
		case strings.HasPrefix(bad.Field, "args["):
			field = "argv" + strings.TrimPrefix(bad.Field, "args")
		case strings.HasPrefix(bad.Field, "env["): // the index counts the session's environment too
			field = "env"
		default:
			return err
		}
		return &engine.FieldError{Field: field, Value: bad.Value, Rule: bad.Rule}
	}
	for _, e := range []struct {
		err         error
		code, field string
	}{
		{engine.ErrNoDir, apitypes.CodeNoDirectory, "cwd"},
		{engine.ErrNotFound, apitypes.CodeProgramNotFound, program},
		{engine.ErrNotExecutable, apitypes.CodeProgramNotExecutable, program},
	} {
		if errors.Is(err, e.err) {
			return &refusal{code: e.code, field: e.field, detail: err.Error(), err: err}
		}
	}
	return err
}
