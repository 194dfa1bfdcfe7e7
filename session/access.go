package session

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Access describes an operation on files in a box.
type Access struct {
	Action string // for the audit log, such as "file-write"
	Path   string // in the box
	// Write says that the operation may take up space. It is refused while the workspaces
	// of the tenant are over their quota.
	Write bool
	// Watch says that the operation lasts until the caller ends it. It counts as a watch, and
	// not as a running command.
	Watch bool
}

// MaxWatches bounds the watches of one session: each is a process of about four threads in the box,
// and counts towards its limits.
const MaxWatches = 8

// Access returns the box of session key for an operation on files. The operation is a
// command in the box, so it is audited and counts as a running command in quotas. r is as
// in Exec. The session counts as used until the caller calls release; calling it again does
// nothing.
func (m *Manager) Access(ctx context.Context, c Caller, key Key, r *policy.Request, a Access) (box engine.LiveBox, release func(), err error) {
	key, want, err := m.resolve(c, key, r)
	if err != nil {
		return nil, nil, err
	}
	u, err := m.acquire(ctx, c, key, want)
	if err != nil {
		return nil, nil, err
	}
	if err := u.refusePaused(); err != nil {
		u.release()
		m.deny(c, key, a.Action, err)
		return nil, nil, err
	}
	counted, err := m.admitAccess(ctx, c, u.s, a)
	if err != nil {
		u.release()
		return nil, nil, err
	}
	if err := u.wake(ctx, c); err != nil {
		counted()
		u.release()
		m.deny(c, key, a.Action, err)
		return nil, nil, err
	}
	var working context.Context
	ended := func() {}
	if a.Write {
		working, ended = u.s.commandContext(m.ctx)
	}
	return u.s.forAccess(u.box, working), sync.OnceFunc(func() { ended(); counted(); u.release() }), nil
}

// accessBox is a box whose commands start in dir unless they name a directory. If working
// is not nil, they end with it: the guard stops what fills the shared disk.
type accessBox struct {
	engine.LiveBox
	dir     string
	working context.Context
}

// forAccess returns box for operations on files. dir stays empty if the engine finds the
// workspace by itself.
func (s *session) forAccess(box engine.LiveBox, working context.Context) engine.LiveBox {
	s.mu.Lock()
	dir := workDir(s.record.Resolved, "")
	s.mu.Unlock()
	if dir == "" && working == nil {
		return box
	}
	return &accessBox{box, dir, working}
}

func (b *accessBox) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	cmd.Dir = cmp.Or(cmd.Dir, b.dir)
	if b.working == nil {
		return b.LiveBox.Start(ctx, cmd)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(b.working, func() { cancel(context.Cause(b.working)) })
	p, err := b.LiveBox.Start(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return &guardedProcess{p, b.working}, nil
}

type guardedProcess struct {
	engine.Process
	working context.Context
}

// Wait fails with the reason if the guard has ended the command.
func (p *guardedProcess) Wait() (engine.Result, error) {
	res, err := p.Process.Wait()
	if full, ok := errors.AsType[*diskError](context.Cause(p.working)); ok && err == nil && res.Verdict == engine.Canceled {
		err = full
	}
	return res, err
}

// Look is Access for read-only callers. It does not count as use, so it keeps no session
// alive, and it builds no new box for a lost one: box is nil then.
func (m *Manager) Look(ctx context.Context, c Caller, key Key, a Access) (box engine.LiveBox, release func(), err error) {
	s, err := m.findSettled(key)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	running, u, paused := s.record.State == Running, s.lookLocked(), s.pausedLocked()
	s.mu.Unlock()
	if !running {
		return nil, func() {}, nil
	}
	if paused { // to look is no use, and resumes nothing
		return nil, nil, s.pausedError()
	}
	if err := u.awaitRecord(); err != nil {
		return nil, nil, err
	}
	if release, err = m.admitAccess(ctx, c, s, a); err != nil {
		return nil, nil, err
	}
	return s.forAccess(u.box, nil), release, nil
}

func (m *Manager) admitAccess(ctx context.Context, c Caller, s *session, a Access) (release func(), err error) {
	if a.Write {
		if err := s.checkWorkspace(ctx); err != nil {
			m.deny(c, s.key, a.Action, err)
			return nil, err
		}
	}
	if a.Watch {
		release, err = s.admitWatch()
	} else {
		release, err = m.ledger.Reserve(s.key.Tenant, policy.Use{Execs: 1})
	}
	if err != nil {
		m.deny(c, s.key, a.Action, err)
		return nil, err
	}
	err = m.audit(c, s.key, audit.Entry{Action: a.Action, Decision: audit.Allow, Details: map[string]any{"path": cut(a.Path)}})
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// admitWatch counts one more watch.
func (s *session) admitWatch() (release func(), err error) {
	counted, err := s.m.ledger.Reserve(s.key.Tenant, policy.Use{Watches: 1})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches == MaxWatches {
		counted()
		return nil, &policy.QuotaError{Tenant: s.key.Tenant, Resource: "watches_per_session", Limit: strconv.Itoa(MaxWatches), InUse: strconv.Itoa(s.watches), Asked: "1",
			Advice: "end a watch of session " + spec.Quote(s.key.ID) + ", or watch with recursive=1 from one directory"}
	}
	s.watches++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.watches--
		s.mu.Unlock()
		counted()
	}), nil
}

// Note writes into the audit log that the caller may do something to the process that does
// not pass through this package, such as sending a signal. If Note fails, the caller must
// not do it.
func (p *Process) Note(c Caller, action string, details map[string]any) error {
	return p.s.m.audit(c, p.s.key, audit.Entry{Action: action, Process: p.id, Decision: audit.Allow, Details: details})
}
