package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"go.etcd.io/bbolt"
)

func (b *bench) snapshot(from, name string) VolumeView {
	b.t.Helper()
	v, err := b.SnapshotVolume(ctx, me, "t", name, from, VolumeLimits{})
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

func attach(v spec.VolumeWish) spec.Update {
	return spec.Update{AttachVolumes: []spec.VolumeWish{v}}
}

func TestSnapshot(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	b.host.Fill(policy.VolumeID("t", "data"), 77)
	b.ensure(keyA, withVolumes(dataAt("/data", true)))
	v := b.snapshot("data", "copy")
	if got := b.host.Volume(policy.VolumeID("t", "copy")); !v.Created || v.From != "data" || v.Bytes != 8*mib || got.UsedBytes != 77 {
		t.Errorf("%+v, %+v", v, got)
	}
	larger, err := b.SnapshotVolume(ctx, me, "t", "larger", "data", VolumeLimits{Bytes: 16 * mib})
	if err != nil || larger.Bytes != 16*mib {
		t.Errorf("%+v, %v", larger, err)
	}
	if use, _ := b.Quota("t"); use.Volumes != 3 || use.VolumeBytes != 32*mib {
		t.Errorf("%+v", use)
	}
	b.restart()
	if again := b.snapshot("data", "copy"); again.Created || again.From != "data" {
		t.Errorf("asked for again: %+v", again)
	}
	must(t, b.Remove(ctx, me, keyA))
	must(t, b.RemoveVolume(ctx, me, "t", "data"))
	b.ensure(keyB, withVolumes(spec.VolumeWish{Name: "copy", Target: "/c"})) // it is on its own
	if _, err := b.ResizeVolume(ctx, me, "t", "copy", VolumeLimits{Bytes: 9 * mib}); err != nil {
		t.Error(err)
	}
	b.restart()
	if v, err := b.Volume(ctx, "t", "copy"); err != nil || v.From != "data" || v.Bytes != 9*mib {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestSnapshotRefusals(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults = policy.Quotas{Volumes: 3, VolumeBytes: 20 * mib}
	b.start()
	b.createVolume("data", 8*mib)
	b.createVolume("other", mib)
	b.ensure(keyA, withVolumes(dataAt("/data", false)))
	calls := 0
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "make-volume" {
			calls++
		}
		return nil
	})
	for _, c := range []struct {
		name, from string
		size       int64
		is         error
		want       string
	}{
		{"x", "data", 0, ErrVolumeInUse, `session "a" has it read-write`},
		{"x", "none", 0, ErrNotFound, `"none"`},
		{"x", "", 0, engine.ErrInvalid, "from"},
		{"x", "../data", 0, engine.ErrInvalid, "from"},
		{"..", "other", 0, engine.ErrInvalid, "name"},
		{"x", "x", 0, engine.ErrInvalid, "another name"},
		{"data", "other", 0, ErrVolumeExists, `was not made from "other"`},
		{"x", "other", mib - 1, engine.ErrInvalid, "size"},
		{"x", "other", 13 * mib, policy.ErrQuota, "volume_bytes: limit 20 MiB, in use 9 MiB, asked 13 MiB"},
	} {
		_, err := b.SnapshotVolume(ctx, me, "t", c.name, c.from, VolumeLimits{Bytes: spec.Size(c.size)})
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s from %s of %d: %v, want %q", c.name, c.from, c.size, err, c.want)
		}
	}
	must(t, b.Remove(ctx, me, keyA))
	if _, err := b.SnapshotVolume(ctx, me, "t", "x", "data", VolumeLimits{Bytes: 4 * mib}); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "at least 8 MiB") {
		t.Errorf("smaller than the volume: %v", err)
	}
	if calls != 0 {
		t.Errorf("the engine was asked %d times", calls)
	}
	b.host.RefuseVolumes(&engine.FieldError{Field: "volume", Value: "x", Rule: "is in use: volume \"" + policy.VolumeID("t", "data") + "\" was written to"})
	if _, err := b.SnapshotVolume(ctx, me, "t", "x", "data", VolumeLimits{}); err == nil || !strings.Contains(err.Error(), `from "data": cannot be copied: it is in use: volume "data" was written to`) {
		t.Error(err)
	}
	b.host.RefuseVolumes(nil)
	b.eventually("its removal", func() bool { use, _ := b.Quota("t"); return use.Volumes == 2 && len(b.host.VolumeNames()) == 2 })
}

