package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// database changes the closed database.
func (b *bench) database(fn func(tx *bbolt.Tx) error) {
	b.t.Helper()
	db, err := bbolt.Open(filepath.Join(b.dir, "boxd.db"), 0o600, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(fn); err != nil {
		b.t.Fatal(err)
	}
}

// rewrite changes a record in the closed database.
func (b *bench) rewrite(key Key, fn func(r *sessionRecord)) {
	b.t.Helper()
	b.database(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(sessionsBucket)
		r, err := decodeSession(sessionKey(key), bucket.Get(sessionKey(key)))
		if err != nil {
			return err
		}
		fn(&r)
		return bucket.Put(sessionKey(key), encode(&r))
	})
}

func TestAdoption(t *testing.T) {
	for name, end := range map[string]func(b *bench){
		"close": func(b *bench) { b.Close(ctx, false) },
		"crash": (*bench).crash,
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			before := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Env: map[string]string{"A": "1"}, LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(64 << 20))}}})
			p := b.launch(keyA, "p", "serve")
			ended := b.launch(keyA, "ended", "exit", "3")
			await(t, ended.Done(), "the end")
			end(b)
			b.start()
			after := b.get(keyA)
			if after.Box != before.Box || after.State != Running || after.Generation != 1 || !after.CreatedAt.Equal(before.CreatedAt) || after.Processes != 1 {
				t.Errorf("session was %+v, is %+v", before, after)
			}
			if v := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Env: map[string]string{"A": "1"}, LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(64 << 20))}}}); v.Created || v.Recreated {
				t.Error("it was not found as it was")
			}
			again, err := b.Process(keyA, "p")
			if err != nil || again.View().PID != p.View().PID || again.View().State != ProcessRunning || again.Live() == nil {
				t.Fatalf("process %+v, %v", again.View(), err)
			}
			old, err := b.Process(keyA, "ended")
			if err != nil || old.View().State != ProcessExited || *old.View().ExitCode != 3 || old.Live() == nil {
				t.Errorf("ended process: %v", err)
			}
			if err := again.Stop(ctx, me, StopOptions{}); err != nil || again.View().State != ProcessStopped {
				t.Errorf("stopping it: %v", err)
			}
			if st := b.Stats(); st.Adopted != 1 || st.Discarded != 0 {
				t.Errorf("stats %+v", st)
			}
			if b.audit.count("open", audit.Done) != 2 || !b.audit.has("close", audit.Done) {
				t.Error("the audit log does not tell of openings")
			}
			if use, _ := b.Quota("t"); use.Sessions != 1 || use.Memory != 64<<20 {
				t.Errorf("in use: %+v", use)
			}
		})
	}
}

// Changes that happened between two managers.
func TestAdoptionAfterChanges(t *testing.T) {
	b := open(t)
	p := b.launch(keyA, "exits", "serve")
	q := b.launch(keyA, "vanishes", "serve")
	dead := b.ensure(keyB, policy.Request{})
	r := b.launch(keyB, "lost", "serve")
	cleared := b.ensure(Key{"t", "c"}, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}})
	b.crash()
	box := b.host.Box(p.View().Box)
	box.Process(p.View().Key).Exit(9)
	box.Drop(q.View().Key)
	stranger, err := box.Plant(engine.Managed{Key: "stranger", Args: []string{"serve"}})
	must(t, err)
	b.host.Kill(dead.Box)
	b.host.Remove(cleared.Box) // as by a restart of the host
	b.start()

	state := func(key Key, id string) ProcessView {
		p, err := b.Process(key, id)
		if err != nil {
			t.Fatal(err)
		}
		await(t, p.Done(), id)
		return p.View()
	}
	if v := state(keyA, "exits"); v.State != ProcessExited || *v.ExitCode != 9 {
		t.Errorf("exits: %+v", v)
	}
	if v := state(keyA, "vanishes"); v.State != ProcessFailed || v.Verdict != engine.BoxLost || v.ExitCode != nil {
		t.Errorf("vanishes: %+v", v)
	}
	b.eventually("the end of processes in the audit log", func() bool { return b.audit.count("process-exited", audit.Done) == 3 })
	if n := b.audit.count("box-lost", audit.Failed); n != 2 {
		t.Errorf("%d lost boxes in the audit log", n)
	}
	if v := state(keyB, "lost"); v.State != ProcessFailed || v.Verdict != engine.BoxLost || v.Key != r.View().Key {
		t.Errorf("lost: %+v", v)
	}
	await(t, stranger.Done(), "the end of the stranger")
	for _, key := range []Key{keyB, {"t", "c"}} {
		if v := b.get(key); v.State != Failed || v.Reason == "" {
			t.Errorf("%v: %+v", key, v)
		}
		if v := b.ensure(key, policy.Request{}); !v.Recreated || v.Generation != 2 {
			t.Errorf("%v: %+v", key, v)
		}
	}
	b.eventually("the end of the dead box", func() bool { return len(b.host.IDs()) == 3 })
}

