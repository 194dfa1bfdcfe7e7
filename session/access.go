package session

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// Access is an operation on files in a box.
type Access struct {
	Action string // for the audit log, such as "file-write"
	Path   string // in the box
	// Write says that it may take up space: it is refused while the workspaces of the
	// tenant are over their quota.
	Write bool
}

// Access returns the box of session key for an operation on files, which is a command
// in the box: it counts as a running one in quotas and is audited. r is as in Exec. The
// session counts as used until release is called, which must be done; calling it again
// does nothing.
func (m *Manager) Access(ctx context.Context, c Caller, key Key, r *policy.Request, a Access) (box engine.LiveBox, release func(), err error) {
	key, want, err := m.resolve(c, key, r)
	if err != nil {
		return nil, nil, err
	}
	u, err := m.acquire(ctx, c, key, want)
	if err != nil {
		return nil, nil, err
	}
	counted, err := m.admitAccess(ctx, c, u.s, a)
	if err != nil {
		u.release()
		return nil, nil, err
	}
	box = u.s.placed(u.box)
	ended := func() {}
	if a.Write {
		var working context.Context
		working, ended = u.s.working(m.ctx)
		box = &guardedBox{box, working}
	}
	return box, sync.OnceFunc(func() { ended(); counted(); u.release() }), nil
}

// guardedBox is a box whose commands end with working, such as when they fill the disk of all.
type guardedBox struct {
	engine.LiveBox
	working context.Context
}

func (b *guardedBox) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
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

// placed is box with its commands in the workspace of s, if the engine does not find
// that by itself.
func (s *session) placed(box engine.LiveBox) engine.LiveBox {
	s.mu.Lock()
	dir := workDir(s.resolved, "")
	s.mu.Unlock()
	if dir == "" {
		return box
	}
	return &placedBox{box, dir}
}

// placedBox is a box whose commands start in dir unless they say otherwise.
type placedBox struct {
	engine.LiveBox
	dir string
}

func (b *placedBox) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	cmd.Dir = cmp.Or(cmd.Dir, b.dir)
	return b.LiveBox.Start(ctx, cmd)
}

// Look is Access for callers who may only look: it does not count as use, so it keeps
// no session alive, and it makes no new box for one that was lost: box is nil then.
func (m *Manager) Look(ctx context.Context, c Caller, key Key, a Access) (box engine.LiveBox, release func(), err error) {
	if box, err = m.Peek(key); err != nil || box == nil {
		return nil, func() {}, err
	}
	s, err := m.find(key)
	if err != nil {
		return nil, nil, err
	}
	u := s.look()
	if u.box != box { // another one, or none any more
		return nil, func() {}, nil
	}
	if err := u.awaitRecord(); err != nil {
		return nil, nil, err
	}
	if release, err = m.admitAccess(ctx, c, s, a); err != nil {
		return nil, nil, err
	}
	return s.placed(box), release, nil
}

func (m *Manager) admitAccess(ctx context.Context, c Caller, s *session, a Access) (release func(), err error) {
	if a.Write {
		if err := s.checkWorkspace(ctx); err != nil {
			m.deny(c, s.key, a.Action, err)
			return nil, err
		}
	}
	release, err = m.ledger.Reserve(s.key.Tenant, policy.Use{Execs: 1})
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

// Note writes into the audit log that the caller may do something to the process that
// does not pass through this package, such as sending a signal. If it cannot be
// written, it must not be done.
func (p *Process) Note(c Caller, action string, details map[string]any) error {
	return p.s.m.audit(c, p.s.key, audit.Entry{Action: action, Process: p.id, Decision: audit.Allow, Details: details})
}
