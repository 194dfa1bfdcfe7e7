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

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

func sensitive(on bool) policy.Request {
	return policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Sensitive: &on}}}
}

func mounting(list ...spec.MountWish) policy.Request {
	if list == nil {
		list = []spec.MountWish{}
	}
	return policy.Request{Wishes: spec.Wishes{Mounts: list}}
}

// openSensitive is a bench with the sensitive mount root /srv/data/secret.
func openSensitive(t testing.TB) *bench {
	b := newBench(t)
	b.policy.SensitiveMountRoots = []string{"/srv/data/secret"}
	b.start()
	return b
}

// wantSensitive checks that a session is sensitive for a reason, and that it is shown so and has
// no network; an empty reason means that it is not sensitive.
func (b *bench) wantSensitive(key Key, reason string) {
	b.t.Helper()
	v := b.get(key)
	err := b.MayHaveNetwork(key)
	switch {
	case reason == "" && (v.Sensitive != nil || v.Resolved.Sensitive || err != nil):
		b.t.Errorf("session %s is sensitive: %+v, %v", key, v.Sensitive, err)
	case reason == "":
	case v.Sensitive == nil:
		b.t.Errorf("session %s is not sensitive, want %q", key, reason)
	case !strings.Contains(v.Sensitive.Reason, reason) || v.Sensitive.Since.IsZero():
		b.t.Errorf("session %s: %+v, want %q", key, v.Sensitive, reason)
	case !v.Resolved.Sensitive || v.Resolved.Network || !errors.Is(err, policy.ErrDenied) || !strings.Contains(err.Error(), reason):
		b.t.Errorf("session %s: %+v, %v", key, v.Resolved.Settings, err)
	}
}

func (b *bench) volumeReason(name string) string {
	b.t.Helper()
	v, err := b.Volume(ctx, "t", name)
	if err != nil {
		b.t.Fatal(err)
	}
	if v.Sensitive == nil {
		return ""
	}
	return v.Sensitive.Reason
}

func (b *bench) paths() (list []string) {
	for _, p := range b.SensitivePaths() {
		list = append(list, p.Path)
	}
	return list
}

