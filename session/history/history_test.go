package history

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"go.etcd.io/bbolt"
)

// bench is a store in a directory, which can be opened again.
type bench struct {
	*testing.T
	o Options
	*Store
	mu       sync.Mutex
	reported []error
}

func open(t *testing.T, o Options) *bench {
	b := &bench{T: t, o: o}
	b.o.Dir = filepath.Join(t.TempDir(), "history")
	b.o.Report = func(err error) { b.mu.Lock(); defer b.mu.Unlock(); b.reported = append(b.reported, err) }
	b.reopen()
	t.Cleanup(func() { b.Store.Close() })
	return b
}

func (b *bench) reopen() {
	b.Helper()
	s, err := Open(b.o)
	if err != nil {
		b.Fatal(err)
	}
	b.Store = s
}

// kill ends the store as SIGKILL would: what waits to be stored is only in the journal.
func (b *bench) kill() {
	b.Store.cancel()
	<-b.Store.finished
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Store.writing.Lock()
	defer b.Store.writing.Unlock()
	b.Store.mu.Lock()
	defer b.Store.mu.Unlock()
	b.Store.closed = true
	b.Store.journal.file.Close()
	b.Store.journal.closed = true
	b.Store.db.Close()
}

func (b *bench) append(e Entry) {
	b.Helper()
	if err := b.Store.Append(e); err != nil {
		b.Fatal(err)
	}
}

// numbers lists the numbers in the command lines of what q selects, newest first.
func (b *bench) numbers(q Query) string {
	b.Helper()
	if q.Limit == 0 {
		q.Limit = 1 << 20
	}
	list, _, err := b.List(q)
	if err != nil {
		b.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Argv[0])
	}
	return strings.Join(out, " ")
}

// start is an hour ago, but today, because entries of yesterday are not in [Store.Today].
var start = time.Unix(max(time.Now().Add(-time.Hour).Unix(), time.Now().Truncate(24*time.Hour).Unix()), 0)

// entry is command number n, which ended n seconds after start.
func entry(tenant, session string, n int) Entry {
	cpu, written := time.Duration(n), int64(n)
	return Entry{Tenant: tenant, Session: session, Profile: "p", User: "u-" + session, Argv: []string{fmt.Sprint(n)},
		StartedAt: start, EndedAt: start.Add(time.Duration(n) * time.Second),
		Result: engine.Result{Verdict: engine.Exited, Receipt: engine.Receipt{Wall: time.Second, User: &cpu, IOWriteBytes: &written}}}
}

func TestList(t *testing.T) {
	b := open(t, Options{})
	for n := 1; n <= 6; n++ {
		e := entry("t", []string{"a", "b"}[n%2], n)
		if n == 4 {
			e.Result.Verdict = engine.OOM
		}
		b.append(e)
		if n == 3 {
			if err := b.flush(); err != nil { // the others are pending: an answer has both
				t.Fatal(err)
			}
		}
	}
	b.append(entry("other", "a", 7))
	at := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	check := func(when string) {
		t.Helper()
		for _, c := range []struct {
			q    Query
			want string
		}{
			{Query{Tenant: "t"}, "6 5 4 3 2 1"},
			{Query{Tenant: "t", Session: "a"}, "6 4 2"},
			{Query{Tenant: "t", Session: "b"}, "5 3 1"},
			{Query{Tenant: "t", Session: "none"}, ""},
			{Query{}, "7 6 5 4 3 2 1"},
			{Query{Limit: 3}, "7 6 5"},
			{Query{Tenant: "t", Since: at(2), Until: at(5)}, "4 3 2"},
			{Query{Tenant: "t", Verdicts: []string{"oom"}}, "4"},
			{Query{Tenant: "t", Session: "a", Verdicts: []string{"oom", "timeout"}}, "4"},
			{Query{Tenant: "t", Limit: 2}, "6 5"},
			{Query{Tenant: "t", Limit: 2, Before: 5}, "4 3"},
			{Query{Tenant: "t", Session: "b", Limit: 2, Before: 5}, "3 1"},
			{Query{Tenant: "t", Bytes: 1}, "6"},
			{Query{Tenant: "other"}, "7"},
			{Query{Tenant: "othe"}, ""},
		} {
			if got := b.numbers(c.q); got != c.want {
				t.Errorf("%s: %+v: %q, want %q", when, c.q, got, c.want)
			}
		}
		if _, next, err := b.List(Query{Tenant: "t", Limit: 6}); next != 0 || err != nil {
			t.Errorf("%s: more than all: %v", when, err)
		}
		if _, next, err := b.List(Query{Tenant: "t", Limit: 5}); next != 2 || err != nil {
			t.Errorf("%s: no more behind five of six: %v", when, err)
		}
	}
	check("half pending")
	b.kill()
	b.reopen()
	check("replayed")
	if err := b.Store.Close(); err != nil {
		t.Fatal(err)
	}
	b.reopen()
	check("opened again")
}