func TestOrphansAreRemoved(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	b.crash()
	if _, err := b.host.Connect().Create(ctx, engine.Spec{ID: "stray"}); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.eventually("the end of the orphan", func() bool { return slices.Equal(b.host.IDs(), []string{v.Box}) })
}

// Crashes in the middle of things: the hook lets one operation hang until the end.
func TestCrashDuring(t *testing.T) {
	for _, tc := range []struct {
		op string
		do func(b *bench)
		ok func(b *bench) bool
	}{
		{"create", func(b *bench) { b.Ensure(ctx, me, keyB, policy.Request{}) }, func(b *bench) bool { return len(b.List("")) == 1 }},
		{"created", func(b *bench) { b.Ensure(ctx, me, keyB, policy.Request{}) }, func(b *bench) bool { return len(b.List("")) == 1 }},
		{"remove", func(b *bench) { b.Remove(ctx, me, keyA) }, func(b *bench) bool { return len(b.List("")) == 0 }},
		{"launch", func(b *bench) { b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}) },
			func(b *bench) bool { l, _ := b.Processes(keyA); return len(l) == 0 }},
		{"launched", func(b *bench) { b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}) },
			func(b *bench) bool { l, _ := b.Processes(keyA); return len(l) == 1 && l[0].State == ProcessRunning }},
		{"signal", func(b *bench) {
			b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}})
			if p, err := b.Process(keyA, "p"); err == nil {
				p.Stop(ctx, me, StopOptions{})
			}
		}, func(b *bench) bool { l, _ := b.Processes(keyA); return len(l) == 1 && l[0].State == ProcessStopped }},
	} {
		t.Run(tc.op, func(t *testing.T) {
			b := open(t)
			b.ensure(keyA, policy.Request{})
			client, reached := b.client, make(chan struct{})
			b.host.SetHook(func(_ context.Context, op, _ string) error {
				if op == tc.op {
					close(reached)
					<-client.Gone()
				}
				return nil
			})
			done := make(chan struct{})
			m := b.Manager
			old := *b
			old.Manager = m
			go func() {
				defer close(done)
				tc.do(&old)
			}()
			await(t, reached, tc.op)
			b.crash()
			await(t, done, "the caller")
			b.host.SetHook(nil)
			b.start()
			b.eventually("the right state", func() bool { return tc.ok(b) })
			b.eventually("as many boxes as sessions", func() bool { return len(b.host.IDs()) == len(b.List("")) })
		})
	}
}

func TestStateDirectoryIsLocked(t *testing.T) {
	b := open(t)
	other := *b
	err := other.tryStart()
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "process ") {
		t.Errorf("error %v", err)
	}
	b.Close(ctx, false)
	b.start()
}

