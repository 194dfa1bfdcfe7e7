package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// A daemon that was started as root has its launcher keep volumes where the daemon itself
// can neither write nor put anything else.
func TestDaemonVolumes(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	d.says(0, "", "exec", "s", "--workspace-size", "8M", "--", "sh", "-c", "echo kept > file")
	volumes := filepath.Join(d.dir, "volumes")
	var st unix.Stat_t
	if err := unix.Lstat(volumes, &st); err != nil || st.Uid != 0 || st.Mode != unix.S_IFDIR|0o700 {
		t.Errorf("%s: owner %d, mode %o, %v", volumes, st.Uid, st.Mode, err)
	}
	uid, gid := servingUser(t)
	err := linux.AsOwner(uint32(uid), uint32(gid), func() error {
		for what, err := range map[string]error{
			"renamed": os.Rename(volumes, volumes+"-away"),
			"removed": os.Remove(volumes),
			"covered": os.Rename(d.dir+"/workspaces", volumes),
		} {
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the daemon's user has %s the directory of volumes: %v", what, err)
			}
		}
		if list, err := os.ReadDir(volumes); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("the daemon's user reads %v, %v", list, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, end := range []func(){d.kill, d.stop, d.kill} {
		full := d.run("exec", "s", "--", "sh", "-c", "head -c 64M /dev/zero > more")
		if full.status == 0 || !strings.Contains(full.stderr, "disk-quota") && !strings.Contains(full.stderr, "No space left") {
			t.Errorf("filling the workspace: %v", full)
		}
		d.says(0, "kept\n", "exec", "s", "--", "sh", "-c", "rm more; cat file")
		end()
		d.start()
	}
	d.says(0, "kept\n", "exec", "s", "--no-create", "--", "cat", "file")
	d.says(0, "", "sessions", "rm", "s")
	list, err := filepath.Glob(volumes + "/w-*")
	if err != nil || len(list) > 0 {
		t.Errorf("left of the volume: %q, %v", list, err)
	}
}