// The ways into a session, each of which survives a restart, a new box, and the last of the data.
func TestBecomesSensitive(t *testing.T) {
	secret := spec.MountWish{Source: "/srv/data/secret/x", Target: "/x", ReadOnly: true}
	around := spec.MountWish{Source: "/srv/data", Target: "/x", ReadOnly: true}
	for name, c := range map[string]struct {
		begin  policy.Request
		do     func(b *bench) error
		reason string
	}{
		"create":             {sensitive(true), nil, askedFor},
		"profile":            {policy.Request{Wishes: spec.Wishes{Profile: "offline_readonly"}}, nil, `profile "offline_readonly"`},
		"create with root":   {mounting(secret), nil, `"/srv/data/secret" is a sensitive mount root`},
		"create around root": {mounting(around), nil, "/srv/data/secret"},
		"workspace":          {policy.Request{Wishes: spec.Wishes{Workspace: "/srv/data/secret/w"}}, nil, "/srv/data/secret"},
		"create with volume": {withVolumes(dataAt("/data", true)), nil, `volume "data"`},
		"ensure": {policy.Request{}, func(b *bench) error {
			return second(b.Ensure(ctx, me, keyA, sensitive(true)))
		}, askedFor},
		"ensure with root": {policy.Request{}, func(b *bench) error {
			return second(b.Ensure(ctx, me, keyA, mounting(secret)))
		}, "sensitive mount root"},
		"ensure with volume": {policy.Request{}, func(b *bench) error {
			return second(b.Ensure(ctx, me, keyA, withVolumes(dataAt("/data", true))))
		}, `volume "data"`},
		"exec": {policy.Request{}, func(b *bench) error {
			r := sensitive(true)
			return second(b.Exec(ctx, me, keyA, &r, Exec{Args: []string{"true"}}))
		}, askedFor},
		"update": {policy.Request{}, func(b *bench) error {
			return second(b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Sensitive: ptr(true)}}))
		}, askedFor},
		"attach": {policy.Request{}, func(b *bench) error {
			return second(b.Update(ctx, me, keyA, spec.Update{Attach: []spec.MountWish{secret}}))
		}, "sensitive mount root"},
		"attach volume": {policy.Request{}, func(b *bench) error {
			return second(b.Update(ctx, me, keyA, spec.Update{AttachVolumes: []spec.VolumeWish{dataAt("/data", true)}}))
		}, `volume "data"`},
		"network given up": {policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Network: ptr(true)}}}, func(b *bench) error {
			return second(b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Network: ptr(false)}}))
		}, "network was given up"},
		"new box": {policy.Request{}, func(b *bench) error {
			b.host.Kill(b.get(keyA).Box)
			return second(b.Ensure(ctx, me, keyA, mounting(secret)))
		}, "sensitive mount root"},
		"new box asked for": {policy.Request{}, func(b *bench) error {
			b.host.Kill(b.get(keyA).Box)
			return second(b.Ensure(ctx, me, keyA, sensitive(true)))
		}, askedFor},
		"copy": {policy.Request{}, func(b *bench) error {
			b.ensure(keyB, sensitive(true))
			done, err := b.Copying(me, keyB, keyA)
			if err == nil {
				done()
			}
			return err
		}, `copied from session "b"`},
	} {
		t.Run(name, func(t *testing.T) {
			b := openSensitive(t)
			b.createVolume("data", 8*mib)
			must(t, second(b.MarkVolume(ctx, me, "t", "data")))
			b.ensure(keyC, policy.Request{})
			b.ensure(keyA, c.begin)
			if c.do != nil {
				b.wantSensitive(keyA, "")
				must(t, c.do(b))
			}
			b.wantSensitive(keyA, c.reason)
			since := b.get(keyA).Sensitive.Since
			if !b.audit.has("sensitive", "allow") || b.audit.count("sensitive", "done") < 1 {
				t.Error("not audited")
			}
			for _, r := range []policy.Request{sensitive(false), {Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Network: ptr(true)}}}} {
				if _, err := b.Ensure(ctx, me, keyA, r); c.begin.Profile == "" && !errors.Is(err, ErrConflict) {
					t.Errorf("%+v: %v", r.LiveWishes, err)
				}
			}
			for _, w := range []spec.LiveWishes{{Sensitive: ptr(false)}, {Network: ptr(true)}} {
				if _, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: w}); !errors.Is(err, policy.ErrDenied) {
					t.Errorf("%+v: %v", w, err)
				}
			}
			// Nothing of it is left in the session, and it gets a new box and a new daemon.
			if list := b.get(keyA); len(list.Resolved.Mounts) > 1 && list.Resolved.Workspace == "" {
				must(t, second(b.Update(ctx, me, keyA, spec.Update{Detach: []string{list.Resolved.Mounts[1].Target}})))
			}
			b.host.Kill(b.get(keyA).Box)
			b.exec(keyA, "true")
			b.restart()
			b.exec(keyA, "true")
			b.wantSensitive(keyA, c.reason)
			if got := b.get(keyA).Sensitive.Since; !got.Equal(since) {
				t.Errorf("since %v, then %v", since, got)
			}
			b.wantSensitive(keyC, "")
			must(t, b.Remove(ctx, me, keyA))
			b.ensure(keyA, policy.Request{})
			b.wantSensitive(keyA, "") // a new workspace
		})
	}
}

// Who may mark: a profile can forbid the wish, never a mount.
func TestSensitiveLocked(t *testing.T) {
	b := newBench(t)
	b.policy.SensitiveMountRoots = []string{"/srv/data/secret"}
	b.policy.Profiles = map[string]policy.ProfileConfig{"default": {Locked: &[]string{"sensitive"}}}
	b.start()
	v := b.ensure(keyA, sensitive(true))
	if !slices.Contains(v.Resolved.Overridden, "sensitive") {
		t.Errorf("%+v", v.Resolved)
	}
	b.wantSensitive(keyA, "")
	if _, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Sensitive: ptr(true)}}); !errors.Is(err, policy.ErrDenied) {
		t.Error(err)
	}
	b.ensure(keyA, mounting(spec.MountWish{Source: "/srv/data/secret", Target: "/x"}))
	b.wantSensitive(keyA, "sensitive mount root")
	both := sensitive(true)
	both.Network, both.Profile = ptr(true), "execution"
	if _, err := b.Ensure(ctx, me, keyB, both); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("sensitive with a network: %v", err)
	}
}