// While a volume is copied, nobody writes to it, and others read it. A copy whose caller gives
// up is not there.
func TestSnapshotMeanwhile(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	b.ensure(keyA, policy.Request{})
	b.ensure(keyB, policy.Request{})
	begun := make(chan struct{})
	b.host.SetHook(func(ctx context.Context, op, _ string) error {
		if op == "make-volume" {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	caller, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		_, err := b.SnapshotVolume(caller, me, "t", "copy", "data", VolumeLimits{})
		ended <- err
	}()
	await(t, begun, "the copy")
	if use, _ := b.Quota("t"); use.VolumeBytes != 16*mib {
		t.Errorf("not counted while it is made: %+v", use)
	}
	if _, err := b.Update(ctx, me, keyA, attach(dataAt("/data", false))); !errors.Is(err, ErrVolumeInUse) || !strings.Contains(err.Error(), "is being copied") {
		t.Errorf("a writer: %v", err)
	}
	if _, err := b.Update(ctx, me, keyA, attach(dataAt("/data", true))); err != nil {
		t.Errorf("a reader: %v", err)
	}
	if _, err := b.ResizeVolume(ctx, me, "t", "data", VolumeLimits{Bytes: 9 * mib}); !errors.Is(err, ErrVolumeInUse) {
		t.Errorf("resized: %v", err)
	}
	if _, err := b.Update(ctx, me, keyA, spec.Update{Detach: []string{"/data"}}); err != nil {
		t.Error(err)
	}
	if err := b.RemoveVolume(ctx, me, "t", "data"); !errors.Is(err, ErrVolumeInUse) {
		t.Errorf("removed: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	b.host.SetHook(nil)
	if use, _ := b.Quota("t"); use.Volumes != 1 || use.VolumeBytes != 8*mib {
		t.Errorf("left in the ledger: %+v", use)
	}
	if _, err := b.Update(ctx, me, keyA, attach(dataAt("/data", false))); err != nil {
		t.Errorf("a writer after the copy: %v", err)
	}
	b.restart()
	b.eventually("its removal", func() bool { return len(b.Volumes(ctx, "t")) == 1 && len(b.host.VolumeNames()) == 1 })
}

// putVolume writes a record as a manager that was killed left it.
func (b *bench) putVolume(r volumeRecord) {
	c := r.put()
	b.database(func(tx *bbolt.Tx) error { return tx.Bucket(c.bucket).Put(c.key, c.value) })
}

// boxd was killed while it created volumes: a new one is completed, and of a copy nothing is
// left.
func TestVolumeCreationInterrupted(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	b.crash()
	for _, name := range []string{"plain", "made", "copy", "copied"} {
		r := volumeRecord{Tenant: "t", Name: name, Bytes: 4 * mib, Creating: true}
		if strings.HasPrefix(name, "cop") {
			r.From = "data"
		}
		b.putVolume(r)
		if name == "made" || name == "copied" {
			must(t, b.host.Connect().MakeVolume(ctx, r.engineVolume()))
		}
	}
	b.start()
	b.eventually("order", func() bool {
		var names []string
		for _, v := range b.Volumes(ctx, "t") {
			names = append(names, v.Name)
		}
		return slices.Equal(names, []string{"data", "made", "plain"}) && len(b.host.VolumeNames()) == 3
	})
	b.eventually("records", func() bool {
		for _, r := range b.named.records() {
			if r.Creating {
				return false
			}
		}
		return true
	})
	if use, _ := b.Quota("t"); use.Volumes != 3 || use.VolumeBytes != 16*mib {
		t.Errorf("%+v", use)
	}
	b.restart()
	b.host.LoseVolume(policy.VolumeID("t", "plain"))
	b.restart() // it was complete, so it is not made again
	if v, err := b.Volume(ctx, "t", "plain"); err != nil || !v.Lost {
		t.Errorf("%+v, %v", v, err)
	}
}

// A volume whose data is gone is not made again as an empty one.
func TestVolumeLost(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	id := policy.VolumeID("t", "data")
	b.ensure(keyA, withVolumes(dataAt("/data", false)))
	b.crash()
	b.host.Kill(b.host.IDs()[0])
	b.host.LoseVolume(id)
	b.start()
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrVolumeLost) || !strings.HasPrefix(err.Error(), `volume "data": its data is gone`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check := func() {
		t.Helper()
		_, err := b.Update(ctx, me, keyB, attach(dataAt("/data", true)))
		refused("attaching", err)
		_, err = b.ResizeVolume(ctx, me, "t", "data", VolumeLimits{Bytes: 9 * mib})
		refused("resizing", err)
		_, err = b.CreateVolume(ctx, me, "t", "data", VolumeLimits{Bytes: 8 * mib})
		refused("creating", err)
		_, err = b.SnapshotVolume(ctx, me, "t", "copy", "data", VolumeLimits{})
		refused("copying", err)
		_, err = b.Ensure(ctx, me, keyB, withVolumes(spec.VolumeWish{Name: "data", Target: "/data", ReadOnly: true, Size: mib}))
		refused("wishing", err)
		if v, err := b.Volume(ctx, "t", "data"); err != nil || !v.Lost {
			t.Errorf("%+v, %v", v, err)
		}
		if b.host.Volume(id) != nil {
			t.Error("it was made again")
		}
	}
	b.ensure(keyB, policy.Request{})
	_, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}})
	refused("a new box", err)
	must(t, b.Remove(ctx, me, keyA))
	check()
	b.restart()
	check()
	must(t, b.RemoveVolume(ctx, me, "t", "data"))
	b.createVolume("data", 8*mib)
	// It can also go while boxd runs.
	b.host.LoseVolume(id)
	_, err = b.ResizeVolume(ctx, me, "t", "data", VolumeLimits{Bytes: 9 * mib})
	refused("resizing", err)
	check()
	must(t, b.RemoveVolume(ctx, me, "t", "data"))
	b.createVolume("data", 8*mib)
	b.host.LoseVolume(id)
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "update" {
			return &engine.FieldError{Field: "mount volume", Value: spec.Quote(id), Rule: "does not exist"}
		}
		return nil
	})
	_, err = b.Update(ctx, me, keyB, attach(dataAt("/data", true)))
	refused("attaching", err)
}

