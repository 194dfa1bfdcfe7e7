package policy

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// sized has profiles with hard limits of the workspace.
func sized(t *testing.T) *Policy {
	return newPolicy(t, Config{
		AllowedMountRoots: []string{"/srv/a"},
		Profiles: map[string]ProfileConfig{
			"sized":  {Caps: spec.CapWishes{WorkspaceSize: ptr(spec.Size(2 << 30))}, Wishes: spec.Wishes{WorkspaceSize: ptr(spec.Size(1 << 30)), WorkspaceInodes: ptr(int64(1000))}},
			"locked": {Locked: ptr([]string{"workspace_size", "workspace_inodes"}), Wishes: spec.Wishes{WorkspaceSize: ptr(spec.Size(1 << 30))}},
		},
	})
}

func TestWorkspaceSize(t *testing.T) {
	p := sized(t)
	size := func(n int64) *spec.Size { return ptr(spec.Size(n)) }
	for name, c := range map[string]struct {
		r            Request
		size, inodes int64
		overridden   string
	}{
		"nothing asked":               {Request{}, 0, 0, ""},
		"asked":                       {Request{Wishes: spec.Wishes{WorkspaceSize: size(5 << 20), WorkspaceInodes: ptr(int64(77))}}, 5 << 20, 77, ""},
		"as many inodes as can be":    {Request{Wishes: spec.Wishes{WorkspaceSize: size(1 << 20), WorkspaceInodes: ptr(int64(1024))}}, 1 << 20, 1024, ""},
		"inodes by the size":          {Request{Wishes: spec.Wishes{WorkspaceSize: size(5 << 20)}}, 5 << 20, 0, ""},
		"the profile's":               {Request{Wishes: spec.Wishes{Profile: "sized"}}, 1 << 30, 1000, ""},
		"up to the cap":               {Request{Wishes: spec.Wishes{Profile: "sized", WorkspaceSize: size(2 << 30)}}, 2 << 30, 1000, ""},
		"no workspace":                {Request{Wishes: spec.Wishes{Profile: "sized", WorkspaceMode: ptr("none")}}, 0, 0, ""},
		"own one that is read only":   {Request{Wishes: spec.Wishes{Profile: "sized", WorkspaceMode: ptr("ro")}}, 1 << 30, 1000, ""},
		"host's":                      {Request{Wishes: spec.Wishes{Profile: "sized", Workspace: "/srv/a"}}, 1 << 30, 1000, ""},
		"host's that is read only":    {Request{Wishes: spec.Wishes{Profile: "sized", Workspace: "/srv/a", WorkspaceMode: ptr("ro")}}, 0, 0, ""},
		"zero where nothing can grow": {Request{Wishes: spec.Wishes{Profile: "sized", WorkspaceMode: ptr("none"), WorkspaceSize: size(0)}}, 0, 0, ""},
		"locked":                      {Request{Wishes: spec.Wishes{Profile: "locked", WorkspaceSize: size(1 << 40), WorkspaceInodes: ptr(int64(-5))}}, 1 << 30, 0, "workspace_inodes workspace_size"},
		"locked, read only":           {Request{Wishes: spec.Wishes{Profile: "locked", WorkspaceSize: size(5), Workspace: "/srv/a", WorkspaceMode: ptr("ro")}}, 0, 0, "workspace_size"},
		"none where it is locked":     {Request{Wishes: spec.Wishes{Profile: "locked", WorkspaceSize: size(0)}}, 1 << 30, 0, "workspace_size"},
		"less than the profile's":     {Request{Wishes: spec.Wishes{Profile: "sized", WorkspaceSize: size(1 << 20), WorkspaceInodes: ptr(int64(0))}}, 1 << 20, 0, ""},
	} {
		r, err := p.Resolve("a", c.r)
		if err != nil || int64(r.WorkspaceSize) != c.size || r.WorkspaceInodes != c.inodes || strings.Join(r.Overridden, " ") != c.overridden {
			t.Errorf("%s: %d, %d, overridden %q, %v; want %d, %d, %q", name, r.WorkspaceSize, r.WorkspaceInodes, r.Overridden, err, c.size, c.inodes, c.overridden)
		}
	}
	for _, c := range []struct {
		r           Request
		field, text string
	}{
		{Request{Wishes: spec.Wishes{WorkspaceSize: size(1<<20 - 1)}}, "workspace_size", "must be 1 MiB to 4 TiB, or 0 for no hard limit"},
		{Request{Wishes: spec.Wishes{WorkspaceSize: size(-1)}}, "workspace_size", "must be 1 MiB"},
		{Request{Wishes: spec.Wishes{WorkspaceSize: size(1 << 62)}}, "workspace_size", "must be 1 MiB"},
		{Request{Wishes: spec.Wishes{WorkspaceSize: size(1 << 20), WorkspaceInodes: ptr(int64(15))}}, "workspace_inodes", "15: must be 16 to 1073741824"},
		{Request{Wishes: spec.Wishes{WorkspaceSize: size(1 << 20), WorkspaceInodes: ptr(int64(-1))}}, "workspace_inodes", "must be 16"},
		{Request{Wishes: spec.Wishes{WorkspaceSize: size(1 << 20), WorkspaceInodes: ptr(int64(1 << 32))}}, "workspace_inodes", "must be 16"},
		{Request{Wishes: spec.Wishes{WorkspaceSize: size(1 << 20), WorkspaceInodes: ptr(int64(1025))}}, "workspace_inodes", "1025: must be at most 1024, one for each KiB"},
		{Request{Wishes: spec.Wishes{WorkspaceInodes: ptr(int64(100))}}, "workspace_inodes", "100: needs a workspace_size"},
		{Request{Wishes: spec.Wishes{Profile: "sized", WorkspaceSize: size(2<<30 + 1)}}, "workspace_size", `is above the cap 2 GiB of profile "sized": ask for less, or raise profiles.sized.caps.workspace_size`},
		{Request{Wishes: spec.Wishes{Profile: "sized", WorkspaceSize: size(0)}}, "workspace_size", "0 (no hard limit): is above the cap 2 GiB"},
		{Request{Wishes: spec.Wishes{WorkspaceMode: ptr("none"), WorkspaceSize: size(1 << 20)}}, "workspace_size", `workspace_mode is "none"`},
		{Request{Wishes: spec.Wishes{Workspace: "/srv/a", WorkspaceMode: ptr("ro"), WorkspaceSize: size(1 << 20)}}, "workspace_size", `workspace_mode is "ro"`},
	} {
		_, err := p.Resolve("a", c.r)
		var bad *engine.FieldError
		if !errors.As(err, &bad) || bad.Field != c.field || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want %s: … %s", c.r, err, c.field, c.text)
		}
	}
}

