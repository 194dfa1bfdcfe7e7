package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

func TestPrograms(t *testing.T) {
	dir := stateDir(t)
	r := testBox(t, testHost(t, dir), dir, "a", options(testBase))
	for _, c := range []struct{ script, want string }{
		{"whoami", "root"},
		{"id -u; id -gn", "0\nroot"},
		{"hostname; cat /etc/hostname", "testbox\ntestbox"},
		{"getent passwd 1000", "user:x:1000:1000:user:" + HomeDir + ":/bin/sh"},
		{"getent group tty", "tty:x:5:"},
		// Not ahostsv4 and ahostsv6: AI_ADDRCONFIG does not count loopback.
		{"getent ahosts localhost | cut -d' ' -f1 | sort -u", "127.0.0.1\n::1"},
		{"getent hosts testbox >/dev/null && echo found", "found"},
		{"cd ~ && pwd && echo '#!/bin/sh\necho ran' >x && chmod +x x && ./x", HomeDir + "\nran"},
		{"df -P / /tmp ~ | wc -l", "4"},
		{"stat -c '%a %U %G' / /tmp ~ /dev/shm", "755 root root\n1777 root root\n755 root root\n1777 root root"},
		{"ls -l / | grep -c nobody", "4"}, // what is the host's: /usr, /etc, /dev, /proc
		{"cd /var/tmp && pwd -P", "/tmp"},
		{"test -e /sys/kernel -o -e /run/dbus -o -e /home/box/.ssh || echo none", "none"},
		{"ls / | tr '\\n' ' ' | grep -c ' proc root run '", "1"},
	} {
		if got := sh(t, r, testBase, c.script); got != c.want {
			t.Errorf("%s\ngives %q, want %q", c.script, got, c.want)
		}
	}
}

func TestPython(t *testing.T) {
	dir := stateDir(t)
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		testutil.RequireProgram(t, "no python3 in /usr/bin")
	}
	r := testBox(t, testHost(t, dir), dir, "a", options(testBase))
	script := `
import getpass, multiprocessing, os, pwd, ssl, tempfile
with multiprocessing.Pool(2) as pool:
    print(sum(pool.map(abs, range(-3, 3))), getpass.getuser(), pwd.getpwuid(65535).pw_name,
          os.path.expanduser("~"), tempfile.gettempdir(), len(ssl.create_default_context().get_ca_certs()) > 0)
`
	want := "9 root boxd " + HomeDir + " /tmp "
	if got := sh(t, r, testBase, "/usr/bin/python3 -c '"+script+"'"); !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q…", got, want)
	}
}

func TestUnprivilegedUser(t *testing.T) {
	dir := stateDir(t)
	o := options(testBase)
	o.UID, o.GID = 4242, 4243
	r := testBox(t, testHost(t, dir), dir, "a", o)
	out, err := command(r, testBase, "4242 4243", "/bin/sh", "-c", "whoami; id -gn; touch ~/x && stat -c %u ~/x").CombinedOutput()
	if want := "user4242\nuser4243\n4242\n"; err != nil || string(out) != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
}

func TestReadOnly(t *testing.T) {
	dir := stateDir(t)
	r := testBox(t, testHost(t, dir), dir, "a", options(testBase))
	for _, path := range []string{"/", "/usr", "/usr/bin", "/etc", "/etc/alternatives", "/dev", "/var", "/run", "/opt", "/.box", "/workspace"} {
		if out := fails(t, r, testBase, "touch "+path+"/x"); !strings.Contains(out, "Read-only file system") {
			t.Errorf("touch %s/x: %s", path, out)
		}
	}
	for _, script := range []string{
		"rm /etc/passwd", "rm -f /dev/null", "chmod 777 /", "mknod /tmp/null c 1 3", "mount -o remount,rw /", "mount -t tmpfs x /mnt",
		"umount /usr", "chown 1000 /dev/null", "echo x >/.box/passwd", "ls /lower-usr", "ls /root/../../upper-usr",
	} {
		fails(t, r, testBase, script)
	}
}

