package history

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
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
	totalBucket   = []byte("totals")    // tenant, profile and, if there are any, labels as JSON: Counters since ever
	rowBucket     = []byte("rows")      // tenant: number of its keys in usageBucket
	meterBucket   = []byte("meters")    // tenant, session: Meter of its box; missing in databases of older builds
	endedBucket   = []byte("ended")     // tenant, number: endedProcess; missing in databases of older builds

	buckets = [][]byte{metaBucket, entryBucket, orderBucket, sizeBucket, processBucket, usageBucket, totalBucket, rowBucket, meterBucket, endedBucket}

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

// endedProcess is a process whose entry was displaced. It is known for a while: the daemon that appended the entry may die
// before its own database says that the process has ended, and then a successor appends it again.
type endedProcess struct {
	Ended   int64  `json:"t"` // nanoseconds since 1970
	Process []byte `json:"p"` // its key in processBucket
}

// maxEnded bounds those of one tenant.
const maxEnded = 4096

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
	total totalKey // where it is counted
}

// store stores items, in one transaction with the number up to which entries are stored.
func (s *Store) store(items []item) error {
	var b *batch
	err := s.update(func(tx *bbolt.Tx) error {
		b = newBatch(s, tx)
		applied := appliedIn(tx)
		items := slices.DeleteFunc(slices.Clone(items), func(it item) bool { return it.entry.Seq <= applied })
		of := map[string]int{} // entries of each session that follow
		for _, it := range items {
			if it.entry.kept() {
				of[string(join(it.entry.Tenant, it.entry.Session))]++
			}
		}
		for _, it := range items {
			applied = it.entry.Seq
			session := string(join(it.entry.Tenant, it.entry.Session))
			if it.entry.kept() {
				of[session]--
			}
			if err := b.put(it, of[session] < s.o.SessionEntries); err != nil {
				return err
			}
		}
		if err := b.finish(); err != nil {
			return err
		}
		return tx.Bucket(metaBucket).Put(appliedKey, binary.BigEndian.AppendUint64(nil, applied))
	})
	if err == nil && b.damage != nil {
		s.o.Report(fmt.Errorf("history: %w: usage that cannot be read begins at 0", b.damage))
	}
	return err
}

func appliedIn(tx *bbolt.Tx) uint64 {
	if v := tx.Bucket(metaBucket).Get(appliedKey); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// batch is the changes of one transaction. Sums are written once, by finish.
type batch struct {
	s        *Store
	tx       *bbolt.Tx
	sessions map[[2]string]*amount // by tenant and session; of a tenant with an empty session
	usage    map[string]*Counters  // by key
	totals   map[string]*Counters
	ended    map[string]bool // tenants with more in endedBucket
	damage   error           // the first sum that cannot be read
}

func newBatch(s *Store, tx *bbolt.Tx) *batch {
	return &batch{s: s, tx: tx, sessions: map[[2]string]*amount{}, usage: map[string]*Counters{}, totals: map[string]*Counters{}, ended: map[string]bool{}}
}

// put adds an entry and counts it. Without keep, later entries of its session will displace it, so that it
// is only counted.
func (b *batch) put(it item, keep bool) error {
	e := &it.entry
	if e.Period {
		if err := b.meter(e); err != nil || e.Gone {
			return err
		}
		return b.count(e, it.total)
	}
	if e.Probe != "" {
		return b.count(e, it.total)
	}
	process := processKey(e)
	if process != nil {
		if b.tx.Bucket(processBucket).Get(process) != nil {
			return nil // an earlier daemon has recorded this end
		}
		if err := b.tx.Bucket(processBucket).Put(process, binary.BigEndian.AppendUint64(nil, e.Seq)); err != nil {
			return err
		}
	}
	if err := b.count(e, it.total); err != nil {
		return err
	}
	if !keep && process == nil {
		return nil
	}
	value := append(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(it.body)), it.body...)
	p := place{Session: e.Session, Ended: e.EndedAt.UnixNano(), Verdict: string(e.Result.Verdict), Size: int64(len(value)), Process: process}
	b.resize(e.Tenant, e.Session, 1, p.Size) // first: it may have to count the present entries
	if err := b.tx.Bucket(entryBucket).Put(numbered(prefix(e.Tenant, e.Session), e.Seq), value); err != nil {
		return err
	}
	return putJSON(b.tx.Bucket(orderBucket), numbered(prefix(e.Tenant), e.Seq), p)
}