func TestWorkspaceTarget(t *testing.T) {
	p := sized(t)
	r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Workspace: "/srv/a/w", WorkspaceTarget: "/data/deep", Mounts: []spec.MountWish{{Source: "/srv/a", Target: "/workspace"}}}})
	if err != nil || r.Target() != "/data/deep" {
		t.Fatalf("%+v, %v", r, err)
	}
	want := []engine.Mount{{Source: "/srv/a/w", Target: "/data/deep", Within: "/srv/a"}, {Source: "/srv/a", Target: "/workspace", Within: "/srv/a"}}
	if !reflect.DeepEqual(r.Mounts, want) {
		t.Errorf("mounts %+v, want %+v", r.Mounts, want)
	}
	// Nothing else may be where it is, at the creation and later.
	over := spec.MountWish{Source: "/srv/a", Target: "/data/deep"}
	if _, err := p.Resolve("a", Request{Wishes: spec.Wishes{WorkspaceTarget: "/data/deep", Mounts: []spec.MountWish{over}}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a mount in its place: %v", err)
	}
	if _, d, err := p.MayMount("a", r, over); err == nil || d.Allowed {
		t.Errorf("a live mount in its place: %+v, %v", d, err)
	}
	if _, _, err := p.MountsFor("a", r, []spec.MountWish{over}); err == nil {
		t.Error("live mounts in its place are allowed")
	}
	if m, _, err := p.MayMount("a", r, spec.MountWish{Source: "/srv/a", Target: "/workspace"}); err != nil || m.Target != "/workspace" {
		t.Errorf("/workspace is free here: %+v, %v", m, err)
	}
	// A record from before there was a choice.
	if got := (Resolved{}).Target(); got != "/workspace" {
		t.Errorf("target %q", got)
	}
	if _, _, err := p.MayMount("a", Resolved{Settings: spec.Settings{MountMode: "rw"}}, spec.MountWish{Source: "/srv/a", Target: "/workspace"}); err == nil {
		t.Error("a mount over the workspace of an old session is allowed")
	}
	for target, text := range map[string]string{
		"data": "absolute", "/": "root of the box", "/data/": `must be written as "/data"`, "/a/../b": `".."`, "/proc/x": "belongs to boxd",
		"/dev": "belongs to boxd", "/etc": "/etc itself", "/a\x00": "control characters", "/" + strings.Repeat("x", 300): "component",
	} {
		for _, host := range []string{"", "/srv/a"} {
			_, err := p.Resolve("a", Request{Wishes: spec.Wishes{WorkspaceTarget: target, Workspace: host}})
			var bad *engine.FieldError
			if !errors.As(err, &bad) || bad.Field != "workspace_target" || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v, want workspace_target: … %s", target, err, text)
			}
		}
	}
	if _, err := p.Resolve("a", Request{Wishes: spec.Wishes{WorkspaceTarget: "/data", WorkspaceMode: ptr("none")}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a target for nothing: %v", err)
	}
}

