package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/workspace"
)

func sizeOf(n int64) *spec.Size { return ptr(spec.Size(n)) }

func TestVolumeNames(t *testing.T) {
	a := volumeName(keyA)
	if want := "w-bc6f9628ae35013a85e6690988f42959a083d5c6"; a != want { // sessions of earlier versions are found by it
		t.Errorf("%q, want %q", a, want)
	}
	if volumeName(Key{"ta", ""}) == a || !isVolumeName(a) || engine.ValidateVolumeName(a) != nil {
		t.Errorf("%q", a)
	}
	for _, other := range []string{"", "w-", "w-1", "skills-1", a + "0", strings.ToUpper(a), "x" + a[1:], a[:41] + "g"} {
		if isVolumeName(other) {
			t.Errorf("%q is taken for a workspace", other)
		}
	}
}

func TestVolumeStaysWithTheSession(t *testing.T) {
	b := open(t)
	name := volumeName(keyA)
	v := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20), WorkspaceInodes: ptr(int64(100)), WorkspaceMode: ptr("ro"), WorkspaceTarget: "/data"}})
	if want := (mount{Source: "/", Target: "/data", ReadOnly: true, Volume: name, Users: true}); !slices.Equal(b.host.Box(v.Box).Spec().Mounts, []mount{want}) {
		t.Errorf("mounts %+v, want %+v", b.host.Box(v.Box).Spec().Mounts, want)
	}
	if got := b.host.Volume(name).Volume; got != (engine.Volume{Name: name, Bytes: 8 << 20, Inodes: 100}) {
		t.Errorf("volume %+v", got)
	}
	if v.Unenforced != "" || v.Resolved.WorkspaceSize != 8<<20 || v.Resolved.WorkspaceInodes != 100 {
		t.Errorf("%+v", v)
	}
	if _, err := os.Stat(b.workspace(keyA)); err == nil {
		t.Error("a directory was made as well")
	}
	b.host.Fill(name, 77)
	b.host.Kill(v.Box)
	b.exec(keyA, "true")
	b.restart()
	if v := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20)}}); v.Created || v.Recreated || b.host.Volume(name).UsedBytes != 77 {
		t.Errorf("%+v, volume %+v", v, b.host.Volume(name))
	}
	must(t, b.Remove(ctx, me, keyA))
	if left := b.host.VolumeNames(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestVolumeConflicts(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20), WorkspaceTarget: "/data"}})
	b.ensure(keyA, policy.Request{})
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20), WorkspaceInodes: ptr(int64(0)), WorkspaceTarget: "/data"}})
	b.ensure(keyB, policy.Request{})
	for _, c := range []struct {
		key  Key
		r    policy.Request
		want string
	}{
		{keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(9 << 20)}}, "workspace_size is 8 MiB, not 9 MiB"},
		{keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(0)}}, "workspace_size is 8 MiB, not 0"},
		{keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20), WorkspaceInodes: ptr(int64(50))}}, "workspace_inodes is 0, not 50"},
		{keyA, policy.Request{Wishes: spec.Wishes{WorkspaceTarget: "/workspace"}}, `workspace_target is "/data", not "/workspace"`},
		{keyB, policy.Request{Wishes: spec.Wishes{WorkspaceTarget: "/data"}}, `workspace_target is "/workspace", not "/data"`},
		{keyB, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20)}}, "workspace_size is 0 B, not 8 MiB"},
	} {
		var conflict *ConflictError
		if _, err := b.Ensure(ctx, me, c.key, c.r); !errors.As(err, &conflict) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.key, err, c.want)
		}
	}
}

