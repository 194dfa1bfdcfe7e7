package grants

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
)

// key stands for an instance and a workspace, whatever their lengths.
type key [sha256.Size]byte

func keyOf(instance, workspace string) key {
	return sha256.Sum256([]byte(instance + "\x00" + workspace))
}

// record is what is known about a workspace, for ever.
type record struct {
	Instance   string `json:"instance"`
	Workspace  string `json:"workspace"`
	Revision   int64  `json:"revision"`          // highest seen
	Generation int64  `json:"generation"`        // highest seen
	Revoked    int64  `json:"revoked,omitempty"` // highest revoked revision
	// Limits of the highest revision.
	MaxSessions         int64 `json:"max_sessions"`
	MaxManagedProcesses int64 `json:"max_managed_processes"`

	Grant *Grant `json:"grant,omitempty"` // never changed, only replaced
	// Dirty says that sessions have to go first; Mark counts how often they had to.
	Dirty bool   `json:"dirty,omitempty"`
	Mark  uint64 `json:"mark"`
}

// soil notes that the sessions have to go.
func (r *record) soil() {
	r.Dirty = true
	r.Mark++
}

var (
	bucket    = []byte("grants")
	metas     = []byte("admission")
	policyKey = []byte("policy")
)

// load reads all records, and returns the policy as box_init had it. A record that
// cannot be read is an error: a revocation must not be forgotten.
func (b *Book) load() (policy json.RawMessage, err error) {
	b.records = map[key]record{}
	fresh := false
	err = b.db.View(func(tx *bbolt.Tx) error { // which a full disk does not refuse
		meta, all := tx.Bucket(metas), tx.Bucket(bucket)
		if fresh = meta == nil || all == nil; fresh {
			return nil
		}
		policy = bytes.Clone(meta.Get(policyKey))
		return all.ForEach(func(k, v []byte) error {
			var r record
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("record %x: %w", k, err)
			}
			if id := keyOf(r.Instance, r.Workspace); string(id[:]) != string(k) {
				return fmt.Errorf("record %x: it describes instance %q, workspace %q", k, r.Instance, r.Workspace)
			}
			b.records[key(k)] = r
			return nil
		})
	})
	if err == nil && fresh {
		err = b.db.Update(func(tx *bbolt.Tx) error {
			_, e1 := tx.CreateBucketIfNotExists(metas)
			_, e2 := tx.CreateBucketIfNotExists(bucket)
			return errors.Join(e1, e2)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reading the admission of LangBot's workspaces: %w", err)
	}
	return policy, nil
}

func (b *Book) savePolicy(raw json.RawMessage) error {
	err := b.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(metas).Put(policyKey, raw)
	})
	if err != nil {
		return fmt.Errorf("writing the admission policy: %w", err)
	}
	return nil
}

func (b *Book) record(k key) (record, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	r, ok := b.records[k]
	return r, ok
}

func (b *Book) count() int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.records)
}

func (b *Book) put(k key, r record) error { return b.putAll(map[key]record{k: r}) }

// putAll writes records, and shows them to readers when that is done.
func (b *Book) putAll(changed map[key]record) error {
	if len(changed) == 0 {
		return nil
	}
	err := b.db.Update(func(tx *bbolt.Tx) error {
		all := tx.Bucket(bucket)
		for k, r := range changed {
			v, err := json.Marshal(r)
			if err != nil {
				return err
			}
			if err := all.Put(k[:], v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("writing the admission of LangBot's workspaces: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, r := range changed {
		b.records[k] = r
	}
	return nil
}
