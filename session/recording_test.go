package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Nobody is answered for a session that is not on disk; it is recorded as soon as that is
// possible, and can be used then.
func TestRecordIsWrittenLater(t *testing.T) {
	b := open(t)
	var mend func()
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "created" {
			b.firstRecord()
			mend = b.breakStore()
		}
		return nil
	})
	for _, what := range []string{"made", "joined"} {
		if v, err := b.Ensure(ctx, me, keyA, policy.Request{}); err == nil {
			t.Fatalf("%s: %+v", what, v)
		}
	}
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "start" || op == "launch" {
			t.Error("something was begun in it")
		}
		return nil
	})
	if res, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); err == nil {
		t.Errorf("a command ran: %+v", res)
	}
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}); err == nil {
		t.Error("a process was started")
	}
	// Another attempt, of which nothing is known yet, does not let anything begin either.
	fail := b.stallStore()
	b.eventually("another attempt", func() bool { return b.retrying(keyA) })
	refused := make(chan error, 1)
	go func() {
		_, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}})
		refused <- err
	}()
	b.eventually("its use", func() bool { return b.held(keyA) || len(refused) > 0 }) // refused if that attempt was an earlier one
	fail()
	if err := <-refused; !errors.Is(err, ErrStorage) {
		t.Errorf("during another attempt: %v", err)
	}
	mend()
	b.eventually("the record", func() bool { return b.recorded(keyA) == Running })
	v := b.ensure(keyA, policy.Request{})
	if v.Created || v.Recreated {
		t.Errorf("%+v", v)
	}
	b.restart()
	if got := b.get(keyA); got.State != Running || got.Box != v.Box {
		t.Errorf("it was %+v, is %+v", v, got)
	}
}

// A command that has begun has its result, also if its session was recorded only meanwhile.
func TestResultOfAnUnrecordedSession(t *testing.T) {
	b := open(t)
	good := b.Manager.store.db
	var fail func()
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		switch op {
		case "created":
			b.firstRecord()
			fail = b.stallStore()
		case "start":
			r := b.attempt(keyA)
			b.taken()
			b.swapStore(good)
			fail()
			await(t, r.done, "the attempt to record it")
			if r.err == nil {
				t.Error("it was recorded")
			}
			b.eventually("the record", func() bool { return b.recorded(keyA) == Running })
		}
		return nil
	})
	res, err := b.Exec(ctx, me, keyA, &policy.Request{}, Exec{Args: []string{"exit", "3"}})
	if err != nil || res.Verdict != engine.Exited || res.ExitCode != 3 {
		t.Errorf("%+v, %v", res, err)
	}
}

// Nobody is answered while it is not on disk that the box runs.
func TestNobodyIsAnsweredBefore(t *testing.T) {
	ask := &policy.Request{}
	for name, call := range map[string]func(b *bench) error{
		"ensure": func(b *bench) error { return second(b.Ensure(ctx, me, keyA, *ask)) },
		"exec":   func(b *bench) error { return second(b.Exec(ctx, me, keyA, ask, Exec{Args: []string{"true"}})) },
		"start": func(b *bench) error {
			return second(b.Start(ctx, me, keyA, ask, ProcessSpec{ID: "p", Args: []string{"serve"}}))
		},
		"access": func(b *bench) error {
			_, release, err := b.Access(ctx, me, keyA, ask, Access{Action: "file-read"})
			if err == nil {
				release()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			good := b.Manager.store.db
			var fail func()
			stalled := make(chan struct{})
			b.host.SetHook(func(_ context.Context, op, _ string) error {
				switch op {
				case "created":
					b.firstRecord()
					fail = b.stallStore()
					close(stalled)
				case "launch":
					t.Error("a process was started before the record")
				}
				return nil
			})
			answered := make(chan error, 1)
			go func() { answered <- call(b) }()
			await(t, stalled, "the box")
			select {
			case err := <-answered:
				t.Errorf("answered: %v", err)
			case <-time.After(100 * time.Millisecond): // bounds what a wrong answer may take
			}
			b.host.SetHook(nil)
			b.swapStore(good)
			fail()
			<-answered
		})
	}
}