// What the engine says about a volume comes back in the words of the request.
func TestVolumeRefusals(t *testing.T) {
	b := open(t)
	ask := policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20), WorkspaceInodes: ptr(int64(100))}}
	for _, c := range []struct {
		err  error
		is   error
		want string
	}{
		{&engine.FieldError{Field: "volume.bytes", Value: "8 MiB", Rule: "too small"}, engine.ErrInvalid, "workspace_size 8 MiB: too small"},
		{&engine.FieldError{Field: "volume.inodes", Value: "100", Rule: "too many"}, engine.ErrInvalid, "workspace_inodes 100: too many"},
		{fmt.Errorf("no loop devices: %w", engine.ErrUnenforceable), engine.ErrUnenforceable, "workspace_size 8 MiB: no loop devices"},
		{errors.New("disk full"), nil, "preparing the workspace: disk full"},
	} {
		b.host.RefuseVolumes(c.err)
		_, err := b.Ensure(ctx, me, keyA, ask)
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if _, e := b.Get(keyA); !errors.Is(e, ErrNotFound) || len(b.host.IDs()) != 0 {
			t.Errorf("after %v something is left", c.err)
		}
	}
	b.host.RefuseVolumes(nil)
	b.ensure(keyA, ask) // the name is free
	b.Close(ctx, false)
	b.alter = func(o *Options) { o.Storage = nil }
	b.start()
	if _, err := b.Ensure(ctx, me, keyB, ask); !errors.Is(err, engine.ErrUnenforceable) {
		t.Errorf("without storage: %v", err)
	}
	if b.Storage() != nil {
		t.Error("there is storage")
	}
}

// With allow_degraded there is a directory where there can be no volume, and the session
// says so as long as it lives.
func TestVolumeDegraded(t *testing.T) {
	b := newBench(t)
	b.policy.AllowDegraded = true
	b.host.RefuseVolumes(fmt.Errorf("no loop devices: %w", engine.ErrUnenforceable))
	b.start()
	ask := policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20)}}
	v := b.ensure(keyA, ask)
	if !strings.HasPrefix(v.Unenforced, "workspace_size 8 MiB: no loop devices") {
		t.Errorf("unenforced %q", v.Unenforced)
	}
	if m := b.host.Box(v.Box).Spec().Mounts[0]; m.Source != b.workspace(keyA) || m.Volume != "" {
		t.Errorf("mount %+v", m)
	}
	must(t, os.WriteFile(filepath.Join(b.workspace(keyA), "file"), nil, 0o600))
	b.host.RefuseVolumes(nil) // such as after another module was loaded
	b.host.Kill(v.Box)
	b.restart()
	if v = b.ensure(keyA, ask); !v.Recreated || v.Unenforced == "" || volumeOf(v.Resolved) != "" {
		t.Errorf("after a restart: %+v", v)
	}
	if _, err := os.Stat(filepath.Join(b.workspace(keyA), "file")); err != nil {
		t.Error(err)
	}
	must(t, b.Remove(ctx, me, keyA))
	if _, err := os.Stat(b.workspace(keyA)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the removal: %v", err)
	}
	// Conversely, a session does not lose its volume.
	v = b.ensure(keyA, ask)
	if v.Unenforced != "" || volumeOf(v.Resolved) == "" {
		t.Fatalf("%+v", v)
	}
	b.host.RefuseVolumes(fmt.Errorf("no loop devices: %w", engine.ErrUnenforceable))
	b.host.Kill(v.Box)
	if _, err := b.Ensure(ctx, me, keyA, ask); !errors.Is(err, engine.ErrUnenforceable) {
		t.Errorf("a new box without the volume: %v", err)
	}
	b.host.RefuseVolumes(nil)
	if v = b.ensure(keyA, ask); !v.Recreated || v.Unenforced != "" {
		t.Errorf("%+v", v)
	}
}

func TestOrphanVolumes(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20)}})
	b.crash()
	orphan := volumeName(Key{"t", "gone"})
	others := []string{"skills-1", "w-1", volumeName(keyA) + "0"}
	for _, name := range append(others, orphan) {
		must(t, b.host.Connect().MakeVolume(ctx, engine.Volume{Name: name, Bytes: 8 << 20}))
	}
	// One that a box without an owner still has.
	stray := volumeName(Key{"t", "stray"})
	must(t, b.host.Connect().MakeVolume(ctx, engine.Volume{Name: stray, Bytes: 8 << 20}))
	_, err := b.host.Connect().Create(ctx, engine.Spec{ID: "stray", Mounts: []mount{{Source: "/", Target: "/workspace", Volume: stray}}})
	must(t, err)
	b.start()
	want := slices.Sorted(slices.Values(append(others, volumeName(keyA))))
	b.eventually("the removal of what nobody has", func() bool { return slices.Equal(b.host.VolumeNames(), want) })
}

