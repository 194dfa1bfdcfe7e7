package fence

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/langbot/protocol"
)

// key stands for an instance and a workspace, whatever their lengths.
type key [sha256.Size]byte

func keyOf(instance, workspace string) key {
	return sha256.Sum256([]byte(instance + "\x00" + workspace))
}

// bucket has a record for each key.
var bucket = []byte("fence")

// record is a workspace as it is kept.
type record struct {
	protocol.Context
	Dirty bool `json:"dirty,omitempty"` // what older generations left may still be there
}

// load reads all records. One that cannot be read is an error: who was kept out
// would get in.
func load(db *bbolt.DB) (map[key]*entry, error) {
	entries := map[key]*entry{}
	fresh := false
	err := db.View(func(tx *bbolt.Tx) error { // which a full disk does not refuse
		b := tx.Bucket(bucket)
		if fresh = b == nil; fresh {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			var r record
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("record %x: %w", k, err)
			}
			if id := keyOf(r.Instance, r.Workspace); string(id[:]) != string(k) || r.Generation < 1 {
				return fmt.Errorf("record %x: it describes instance %q, workspace %q, generation %d", k, r.Instance, r.Workspace, r.Generation)
			}
			entries[key(k)] = &entry{generation: r.Generation, dirty: r.Dirty}
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
			k := keyOf(c.Instance, c.Workspace)
			return tx.Bucket(bucket).Put(k[:], v)
		})
	}
	if err != nil {
		return fmt.Errorf("writing the generation of workspace %q: %w", c.Workspace, err)
	}
	return nil
}
