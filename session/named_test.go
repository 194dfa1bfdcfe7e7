package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

const mib = 1 << 20

func (b *bench) createVolume(name string, size int64) {
	b.t.Helper()
	if _, err := b.CreateVolume(ctx, me, "t", name, VolumeLimits{Bytes: spec.Size(size)}); err != nil {
		b.t.Fatal(err)
	}
}

func withVolumes(list ...spec.VolumeWish) policy.Request {
	return policy.Request{Wishes: spec.Wishes{Volumes: list}}
}

func dataAt(target string, readOnly bool) spec.VolumeWish {
	return spec.VolumeWish{Name: "data", Target: target, ReadOnly: readOnly}
}

// holders are the sessions of volume data, as "a:rw".
func (b *bench) holders() (list []string) {
	b.t.Helper()
	v, err := b.Volume(ctx, "t", "data")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, a := range v.Attached {
		list = append(list, a.Session+map[bool]string{true: ":ro", false: ":rw"}[a.ReadOnly])
	}
	return list
}

func (b *bench) wantHolders(want ...string) {
	b.t.Helper()
	if got := b.holders(); !slices.Equal(got, want) {
		b.t.Errorf("attached %q, want %q", got, want)
	}
}

func TestNamedVolume(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	id := policy.VolumeID("t", "data")
	if got := b.host.Volume(id); got == nil || got.Bytes != 8*mib {
		t.Fatalf("volume %+v", got)
	}
	again, err := b.CreateVolume(ctx, me, "t", "data", VolumeLimits{Bytes: 8 * mib})
	if err != nil || again.Created {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := b.CreateVolume(ctx, me, "t", "data", VolumeLimits{Bytes: 9 * mib}); !errors.Is(err, ErrVolumeExists) {
		t.Errorf("with another size: %v", err)
	}
	v := b.ensure(keyA, withVolumes(dataAt("/data", false)))
	want := mount{Source: "/", Target: "/data", Volume: id, Users: true}
	if got := b.host.Box(v.Box).Spec().Mounts; !slices.Contains(got, want) {
		t.Errorf("mounts %+v", got)
	}
	if len(v.Volumes) != 1 || v.Volumes[0] != (spec.VolumeWish{Name: "data", Target: "/data", Size: 8 * mib}) {
		t.Errorf("%+v", v.Volumes)
	}
	if err := b.RemoveVolume(ctx, me, "t", "data"); !errors.Is(err, ErrVolumeInUse) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("removing a volume in use: %v", err)
	}
	b.host.Fill(id, 77)
	must(t, b.Remove(ctx, me, keyA))
	b.wantHolders()
	if b.host.Volume(id).UsedBytes != 77 {
		t.Error("the content went with the session")
	}
	must(t, b.RemoveVolume(ctx, me, "t", "data"))
	if left := b.host.VolumeNames(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	if use, _ := b.Quota("t"); use != (policy.Use{}) {
		t.Errorf("left in the ledger: %+v", use)
	}
	for _, action := range []string{"volume-create", "volume-remove"} {
		if !b.audit.has(action, "allow") || !b.audit.has(action, "done") {
			t.Errorf("no audit of %s", action)
		}
	}
}

func TestNamedVolumeRefusals(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults = policy.Quotas{Volumes: 2, VolumeBytes: 20 * mib}
	b.start()
	b.createVolume("data", 8*mib)
	for _, c := range []struct {
		name string
		size int64
		want string
	}{
		{"", 8 * mib, "name"}, {"..", 8 * mib, "name"}, {"a/b", 8 * mib, "name"},
		{"x", 0, "size"}, {"x", mib - 1, "size"}, {"x", -1, "size"}, {"x", 5 << 40, "size"},
		{"x", 13 * mib, "volume_bytes: limit 20 MiB, in use 8 MiB, asked 13 MiB"},
	} {
		if _, err := b.CreateVolume(ctx, me, "t", c.name, VolumeLimits{Bytes: spec.Size(c.size)}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q of %d: %v, want %q", c.name, c.size, err, c.want)
		}
	}
	if _, err := b.CreateVolume(ctx, me, "t", "x", VolumeLimits{Bytes: mib, Inodes: 5000}); err == nil || !strings.HasPrefix(err.Error(), "inodes") {
		t.Errorf("inodes: %v", err)
	}
	b.createVolume("more", 8*mib)
	if _, err := b.CreateVolume(ctx, me, "t", "third", VolumeLimits{Bytes: mib}); !errors.Is(err, policy.ErrQuota) {
		t.Errorf("a third one: %v", err)
	}
	for _, c := range []struct {
		list []spec.VolumeWish
		want string
	}{
		{[]spec.VolumeWish{{Name: "none", Target: "/x"}}, "volumes[0].name"},
		{[]spec.VolumeWish{{Name: "../x", Target: "/x"}}, "volumes[0].name"},
		{[]spec.VolumeWish{{Name: "data"}}, "volumes[0].target"},
		{[]spec.VolumeWish{{Name: "data", Target: "/proc/x"}}, "volumes[0].target"},
		{[]spec.VolumeWish{{Name: "data", Target: "/workspace"}}, "volumes[0].target"},
		{[]spec.VolumeWish{{Name: "data", Target: "/x", Size: 1}}, "volumes[0].size"},
		{[]spec.VolumeWish{{Name: "data", Target: "/x"}, {Name: "data", Target: "/y"}}, "volumes[1].name"},
		{[]spec.VolumeWish{{Name: "data", Target: "/x"}, {Name: "more", Target: "/x"}}, "target"},
	} {
		_, err := b.Ensure(ctx, me, keyA, withVolumes(c.list...))
		if bad, ok := errors.AsType[*engine.FieldError](err); !ok || !strings.Contains(bad.Field, c.want) {
			t.Errorf("%+v: %v, want %q", c.list, err, c.want)
		}
	}
	if _, err := b.Ensure(ctx, me, Key{"u", "a"}, withVolumes(dataAt("/data", true))); err == nil {
		t.Error("a stranger got the volume")
	}
	if _, err := b.Get(keyA); !errors.Is(err, ErrNotFound) {
		t.Errorf("a refused session is there: %v", err)
	}
	b.wantHolders()
}

func TestNamedVolumeReadersAndWriter(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	b.ensure(keyA, withVolumes(dataAt("/data", true)))
	b.ensure(keyB, withVolumes(dataAt("/in/data", true)))
	b.wantHolders("a:ro", "b:ro")
	keyC := Key{"t", "c"}
	check := func() {
		t.Helper()
		if _, err := b.Ensure(ctx, me, keyC, withVolumes(dataAt("/data", false))); !errors.Is(err, ErrVolumeInUse) {
			t.Errorf("a writer beside readers: %v", err)
		}
		if _, err := b.Update(ctx, me, keyA, spec.Update{Detach: []string{"/data"}, AttachVolumes: []spec.VolumeWish{dataAt("/data", false)}}); !errors.Is(err, ErrVolumeInUse) {
			t.Errorf("a reader becomes a writer beside another: %v", err)
		}
		b.wantHolders("a:ro", "b:ro")
	}
	check()
	b.restart()
	check()
	// b lets go, live; then a can write, and nobody else has it.
	if _, err := b.Update(ctx, me, keyB, spec.Update{Detach: []string{"/in/data"}}); err != nil {
		t.Fatal(err)
	}
	b.wantHolders("a:ro")
	if _, err := b.Update(ctx, me, keyA, spec.Update{AttachVolumes: []spec.VolumeWish{dataAt("/again", true)}}); err == nil || !strings.Contains(err.Error(), "attached already") {
		t.Errorf("twice in a session: %v", err)
	}
	v, err := b.Update(ctx, me, keyA, spec.Update{Detach: []string{"/data"}, AttachVolumes: []spec.VolumeWish{dataAt("/data", false)}})
	if err != nil || v.Volumes[0].ReadOnly {
		t.Fatalf("%+v, %v", v.Volumes, err)
	}
	b.wantHolders("a:rw")
	for range 2 {
		if _, err := b.Ensure(ctx, me, keyB, withVolumes(dataAt("/data", true))); !errors.Is(err, ErrVolumeInUse) {
			t.Errorf("a reader beside a writer: %v", err)
		}
		b.host.Kill(b.get(keyA).Box) // a session without a box has its volumes still
		if _, err := b.Ensure(ctx, me, keyB, withVolumes(dataAt("/data", true))); !errors.Is(err, ErrVolumeInUse) {
			t.Errorf("a reader beside a writer whose box is gone: %v", err)
		}
		b.restart()
		b.exec(keyA, "true")
	}
	// An ensure with another list changes what is attached, and one without leaves it alone.
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{}}})
	b.wantHolders("a:rw")
	b.ensure(keyA, withVolumes(dataAt("/data", true)))
	b.wantHolders("a:ro")
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Volumes: []spec.VolumeWish{}}})
	b.wantHolders()
}

