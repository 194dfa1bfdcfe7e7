package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

// TestWalls: a request can ask for a better wall than its profile's, and never for a weaker one,
// neither by name nor by giving up what is required.
func TestWalls(t *testing.T) {
	p := newPolicy(t, Config{Engines: []string{"native", "oci"}, Profiles: map[string]ProfileConfig{
		"hard":   {Wishes: spec.Wishes{Isolation: ptr("gvisor")}},
		"soft":   {Wishes: spec.Wishes{Isolation: ptr("gvisor"), Require: ptr(false)}},
		"locked": {Wishes: spec.Wishes{Isolation: ptr("gvisor")}, Locked: &[]string{"isolation", "require", "engine"}},
	}})
	for _, c := range []struct {
		profile           string
		isolation, engine string
		require           *bool
		walls             string // of the session, best first; empty: refused
		field             string // that is refused
	}{
		{profile: "default", walls: "namespaces"},
		{profile: "default", require: ptr(false), walls: "namespaces"},
		{profile: "default", isolation: "gvisor", walls: "gvisor"},
		{profile: "default", isolation: "gvisor", require: ptr(false), walls: "gvisor namespaces"},
		{profile: "default", isolation: "gvisor", engine: "oci", walls: "gvisor"},
		{profile: "default", isolation: "gvisor", engine: "native", field: "isolation"},
		{profile: "default", engine: "containerd", field: "engine"},
		{profile: "hard", walls: "gvisor"},
		{profile: "hard", isolation: "gvisor", require: ptr(true), walls: "gvisor"},
		{profile: "hard", isolation: "namespaces", field: "isolation"},
		{profile: "hard", require: ptr(false), field: "require"},
		{profile: "hard", engine: "native", field: "isolation"},
		{profile: "soft", walls: "gvisor namespaces"},
		{profile: "soft", require: ptr(true), walls: "gvisor"},
		{profile: "soft", isolation: "namespaces", field: "isolation"},
		{profile: "locked", isolation: "namespaces", require: ptr(false), engine: "native", walls: "gvisor"},
	} {
		w := spec.Wishes{Profile: c.profile, Require: c.require}
		if c.isolation != "" {
			w.Isolation = &c.isolation
		}
		if c.engine != "" {
			w.Engine = &c.engine
		}
		r, err := p.Resolve("a", Request{Wishes: w})
		if c.field != "" {
			bad, ok := errors.AsType[*DeniedError](err)
			if !ok || bad.Field != c.field {
				t.Errorf("%+v: %v, want %s denied", c, err, c.field)
			}
			continue
		}
		if err != nil || strings.Join(r.Walls(), " ") != c.walls {
			t.Errorf("%+v: walls %q, %v", c, r.Walls(), err)
		}
	}
	for _, w := range []spec.Wishes{{Isolation: ptr("")}, {Isolation: ptr("vm")}, {Engine: ptr("docker")}} {
		_, err := p.Resolve("a", Request{Wishes: w})
		if _, ok := errors.AsType[*spec.FieldError](err); !ok {
			t.Errorf("%+v: %v, want a field error", w, err)
		}
	}
}

