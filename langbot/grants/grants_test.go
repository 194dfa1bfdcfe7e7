package grants

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	bolt "go.etcd.io/bbolt/errors"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/protocol"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

// world is a book and its environment.
type world struct {
	t     *testing.T
	path  string
	db    *bbolt.DB
	book  *Book
	clock time.Time
	fence int64
	max   int
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, path: filepath.Join(t.TempDir(), "db"), clock: time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC), max: 100}
	w.restart()
	return w
}

// restart kills the daemon and starts it again.
func (w *world) restart() {
	w.t.Helper()
	if w.db != nil {
		w.db.Close()
	}
	db, err := bbolt.Open(w.path, 0o600, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { db.Close() })
	w.db = db
	if w.book, err = Open(db, func() time.Time { return w.clock }); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) asker() Asker {
	return Asker{"i", func(string, string) (int64, bool) { return w.fence, w.fence > 0 }, w.max}
}

func (w *world) require() {
	w.t.Helper()
	if err := w.book.Configure(json.RawMessage(`{"required":true}`)); err != nil {
		w.t.Fatal(err)
	}
}

// grant returns the data of an upsert; changes are key, value, key, value.
func (w *world) grant(generation, revision int, life time.Duration, changes ...string) json.RawMessage {
	m := map[string]string{
		"instance_uuid": `"i"`, "workspace_uuid": `"w"`, "execution_generation": fmt.Sprint(generation), "entitlement_revision": fmt.Sprint(revision),
		"expires_at": `"` + w.clock.Add(life).Format(time.RFC3339Nano) + `"`, "max_sessions": "1", "max_managed_processes": "0",
	}
	for i := 0; i < len(changes); i += 2 {
		m[changes[i]] = changes[i+1]
	}
	var parts []string
	for k, v := range m {
		if v != "" {
			parts = append(parts, fmt.Sprintf("%q:%s", k, v))
		}
	}
	return json.RawMessage("{" + strings.Join(parts, ",") + "}")
}