// A command whose admission takes longer than the failure does not begin.
func TestNothingBeginsAfterTheFailure(t *testing.T) {
	b := newBench(t)
	var fail func()
	var slow bool
	b.audit.told = func(e audit.Entry) {
		if e.Action == "exec" && e.Decision == audit.Allow {
			slow = true
			r := b.attempt(keyA)
			fail()
			await(t, r.done, "the failure")
			if r.err == nil {
				t.Error("it was recorded")
			}
		}
	}
	b.start()
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		switch op {
		case "created":
			b.firstRecord()
			fail = b.stallStore()
		case "start":
			t.Error("a command was begun after the failure")
		}
		return nil
	})
	res, err := b.Exec(ctx, me, keyA, &policy.Request{}, Exec{Args: []string{"true"}})
	if !slow || !errors.Is(err, ErrStorage) {
		t.Errorf("slow %v: %+v, %v", slow, res.Result, err)
	}
}

// What needs a session that is on disk is refused while it is not, and nothing is done.
func TestUnrecordedSessionIsLeftAlone(t *testing.T) {
	ask := policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}}}
	b := open(t)
	mend := b.brokenRecord()
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "update" {
			t.Error("the box was changed")
		}
		return nil
	})
	if _, err := b.Ensure(ctx, me, keyA, ask); !errors.Is(err, ErrStorage) {
		t.Errorf("mounts: %v", err)
	}
	if box, _, err := b.Look(ctx, me, keyA, Access{Action: "file-read"}); box != nil || !errors.Is(err, ErrStorage) {
		t.Errorf("look: %v", err)
	}
	b.host.SetHook(nil)
	mend()
	b.eventually("its use", func() bool { return second(b.Ensure(ctx, me, keyA, ask)) == nil })
	if n := len(b.get(keyA).Resolved.Mounts); n != 2 {
		t.Errorf("%d mounts", n)
	}
}

// A change that failed is not there after a crash, whatever was recorded meanwhile.
func TestFailedChangeAndLostBox(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	must(t, b.written())
	good := b.Manager.store.db
	fail := b.stallStore()
	failed := make(chan error, 1)
	go func() {
		_, err := b.Update(ctx, me, keyA, spec.Update{Attach: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}, LiveWishes: spec.LiveWishes{Persistent: ptr(true)}})
		failed <- err
	}()
	b.eventually("the change", func() bool { return b.get(keyA).Resolved.Persistent })
	b.taken()
	b.host.Kill(v.Box)
	b.eventually("the loss", func() bool { return b.get(keyA).State == Failed })
	b.swapStore(good)
	fail()
	if err := <-failed; !errors.Is(err, ErrStorage) {
		t.Fatalf("%v", err)
	}
	b.eventually("its record", func() bool { return b.recorded(keyA) == Failed })
	before := b.get(keyA).Resolved
	b.restart()
	after := b.get(keyA).Resolved
	if before.Persistent != after.Persistent || len(before.Mounts) != len(after.Mounts) {
		t.Errorf("told that nothing was changed: persistent %v, %d mounts; after a crash %v, %d mounts",
			before.Persistent, len(before.Mounts), after.Persistent, len(after.Mounts))
	}
}

