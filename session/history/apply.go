package history

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"time"

	"go.etcd.io/bbolt"
)

// The buckets of the database. Parts of a key are separated by NUL, and numbers in keys are
// big-endian, so that keys are in the order of the entries.
var (
	metaBucket    = []byte("meta")
	entryBucket   = []byte("entries")   // tenant, session, number: CRC-32 and Entry
	orderBucket   = []byte("order")     // tenant, number: place
	sizeBucket    = []byte("sizes")     // tenant, session, or tenant alone: size of its entries
	processBucket = []byte("processes") // tenant, session, box, key: the number of the entry
	usageBucket   = []byte("usage")     // tenant, day, profile, session, user: Counters
	totalBucket   = []byte("totals")    // tenant, profile: Counters since ever
	rowBucket     = []byte("rows")      // tenant: number of its keys in usageBucket

	buckets = [][]byte{metaBucket, entryBucket, orderBucket, sizeBucket, processBucket, usageBucket, totalBucket, rowBucket}

	versionKey = []byte("version")
	appliedKey = []byte("applied") // the last sequence number that is stored
)

// place is an entry without its content, in the order of its tenant.
type place struct {
	Session string `json:"s"`
	Ended   int64  `json:"t"` // nanoseconds since 1970
	Verdict string `json:"v"`
	Size    int64  `json:"n"`
	Process []byte `json:"p,omitempty"` // its key in processBucket
}

// amount is how many entries there are, and how many bytes they take.
type amount struct {
	Count int64 `json:"count"`
	Bytes int64 `json:"bytes"`
}

func join(parts ...string) []byte {
	var k []byte
	for i, p := range parts {
		if i > 0 {
			k = append(k, 0)
		}
		k = append(k, p...)
	}
	return k
}

// prefix is join, for keys that go on.
func prefix(parts ...string) []byte { return append(join(parts...), 0) }

func numbered(prefix []byte, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(bytes.Clone(prefix), seq)
}

func processKey(e *Entry) []byte {
	if e.Key == "" {
		return nil
	}
	return join(e.Tenant, e.Session, e.Box, e.Key)
}

// item is an entry on its way to the database.
type item struct {
	entry Entry
	body  []byte
}

// store stores items, in one transaction with the number up to which entries are stored.
func (s *Store) store(items []item) error {
	return s.update(func(tx *bbolt.Tx) error {
		applied := appliedIn(tx)
		for _, it := range items {
			if it.entry.Seq <= applied {
				continue
			}
			applied = it.entry.Seq
			if err := s.storeOne(tx, it); err != nil {
				return err
			}
		}
		return tx.Bucket(metaBucket).Put(appliedKey, binary.BigEndian.AppendUint64(nil, applied))
	})
}

func appliedIn(tx *bbolt.Tx) uint64 {
	if v := tx.Bucket(metaBucket).Get(appliedKey); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (s *Store) storeOne(tx *bbolt.Tx, it item) error {
	e := &it.entry
	process := processKey(e)
	if process != nil {
		if tx.Bucket(processBucket).Get(process) != nil {
			return nil // an earlier daemon has recorded this end
		}
		if err := tx.Bucket(processBucket).Put(process, binary.BigEndian.AppendUint64(nil, e.Seq)); err != nil {
			return err
		}
	}
	if err := s.count(tx, e); err != nil {
		return err
	}
	value := append(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(it.body)), it.body...)
	p := place{Session: e.Session, Ended: e.EndedAt.UnixNano(), Verdict: string(e.Result.Verdict), Size: int64(len(value)), Process: process}
	if err := tx.Bucket(entryBucket).Put(numbered(prefix(e.Tenant, e.Session), e.Seq), value); err != nil {
		return err
	}
	if err := putJSON(tx.Bucket(orderBucket), numbered(prefix(e.Tenant), e.Seq), p); err != nil {
		return err
	}
	ofSession, err := resize(tx, join(e.Tenant, e.Session), 1, p.Size)
	if err != nil {
		return err
	}
	ofTenant, err := resize(tx, []byte(e.Tenant), 1, p.Size)
	if err != nil {
		return err
	}
	for ofSession.Count > int64(s.o.SessionEntries) || ofSession.Bytes > s.o.SessionBytes && ofSession.Count > 1 {
		k := first(tx.Bucket(entryBucket), prefix(e.Tenant, e.Session))
		if k == nil {
			break
		}
		if ofSession, ofTenant, err = remove(tx, e.Tenant, binary.BigEndian.Uint64(k[len(k)-8:])); err != nil {
			return err
		}
	}
	for ofTenant.Bytes > s.o.TenantBytes && ofTenant.Count > 1 {
		k := first(tx.Bucket(orderBucket), prefix(e.Tenant))
		if k == nil {
			break
		}
		if _, ofTenant, err = remove(tx, e.Tenant, binary.BigEndian.Uint64(k[len(k)-8:])); err != nil {
			return err
		}
	}
	return nil
}

