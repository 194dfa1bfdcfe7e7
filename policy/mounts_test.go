package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

func mountPolicy(t *testing.T) *Policy {
	return newPolicy(t, Config{
		AllowedMountRoots: []string{"/srv/a", "/srv/a/deep", "/data"},
		Tenants: map[string]Tenant{
			"own":  {AllowedMountRoots: &[]string{"/home/own"}},
			"none": {AllowedMountRoots: &[]string{}},
		},
		Profiles: map[string]ProfileConfig{"nomounts": {MountMode: ptr("none")}},
	})
}

func TestMountRoots(t *testing.T) {
	p := mountPolicy(t)
	cases := []struct {
		tenant, source string
		within         string // empty: refused
	}{
		{"a", "/srv/a", "/srv/a"},
		{"a", "/srv/a/x", "/srv/a"},
		{"a", "/srv/a/deep/x", "/srv/a/deep"},
		{"a", "/srv/a/deeper", "/srv/a"},
		{"a", "/data/", "/data"},
		{"a", "/data//x/./y", "/data"},
		{"a", "/srv", ""},
		{"a", "/srv/ab", ""},
		{"a", "/database", ""},
		{"a", "/", ""},
		{"a", "/etc/shadow", ""},
		{"a", "/home/own", ""},
		{"a", "/srv/a/../../etc", ""},
		{"a", "/srv/a/..", ""},
		{"a", "/srv/A", ""},
		{"own", "/home/own/x", "/home/own"},
		{"own", "/srv/a", ""},
		{"none", "/srv/a", ""},
	}
	for _, c := range cases {
		check := func(what string, m engine.Mount, d Decision, err error) {
			t.Helper()
			refused := errors.Is(err, ErrDenied) || errors.Is(err, engine.ErrInvalid)
			if (c.within == "") != refused || m.Within != c.within || d.Allowed == refused || d.Action != ActionMount || d.Rule == "" {
				t.Errorf("%s: tenant %s, %s: %+v, %+v, %v; want within %q", what, c.tenant, c.source, m, d, err, c.within)
			}
		}
		r, err := p.Resolve(c.tenant, Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: c.source, Target: "/mnt"}}}})
		m, d := engine.Mount{}, Decision{Action: ActionMount, Rule: "x"}
		if err == nil {
			m, d = r.Mounts[0], r.Decisions[0]
		}
		check("extra mount", m, d, err)

		r, err = p.Resolve(c.tenant, Request{Wishes: spec.Wishes{Workspace: c.source}})
		m, d = engine.Mount{}, Decision{Action: ActionMount, Rule: "x"}
		if err == nil {
			m, d = r.Mounts[0], r.Decisions[0]
			if m.Target != "/workspace" || m.ReadOnly || r.Workspace != c.source {
				t.Errorf("workspace %s: %+v", c.source, r)
			}
		}
		check("workspace", m, d, err)

		m, d, err = p.MayMount(c.tenant, Resolved{Settings: spec.Settings{MountMode: "rw"}}, spec.MountWish{Source: c.source, Target: "/mnt"})
		check("live mount", m, d, err)
	}
}

