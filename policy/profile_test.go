package policy

import (
	"errors"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

func TestProfileConfig(t *testing.T) {
	p := newPolicy(t, Config{NetworkAvailable: true, IdleTTL: seconds(42), Profiles: map[string]ProfileConfig{
		"default": {Caps: spec.CapWishes{Memory: ptr(spec.Size(8 << 30))}, Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(1 << 30))}}},
		"child":   {Extends: "parent", Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{PIDs: ptr(int64(9))}}},
		"parent":  {Extends: "network_extended", Locked: ptr([]string{"pids", "cpus", "pids"}), Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(3.0)}}},
		"plain":   {},
		"offline_readonly": {
			Extends: "network_basic", // no longer the built-in one
		},
	}})
	get := func(name string) Resolved {
		t.Helper()
		r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: name}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := get("default"); r.Spec().Limits.Memory != 1<<30 || r.Spec().Limits.CPUs != 1 || r.IdleTTL.D().Seconds() != 42 {
		t.Errorf("default: %+v", r)
	}
	if r := get("plain"); r.Spec().Limits.Memory != 1<<30 {
		t.Errorf("plain does not extend the changed default: %+v", r)
	}
	if r := get("child"); r.Spec().Limits.PIDs != 9 || r.Spec().Limits.CPUs != 3 || !r.Network || !r.Spec().WritableRoot || r.Profile != "child" {
		t.Errorf("child: %+v", r)
	}
	if r := get("offline_readonly"); !r.Network || r.WorkspaceMode != "rw" || r.Spec().Limits.Memory != 512<<20 {
		t.Errorf("offline_readonly: %+v", r)
	}
	if r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: "child", LiveWishes: spec.LiveWishes{CPUs: ptr(1.0)}}}); err != nil || r.Spec().Limits.CPUs != 3 || len(r.Overridden) != 1 {
		t.Errorf("inherited lock: %+v, %v", r, err)
	}
	list := p.Profiles()
	for _, profile := range list {
		if profile.Name == "parent" && strings.Join(profile.Locked, ",") != "cpus,pids" {
			t.Errorf("locked %q, want it sorted and without doubles", profile.Locked)
		}
		if len(profile.Locked) > 0 {
			profile.Locked[0] = "memory" // the list is the caller's
		}
	}
	for _, profile := range p.Profiles() {
		if len(profile.Locked) > 0 && profile.Locked[0] == "memory" {
			t.Error("Profiles shares memory with the policy")
		}
	}
}