func TestDamagedDatabase(t *testing.T) {
	for name, damage := range map[string]func(b *bench, path string){
		"zeroes": func(b *bench, path string) { must(b.t, os.WriteFile(path, make([]byte, 64<<10), 0o600)) },
		"text": func(b *bench, path string) {
			must(b.t, os.WriteFile(path, []byte(strings.Repeat("no database ", 4000)), 0o600))
		},
		"cut":  func(b *bench, path string) { must(b.t, os.Truncate(path, 8<<10)) },
		"gone": func(b *bench, path string) { must(b.t, os.Remove(path)) },
		"a page": func(b *bench, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(b.t, err)
			defer f.Close()
			for page := int64(2); page < 32; page++ {
				_, err = f.WriteAt([]byte(strings.Repeat("\xff", 4096)), 4096*page)
				must(b.t, err)
			}
		},
		"a record": func(b *bench, _ string) {
			b.database(func(tx *bbolt.Tx) error { return tx.Bucket(sessionsBucket).Put(sessionKey(keyA), []byte("{}")) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			before := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Network: ptr(true)}}})
			p := b.launch(keyA, "p", "serve")
			b.ensure(keyB, policy.Request{})
			b.crash()
			damage(b, filepath.Join(b.dir, "boxd.db"))
			b.start()
			after := b.get(keyA)
			if after.Box != before.Box || after.State != Running || after.Resolved.Network || after.Sensitive == nil { // it may have become sensitive since its box was made
				t.Errorf("session %+v", after)
			}
			if again, err := b.Process(keyA, "p"); err != nil || again.View().PID != p.View().PID {
				t.Errorf("process: %v", err)
			}
			if v := b.get(keyB); v.State != Running {
				t.Errorf("other session %+v", v)
			}
			aside, _ := filepath.Glob(filepath.Join(b.dir, "boxd.db.corrupt-*"))
			if want := name != "gone"; (len(aside) == 1) != want || (len(b.Errors()) == 0) {
				t.Errorf("kept aside: %v; errors %v", aside, b.Errors())
			}
			b.restart() // the findings are recorded
			if v := b.get(keyA); v.Box != before.Box {
				t.Errorf("after another restart: %+v", v)
			}
		})
	}
}

func TestForeignDatabaseIsLeftAlone(t *testing.T) {
	b := open(t)
	before := b.ensure(keyA, policy.Request{})
	b.crash()
	setVersion := func(v byte) {
		b.database(func(tx *bbolt.Tx) error { return tx.Bucket(metaBucket).Put(versionKey, []byte{v}) })
	}
	setVersion(99)
	if err := b.tryStart(); !errors.Is(err, errForeign) {
		t.Errorf("error %v", err)
	}
	setVersion(recordVersion)
	b.start()
	if after := b.get(keyA); after.Box != before.Box {
		t.Errorf("session %+v", after)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpenNeedsTheEngine(t *testing.T) {
	b := newBench(t)
	b.host.SetHook(func(context.Context, string, string) error { return engine.ErrNoLauncher })
	if err := b.tryStart(); !errors.Is(err, engine.ErrNoLauncher) {
		t.Errorf("error %v", err)
	}
	b.host.SetHook(nil)
	b.start() // nothing is held
}

func TestCloseAndStop(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	kept := b.ensure(keyB, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}})
	p := b.launch(keyB, "p", "serve")
	if err := b.Close(ctx, true); err != nil {
		t.Fatal(err)
	}
	if n := len(b.host.IDs()); n != 0 {
		t.Errorf("%d boxes are left", n)
	}
	if err := b.Close(ctx, true); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if _, err := b.Ensure(ctx, me, keyA, policy.Request{}); !errors.Is(err, ErrClosed) {
		t.Errorf("use of a closed manager: %v", err)
	}
	if !isDone(p.Done()) {
		t.Error("a process has not ended")
	}
	b.start()
	if v := b.get(keyB); v.State != Stopped {
		t.Errorf("state %q", v.State)
	}
	if _, err := b.Get(keyA); !errors.Is(err, ErrNotFound) {
		t.Errorf("the other one: %v", err)
	}
	if v := b.ensure(keyB, policy.Request{}); !v.Recreated || v.Box == kept.Box {
		t.Errorf("%+v", v)
	}
}

func TestCloseCancelsCommands(t *testing.T) {
	b := open(t)
	running, verdict := make(chan struct{}), make(chan engine.Verdict, 1)
	go func() {
		res, _ := b.Exec(ctx, me, keyA, &policy.Request{}, Exec{Args: []string{"wait"}, Started: func(engine.Process) { close(running) }})
		verdict <- res.Verdict
	}()
	await(t, running, "the command")
	if err := b.Close(ctx, false); err != nil {
		t.Fatal(err)
	}
	if v := <-verdict; v != engine.Canceled {
		t.Errorf("verdict %q", v)
	}
	if n := len(b.host.IDs()); n != 1 {
		t.Errorf("%d boxes", n)
	}
}

func TestEventNumbersGrowOverRestarts(t *testing.T) {
	b := open(t)
	sub := b.Subscribe("", 0)
	b.ensure(keyA, policy.Request{})
	first := (<-sub.C).Seq
	b.restart()
	sub = b.Subscribe("", first)
	if e := <-sub.C; e.Type != EventMissed || e.Seq <= first {
		t.Errorf("event %+v after %d", e, first)
	}
	if e := <-sub.C; e.Type != EventAdopted || e.Seq <= first {
		t.Errorf("event %+v", e)
	}
}

