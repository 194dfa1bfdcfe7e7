package history

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"
)

// Counters add up what ran. A figure that the host could not measure counts as 0.
type Counters struct {
	Execs     int64         `json:"execs,omitempty"`
	Processes int64         `json:"processes,omitempty"` // managed ones that have ended
	CPU       time.Duration `json:"cpu,omitempty"`       // user and system time
	Wall      time.Duration `json:"wall,omitempty"`      // from the start to the end of each
	Read      int64         `json:"read,omitempty"`      // bytes from block devices
	Written   int64         `json:"written,omitempty"`   // bytes to block devices
	// Of boxes, in units that do not overflow in the life of a large tenant:
	Memory int64 `json:"memory,omitempty"` // multiplied with time: MiB·ms
	Lived  int64 `json:"lived,omitempty"`  // milliseconds
}

// MemoryTime returns bytes that are held for a time, in the unit of [Counters].
func MemoryTime(bytes int64, d time.Duration) int64 {
	return int64(float64(bytes) / (1 << 20) * (float64(d) / float64(time.Millisecond)))
}

// GiBSeconds is Memory in another unit.
func (c *Counters) GiBSeconds() float64 { return float64(c.Memory) / 1024 / 1000 }

// Add adds o to c.
func (c *Counters) Add(o Counters) {
	c.Execs, c.Processes = c.Execs+o.Execs, c.Processes+o.Processes
	c.CPU, c.Wall = c.CPU+o.CPU, c.Wall+o.Wall
	c.Read, c.Written = c.Read+o.Read, c.Written+o.Written
	c.Memory, c.Lived = c.Memory+o.Memory, c.Lived+o.Lived
}

// countersOf is what e adds.
func countersOf(e *Entry) Counters {
	if e.Period {
		return Counters{Memory: e.Memory, Lived: max(0, e.EndedAt.Sub(e.StartedAt).Milliseconds())}
	}
	r := &e.Result.Receipt
	c := Counters{Execs: 1, Wall: r.Wall, Memory: e.Memory}
	switch {
	case e.Probe == ProbeHTTP:
		c.Execs = 0
	case e.Process != "" && e.Probe == "":
		c.Execs, c.Processes = 0, 1
	}
	for _, d := range []*time.Duration{r.User, r.System} {
		if d != nil {
			c.CPU += *d
		}
	}
	if r.IOReadBytes != nil {
		c.Read = *r.IOReadBytes
	}
	if r.IOWriteBytes != nil {
		c.Written = *r.IOWriteBytes
	}
	return c
}

// Others is the session and user of usage that is not told apart any more; no session has this ID.
const Others = "*"

// count adds e to the counters of its day. Once a tenant has Options.UsageRows, sessions that would
// need another row are not told apart any more, and once it has as many again, users are not either.
func (b *batch) count(e *Entry, total totalKey) error {
	c := countersOf(e)
	b.addTo(b.totals, b.tx.Bucket(totalBucket), total.bytes(), c)
	usage, day := b.tx.Bucket(usageBucket), e.EndedAt.UTC().Format(time.DateOnly)
	known := func(key []byte) bool { return b.usage[string(key)] != nil || usage.Get(key) != nil }
	key := join(e.Tenant, day, e.Profile, e.Session, e.User)
	if !known(key) {
		rows := rowsIn(b.tx, e.Tenant)
		if rows >= uint64(b.s.o.UsageRows) {
			key = join(e.Tenant, day, e.Profile, Others, e.User)
			if rows >= 2*uint64(b.s.o.UsageRows) && !known(key) {
				key = join(e.Tenant, day, e.Profile, Others, Others)
			}
		}
		if !known(key) {
			if err := b.tx.Bucket(rowBucket).Put([]byte(e.Tenant), binary.BigEndian.AppendUint64(nil, rows+1)); err != nil {
				return err
			}
		}
	}
	b.addTo(b.usage, usage, key, c)
	return nil
}

// addTo adds c to the sum of key, which is in sums or else in bucket. A damaged sum begins at 0, or else
// nothing could be stored any more.
func (b *batch) addTo(sums map[string]*Counters, bucket *bbolt.Bucket, key []byte, c Counters) {
	sum := sums[string(key)]
	if sum == nil {
		sum = &Counters{}
		if err := getJSON(bucket, key, sum); err != nil {
			b.damaged(err)
			*sum = Counters{}
		}
		sums[string(key)] = sum
	}
	sum.Add(c)
}

func (b *batch) writeCounters() error {
	for name, sums := range map[string]map[string]*Counters{string(usageBucket): b.usage, string(totalBucket): b.totals} {
		for key, sum := range sums {
			if err := putJSON(b.tx.Bucket([]byte(name)), []byte(key), sum); err != nil {
				return err
			}
		}
	}
	return nil
}