func TestMountRules(t *testing.T) {
	p := mountPolicy(t)
	many := make([]spec.MountWish, spec.MaxMounts+1)
	for i := range many {
		many[i] = spec.MountWish{Source: "/data", Target: "/mnt/" + strings.Repeat("x", i+1)}
	}
	cases := []struct {
		r     Request
		field string
	}{
		{Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/data", Target: "/workspace"}}}}, "mounts[0].target"},
		{Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/data", Target: "/a"}, {Source: "/etc", Target: "/b"}}}}, "mounts[1].source"},
		{Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "data", Target: "/a"}}}}, "mounts[0].source"},
		{Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/data/\x00", Target: "/a"}}}}, "mounts[0].source"},
		{Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/data", Target: ""}}}}, "mounts[0].target"},
		{Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/data", Target: "/"}}}}, "mounts[0].target"},
		{Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/data", Target: "/proc/1"}}}}, "mounts[0].target"},
		{Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/data", Target: "/etc"}}}}, "mounts[0].target"},
		{Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/data", Target: "/a/../b"}}}}, "mounts[0].target"},
		{Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/data", Target: "/a"}, {Source: "/data", Target: "/a"}}}}, "mounts.target"},
		{Request{Wishes: spec.Wishes{Mounts: many}}, "mounts"},
		{Request{Wishes: spec.Wishes{Workspace: "/etc"}}, "workspace"},
		{Request{Wishes: spec.Wishes{Workspace: "rel"}}, "workspace"},
		{Request{Wishes: spec.Wishes{Workspace: "/data", WorkspaceMode: ptr("none")}}, "workspace"},
		{Request{Wishes: spec.Wishes{Profile: "nomounts", Mounts: []spec.MountWish{{Source: "/data", Target: "/a"}}}}, "mounts[0]"},
	}
	for _, c := range cases {
		_, err := p.Resolve("a", c.r)
		var bad *engine.FieldError
		var denied *DeniedError
		if !(errors.As(err, &bad) && bad.Field == c.field) && !(errors.As(err, &denied) && denied.Field == c.field) {
			t.Errorf("%+v: %v, want an error of %s", c.r.Mounts, err, c.field)
		}
	}
}

// TestReadOnlyProfile: nothing of the host is writable in offline_readonly, however
// it is mounted.
func TestReadOnlyProfile(t *testing.T) {
	p := mountPolicy(t)
	r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: "offline_readonly", Workspace: "/data/w", WorkspaceMode: ptr("rw"), Mounts: []spec.MountWish{{Source: "/data", Target: "/a"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range r.Mounts {
		if !m.ReadOnly {
			t.Errorf("%+v is writable", m)
		}
	}
	if got := strings.Join(r.Overridden, " "); got != "mounts[0].read_only workspace_mode" {
		t.Errorf("overridden: %s", got)
	}
	m, d, err := p.MayMount("a", r, spec.MountWish{Source: "/data", Target: "/b"})
	if err != nil || !m.ReadOnly || !strings.Contains(d.Rule, "mount_mode") {
		t.Errorf("live mount: %+v, %+v, %v; want it read-only", m, d, err)
	}
	if _, d, err := p.MayMount("a", Resolved{Settings: spec.Settings{MountMode: "none"}}, spec.MountWish{Source: "/data", Target: "/b"}); !errors.Is(err, ErrDenied) || d.Allowed {
		t.Errorf("live mount: %+v, %v; want ErrDenied", d, err)
	}
	// A Resolved from before there were modes must not open anything.
	if m, _, err := p.MayMount("a", Resolved{}, spec.MountWish{Source: "/data", Target: "/b"}); err != nil || !m.ReadOnly {
		t.Errorf("live mount without a mode: %+v, %v; want it read-only", m, err)
	}
	if _, d, err := p.MayMount("a", Resolved{Settings: spec.Settings{MountMode: "rw"}}, spec.MountWish{Source: "/data", Target: "/workspace"}); err == nil || d.Allowed {
		t.Errorf("live mount over the workspace: %+v, %v; want an error", d, err)
	}
}

// TestMountsFor: a live session keeps to its own profile, whatever the request says.
func TestMountsFor(t *testing.T) {
	p := mountPolicy(t)
	r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: "offline_readonly"}})
	if err != nil {
		t.Fatal(err)
	}
	list, decisions, err := p.MountsFor("a", r, []spec.MountWish{{Source: "/data", Target: "/a"}, {Source: "/srv/a/deep", Target: "/b", ReadOnly: true}})
	if err != nil || len(list) != 2 || len(decisions) != 2 || !list[0].ReadOnly || !list[1].ReadOnly || list[1].Within != "/srv/a/deep" {
		t.Errorf("%+v, %+v, %v", list, decisions, err)
	}
	if list, decisions, err := p.MountsFor("a", r, nil); err != nil || len(list) != 0 || len(decisions) != 0 {
		t.Errorf("no mounts: %+v, %+v, %v", list, decisions, err)
	}
	for name, asked := range map[string][]spec.MountWish{
		"outside":   {{Source: "/data", Target: "/a"}, {Source: "/etc", Target: "/b"}},
		"twice":     {{Source: "/data", Target: "/a"}, {Source: "/data", Target: "/a"}},
		"workspace": {{Source: "/data", Target: "/workspace"}},
	} {
		if list, _, err := p.MountsFor("a", r, asked); err == nil || list != nil {
			t.Errorf("%s: %+v, %v; want an error", name, list, err)
		}
	}
	if _, _, err := p.MountsFor("a", Resolved{Settings: spec.Settings{MountMode: "none"}}, []spec.MountWish{{Source: "/data", Target: "/a"}}); !errors.Is(err, ErrDenied) {
		t.Errorf("mount_mode none: %v, want ErrDenied", err)
	}
}

// TestRecheckMounts: a session from before a change of the configuration.
func TestRecheckMounts(t *testing.T) {
	p := mountPolicy(t)
	r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Workspace: "/srv/a/w", Mounts: []spec.MountWish{{Source: "/data", Target: "/a"}}}})
	if err != nil {
		t.Fatal(err)
	}
	own, err := p.Resolve("a", Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/data", Target: "/a"}}}})
	if err != nil {
		t.Fatal(err)
	}
	own.Mounts = append(own.Mounts, own.WorkspaceMount("/var/lib/boxd/workspaces/a/s", "/var/lib/boxd/workspaces"))
	cases := []struct {
		roots []string
		r     Resolved
		ok    bool
	}{
		{[]string{"/srv/a", "/data"}, r, true},
		{[]string{"/srv", "/data"}, r, true},
		{[]string{"/srv/a/w", "/data"}, r, true}, // narrower than it was
		{[]string{"/data"}, r, false},
		{[]string{"/srv/a"}, r, false},
		{nil, r, false},
		{[]string{"/data"}, own, true},
		{nil, own, false},
		{nil, Resolved{}, true},
	}
	for i, c := range cases {
		got, err := newPolicy(t, Config{AllowedMountRoots: c.roots}).RecheckMounts("a", c.r)
		if c.ok != (err == nil) || (err != nil && !errors.Is(err, ErrDenied)) {
			t.Errorf("%d: roots %q: %v, want ok %v", i, c.roots, err, c.ok)
		}
		for j, m := range got.Mounts {
			if own := m.Target == engine.WorkspaceTarget && c.r.Workspace == ""; !own && !slices.Contains(c.roots, m.Within) {
				t.Errorf("%d: mount %d is held in %q, want one of %q", i, j, m.Within, c.roots)
			}
		}
	}
	if r.Mounts[0].Within != "/srv/a" {
		t.Errorf("it was changed: %+v", r.Mounts)
	}
	if _, err := p.RecheckMounts("none", r); !errors.Is(err, ErrDenied) {
		t.Errorf("another tenant: %v, want ErrDenied", err)
	}
}

// TestNoLinks: what may not be passed stays so, in a session from before a change of the
// configuration too, and the root is one that has all of it.
func TestNoLinks(t *testing.T) {
	asked := spec.MountWish{Source: "/srv/a/skills/ns/one", Target: "/one", NoLinks: "/srv/a/skills/ns"}
	p := newPolicy(t, Config{AllowedMountRoots: []string{"/srv/a", "/srv/a/skills/ns/one"}})
	m, _, err := p.MayMount("a", Resolved{Settings: spec.Settings{MountMode: "rw"}}, asked)
	if want := (engine.Mount{Source: asked.Source, Target: "/one", Within: "/srv/a", NoLinks: asked.NoLinks}); err != nil || m != want {
		t.Fatalf("%+v, %v, want %+v", m, err, want)
	}
	r, err := newPolicy(t, Config{AllowedMountRoots: []string{"/srv"}}).RecheckMounts("a", Resolved{Mounts: []engine.Mount{m}})
	if m.Within = "/srv"; err != nil || r.Mounts[0] != m {
		t.Errorf("%+v, %v, want %+v", r.Mounts, err, m)
	}
	_, err = newPolicy(t, Config{AllowedMountRoots: []string{asked.Source}}).RecheckMounts("a", r)
	if !errors.Is(err, ErrDenied) {
		t.Errorf("a root that has only a part of it: %v, want ErrDenied", err)
	}
	asked.NoLinks = "/srv/a/skills/other"
	if m, _, err := p.MayMount("a", Resolved{Settings: spec.Settings{MountMode: "rw"}}, asked); err == nil {
		t.Errorf("%+v is not in %s", m, asked.NoLinks)
	}
}

func FuzzMount(f *testing.F) {
	p, err := New(Config{AllowedMountRoots: []string{"/srv/a", "/data"}})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"/srv/a", "/srv/a/../b", "/data//x", "/data/\x00", "/srv/ab", "", "/", "data", "/data/./..//../etc"} {
		f.Add(s, "/mnt")
	}
	f.Fuzz(func(t *testing.T, source, target string) {
		m, d, err := p.MayMount("a", Resolved{Settings: spec.Settings{MountMode: "rw"}}, spec.MountWish{Source: source, Target: target})
		if d.Allowed != (err == nil) {
			t.Fatalf("decision %+v, error %v", d, err)
		}
		if err != nil {
			return
		}
		for part := range strings.SplitSeq(m.Source, "/") {
			if part == ".." {
				t.Errorf("source %q", m.Source)
			}
		}
		if m.Source != m.Within && !strings.HasPrefix(m.Source, m.Within+"/") || (m.Within != "/srv/a" && m.Within != "/data") {
			t.Errorf("%+v is not within a root", m)
		}
		if err := (engine.Spec{Mounts: []engine.Mount{m}}).Validate(); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	})
}

// TestSensitiveRoot: a source counts by its name, whose path passes no symlink where one could lead to
// what is sensitive.
func TestSensitiveRoot(t *testing.T) {
	p := newPolicy(t, Config{AllowedMountRoots: []string{"/data", "/data/own", "/else"}, SensitiveMountRoots: []string{"/data/secret"}})
	for _, c := range []struct{ source, sensitive, noLinks string }{
		{"/data/secret", "/data/secret", ""}, {"/data/secret/in", "/data/secret", ""}, {"/data", "/data/secret", ""},
		{"/data/secrets", "", "/data"}, {"/data/x", "", "/data"}, {"/data/own/x", "", ""}, {"/else/x", "", ""},
	} {
		m, _, err := p.MayMount("a", Resolved{Settings: spec.Settings{MountMode: "rw"}}, spec.MountWish{Source: c.source, Target: "/x"})
		if err != nil || m.NoLinks != c.noLinks || p.SensitiveRoot(m.Source) != c.sensitive {
			t.Errorf("%s: %+v, %q, %v", c.source, m, p.SensitiveRoot(m.Source), err)
		}
	}
	on := ptr(true)
	if _, err := New(Config{Profiles: map[string]ProfileConfig{"x": {Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Network: on, Sensitive: on}}}}}); err == nil {
		t.Error("a sensitive profile has a network")
	}
	p = newPolicy(t, Config{NetworkAvailable: true})
	if r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: "network_basic", LiveWishes: spec.LiveWishes{Sensitive: on}}}); err != nil || r.Network || !r.Sensitive {
		t.Errorf("%+v, %v", r.Settings, err)
	}
	if _, err := p.Resolve("a", Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Sensitive: on, Network: on}}}); !errors.Is(err, ErrDenied) {
		t.Error(err)
	}
	for profile, want := range map[string]bool{"default": true, "execution": false, "offline_readonly": false, "network_basic": true, "gone": false} {
		if err := p.MayHaveNetwork(Resolved{Profile: profile}); (err == nil) != want {
			t.Errorf("%s: %v", profile, err)
		}
	}
}
