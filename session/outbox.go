package session

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/boxd/boxd/policy"
)

// Ending is the end of a managed process, or of a session.
type Ending struct {
	// Event says what has ended and how. Its type is EventProcessExited, EventProcessStopped,
	// EventExpired or EventRemoved, and its Seq 0.
	Event
	// Process is the process as its end was recorded, with as much of its command lines and output as
	// the profile lets the history keep, and at most 4 KiB of each. Nil: the session has ended.
	Process *ProcessView
}

// Outbox turns ends into entries, which it delivers to somebody once they are stored. The manager
// writes the entries of an end in the transaction that records the end, so that it loses none. Methods
// other than Close must not block.
type Outbox interface {
	// Open is called once, before the others, with the stored entries in the order of their keys.
	// The outbox calls remove for entries that are no longer needed.
	Open(stored []OutboxEntry, remove func(keys []string) error)
	// Entries returns what is to be stored about an end; an end that cannot be recorded is asked
	// about again. Keys have no other entry.
	Entries(Ending) []OutboxEntry
	// Stored says that entries are in the database.
	Stored([]OutboxEntry)
	// Close returns when remove is not called any more.
	Close()
}

// OutboxEntry is what the database keeps for an [Outbox].
type OutboxEntry struct {
	Key   string
	Value []byte
}

// announcement is what the outbox is to have about some ends.
type announcement struct {
	m       *Manager
	entries []OutboxEntry
}

// announce asks the outbox about ends that are about to be recorded.
func (m *Manager) announce(ends ...Ending) announcement {
	a := announcement{m: m}
	if m.options.Outbox == nil {
		return a
	}
	for _, e := range ends {
		if e.Time.IsZero() {
			e.Time = time.Now().Round(0)
		}
		a.entries = append(a.entries, m.options.Outbox.Entries(e)...)
	}
	return a
}

// changes returns what belongs into the transaction that records the ends.
func (a announcement) changes() (list []change) {
	for _, e := range a.entries {
		list = append(list, e.put())
	}
	return list
}

func (e OutboxEntry) put() change { return change{outboxBucket, []byte(e.Key), withSum(e.Value)} }

// stored tells the outbox that the transaction was committed.
func (a announcement) stored() {
	if len(a.entries) > 0 {
		a.m.options.Outbox.Stored(a.entries)
	}
}

// noteTold is called when a transaction with untold was committed. Of several that had it one tells the outbox.
func (p *Process) noteTold() {
	p.s.mu.Lock()
	told := p.untold
	p.untold = announcement{}
	p.s.mu.Unlock()
	told.stored()
}

// openOutbox hands the stored entries over.
func (m *Manager) openOutbox(stored []OutboxEntry) {
	if m.options.Outbox == nil {
		return
	}
	m.options.Outbox.Open(stored, func(keys []string) error {
		var changes []change
		for _, k := range keys {
			changes = append(changes, change{outboxBucket, []byte(k), nil})
		}
		return m.store.write(changes...)
	})
}

func (m *Manager) closeOutbox() {
	if m.options.Outbox != nil {
		m.options.Outbox.Close()
	}
}

// endingAs returns the end of p as end records it. The caller holds no lock.
func (p *Process) endingAs(end processRecord) Ending {
	e := Ending{Event: p.endEvent(end)}
	e.Time = end.EndedAt
	p.s.mu.Lock()
	v, resolved := p.viewLocked(&end, nil), p.s.record.Resolved
	p.s.mu.Unlock()
	keep := p.s.m.policy.Keep(resolved)
	v.Args = keptArgs(keep.Argv, v.Args)
	if v.Ready != nil && len(v.Ready.Command) > 0 {
		ready := *v.Ready
		ready.Command = keptArgs(keep.Argv, shownArgs(ready.Command, maxRecordArgs))
		v.Ready = &ready
	}
	if keep.Output == 0 {
		v.FailureOutput = ""
	}
	e.Process = &v
	return e
}

// keptArgs returns as much of a command line as keep, the keep_argv of a profile, allows.
func keptArgs(keep string, args []string) []string {
	switch keep {
	case policy.KeepProgram:
		return args[:min(1, len(args))]
	case policy.KeepNone:
		return nil
	}
	return args
}

func decodeOutbox(key, value []byte) (OutboxEntry, error) {
	if len(value) < 4 || crc32.ChecksumIEEE(value[4:]) != binary.BigEndian.Uint32(value) {
		return OutboxEntry{}, fmt.Errorf("outbox entry %q: wrong checksum", key)
	}
	return OutboxEntry{string(key), append([]byte(nil), value[4:]...)}, nil
}
