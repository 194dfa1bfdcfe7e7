package rootfs

import (
	"fmt"
	"os"
	"testing"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// userNS returns a user namespace with the ids of the box at base.
func userNS(t testing.TB, base int) *os.File {
	t.Helper()
	ids := fmt.Sprintf("0 %d %d", base, boxIDs)
	ns, err := linux.NewUserNS(ids, ids)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func writable(t testing.TB, base int) Options {
	o := options(base)
	o.Writable, o.UpperSize, o.IDMapUserNS = true, 16<<20, userNS(t, base)
	return o
}

func TestWritableRoot(t *testing.T) {
	dir := stateDir(t)
	h := testHost(t, dir)
	r := testBox(t, h, dir, "a", writable(t, testBase))
	for _, c := range []struct{ script, want string }{
		{"stat -c '%U %G %a' / /usr /usr/bin /usr/bin/env /etc/passwd", "root root 755\nroot root 755\nroot root 755\nroot root 755\nroot root 644"},
		{"touch /usr/local/x /etc/x /opt/x /var/lib/x /x; stat -c %U /usr/local/x", "root"},
		{"rm /usr/bin/env; test -e /usr/bin/env || echo gone", "gone"},
		{"mv /usr/share/man /usr/share/man2 && test ! -e /usr/share/man -a -e /usr/share/man2/man1 && echo moved", "moved"},
		{"echo x:x:7:7::/:/bin/sh >>/etc/passwd; getent passwd 7", "x:x:7:7::/:/bin/sh"},
		{"chmod 700 /usr/bin/id; stat -c %a /usr/bin/id", "700"},
		{"mkdir -p /usr/local/lib/a/b && printf '#!/bin/sh\necho ran' >/usr/local/bin/t && chmod +x /usr/local/bin/t && t", "ran"},
		{"rm -r /usr/include; mkdir /usr/include; ls -A /usr/include", ""},
		{"ln -sf /bin/true /etc/alternatives/awk && readlink /etc/alternatives/awk", "/bin/true"},
	} {
		if got := sh(t, r, testBase, c.script); got != c.want {
			t.Errorf("%s\ngives %q, want %q", c.script, got, c.want)
		}
	}
	for _, script := range []string{"ls /upper-usr", "mknod /x1 c 1 3", "touch /dev/x", "mknod /usr/x1 c 1 3", "mount -t tmpfs x /mnt"} {
		fails(t, r, testBase, script)
	}
	b := testBox(t, h, dir, "b", writable(t, otherBase))
	if got := sh(t, b, otherBase, "ls /x /usr/local/x /etc/x 2>/dev/null; ls /usr/bin/env"); got != "/usr/bin/env" {
		t.Errorf("another box sees %q", got)
	}
	for path, want := range map[string]bool{"/usr/bin/env": true, "/usr/local/x": false, "/etc/x": false, "/x": false} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("host's %s: %v, want it there: %v", path, err, want)
		}
	}
}

// TestWritableBudget fills one tree of the root; the size is that of all.
func TestWritableBudget(t *testing.T) {
	dir := stateDir(t)
	h := testHost(t, dir)
	for i, script := range []string{
		"! head -c 20M /dev/zero >/usr/x && ! head -c 20K /dev/zero >/etc/y && ! head -c 20K /dev/zero >/y",
		"! cp -r /usr/bin /usr/bin2 2>/dev/null",
		"mkdir /usr/i; cd /usr/i; i=0; while true >$i; do i=$((i+1)); done 2>/dev/null || true",
	} {
		r := testBox(t, h, dir, fmt.Sprint("box", i), writable(t, testBase))
		sh(t, r, testBase, script)
		if path, size, full := r.Full(); path != "/" || size != 16<<20 || !full {
			t.Errorf("%s: Full() = %q, %d, %v", script, path, size, full)
		}
	}
}

func TestPipInstall(t *testing.T) {
	if _, err := os.Stat("/usr/bin/pip3"); err != nil {
		testutil.RequireProgram(t, "no pip3 in /usr/bin")
	}
	dir := stateDir(t)
	r := testBox(t, testHost(t, dir), dir, "a", writable(t, testBase))
	sh(t, r, testBase, `mkdir ~/p && cd ~/p && printf 'from setuptools import setup\nsetup(name="tiny", version="1", py_modules=["tiny"])' >setup.py && echo 'x = 42' >tiny.py
/usr/bin/python3 -m pip install --no-index --no-build-isolation --break-system-packages --no-cache-dir . >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
cd / && /usr/bin/python3 -c 'import tiny; assert tiny.x == 42 and tiny.__file__.startswith("/usr/"), tiny'`)
}