// A sensitive session makes sensitive what it can write to, and with that the sessions that have
// it, live and later.
func TestSensitiveSpreads(t *testing.T) {
	b := openSensitive(t)
	b.createVolume("data", 8*mib)
	b.createVolume("read", 8*mib)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{
		Volumes: []spec.VolumeWish{dataAt("/data", false), {Name: "read", Target: "/read", ReadOnly: true}},
		Mounts:  []spec.MountWish{{Source: "/srv/data/out/a", Target: "/out"}, {Source: "/srv/data/in", Target: "/in", ReadOnly: true}},
	}})
	b.ensure(keyB, policy.Request{Wishes: spec.Wishes{Workspace: "/srv/data/out", Mounts: []spec.MountWish{{Source: "/srv/data/more", Target: "/more"}}}})
	b.ensure(keyC, mounting(spec.MountWish{Source: "/srv/data/more/deep", Target: "/deep", ReadOnly: true}))
	other := Key{"t", "other"}
	b.ensure(other, mounting(spec.MountWish{Source: "/srv/data/in", Target: "/in"}))
	must(t, second(b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Sensitive: ptr(true)}})))
	check := func() {
		t.Helper()
		b.wantSensitive(keyA, askedFor)
		b.wantSensitive(keyB, `a sensitive session could write to "/srv/data/out/a"`)
		b.wantSensitive(keyC, "/srv/data/more")
		b.wantSensitive(other, "")
		if got := b.paths(); !slices.Equal(got, []string{"/srv/data/more", "/srv/data/out"}) {
			t.Errorf("paths %q", got)
		}
		if got := b.volumeReason("data"); !strings.Contains(got, `session "a"`) || b.volumeReason("read") != "" {
			t.Errorf("volumes: %q, %q", got, b.volumeReason("read"))
		}
	}
	check()
	b.restart()
	check()
	for _, key := range []Key{keyA, keyB, keyC} {
		must(t, b.Remove(ctx, me, key))
	}
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Workspace: "/srv/data/out/new"}})
	b.wantSensitive(keyA, `"/srv/data/out"`)
	b.ensure(keyB, withVolumes(dataAt("/data", true)))
	b.wantSensitive(keyB, `volume "data"`)
	b.ensure(keyC, policy.Request{})
	b.wantSensitive(keyC, "")

	// The marks go with what they are about.
	if err := b.ForgetSensitivePath(me, "/srv/data/out"); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("forgetting a path in use: %v", err)
	}
	if err := b.ForgetSensitivePath(me, "/srv/data"); !errors.Is(err, ErrNotFound) {
		t.Errorf("forgetting an unknown path: %v", err)
	}
	must(t, b.Remove(ctx, me, keyA))
	must(t, b.Remove(ctx, me, keyB))
	mend := b.breakStore()
	if err := b.ForgetSensitivePath(me, "/srv/data/out"); !errors.Is(err, ErrStorage) {
		t.Errorf("forgetting a path with a broken database: %v", err)
	}
	if list := b.SensitivePaths(); !slices.ContainsFunc(list, func(p SensitivePath) bool { return p.Path == "/srv/data/out" }) {
		t.Errorf("a path that could not be forgotten: %+v", list)
	}
	mend()
	must(t, b.ForgetSensitivePath(me, "/srv/data/out"))
	must(t, b.RemoveVolume(ctx, me, "t", "data"))
	b.createVolume("data", 8*mib)
	b.restart()
	r := policy.Request{Wishes: spec.Wishes{Workspace: "/srv/data/out/new"}}
	r.Volumes = []spec.VolumeWish{dataAt("/data", false)}
	b.ensure(keyA, r)
	b.wantSensitive(keyA, "")
}

// What a sensitive session gets later, and can write to, is marked before it gets it.
func TestSensitiveGetsMore(t *testing.T) {
	b := openSensitive(t)
	b.createVolume("data", 8*mib)
	b.ensure(keyA, sensitive(true))
	seen := false
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "update" {
			seen = true
			if b.volumeReason("data") == "" || len(b.paths()) != 1 {
				t.Error("the box gets what is not marked")
			}
		}
		return nil
	})
	must(t, second(b.Update(ctx, me, keyA, spec.Update{AttachVolumes: []spec.VolumeWish{dataAt("/data", false)}, Attach: []spec.MountWish{{Source: "/srv/data/o", Target: "/o"}}})))
	if !seen {
		t.Error("no update")
	}
}

