package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd/boxd/engine"
)

// removeVolumeLater removes a volume that is nobody's, after box, if that is not empty.
// Until it is gone no session can have it. If the manager closes before, its successor
// finds a volume without a session.
func (m *Manager) removeVolumeLater(name, box string) {
	v := &m.volumes
	v.mu.Lock()
	known, gone := v.leaving[name] != nil, make(chan struct{})
	if !known {
		v.leaving[name] = gone
	}
	v.mu.Unlock()
	if known {
		return
	}
	m.spawn(func() {
		tries := 0
		m.retry(func(ctx context.Context) error {
			err := m.dropVolume(ctx, name, box)
			if tries++; err != nil && tries == tellAfter {
				m.report(Key{}, "", fmt.Sprintf("removing the volume %q, which no session has (it will be retried): %v", name, err))
			}
			if err == nil {
				v.mu.Lock()
				delete(v.leaving, name)
				v.mu.Unlock()
				close(gone)
			}
			return err
		})
	})
}

// tellAfter is how often a volume may not be removable before operators hear of it: a
// box that is being taken apart still has it.
const tellAfter = 6

func (m *Manager) dropVolume(ctx context.Context, name, box string) error {
	if box != "" {
		if err := m.engine.Discard(ctx, box); err != nil {
			return err
		}
	}
	return m.options.Storage.RemoveVolume(ctx, name)
}

// undoVolume gives up the workspace of a session that could not be made.
func (s *session) undoVolume() {
	s.mu.Lock()
	name, box := volumeOf(s.resolved), s.boxID
	s.mu.Unlock()
	if name != "" && s.m.options.Storage != nil && !s.m.volumes.isKept(name) {
		s.m.removeVolumeLater(name, box)
	}
}

// keptKey is where the database notes that a volume without a session is kept.
func keptKey(name string) []byte { return append([]byte(keptPrefix), name...) }

const keptPrefix = "kept/"

// orphanVolumes removes workspaces that are no session's. If the database was lost they
// may be of sessions that are lost with it: those are kept, as directories are.
func (r *recovery) orphanVolumes(ctx context.Context, fresh bool) error {
	m := r.m
	if m.options.Storage == nil {
		return nil
	}
	list, err := m.options.Storage.Volumes(ctx)
	if errors.Is(err, engine.ErrNoLauncher) || ctx.Err() != nil {
		return fmt.Errorf("listing volumes: %w", err)
	}
	if err != nil {
		m.report(Key{}, "", "listing volumes: "+err.Error()) // sessions without one go on
		return nil
	}
	owned := map[string]bool{}
	for _, s := range m.all("") {
		s.mu.Lock()
		owned[volumeOf(s.resolved)] = true
		s.mu.Unlock()
	}
	there := map[string]bool{}
	var changes []change
	for _, v := range list {
		there[v.Name] = true
		switch {
		case !isVolumeName(v.Name) || owned[v.Name] || m.volumes.isKept(v.Name):
		case fresh:
			m.volumes.kept[v.Name] = true // nobody else uses it yet
			changes = append(changes, change{metaBucket, keptKey(v.Name), []byte{1}})
			m.report(Key{}, "", fmt.Sprintf("volume %q is the workspace of a session that is not known any more: kept for one of the same name", v.Name))
		default:
			m.log.Info("removing a workspace without a session", "volume", v.Name)
			m.removeVolumeLater(v.Name, "")
		}
	}
	for name := range m.volumes.kept {
		if !there[name] {
			delete(m.volumes.kept, name)
			changes = append(changes, change{metaBucket, keptKey(name), nil})
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return r.record(changes...)
}