// TestVolumes: what the daemon itself mounts out of a volume needs no root, but obeys
// the modes of the profile.
func TestVolumes(t *testing.T) {
	p := sized(t)
	skill := spec.MountWish{Source: "/one", Target: "/skills/one", Volume: "skills-1"}
	r, err := p.Resolve("b", Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{skill}}})
	if err != nil || r.Mounts[0] != (engine.Mount{Source: "/one", Target: "/skills/one", Volume: "skills-1"}) {
		t.Fatalf("%+v, %v", r.Mounts, err)
	}
	if d := r.Decisions[0]; !d.Allowed || d.Details["volume"] != "skills-1" {
		t.Errorf("decision %+v", d)
	}
	r.Mounts = append(r.Mounts, r.VolumeMount("w-1"))
	none := newPolicy(t, Config{})
	if again, err := none.RecheckMounts("b", r); err != nil || !reflect.DeepEqual(again.Mounts, r.Mounts) {
		t.Errorf("checked again: %+v, %v", again.Mounts, err)
	}
	if m, _, err := p.MayMount("b", Resolved{Settings: spec.Settings{MountMode: "ro"}}, skill); err != nil || !m.ReadOnly {
		t.Errorf("mount_mode ro: %+v, %v", m, err)
	}
	if _, _, err := p.MayMount("b", Resolved{Settings: spec.Settings{MountMode: "none"}}, skill); !errors.Is(err, ErrDenied) {
		t.Errorf("mount_mode none: %v", err)
	}
	for _, bad := range []spec.MountWish{{Source: "/x", Target: "/y", Volume: "UP/../x"}, {Source: "x", Target: "/y", Volume: "v"}, {Source: "/x", Target: "/workspace", Volume: "v"}} {
		if _, d, err := p.MayMount("b", Resolved{Settings: spec.Settings{MountMode: "rw"}}, bad); err == nil || d.Allowed {
			t.Errorf("%+v is allowed", bad)
		}
	}
}

func TestMakeWorkspace(t *testing.T) {
	p := sized(t)
	if r, err := p.Resolve("a", Request{MakeWorkspace: true, Wishes: spec.Wishes{Workspace: "/srv/a/new"}}); err != nil || !r.MakeWorkspace {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := p.Resolve("a", Request{MakeWorkspace: true}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("nothing to make: %v", err)
	}
	if _, err := p.Resolve("a", Request{MakeWorkspace: true, Wishes: spec.Wishes{Workspace: "/srv/b"}}); !errors.Is(err, ErrDenied) {
		t.Errorf("outside of the roots: %v", err)
	}
}

// FuzzWorkspace: an allowed request gives a spec that the engine accepts, at the requested
// place and within bounds.
func FuzzWorkspace(f *testing.F) {
	p, err := New(Config{AllowedMountRoots: []string{"/srv/a"}, Profiles: map[string]ProfileConfig{
		"sized": {Caps: spec.CapWishes{WorkspaceSize: ptr(spec.Size(2 << 30))}, Wishes: spec.Wishes{WorkspaceSize: ptr(spec.Size(1 << 30))}},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("sized", "", "/workspace", "rw", int64(0), int64(0), uint8(0))
	f.Add("default", "/srv/a/x", "/a/../b", "ro", int64(1<<20), int64(1024), uint8(3))
	f.Add("sized", "/srv/a", "/etc", "none", int64(-1), int64(-1), uint8(7))
	f.Fuzz(func(t *testing.T, profile, source, target, mode string, size, inodes int64, given uint8) {
		r := Request{Wishes: spec.Wishes{Profile: profile, Workspace: source, WorkspaceTarget: target}}
		if given&1 != 0 {
			r.WorkspaceSize = ptr(spec.Size(size))
		}
		if given&2 != 0 {
			r.WorkspaceInodes = &inodes
		}
		if given&4 != 0 {
			r.WorkspaceMode = &mode
		}
		got, err := p.Resolve("a", r)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		if got.WorkspaceSize < 0 || got.WorkspaceSize > 0 && got.WorkspaceSize < engine.MinVolumeBytes || got.WorkspaceInodes > int64(got.WorkspaceSize)/1024 {
			t.Errorf("size %d, inodes %d", got.WorkspaceSize, got.WorkspaceInodes)
		}
		if profile == "sized" && got.WorkspaceMode == "rw" && (got.WorkspaceSize == 0 || got.WorkspaceSize > 2<<30) {
			t.Errorf("past the cap: %d", got.WorkspaceSize)
		}
		if got.WorkspaceSize > 0 {
			v := engine.Volume{Name: "v", Bytes: int64(got.WorkspaceSize), Inodes: got.WorkspaceInodes}
			if err := v.Validate(); err != nil {
				t.Errorf("%+v: %v", v, err)
			}
		}
		if source == "" && got.WorkspaceMode != spec.None {
			got.Mounts = append(got.Mounts, got.VolumeMount("v"))
		}
		if err := got.Spec().Validate(); err != nil || target != "" && got.Target() != target {
			t.Errorf("target %q: %+v, %v", target, got, err)
		}
	})
}