// A volume that is marked while sessions have it.
func TestMarkVolume(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	b.ensure(keyA, withVolumes(dataAt("/data", true)))
	b.ensure(keyB, policy.Request{Wishes: spec.Wishes{Volumes: []spec.VolumeWish{dataAt("/in", true)}, Mounts: []spec.MountWish{{Source: "/srv/data/b", Target: "/b"}}}})
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	v, err := b.MarkVolume(ctx, me, "t", "data")
	if err != nil || v.Sensitive == nil || v.Sensitive.Reason != askedFor {
		t.Fatalf("%+v, %v", v, err)
	}
	b.wantSensitive(keyA, `volume "data"`)
	b.wantSensitive(keyB, `volume "data"`)
	if got := b.paths(); !slices.Equal(got, []string{"/srv/data/b"}) {
		t.Errorf("paths %q", got)
	}
	types := map[EventType]int{}
	for range 3 {
		types[(<-sub.C).Type]++
	}
	if types[EventSensitive] != 2 || types[EventVolumeMarked] != 1 {
		t.Errorf("events %v", types)
	}
	again, err := b.MarkVolume(ctx, me, "t", "data")
	if err != nil || !again.Sensitive.Since.Equal(v.Sensitive.Since) {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := b.ResizeVolume(ctx, me, "t", "data", VolumeLimits{Bytes: 16 * mib}); err != nil || b.volumeReason("data") == "" {
		t.Errorf("resizing takes the mark off: %v", err)
	}
	if _, err := b.MarkVolume(ctx, me, "t", "none"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := b.MarkVolume(ctx, me, "u", "data"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// A session that becomes sensitive while its files are copied takes the target with it.
func TestSensitiveDuringCopy(t *testing.T) {
	b := open(t)
	for _, key := range []Key{keyA, keyB, keyC} {
		b.ensure(key, policy.Request{})
	}
	first, err := b.Copying(me, keyA, keyB)
	must(t, err)
	back, err := b.Copying(me, keyB, keyA)
	must(t, err)
	next, err := b.Copying(me, keyB, keyC)
	must(t, err)
	next()
	must(t, second(b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Sensitive: ptr(true)}})))
	b.wantSensitive(keyB, `copied from session "a"`)
	b.wantSensitive(keyC, "") // that copy was complete
	first()
	back()
	if len(b.sensitive.copies) != 0 {
		t.Error("a copy is left")
	}
	b.restart()
	b.wantSensitive(keyB, "copied")
	if done, err := b.Copying(me, keyA, keyA); err != nil {
		t.Error(err)
	} else {
		done()
	}
	if _, err := b.Copying(me, keyA, Key{"t", "none"}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// A workspace that is kept keeps what it knows.
func TestSensitiveIsRetained(t *testing.T) {
	bubble(t, func(b *bench) {
		r := retaining("1h")
		r.Sensitive = ptr(true)
		b.ensure(keyA, r)
		b.expired(keyA)
		b.wantSensitive(keyA, askedFor)
		b.restart()
		b.ensure(keyA, policy.Request{})
		b.wantSensitive(keyA, askedFor)
		b.ensure(keyB, retaining("1h")) // becomes sensitive when it is revived
		b.expired(keyB)
		b.ensure(keyB, sensitive(true))
		b.wantSensitive(keyB, askedFor)
		b.expired(keyA)
		must(t, b.Remove(ctx, me, keyA))
		b.ensure(keyA, policy.Request{})
		b.wantSensitive(keyA, "")
	})
}

// A session that stays for its workspace has no mounts, so it does not become sensitive with
// them, until it gets them again.
func TestRetainedHasNoMounts(t *testing.T) {
	bubble(t, func(b *bench) {
		r := retaining("1h")
		r.Mounts = []spec.MountWish{{Source: "/srv/data/x", Target: "/x", ReadOnly: true}}
		b.ensure(keyA, r)
		b.expired(keyA)
		r = sensitive(true)
		r.Mounts = []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}
		b.ensure(keyB, r)
		b.wantSensitive(keyA, "")
		b.exec(keyA, "true")
		b.wantSensitive(keyA, `"/srv/data/x"`)
	})
}

// The operator marks a root that sessions have already.
func TestRootBecomesSensitive(t *testing.T) {
	b := open(t)
	b.createVolume("data", 8*mib)
	r := withVolumes(dataAt("/data", false))
	r.Mounts = []spec.MountWish{{Source: "/srv/data/secret", Target: "/x"}}
	b.ensure(keyA, r)
	b.ensure(keyB, policy.Request{})
	b.crash()
	b.policy.SensitiveMountRoots = []string{"/srv/data/secret"}
	b.start()
	check := func() {
		t.Helper()
		b.wantSensitive(keyA, "sensitive mount root")
		b.wantSensitive(keyB, "")
		if b.volumeReason("data") == "" || len(b.paths()) != 0 {
			t.Errorf("volume %q, paths %q", b.volumeReason("data"), b.paths())
		}
	}
	check()
	b.crash()
	b.policy.SensitiveMountRoots = nil
	b.start()
	check() // it has seen what it has seen
}

// A link in a mount root could lead to what is sensitive under another name.
func TestNoLinksBesideSensitive(t *testing.T) {
	b := openSensitive(t)
	noLinks := func(key Key) []string {
		var list []string
		for _, m := range b.host.Box(b.get(key).Box).Spec().Mounts {
			if m.Target == "/x" {
				list = append(list, m.NoLinks)
			}
		}
		return list
	}
	at := func(source string) policy.Request {
		return mounting(spec.MountWish{Source: source, Target: "/x", ReadOnly: true})
	}
	b.ensure(keyA, at("/srv/data/other"))
	b.ensure(keyB, at("/srv/data/secret/in"))
	if a, s := noLinks(keyA), noLinks(keyB); !slices.Equal(a, []string{"/srv/data"}) || !slices.Equal(s, []string{""}) {
		t.Errorf("%q, %q", a, s)
	}
	b.crash()
	b.policy.SensitiveMountRoots = nil
	b.policy.AllowedMountRoots = []string{"/srv/data", "/srv/more"}
	b.start()
	b.ensure(keyC, at("/srv/more/other"))
	if c := noLinks(keyC); !slices.Equal(c, []string{""}) {
		t.Errorf("%q", c)
	}
	w := sensitive(true)
	w.Workspace = "/srv/more/w"
	b.ensure(Key{"t", "w"}, w)
	generation := b.get(keyC).Generation
	seq := b.get(keyC).Resolved.Mounts
	b.ensure(keyC, at("/srv/more/other"))
	if v := b.get(keyC); v.Generation != generation || !slices.Equal(v.Resolved.Mounts, seq) {
		t.Errorf("a mount that is there was changed: %+v", v.Resolved.Mounts)
	}
	b.ensure(keyC, at("/srv/more/third"))
	if c := noLinks(keyC); !slices.Equal(c, []string{"/srv/more"}) {
		t.Errorf("%q", c)
	}
	b.ensure(Key{"u", "c"}, at("/srv/more/third")) // another tenant is not disturbed
	if c := noLinks(Key{"u", "c"}); !slices.Equal(c, []string{""}) {
		t.Errorf("%q", c)
	}
}

// A skill, which is in a volume of boxd's own, carries sensitivity from session to session.
func TestSensitiveSkill(t *testing.T) {
	b := open(t)
	must(t, b.client.MakeVolume(ctx, engine.Volume{Name: "skills-x", Bytes: 8 * mib}))
	skill := func(name string, readOnly bool) policy.Request {
		return mounting(spec.MountWish{Volume: "skills-x", Source: name, Target: "/skill", ReadOnly: readOnly})
	}
	b.ensure(keyA, skill("/one", false))
	b.ensure(keyB, skill("/one", true))
	b.ensure(keyC, skill("/two", true))
	must(t, second(b.Ensure(ctx, me, keyA, sensitive(true))))
	b.restart()
	b.wantSensitive(keyB, `"volume:skills-x/one"`)
	b.wantSensitive(keyC, "")
	for _, key := range []Key{keyA, keyB} {
		must(t, b.Remove(ctx, me, key))
	}
	must(t, b.ForgetSensitivePath(me, "volume:skills-x/one"))
	b.ensure(keyA, skill("/one", false))
	b.wantSensitive(keyA, "")
}

func TestSensitivePathsAreBounded(t *testing.T) {
	b := open(t)
	for i := range maxSensitivePaths {
		path := fmt.Sprintf("/srv/data/p%d", i)
		b.sensitive.paths[path] = sensitiveRecord{Path: path, Tenant: "t"}
	}
	r := sensitive(true)
	r.Workspace = "/srv/data/new"
	_, err := b.Ensure(ctx, me, keyA, r)
	if !errors.Is(err, policy.ErrDenied) || !strings.Contains(err.Error(), "1000 paths") {
		t.Error(err)
	}
	b.ensure(keyB, mounting(spec.MountWish{Source: "/srv/data/new", Target: "/x"}))
	if _, err := b.Update(ctx, me, keyB, spec.Update{LiveWishes: spec.LiveWishes{Sensitive: ptr(true)}}); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("of a mount that is there: %v", err)
	}
	b.wantSensitive(keyB, "")
	r.Workspace = "/srv/data/p7/in" // is one already
	b.ensure(keyA, r)
	r.Workspace = "/srv/data/new"
	b.ensure(Key{"u", "a"}, r)

	// Giving up a network is never refused: all of the mount root becomes sensitive.
	n := mounting(spec.MountWish{Source: "/srv/data/more", Target: "/x"})
	n.Network = ptr(true)
	b.ensure(keyC, n)
	must(t, second(b.Update(ctx, me, keyC, spec.Update{LiveWishes: spec.LiveWishes{Network: ptr(false)}})))
	if got := b.paths(); !slices.Equal(got, []string{"/srv/data"}) {
		t.Errorf("%d paths, such as %q", len(got), got[0])
	}
	b.wantSensitive(keyB, "could write to") // what tenant u has written to, too
}

// What a lost or damaged database may have said is assumed.
func TestSensitivityOfALostDatabase(t *testing.T) {
	const lost = lostRecord
	b := open(t)
	b.createVolume("data", 8*mib)
	b.ensure(keyA, policy.Request{})
	must(t, os.WriteFile(filepath.Join(b.workspace(keyB), "..", "file"), nil, 0o600))
	b.crash()
	must(t, os.Remove(filepath.Join(b.dir, "boxd.db")))
	must(t, os.MkdirAll(b.workspace(keyB), 0o700))
	must(t, os.WriteFile(filepath.Join(b.workspace(keyB), "file"), nil, 0o600))
	b.start()
	b.wantSensitive(keyA, lost)
	b.ensure(keyB, policy.Request{})
	b.wantSensitive(keyB, lost)
	b.createVolume("data", 8*mib)
	if got := b.volumeReason("data"); !strings.Contains(got, lost) {
		t.Errorf("volume: %q", got)
	}
	b.ensure(keyC, policy.Request{})
	b.wantSensitive(keyC, "")
	b.restart()
	b.wantSensitive(keyB, lost)
	if got := b.volumeReason("data"); !strings.Contains(got, lost) {
		t.Errorf("volume after a restart: %q", got)
	}

	b = open(t)
	b.createVolume("data", 8*mib)
	b.crash()
	b.database(func(tx *bbolt.Tx) error { return tx.Bucket(sensitiveBucket).Put([]byte("path//x"), []byte("{}")) })
	b.start()
	if got := b.volumeReason("data"); !strings.Contains(got, lostRecord) {
		t.Errorf("volume: %q", got)
	}
}

// The daemon dies at each step of getting something sensitive: a box never has it while its
// session, or what it can write to, is not sensitive on disk.
func TestCrashWhileBecomingSensitive(t *testing.T) {
	secret := []spec.MountWish{{Source: "/srv/data/secret", Target: "/x", ReadOnly: true}}
	all := policy.Request{Wishes: spec.Wishes{Mounts: secret, Volumes: []spec.VolumeWish{dataAt("/data", false)}}}
	for _, c := range []struct {
		name, op string
		do       func(b *bench)
	}{
		{"create", "create", func(b *bench) { b.Ensure(ctx, me, keyB, all) }},
		{"created", "created", func(b *bench) { b.Ensure(ctx, me, keyB, all) }},
		{"ensure", "update", func(b *bench) { b.Ensure(ctx, me, keyA, all) }},
		{"ensured", "updated", func(b *bench) { b.Ensure(ctx, me, keyA, all) }},
		{"attach", "update", func(b *bench) { b.Update(ctx, me, keyA, spec.Update{Attach: secret, AttachVolumes: all.Volumes}) }},
		{"attached", "updated", func(b *bench) { b.Update(ctx, me, keyA, spec.Update{Attach: secret, AttachVolumes: all.Volumes}) }},
	} {
		for _, engineFirst := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, engineFirst), func(t *testing.T) {
				b := openSensitive(t)
				b.engineFirst = engineFirst
				b.createVolume("data", 8*mib)
				b.ensure(keyA, policy.Request{})
				reached := make(chan struct{})
				client := b.client
				b.host.SetHook(func(_ context.Context, op, _ string) error {
					if op == c.op {
						close(reached)
						<-client.Gone()
					}
					return nil
				})
				done := make(chan struct{})
				old := *b
				go func() { defer close(done); c.do(&old) }()
				await(t, reached, c.op)
				b.crash()
				await(t, done, "the caller")
				b.host.SetHook(nil)
				b.start()
				b.checkSensitiveBoxes()
			})
		}
	}
}

