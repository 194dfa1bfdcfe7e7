package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// removeVolumeLater removes a volume without a session in the background, after its box if
// box is not empty. No session can use the volume name until then. If the manager closes
// first, its successor finds the volume again.
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
			var err error
			if box != "" {
				err = m.engine.Discard(ctx, box)
			}
			if err == nil {
				err = m.options.Storage.RemoveVolume(ctx, name)
			}
			if tries++; err != nil && tries == reportAfter {
				m.report(Key{}, "", fmt.Sprintf("removing the volume %q, which belongs to no session (it will be retried): %v", name, err))
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

// reportAfter is the number of failed attempts to remove a volume after which operators
// hear of it: a box that is still being removed has it in use.
const reportAfter = 6

// dropNewVolume removes, in the background, the volume of a session that could not be
// created, with its box. It keeps a volume that was there before. name may be empty.
func (m *Manager) dropNewVolume(name, box string) {
	if name != "" && m.options.Storage != nil && !m.volumes.isKept(name) {
		m.removeVolumeLater(name, box)
	}
}

// keptKey is the key under which the database records that a volume without a session is
// kept.
func keptKey(name string) []byte { return append([]byte(keptPrefix), name...) }

const keptPrefix = "kept/"

// orphanVolumes removes the volumes of no session. If the database was lost, they may
// belong to sessions that were lost with it; then it keeps them, as boxd keeps directories.
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
		m.report(Key{}, "", "listing volumes: "+err.Error()) // sessions without a volume are not affected
		return nil
	}
	m.reconcileVolumes(list)
	owned := map[string]bool{}
	for _, r := range m.named.records() {
		owned[r.id()] = true
	}
	for _, s := range m.all("") {
		s.mu.Lock()
		owned[volumeOf(s.record.Resolved)] = true
		s.mu.Unlock()
	}
	there := map[string]bool{}
	var changes []change
	for _, v := range list {
		there[v.Name] = true
		switch {
		case !isVolumeName(v.Name) && !policy.IsVolumeID(v.Name) || owned[v.Name] || m.volumes.isKept(v.Name):
		case fresh:
			m.volumes.kept[v.Name] = true // needs no lock: not shared yet
			changes = append(changes, change{metaBucket, keptKey(v.Name), []byte{1}})
			m.report(Key{}, "", fmt.Sprintf("volume %q belongs to an unknown session, or was created under a name that is lost: kept for a session with the same ID, or a volume with the same name", v.Name))
		default:
			m.log.Info("removing a volume without an owner", "volume", v.Name)
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
