package config

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

// documented finds the keys in the tables of docs/config.md: rows that start with
// "| `key` |".
var documented = regexp.MustCompile("(?m)^\\| `([a-z_.A-Z]+)` \\| (?:`([A-Z_]+)`|) *\\|")

func readDoc(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDocumented: docs/config.md has every key with its variable, and no other.
func TestDocumented(t *testing.T) {
	got := make(map[string]string)
	for _, m := range documented.FindAllStringSubmatch(readDoc(t), -1) {
		if _, twice := got[m[1]]; twice {
			t.Errorf("docs/config.md documents %q twice", m[1])
		}
		got[m[1]] = m[2]
	}
	for _, k := range keys() {
		env, ok := got[k.path]
		switch {
		case !ok:
			t.Errorf("docs/config.md does not document %q", k.path)
		case env != k.env:
			t.Errorf("docs/config.md gives %q the variable %q, want %q", k.path, env, k.env)
		}
		delete(got, k.path)
	}
	for key := range got {
		t.Errorf("docs/config.md documents %q, which does not exist", key)
	}
}

// TestLockedDocumented: docs/config.md names the settings that a profile can lock.
func TestLockedDocumented(t *testing.T) {
	if list := "`" + strings.Join(spec.Lockable(), "`, `") + "`"; !strings.Contains(readDoc(t), list) {
		t.Errorf("docs/config.md does not list %s", list)
	}
}

// TestExamples: what docs/config.md shows is a configuration.
func TestExamples(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readDoc(t), -1)
	if len(blocks) == 0 {
		t.Fatal("docs/config.md has no example")
	}
	for i, b := range blocks {
		c := Default()
		if err := parse("docs/config.md", []byte(b[1]), &c); err != nil {
			t.Errorf("example %d: %v", i, err)
			continue
		}
		if err := c.Validate(); err != nil {
			t.Errorf("example %d: %v", i, err)
		}
	}
}

func TestKeys(t *testing.T) {
	var paths, envs []string
	for _, k := range keys() {
		paths = append(paths, k.path)
		if k.env != "" {
			envs = append(envs, k.env)
		}
	}
	for _, want := range []string{"state_dir", "socket.path", "tls.client_ca", "allowed_mount_roots", "limits.cpus", "tenants.NAME.quotas.memory",
		"tenants.NAME.allowed_mount_roots", "profiles.NAME.caps.timeout", "profiles.NAME.locked", "default_profile"} {
		if !slices.Contains(paths, want) {
			t.Errorf("no key %q in %q", want, paths)
		}
	}
	for _, want := range []string{"BOXD_STATE_DIR", "BOXD_SOCKET", "BOXD_SOCKET_GROUP", "BOXD_INIT", "BOXD_TLS_CLIENT_CA", "BOXD_LIMITS_CPUS", "BOXD_ALLOWED_MOUNT_ROOTS"} {
		if !slices.Contains(envs, want) {
			t.Errorf("no variable %q in %q", want, envs)
		}
	}
	slices.Sort(paths)
	slices.Sort(envs)
	if n := len(slices.Compact(slices.Clone(paths))); n != len(paths) {
		t.Errorf("a key is there twice: %q", paths)
	}
	if n := len(slices.Compact(slices.Clone(envs))); n != len(envs) {
		t.Errorf("a variable is there twice: %q", envs)
	}
	for _, p := range paths {
		if p != strings.ReplaceAll(strings.ToLower(p), ".name", ".NAME") {
			t.Errorf("key %q is not in lower case", p)
		}
	}
}
