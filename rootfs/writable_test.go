package rootfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// writableHost is a template whose /usr can be ID-mapped: that of the machine or, if that
// is, for example, an overlay, a small copy in /tmp.
func writableHost(t testing.TB, dir string) (h *Host, small bool) {
	t.Helper()
	h = testHost(t, dir)
	r, err := h.Build(filepath.Join(dir, "try"), writable(t, testBase))
	if err == nil {
		r.Close()
		return h, false
	}
	if !errors.Is(err, unix.EINVAL) {
		t.Fatal(err)
	}
	t.Logf("using a copy of the system: %v", err)
	h, err = buildHost(filepath.Join(dir, "copy"), "", copySystem(t), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h, true
}

// copySystem copies the programs that the tests use, and their libraries.
func copySystem(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	script := `set -e; cd "$1"; mkdir -p usr/bin usr/lib usr/lib64 usr/local/bin usr/share/man/man1 usr/include etc/alternatives
ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64; touch usr/include/x usr/share/man/man1/x etc/alternatives/awk
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do touch etc/alternatives/$i; done
cp -L /etc/ld.so.cache etc/
for p in sh stat touch rm mv mkdir chmod ls ln readlink printf cp head true cat getent mknod mount env id test; do
	cp -L "$(PATH=/usr/bin:/bin command -v /usr/bin/$p)" usr/bin/$p
	ldd usr/bin/$p | grep -o '/[^ ]*' | while read -r lib; do mkdir -p "./${lib%/*}"; cp -Ln "$lib" "./$lib"; done
done`
	if out, err := exec.Command("sh", "-c", script, "sh", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return root
}

// TestWritableNeedsIDMap: the host's /usr is on a file system that cannot be ID-mapped,
// here an overlay, as in a container.
func TestWritableNeedsIDMap(t *testing.T) {
	dir := stateDir(t)
	lower := fakeHost(t, nil)
	m, err := linux.NewMount("overlay", 0, linux.Option{Key: "lowerdir", Value: lower + ":" + t.TempDir()})
	testutil.RequireFeature(t, "overlayfs", err)
	defer m.Close()
	root := t.TempDir()
	if err := linux.MoveMount(m, nil, root); err != nil {
		t.Fatal(err)
	}
	defer linux.Unmount(root, unix.MNT_DETACH)
	h, err := buildHost(filepath.Join(dir, "host"), "", root, false)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r, err := h.Build(filepath.Join(dir, "a"), writable(t, testBase))
	if err == nil {
		r.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "file system of /") || !strings.Contains(err.Error(), "cannot be id-mapped") {
		t.Errorf("error %v", err)
	}
}

func TestWritableRoot(t *testing.T) {
	dir := stateDir(t)
	h, _ := writableHost(t, dir)
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

// TestWritableBudget fills one tree of the root; the size applies to all trees together.
func TestWritableBudget(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	h, _ := writableHost(t, dir)
	for i, script := range []string{
		"! head -c 20M /dev/zero >/usr/x && ! head -c 20K /dev/zero >/etc/y && ! head -c 20K /dev/zero >/y",
		"! while cp -r /usr/bin /usr/bin$((n=n+1)) 2>/dev/null; do :; done; ! head -c 17M /dev/zero >/usr/bin1/y",
		"mkdir /usr/i; cd /usr/i; i=0; while true >$i; do i=$((i+1)); done 2>/dev/null || true",
	} {
		r := testBox(t, h, dir, fmt.Sprint("box", i), writable(t, testBase))
		sh(t, r, testBase, script)
		if path, size := full(t, r); path != "/" || size != 16<<20 {
			t.Errorf("%s: full is %q of %d bytes", script, path, size)
		}
	}
}

func TestPipInstall(t *testing.T) {
	testutil.Long(t)
	if _, err := os.Stat("/usr/bin/pip3"); err != nil {
		testutil.RequireProgram(t, "no pip3 in /usr/bin")
	}
	dir := stateDir(t)
	h, small := writableHost(t, dir)
	if small {
		t.Skip("the copied system has no pip")
	}
	r := testBox(t, h, dir, "a", writable(t, testBase))
	sh(t, r, testBase, `mkdir ~/p && cd ~/p && printf 'from setuptools import setup\nsetup(name="tiny", version="1", py_modules=["tiny"])' >setup.py && echo 'x = 42' >tiny.py
/usr/bin/python3 -m pip install --no-index --no-build-isolation --break-system-packages --no-cache-dir . >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
cd / && /usr/bin/python3 -c 'import tiny; assert tiny.x == 42 and tiny.__file__.startswith("/usr/"), tiny'`)
}