func TestBadConfig(t *testing.T) {
	profile := func(c ProfileConfig) Config { return Config{Profiles: map[string]ProfileConfig{"p": c}} }
	cases := []struct {
		c           Config
		field, text string
	}{
		{profile(ProfileConfig{Extends: "no"}), "profiles.p.extends", "must be a profile"},
		{profile(ProfileConfig{Extends: "p"}), "profiles.p.extends", "back to itself"},
		{Config{Profiles: map[string]ProfileConfig{"a": {Extends: "b"}, "b": {Extends: "c"}, "c": {Extends: "a"}}}, "profiles.a.extends", "a → b → c → a"},
		{Config{Profiles: map[string]ProfileConfig{"a b": {}}}, "profiles", "a name must be"},
		{Config{Profiles: map[string]ProfileConfig{"": {}}}, "profiles", "a name must be"},
		{profile(ProfileConfig{Locked: ptr([]string{"env"})}), "profiles.p.locked", "must be one of auto_resume, cpus"},
		{profile(ProfileConfig{Wishes: spec.Wishes{WorkspaceMode: ptr("w")}}), "profiles.p.workspace_mode", `"rw"`},
		{profile(ProfileConfig{MountMode: ptr("")}), "profiles.p.mount_mode", `"rw"`},
		{profile(ProfileConfig{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(8.0)}}}), "profiles.p.cpus", "raise profiles.p.caps.cpus"},
		{profile(ProfileConfig{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(0.0)}}}), "profiles.p.cpus", "above 0"},
		{profile(ProfileConfig{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(1 << 40))}}}), "profiles.p.memory", "raise profiles.p.caps.memory"},
		{profile(ProfileConfig{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(1))}}}), "profiles.p.memory", "4 MiB"},
		{profile(ProfileConfig{Wishes: spec.Wishes{Timeout: ptr(seconds(121))}}), "profiles.p.timeout", "raise profiles.p.caps.timeout"},
		{profile(ProfileConfig{Wishes: spec.Wishes{Timeout: ptr(seconds(0))}}), "profiles.p.timeout", "above 0"},
		{profile(ProfileConfig{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: ptr(seconds(0.5))}}}), "profiles.p.idle_ttl", "1s"},
		{profile(ProfileConfig{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{MaxLifetime: ptr(seconds(-1))}}}), "profiles.p.max_lifetime", "at most"},
		{profile(ProfileConfig{OpenFiles: ptr(int64(-1))}), "profiles.p.open_files", "16"},
		{profile(ProfileConfig{OpenFiles: ptr(int64(0))}), "profiles.p.open_files", "above 0"},
		{profile(ProfileConfig{FileSize: ptr(spec.Size(-2))}), "profiles.p.file_size", ""},
		{profile(ProfileConfig{AllowNetwork: ptr(false), Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Network: ptr(true)}}}), "profiles.p.network", "allow_network"},
		{profile(ProfileConfig{AllowPersistent: ptr(false), Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}}), "profiles.p.persistent", "allow_persistent"},
		{profile(ProfileConfig{Wishes: spec.Wishes{WorkspaceSize: ptr(spec.Size(1))}}), "profiles.p.workspace_size", "must be 1 MiB"},
		{profile(ProfileConfig{Wishes: spec.Wishes{WorkspaceSize: ptr(spec.Size(-1))}}), "profiles.p.workspace_size", "0 for no hard limit"},
		{profile(ProfileConfig{Wishes: spec.Wishes{WorkspaceInodes: ptr(int64(1000))}}), "profiles.p.workspace_inodes", "needs a workspace_size"},
		{profile(ProfileConfig{Wishes: spec.Wishes{WorkspaceSize: ptr(spec.Size(1 << 30)), WorkspaceInodes: ptr(int64(1))}}), "profiles.p.workspace_inodes", "must be 16"},
		{profile(ProfileConfig{Caps: spec.CapWishes{WorkspaceSize: ptr(spec.Size(1 << 30))}}), "profiles.p.workspace_size", "0 (no hard limit): is above the cap 1 GiB"},
		{profile(ProfileConfig{Caps: spec.CapWishes{WorkspaceSize: ptr(spec.Size(0))}}), "profiles.p.caps.workspace_size", "-1 for none"},
		{profile(ProfileConfig{Wishes: spec.Wishes{WorkspaceMode: ptr("none"), WorkspaceSize: ptr(spec.Size(1 << 30))}}), "profiles.p.workspace_size", "must be 0"},
		{profile(ProfileConfig{Caps: spec.CapWishes{PIDs: ptr(int64(0))}}), "profiles.p.caps.pids", "-1 for none"},
		{profile(ProfileConfig{Caps: spec.CapWishes{Timeout: ptr(seconds(0))}}), "profiles.p.caps.timeout", "-1 for none"},
		{Config{DefaultProfile: "no"}, "default_profile", "unknown profile"},
		{Config{Tenants: map[string]Tenant{"../x": {}}}, "tenants.tenant", "must be 1 to 64"},
		{Config{Tenants: map[string]Tenant{"a": {Profiles: []string{"default", "no"}}}}, "tenants.a.profiles[1]", "unknown profile"},
		{Config{Tenants: map[string]Tenant{"a": {Quotas: Quotas{Memory: -2}}}}, "tenants.a.quotas.memory", "-1 for no limit"},
		{Config{TenantDefaults: Quotas{CPUs: -0.5}}, "tenant_defaults.cpus", "-1 for no limit"},
		{Config{Limits: Quotas{CPUs: 1e10}}, "limits.cpus", "-1 for no limit"},
		{Config{Limits: Quotas{Execs: -7}}, "limits.execs", "-1 for no limit"},
		{Config{AllowedMountRoots: []string{"/srv", "srv"}}, "allowed_mount_roots[1]", "absolute"},
		{Config{AllowedMountRoots: []string{""}}, "allowed_mount_roots[0]", "empty"},
		{Config{AllowedMountRoots: []string{"/srv/"}}, "allowed_mount_roots[0]", `must be written as "/srv"`},
		{Config{AllowedMountRoots: []string{"/srv/../etc"}}, "allowed_mount_roots[0]", `must be written as "/etc"`},
		{Config{AllowedMountRoots: []string{"/"}}, "allowed_mount_roots[0]", `is "/"`},
		{Config{AllowedMountRoots: []string{"/etc/x"}}, "allowed_mount_roots[0]", `lies in "/etc"`},
		{Config{AllowedMountRoots: []string{"/var"}}, "allowed_mount_roots[0]", `contains "/var/run"`},
		{Config{AllowedMountRoots: []string{"/srv"}, OwnDirs: []string{"/srv/boxd"}}, "allowed_mount_roots[0]", `contains "/srv/boxd"`},
		{Config{AllowedMountRoots: []string{"/srv/boxd/workspaces"}, OwnDirs: []string{"", "/srv/boxd"}}, "allowed_mount_roots[0]", `lies in "/srv/boxd"`},
		{Config{Tenants: map[string]Tenant{"a": {AllowedMountRoots: &[]string{"/proc"}}}}, "tenants.a.allowed_mount_roots[0]", `is "/proc"`},
	}
	for _, c := range cases {
		_, err := New(c.c)
		var bad *engine.FieldError
		if !errors.As(err, &bad) || bad.Field != c.field || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v:\n got %v\nwant %s: … %s", c.c, err, c.field, c.text)
		}
	}
	for _, root := range []string{"/etcetera", "/srv", "/home/a", "/runner", "/var/lib/x", "/srv/boxd2"} {
		if _, err := New(Config{AllowedMountRoots: []string{root}, OwnDirs: []string{"/srv/boxd/run"}}); (err == nil) == (root == "/srv") {
			t.Errorf("root %q: %v", root, err)
		}
	}
}
