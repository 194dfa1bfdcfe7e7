package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

var (
	digest = "sha256:" + strings.Repeat("0f", 32)
	pinned = "docker.io/library/python@" + digest
)

func TestImagePatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, image string
		want           bool
	}{
		{"host", "host", true}, {"host", "docker.io/library/host:latest", false}, {"host", digest, false},
		{"*", "host", false}, {"*", pinned, true}, {"*", digest, true},
		{"python:3.12", "docker.io/library/python:3.12", true}, {"python:3.12", "docker.io/library/python:3.13", false},
		{"python:3.12", pinned, false}, {"python", "docker.io/library/python:latest", true}, {"python", "docker.io/library/python:3", false},
		{"python@" + digest, pinned, true}, {"python@" + digest, digest, false}, {digest, digest, true}, {digest, pinned, false},
		{"python:*", "docker.io/library/python:3.12", true}, {"python:*", pinned, true}, {"python:*", "docker.io/library/python3:1", false},
		{"python:*", "docker.io/library/python/x:1", false}, {"python:*", "ghcr.io/library/python:1", false}, {"python:*", digest, false},
		{"docker.io/*", pinned, true}, {"docker.io/*", "docker.io.evil.org/library/python:1", false}, {"docker.io/*", "host", false}, {"docker.io/*", digest, false},
		{"acme/*", "docker.io/acme/a:1", true}, {"acme/*", "docker.io/acme/a/b:1", true}, {"acme/*", "docker.io/acmetoo/a:1", false}, {"acme/*", "acme.org/a:1", false},
		{"ghcr.io/acme/*", "ghcr.io/acme/a:1", true}, {"ghcr.io/acme/*", "ghcr.io/acme:1", false}, {"localhost:5000/*", "localhost:5000/a:1", true},
	} {
		list := []string{"quay.io/x/y:z", c.pattern}
		if err := checkPatterns("images", list); err != nil {
			t.Errorf("%s: %v", c.pattern, err)
		}
		if got := matchesImage(list, c.image); got != c.want {
			t.Errorf("%s has %s: %v", c.pattern, c.image, got)
		}
	}
	for _, bad := range []string{"", "**", "py*", "*:*", "*/*", "python:*:*", "python:3:*", "Python:*", "/*", "a/**", "https://a/*", "python@sha256:*", "a b"} {
		if err := checkPatterns("images", []string{bad}); err == nil || !strings.HasPrefix(err.Error(), "images[0] ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestImages: what a request gets, by the rules of profile, tenant and all tenants.
func TestImages(t *testing.T) {
	list := func(s ...string) *[]string { return &s }
	profiles := map[string]ProfileConfig{
		"some":   {Images: list("host", "python:*")},
		"nohost": {Wishes: spec.Wishes{Image: ptr("python:3.12")}, Images: list("python:*"), Pull: ptr("missing")},
		"locked": {Wishes: spec.Wishes{Image: ptr("python:3.12")}, Locked: list("image")},
		"pinned": {ImageDigests: ptr(true)},
	}
	global := Config{Profiles: profiles, AllowedImages: []string{"host", "docker.io/library/*"},
		Tenants: map[string]Tenant{"none": {AllowedImages: list()}, "free": {AllowedImages: list("*", "host")}, "pins": {ImageDigests: true}}}
	open := Config{Profiles: profiles}
	for _, c := range []struct {
		config                 Config
		tenant, profile, image string
		want                   string // the image, or part of an error after "!"
	}{
		{open, "a", "", "", "host"},
		{open, "a", "", "host", "host"},
		{open, "a", "", "ghcr.io/x/y", "ghcr.io/x/y:latest"},
		{open, "a", "", digest, digest},
		{open, "a", "", "not an image", `!image "not an image": must be "host"`},
		{open, "a", "some", "", "host"},
		{open, "a", "some", "python:3", "docker.io/library/python:3"},
		{open, "a", "some", "node", `!image "docker.io/library/node:latest": profile "some" may have ["host" "docker.io/library/python:*"]`},
		{open, "a", "some", digest, "!profile \"some\" may have"},
		{open, "a", "nohost", "", "docker.io/library/python:3.12"},
		{open, "a", "nohost", "host", "!profiles.nohost.images"},
		{open, "a", "locked", "node", "docker.io/library/python:3.12"},
		{open, "a", "pinned", "", "host"},
		{open, "a", "pinned", "python:3", "!needs a digest"},
		{open, "a", "pinned", "python:3@" + digest, pinned},
		{open, "a", "pinned", digest, digest},
		{global, "a", "", "host", "host"},
		{global, "a", "", "node", "docker.io/library/node:latest"},
		{global, "a", "", "ghcr.io/x/y", `!tenant "a" may have`},
		{global, "a", "some", "node", "!profiles.some.images"},
		{global, "none", "", "", "!tenants.none.allowed_images"},
		{global, "none", "", "python", "!tenants.none.allowed_images"},
		{global, "free", "", "ghcr.io/x/y", "ghcr.io/x/y:latest"},
		{global, "free", "some", "ghcr.io/x/y", "!profiles.some.images"},
		{global, "pins", "", "python", `!tenant "pins" needs a digest`},
		{global, "pins", "", "python@" + digest, pinned},
	} {
		p := newPolicy(t, c.config)
		r := Request{Wishes: spec.Wishes{Profile: c.profile, Image: &c.image}}
		got, err := p.Resolve(c.tenant, r)
		rule, denied := strings.CutPrefix(c.want, "!")
		switch {
		case denied && (err == nil || !strings.Contains(err.Error(), rule)):
			t.Errorf("%+v: %q, %v", c, got.Image, err)
		case !denied && (err != nil || got.Image != c.want):
			t.Errorf("%+v: %q, %v", c, got.Image, err)
		case denied && c.image != "not an image" && !errors.Is(err, ErrDenied):
			t.Errorf("%+v: %v is no ErrDenied", c, err)
		}
		if err == nil {
			if err := p.RecheckImage(c.tenant, got); err != nil {
				t.Errorf("%+v: again: %v", c, err)
			}
			if overridden := slices.Contains(got.Overridden, "image"); overridden != (c.profile == "locked") {
				t.Errorf("%+v: overridden: %v", c, overridden)
			}
		} else if denied && c.image != "not an image" { // a change of a session that has it is not asked
			r.HasImage = true
			if _, err := p.Resolve(c.tenant, r); err != nil {
				t.Errorf("%+v: a change of the session: %v", c, err)
			}
		}
	}
}

func TestCheckImage(t *testing.T) {
	p := newPolicy(t, Config{AllowedImages: []string{"python:*"}, Tenants: map[string]Tenant{"pins": {ImageDigests: true}}})
	for _, c := range []struct {
		tenant, image string
		want          error
	}{
		{"a", "python", nil}, {"a", "node", ErrDenied}, {"a", digest, ErrDenied}, {"a", "host", ErrDenied}, {"a", "?", spec.ErrInvalid}, {"", "?", spec.ErrInvalid},
		{"", "node", nil}, {"pins", "python", ErrDenied}, {"pins", pinned, nil},
	} {
		if err := p.CheckImage(c.tenant, c.image); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestCheckPull: without a list of images, a tenant's pulls could ask any host.
func TestCheckPull(t *testing.T) {
	listed := []string{"*"}
	for _, c := range []struct {
		name   string
		config Config
		tenant string
		want   error
	}{
		{"no list", Config{}, "a", ErrDenied},
		{"no list, all tenants", Config{}, "", nil},
		{"a list", Config{AllowedImages: listed}, "a", nil},
		{"another list", Config{AllowedImages: []string{"node"}}, "a", ErrDenied},
		{"the tenant's", Config{Tenants: map[string]Tenant{"a": {AllowedImages: &listed}}}, "a", nil},
		{"another tenant's", Config{Tenants: map[string]Tenant{"b": {AllowedImages: &listed}}}, "a", ErrDenied},
	} {
		err := newPolicy(t, c.config).CheckPull(c.tenant, "169.254.169.254/x")
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || c.want != nil && !strings.Contains(err.Error(), "allowed_images") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := newPolicy(t, Config{}).CheckImage("a", "169.254.169.254/x"); err != nil {
		t.Errorf("an import: %v", err)
	}
}

func TestRecheckImage(t *testing.T) {
	r, err := newPolicy(t, Config{Profiles: map[string]ProfileConfig{"p": {}}}).Resolve("a", Request{Wishes: spec.Wishes{Profile: "p", Image: ptr("node")}})
	if err != nil {
		t.Fatal(err)
	}
	images := []string{"host"}
	for name, c := range map[string]Config{
		"tenant":          {Profiles: map[string]ProfileConfig{"p": {}}, AllowedImages: images},
		"profile":         {Profiles: map[string]ProfileConfig{"p": {Images: &images}}},
		"profile is gone": {Profiles: map[string]ProfileConfig{"default": {Images: &images}}},
	} {
		if err := newPolicy(t, c).RecheckImage("a", r); !errors.Is(err, ErrDenied) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPull(t *testing.T) {
	images := []string{"host", "*"}
	p := newPolicy(t, Config{Profiles: map[string]ProfileConfig{"p": {Images: &images, Pull: ptr("always")}}})
	for _, c := range []struct {
		profile string
		never   bool
		want    string
	}{{"", false, "never"}, {"p", false, "always"}, {"p", true, "never"}} {
		r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: c.profile}, NeverPull: c.never})
		if err != nil || r.Pull != c.want {
			t.Errorf("%+v: %q, %v", c, r.Pull, err)
		}
	}
	if images[1] != "*" {
		t.Error("the configuration was changed")
	}
	for want, c := range map[string]ProfileConfig{
		"profiles.p.pull":      {Pull: ptr("sometimes")},
		"profiles.p.pull ":     {Pull: ptr("missing")}, // without images
		"profiles.p.image":     {Wishes: spec.Wishes{Image: ptr("A B")}},
		"profiles.p.image ":    {Images: ptr([]string{"node"})}, // the default is host
		"profiles.p.image  ":   {Wishes: spec.Wishes{Image: ptr("node")}, Images: ptr([]string{"host"})},
		"profiles.p.image   ":  {Wishes: spec.Wishes{Image: ptr("node")}, ImageDigests: ptr(true)},
		"profiles.p.images[1]": {Images: ptr([]string{"host", "no*"})},
	} {
		var bad *spec.FieldError
		if _, err := New(Config{Profiles: map[string]ProfileConfig{"p": c}}); !errors.As(err, &bad) || bad.Field != strings.TrimSpace(want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for want, c := range map[string]Config{
		"allowed_images[0]":           {AllowedImages: []string{"?"}},
		"tenants.t.allowed_images[0]": {Tenants: map[string]Tenant{"t": {AllowedImages: &[]string{"?"}}}},
	} {
		var bad *spec.FieldError
		if _, err := New(c); !errors.As(err, &bad) || bad.Field != want {
			t.Errorf("%s: %v", want, err)
		}
	}
}
