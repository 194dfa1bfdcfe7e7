package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/linux"
)

// Users of a box other than the session's enter and use a workspace that boxd keeps.
// Nobody else does, and all that they made goes with the session.
func TestOtherUsers(t *testing.T) {
	d := startDaemon(t)
	for _, size := range []string{"0", "8M"} {
		ask := func(user, line string) []string {
			return []string{"exec", "s", "-u", user, "--workspace-size", size, "--", "sh", "-c", line}
		}
		d.says(0, "", ask("0", "echo first > f; mkdir d")...)
		d.says(0, "/workspace 1000\nfirst\n", ask("1000", `echo "$PWD" $(id -u); cat f; echo second > g; mkdir -p -m 700 deep/er; echo x > deep/er/x; ln -s /etc/shadow link`)...)
		d.says(0, "1000 1000\n", ask("1000", "stat -c '%u %g' g")...)
		d.says(0, "0 0\n1000 1000\n", ask("65534:7", "echo third > h; stat -c '%u %g' f g")...)
		// A user's files are that user's: permission bits count as anywhere.
		for _, line := range []string{"echo y >> f", "touch d/y", "ls deep/er", "chmod 0777 g", "chown 1000 h"} {
			if got := d.run(ask("1001", line)...); got.status == 0 || !strings.Contains(got.stderr, "ermi") {
				t.Errorf("user 1001, %q: %v", line, got)
			}
		}
		d.says(0, "", ask("1000", "rm -r deep; mv f f2; mkdir -p closed/in; echo x > closed/in/x; chmod 0 closed/in; chmod 0 closed")...)
		if got := d.run("start", "s", "-u", "1000", "--id", "p", "--", "sh", "-c", "id -u > who; exec sleep 3600"); got.status != 0 {
			t.Errorf("start -u: %v", got)
		}
		d.says(0, "1000\n", ask("0", "until [ -s who ]; do sleep 0.01; done; cat who")...)

		if size == "0" {
			wantClosed(t, filepath.Join(d.dir, "workspaces"))
		}
		d.says(0, "", "sessions", "rm", "s")
		for _, pattern := range []string{"workspaces/default", "workspaces/.trash/*", "volumes/w-*"} {
			if left, err := filepath.Glob(filepath.Join(d.dir, pattern)); err != nil || len(left) > 0 {
				t.Errorf("size %s, left: %q, %v", size, left, err)
			}
		}
	}
}

// wantClosed: apart from the daemon's, no user of the host can enter anything below dir, whatever its own
// mode, and no ID on disk belongs to a user or to another box.
func wantClosed(t *testing.T, dir string) {
	t.Helper()
	workspace := filepath.Join(dir, "default", "s")
	if info, err := os.Lstat(workspace); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("the workspace: %v, %v", info, err)
	}
	for _, uid := range []uint32{1000, 65534, 0x7ffe0000, 0x7ffe0000 + 1000} {
		err := linux.AsOwner(uid, uid, func() error {
			for _, name := range []string{workspace, filepath.Join(workspace, "g")} {
				if f, err := os.Open(name); !errors.Is(err, fs.ErrPermission) {
					f.Close()
					t.Errorf("user %d opens %s: %v", uid, name, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
