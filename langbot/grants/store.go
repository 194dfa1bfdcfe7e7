package grants

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/langbot/protocol"
)

// record is what the book knows about a workspace. It is never deleted.
type record struct {
	Instance   string `json:"instance"`
	Workspace  string `json:"workspace"`
	Revision   int64  `json:"revision"`          // highest seen
	Generation int64  `json:"generation"`        // highest seen
	Revoked    int64  `json:"revoked,omitempty"` // highest revoked revision
	// The limits of the highest revision:
	MaxSessions         int64 `json:"max_sessions"`
	MaxManagedProcesses int64 `json:"max_managed_processes"`

	Grant *Grant `json:"grant,omitempty"` // never changed, only replaced
	// Dirty says that the sessions have to be removed first; Mark counts how often they had
	// to be.
	Dirty bool   `json:"dirty,omitempty"`
	Mark  uint64 `json:"mark"`
}

// soil records that the sessions have to be removed.
func (r *record) soil() {
	r.Dirty = true
	r.Mark++
}

var (
	bucket    = []byte("grants")
	metas     = []byte("admission")
	policyKey = []byte("policy")
)

// load reads all records, and returns the policy as box_init sent it. A damaged record is
// an error: a revocation must not be forgotten.
func (b *Book) load() (policy json.RawMessage, err error) {
	b.records = map[protocol.WorkspaceKey]record{}
	fresh := false
	err = b.db.View(func(tx *bbolt.Tx) error { // reading works even if the disk is full
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
			id := protocol.KeyOf(r.Instance, r.Workspace)
			if string(id[:]) != string(k) {
				return fmt.Errorf("record %x: it describes instance %q, workspace %q", k, r.Instance, r.Workspace)
			}
			b.records[id] = r
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

// put writes a record, as putAll does.
func (b *Book) put(k protocol.WorkspaceKey, r record) error {
	return b.putAll(map[protocol.WorkspaceKey]record{k: r})
}

// putAll writes records, and then makes them visible to readers.
func (b *Book) putAll(changed map[protocol.WorkspaceKey]record) error {
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
	maps.Copy(b.records, changed)
	return nil
}