// While the database cannot be written nothing is left half-done, and afterwards work continues.
func TestDatabaseIsFull(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	p := b.launch(keyA, "p", "serve")
	must(t, b.written())
	mend := b.breakStore()
	for name, err := range map[string]error{
		"ensure": second(b.Ensure(ctx, me, keyB, policy.Request{})),
		"start":  second(b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "q", Args: []string{"serve"}})),
		"update": second(b.Update(ctx, me, keyA, spec.Update{Attach: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}})),
		"remove": b.Remove(ctx, me, keyA),
	} {
		if !errors.Is(err, ErrStorage) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line about the database", name, err)
		}
	}
	if err := p.Stop(ctx, me, StopOptions{}); err != nil || p.View().State != ProcessStopped {
		t.Errorf("a full disk keeps a process running: %v, %+v", err, p.View())
	}
	mend()
	b.eventually("the removal", func() bool { return len(b.host.IDs()) == 0 && len(b.List("")) == 0 })
	b.ensure(keyA, policy.Request{})
}

// A successor reports the same end that was published while it could not be recorded.
func TestEndIsRecordedLater(t *testing.T) {
	b := open(t)
	p := b.launch(keyA, "p", "serve")
	must(t, b.written())
	mend := b.breakStore()
	b.host.Box(p.View().Box).Process(p.View().Key).Exit(5)
	await(t, p.Done(), "the end")
	mend()
	b.eventually("the record", func() bool {
		var r processRecord
		must(t, b.store.db.View(func(tx *bbolt.Tx) (err error) {
			key := processKey(keyA, "p")
			r, err = decodeProcess(key, tx.Bucket(processBucket).Get(key))
			return err
		}))
		return r.State == ProcessExited && r.Result.ExitCode == 5
	})
}

func second[T any](_ T, err error) error { return err }

func TestBoxThatCannotBeTakenOver(t *testing.T) {
	b := open(t)
	old := b.ensure(keyA, policy.Request{})
	p := b.launch(keyA, "p", "serve")
	b.crash()
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "adopt" {
			return errors.New("it does not answer")
		}
		return nil
	})
	b.start()
	b.host.SetHook(nil)
	if v := b.get(keyA); v.State != Failed || !strings.Contains(v.Reason, "does not answer") {
		t.Errorf("%+v", v)
	}
	if lost, err := b.Process(keyA, "p"); err != nil || lost.View().State != ProcessFailed || lost.View().Key != p.View().Key || lost.Live() != nil {
		t.Errorf("process: %v", err)
	}
	b.eventually("the end of its box", func() bool { return b.host.Box(old.Box) == nil })
	if v := b.ensure(keyA, policy.Request{}); !v.Recreated {
		t.Errorf("%+v", v)
	}
}

// A shortage of this process is no reason to give boxes up.
func TestShortageAtOpening(t *testing.T) {
	for _, lost := range []bool{false, true} {
		b := open(t)
		v := b.ensure(keyA, policy.Request{})
		b.crash()
		if lost {
			must(t, os.Remove(filepath.Join(b.dir, "boxd.db")))
		}
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "adopt" {
				return &os.SyscallError{Syscall: "recvmsg", Err: syscall.EMFILE}
			}
			return nil
		})
		err := b.tryStart()
		if !lost && err == nil { // callers that need it get the error, and it is retried
			_, err = b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}})
			if other := b.ensure(keyB, policy.Request{}); other.State != Running {
				t.Errorf("another session: %+v", other)
			}
		}
		if !errors.Is(err, syscall.EMFILE) {
			t.Errorf("lost %v: error %v", lost, err)
		}
		b.host.SetHook(nil)
		if lost {
			b.start()
		} else {
			b.eventually("the box", func() bool { return b.Stats().Adopted == 1 })
		}
		if got := b.get(keyA); got.State != Running || got.Box != v.Box {
			t.Errorf("lost %v: %+v", lost, got)
		}
	}
}

// A half-made box that cannot be removed does not keep the daemon from starting.
func TestHalfMadeBoxThatStays(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	b.crash()
	b.rewrite(keyA, func(r *sessionRecord) { r.State = Creating })
	fails := make(chan struct{}, 1)
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "discard" {
			select {
			case fails <- struct{}{}:
				return errors.New("boom")
			default:
			}
		}
		return nil
	})
	b.start()
	if l := b.List(""); len(l) != 0 {
		t.Errorf("sessions %+v", l)
	}
	b.eventually("its end", func() bool { return b.host.Box(v.Box) == nil })
}

