package fence

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/bbolt"
	bolt "go.etcd.io/bbolt/errors"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/protocol"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

func gen(n int64) protocol.Context {
	return protocol.Context{Instance: "i", Workspace: "w", Generation: n}
}

func openDB(t *testing.T, path string) *bbolt.DB {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// hook is an advanced function that a test can watch and block.
type hook struct {
	mu     sync.Mutex
	calls  []int64
	do     func(context.Context, protocol.Context) error
	during atomic.Int32
}

func (h *hook) advanced(ctx context.Context, c protocol.Context) error {
	h.during.Add(1)
	defer h.during.Add(-1)
	h.mu.Lock()
	h.calls = append(h.calls, c.Generation)
	do := h.do
	h.mu.Unlock()
	if do != nil {
		return do(ctx, c)
	}
	return nil
}

func (h *hook) set(do func(context.Context, protocol.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.do = do
}

func (h *hook) expect(t *testing.T, want ...int64) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.calls) != len(want) {
		t.Fatalf("advanced was called for %v, want %v", h.calls, want)
	}
	for i := range want {
		if h.calls[i] != want[i] {
			t.Fatalf("advanced was called for %v, want %v", h.calls, want)
		}
	}
}

func open(t *testing.T, db *bbolt.DB, h *hook) *Fence {
	t.Helper()
	f, err := Open(db, func() int { return 3 }, h.advanced)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func enter(t *testing.T, f *Fence, c protocol.Context) (context.Context, func()) {
	t.Helper()
	ctx, leave, err := f.Enter(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, leave
}

func refuse(t *testing.T, f *Fence, c protocol.Context, want error) {
	t.Helper()
	if _, _, err := f.Enter(t.Context(), c); !errors.Is(err, want) {
		t.Fatalf("generation %d: got %v, want %v", c.Generation, err, want)
	}
}

func TestAdvance(t *testing.T) {
	h := &hook{}
	f := open(t, openDB(t, filepath.Join(t.TempDir(), "db")), h)
	if _, ok := f.Current("i", "w"); ok {
		t.Error("known before anything")
	}
	if err := f.Check(gen(1)); !errors.Is(err, protocol.ErrStale) {
		t.Errorf("got %v", err)
	}
	refuse(t, f, gen(0), protocol.ErrStale)
	refuse(t, f, gen(-5), protocol.ErrStale)
	if _, ok := f.Current("i", "w"); ok {
		t.Error("known after a refusal")
	}

	two, leaveTwo := enter(t, f, gen(2))
	again, leaveAgain := enter(t, f, gen(2))
	h.expect(t, 2)
	refuse(t, f, gen(1), protocol.ErrStale)
	other, leaveOther := enter(t, f, protocol.Context{Instance: "i", Workspace: "v", Generation: 1})
	leaveAgain()
	if context.Cause(again) != context.Canceled {
		t.Errorf("after leave: %v", context.Cause(again))
	}

	_, leaveFive := enter(t, f, gen(5))
	if context.Cause(two) != protocol.ErrStale {
		t.Errorf("an older action was cancelled with %v", context.Cause(two))
	}
	if other.Err() != nil {
		t.Error("another workspace's action was cancelled")
	}
	if f.Check(gen(5)) != nil || f.Check(gen(2)) == nil || f.Check(gen(6)) == nil {
		t.Error("Check does not go by the current generation")
	}
	refuse(t, f, gen(4), protocol.ErrStale)
	leaveTwo()
	leaveTwo()
	leaveOther()
	leaveFive()
	h.expect(t, 2, 1, 5)
	if err := f.Advance(t.Context(), gen(5)); err != nil {
		t.Error(err)
	}
	if err := f.Advance(t.Context(), gen(7)); err != nil {
		t.Error(err)
	}
	if now, ok := f.Current("i", "w"); now != 7 || !ok {
		t.Errorf("current is %d, %v", now, ok)
	}
	h.expect(t, 2, 1, 5, 7)
}

// TestEverybodyWaits: many actions of a new generation arrive while the old one is being
// removed.
func TestEverybodyWaits(t *testing.T) {
	h := &hook{}
	f := open(t, openDB(t, filepath.Join(t.TempDir(), "db")), h)
	enter(t, f, gen(1))
	begun, release := make(chan struct{}), make(chan struct{})
	h.set(func(context.Context, protocol.Context) error {
		close(begun)
		<-release
		return nil
	})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			_, leave, err := f.Enter(t.Context(), gen(2))
			if err != nil || h.during.Load() != 0 {
				t.Errorf("got in while the old generation was there: %v", err)
				return
			}
			leave()
		})
	}
	<-begun
	refuse(t, f, gen(1), protocol.ErrStale) // this does not wait
	ctx, cancel := context.WithCancel(t.Context())
	impatient := make(chan error)
	go func() {
		_, _, err := f.Enter(ctx, gen(2))
		impatient <- err
	}()
	cancel()
	if err := <-impatient; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(release)
	wg.Wait()
	h.expect(t, 1, 2)
}

func TestTheFirstMayLeave(t *testing.T) {
	h := &hook{}
	f := open(t, openDB(t, filepath.Join(t.TempDir(), "db")), h)
	ctx, cancel := context.WithCancel(t.Context())
	h.set(func(ctx context.Context, _ protocol.Context) error {
		cancel() // the connection of the action is lost
		return ctx.Err()
	})
	ctx, leave, err := f.Enter(ctx, gen(1))
	if err != nil || ctx.Err() == nil {
		t.Fatalf("got %v", err)
	}
	leave()
	h.set(nil)
	enter(t, f, gen(1))
	h.expect(t, 1)
}

