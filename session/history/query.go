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

// List returns the entries that match q, newest first. next is the Before of a query for those that
// follow; 0: there are none. An entry is listed as soon as Append has returned. One that is damaged is left
// out, so that a list may be shorter than its limit, or empty, with more to follow.
func (s *Store) List(q Query) (list []Entry, next uint64, err error) {
	s.mu.Lock()
	pending := s.pendingLocked()
	s.mu.Unlock()
	var damage error
	err = s.view(func(tx *bbolt.Tx) error {
		list, next, damage = nil, 0, nil
		var found []ref
		applied := appliedIn(tx)
		for i := range pending {
			e := &pending[i].entry
			mine := (q.Tenant == "" || e.Tenant == q.Tenant) && (q.Session == "" || e.Session == q.Session)
			if mine && e.kept() && e.Seq > applied && q.matches(e.Seq, e.EndedAt.UnixNano(), string(e.Result.Verdict)) {
				found = append(found, ref{tenant: e.Tenant, seq: e.Seq, place: place{Session: e.Session, Size: int64(len(pending[i].body))}, entry: e})
			}
		}
		names := []string{q.Tenant}
		if q.Tenant == "" {
			names = tenants(tx, orderBucket)
		}
		for _, tenant := range names {
			found = append(found, q.stored(tx, tenant, &damage)...)
			slices.SortFunc(found, func(a, b ref) int { return cmp.Compare(b.seq, a.seq) })
			found = found[:min(len(found), q.Limit+1)] // so that many tenants take no more memory than one
		}
		left := q.Bytes
		for i, f := range found {
			if left -= f.Size; i == q.Limit || q.Bytes > 0 && left < 0 && i > 0 {
				next = found[i-1].seq
				break
			}
			e, err := f.read(tx)
			if err != nil {
				damage = cmp.Or(damage, err)
				continue
			}
			list = append(list, e)
		}
		return nil
	})
	if damage != nil {
		s.damaged.Do(func() { s.o.Report(fmt.Errorf("%w: damaged entries are left out of answers", damage)) })
	}
	return list, next, err
}

// ref is an entry whose content has not been read.
type ref struct {
	tenant string
	seq    uint64
	place
	entry *Entry // of one that is pending
}

func (r *ref) read(tx *bbolt.Tx) (Entry, error) {
	if r.entry != nil {
		return *r.entry, nil
	}
	return read(tx, r.tenant, r.Session, r.seq)
}

// stored returns the entries of tenant in the database, newest first: at most one more than q wants.
func (q *Query) stored(tx *bbolt.Tx, tenant string, damage *error) (list []ref) {
	bucket, start := tx.Bucket(orderBucket), prefix(tenant)
	if q.Session != "" {
		bucket, start = tx.Bucket(entryBucket), prefix(tenant, q.Session)
	}
	c := bucket.Cursor()
	for k, _ := before(c, start, q.Before); k != nil && bytes.HasPrefix(k, start) && len(list) <= q.Limit; k, _ = c.Prev() {
		seq := binary.BigEndian.Uint64(k[len(k)-8:])
		p, err := placeOf(tx, tenant, seq)
		if err != nil {
			*damage = cmp.Or(*damage, err)
			continue
		}
		if q.matches(seq, p.Ended, p.Verdict) {
			list = append(list, ref{tenant: tenant, seq: seq, place: p})
		}
	}
	return list
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
