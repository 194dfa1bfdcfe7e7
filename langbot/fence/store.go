package fence

import (
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/langbot/protocol"
)

// bucket has a record for each workspace.
var bucket = []byte("fence")

// record is a workspace as it is stored.
type record struct {
	protocol.Context
	Dirty bool `json:"dirty,omitempty"` // leftovers of older generations may still exist
}

// load reads all records. A damaged record is an error: without it, generations that were
// kept out could get in.
func load(db *bbolt.DB) (map[protocol.WorkspaceKey]*entry, error) {
	entries := map[protocol.WorkspaceKey]*entry{}
	fresh := false
	err := db.View(func(tx *bbolt.Tx) error { // reading works even if the disk is full
		b := tx.Bucket(bucket)
		if fresh = b == nil; fresh {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			var r record
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("record %x: %w", k, err)
			}
			id := protocol.KeyOf(r.Instance, r.Workspace)
			if string(id[:]) != string(k) || r.Generation < 1 {
				return fmt.Errorf("record %x: it describes instance %q, workspace %q, generation %d", k, r.Instance, r.Workspace, r.Generation)
			}
			entries[id] = &entry{generation: r.Generation, dirty: r.Dirty}
			return nil
		})
	})
	if err == nil && fresh {
		err = db.Update(func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket(bucket)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reading the generations of LangBot's workspaces: %w", err)
	}
	return entries, nil
}

// save writes one record.
func save(db *bbolt.DB, c protocol.Context, dirty bool) error {
	v, err := json.Marshal(record{c, dirty})
	if err == nil {
		err = db.Update(func(tx *bbolt.Tx) error {
			k := protocol.KeyOf(c.Instance, c.Workspace)
			return tx.Bucket(bucket).Put(k[:], v)
		})
	}
	if err != nil {
		return fmt.Errorf("writing the generation of workspace %q: %w", c.Workspace, err)
	}
	return nil
}