func TestFailedRemovalIsRepeated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	h := &hook{}
	db := openDB(t, path)
	f := open(t, db, h)
	broken := errors.New("cannot delete")
	old, _ := enter(t, f, gen(1))
	h.set(func(context.Context, protocol.Context) error { return broken })
	refuse(t, f, gen(2), broken)
	refuse(t, f, gen(2), broken)
	refuse(t, f, gen(1), protocol.ErrStale)
	if context.Cause(old) != protocol.ErrStale {
		t.Errorf("the old action goes on: %v", context.Cause(old))
	}
	db.Close()

	h2 := &hook{} // the daemon was killed before it had removed the rest
	f = open(t, openDB(t, path), h2)
	if now, ok := f.Current("i", "w"); now != 2 || !ok {
		t.Fatalf("current is %d, %v", now, ok)
	}
	refuse(t, f, gen(1), protocol.ErrStale)
	h2.expect(t)
	enter(t, f, gen(2))
	enter(t, f, gen(2))
	h2.expect(t, 2)
}

func TestWrittenBeforeEffect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	h := &hook{}
	db := openDB(t, path)
	f := open(t, db, h)
	old, _ := enter(t, f, gen(1))
	h.set(func(_ context.Context, c protocol.Context) error {
		saved, err := load(db)
		if err != nil {
			t.Error(err)
		} else if e := saved[protocol.KeyOf("i", "w")]; e == nil || e.generation != c.Generation || !e.dirty {
			t.Errorf("on disk while removing: %+v", e)
		}
		return nil
	})
	second, _ := enter(t, f, gen(2))
	if old.Err() == nil {
		t.Error("the old action goes on")
	}
	h.set(nil)
	db.Close()
	refuse(t, f, gen(3), bolt.ErrDatabaseNotOpen)
	if now, _ := f.Current("i", "w"); now != 2 || second.Err() != nil {
		t.Errorf("what was not written had an effect: %d, %v", now, second.Err())
	}
	refuse(t, f, protocol.Context{Instance: "i", Workspace: "new", Generation: 1}, bolt.ErrDatabaseNotOpen)
	if len(f.entries) != 1 {
		t.Error("a workspace that was not written takes room")
	}
	f = open(t, openDB(t, path), &hook{})
	if now, _ := f.Current("i", "w"); now != 2 {
		t.Errorf("after a restart: %d", now)
	}
}

func TestCapacity(t *testing.T) {
	f := open(t, openDB(t, filepath.Join(t.TempDir(), "db")), &hook{})
	for _, w := range []string{"a", "b", "c"} {
		_, leave := enter(t, f, protocol.Context{Instance: "i", Workspace: w, Generation: 1})
		leave()
	}
	var e *protocol.Error
	_, _, err := f.Enter(t.Context(), protocol.Context{Instance: "i", Workspace: "d", Generation: 1})
	if !errors.As(err, &e) || e.Class != protocol.PermissionError || !strings.Contains(e.Text, "3 workspaces") {
		t.Errorf("got %v", err)
	}
	enter(t, f, protocol.Context{Instance: "i", Workspace: "a", Generation: 2})
}

func TestDamagedRecords(t *testing.T) {
	good := protocol.KeyOf("i", "w")
	for name, r := range map[string]struct{ k, v string }{
		"no JSON":       {string(good[:]), "x"},
		"empty":         {string(good[:]), ""},
		"of another":    {string(good[:]), `{"instance":"i","workspace":"v","generation":1}`},
		"no generation": {string(good[:]), `{"instance":"i","workspace":"w"}`},
		"short key":     {"k", `{"instance":"i","workspace":"w","generation":1}`},
	} {
		db := openDB(t, filepath.Join(t.TempDir(), "db"))
		err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket(bucket)
			if err != nil {
				return err
			}
			return b.Put([]byte(r.k), []byte(r.v))
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(db, func() int { return 1 }, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestManyGenerations: generations arrive in any order, concurrently.
func TestManyGenerations(t *testing.T) {
	h := &hook{}
	f := open(t, openDB(t, filepath.Join(t.TempDir(), "db")), h)
	var highest atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				g := highest.Load() + rand.Int64N(3)
				ctx, leave, err := f.Enter(t.Context(), gen(g))
				if errors.Is(err, protocol.ErrStale) {
					continue
				} else if err != nil {
					t.Error(err)
					return
				}
				for now := highest.Load(); now < g && !highest.CompareAndSwap(now, g); now = highest.Load() {
				}
				if f.Check(gen(g)) != nil && ctx.Err() == nil {
					t.Errorf("generation %d is over and its action was not cancelled", g)
				}
				leave()
			}
		})
	}
	wg.Wait()
	if now, _ := f.Current("i", "w"); now != highest.Load() {
		t.Errorf("current is %d, the highest that got in %d", now, highest.Load())
	}
	for i := 1; i < len(h.calls); i++ {
		if h.calls[i] <= h.calls[i-1] {
			t.Fatalf("advanced was called for %v", h.calls)
		}
	}
	for _, e := range f.entries {
		if len(e.running) != 0 {
			t.Errorf("%d actions are still registered", len(e.running))
		}
	}
}