// Workspaces that are empty and no session's go, those with something in them stay.
func TestEmptyWorkspacesAreRemoved(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	own := b.Manager.workspaces.Path("t", "a")
	b.Close(ctx, false)
	empty, full := filepath.Join(b.dir, "workspaces", "t", "lost"), filepath.Join(b.dir, "workspaces", "u", "lost")
	must(t, os.Mkdir(empty, 0o700))
	must(t, os.MkdirAll(filepath.Join(full, "file"), 0o700))
	bare, foreign := filepath.Join(b.dir, "workspaces", "v"), filepath.Join(b.dir, "workspaces", "lost+found")
	must(t, os.MkdirAll(bare, 0o700))
	must(t, os.MkdirAll(foreign, 0o700)) // of a file system of its own
	b.start()
	for path, stays := range map[string]bool{own: true, empty: false, full: true, bare: false, foreign: true} {
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Without a database: the newest box of a session counts, and what says nothing goes.
func TestBoxesOfALostDatabase(t *testing.T) {
	b := open(t)
	first := b.ensure(keyA, policy.Request{})
	stale := b.host.Box(first.Box).Spec()
	b.host.Kill(first.Box)
	second := b.ensure(keyA, policy.Request{})
	b.crash()
	must(t, os.Remove(filepath.Join(b.dir, "boxd.db")))
	other := b.host.Connect()
	for i, labels := range []map[string]string{stale.Labels, stale.Labels, nil, {label: "{"}, {label: `{"tenant":"../x","id":"a","generation":3}`}} {
		_, err := other.Create(ctx, engine.Spec{ID: "stray-" + string(rune('a'+i)), Labels: labels})
		must(t, err)
	}
	b.start()
	if v := b.get(keyA); v.Box != second.Box || v.Generation != 2 {
		t.Errorf("%+v", v)
	}
	b.eventually("the end of the others", func() bool { return slices.Equal(b.host.IDs(), []string{second.Box}) })
}

// A process record whose session is gone does not stay.
func TestProcessesWithoutASession(t *testing.T) {
	b := open(t)
	b.launch(keyA, "p", "serve")
	b.crash()
	b.database(func(tx *bbolt.Tx) error { return tx.Bucket(sessionsBucket).Delete(sessionKey(keyA)) })
	b.start()
	b.Close(ctx, false)
	b.database(func(tx *bbolt.Tx) error {
		if n := tx.Bucket(processBucket).Stats().KeyN; n != 0 {
			t.Errorf("%d records", n)
		}
		return nil
	})
}

// The process that had an id is there again if the next one was only about to start.
func TestStartThatReplacesNothing(t *testing.T) {
	b := open(t)
	old := b.launch(keyA, "p", "exit", "3")
	await(t, old.Done(), "the end")
	client, reached := b.client, make(chan struct{})
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "launch" {
			close(reached)
			<-client.Gone()
		}
		return nil
	})
	done, m := make(chan struct{}), b.Manager
	go func() {
		defer close(done)
		m.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}})
	}()
	await(t, reached, "the start")
	b.crash()
	await(t, done, "the caller")
	b.host.SetHook(nil)
	for range 2 {
		b.start()
		p, err := b.Process(keyA, "p")
		if err != nil || p.View().Key != old.View().Key || p.View().State != ProcessExited || *p.View().ExitCode != 3 || p.Live() == nil {
			t.Fatalf("%+v, %v", p, err)
		}
		b.Close(ctx, false)
	}
}

// A removal that was said to continue does so after a crash.
func TestRemovalGoesOnAfterACrash(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	client, reached := b.client, make(chan struct{})
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "update" {
			close(reached)
			<-client.Gone()
		}
		return nil
	})
	m, done := b.Manager, make(chan struct{})
	go func() {
		defer close(done)
		m.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(1 << 30))}})
	}()
	await(t, reached, "the change")
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := b.Remove(short, me, keyA); err == nil || !strings.Contains(err.Error(), "it continues") {
		t.Fatal(err)
	}
	b.crash()
	await(t, done, "the caller")
	b.host.SetHook(nil)
	b.start()
	b.eventually("the removal", func() bool { return second(b.Get(keyA)) != nil })
}