func rowsIn(tx *bbolt.Tx, tenant string) uint64 {
	if v := tx.Bucket(rowBucket).Get([]byte(tenant)); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// forgetDays forgets the usage of days before one.
func forgetDays(tx *bbolt.Tx, before string) error {
	rows := map[string]uint64{}
	err := tx.Bucket(rowBucket).ForEach(func(k, v []byte) error {
		if len(v) == 8 {
			rows[string(k)] = binary.BigEndian.Uint64(v)
		}
		return nil
	})
	if err != nil {
		return err
	}
	b := tx.Bucket(usageBucket)
	for tenant, n := range rows {
		var old [][]byte // a cursor does not survive deletions
		start, c := prefix(tenant), b.Cursor()
		for k, _ := c.Seek(start); bytes.HasPrefix(k, start) && string(k[len(start):]) < before; k, _ = c.Next() {
			old = append(old, bytes.Clone(k))
		}
		for _, k := range old {
			if err := b.Delete(k); err != nil {
				return err
			}
		}
		if len(old) == 0 {
			continue
		}
		left := n - min(n, uint64(len(old)))
		if err := tx.Bucket(rowBucket).Put([]byte(tenant), binary.BigEndian.AppendUint64(nil, left)); err != nil {
			return err
		}
	}
	return nil
}

// Usage is what one tenant, profile, user or session used on one day. The parts that
// a query does not tell apart are empty.
type Usage struct {
	Tenant, Profile, User, Session string
	Day                            string // YYYY-MM-DD, UTC
	Counters
}

// UsageQuery selects and groups usage.
type UsageQuery struct {
	Tenant string // empty: all
	// From and To are the first and the last day, YYYY-MM-DD in UTC; empty: no bound.
	From, To string
	// By names the columns that are told apart; the tenant always is.
	By struct{ Profile, User, Session, Day bool }
}

// Usage returns what was used, sorted by the parts of [Usage] in their order.
func (s *Store) Usage(q UsageQuery) ([]Usage, error) {
	s.mu.Lock()
	pending := s.pendingLocked()
	s.mu.Unlock()
	sums := map[string]Counters{} // by the key of the answer
	add := func(tenant, day, profile, session, user string, c Counters) {
		if q.Tenant != "" && tenant != q.Tenant || day < q.From || q.To != "" && day > q.To {
			return
		}
		only := func(wanted bool, part string) string {
			if wanted {
				return part
			}
			return ""
		}
		k := string(join(tenant, only(q.By.Profile, profile), only(q.By.Session, session), only(q.By.Day, day), only(q.By.User, user)))
		sum := sums[k]
		sum.Add(c)
		sums[k] = sum
	}
	err := s.view(func(tx *bbolt.Tx) error {
		applied := appliedIn(tx)
		for _, it := range pending {
			if e := &it.entry; e.Seq > applied && !e.Gone {
				add(e.Tenant, e.EndedAt.UTC().Format(time.DateOnly), e.Profile, e.Session, e.User, countersOf(e))
			}
		}
		var start []byte
		if q.Tenant != "" {
			start = prefix(q.Tenant)
		}
		c := tx.Bucket(usageBucket).Cursor()
		for k, v := c.Seek(start); k != nil && bytes.HasPrefix(k, start); k, v = c.Next() {
			parts := strings.SplitN(string(k), "\x00", 5)
			var n Counters
			if len(parts) == 5 && json.Unmarshal(v, &n) == nil {
				add(parts[0], parts[1], parts[2], parts[3], parts[4], n)
			}
		}
		return nil
	})
	return usageList(sums), err
}

func usageList(sums map[string]Counters) []Usage {
	list := make([]Usage, 0, len(sums))
	for k, c := range sums {
		p := strings.SplitN(k, "\x00", 5)
		list = append(list, Usage{Tenant: p[0], Profile: p[1], Session: p[2], Day: p[3], User: p[4], Counters: c})
	}
	slices.SortFunc(list, func(a, b Usage) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Profile, b.Profile), strings.Compare(a.User, b.User),
			strings.Compare(a.Session, b.Session), strings.Compare(a.Day, b.Day))
	})
	return list
}

// Today returns what tenant has used since midnight, UTC.
func (s *Store) Today(tenant string) Counters {
	day := time.Now().UTC().Format(time.DateOnly)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.days[day][tenant]
}

// keepDays is for how many days the counters of budgets are in memory: a clock that is set back over
// midnight finds what it had counted.
const keepDays = 8

// dayLocked returns the counters of a day, and forgets the oldest one if there are too many.
func (s *Store) dayLocked(day string) map[string]Counters {
	sums := s.days[day]
	if sums != nil {
		return sums
	}
	sums = map[string]Counters{}
	s.days[day] = sums
	if len(s.days) > keepDays {
		delete(s.days, slices.Min(slices.Collect(maps.Keys(s.days))))
	}
	return sums
}