func TestDevices(t *testing.T) {
	dir := stateDir(t)
	r := testBox(t, testHost(t, dir), dir, "a", options(testBase))
	got := sh(t, r, testBase, `echo x >/dev/null; head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c; head -c 3 /dev/random | wc -c
cat </dev/null; /bin/echo x 2>&1 >/dev/full | grep -o 'No space.*'; echo y >/dev/stdout; echo z | cat /dev/fd/0; ls /dev/pts; ls /dev`)
	want := "3\n3\n3\nNo space left on device\ny\nz\nptmx\nfd\nfull\nmqueue\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// full returns the first volume without free blocks or without free inodes, or "".
func full(t *testing.T, r *Root) (path string, size int64) {
	t.Helper()
	for _, v := range r.Volumes() {
		st, err := linux.Fstatfs(v.File)
		if err != nil {
			t.Fatal(err)
		}
		if st.Bavail == 0 || st.Ffree == 0 {
			return v.Path, v.Size
		}
	}
	return "", 0
}

func TestVolumesTellWhenFull(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	h := testHost(t, dir)
	for i, c := range []struct{ script, path string }{
		{"true", ""},
		{"head -c 900000 /dev/zero >/tmp/x", ""},
		{"! head -c 2000000 /dev/zero >/tmp/x", "/tmp"},
		{"! head -c 2000000 /dev/zero >~/x", HomeDir},
		{"! head -c 2000000 /dev/zero >/dev/shm/x", "/dev/shm"},
		{"cd /tmp; i=0; while true >$i; do i=$((i+1)); done 2>/dev/null || true", "/tmp"}, // inodes
		{"cd /tmp; while mkdir x && cd x; do :; done 2>/dev/null || true", "/tmp"},
	} {
		r := testBox(t, h, dir, fmt.Sprint("box", i), options(testBase))
		sh(t, r, testBase, c.script)
		if err := r.Hide(); err != nil { // descriptors must do without the mounts
			t.Fatal(err)
		}
		path, size := full(t, r)
		if path != c.path || path != "" && size != 1<<20 {
			t.Errorf("%s: full is %q of %d bytes, want %q", c.script, path, size, c.path)
		}
	}
}

func TestPTY(t *testing.T) {
	dir := stateDir(t)
	h := testHost(t, dir)
	r := testBox(t, h, dir, "a", options(testBase))
	other := testBox(t, h, dir, "b", options(otherBase))
	cmd := command(r, testBase, "1000 1000", "/bin/sh", "-c", "tty; stty size; ls -l /dev/pts/0; exec </dev/pts/0 && echo opened")
	master, slave, err := r.OpenPTY(1000, 1000, 33, 101)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	cmd.Stdin, cmd.Stdout = slave, slave
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err = cmd.Run()
	slave.Close()
	var out strings.Builder
	buf := make([]byte, 4096)
	for n, e := master.Read(buf); e == nil; n, e = master.Read(buf) { // ends with EIO
		out.Write(buf[:n])
	}
	for _, want := range []string{"/dev/pts/0\r\n", "33 101\r\n", "crw--w---- 1 user user 136, 0", "opened"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q; %v %s", want, out.String(), err, stderr.String())
		}
	}
	if got := sh(t, other, otherBase, "ls /dev/pts"); got != "ptmx" {
		t.Errorf("another box sees terminals %q", got)
	}
}