// TestKill kills the store at random moments: what was appended is there exactly once, in its order, and
// counted once.
func TestKill(t *testing.T) {
	b := open(t, Options{SessionEntries: 1 << 20})
	random := rand.New(rand.NewPCG(1, 2))
	total := 0
	for range 30 {
		for range random.IntN(40) {
			total++
			b.append(entry("t", fmt.Sprint("s", total%3), total))
			if random.IntN(10) == 0 {
				if err := b.flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		switch random.IntN(4) {
		case 0: // stored, and killed before the journal is removed
			if err := b.store(b.pendingLocked()); err != nil {
				t.Fatal(err)
			}
		case 1: // killed in the middle of a write
			torn := frame(b.next, []byte(`{"tenant":"t","session":"torn"}`))
			b.journal.file.Write(torn[:1+random.IntN(len(torn)-1)])
		}
		b.kill()
		b.reopen()
	}
	list, _, err := b.List(Query{Tenant: "t", Limit: total + 1})
	if err != nil || len(list) != total {
		t.Fatalf("%d entries of %d, %v", len(list), total, err)
	}
	for i, e := range list {
		if want := fmt.Sprint(total - i); e.Argv[0] != want {
			t.Fatalf("entry %d is %s, want %s", i, e.Argv[0], want)
		}
	}
	usage, err := b.Usage(UsageQuery{})
	sum := int64(total) * int64(total+1) / 2
	if err != nil || len(usage) != 1 || usage[0].Execs != int64(total) || usage[0].Written != sum || usage[0].CPU != time.Duration(sum) {
		t.Errorf("%+v, %v, want %d commands and %d bytes", usage, err, total, sum)
	}
	if got := b.Totals(); len(got) != 1 || got[0].Execs != int64(total) || got[0].Profile != "p" {
		t.Errorf("totals %+v", got)
	}
}

func TestBounds(t *testing.T) {
	b := open(t, Options{SessionEntries: 5, TenantBytes: 4000, Keep: 2 * time.Hour})
	for n := range 12 {
		b.append(entry("t", "a", n))
	}
	if err := b.flush(); err != nil {
		t.Fatal(err)
	}
	if got := b.numbers(Query{Tenant: "t", Session: "a"}); got != "11 10 9 8 7" {
		t.Errorf("a session of at most 5 has %q", got)
	}
	for n := range 100 {
		b.append(entry("t", fmt.Sprint("s", n), n))
	}
	b.append(entry("other", "a", 1))
	if err := b.flush(); err != nil {
		t.Fatal(err)
	}
	list, _, err := b.List(Query{Tenant: "t", Limit: 1000})
	if err != nil || len(list) < 3 || len(list) > 12 || list[0].Argv[0] != "99" {
		t.Errorf("a tenant of 4000 bytes has %d entries, %v", len(list), err)
	}
	if got := b.numbers(Query{Tenant: "other"}); got != "1" {
		t.Errorf("another tenant has %q", got)
	}
	// What is forgotten stays counted.
	if u, err := b.Usage(UsageQuery{Tenant: "t"}); err != nil || len(u) != 1 || u[0].Execs != 112 {
		t.Errorf("%+v, %v", u, err)
	}
	// An entry larger than every bound is kept, alone.
	large := entry("t", "large", 1)
	large.Stdout = bytes.Repeat([]byte("x"), 1<<20)
	b.append(large)
	if err := b.flush(); err != nil {
		t.Fatal(err)
	}
	if got := b.numbers(Query{Tenant: "t"}); got != "1" {
		t.Errorf("beside a large entry: %q", got)
	}
	for more := true; more; {
		if more, err = b.forgetOld(time.Now().Add(time.Hour), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	err = b.view(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{entryBucket, orderBucket, sizeBucket, processBucket} {
			if n := tx.Bucket(name).Stats().KeyN; n != 0 {
				t.Errorf("%d keys are left in %s", n, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestProcess: the end of a process that two daemons record has one entry.
func TestProcess(t *testing.T) {
	b := open(t, Options{})
	e := entry("t", "a", 1)
	e.Process, e.Key, e.Box = "web", "1-web", "s-1"
	for range 3 {
		b.append(e)
		b.append(e)
		if got := b.numbers(Query{Tenant: "t"}); got != "1" {
			t.Errorf("%q", got)
		}
		b.kill()
		b.reopen()
	}
	e.Key = "2-web"
	b.append(e)
	if u, err := b.Usage(UsageQuery{}); err != nil || u[0].Processes != 2 || u[0].Execs != 0 {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestProcessForgotten: the end of a process is known after its entry was displaced, until the daemon that
// recorded it has told its own database. What is known is bounded, and forgotten like old entries.
func TestProcessForgotten(t *testing.T) {
	b := open(t, Options{SessionEntries: 1})
	end := func(n int) Entry {
		e := entry("t", "a", n)
		e.Process, e.Key, e.Box = "web", fmt.Sprintf("%d-web", n), "s-1"
		e.StartedAt, e.EndedAt = time.Now().Add(-time.Second), time.Now()
		return e
	}
	count := func() (n int64) {
		u, err := b.Usage(UsageQuery{Tenant: "t"})
		must(t, err)
		for _, u := range u {
			n += u.Processes
		}
		return n
	}
	known := func() (n int) {
		must(t, b.view(func(tx *bbolt.Tx) error {
			n = tx.Bucket(processBucket).Stats().KeyN
			return nil
		}))
		return n
	}
	first := end(1)
	b.append(first)
	b.append(entry("t", "a", 2)) // displaces it
	must(t, b.flush())
	b.append(first)
	b.kill()
	b.reopen()
	b.append(first)
	if got := count(); got != 1 {
		t.Errorf("the end is counted %d times", got)
	}
	for n := range maxEnded + 10 {
		b.append(end(100 + n))
	}
	must(t, b.flush())
	if got := known(); got > maxEnded+1 { // one has an entry
		t.Errorf("%d ends are known", got)
	}
	b.append(entry("t", "a", 3))
	must(t, b.flush())
	_, err := b.forgetOld(time.Now().Add(time.Minute), time.Now().Add(-DefaultKeepUsage))
	must(t, err)
	if got := known(); got != 0 {
		t.Errorf("%d ends are known after they were forgotten", got)
	}
}

// TestDamagedSums: a sum that cannot be read does not keep entries from being stored. Usage begins anew, and
// the size of what a session has is counted again.
func TestDamagedSums(t *testing.T) {
	b := open(t, Options{SessionEntries: 3})
	for n := range 3 {
		b.append(entry("t", "a", n))
	}
	must(t, b.flush())
	day := start.UTC().Format(time.DateOnly)
	must(t, b.update(func(tx *bbolt.Tx) error {
		for _, at := range []struct{ bucket, key []byte }{
			{sizeBucket, join("t", "a")}, {sizeBucket, []byte("t")}, {usageBucket, join("t", day, "p", "a", "u-a")}, {totalBucket, join("t", "p")},
		} {
			must(t, tx.Bucket(at.bucket).Put(at.key, []byte("{x")))
		}
		return nil
	}))
	for n := 3; n < 5; n++ {
		b.append(entry("t", "a", n))
		must(t, b.flush())
	}
	if got := b.numbers(Query{Tenant: "t"}); got != "4 3 2" {
		t.Errorf("%q", got)
	}
	if u, err := b.Usage(UsageQuery{}); err != nil || len(u) != 1 || u[0].Execs != 2 {
		t.Errorf("%+v, %v", u, err)
	}
	must(t, b.view(func(tx *bbolt.Tx) error {
		var session, tenant amount
		must(t, getJSON(tx.Bucket(sizeBucket), join("t", "a"), &session))
		must(t, getJSON(tx.Bucket(sizeBucket), []byte("t"), &tenant))
		if session.Count != 3 || session != tenant {
			t.Errorf("sizes %+v, %+v", session, tenant)
		}
		return nil
	}))
	must(t, b.Close())
	if len(b.reported) != 1 || !strings.Contains(b.reported[0].Error(), "begins at 0") {
		t.Errorf("reported %q", b.reported)
	}
}

func TestUsage(t *testing.T) {
	b := open(t, Options{UsageRows: 4})
	day := func(n int) time.Time { return time.Date(2026, 1, n, 12, 0, 0, 0, time.FixedZone("", -14*3600)) } // the next day in UTC
	for n := 1; n <= 8; n++ {
		e := entry("t", fmt.Sprint("s", n), n)
		e.EndedAt = day(1 + n%2)
		b.append(e)
		if n == 7 {
			if err := b.flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	text := func(q UsageQuery) string {
		list, err := b.Usage(q)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, u := range list {
			out = append(out, fmt.Sprintf("%s%s%s%s%s=%d", u.Tenant, u.Profile, u.User, u.Session, u.Day, u.Execs))
		}
		return strings.Join(out, " ")
	}
	var q, days UsageQuery
	days.By.Day = true
	for _, c := range []struct {
		q    UsageQuery
		want string
	}{
		{q, "t=8"},
		{UsageQuery{Tenant: "x"}, ""},
		{days, "t2026-01-02=4 t2026-01-03=4"},
		{UsageQuery{From: "2026-01-03"}, "t=4"},
		{UsageQuery{To: "2026-01-02"}, "t=4"},
	} {
		if got := text(c.q); got != c.want {
			t.Errorf("%+v: %q, want %q", c.q, got, c.want)
		}
	}
	if err := b.flush(); err != nil {
		t.Fatal(err)
	}
	q.By.Session = true
	if got := text(q); got != "t*=4 ts1=1 ts2=1 ts3=1 ts4=1" {
		t.Errorf("beyond the bound: %q", got)
	}
	if _, err := b.forgetOld(time.Time{}, time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	q = UsageQuery{}
	if got := text(q); got != "t=4" {
		t.Errorf("without old days: %q", got)
	}
	if got := b.Totals(); len(got) != 1 || got[0].Execs != 8 {
		t.Errorf("totals %+v", got)
	}
}

// TestUnwritable: an entry that cannot be written is refused and reported, and harms no other.
func TestUnwritable(t *testing.T) {
	b := open(t, Options{})
	b.append(entry("t", "a", 1))
	must(t, b.journal.file.Close())
	if err := b.Store.Append(entry("t", "a", 2)); err == nil {
		t.Error("written to a closed file")
	}
	b.append(entry("t", "a", 3)) // in another file
	if got := b.numbers(Query{Tenant: "t"}); got != "3 1" {
		t.Errorf("%q", got)
	}
	b.kill()
	b.reopen()
	if got := b.numbers(Query{Tenant: "t"}); got != "3 1" {
		t.Errorf("replayed: %q", got)
	}
	if u, err := b.Usage(UsageQuery{}); err != nil || u[0].Execs != 2 {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestDamage: a database that cannot be read is kept aside, and one of a newer version is left alone.
func TestDamage(t *testing.T) {
	b := open(t, Options{})
	b.append(entry("t", "a", 1))
	must(t, b.Store.Close())
	path := filepath.Join(b.o.Dir, "history.db")
	must(t, os.WriteFile(path, bytes.Repeat([]byte("damage"), 10000), 0o600))
	b.reopen()
	b.append(entry("t", "a", 2))
	must(t, b.Store.Close())
	if aside, _ := filepath.Glob(path + ".corrupt-*"); len(aside) != 1 || len(b.reported) != 1 {
		t.Errorf("%q, %v", aside, b.reported)
	}
	db, err := bbolt.Open(path, 0o600, nil)
	must(t, err)
	must(t, db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(metaBucket).Put(versionKey, []byte{dbVersion + 1}) }))
	must(t, db.Close())
	if _, err := Open(b.o); err == nil || !strings.Contains(err.Error(), "format") {
		t.Errorf("a newer version: %v", err)
	}
}

// TestSegments: a journal of several files is removed as its entries are stored.
func TestSegments(t *testing.T) {
	b := open(t, Options{SessionEntries: 1 << 20, SessionBytes: 1 << 30, TenantBytes: 1 << 30})
	e := entry("t", "a", 1)
	e.Stdout = bytes.Repeat([]byte("x"), 300<<10)
	for range 100 {
		b.append(e)
	}
	paths, err := segments(b.o.Dir)
	must(t, err)
	b.kill()
	b.reopen()
	if list, _, err := b.List(Query{Tenant: "t", Limit: 1000}); err != nil || len(list) != 100 {
		t.Errorf("%d entries, %v; journal %q", len(list), err, paths)
	}
	must(t, b.flush()) // the last entries of the killed store
	if paths, err = segments(b.o.Dir); err != nil || len(paths) != 1 {
		t.Errorf("journal %q, %v", paths, err)
	}
}

func TestClosed(t *testing.T) {
	b := open(t, Options{})
	must(t, b.Store.Close())
	must(t, b.Store.Close())
	if err := b.Store.Append(entry("t", "a", 1)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestConcurrent appends and lists from many goroutines.
func TestConcurrent(t *testing.T) {
	b := open(t, Options{SessionEntries: 1 << 20})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for n := range 100 {
				if err := b.Store.Append(entry("t", fmt.Sprint(g), n)); err != nil {
					t.Error(err)
				}
				list, _, err := b.List(Query{Tenant: "t", Session: fmt.Sprint(g), Limit: 1000})
				if err != nil || len(list) != n+1 || list[0].Argv[0] != fmt.Sprint(n) {
					t.Errorf("%d entries after %d, %v", len(list), n+1, err)
				}
			}
		})
	}
	wg.Wait()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// FuzzReadFrames: whatever a journal contains, reading it ends without an error, and gives what was written
// before the damage.
func FuzzReadFrames(f *testing.F) {
	e := entry("t", "a", 1)
	body, err := encode(&e)
	if err != nil {
		f.Fatal(err)
	}
	good := frame(7, body)
	f.Add([]byte{})
	f.Add(good[:len(good)-1])
	f.Add(slices.Concat(good, good[:5]))
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, tail []byte) {
		n := 0
		err := readFrames(bytes.NewReader(slices.Concat(good, tail)), func(e Entry, body []byte) error {
			if n++; n == 1 && (e.Seq != 7 || e.Session != "a") {
				t.Errorf("%+v", e)
			}
			if e.Tenant == "" || e.Session == "" {
				t.Errorf("an entry of no session: %+v", e)
			}
			return nil
		})
		if err != nil || n == 0 {
			t.Errorf("%d entries, %v", n, err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	s, err := Open(Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	e := entry("t", "a", 1)
	e.Argv = []string{"/bin/sh", "-c", strings.Repeat("x", 200)}
	for b.Loop() {
		if err := s.Append(e); err != nil {
			b.Fatal(err)
		}
	}
}

// A value that cannot be read costs the history that there was, and not the start.
func TestDamagedValue(t *testing.T) {
	b := open(t, Options{})
	b.append(entry("t", "a", 1))
	if err := b.flush(); err != nil {
		t.Fatal(err)
	}
	err := b.update(func(tx *bbolt.Tx) error { return tx.Bucket(totalBucket).Put(join("t", "p"), []byte("{x")) })
	if err != nil {
		t.Fatal(err)
	}
	b.kill()
	s, err := Open(b.o)
	if err != nil {
		t.Fatal(err)
	}
	b.Store = s
	if kept, err := filepath.Glob(filepath.Join(b.o.Dir, "history.db.corrupt-*")); err != nil || len(kept) != 1 {
		t.Errorf("kept %q, %v", kept, err)
	}
	b.append(entry("t", "a", 2))
}

// What cannot be written down counts against the budget all the same.
func TestRefusedCounts(t *testing.T) {
	b := open(t, Options{})
	b.append(entry("t", "a", 1))
	b.mu.Lock()
	b.journal.file.Close()
	b.journal.file, b.journal.dir = nil, b.journal.dir+"/gone" // a journal that cannot be opened
	b.mu.Unlock()
	before := b.Today("t")
	for range 5 {
		if err := b.Append(entry("t", "a", 0)); err == nil {
			t.Fatal("it was written")
		}
	}
	if got := b.Today("t"); got.Execs != before.Execs+5 {
		t.Errorf("%+v, before %+v", got, before)
	}
}

// TestEmptySegment: a file in which the first write has failed is used again, and not removed while it
// has entries.
func TestEmptySegment(t *testing.T) {
	b := open(t, Options{})
	path := b.journal.file.Name()
	must(t, b.journal.file.Close())
	broken, err := os.Open(path) // neither write(2) nor ftruncate(2) works
	must(t, err)
	b.journal.file = broken
	if err := b.Store.Append(entry("t", "a", 1)); err == nil {
		t.Fatal("written to a file that is open for reading")
	}
	b.append(entry("t", "a", 2))
	if got := b.journal.file.Name(); got != path {
		t.Errorf("the journal continues in %s, not %s", got, path)
	}
	must(t, b.flush())
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the journal is gone: %v", err)
	}
	b.append(entry("t", "a", 3))
	b.kill()
	b.reopen()
	if got := b.numbers(Query{Tenant: "t"}); got != "3 2" {
		t.Errorf("%q", got)
	}
}

// TestUnencodable: an entry that cannot be encoded is counted and reported, once.
func TestUnencodable(t *testing.T) {
	b := open(t, Options{})
	for range 3 {
		if err := b.Store.Append(entry("t", "a\x00b", 1)); err == nil {
			t.Error("a NUL in a key")
		}
	}
	long := entry("t", "a", 1)
	long.Stdout = make([]byte, maxBody)
	if err := b.Store.Append(long); err == nil {
		t.Error("an entry without a bound")
	}
	if got := b.Today("t").Execs; got != 4 {
		t.Errorf("%d are counted", got)
	}
	must(t, b.Store.Close()) // waits for reports
	if len(b.reported) != 1 || !strings.Contains(b.reported[0].Error(), "NUL") {
		t.Errorf("reported: %v", b.reported)
	}
}

// TestReportsAreJoined: nothing reports once the store is closed.
func TestReportsAreJoined(t *testing.T) {
	b := open(t, Options{})
	reporting, end := make(chan struct{}), make(chan struct{})
	b.Store.o.Report = func(error) { close(reporting); <-end }
	if err := b.Store.Append(entry("t", "\x00", 1)); err == nil {
		t.Fatal("a NUL in a key")
	}
	<-reporting
	closed := make(chan error)
	go func() { closed <- b.Store.Close() }()
	for !b.isClosed() {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-closed:
		t.Error("closed while an error is being reported")
	default:
	}
	close(end)
	must(t, <-closed)
	if err := b.Store.Append(entry("t", "\x00", 1)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func (b *bench) isClosed() bool {
	b.Store.mu.Lock()
	defer b.Store.mu.Unlock()
	return b.Store.closed
}

// TestClockSetBack: what was used on a day counts when the clock is set back to it over midnight, and
// forth again.
func TestClockSetBack(t *testing.T) {
	b := open(t, Options{})
	today := time.Now().UTC()
	name := func(days int) string { return today.AddDate(0, 0, days).Format(time.DateOnly) }
	for days, n := range map[int]int{-1: 2, 0: 3, 1: 4} {
		for range n {
			e := entry("t", "a", 1)
			e.EndedAt = today.AddDate(0, 0, days)
			b.append(e)
		}
	}
	check := func() {
		t.Helper()
		for days, want := range map[int]int64{-1: 2, 0: 3, 1: 4, 2: 0} {
			if got := b.days[name(days)]["t"].Execs; got != want {
				t.Errorf("day %+d: %d, want %d", days, got, want)
			}
		}
		if got := b.Today("t").Execs; got != 3 {
			t.Errorf("today: %d", got)
		}
	}
	check()
	must(t, b.flush())
	b.append(Entry{Tenant: "other", Session: "a", EndedAt: today})
	b.kill()
	b.reopen()
	check()
	for days := range 100 { // however often the clock is set, the days are few
		b.Store.mu.Lock()
		b.dayLocked(name(days))
		b.Store.mu.Unlock()
	}
	if len(b.days) > keepDays {
		t.Errorf("%d days are kept", len(b.days))
	}
}

// TestReadersDoNotWait: who reads waits for no write(2).
func TestReadersDoNotWait(t *testing.T) {
	b := open(t, Options{})
	b.append(entry("t", "a", 1))
	b.writing.Lock() // as during a write(2) that hangs
	defer b.writing.Unlock()
	if got := b.numbers(Query{Tenant: "t"}); got != "1" {
		t.Error(got)
	}
	b.Today("t")
	b.Totals()
	if _, err := b.Usage(UsageQuery{}); err != nil {
		t.Error(err)
	}
}

// TestDamagedEntry: a list leaves a damaged entry out, says where it goes on, and reports the damage once.
func TestDamagedEntry(t *testing.T) {
	b := open(t, Options{SessionEntries: 6})
	for n := 1; n <= 6; n++ {
		b.append(entry("t", "a", n))
	}
	must(t, b.flush())
	must(t, b.update(func(tx *bbolt.Tx) error {
		for _, seq := range []uint64{5, 6} {
			if err := tx.Bucket(entryBucket).Put(numbered(prefix("t", "a"), seq), []byte("damage")); err != nil {
				return err
			}
		}
		return tx.Bucket(orderBucket).Put(numbered(prefix("t"), 2), []byte("{x"))
	}))
	for _, q := range []Query{{Tenant: "t"}, {}, {Tenant: "t", Session: "a"}} {
		if got := b.numbers(q); got != "4 3 1" {
			t.Errorf("%+v: %q", q, got)
		}
	}
	list, next, err := b.List(Query{Tenant: "t", Limit: 2})
	if err != nil || len(list) != 0 || next != 5 {
		t.Errorf("%v, next %d, %v", list, next, err)
	}
	if got := b.numbers(Query{Tenant: "t", Before: next, Limit: 2}); got != "4 3" {
		t.Errorf("behind it: %q", got)
	}
	for n := 7; n <= 12; n++ { // the damaged ones go as the others do
		b.append(entry("t", "a", n))
	}
	must(t, b.flush())
	if got := b.numbers(Query{Tenant: "t", Session: "a"}); got != "12 11 10 9 8 7" {
		t.Errorf("%q", got)
	}
	if _, err := b.forgetOld(time.Now().Add(time.Hour), time.Time{}); err != nil {
		t.Error(err)
	}
	if len(b.reported) != 1 {
		t.Errorf("reported: %v", b.reported)
	}
}

// TestUsersAreKept: a session of its own for each command does not cost the users their counters.
func TestUsersAreKept(t *testing.T) {
	b := open(t, Options{UsageRows: 4})
	for n := range 40 {
		e := entry("t", fmt.Sprint("s", n), 1)
		e.User = fmt.Sprint("u", n%3)
		b.append(e)
	}
	must(t, b.flush())
	var q UsageQuery
	q.By.User = true
	list, err := b.Usage(q)
	if err != nil || len(list) != 3 || list[0].Execs != 14 || list[1].Execs != 13 || list[2].Execs != 13 {
		t.Errorf("%+v, %v", list, err)
	}
	for n := range 40 { // their number is bounded as well
		e := entry("t", fmt.Sprint("t", n), 1)
		e.User = fmt.Sprint("v", n)
		b.append(e)
	}
	must(t, b.flush())
	q.By.Session = true
	list, err = b.Usage(q)
	if err != nil || len(list) > 9 || list[0].User != Others || list[0].Session != Others {
		t.Errorf("%d rows, %+v, %v", len(list), list, err)
	}
	must(t, b.view(func(tx *bbolt.Tx) error {
		if got := rowsIn(tx, "t"); got > 9 {
			t.Errorf("%d rows", got)
		}
		return nil
	}))
}

// TestPeriods: the life of a box is counted once, and not kept as an entry; a later Store learns up to
// when it is counted.
func TestPeriods(t *testing.T) {
	b := open(t, Options{})
	began := time.Now().Add(-10 * time.Minute).Truncate(time.Millisecond)
	period := func(minute int) Entry {
		return Entry{Tenant: "t", Session: "a", Box: "s-1", Profile: "p", User: "u", Period: true, Memory: MemoryTime(512<<20, time.Minute),
			StartedAt: began.Add(time.Duration(minute) * time.Minute), EndedAt: began.Add(time.Duration(minute+1) * time.Minute)}
	}
	command := entry("t", "a", 1)
	command.Memory = MemoryTime(1<<30, time.Second)
	for minute := range 8 {
		b.append(period(minute))
		if minute%3 == 0 {
			must(t, b.flush())
		}
		if minute%2 == 0 {
			b.kill()
			b.reopen()
			if got := b.Metered("t", "a", "s-1"); !got.Equal(began.Add(time.Duration(minute+1) * time.Minute)) {
				t.Errorf("counted until %v", got)
			}
		}
	}
	if !b.Metered("t", "a", "s-2").IsZero() {
		t.Error("another box is counted")
	}
	b.append(command)
	var q UsageQuery
	q.By.User, q.By.Session, q.By.Profile = true, true, true
	list, err := b.Usage(q)
	if err != nil || len(list) != 2 || list[0].Lived != 8*60*1000 || list[0].GiBSeconds() != 240 || list[0].Execs != 0 || list[1].GiBSeconds() != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if got := b.Today("t"); got.Lived > 8*60*1000 || got.Execs != 1 {
		t.Errorf("%+v", got)
	}
	if got := b.numbers(Query{Tenant: "t"}); got != "1" {
		t.Errorf("entries: %q", got)
	}
	b.append(period(8))
	gone := period(9)
	gone.Gone = true
	b.append(gone)
	b.kill()
	b.reopen()
	if got := b.Metered("t", "a", "s-1"); !got.IsZero() {
		t.Errorf("after its end, in the journal: %v", got)
	}
	must(t, b.Store.Close())
	b.reopen()
	if got := b.Metered("t", "a", "s-1"); !got.IsZero() {
		t.Errorf("after its end: %v", got)
	}
	if got := b.Totals(); len(got) != 1 || got[0].Lived != 9*60*1000 || got[0].GiBSeconds() != 271 {
		t.Errorf("%+v", got)
	}
	// A database of an older build has no meters; one that nobody ends is forgotten.
	must(t, b.update(func(tx *bbolt.Tx) error { return tx.DeleteBucket(meterBucket) }))
	b.kill()
	b.reopen()
	b.append(period(9))
	must(t, b.flush())
	if _, err := b.forgetOld(time.Now().Add(time.Hour), time.Time{}); err != nil {
		t.Fatal(err)
	}
	b.kill()
	b.reopen()
	if got := b.Metered("t", "a", "s-1"); !got.IsZero() {
		t.Errorf("it was not forgotten: %v", got)
	}
}

// Probes are counted, also after a crash, and displace no entry.
func TestProbes(t *testing.T) {
	b := open(t, Options{SessionEntries: 2})
	entry := func(probe Probe) Entry {
		cpu := time.Second
		return Entry{Tenant: "t", Session: "s", Process: "p", Probe: probe, EndedAt: time.Now(), Result: engine.Result{Verdict: engine.Exited, Receipt: engine.Receipt{User: &cpu}}}
	}
	b.append(Entry{Tenant: "t", Session: "s", Argv: []string{"1"}, EndedAt: time.Now()})
	for range 3 {
		b.append(entry(ProbeCommand))
		b.append(entry(ProbeHTTP))
	}
	for _, end := range []func(){b.kill, func() { b.Close() }, b.kill} {
		if got := b.numbers(Query{Tenant: "t"}); got != "1" {
			t.Errorf("entries %q", got)
		}
		if u, err := b.Usage(UsageQuery{}); err != nil || len(u) != 1 || u[0].Execs != 4 || u[0].Processes != 0 || u[0].CPU != 6*time.Second {
			t.Errorf("%+v, %v", u, err)
		}
		if u := b.Today("t"); u.Execs != 4 || u.CPU != 6*time.Second {
			t.Errorf("%+v", u)
		}
		end()
		b.reopen()
	}
}

// TestLabelledTotals: totals tell labels apart, up to a bound, and find them again after a kill.
func TestLabelledTotals(t *testing.T) {
	b := open(t, Options{})
	b.append(entry("t", "a", 1)) // without labels, as those of older builds
	for round := range 3 {
		for n := range maxLabelled + 5 {
			e := entry("t", "a", 1)
			e.Labels = map[string]string{"team": fmt.Sprint("x\x00", n), "zone": "z"}
			b.append(e)
			if n == 100*round {
				must(t, b.flush())
			}
		}
		b.kill()
		b.reopen()
	}
	labelled := map[string]int64{}
	for _, total := range b.Totals() {
		labelled[total.Labels["team"]+"/"+total.Labels["zone"]] += total.Execs
	}
	if len(labelled) != maxLabelled+2 || labelled["/"] != 1 || labelled["x\x007/z"] != 3 || labelled["*/*"] != 15 {
		t.Errorf("%d rows, %v", len(labelled), labelled)
	}
	other := entry("u", "a", 1)
	other.Labels = map[string]string{"team": "a"}
	b.append(other)
	if n := len(b.Totals()); n != maxLabelled+3 {
		t.Errorf("%d rows with another tenant", n)
	}
}