// readDays returns the stored counters of the days from first on, by day and tenant.
func readDays(tx *bbolt.Tx, first string) (map[string]map[string]Counters, error) {
	days := map[string]map[string]Counters{}
	err := tx.Bucket(rowBucket).ForEach(func(tenant, _ []byte) error {
		c := tx.Bucket(usageBucket).Cursor()
		for k, v := c.Seek(append(prefix(string(tenant)), first...)); bytes.HasPrefix(k, prefix(string(tenant))); k, v = c.Next() {
			day, _, _ := strings.Cut(string(k[len(tenant)+1:]), "\x00")
			var n Counters
			if err := json.Unmarshal(v, &n); err != nil {
				return err
			}
			if days[day] == nil {
				days[day] = map[string]Counters{}
			}
			sum := days[day][string(tenant)]
			sum.Add(n)
			days[day][string(tenant)] = sum
		}
		return nil
	})
	return days, err
}

// Totals are the counters of one tenant, profile and [Entry.Labels] since the first entry.
type Totals struct {
	Tenant, Profile string
	Labels          map[string]string
	Counters
}

// maxLabelled bounds the totals with labels of one tenant. What would need another one has [Others] for
// every label.
const maxLabelled = 200

// Totals returns the counters by tenant, profile and labels. They only grow, also across restarts.
func (s *Store) Totals() []Totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Totals, 0, len(s.totals))
	for k, c := range s.totals {
		t := Totals{Tenant: k.tenant, Profile: k.profile, Counters: c}
		if k.labels != "" {
			_ = json.Unmarshal([]byte(k.labels), &t.Labels) // damaged: as without labels
		}
		list = append(list, t)
	}
	return list
}

// totalKey is one of the totals. labels are JSON, which has no NUL, or empty.
type totalKey struct{ tenant, profile, labels string }

func (k totalKey) bytes() []byte {
	if k.labels == "" {
		return join(k.tenant, k.profile)
	}
	return join(k.tenant, k.profile, k.labels)
}

// totalLocked returns where e is counted.
func (s *Store) totalLocked(e *Entry) totalKey {
	k := totalKey{tenant: e.Tenant, profile: e.Profile}
	if len(e.Labels) == 0 {
		return k
	}
	body, err := json.Marshal(e.Labels) // in the order of the keys
	if k.labels = string(body); err != nil {
		panic(err) // strings
	}
	if _, known := s.totals[k]; known {
		return k
	}
	if s.labelled[k.tenant] < maxLabelled {
		s.labelled[k.tenant]++
		return k
	}
	others := make(map[string]string, len(e.Labels))
	for key := range e.Labels {
		others[key] = Others
	}
	body, err = json.Marshal(others)
	if k.labels = string(body); err != nil {
		panic(err)
	}
	return k
}

// readTotals returns the stored counters.
func readTotals(tx *bbolt.Tx) (map[totalKey]Counters, error) {
	totals := map[totalKey]Counters{}
	err := tx.Bucket(totalBucket).ForEach(func(k, v []byte) error {
		parts := append(strings.SplitN(string(k), "\x00", 3), "", "")
		var c Counters
		if err := json.Unmarshal(v, &c); err != nil {
			return err
		}
		totals[totalKey{parts[0], parts[1], parts[2]}] = c
		return nil
	})
	return totals, err
}

// Meter says up to when the life of a box is counted.
type Meter struct {
	Box   string    `json:"box"`
	Until time.Time `json:"until"`
}

// Metered returns up to when an earlier Store has counted the life of a box of a session of tenant;
// zero: it has not.
func (s *Store) Metered(tenant, session, box string) time.Time {
	if m := s.meters[string(join(tenant, session))]; m.Box == box {
		return m.Until
	}
	return time.Time{}
}

// readMeters returns the stored meters.
func readMeters(tx *bbolt.Tx) (map[string]Meter, error) {
	meters := map[string]Meter{}
	b := tx.Bucket(meterBucket)
	if b == nil {
		return meters, nil
	}
	return meters, b.ForEach(func(k, v []byte) error {
		var m Meter
		if json.Unmarshal(v, &m) == nil { // without it, counting begins anew
			meters[string(k)] = m
		}
		return nil
	})
}

// forgetMeters forgets those of sessions that have not been counted since a moment.
func forgetMeters(tx *bbolt.Tx, before time.Time) error {
	meters, err := readMeters(tx)
	for k, m := range meters {
		if err == nil && m.Until.Before(before) {
			err = tx.Bucket(meterBucket).Delete([]byte(k))
		}
	}
	return err
}
