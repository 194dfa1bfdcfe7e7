package session

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// A volume of the engine that is the workspace of a session is called
// volumePrefix and volumeDigits hexadecimal digits. Volumes of other names are
// somebody else's.
const (
	volumePrefix = "w-"
	volumeDigits = 40
)

// volumeName is the name of the volume that is the workspace of session key: part of a
// digest, because names of volumes are shorter than those of sessions.
func volumeName(key Key) string {
	sum := sha256.Sum256(sessionKey(key))
	return volumePrefix + hex.EncodeToString(sum[:volumeDigits/2])
}

func isVolumeName(name string) bool {
	digits, ok := strings.CutPrefix(name, volumePrefix)
	return ok && len(digits) == volumeDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

// volumeOf is the volume that r has as its workspace; empty if that is a directory, or
// none.
func volumeOf(r policy.Resolved) string {
	if !r.OwnWorkspace() {
		return ""
	}
	for _, m := range r.Spec.Mounts {
		if m.Target == r.Target() {
			return m.Volume
		}
	}
	return ""
}

// volumes is what the manager knows about workspaces that are volumes.
type volumes struct {
	// looking is held by who asks for all of them; above mu.
	looking sync.Mutex
	next    time.Duration // of m.now, before which nobody asks again

	mu   sync.Mutex
	used map[string]int64 // bytes, when they were asked for last
	// leaving are being removed, and belong to nobody: closed when they are gone.
	leaving map[string]chan struct{}
	// kept were found without a session when the database was lost: a session that
	// comes back finds its files. It is noted in the database.
	kept map[string]bool
}

func (v *volumes) isKept(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.kept[name]
}

// claim says that a session has the volume.
func (v *volumes) claim(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.kept, name)
}

// await waits until a volume of this name that was left behind is gone.
func (v *volumes) await(ctx context.Context, name string) error {
	v.mu.Lock()
	gone := v.leaving[name]
	v.mu.Unlock()
	if gone == nil {
		return nil
	}
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the removal of the workspace of a former session: %w", context.Cause(ctx))
	}
}

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
				m.report(Key{}, "", fmt.Sprintf("removing the volume %q, which no session has (it is tried again): %v", name, err))
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

// volumeUse is how many bytes of the volume are used. All volumes are asked for
// together, and not more often than one workspace is measured.
func (m *Manager) volumeUse(ctx context.Context, name string) (int64, error) {
	v := &m.volumes
	v.looking.Lock()
	defer v.looking.Unlock()
	v.mu.Lock()
	used, known := v.used[name]
	v.mu.Unlock()
	began := m.now()
	if known && began < v.next {
		return used, nil
	}
	if m.options.Storage == nil {
		return 0, errNoStorage
	}
	list, err := m.options.Storage.Volumes(ctx)
	if err != nil {
		return 0, err
	}
	all := make(map[string]int64, len(list))
	for _, s := range list {
		all[s.Name] = max(0, s.UsedBytes)
	}
	v.mu.Lock()
	v.used = all
	v.mu.Unlock()
	v.next = m.now() + max(measureEvery, measureShare*(m.now()-began))
	return all[name], nil
}

// errNoStorage is what a manager without storage says.
var errNoStorage = fmt.Errorf("no storage of limited size here: %w", engine.ErrUnenforceable)

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
	return m.store.write(changes...)
}