// The box gets a volume and ends: the session has nothing of it.
func TestAttachToALostBox(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	b.ensure(keyA, policy.Request{})
	b.host.SetHook(func(_ context.Context, op, box string) error {
		if op != "updated" {
			return nil
		}
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "create" {
				return errors.New("no new box")
			}
			return nil
		})
		b.host.Kill(box)
		return engine.ErrBoxLost
	})
	if _, err := b.Update(ctx, me, keyA, attach(dataAt("/data", false))); err == nil {
		t.Fatal("no error")
	}
	b.host.SetHook(nil)
	if s := b.session(keyA); s.record.Attaching != nil {
		t.Errorf("still attaching: %+v", s.record.Attaching)
	}
	b.wantHolders()
	b.restart()
	b.wantHolders()
	b.ensure(keyB, withVolumes(dataAt("/data", false)))
}

// Neither the record of a change can be written nor the change be undone: the session has the
// volume, as its box does.
func TestAttachNotUndone(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	v := b.ensure(keyA, policy.Request{})
	b.ensure(keyB, policy.Request{})
	var mend func()
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		switch {
		case op == "updated":
			mend = b.breakStore()
			return nil
		case op == "update" && mend != nil:
			return errors.New("cannot be undone")
		}
		return nil
	})
	_, err := b.Update(ctx, me, keyA, attach(dataAt("/data", false)))
	if !errors.Is(err, ErrStorage) || !strings.Contains(err.Error(), "cannot be undone") {
		t.Errorf("%v", err)
	}
	b.host.SetHook(nil)
	mend()
	check := func() {
		t.Helper()
		b.wantHolders("a:rw")
		if _, err := b.Update(ctx, me, keyB, attach(dataAt("/data", true))); !errors.Is(err, ErrVolumeInUse) {
			t.Errorf("another session: %v", err)
		}
		if has := namedMounts(b.host.Box(v.Box).Spec().Mounts); len(has) != 1 {
			t.Errorf("the box has %+v", has)
		}
	}
	check()
	b.restart()
	check()
	if _, err := b.Update(ctx, me, keyA, spec.Update{Detach: []string{"/data"}}); err != nil {
		t.Error(err)
	}
	b.wantHolders()
}

// The launcher does not say whether the box has got the volume: the session counts as having it
// until the box has told.
func TestAttachUncertain(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	b.createVolume("more", 8*mib)
	b.ensure(keyA, policy.Request{})
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "updated" {
			return engine.ErrNoLauncher
		}
		return nil
	})
	if _, err := b.Update(ctx, me, keyA, attach(dataAt("/data", false))); !errors.Is(err, engine.ErrNoLauncher) {
		t.Errorf("%v", err)
	}
	b.host.SetHook(nil)
	b.wantHolders("a:rw")
	if _, err := b.Update(ctx, me, keyA, attach(spec.VolumeWish{Name: "more", Target: "/more"})); err != nil {
		t.Error(err)
	}
	b.wantHolders("a:rw")
	b.restart()
	b.wantHolders("a:rw") // the box does have it
	if v := b.get(keyA); len(v.Volumes) != 2 {
		t.Errorf("%+v", v.Volumes)
	}
}

// A session that could not be created has its volumes until its box is gone.
func TestVolumeOfABoxThatGoes(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	discarding, go_ := make(chan struct{}, 10), make(chan struct{})
	b.host.SetHook(func(ctx context.Context, op, _ string) error {
		switch op {
		case "created":
			return engine.ErrNoLauncher // the answer was lost
		case "discard":
			discarding <- struct{}{}
			<-go_
		}
		return nil
	})
	if _, err := b.Ensure(ctx, me, keyA, withVolumes(dataAt("/data", false))); err == nil {
		t.Fatal("created")
	}
	<-discarding
	b.wantHolders("a:rw")
	if _, err := b.Ensure(ctx, me, keyB, withVolumes(dataAt("/data", true))); !errors.Is(err, ErrVolumeInUse) {
		t.Errorf("another session: %v", err)
	}
	if err := b.RemoveVolume(ctx, me, "t", "data"); !errors.Is(err, ErrVolumeInUse) {
		t.Errorf("removed: %v", err)
	}
	b.host.SetHook(nil)
	close(go_)
	b.eventually("its end", func() bool { return len(b.holders()) == 0 })
	b.ensure(keyB, withVolumes(dataAt("/data", false)))
}