// A session never gets what another one left, however long its removal takes.
func TestOrphanVolumeIsWaitedFor(t *testing.T) {
	b := open(t)
	b.crash()
	name := volumeName(keyA)
	must(t, b.host.Connect().MakeVolume(ctx, engine.Volume{Name: name, Bytes: 8 << 20}))
	b.host.Fill(name, 5)
	hold := make(chan struct{})
	b.host.SetHook(func(_ context.Context, op, box string) error {
		if op == "remove-volume" {
			<-hold
		}
		return nil
	})
	b.start()
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := b.Ensure(short, me, keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20)}}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "former session") {
		t.Errorf("%v, want that it waits", err)
	}
	made := make(chan error, 1)
	go func() {
		_, err := b.Ensure(ctx, me, keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20)}})
		made <- err
	}()
	close(hold)
	must(t, <-made)
	if used := b.host.Volume(name).UsedBytes; used != 0 {
		t.Errorf("it has %d bytes of another session", used)
	}
}

// A box that was not made leaves no workspace, and one that was there before stays.
func TestFailedCreateOfAVolume(t *testing.T) {
	b := open(t)
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "created" {
			return errors.New("injected")
		}
		return nil
	})
	ask := policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20)}}
	if _, err := b.Ensure(ctx, me, keyA, ask); err == nil {
		t.Fatal("made")
	}
	b.eventually("the removal of the volume", func() bool { return len(b.host.VolumeNames()) == 0 })
	b.host.SetHook(nil)
	if v := b.ensure(keyA, ask); !v.Created {
		t.Errorf("%+v", v)
	}
}

// If the database is lost, a volume without a session may be the workspace of a session
// that was lost with it. It is kept until that session is created and removed again.
func TestVolumesSurviveTheDatabase(t *testing.T) {
	b := open(t)
	ask := policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20), LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}}
	lost := b.ensure(keyA, ask)
	b.ensure(keyB, ask)
	name := volumeName(keyA)
	b.host.Fill(name, 77)
	b.crash()
	b.host.Remove(lost.Box)
	must(t, os.Remove(filepath.Join(b.dir, "boxd.db")))
	b.start()
	if v := b.get(keyB); v.State != Running || volumeOf(v.Resolved) != volumeName(keyB) {
		t.Errorf("found again: %+v", v)
	}
	kept := func(want int) {
		t.Helper()
		n := 0
		must(t, b.Manager.store.db.View(func(tx *bbolt.Tx) error {
			c := tx.Bucket(metaBucket).Cursor()
			for k, _ := c.Seek([]byte(keptPrefix)); k != nil && strings.HasPrefix(string(k), keptPrefix); k, _ = c.Next() {
				n++
			}
			return nil
		}))
		if n != want {
			t.Errorf("%d volumes are noted as kept, want %d", n, want)
		}
	}
	kept(1)
	b.restart()
	kept(1)
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "create" {
			return errors.New("injected")
		}
		return nil
	})
	if _, err := b.Ensure(ctx, me, keyA, ask); err == nil {
		t.Fatal("made")
	}
	b.host.SetHook(nil)
	b.restart()
	if v := b.ensure(keyA, ask); !v.Created || b.host.Volume(name).UsedBytes != 77 {
		t.Errorf("%+v, volume %+v", v, b.host.Volume(name))
	}
	kept(0)
	must(t, b.Remove(ctx, me, keyA))
	if b.host.Volume(name) != nil {
		t.Error("it is there after its session was removed")
	}
	b.restart()
	kept(0)
}

// The volumes that are kept survive damage to the database.
func TestVolumesSurviveADamagedRecord(t *testing.T) {
	b := open(t)
	name := volumeName(Key{"t", "gone"})
	must(t, b.host.Connect().MakeVolume(ctx, engine.Volume{Name: name, Bytes: 8 << 20}))
	b.crash()
	b.database(func(tx *bbolt.Tx) error {
		return errors.Join(tx.Bucket(metaBucket).Put(keptKey(name), []byte{1}), tx.Bucket(sessionsBucket).Put([]byte("x"), []byte("damaged")))
	})
	b.start()
	b.restart()
	b.ensure(keyA, policy.Request{})
	if b.host.Volume(name) == nil {
		t.Error("it was removed")
	}
}

func TestQuotaOfVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.policy.TenantDefaults.WorkspaceBytes = 1 << 20
		b.start()
		ask := policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(1 << 30)}} // its limit is not its use
		b.ensure(keyA, ask)
		b.ensure(keyB, ask)
		b.exec(keyA, "true")
		b.exec(keyB, "true")
		asked := b.host.Listed()
		b.host.Fill(volumeName(keyA), 2<<20)
		time.Sleep(measureEvery + time.Minute)
		if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); !errors.Is(err, policy.ErrQuota) {
			t.Errorf("exec: %v, want a quota", err)
		}
		if v := b.get(keyA); v.WorkspaceBytes != 2<<20 {
			t.Errorf("measured %d", v.WorkspaceBytes)
		}
		if _, err := b.Exec(ctx, me, keyB, nil, Exec{Args: []string{"true"}}); !errors.Is(err, policy.ErrQuota) {
			t.Errorf("exec in another session of the tenant: %v, want a quota", err)
		}
		if got := b.host.Listed() - asked; got != 1 {
			t.Errorf("the engine was asked %d times for two sessions, want once", got)
		}
		if _, err := b.Exec(ctx, me, Key{"other", "a"}, &ask, Exec{Args: []string{"true"}}); err != nil {
			t.Errorf("another tenant: %v", err)
		}
		must(t, b.Remove(ctx, me, keyA))
		b.exec(keyB, "true")
		if use, _ := b.Quota("t"); use.WorkspaceBytes != 0 {
			t.Errorf("in use: %+v", use)
		}
		b.Close(ctx, false)
	})
}

// A session that no client has seen takes its workspace with it, even where volumes without
// a session are kept.
func TestGivenUpVolume(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(8 << 20)}})
	b.crash()
	b.rewrite(keyA, func(r *sessionRecord) { r.State = Creating })
	b.database(func(tx *bbolt.Tx) error { return tx.Bucket(sessionsBucket).Put([]byte("x"), []byte("damaged")) })
	b.start()
	b.eventually("the end of box and volume", func() bool { return len(b.host.IDs()) == 0 && len(b.host.VolumeNames()) == 0 })
}

// A launcher that does not answer keeps no command from running: the last known use counts.
func TestUseOfVolumesThatNobodyTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.policy.TenantDefaults.WorkspaceBytes = 1 << 20
		b.start()
		ask := policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(1 << 30)}}
		b.ensure(keyA, ask)
		b.host.Fill(volumeName(keyA), 1000)
		time.Sleep(measureEvery + time.Minute) // the opening may have measured it when it was empty
		b.exec(keyA, "true")
		slow := false
		b.host.SetHook(func(ctx context.Context, op, _ string) error {
			switch {
			case op != "volumes":
				return nil
			case slow:
				<-ctx.Done()
				return ctx.Err()
			}
			return errors.New("injected")
		})
		for range 3 {
			time.Sleep(measureEvery + time.Minute)
			began := time.Now()
			b.exec(keyA, "true")
			if took := time.Since(began); took > workspace.MaxTime {
				t.Errorf("a command waited %v", took)
			}
			if use, _ := b.Quota("t"); use.WorkspaceBytes != 1000 {
				t.Errorf("in use: %+v", use)
			}
			slow = true
		}
		n := 0
		for _, e := range b.Errors() {
			if strings.Contains(e.Message, "asking for the use of volumes") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("it is reported %d times, want once: %+v", n, b.Errors())
		}
		b.host.SetHook(nil)
		b.host.Fill(volumeName(keyA), 2<<20)
		time.Sleep(measureEvery + 2*time.Minute)
		if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); !errors.Is(err, policy.ErrQuota) {
			t.Errorf("exec: %v, want a quota", err)
		}
		b.Close(ctx, false)
	})
}