// checkSensitiveBoxes fails the test if a box has something sensitive and its session is not.
func (b *bench) checkSensitiveBoxes() {
	b.t.Helper()
	for _, v := range b.List("") {
		if v.Box == "" || b.host.Box(v.Box) == nil {
			continue
		}
		for _, m := range b.host.Box(v.Box).Spec().Mounts {
			secret := strings.HasPrefix(m.Source, "/srv/data/secret")
			if secret && v.Sensitive == nil {
				b.t.Errorf("session %s has %s and is not sensitive", v.Key, m.Source)
			}
			if policy.IsVolumeID(m.Volume) && v.Sensitive != nil && !m.ReadOnly && b.volumeReason("data") == "" {
				b.t.Errorf("session %s is sensitive and its volume is not", v.Key)
			}
		}
	}
}

// If the ratchet cannot be recorded, the data is not given.
func TestSensitiveNeedsARecord(t *testing.T) {
	b := openSensitive(t)
	b.ensure(keyA, policy.Request{})
	box := b.get(keyA).Box
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "update" {
			t.Error("the box was changed")
		}
		return nil
	})
	mend := b.breakStore()
	if _, err := b.Update(ctx, me, keyA, spec.Update{Attach: []spec.MountWish{{Source: "/srv/data/secret", Target: "/x"}}}); !errors.Is(err, ErrStorage) {
		t.Errorf("%v", err)
	}
	if got := b.host.Box(box).Spec().Mounts; len(got) != 1 {
		t.Errorf("mounts %+v", got)
	}
	b.wantSensitive(keyA, "sensitive mount root") // nothing goes back
	mend()
	b.audit.mu.Lock()
	b.audit.err = errors.New("full")
	b.audit.mu.Unlock()
	if _, err := b.Ensure(ctx, me, keyB, sensitive(true)); !errors.Is(err, ErrStorage) {
		t.Errorf("without an audit log: %v", err)
	}
}