// TestPTYAfterHide opens a terminal when only the box has the mounts.
func TestPTYAfterHide(t *testing.T) {
	dir := stateDir(t)
	r := testBox(t, testHost(t, dir), dir, "a", options(testBase))
	if err := r.Hide(); err != nil {
		t.Fatal(err)
	}
	master, slave, err := r.OpenPTY(0, 0, 24, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	st, err := linux.Fstat(slave)
	if err != nil || st.Uid != testBase || st.Gid != testBase || st.Mode&0o777 != 0o620 {
		t.Errorf("slave belongs to %d:%d, mode %o, %v", st.Uid, st.Gid, st.Mode, err)
	}
}

// TestPTYLimit: a box has a few terminals, whoever opens them, and the error says so.
// Terminals of other boxes do not count.
func TestPTYLimit(t *testing.T) {
	dir := stateDir(t)
	h := testHost(t, dir)
	r := testBox(t, h, dir, "a", options(testBase))
	other := testBox(t, h, dir, "b", options(otherBase))
	const inBox = 5
	cmd := command(r, testBase, "1000 1000", "/bin/sh", "-c", `for fd in 3 4 5 6 7; do eval "exec $fd<>/dev/ptmx"; done; echo open; read end`)
	stdout := testutil.StartChild(t, cmd)
	if _, err := stdout.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	for i := range MaxPTYs - inBox {
		master, slave, err := r.OpenPTY(0, 0, 24, 80)
		if err != nil {
			t.Fatalf("terminal %d: %v", inBox+i, err)
		}
		defer master.Close()
		defer slave.Close()
	}
	_, _, err := r.OpenPTY(0, 0, 24, 80)
	if !errors.Is(err, ErrNoTerminal) || !strings.Contains(err.Error(), "the box has 16 open") {
		t.Errorf("one more: %v", err)
	}
	master, slave, err := other.OpenPTY(0, 0, 24, 80)
	if err != nil {
		t.Fatalf("in another box: %v", err)
	}
	master.Close()
	slave.Close()
}

// TestPTYPool: boxes cannot take the host's last terminals. It changes a setting of the
// whole machine.
func TestPTYPool(t *testing.T) {
	dir := stateDir(t)
	if os.Getenv("BOXD_TEST_VM") == "" {
		return
	}
	const setting = "/proc/sys/kernel/pty/max"
	before, err := os.ReadFile(setting)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(setting, before, 0); err != nil {
			t.Error(err)
		}
	})
	p := readPool()
	if err := os.WriteFile(setting, []byte(fmt.Sprint(p.open+p.reserve+4)), 0); err != nil {
		t.Fatal(err)
	}
	h := testHost(t, dir)
	for i, name := range []string{"a", "b", "c", "d"} {
		r := testBox(t, h, dir, name, options(testBase))
		master, slave, err := r.OpenPTY(0, 0, 24, 80)
		if i < 3 {
			if err != nil {
				t.Fatal(err)
			}
			defer master.Close()
			defer slave.Close()
		} else if !errors.Is(err, ErrNoTerminal) || !strings.Contains(err.Error(), "the last 1024 are not for boxes") {
			t.Errorf("the last terminal but those of the host: %v", err)
		}
	}
	// The first mount namespace is that of the machine's first process.
	out, err := exec.Command("nsenter", "--mount=/proc/1/ns/mnt", "sh", "-c", "exec 3<>/dev/ptmx && echo opened").CombinedOutput()
	if string(out) != "opened\n" {
		t.Errorf("a terminal of the host: %q, %v", out, err)
	}
}

func TestPTYFault(t *testing.T) {
	for _, c := range []struct {
		pool ptyPool
		want string
	}{
		{ptyPool{open: 20, max: 4096, reserve: 1024}, "the box has 16 open, the most it may: close one"},
		{ptyPool{open: 3071, max: 4096, reserve: 1024}, "3071 are open on this host, and of kernel.pty.max, 4096, the last 1024 are not for boxes: close some, or raise that sysctl"},
		{ptyPool{}, "the box has 16 open, the most it may: close one"},
	} {
		if got := c.pool.fault(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.pool, got, c.want)
		}
	}
}

func TestBoxesAreApart(t *testing.T) {
	dir := stateDir(t)
	h := testHost(t, dir)
	a := testBox(t, h, dir, "a", options(testBase))
	b := testBox(t, h, dir, "b", options(otherBase))
	sh(t, a, testBase, "touch /tmp/x ~/x /dev/shm/x")
	if got := sh(t, b, otherBase, "ls /tmp ~ /dev/shm | grep -x x; grep -c "+dir+" /proc/self/mountinfo; true"); got != "0" {
		t.Errorf("box b sees %q", got)
	}
	if got := sh(t, a, testBase, "ls /tmp/x ~/x /dev/shm/x | wc -l"); got != "3" {
		t.Errorf("box a has %q of its 3 files", got)
	}
}

