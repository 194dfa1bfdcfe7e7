package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
)

// Some slots must survive the adoption of their box. Each of them is marked by a file in the
// box's directory. For a managed process the file holds its key. For a command that left
// processes behind on purpose it is empty. All other slots belong to a client, and are
// killed when the next client adopts the box, not as soon as the client is gone: it may just
// be restarting.

// maxKey is longer than any key of a managed process.
const maxKey = 256

// handleKeep assigns a slot to a managed process.
func (b *box) handleKeep(m rpc.Keep) (any, []*os.File, error) {
	s, err := b.slot(m.Slot)
	if err != nil {
		return nil, nil, err
	}
	if m.Key == "" || m.Memory < 0 || m.Memory > spec.MaxMemory {
		return nil, nil, fmt.Errorf("keeping command %s under key %s with %d bytes of memory: %w", spec.Quote(m.Slot), spec.Quote(m.Key), m.Memory, wire.ErrProtocol)
	}
	if m.Memory > 0 && isGVisor(b.spec) {
		return nil, nil, fmt.Errorf("a memory limit of one process with isolation %q, whose kernel counts the box's memory only: %w", b.spec.Isolation, engine.ErrUnenforceable)
	}
	if m.Memory > 0 {
		if err := s.LimitMemory(m.Memory, b.spec.AllowDegraded); err != nil {
			return nil, nil, b.orLost(limitError(err))
		}
	}
	b.coarsen()
	return nil, nil, b.mark(m.Slot, m.Key)
}

func (b *box) keptDir() string { return filepath.Join(b.dir, "kept") }

// mark marks a slot, unless it has been released.
func (b *box) mark(slot, key string) error {
	if !b.service {
		return nil // the box is never adopted
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

// unmark removes the mark of a slot that is gone.
func (b *box) unmark(slot string) {
	if b.service {
		_ = os.Remove(filepath.Join(b.keptDir(), slot)) // most slots have no mark
	}
}

// kept returns the marked slots with their keys.
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

// orLost adds engine.ErrBoxLost to err if the box has ended.
func (b *box) orLost(err error) error {
	if b.stillThere() != nil {
		return fmt.Errorf("box %q: %w: %w", b.id, engine.ErrBoxLost, err)
	}
	return err
}
