package history

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// Query selects entries.
type Query struct {
	Tenant  string // empty: all
	Session string // empty: all of the tenant
	// Since and Until bound the time at which an entry ended; zero: no bound. Until is exclusive.
	Since, Until time.Time
	Verdicts     []string // any of these; empty: all
	// Before selects entries with lower numbers; 0: all. With the number of the last entry of an answer, it
	// selects what follows that.
	Before uint64
	Limit  int   // of entries, above 0
	Bytes  int64 // of all entries of the answer, which has one even so; 0: no limit
}

func (q *Query) matches(seq uint64, ended int64, verdict string) bool {
	return (q.Before == 0 || seq < q.Before) && (q.Since.IsZero() || ended >= q.Since.UnixNano()) &&
		(q.Until.IsZero() || ended < q.Until.UnixNano()) && (len(q.Verdicts) == 0 || slices.Contains(q.Verdicts, verdict))
}

// List returns the entries that match q, newest first, and whether there are more. An entry is
// listed as soon as Append has returned.
func (s *Store) List(q Query) (list []Entry, more bool, err error) {
	s.mu.Lock()
	pending := s.pendingLocked()
	s.mu.Unlock()
	err = s.view(func(tx *bbolt.Tx) error {
		names := []string{q.Tenant}
		if q.Tenant == "" {
			names = tenants(tx)
		}
		var found []sized
		applied := appliedIn(tx)
		for _, it := range pending {
			e := &it.entry
			mine := (q.Tenant == "" || e.Tenant == q.Tenant) && (q.Session == "" || e.Session == q.Session)
			if mine && e.Probe == "" && e.Seq > applied && q.matches(e.Seq, e.EndedAt.UnixNano(), string(e.Result.Verdict)) {
				found = append(found, sized{*e, int64(len(it.body))})
			}
		}
		for _, tenant := range names {
			of, err := q.stored(tx, tenant)
			if err != nil {
				return err
			}
			found = append(found, of...)
		}
		slices.SortFunc(found, func(a, b sized) int { return cmp.Compare(b.Seq, a.Seq) })
		list, more = q.cut(found)
		return nil
	})
	return list, more, err
}

// sized is an entry and its length in the database.
type sized struct {
	Entry
	size int64
}

// cut applies the limits of q.
func (q *Query) cut(found []sized) (list []Entry, more bool) {
	left := q.Bytes
	for _, f := range found {
		left -= f.size
		if len(list) == q.Limit || q.Bytes > 0 && left < 0 && len(list) > 0 {
			return list, true
		}
		list = append(list, f.Entry)
	}
	return list, false
}

// stored returns the entries of tenant in the database, newest first: one more than q wants.
func (q *Query) stored(tx *bbolt.Tx, tenant string) (list []sized, err error) {
	bucket, start := tx.Bucket(orderBucket), prefix(tenant)
	if q.Session != "" {
		bucket, start = tx.Bucket(entryBucket), prefix(tenant, q.Session)
	}
	left := q.Bytes
	c := bucket.Cursor()
	for k, _ := before(c, start, q.Before); k != nil && bytes.HasPrefix(k, start); k, _ = c.Prev() {
		seq := binary.BigEndian.Uint64(k[len(k)-8:])
		var p place
		if err := getJSON(tx.Bucket(orderBucket), numbered(prefix(tenant), seq), &p); err != nil {
			return nil, err
		}
		if !q.matches(seq, p.Ended, p.Verdict) {
			continue
		}
		e, err := read(tx, tenant, p.Session, seq)
		if err != nil {
			return nil, err
		}
		list = append(list, sized{e, p.Size})
		left -= p.Size
		if len(list) > q.Limit || q.Bytes > 0 && left < 0 && len(list) > 1 {
			break
		}
	}
	return list, nil
}

// before moves c to the last key with a prefix whose number is below seq; 0: to the last one.
func before(c *bbolt.Cursor, prefix []byte, seq uint64) (k, v []byte) {
	if seq == 0 {
		seq = 1<<64 - 1
	}
	if k, _ := c.Seek(numbered(prefix, seq)); k == nil {
		return c.Last()
	}
	return c.Prev()
}

// read returns a stored entry.
func read(tx *bbolt.Tx, tenant, session string, seq uint64) (Entry, error) {
	v := tx.Bucket(entryBucket).Get(numbered(prefix(tenant, session), seq))
	if len(v) < 4 || crc32.ChecksumIEEE(v[4:]) != binary.BigEndian.Uint32(v) {
		return Entry{}, fmt.Errorf("history: entry %d is damaged", seq)
	}
	return decode(seq, v[4:])
}