// TestSkeleton makes a mount point while the box sees a read-only root.
func TestSkeleton(t *testing.T) {
	dir := stateDir(t)
	r := testBox(t, testHost(t, dir), dir, "a", options(testBase))
	if err := linux.MkdirAt(r.Skeleton(), "data", 0o755); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, r, testBase, "ls -d /data"); got != "/data" {
		t.Error(got)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	root := "/"
	if _, small := writableHost(t, dir); small {
		root = copySystem(t)
	}
	before := mountTable(t)
	h, err := buildHost(filepath.Join(dir, "host2"), "", root, false)
	if err != nil {
		t.Fatal(err)
	}
	withHost := mountTable(t)
	for _, hide := range []bool{false, true} {
		for _, o := range []Options{options(testBase), writable(t, testBase)} {
			r, err := h.Build(filepath.Join(dir, "a"), o)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("writable %v: %d mounts in the launcher's namespace", o.Writable, len(mountTable(t))-len(withHost))
			if hide {
				if err := r.Hide(); err != nil {
					t.Error(err)
				}
			}
			for range 2 {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
			if after := mountTable(t); !slices.Equal(withHost, after) {
				t.Errorf("mounts left: %q, were %q", after, withHost)
			}
		}
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if after := mountTable(t); !slices.Equal(before, after) {
		t.Errorf("mounts left: %q, were %q", after, before)
	}
}

func TestBuildFailure(t *testing.T) {
	dir := stateDir(t)
	h := testHost(t, dir)
	before := mountTable(t)
	noMap, err := os.Open("/proc/thread-self/ns/net") // not a user namespace
	if err != nil {
		t.Fatal(err)
	}
	defer noMap.Close()
	for _, c := range []struct {
		name   string
		change func(*Options)
		text   string
	}{
		{"host ids", func(o *Options) { o.IDBase = 0 }, "id base 0"},
		{"user", func(o *Options) { o.UID = 65536 }, "user 65536:0"},
		{"hostname", func(o *Options) { o.Hostname = "a\n127.0.0.1 b" }, "hostname \"a\\n"},
		{"hostname with a comment", func(o *Options) { o.Hostname = "a#b" }, "hostname \"a#b\""},
		{"user name", func(o *Options) { o.UserName = "x:y" }, "user name \"x:y\""},
		{"tmp size", func(o *Options) { o.TmpSize = 1 }, "tmp size 1"},
		{"upper size", func(o *Options) { o.Writable = true }, "upper size 0"},
		{"no namespace", func(o *Options) { o.Writable, o.UpperSize = true, 1<<20 }, "user namespace"},
		{"wrong namespace", func(o *Options) { o.Writable, o.UpperSize, o.IDMapUserNS = true, 16<<20, noMap }, "mounting \"/usr\""},
		{"upper too small for /etc", func(o *Options) { o.Writable, o.UpperSize, o.IDMapUserNS = true, 64<<10, noMap }, "no space left"},
	} {
		o := options(testBase)
		c.change(&o)
		r, err := h.Build(filepath.Join(dir, "a"), o)
		if err == nil {
			r.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", c.name, err, c.text)
		}
		if after := mountTable(t); !slices.Equal(before, after) {
			t.Errorf("%s: mounts left: %q", c.name, after)
		}
		if _, err := os.Lstat(filepath.Join(dir, "a")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: directory left: %v", c.name, err)
		}
	}
}

// TestSymlinkIsNoMountPoint: an image has a symlink for /dev or /proc
// (CVE-2026-41579).
func TestSymlinkIsNoMountPoint(t *testing.T) {
	testutil.RequireRoot(t)
	image := t.TempDir()
	for _, err := range []error{os.Mkdir(image+"/real", 0o755), os.Symlink("/etc", image+"/dev"), os.Symlink("real", image+"/proc")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	m, err := linux.NewMount("tmpfs", attrDefault)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for path, want := range map[string]error{
		"dev": unix.ELOOP, "proc": unix.ELOOP, "dev/pts": unix.ELOOP, "real/../../x": unix.EXDEV, "/etc": unix.EXDEV,
	} {
		if err := attach(m, root, path); !errors.Is(err, want) {
			t.Errorf("attaching at %q: %v, want %v", path, err, want)
		}
	}
}

func TestProcPaths(t *testing.T) {
	for _, list := range [][]ProcPath{MaskedProc, ReadOnlyProc} {
		for i, path := range ProcPaths(list) {
			if !strings.HasPrefix(path, "/proc/") || filepath.Clean(path) != path || list[i].Reason == "" {
				t.Errorf("%+v", list[i])
			}
		}
	}
}
