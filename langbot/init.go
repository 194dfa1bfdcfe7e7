package langbot

import (
	"context"
	"fmt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/langbot/protocol"
)

// init installs the configuration that a client sends first. All of it is checked before
// anything changes.
func (k *call) init(ctx context.Context) (any, error) {
	s := k.s
	unlock, err := s.ops.LockContext(ctx, "init\x00") // one at a time, because all instances share the admission policy
	if err != nil {
		return nil, err
	}
	defer unlock()
	old := k.settings()
	next, err := old.merged(k.data, s.o.Roots)
	if err != nil {
		return nil, err
	}
	if err := s.makeWorkspace(ctx, next.local); err != nil {
		return nil, err
	}
	if err := k.checkSkills(ctx, &next.local); err != nil {
		return nil, err
	}
	if err := s.configureAdmission(k.at.Instance, next.said["admission"]); err != nil {
		return nil, err
	}
	if len(next.local.ignored) > 0 {
		s.log.Warn("box.local names relative paths, which have no meaning for a daemon: use absolute ones", "instance", k.at.Instance, "paths", next.local.ignored)
	}
	s.log.Info("box_init", "instance", k.at.Instance, "settings", fmt.Sprintf("default_workspace %q, skills_root %q, allowed_mount_roots %q, max_sessions %d",
		next.local.workspace, next.local.skills, next.local.narrowed, next.limits.MaxSessions))
	s.mu.Lock()
	s.settings[k.at.Instance], s.latest = next, k.at.Instance
	s.mu.Unlock()
	return map[string]any{"initialized": true}, nil
}

// makeWorkspace creates the directory that holds an instance's workspaces.
func (s *Server) makeWorkspace(ctx context.Context, l local) error {
	if l.workspace == "" {
		return nil
	}
	if l.within == "" {
		return protocol.Errorf(protocol.BoxValidation, "box.local.default_workspace %q: must be in one of the allowed mount roots: the operator allows %q (allowed_mount_roots), the client %q",
			l.workspace, s.o.Roots, l.narrowed)
	}
	storage := s.storage()
	if storage == nil {
		return protocol.Errorf(protocol.BoxValidation, "box.local.default_workspace %q: this engine cannot create directories", l.workspace)
	}
	dir, err := storage.OpenDirectory(ctx, engine.Directory{Path: l.workspace, Within: l.within, Make: true, ReadOnly: true})
	if err != nil {
		return protocol.Errorf(protocol.BoxValidation, "box.local.default_workspace %q: %v", l.workspace, err)
	}
	return dir.Close()
}
