package langbot

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// spec reads the request's spec, in which the admission policy may override the client's wishes.
func (k *call) spec(ctx context.Context, forExec bool) (*protocol.BoxSpec, error) {
	spec, err := protocol.ParseBoxSpec(k.data, forExec)
	if err != nil {
		return nil, err
	}
	if err := k.applyAdmission(ctx, &spec); err != nil {
		return nil, err
	}
	return &spec, nil
}

// createSession makes sure that the session that the spec asks for exists.
func (k *call) createSession(ctx context.Context) (any, error) {
	spec, err := k.spec(ctx, false)
	if err != nil {
		return nil, err
	}
	for {
		b, created, err := k.ensure(ctx, spec)
		if err != nil {
			return nil, err
		}
		if created != nil {
			return k.info(b, created.View), created.AwaitRecord()
		}
		if view, err := k.touch(ctx, b, spec); !errors.Is(err, errEnded) {
			return k.info(b, view), err
		}
	}
}

// touch counts as use of a session, and gives it a new box if the old one was lost. It holds
// the session's lock; otherwise a session that ends at that moment would be created anew,
// without a record. The error is errEnded if the session has ended.
func (k *call) touch(ctx context.Context, b *box, spec *protocol.BoxSpec) (session.View, error) {
	r, err := k.request(spec)
	if err != nil {
		return session.View{}, err
	}
	unlock, err := k.s.ops.LockContext(ctx, b.physical)
	if err != nil {
		return session.View{}, err
	}
	defer unlock()
	k.s.mu.Lock()
	ended, changed := b.state != alive, !b.hasMounts(spec)
	k.s.mu.Unlock()
	if ended {
		return session.View{}, errEnded
	}
	if changed { // by another request: the record would have its mounts, and the box these
		if err := k.remount(ctx, b, spec); err != nil {
			return session.View{}, err
		}
	}
	k.keepImage(b, &r)
	return k.s.sessions.Ensure(ctx, k.who(), b.key, r)
}

// getSession describes a session and its processes.
func (k *call) getSession(context.Context) (any, error) {
	id, err := k.session()
	if err != nil {
		return nil, err
	}
	b, err := k.s.find(k.at, id)
	if err != nil {
		return nil, err
	}
	view, err := k.s.sessions.Get(b.key)
	if errors.Is(err, session.ErrNotFound) {
		return nil, notFound(k.at, b.physical)
	}
	if err != nil {
		return nil, err
	}
	info := k.info(b, view)
	processes := k.s.processesOf(b)
	if len(processes) > 0 {
		info.ManagedProcesses = map[string]protocol.ProcessInfo{}
	}
	for _, p := range processes {
		about := k.s.processInfo(p)
		info.ManagedProcesses[p.id] = about
		if p.id == protocol.DefaultProcess {
			info.ManagedProcess = &about
		}
	}
	return info, nil
}

// getSessions lists the sessions of the workspace and generation, the oldest first.
func (k *call) getSessions(context.Context) (any, error) {
	list := []protocol.SessionInfo{}
	for _, b := range k.own() {
		view, err := k.s.sessions.Get(b.key)
		if err != nil {
			continue // removed just now
		}
		list = append(list, k.info(b, view))
	}
	slices.SortStableFunc(list, func(x, y protocol.SessionInfo) int { return strings.Compare(x.CreatedAt, y.CreatedAt) })
	return map[string]any{"sessions": list}, nil
}

// own lists the live sessions of the workspace and generation.
func (k *call) own() []*box {
	return k.s.boxesWhere(func(b *box) bool { return b.state == alive && b.at == k.at })
}

// info describes a session by what the client asked for, not by what was granted.
func (k *call) info(b *box, v session.View) protocol.SessionInfo {
	k.s.mu.Lock()
	spec := b.spec
	k.s.mu.Unlock()
	return protocol.SessionInfo{
		SessionID: b.logical(), BackendName: k.s.backendName(), BackendSessionID: v.Box,
		Image: spec.Image, Network: spec.Network, HostPath: spec.HostPath, HostPathMode: spec.HostPathMode, MountPath: spec.MountPath,
		Persistent: spec.Persistent, CPUs: spec.CPUs, MemoryMB: spec.MemoryMB, PidsLimit: spec.PidsLimit,
		ReadOnlyRootfs: spec.ReadOnlyRootfs, WorkspaceQuotaMB: spec.WorkspaceQuotaMB,
		CreatedAt: protocol.Time(v.CreatedAt), LastUsedAt: protocol.Time(v.LastUsed), Warnings: v.Resolved.Warnings,
	}
}