// A session can make its volumes; they outlive it.
func TestNamedVolumeMadeBySession(t *testing.T) {
	b := open(t)
	w := spec.VolumeWish{Name: "data", Target: "/data", Size: 4 * mib}
	b.ensure(keyA, withVolumes(w))
	b.wantHolders("a:rw")
	must(t, b.Remove(ctx, me, keyA))
	w.Size = 9 * mib // it exists, so its size stays
	if v := b.ensure(keyA, withVolumes(w)); v.Volumes[0].Size != 4*mib {
		t.Errorf("%+v", v.Volumes)
	}
}

func TestNamedVolumeResize(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults.VolumeBytes = 20 * mib
	b.start()
	b.createVolume("data", 8*mib)
	b.ensure(keyA, withVolumes(dataAt("/data", false)))
	v, err := b.ResizeVolume(ctx, me, "t", "data", VolumeLimits{Bytes: 16 * mib})
	if err != nil || v.Bytes != 16*mib || b.host.Volume(policy.VolumeID("t", "data")).Bytes != 16*mib {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := b.ResizeVolume(ctx, me, "t", "data", VolumeLimits{Bytes: 21 * mib}); !errors.Is(err, policy.ErrQuota) {
		t.Errorf("above the quota: %v", err)
	}
	if _, err := b.ResizeVolume(ctx, me, "t", "data", VolumeLimits{Bytes: mib}); !errors.Is(err, engine.ErrInvalid) { // the fake only enlarges
		t.Errorf("smaller: %v", err)
	}
	if _, err := b.ResizeVolume(ctx, me, "t", "other", VolumeLimits{Bytes: mib}); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	b.restart()
	if use, _ := b.Quota("t"); use.Volumes != 1 || use.VolumeBytes != 16*mib {
		t.Errorf("%+v", use)
	}
}

// The box got a volume, and boxd ended before it could record that: until the box is taken
// over, no other session gets the volume.
func TestNamedVolumeIntent(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	b.ensure(keyA, policy.Request{})
	b.crash()
	b.rewrite(keyA, func(r *sessionRecord) {
		r.Attaching = []mount{{Source: "/", Target: "/data", Volume: policy.VolumeID("t", "data"), Users: true}}
	})
	asked, told := make(chan struct{}), make(chan struct{})
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "adopt" {
			close(asked)
			<-told
		}
		return nil
	})
	must(t, b.tryStart())
	<-asked
	if _, err := b.Ensure(ctx, me, keyB, withVolumes(dataAt("/data", true))); !errors.Is(err, ErrVolumeInUse) {
		t.Errorf("before the box has told: %v", err)
	}
	b.host.SetHook(nil)
	close(told)
	<-b.adopted
	b.wantHolders() // the box does not have it
	b.ensure(keyB, withVolumes(dataAt("/data", true)))
	b.restart()
	b.wantHolders("b:ro")
}

// After the loss of the database the content stays, for a volume of the same name, and through
// later openings.
func TestNamedVolumeOutlivesTheDatabase(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	id := policy.VolumeID("t", "data")
	b.host.Fill(id, 77)
	b.ensure(keyA, withVolumes(dataAt("/data", false)))
	b.crash()
	must(t, os.Remove(filepath.Join(b.dir, "boxd.db")))
	b.start()
	b.restart()
	if _, err := b.Volume(ctx, "t", "data"); !errors.Is(err, ErrNotFound) || b.host.Volume(id) == nil {
		t.Fatalf("%v, %v", err, b.host.Volume(id))
	}
	b.createVolume("data", 8*mib)
	b.wantHolders("a:rw") // its box has it still
	if b.host.Volume(id).UsedBytes != 77 {
		t.Error("the content is gone")
	}
	b.restart()
	b.wantHolders("a:rw")
}