// meter notes up to when the life of a box is counted, in the transaction that counts it.
func (b *batch) meter(e *Entry) error {
	bucket, err := b.tx.CreateBucketIfNotExists(meterBucket)
	if err != nil {
		return err
	}
	if e.Gone {
		return bucket.Delete(join(e.Tenant, e.Session))
	}
	return putJSON(bucket, join(e.Tenant, e.Session), Meter{e.Box, e.EndedAt})
}

// amount returns what there is of a session, or of a tenant if session is empty.
func (b *batch) amount(tenant, session string) *amount {
	k := [2]string{tenant, session}
	if b.sessions[k] == nil {
		a := &amount{}
		if err := getJSON(b.tx.Bucket(sizeBucket), amountKey(k), a); err != nil {
			b.damaged(err)
			*a = b.measure(k)
		}
		b.sessions[k] = a
	}
	return b.sessions[k]
}

// measure returns amount from the entries themselves.
func (b *batch) measure(k [2]string) (a amount) {
	start, c := append(amountKey(k), 0), b.tx.Bucket(entryBucket).Cursor()
	for key, value := c.Seek(start); bytes.HasPrefix(key, start); key, value = c.Next() {
		a.Count, a.Bytes = a.Count+1, a.Bytes+int64(len(value))
	}
	return a
}

func (b *batch) damaged(err error) {
	if b.damage == nil {
		b.damage = err
	}
}

func amountKey(k [2]string) []byte {
	if k[1] == "" {
		return []byte(k[0])
	}
	return join(k[0], k[1])
}

// resize counts entries that a session has got, or lost.
func (b *batch) resize(tenant, session string, count, bytes int64) {
	for _, session := range slices.Compact([]string{session, ""}) {
		a := b.amount(tenant, session)
		a.Count, a.Bytes = a.Count+count, a.Bytes+bytes
	}
}

// finish forgets entries beyond the bounds, and writes the sums.
func (b *batch) finish() error {
	for _, tenants := range []bool{false, true} { // sessions first: that makes room
		for k, a := range maps.Clone(b.sessions) {
			var err error
			switch o := &b.s.o; {
			case tenants && k[1] == "":
				err = b.trim(b.tx.Bucket(orderBucket), k, func(left amount) bool { return left.Bytes > o.TenantBytes }, *a)
			case !tenants && k[1] != "":
				err = b.trim(b.tx.Bucket(entryBucket), k, func(left amount) bool {
					return left.Count > int64(o.SessionEntries) || left.Bytes > o.SessionBytes
				}, *a)
			}
			if err != nil {
				return err
			}
		}
	}
	for k, a := range b.sessions {
		var err error
		if a.Count <= 0 {
			err = b.tx.Bucket(sizeBucket).Delete(amountKey(k))
		} else {
			err = putJSON(b.tx.Bucket(sizeBucket), amountKey(k), a)
		}
		if err != nil {
			return err
		}
	}
	for tenant := range b.ended {
		if err := forgetEnded(b.tx, tenant, time.Unix(0, 0)); err != nil {
			return err
		}
	}
	return b.writeCounters()
}

// trim forgets the oldest entries of a session or a tenant, whose keys are in bucket, while over holds of
// the remaining entries. The last entry stays.
func (b *batch) trim(bucket *bbolt.Bucket, k [2]string, over func(left amount) bool, left amount) error {
	start := append(amountKey(k), 0)
	var oldest []uint64 // a cursor does not survive deletions
	c := bucket.Cursor()
	for key, _ := c.Seek(start); bytes.HasPrefix(key, start) && left.Count > 1 && over(left); key, _ = c.Next() {
		seq := binary.BigEndian.Uint64(key[len(key)-8:])
		p, _ := placeOf(b.tx, k[0], seq) // a damaged one goes, too
		oldest = append(oldest, seq)
		left.Count, left.Bytes = left.Count-1, left.Bytes-p.Size
	}
	for _, seq := range oldest {
		if err := b.remove(k[0], k[1], seq); err != nil {
			return err
		}
	}
	return nil
}