// Sessions get mounts while others become sensitive: nobody who has a sensitive path is missed.
func TestSensitiveRace(t *testing.T) {
	b := open(t)
	for i := range 40 {
		x, y := Key{"t", fmt.Sprint("x", i)}, Key{"t", fmt.Sprint("y", i)}
		path := fmt.Sprint("/srv/data/d", i)
		b.ensure(y, mounting(spec.MountWish{Source: path, Target: "/d"}))
		live := i%2 == 0
		if live {
			b.ensure(x, policy.Request{})
		}
		ready := make(chan struct{})
		errs := make(chan error, 2)
		go func() {
			<-ready
			_, err := b.Update(ctx, me, y, spec.Update{LiveWishes: spec.LiveWishes{Sensitive: ptr(true)}})
			errs <- err
		}()
		go func() {
			<-ready
			_, err := b.Ensure(ctx, me, x, mounting(spec.MountWish{Source: path + "/in", Target: "/d", ReadOnly: true}))
			errs <- err
		}()
		close(ready)
		must(t, <-errs)
		if err := <-errs; err != nil && !errors.Is(err, ErrState) {
			t.Fatal(err)
		}
		b.ensure(x, mounting(spec.MountWish{Source: path + "/in", Target: "/d", ReadOnly: true}))
		b.wantSensitive(x, path)
	}
}
