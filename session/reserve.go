package session

import (
	"os"
	"sync"

	"github.com/boxd/boxd/internal/diskroom"
	"go.etcd.io/bbolt"
)

// reserve is how many bytes of disk the database has behind its last page. What is begun
// asks for room first, which leaves them; all other changes may use them: on a full disk
// sessions and processes can be ended, which makes room. A file system without
// fallocate(2) has no reserve, and in one that writes each block to a new place, such as
// btrfs, it promises less.
const reserve = 1 << 20

// room keeps the reserve.
type room struct {
	file *os.File // lent by the database

	mu   sync.Mutex
	disk diskroom.Room
}

// check fails if something new would take from the reserve.
func (r *room) check(db *bbolt.DB) error {
	var used int64
	err := db.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil })
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	return r.disk.Keep(r.file, used+reserve)
}
