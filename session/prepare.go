package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// prepareWorkspace creates and limits the workspace of the next box. The caller holds the
// op.
func (s *session) prepareWorkspace(ctx context.Context) error {
	s.mu.Lock()
	r := s.record.Resolved
	s.mu.Unlock()
	switch {
	case r.Workspace != "":
		return s.prepareHost(ctx, r)
	case !r.OwnWorkspace():
		return nil
	case volumeOf(r) != "":
		return s.prepareVolume(ctx, r)
	}
	if err := s.prepareDirectory(); err != nil {
		return err
	}
	s.limitShare(ctx)
	return nil
}

// prepareDirectory creates a workspace without a hard limit.
func (s *session) prepareDirectory() error {
	if err := s.m.workspaces.Make(s.key.Tenant, s.key.ID); err != nil {
		return &storageError{"making the workspace", s.m.workspaces.Root(), err}
	}
	return nil
}

// prepareVolume creates the volume that is the workspace. If the host has no volumes and
// the session may do without its limit, a new session gets a directory. A session that has
// had a volume does not, because its files would be missing there.
func (s *session) prepareVolume(ctx context.Context, r policy.Resolved) error {
	name := volumeOf(r)
	if err := s.m.volumes.await(ctx, name); err != nil {
		return err
	}
	err := errNoStorage
	if s.m.options.Storage != nil {
		err = s.m.options.Storage.MakeVolume(ctx, engine.Volume{Name: name, Bytes: int64(r.WorkspaceSize), Inodes: r.WorkspaceInodes})
	}
	s.mu.Lock()
	fresh := s.record.Generation == 1
	s.mu.Unlock()
	if !fresh || !degradable(r, err) {
		s.setUnenforced("")
		return s.workspaceError(ctx, r, err)
	}
	s.setUnenforced(notEnforced(r, err))
	own := r.WorkspaceMount(s.m.workspaces.Path(s.key.Tenant, s.key.ID), s.m.workspaces.Root())
	r.Mounts = slices.Clone(r.Mounts)
	for i, m := range r.Mounts {
		if m.Target == own.Target {
			r.Mounts[i] = own
		}
	}
	s.mu.Lock()
	s.record.Resolved = r
	s.mu.Unlock()
	return s.prepareDirectory()
}

// prepareHost creates and limits a workspace that is a directory of the host. The limit
// outlives the session, until another session sets another limit.
func (s *session) prepareHost(ctx context.Context, r policy.Resolved) error {
	if !r.MakeWorkspace && r.WorkspaceSize == 0 {
		return nil
	}
	at := slices.IndexFunc(r.Mounts, func(m engine.Mount) bool { return m.Target == r.Target() })
	if at < 0 {
		return fmt.Errorf("session %q has lost the mount of its workspace: remove it", s.key.ID)
	}
	d := engine.Directory{Path: r.Mounts[at].Source, Within: r.Mounts[at].Within, Make: r.MakeWorkspace}
	storage := s.m.options.Storage
	if r.MakeWorkspace {
		if storage == nil {
			return s.workspaceError(ctx, r, fmt.Errorf("workspace %s: cannot be made: %w", spec.Quote(r.Workspace), errNoStorage))
		}
		d.ReadOnly = true // opened only to be created
		f, err := storage.OpenDirectory(ctx, d)
		if err != nil {
			return s.workspaceError(ctx, r, err)
		}
		f.Close()
	}
	if r.WorkspaceSize == 0 {
		return nil
	}
	err := errNoStorage
	if d.Make, d.ReadOnly = false, false; storage != nil {
		limits := engine.Volume{Bytes: int64(r.WorkspaceSize), Inodes: r.WorkspaceInodes}.WithDefaults()
		err = storage.LimitDirectory(ctx, d, limits.Bytes, limits.Inodes)
	}
	if degradable(r, err) {
		s.setUnenforced(notEnforced(r, err))
		return nil
	}
	s.setUnenforced("")
	return s.workspaceError(ctx, r, err)
}

// degradable reports whether err means that the host cannot enforce a limit and the session
// may do without it.
func degradable(r policy.Resolved, err error) bool {
	return errors.Is(err, engine.ErrUnenforceable) && r.AllowDegraded
}

// notEnforced says which limit the host does not enforce, and why.
func notEnforced(r policy.Resolved, err error) string {
	return fmt.Sprintf("workspace_size %s: %v", r.WorkspaceSize, err)
}

func (s *session) setUnenforced(what string) {
	s.mu.Lock()
	s.record.Unenforced = what
	s.mu.Unlock()
	if what != "" {
		s.m.log.Warn("a limit is not enforced", "session", s.key.String(), "limit", what)
	}
}

// workspaceError translates err, from creating or limiting the workspace of r, into the
// terms of a request.
func (s *session) workspaceError(ctx context.Context, r policy.Resolved, err error) error {
	if err == nil {
		return nil
	}
	if bad, ok := errors.AsType[*engine.FieldError](err); ok {
		return &engine.FieldError{Field: cmp.Or(requestField[bad.Field], "workspace"), Value: bad.Value, Rule: bad.Rule}
	}
	if errors.Is(err, engine.ErrUnenforceable) && r.WorkspaceSize > 0 {
		return fmt.Errorf("workspace_size %s: %w: ask for 0 (no hard limit), or set allow_degraded to continue without one",
			r.WorkspaceSize, err)
	}
	return fmt.Errorf("preparing the workspace: %w", causeOf(ctx, err))
}

// requestField maps the engine's name of a field to that of a request.
var requestField = map[string]string{
	"volume.bytes": "workspace_size", "volume.inodes": "workspace_inodes",
	"directory.bytes": "workspace_size", "directory.inodes": "workspace_inodes",
}