// TestEngineOrder: a profile has the daemon's engines or its own, and a session those of its profile as
// it is now.
func TestEngineOrder(t *testing.T) {
	if order, err := newPolicy(t, Config{}).Engines(Resolved{Profile: "default", Settings: spec.Settings{Isolation: "namespaces"}}); err != nil || !slices.Equal(order, []string{"native"}) {
		t.Errorf("without a configuration: %q, %v", order, err)
	}
	config := Config{Engines: []string{"containerd", "native", "oci"}, Profiles: map[string]ProfileConfig{
		"own":      {Engines: &[]string{"oci", "native"}},
		"extended": {Extends: "own"},
	}}
	p := newPolicy(t, config)
	var was Resolved
	for profile, want := range map[string]string{"default": "containerd native oci", "own": "oci native", "extended": "oci native"} {
		r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: profile}})
		if err != nil {
			t.Fatal(err)
		}
		if order, err := p.Engines(r); err != nil || strings.Join(order, " ") != want {
			t.Errorf("%s: %q, %v; want %s", profile, order, err, want)
		}
		if profile == "own" {
			was = r
		}
	}
	was.Engine = "oci"
	if order, err := p.Engines(was); err != nil || !slices.Equal(order, []string{"oci"}) {
		t.Errorf("asked for oci: %q, %v", order, err)
	}
	// The configuration changes: what the session asked for is refused, and a missing profile is the daemon's.
	later := newPolicy(t, Config{Engines: []string{"native"}, Profiles: map[string]ProfileConfig{"own": {}}})
	if _, err := later.Engines(was); !errors.Is(err, ErrDenied) {
		t.Errorf("oci is gone: %v, want a refusal", err)
	}
	was.Engine, was.Profile = "", "gone"
	if order, err := later.Engines(was); err != nil || !slices.Equal(order, []string{"native"}) {
		t.Errorf("the profile is gone: %q, %v", order, err)
	}
	stricter := newPolicy(t, Config{Engines: []string{"oci"}, Profiles: map[string]ProfileConfig{"own": {Wishes: spec.Wishes{Isolation: ptr("gvisor")}}}})
	was.Profile = "own"
	if _, err := stricter.Engines(was); !errors.Is(err, ErrDenied) {
		t.Errorf("the profile demands gvisor now: %v, want a refusal", err)
	}
}

func TestBadEngines(t *testing.T) {
	profile := func(c ProfileConfig) Config {
		return Config{Engines: []string{"native", "oci"}, Profiles: map[string]ProfileConfig{"p": c}}
	}
	for _, c := range []struct {
		config Config
		field  string
	}{
		{Config{Engines: []string{"native", "docker"}}, "engines[1]"},
		{Config{Engines: []string{"oci", "oci"}}, "engines[1]"},
		{profile(ProfileConfig{Engines: &[]string{}}), "profiles.p.engines"},
		{profile(ProfileConfig{Engines: &[]string{"x"}}), "profiles.p.engines[0]"},
		{profile(ProfileConfig{Engines: &[]string{"native", "containerd"}}), "profiles.p.engines[1]"},
		{profile(ProfileConfig{Wishes: spec.Wishes{Isolation: ptr("strong")}}), "profiles.p.isolation"},
		{profile(ProfileConfig{Wishes: spec.Wishes{Isolation: ptr("gvisor")}, Engines: &[]string{"native"}}), "profiles.p.isolation"},
		{profile(ProfileConfig{Wishes: spec.Wishes{Engine: ptr("containerd")}}), "profiles.p.engine"},
		{profile(ProfileConfig{Wishes: spec.Wishes{Engine: ptr("native")}, Engines: &[]string{"oci"}}), "profiles.p.engine"},
		{profile(ProfileConfig{Wishes: spec.Wishes{Engine: ptr("native"), Isolation: ptr("gvisor")}}), "profiles.p.engine"},
		{profile(ProfileConfig{Wishes: spec.Wishes{Engine: ptr("native"), Isolation: ptr("gvisor"), Require: ptr(false)}}), "profiles.p.engine"},
		{Config{Engines: []string{"native", "containerd"}, Profiles: map[string]ProfileConfig{"p": {Wishes: spec.Wishes{Isolation: ptr("gvisor")}}}}, "profiles.p.isolation"},
		{Config{Profiles: map[string]ProfileConfig{"default": {Wishes: spec.Wishes{Isolation: ptr("gvisor"), Require: ptr(false)}}}}, "profiles.default.isolation"},
	} {
		_, err := New(c.config)
		if bad, ok := errors.AsType[*spec.FieldError](err); !ok || bad.Field != c.field {
			t.Errorf("%+v: %v, want %s refused", c.config, err, c.field)
		}
	}
}
