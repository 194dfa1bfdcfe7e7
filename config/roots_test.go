package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

func TestMountRootsOfAllTenants(t *testing.T) {
	c := Default()
	none, some := []string{}, []string{"/srv/c", "/srv/a"}
	c.Policy.AllowedMountRoots = []string{"/srv/b", "/srv/a"}
	c.Policy.Tenants = map[string]policy.Tenant{"none": {AllowedMountRoots: &none}, "some": {AllowedMountRoots: &some}, "all": {}}
	if got := c.MountRoots(); !slices.Equal(got, []string{"/srv/a", "/srv/b", "/srv/c"}) || !slices.Equal(c.Policy.AllowedMountRoots, []string{"/srv/b", "/srv/a"}) {
		t.Errorf("%q of %q", got, c.Policy.AllowedMountRoots)
	}
}

// TestRootsOfOthers: root does not hand roots to the launcher that another user has written.
func TestRootsOfOthers(t *testing.T) {
	isRoot := os.Geteuid() == 0
	for _, c := range []struct {
		text    string
		mode    os.FileMode
		uid     int
		refused bool
	}{
		{"allowed_mount_roots: [/srv/a]", 0o644, 0, false},
		{"allowed_mount_roots: [/srv/a]", 0o664, 0, true},
		{"allowed_mount_roots: [/srv/a]", 0o646, 0, true},
		{"allowed_mount_roots: [/srv/a]", 0o600, 4242, true},
		{"tenants: {a: {allowed_mount_roots: [/srv/a]}}", 0o600, 4242, true},
		{"listen: 127.0.0.1:1", 0o666, 4242, false},
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		err := errors.Join(os.WriteFile(file, []byte(c.text), 0o600), os.Chmod(file, c.mode))
		if isRoot {
			err = errors.Join(err, os.Chown(file, c.uid, c.uid))
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = Load(file, nil)
		var field *engine.FieldError
		if refused := errors.As(err, &field); refused != (c.refused && isRoot) || err != nil && !refused {
			t.Errorf("%s of user %d, mode %o: %v", c.text, c.uid, c.mode, err)
		}
	}
}

// TestSensitiveRoots: a link must not lead to what is sensitive under another name.
func TestSensitiveRoots(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	data, link := filepath.Join(dir, "data"), filepath.Join(dir, "link")
	if err := errors.Join(os.MkdirAll(filepath.Join(data, "secret"), 0o755), os.Symlink("data", link)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		allowed, sensitive, field string
	}{
		{data, data + "/secret", ""},
		{data, dir, ""},
		{data, dir + "/absent", ""},
		{data, link + "/secret", "sensitive_mount_roots[0]"},
		{data, "relative", "sensitive_mount_roots[0]"},
		{data, "/etc", "sensitive_mount_roots[0]"},
		{link, data + "/secret", "allowed_mount_roots[0]"},
		{link, dir + "/other", ""},
	} {
		for _, tenant := range []bool{false, true} {
			config, field := Default(), c.field
			config.Policy.SensitiveMountRoots = []string{c.sensitive}
			if config.Policy.AllowedMountRoots = []string{c.allowed}; tenant {
				config.Policy.Tenants = map[string]policy.Tenant{"a": {AllowedMountRoots: &config.Policy.AllowedMountRoots}}
			}
			err := config.validatePolicy()
			bad, refused := errors.AsType[*engine.FieldError](err)
			if refused != (field != "") || refused && bad.Field != field || err != nil && !refused {
				t.Errorf("%s with %s sensitive: %v, want %q", c.allowed, c.sensitive, err, field)
			}
		}
	}
}
