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

// The name of a volume that is the workspace of a session is volumePrefix and volumeDigits
// hexadecimal digits. Volumes with other names are not used here.
const (
	volumePrefix = "w-"
	volumeDigits = 40
)

// volumeName returns the name of the volume that is the workspace of session key. It is a
// part of a digest, because a volume's name is shorter than a session's.
func volumeName(key Key) string {
	sum := sha256.Sum256(sessionKey(key))
	return volumePrefix + hex.EncodeToString(sum[:volumeDigits/2])
}

func isVolumeName(name string) bool {
	digits, ok := strings.CutPrefix(name, volumePrefix)
	return ok && len(digits) == volumeDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

// volumeOf returns the volume that is the workspace of r; empty if the workspace is a
// directory, or there is none.
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
	looking sync.Mutex    // held while the engine is asked for all volumes; taken before mu
	next    time.Duration // time of m.now before which the engine is not asked again
	failing bool          // the last answer was an error

	mu   sync.Mutex
	used map[string]int64 // bytes, by the last answer
	// leaving has the volumes without a session that are being removed. The channel is
	// closed when the volume is gone.
	leaving map[string]chan struct{}
	// kept has the volumes that were found without a session after the database was lost:
	// a session that is created again finds its files. The database records them.
	kept map[string]bool
}

func (v *volumes) isKept(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.kept[name]
}

// claim records that a session has the volume.
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

// volumeUse returns how many bytes of the volume are used. It asks for all volumes
// together, and no more often than one workspace is measured. If the launcher cannot
// answer, for example because it is being restarted, no command waits for it: the last
// figure counts then, and the limit of the volume holds in any case.
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

// lookAtVolumes asks the engine for all volumes. The caller holds v.looking.
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

// errNoStorage is the error of a manager without storage.
var errNoStorage = fmt.Errorf("no storage of limited size here: %w", engine.ErrUnenforceable)