// A kept volume is kept if the manager closes while its session is being made.
func TestKeptVolumeAndClose(t *testing.T) {
	b := open(t)
	ask := policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20), LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}}
	lost := b.ensure(keyA, ask)
	name := volumeName(keyA)
	b.host.Fill(name, 77)
	b.crash()
	b.host.Remove(lost.Box)
	must(t, os.Remove(filepath.Join(b.dir, "boxd.db")))
	closed := make(chan struct{})
	b.alter = func(o *Options) {
		o.Engine = &createThen{o.Engine, func() {
			go func() { defer close(closed); b.Manager.Close(ctx, false) }()
			for joined := false; !joined; time.Sleep(time.Millisecond) {
				b.Manager.mu.Lock()
				joined = b.Manager.joined
				b.Manager.mu.Unlock()
			}
		}}
	}
	b.start()
	if v, err := b.Ensure(ctx, me, keyA, ask); err == nil {
		t.Fatalf("made: %+v", v)
	}
	await(t, closed, "the close")
	b.alter = nil
	b.start()
	must(t, b.Manager.Close(ctx, false)) // waits for all calls
	if v := b.host.Volume(name); v == nil || v.UsedBytes != 77 {
		t.Errorf("the kept volume is gone: %+v", v)
	}
}

// createThen calls then when the box is made, whose answer is not lost.
type createThen struct {
	engine.Service
	then func()
}

func (e *createThen) Create(ctx context.Context, spec engine.Spec) (engine.LiveBox, error) {
	box, err := e.Service.Create(ctx, spec)
	e.then()
	return box, err
}

// What the first command of a session that was given up has written is not what the next
// session of that name finds.
func TestFilesOfAGivenUpSession(t *testing.T) {
	for name, ask := range map[string]policy.Request{"directory": {}, "volume": {Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20)}}} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			m, client, good, reached := b.Manager, b.client, b.Manager.store.db, make(chan struct{})
			var fail func()
			b.host.SetHook(func(_ context.Context, op, _ string) error {
				switch op {
				case "created":
					b.firstRecord()
					fail = b.stallStore()
				case "start":
					if ask.WorkspaceSize != nil {
						b.host.Fill(volumeName(keyA), 5)
					} else {
						must(t, os.WriteFile(filepath.Join(b.workspace(keyA), "secret"), nil, 0o600))
					}
					close(reached)
					<-client.Gone()
				}
				return nil
			})
			done := make(chan struct{})
			go func() {
				defer close(done)
				m.Exec(ctx, me, keyA, &ask, Exec{Args: []string{"true"}})
			}()
			await(t, reached, "the command")
			b.swapStore(b.brokenDB()) // a crash: nothing that is queued gets to disk
			client.Cut()
			fail()
			m.Close(ctx, false)
			await(t, done, "the caller")
			must(t, good.Close())
			b.host.SetHook(nil)
			b.start()
			if !b.audit.has("create", audit.Failed) {
				t.Error("its end is not in the audit log")
			}
			if v := b.ensure(keyA, ask); !v.Created {
				t.Fatalf("%+v", v)
			}
			if ask.WorkspaceSize != nil {
				if used := b.host.Volume(volumeName(keyA)).UsedBytes; used != 0 {
					t.Errorf("%d bytes of the session that was given up", used)
				}
			} else if _, err := os.Stat(filepath.Join(b.workspace(keyA), "secret")); err == nil {
				t.Error("a file of the session that was given up")
			}
		})
	}
}

// brokenRecord makes a session of which it could not be recorded that its box runs.
func (b *bench) brokenRecord() (mend func()) {
	b.t.Helper()
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "created" {
			b.firstRecord()
			mend = b.breakStore()
		}
		return nil
	})
	if v, err := b.Ensure(ctx, me, keyA, policy.Request{}); err == nil {
		b.t.Fatalf("made: %+v", v)
	}
	b.host.SetHook(nil)
	return mend
}

// recorded is the state that the open database has of a session; empty without a record.
func (b *bench) recorded(key Key) (state State) {
	must(b.t, b.Manager.store.db.View(func(tx *bbolt.Tx) error {
		if r, err := decodeSession(sessionKey(key), tx.Bucket(sessionsBucket).Get(sessionKey(key))); err == nil {
			state = r.State
		}
		return nil
	}))
	return state
}

