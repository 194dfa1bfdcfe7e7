package langbot

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// spec reads the request's spec, as far as admission lets it stand.
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

// createSession makes sure that there is the session that the spec asks for.
func (k *call) createSession(ctx context.Context) (any, error) {
	spec, err := k.spec(ctx, false)
	if err != nil {
		return nil, err
	}
	for {
		b, made, err := k.ensure(ctx, spec)
		if err != nil {
			return nil, err
		}
		if made != nil {
			return k.info(b, made.View), made.AwaitRecord()
		}
		view, err := k.touch(ctx, b, spec)
		if !errors.Is(err, errEnded) {
			return k.info(b, view), err
		}
	}
}

// touch counts as use of a session, and makes a new box for it where the old one was
// lost. It holds the session's lock, for without it a session that ends just then
// would be made anew, and be on no record. errEnded: it has ended.
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
	if changed { // by another request, whose mounts would be on record and these in the box
		if err := k.remount(ctx, b, spec); err != nil {
			return session.View{}, err
		}
	}
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
	for _, p := range k.s.processesOf(b) {
		if info.ManagedProcesses == nil {
			info.ManagedProcesses = map[string]protocol.ProcessInfo{}
		}
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
			continue // gone this moment
		}
		list = append(list, k.info(b, view))
	}
	slices.SortStableFunc(list, func(x, y protocol.SessionInfo) int { return strings.Compare(x.CreatedAt, y.CreatedAt) })
	return map[string]any{"sessions": list}, nil
}

// own are the live sessions of the workspace and generation.
func (k *call) own() []*box {
	return k.s.boxesWhere(func(b *box) bool { return b.state == alive && b.at == k.at })
}

// info describes a session: with what was asked for, not with what it became.
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