// first returns the first key of b with a prefix, nil if there is none.
func first(b *bbolt.Bucket, prefix []byte) []byte {
	if k, _ := b.Cursor().Seek(prefix); bytes.HasPrefix(k, prefix) {
		return bytes.Clone(k)
	}
	return nil
}

// remove forgets an entry, and returns what is left of its session and of its tenant.
func remove(tx *bbolt.Tx, tenant string, seq uint64) (ofSession, ofTenant amount, err error) {
	var p place
	at := numbered(prefix(tenant), seq)
	if err := getJSON(tx.Bucket(orderBucket), at, &p); err != nil {
		return ofSession, ofTenant, err
	}
	if err := tx.Bucket(orderBucket).Delete(at); err != nil {
		return ofSession, ofTenant, err
	}
	if err := tx.Bucket(entryBucket).Delete(numbered(prefix(tenant, p.Session), seq)); err != nil {
		return ofSession, ofTenant, err
	}
	if p.Process != nil {
		if err := tx.Bucket(processBucket).Delete(p.Process); err != nil {
			return ofSession, ofTenant, err
		}
	}
	if ofSession, err = resize(tx, join(tenant, p.Session), -1, -p.Size); err != nil {
		return ofSession, ofTenant, err
	}
	ofTenant, err = resize(tx, []byte(tenant), -1, -p.Size)
	return ofSession, ofTenant, err
}

// resize changes the size that is recorded at key.
func resize(tx *bbolt.Tx, key []byte, count, bytes int64) (a amount, err error) {
	b := tx.Bucket(sizeBucket)
	if err := getJSON(b, key, &a); err != nil {
		return a, err
	}
	a.Count, a.Bytes = a.Count+count, a.Bytes+bytes
	if a.Count <= 0 {
		return amount{}, b.Delete(key)
	}
	return a, putJSON(b, key, a)
}

// forgetOld forgets the entries that ended before a moment, at most some at a time, and days
// of usage before another.
func (s *Store) forgetOld(entries, usage time.Time) (more bool, err error) {
	const most = 10000
	err = s.update(func(tx *bbolt.Tx) error {
		left := most
		for _, tenant := range tenants(tx) {
			for left > 0 {
				k := first(tx.Bucket(orderBucket), prefix(tenant))
				if k == nil {
					break
				}
				var p place
				if err := getJSON(tx.Bucket(orderBucket), k, &p); err != nil {
					return err
				}
				if p.Ended >= entries.UnixNano() {
					break
				}
				if _, _, err := remove(tx, tenant, binary.BigEndian.Uint64(k[len(k)-8:])); err != nil {
					return err
				}
				left--
			}
		}
		more = left == 0
		return forgetDays(tx, usage.UTC().Format(time.DateOnly))
	})
	return more, err
}

// tenants returns the tenants that have entries.
func tenants(tx *bbolt.Tx) (list []string) {
	c := tx.Bucket(orderBucket).Cursor()
	for k, _ := c.First(); k != nil; {
		name, _, _ := bytes.Cut(k, []byte{0})
		list = append(list, string(name))
		k, _ = c.Seek(append(bytes.Clone(name), 1)) // behind all keys of the tenant
	}
	return list
}

func getJSON(b *bbolt.Bucket, key []byte, v any) error {
	value := b.Get(key)
	if value == nil {
		return nil
	}
	if err := json.Unmarshal(value, v); err != nil {
		return fmt.Errorf("%q: %w", key, err)
	}
	return nil
}

func putJSON(b *bbolt.Bucket, key []byte, v any) error {
	value, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, value)
}