func revocation(revision int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"instance_uuid":"i","workspace_uuid":"w","entitlement_revision":%d}`, revision))
}

func (w *world) upsert(data json.RawMessage, wantPurge bool) Grant {
	w.t.Helper()
	g, purge, err := w.book.Upsert(data, w.asker())
	if err != nil || purge != wantPurge {
		w.t.Fatalf("%s: got %v, purge %v", data, err, purge)
	}
	return g
}

// purge removes the sessions, as a caller has to.
func (w *world) purge() {
	w.t.Helper()
	if d, ok := w.book.DueOf("i", "w"); ok {
		if err := w.book.Done(d); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) live(generation int64, wrong string) Grant {
	w.t.Helper()
	g, err := w.book.Live(protocol.Context{Instance: "i", Workspace: "w", Generation: generation})
	expect(w.t, err, protocol.Admission, wrong)
	return g
}

// expect checks for an error of this class with wrong in its text, or for none if wrong is "".
func expect(t *testing.T, err error, class protocol.Class, wrong string) {
	t.Helper()
	var e *protocol.Error
	if wrong == "" && err != nil || wrong != "" && (!errors.As(err, &e) || e.Class != class || !strings.Contains(e.Text, wrong)) {
		t.Fatalf("got %v, want %s with %q", err, class, wrong)
	}
}

func (w *world) refuse(data json.RawMessage, class protocol.Class, wrong string) {
	w.t.Helper()
	_, _, err := w.book.Upsert(data, w.asker())
	expect(w.t, err, class, wrong)
}

func TestLifeOfAGrant(t *testing.T) {
	w := newWorld(t)
	w.refuse(w.grant(1, 1, time.Minute), protocol.Admission, "not enabled")
	w.live(1, "not enabled")
	if _, err := w.book.Revoke(revocation(1), w.asker()); err == nil {
		t.Error("revoked while admission is off")
	}
	w.require()
	w.live(1, "is missing")
	w.upsert(w.grant(1, 1, time.Minute), true)
	w.live(1, "still being removed")
	w.purge()
	if g := w.live(1, ""); !g.Expires.Equal(w.clock.Add(time.Minute)) || g.Context() != (protocol.Context{Instance: "i", Workspace: "w", Generation: 1}) {
		t.Errorf("got %+v", g)
	}
	w.live(2, "another execution generation")

	// Two concurrent renewals.
	long := w.upsert(w.grant(1, 1, 2*time.Minute), false)
	if g := w.upsert(w.grant(1, 1, time.Minute), false); g != long {
		t.Errorf("a shorter one was answered with %+v", g)
	}
	w.live(1, "")

	// A new generation, and a new revision.
	w.upsert(w.grant(2, 1, time.Minute), true)
	w.refuse(w.grant(1, 2, time.Minute), protocol.Admission, "generation 1 is stale: 2")
	w.purge()
	w.live(2, "")
	w.upsert(w.grant(2, 5, time.Minute), false)
	w.refuse(w.grant(2, 4, time.Minute), protocol.Admission, "revision 4 is stale: 5")
	w.refuse(w.grant(2, 5, time.Minute, "max_sessions", "0"), protocol.Admission, "limits changed")
	w.upsert(w.grant(2, 6, time.Minute, "max_sessions", "0"), true)
	w.purge()
	w.live(2, "does not permit sessions")
	w.upsert(w.grant(2, 7, time.Minute), false)
	w.live(2, "")

	// The grant expires.
	w.clock = w.clock.Add(time.Minute - time.Microsecond)
	w.live(2, "")
	w.clock = w.clock.Add(time.Microsecond)
	w.live(2, "has expired")
	due, err := w.book.Due()
	if err != nil || len(due) != 1 || due[0].Workspace != "w" {
		t.Fatalf("got %v, %v", due, err)
	}
	w.live(2, "is missing")
	w.refuse(w.grant(2, 6, time.Minute), protocol.Admission, "stale")
	w.upsert(w.grant(2, 7, time.Minute), true) // the same revision again: it was not revoked
	if err := w.book.Done(due[0]); err != nil {
		t.Fatal(err)
	}
	w.live(2, "still being removed") // the earlier removal, not a new one
	w.purge()
	w.live(2, "")
}

func TestRevoke(t *testing.T) {
	w := newWorld(t)
	w.require()
	w.upsert(w.grant(1, 3, time.Minute), true)
	w.purge()
	_, err := w.book.Revoke(revocation(2), w.asker())
	expect(t, err, protocol.Admission, "revision 2 is stale: 3")
	w.live(1, "")
	v, err := w.book.Revoke(revocation(4), w.asker())
	if b, _ := json.Marshal(v.Reply()); err != nil || string(b) != `{"revoked":true,"workspace_uuid":"w","entitlement_revision":4}` {
		t.Errorf("got %s, %v", b, err)
	}
	w.live(1, "is missing")
	for _, again := range []bool{false, true} {
		if again {
			w.restart()
		}
		w.refuse(w.grant(1, 3, time.Minute), protocol.Admission, "was revoked")
		w.refuse(w.grant(9, 4, time.Minute), protocol.Admission, "was revoked")
		_, err = w.book.Revoke(revocation(3), w.asker())
		expect(t, err, protocol.Admission, "stale")
	}
	if _, err := w.book.Revoke(revocation(4), w.asker()); err != nil { // a second time does no harm
		t.Error(err)
	}
	w.upsert(w.grant(1, 5, time.Minute), true)
	w.purge()
	w.live(1, "")

	unknown := json.RawMessage(`{"instance_uuid":"i","workspace_uuid":"never seen","entitlement_revision":2}`)
	if _, err := w.book.Revoke(unknown, w.asker()); err != nil {
		t.Error(err)
	}
	w.refuse(w.grant(1, 2, time.Minute, "workspace_uuid", `"never seen"`), protocol.Admission, "was revoked")
}

// TestKilledInBetween restarts after each step.
func TestKilledInBetween(t *testing.T) {
	w := newWorld(t)
	w.require()
	w.restart()
	w.live(1, "is missing") // required without box_init
	w.upsert(w.grant(3, 1, time.Minute), true)
	w.restart()
	w.live(3, "still being removed")
	due, err := w.book.Due()
	if err != nil || len(due) != 1 {
		t.Fatalf("got %v, %v", due, err)
	}
	w.restart()
	if err := w.book.Done(due[0]); err != nil {
		t.Fatal(err)
	}
	w.restart()
	want := Grant{"i", "w", 3, 1, 1, 0, w.clock.Add(time.Minute)}
	if g := w.live(3, ""); g != want {
		t.Errorf("got %+v", g)
	}
	w.refuse(w.grant(2, 1, time.Minute), protocol.Admission, "stale")
	if _, err := w.book.Revoke(revocation(1), w.asker()); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.live(3, "is missing")
	if due, err := w.book.Due(); err != nil || len(due) != 1 {
		t.Errorf("a revoked workspace is not due: %v, %v", due, err)
	}
	w.upsert(w.grant(3, 2, time.Minute), true)
	w.clock = w.clock.Add(time.Hour)
	w.restart()
	if due, err := w.book.Due(); err != nil || len(due) != 1 {
		t.Errorf("an expired workspace is not due: %v, %v", due, err)
	}
}

func TestWrittenBeforeEffect(t *testing.T) {
	w := newWorld(t)
	w.require()
	w.upsert(w.grant(1, 1, time.Minute), true)
	w.purge()
	w.db.Close()
	for name, err := range map[string]error{
		"upsert":    third(w.book.Upsert(w.grant(1, 2, time.Minute), w.asker())),
		"revoke":    second(w.book.Revoke(revocation(9), w.asker())),
		"configure": w.book.Configure(json.RawMessage(`{"required":true,"max_sessions":0}`)),
	} {
		if !errors.Is(err, bolt.ErrDatabaseNotOpen) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if g := w.live(1, ""); g.Revision != 1 {
		t.Errorf("what was not written has an effect: %+v", g)
	}
	w.clock = w.clock.Add(time.Hour)
	if _, err := w.book.Due(); !errors.Is(err, bolt.ErrDatabaseNotOpen) {
		t.Errorf("got %v", err)
	}
	w.live(1, "has expired")
}

func second[A any](_ A, err error) error        { return err }
func third[A, B any](_ A, _ B, err error) error { return err }

func TestBadGrants(t *testing.T) {
	w := newWorld(t)
	w.require()
	tests := []struct{ key, value, wrong string }{
		{"instance_uuid", "", "is missing"}, {"workspace_uuid", "", "is missing"}, {"execution_generation", "", "is missing"},
		{"entitlement_revision", "", "is missing"}, {"expires_at", "", "is missing"}, {"max_sessions", "", "is missing"}, {"max_managed_processes", "", "is missing"},
		{"other", "1", `unknown key "other"`}, {"Max_sessions", "1", "unknown key"},
		{"workspace_uuid", `" "`, "must not be empty"}, {"workspace_uuid", "5", "want a string"}, {"instance_uuid", "null", "want a string"},
		{"execution_generation", "0", "from 1 to"}, {"execution_generation", `"1"`, "integer"}, {"execution_generation", "1.0", "integer"},
		{"execution_generation", "true", "integer"}, {"execution_generation", "99999999999999999999", "from 1 to"},
		{"entitlement_revision", "0", "from 1 to"}, {"entitlement_revision", "1e2", "integer"}, {"entitlement_revision", "null", "integer"},
		{"max_sessions", "-1", "from 0 to"}, {"max_sessions", "true", "integer"}, {"max_sessions", "2", "session cap of 1"},
		{"max_managed_processes", "1", "managed-process cap of 0"}, {"max_managed_processes", "NaN", "integer"},
		{"expires_at", `"2026-11-20T08:01:00"`, "with a zone"}, {"expires_at", `"2026-11-20"`, "with a zone"}, {"expires_at", `""`, "with a zone"},
		{"expires_at", `1795162860`, "want a string"}, {"expires_at", `"tomorrow"`, "with a zone"}, {"expires_at", `"2026-13-20T08:01:00Z"`, "with a zone"},
		{"expires_at", `"2026-11-20T08:00:00Z"`, "Cannot install an expired"}, {"expires_at", `"2026-11-20T08:59:00+01:00"`, "Cannot install an expired"},
		{"expires_at", `"2026-11-20T08:05:00.000001Z"`, "lifetime exceeds"}, {"expires_at", `"9999-12-31T23:59:59Z"`, "lifetime exceeds"},
	}
	for _, tt := range tests {
		w.refuse(w.grant(1, 1, time.Minute, tt.key, tt.value), protocol.Admission, tt.wrong)
	}
	w.refuse(w.grant(1, 1, time.Minute, "instance_uuid", `"j"`), protocol.PermissionError, "instance_uuid")
	for _, data := range []string{`[]`, `null`, ``, `{`} {
		w.refuse(json.RawMessage(data), protocol.Admission, "want an object")
	}
	_, err := w.book.Revoke(json.RawMessage(`{"instance_uuid":"j","workspace_uuid":"w","entitlement_revision":1}`), w.asker())
	expect(t, err, protocol.PermissionError, "instance_uuid")
	for _, data := range []string{`{}`, `[]`, `{"instance_uuid":"i","workspace_uuid":"w","entitlement_revision":0}`, `{"instance_uuid":"i","workspace_uuid":"w","entitlement_revision":1,"x":1}`} {
		if _, err := w.book.Revoke(json.RawMessage(data), w.asker()); err == nil {
			t.Errorf("%s: accepted", data)
		}
	}
	if len(w.book.records) != 0 {
		t.Errorf("refused ones were recorded: %v", w.book.records)
	}
}

func TestExpiryAsItIsWritten(t *testing.T) {
	w := newWorld(t)
	w.require()
	for i, tt := range []struct{ sent, replied string }{
		{"2026-11-20T08:01:00Z", "2026-11-20T08:01:00+00:00"},
		{"2026-11-20T08:01:00.5z", "2026-11-20T08:01:00.500000+00:00"},
		{"2026-11-20 09:02:00.123456789+01:00", "2026-11-20T08:02:00.123456+00:00"},
		{"2026-11-20t03:03:01-0500", "2026-11-20T08:03:01+00:00"},
		{" 2026-11-20T10:04+02 ", "2026-11-20T08:04:00+00:00"},
		{"2026-11-20T08:05:00Z", "2026-11-20T08:05:00+00:00"}, // exactly the maximum
	} {
		g := w.upsert(w.grant(2, 7, 0, "expires_at", `"`+tt.sent+`"`), true) // not purged: it stays due
		want := `{"installed":true,"workspace_uuid":"w","execution_generation":2,"entitlement_revision":7,"max_sessions":1,"max_managed_processes":0,"expires_at":"` + tt.replied + `"}`
		if b, _ := json.Marshal(g.Reply()); string(b) != want {
			t.Errorf("%d: got %s\nwant %s", i, b, want)
		}
	}
}

func TestFenceAndCapacity(t *testing.T) {
	w := newWorld(t)
	w.require()
	w.fence, w.max = 5, 2
	w.refuse(w.grant(4, 1, time.Minute), protocol.Admission, "generation 4 is stale: 5")
	w.upsert(w.grant(5, 1, time.Minute), true)
	w.upsert(w.grant(5, 1, time.Minute, "workspace_uuid", `"v"`), true)
	w.refuse(w.grant(5, 1, time.Minute, "workspace_uuid", `"u"`), protocol.Admission, "capacity reached (2)")
	_, err := w.book.Revoke(json.RawMessage(`{"instance_uuid":"i","workspace_uuid":"u","entitlement_revision":1}`), w.asker())
	expect(t, err, protocol.Admission, "capacity reached (2)")
	w.upsert(w.grant(6, 1, time.Minute), true)
}

func TestPolicyThatNarrows(t *testing.T) {
	w := newWorld(t)
	w.require()
	w.upsert(w.grant(1, 1, time.Minute), true)
	w.purge()
	if err := w.book.Configure(json.RawMessage(`{"required":true,"max_sessions":0}`)); err != nil {
		t.Fatal(err)
	}
	w.live(1, "exceeds the active runtime policy")
	w.refuse(w.grant(1, 2, time.Minute), protocol.Admission, "session cap of 0")

	// It cannot be switched off, not even by a typo.
	for _, off := range []string{``, `null`, `{}`, `{"required":false}`} {
		if err := w.book.Configure(json.RawMessage(off)); err != nil {
			t.Fatal(err)
		}
		p, err := w.book.Policy()
		expect(t, err, protocol.Readiness, "cannot be disabled")
		if !p.Required || p.MaxSessions != 0 {
			t.Errorf("%q: policy became %+v", off, p)
		}
		w.refuse(w.grant(1, 2, time.Minute), protocol.Readiness, "cannot be disabled")
		if _, err := w.book.Live(protocol.Context{Instance: "i", Workspace: "w", Generation: 1}); err == nil {
			t.Error("admitted")
		}
	}
	if err := w.book.Configure(json.RawMessage(`{"required":"maybe"}`)); err != nil {
		t.Fatal(err)
	}
	_, err := w.book.Policy()
	expect(t, err, protocol.Readiness, "admission.required")
	if _, err := w.book.Revoke(revocation(9), w.asker()); err != nil { // revoking is always possible
		t.Error(err)
	}
	w.require()
	w.upsert(w.grant(1, 10, time.Minute), true)

	// A new process may be configured without admission, but until then the old policy holds.
	w.restart()
	if p, err := w.book.Policy(); !p.Required || err != nil {
		t.Errorf("after a restart: %+v, %v", p, err)
	}
	if err := w.book.Configure(nil); err != nil {
		t.Fatal(err)
	}
	if p, err := w.book.Policy(); p.Required || err != nil {
		t.Errorf("switched off after a restart: %+v, %v", p, err)
	}
	w.restart()
	if p, err := w.book.Policy(); p.Required || err != nil {
		t.Errorf("and one more: %+v, %v", p, err)
	}
}

func TestDamagedRecords(t *testing.T) {
	for name, v := range map[string]string{"no JSON": "x", "of another": `{"instance":"i","workspace":"v"}`} {
		w := newWorld(t)
		k := protocol.KeyOf("i", "w")
		if err := w.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket).Put(k[:], []byte(v)) }); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(w.db, time.Now); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestTogether is for the race detector, and for the rule that must hold in any order: a
// revoked grant admits no one.
func TestTogether(t *testing.T) {
	w := newWorld(t)
	w.require()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 10 {
				w.book.Upsert(w.grant(1, 4*n+i+1, time.Minute), w.asker())
				w.book.Live(protocol.Context{Instance: "i", Workspace: "w", Generation: 1})
				if due, err := w.book.Due(); err != nil {
					t.Error(err)
				} else {
					for _, d := range due {
						w.book.Done(d)
					}
				}
				if n%3 == 0 {
					w.book.Revoke(revocation(4*n+i+1), w.asker())
				}
			}
		})
	}
	wg.Wait()
	if _, err := w.book.Revoke(revocation(50), w.asker()); err != nil {
		t.Fatal(err)
	}
	w.refuse(w.grant(9, 50, time.Minute), protocol.Admission, "was revoked")
	w.live(1, "is missing")
}
