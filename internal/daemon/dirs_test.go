package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCheckState(t *testing.T) {
	for _, path := range []string{"/run", "/run/boxd", "/etc/boxd", "/var/run/x", "/root/state"} {
		if err := checkState(path); err == nil || !strings.Contains(err.Error(), "nothing there is ever mounted") {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/var/lib/boxd", "/runner", "/srv/run", "/tmp/etc/x"} {
		if err := checkState(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestNested(t *testing.T) {
	for _, c := range []struct {
		state, runtime string
		nested         bool
	}{
		{"/srv/boxd", "/srv/boxd/run", true}, {"/var/lib/boxd", "/run/boxd", false}, {"/srv/boxd", "/srv/boxd-run", false}, {"/srv/boxd", "/srv", false},
	} {
		if got := (dirs{state: c.state, runtime: c.runtime}).nested(); got != c.nested {
			t.Errorf("%s, %s: %v", c.state, c.runtime, got)
		}
	}
}

// Members of the daemon's group get no access to its state directory.
func TestStateIsOneUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const uid, gid, other = 61234, 61235, 61236
	for _, nested := range []string{"state/run", "run"} {
		top := t.TempDir()
		if err := errors.Join(os.Chmod(top, 0o755), os.Chmod(filepath.Dir(top), 0o755)); err != nil {
			t.Fatal(err)
		}
		d := dirs{state: filepath.Join(top, "state"), runtime: filepath.Join(top, nested)}
		for range 2 {
			if err := d.prepare(account{uid: uid, gid: gid}); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(d.state, "volumes"), 0o700); err != nil {
			t.Fatal(err)
		}
		daemon := func(fn func() error) error { return asUser(account{uid: uid, gid: gid}, fn) }
		if err := daemon(func() error { return os.WriteFile(d.state+"/mine", []byte("1"), 0o640) }); err != nil {
			t.Errorf("the daemon: %v", err)
		}
		if err := daemon(func() error { return os.Rename(d.state+"/volumes", d.state+"/old") }); !errors.Is(err, os.ErrPermission) {
			t.Errorf("the daemon can move what is root's: %v", err)
		}
		for what, fn := range map[string]func() error{
			"make":   func() error { return os.WriteFile(d.state+"/theirs", nil, 0o600) },
			"list":   func() error { _, err := os.ReadDir(d.state); return err },
			"remove": func() error { return os.Remove(d.state + "/mine") },
		} {
			err := asUser(account{uid: other, gid: gid}, fn)
			if acl := hasACL(t, d.state); acl && !errors.Is(err, os.ErrPermission) {
				t.Errorf("%s: another user of the group can %s: %v", nested, what, err)
			}
		}
	}
}

// hasACL reports whether the file system of path has ACLs.
func hasACL(t *testing.T, path string) bool {
	_, err := unix.Getxattr(path, "system.posix_acl_access", nil)
	if err != nil && err != unix.EOPNOTSUPP {
		t.Error(err)
	}
	return err != unix.EOPNOTSUPP
}