func placeOf(tx *bbolt.Tx, tenant string, seq uint64) (p place, err error) {
	return p, getJSON(tx.Bucket(orderBucket), numbered(prefix(tenant), seq), &p)
}

// remove forgets an entry. session is empty if it is not known: then the content of an entry whose
// place is damaged stays until its session is trimmed.
func (b *batch) remove(tenant, session string, seq uint64) error {
	p, err := placeOf(b.tx, tenant, seq)
	if err != nil {
		p = place{Session: session}
		if session != "" {
			p.Size = int64(len(b.tx.Bucket(entryBucket).Get(numbered(prefix(tenant, session), seq))))
		}
	}
	b.resize(tenant, p.Session, -1, -p.Size) // first, as in put
	if err := b.tx.Bucket(orderBucket).Delete(numbered(prefix(tenant), seq)); err != nil {
		return err
	}
	if err := b.tx.Bucket(entryBucket).Delete(numbered(prefix(tenant, p.Session), seq)); err != nil {
		return err
	}
	if p.Process == nil {
		return nil
	}
	bucket, err := b.tx.CreateBucketIfNotExists(endedBucket)
	if err != nil {
		return err
	}
	b.ended[tenant] = true
	return putJSON(bucket, numbered(prefix(tenant), seq), endedProcess{p.Ended, p.Process})
}

// forgetEnded forgets the displaced processes of a tenant that ended before a moment, and the oldest ones
// beyond maxEnded.
func forgetEnded(tx *bbolt.Tx, tenant string, before time.Time) error {
	b := tx.Bucket(endedBucket)
	if b == nil {
		return nil
	}
	var keys [][]byte // a cursor does not survive deletions
	start, c := prefix(tenant), b.Cursor()
	for k, _ := c.Seek(start); bytes.HasPrefix(k, start); k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	for i, k := range keys {
		var e endedProcess
		if err := getJSON(b, k, &e); err == nil && i >= len(keys)-maxEnded && e.Ended >= before.UnixNano() {
			break // the others ended later
		}
		if e.Process != nil {
			if err := tx.Bucket(processBucket).Delete(e.Process); err != nil {
				return err
			}
		}
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// forgetOld forgets the entries that ended before a moment, at most some at a time, and days
// of usage before another.
func (s *Store) forgetOld(entries, usage time.Time) (more bool, err error) {
	const most = 10000
	err = s.update(func(tx *bbolt.Tx) error {
		b := newBatch(s, tx)
		old := map[string][]uint64{}
		n := 0
		for _, tenant := range tenants(tx, orderBucket) {
			start := prefix(tenant)
			c := tx.Bucket(orderBucket).Cursor()
			for k, v := c.Seek(start); bytes.HasPrefix(k, start) && n < most; k, v = c.Next() {
				var p place
				_ = json.Unmarshal(v, &p) // a damaged one is forgotten
				if p.Ended >= entries.UnixNano() {
					break
				}
				old[tenant] = append(old[tenant], binary.BigEndian.Uint64(k[len(k)-8:]))
				n++
			}
		}
		more = n == most
		for tenant, list := range old {
			for _, seq := range list {
				if err := b.remove(tenant, "", seq); err != nil {
					return err
				}
			}
		}
		if err := b.finish(); err != nil {
			return err
		}
		for _, tenant := range tenants(tx, endedBucket) {
			if err := forgetEnded(tx, tenant, entries); err != nil {
				return err
			}
		}
		if err := forgetMeters(tx, entries); err != nil {
			return err
		}
		return forgetDays(tx, usage.UTC().Format(time.DateOnly))
	})
	return more, err
}

// tenants returns the tenants that have keys in a bucket, which may be missing.
func tenants(tx *bbolt.Tx, bucket []byte) (list []string) {
	b := tx.Bucket(bucket)
	if b == nil {
		return nil
	}
	c := b.Cursor()
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
