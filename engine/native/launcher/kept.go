package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
)

// Slots that an adoption of the box spares are marked by a file each in its directory:
// those of managed processes, whose key it holds, and, empty, those in which a command
// left processes on purpose. The slots of all other commands belong to a client, and
// end when the next one adopts the box: not before, because a client that is started
// again is soon there, and until then nobody knows that none will come.

// maxKey is longer than any key of a managed process.
const maxKey = 256

// handleKeep makes a slot that of a managed process.
func (l *Launcher) handleKeep(r *request) error {
	var m rpc.Keep
	b, err := l.find(r, &m, func() string { return m.ID })
	if err != nil {
		return err
	}
	s, err := b.slot(m.Slot)
	if err != nil {
		return err
	}
	if m.Key == "" || m.Memory < 0 || m.Memory > spec.MaxMemory {
		return fmt.Errorf("keeping command %s under key %s with %d bytes of memory: %w", spec.Quote(m.Slot), spec.Quote(m.Key), m.Memory, wire.ErrProtocol)
	}
	if m.Memory > 0 {
		err := s.LimitMemory(m.Memory, b.spec.AllowDegraded)
		var cannot *cgroups.UnenforceableError
		if errors.As(err, &cannot) {
			err = fmt.Errorf("%w: %w", engine.ErrUnenforceable, err)
		}
		if err != nil {
			return b.orLost(err)
		}
	}
	b.coarsen()
	return b.mark(m.Slot, m.Key)
}

func (b *box) keptDir() string { return filepath.Join(b.dir, "kept") }

// mark spares a slot that exists.
func (b *box) mark(slot, key string) error {
	if !b.service {
		return nil // nobody adopts it
	}
	if len(key) > maxKey {
		return fmt.Errorf("key of %d bytes: %w", len(key), wire.ErrProtocol)
	}
	b.mu.Lock()
	_, ok := b.slots[slot]
	b.mu.Unlock()
	if !ok {
		return nil // released already
	}
	if err := os.Mkdir(b.keptDir(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("marking command %q of box %q: %w", slot, b.id, err)
	}
	if err := replaceFile(filepath.Join(b.keptDir(), slot), []byte(key)); err != nil {
		return fmt.Errorf("marking command %q of box %q: %w", slot, b.id, err)
	}
	return nil
}

// unmark drops the mark of a slot that is gone.
func (b *box) unmark(slot string) {
	if b.service {
		_ = os.Remove(filepath.Join(b.keptDir(), slot)) // most have none
	}
}

// kept says which slots are marked, with their keys.
func (b *box) kept() (map[string]string, error) {
	marks, err := os.ReadDir(b.keptDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	keys := map[string]string{}
	for _, m := range marks {
		key, err := os.ReadFile(filepath.Join(b.keptDir(), m.Name()))
		if err != nil {
			return nil, err
		}
		keys[m.Name()] = string(key)
	}
	return keys, nil
}

// orLost adds to a failure that the box has ended, if that is why.
func (b *box) orLost(err error) error {
	if b.stillThere() != nil {
		return fmt.Errorf("box %q: %w: %w", b.id, engine.ErrBoxLost, err)
	}
	return err
}
