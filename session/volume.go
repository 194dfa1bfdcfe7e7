package session

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/workspace"
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
	for _, m := range r.Mounts {
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
	failing bool          // the last answer was an error

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

// volumeUse is how many bytes of the volume are used. All volumes are asked for
// together, and not more often than one workspace is measured. Who cannot be asked, such
// as a launcher that is being started again, keeps no command waiting: what was known
// before counts then, and the limit of the volume holds in any case.
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
	err := m.lookAtVolumes(ctx)
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if failing := err != nil; failing != v.failing {
		if v.failing = failing; failing {
			m.report(Key{}, "", "asking for the use of volumes: "+err.Error())
		}
	}
	v.next = m.now() + max(measureEvery, measureShare*(m.now()-began))
	v.mu.Lock()
	defer v.mu.Unlock()
	used = v.used[name]
	if v.used == nil {
		v.used = map[string]int64{}
	}
	v.used[name] = used // known from now on
	return used, nil
}

// lookAtVolumes asks for all volumes. v.looking is held.
func (m *Manager) lookAtVolumes(ctx context.Context) error {
	if m.options.Storage == nil {
		return errNoStorage
	}
	ctx, cancel := context.WithTimeout(ctx, workspace.MaxTime)
	defer cancel()
	list, err := m.options.Storage.Volumes(ctx)
	if err != nil {
		return err
	}
	all := make(map[string]int64, len(list))
	for _, s := range list {
		all[s.Name] = max(0, s.UsedBytes)
	}
	m.volumes.mu.Lock()
	m.volumes.used = all
	m.volumes.mu.Unlock()
	return nil
}

// errNoStorage is what a manager without storage says.
var errNoStorage = fmt.Errorf("no storage of limited size here: %w", engine.ErrUnenforceable)