// breakStore makes all writes fail until mend is called.
func (b *bench) breakStore() (mend func()) {
	good := b.swapStore(b.brokenDB())
	return func() { b.swapStore(good) }
}

// stallStore lets all writes wait until fail is called; they fail then.
func (b *bench) stallStore() (fail func()) {
	stalled, err := bbolt.Open(filepath.Join(b.t.TempDir(), "stalled.db"), 0o600, nil) // without buckets
	must(b.t, err)
	tx, err := stalled.Begin(true)
	must(b.t, err)
	b.swapStore(stalled)
	b.t.Cleanup(func() { must(b.t, stalled.Close()) })
	return func() { must(b.t, tx.Rollback()) }
}

// session is the manager's own of that key.
func (b *bench) session(key Key) *session {
	b.Manager.mu.Lock()
	defer b.Manager.mu.Unlock()
	return b.Manager.sessions[key]
}

// taken waits until all that was handed over is being written, or is written.
func (b *bench) taken() {
	s := b.Manager.store
	b.eventually("a transaction", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) == 0
	})
}

// retrying says that it is being recorded once more that the session's box runs.
func (b *bench) retrying(key Key) bool { return !isDone(b.attempt(key).done) }

// attempt is the last one to record that the session's box runs.
func (b *bench) attempt(key Key) *recording {
	s := b.session(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recording
}

// firstRecord waits until it is on disk that a session is being made.
func (b *bench) firstRecord() {
	b.eventually("the first record", func() bool { return b.recorded(keyA) == Creating })
}

// held reports whether the session is in use.
func (b *bench) held(key Key) bool {
	s := b.session(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uses > 0
}

// brokenDB is a database that fails.
func (b *bench) brokenDB() *bbolt.DB {
	broken, err := bbolt.Open(filepath.Join(b.t.TempDir(), "broken.db"), 0o600, nil)
	must(b.t, err)
	must(b.t, broken.Close())
	return broken
}

// swapStore gives the manager another database. A transaction under way ends in the old.
func (b *bench) swapStore(db *bbolt.DB) (old *bbolt.DB) {
	s := b.Manager.store
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.db = s.db, db
	return old
}

// What could not be recorded is recorded when the manager closes, if that is possible then.
func TestUnrecordedSessionAtTheEnd(t *testing.T) {
	b := open(t)
	mend := b.brokenRecord()
	v := b.get(keyA)
	must(t, os.WriteFile(filepath.Join(b.workspace(keyA), "result"), nil, 0o600))
	b.eventually("a pause between two attempts", func() bool {
		r := b.attempt(keyA)
		return r.repeated && isDone(r.done)
	})
	mend()
	must(t, b.Manager.Close(ctx, false))
	b.start()
	if got := b.get(keyA); got.Box != v.Box || got.State != Running {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(b.workspace(keyA), "result")); err != nil {
		t.Error(err)
	}
}

// A removal during the first creation does no harm to what was there before, even if the
// process ends then.
func TestRemovalOfACreationAndCrash(t *testing.T) {
	b := open(t)
	file := filepath.Join(b.workspace(keyA), "old")
	must(t, os.MkdirAll(b.workspace(keyA), 0o700))
	must(t, os.WriteFile(file, nil, 0o600))
	client, reached := b.client, make(chan struct{})
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "create" {
			close(reached)
			<-client.Gone()
		}
		return nil
	})
	done := make(chan struct{})
	m := b.Manager
	go func() { defer close(done); m.Ensure(ctx, me, keyA, policy.Request{}) }()
	await(t, reached, "create")
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := b.Remove(gone, me, keyA); err == nil {
		t.Error("it is removed")
	}
	b.crash()
	<-done
	b.host.SetHook(nil)
	b.start()
	b.eventually("its end", func() bool { return second(b.Get(keyA)) != nil && b.recorded(keyA) == "" })
	must(t, b.Manager.Close(ctx, false)) // waits for all calls
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
