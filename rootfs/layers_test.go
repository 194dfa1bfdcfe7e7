package rootfs

import (
	"cmp"
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
	"github.com/boxd/boxd/mounts"
)

// diskBase is the host ID on disk of a box's user 0 in the layers of the tests.
const diskBase = 0x7ffe0000

// own gives everything in dir to the user of a box with the same ID.
func own(t testing.TB, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		return unix.Lchown(path, diskBase+int(st.Uid), diskBase+int(st.Gid))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// layer makes a layer with a script.
func layer(t testing.TB, script string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("sh", "-ec", "umask 022; cd \"$1\"; chmod 755 .\n"+script, "sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v: %s", script, err, out)
	}
	own(t, dir)
	return dir
}

// systemLayer has the programs that sh needs.
func systemLayer(t testing.TB) string {
	t.Helper()
	dir := copySystem(t)
	own(t, dir)
	return dir
}

func makeOpaque(t testing.TB, dir string) {
	t.Helper()
	if err := unix.Setxattr(dir, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		t.Fatal(err)
	}
}

// ofLayers are the options of a root of layers, lowest first.
func ofLayers(t testing.TB, base int, dirs ...string) Options {
	t.Helper()
	o := options(base)
	for _, dir := range dirs {
		f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		o.Layers = append(o.Layers, f)
	}
	ids := fmt.Sprintf("%d %d %d", diskBase, base, boxIDs)
	ns, err := linux.NewUserNS(ids, ids)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	o.IDMapUserNS = ns
	return o
}

// eachWay runs a test with layers by descriptor, if the kernel can do that, and by name.
func eachWay(t *testing.T, test func(t *testing.T, dir string, h *Host)) {
	for _, byName := range []bool{false, true} {
		t.Run(fmt.Sprintf("byName=%v", byName), func(t *testing.T) {
			dir := stateDir(t)
			h := testHost(t, dir)
			h.byName.Store(byName)
			test(t, dir, h)
		})
	}
}

func read(t testing.TB, r *Root, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.Path(), name))
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(text))
}

func TestLayersMerge(t *testing.T) {
	low := layer(t, `mkdir -p d/sub o gone etc home/u workspace var/lib/pg; echo low >d/x; echo low >d/y; echo low >d/sub/z; echo hidden >o/h; echo 1 >gone/1
echo low >kind; echo root:x:0:0::/var/lib/pg:/bin/sh >etc/passwd; echo image >etc/hosts; echo image >etc/own; echo u >home/u/f
chown 70:71 workspace; chmod 1770 workspace; chown 999 var/lib/pg; echo secret >etc/shadow; chmod 600 etc/shadow`)
	high := layer(t, `mkdir -p d o kind; mknod d/x c 0 0; mknod gone c 0 0; echo high >d/y; echo high >o/n; echo high >kind/f; ln -s /etc/shadow link`)
	makeOpaque(t, high+"/o")
	system := systemLayer(t)
	eachWay(t, func(t *testing.T, dir string, h *Host) {
		r := testBox(t, h, dir, "a", ofLayers(t, testBase, system, low, high))
		for _, c := range []struct{ script, want string }{
			{"ls d o gone kind 2>/dev/null || true", "d:\nsub\ny\n\nkind:\nf\n\no:\nn"},
			{"cat d/y d/sub/z home/u/f etc/own", "high\nlow\nu\nimage"},
			{"cat etc/passwd etc/hostname etc/shadow", "root:x:0:0::/var/lib/pg:/bin/sh\ntestbox\nsecret"},
			{"cat link; head -c 9 etc/hosts; stat -c '%u %a' etc/shadow", "secret\n127.0.0.10 600"},
			{"stat -c '%u:%g %a' workspace var/lib/pg etc / tmp proc", "70:71 1770\n999:0 755\n0:0 755\n0:0 755\n0:0 1777\n65534:65534 555"},
			{"touch tmp/x home/box/x dev/shm/x && echo written", "written"},
			{"for p in / d etc home workspace dev sys run; do touch $p/n 2>/dev/null && echo wrote $p; done; echo no", "no"},
			{"head -c 3 /dev/zero >/dev/null; readlink /dev/fd", "/proc/self/fd"},
		} {
			if got := sh(t, r, testBase, "cd /; "+c.script); got != c.want {
				t.Errorf("%s\ngives %q, want %q", c.script, got, c.want)
			}
		}
		for _, script := range []string{"rm /etc/own", "chmod 777 /", "mount -t tmpfs x /mnt", "ls /dev/.host", "cat /../upper/etc/hosts", "mknod /tmp/w c 0 1"} {
			fails(t, r, testBase, script)
		}
		// The box does not learn where the host keeps layers.
		for line := range strings.Lines(sh(t, r, testBase, "cat /proc/self/mountinfo")) {
			if strings.Contains(line, "overlay") && (strings.Contains(line, system) || strings.Contains(line, dir)) {
				t.Errorf("the box sees %s", line)
			}
		}
	})
}

// TestLayersOwners: files belong to the same users in each box, and files of the host's users
// to no one.
func TestLayersOwners(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	h := testHost(t, dir)
	system := systemLayer(t)
	l := layer(t, "for i in 0 1000 65535; do echo $i >f$i; chown $i:$i f$i; done; echo x >host; chmod 600 host; echo x >above; chmod 600 above")
	for name, id := range map[string]int{"host": 0, "above": diskBase + boxIDs} {
		if err := os.Lchown(filepath.Join(l, name), id, id); err != nil {
			t.Fatal(err)
		}
	}
	for i, base := range []int{testBase, otherBase} {
		o := ofLayers(t, base, system, l)
		o.Writable, o.UpperSize = i > 0, 1<<20
		r := testBox(t, h, dir, fmt.Sprint("box", i), o)
		want := "0:0\n1000:1000\n65535:65535\n65534:65534\n65534:65534"
		if got := sh(t, r, base, "stat -c %u:%g /f0 /f1000 /f65535 /host /above"); got != want {
			t.Errorf("owners %q", got)
		}
		for _, script := range []string{"cat /host", "cat /above", "echo y >/host", "chmod 644 /host"} {
			fails(t, r, base, script)
		}
		if i > 0 {
			sh(t, r, base, "echo changed >/f1000; rm /f0; mv /usr/share /usr/share2")
		}
	}
	if text, err := os.ReadFile(l + "/f1000"); err != nil || string(text) != "1000\n" {
		t.Errorf("the layer changed: %q, %v", text, err)
	}
	if _, err := os.Stat(l + "/f0"); err != nil {
		t.Errorf("the layer changed: %v", err)
	}
}

// TestLayersMany: as many layers as overlayfs takes, and one more.
func TestLayersMany(t *testing.T) {
	top := t.TempDir()
	var dirs []string
	for i := range MaxLayers + 1 {
		dir := filepath.Join(top, fmt.Sprint(i))
		if err := os.MkdirAll(dir+"/all", 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"newest": fmt.Sprint(i), fmt.Sprintf("all/%d", i): ""} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		dirs = append(dirs, dir)
	}
	eachWay(t, func(t *testing.T, dir string, h *Host) {
		for _, n := range []int{1, 100, MaxLayers} {
			r := testBox(t, h, dir, fmt.Sprint("box", n), ofLayers(t, testBase, dirs[:n]...))
			names, err := os.ReadDir(filepath.Join(r.Path(), "all"))
			if newest := read(t, r, "newest"); err != nil || len(names) != n || newest != fmt.Sprint(n-1) {
				t.Errorf("%d layers: %d files, the newest is of %s, %v", n, len(names), newest, err)
			}
		}
		if _, err := h.Build(filepath.Join(dir, "more"), ofLayers(t, testBase, dirs...)); err == nil || !strings.Contains(err.Error(), "at most 500") {
			t.Errorf("one more: %v", err)
		}
	})
}

// hostile are entries that take the place of something that boxd needs. $p is its path.
var hostile = []struct{ name, script string }{
	{"absolute link", `ln -s /outside "$p"`},
	{"link above", `ln -s ../../../../../../outside "$p"`},
	{"link to itself", `ln -s "${p##*/}" "$p"`},
	{"magic link", `ln -s /proc/self/root "$p"`},
	{"file", `echo image >"$p"`},
	{"fifo", `mkfifo "$p"`},
	{"directory", `mkdir -p "$p/a/b"; echo image >"$p/a/b/c"`},
	{"closed directory", `mkdir -p "$p"; chmod 0 "$p"`},
	{"missing", ``},
	{"whiteout", `mknod "$p" c 0 0`},
}

// TestLayersHostile: whatever an image has in place of what boxd needs, the root gets it, and
// nothing outside of the root changes.
func TestLayersHostile(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	h := testHost(t, dir)
	paths := []string{"dev", "proc", "sys", "sys/devices", processorsTarget, "tmp", "etc", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/ssh", "etc/ssh/ssh_config.d", "etc/ssh/ssh_config.d/boxd.conf", "etc/ssh/boxd-proxy", "home", "home/box", "workspace"}
	good := layer(t, "mkdir -p etc home/box workspace sys dev; echo good >etc/hosts; echo good >home/f")
	for _, kind := range hostile {
		// A layer for each path, and one with all paths at the top.
		all := layer(t, fmt.Sprintf(`mkdir all; for p in %s; do mkdir -p "${p##*/}"; cd "${p##*/}"; case $p in */*) mkdir -p "${p%%/*}";; esac
			%s; cd ..; case $p in */*) continue;; esac; cd all; %[2]s; cd ..; done`, strings.Join(paths, " "), cmp.Or(kind.script, "true")))
		check := func(name string, writable bool, layers ...string) {
			t.Helper()
			o := ofLayers(t, testBase, layers...)
			o.Writable, o.UpperSize = writable, 1<<20
			r, err := h.Build(filepath.Join(dir, "box"), o)
			if err != nil {
				t.Errorf("%s in place of %s: %v", kind.name, name, err)
				return
			}
			checkFurnished(t, kind.name+" in place of "+name, r, writable)
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		for i, path := range paths {
			check(path, i%2 == 0, good, filepath.Join(all, filepath.Base(path)))
		}
		check("everything", true, filepath.Join(all, "all"))
		check("everything, with a layer above", false, filepath.Join(all, "all"), good)
		if _, err := os.Lstat("/outside"); err == nil {
			t.Fatalf("%s: /outside was made on the host", kind.name)
		}
	}
}

// checkFurnished checks that a root has what boxd needs.
func checkFurnished(t *testing.T, what string, r *Root, writable bool) {
	t.Helper()
	for _, d := range boxdDirs {
		f, err := openDir(r.Skeleton(), d.path)
		if err != nil {
			t.Errorf("%s: %q: %v", what, d.path, err)
			continue
		}
		st, err := linux.Fstat(f)
		if err != nil || st.Uid != testBase || !d.keeps && st.Mode&0o7777 != d.mode {
			t.Errorf("%s: %q: owner %d, mode %o, %v", what, d.path, st.Uid, st.Mode, err)
		}
		f.Close()
	}
	for name, want := range map[string]string{"etc/hostname": "testbox\n", "etc/hosts": string(hosts("testbox")), "etc/resolv.conf": genericEtc["resolv.conf"], "etc/ssh/ssh_config.d/boxd.conf": sshConfig} {
		f, err := linux.Openat2(r.Skeleton(), name, unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
		if err != nil {
			t.Errorf("%s: %s: %v", what, name, err)
			continue
		}
		text := make([]byte, 1000)
		n, err := f.Read(text)
		f.Close()
		if got := string(text[:n]); err != nil || got != want {
			t.Errorf("%s: %s: %q, %v", what, name, got, err)
		}
	}
	if err := unix.Mkdir(filepath.Join(r.Path(), "home/new"), 0o755); (err == nil) != writable || !writable && err != unix.EROFS {
		t.Errorf("%s: making a directory in the root: %v", what, err)
	}
}

// TestLayersMountPoints: mount points are made in the skeleton, and a symlink of the image never
// leads out.
func TestLayersMountPoints(t *testing.T) {
	dir := stateDir(t)
	h := testHost(t, dir)
	l := layer(t, "mkdir -p real/sub; echo x >file; ln -s /outside abs; ln -s ../../../../outside up; ln -s real in; ln -s loop loop; mkfifo fifo")
	r := testBox(t, h, dir, "a", ofLayers(t, testBase, l))
	for _, c := range []struct {
		target, want string
		dir          bool
	}{
		{"/data", "", true}, {"/real/sub/deep/er", "", true}, {"/real/new.conf", "", false}, {"/etc/app/conf", "", false}, {"/file", "", false},
		{"/abs", "symlink", true}, {"/abs/x", "symlink", true}, {"/up/x", "symlink", true}, {"/in/x", "symlink", true}, {"/loop/x", "symlink", true},
		{"/file/x", "already exists", true}, {"/fifo", "already exists", false}, {"/abs", "symlink", false}, {"/real", "already exists", false},
	} {
		err := mounts.MakeMountPoint(r.Skeleton(), c.target, c.dir)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.target, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.target, err)
		}
		if info, err := os.Lstat(filepath.Join(r.Path(), c.target)); err != nil || info.IsDir() != c.dir {
			t.Errorf("%s in the root: %v, %v", c.target, info, err)
		}
	}
	if _, err := os.Lstat("/outside"); err == nil {
		t.Error("/outside was made on the host")
	}
	if names, err := os.ReadDir(l + "/real"); err != nil || len(names) != 1 {
		t.Errorf("the layer changed: %v, %v", names, err)
	}
}

// TestLayersBudget: what the box writes, in one directory or in many, counts against one size.
func TestLayersBudget(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	system := systemLayer(t)
	h := testHost(t, dir)
	for i, script := range []string{
		"! head -c 20M /dev/zero >/usr/x && ! head -c 20K /dev/zero >/y",
		"mkdir /i; cd /i; i=0; while true >$i; do i=$((i+1)); done 2>/dev/null || true",
	} {
		o := ofLayers(t, testBase, system)
		o.Writable, o.UpperSize = true, 4<<20
		r := testBox(t, h, dir, fmt.Sprint("box", i), o)
		sh(t, r, testBase, script)
		if err := r.Hide(); err != nil {
			t.Fatal(err)
		}
		if path, size := full(t, r); path != "/" || size != 4<<20 {
			t.Errorf("%s: full is %q of %d bytes", script, path, size)
		}
	}
}

// TestLayersLive: another process reaches the skeleton through a process of the box.
func TestLayersLive(t *testing.T) {
	system := systemLayer(t)
	for _, byName := range []bool{false, true} {
		dir := stateDir(t)
		h, err := OpenReachableHost(filepath.Join(dir, "host"), filepath.Join(testutil.DefaultStateDir, "etc"))
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		h.byName.Store(byName)
		r := testBox(t, h, dir, "a", ofLayers(t, testBase, system))
		cmd := command(r, testBase, "0 0", "/bin/sh", "-c", "echo ready; read go <&3; ls -d /point/here; touch /point/x 2>/dev/null || ls /dev/.host/merged 2>/dev/null || echo closed")
		begin, proceed, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer proceed.Close()
		cmd.ExtraFiles = []*os.File{begin}
		stdout := testutil.StartChild(t, cmd)
		begin.Close()
		buf := make([]byte, 1000)
		if n, err := stdout.Read(buf); string(buf[:n]) != "ready\n" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		if err := r.Close(); err != nil { // as a launcher that is gone
			t.Fatal(err)
		}
		l, err := OpenLive(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		skeleton, err := l.Skeleton()
		if err != nil {
			t.Fatal(err)
		}
		if err := mounts.MakeMountPoint(skeleton, "/point/here", true); err != nil {
			t.Error(err)
		}
		skeleton.Close()
		proceed.Close()
		var out strings.Builder
		for n, err := stdout.Read(buf); err == nil; n, err = stdout.Read(buf) {
			out.Write(buf[:n])
		}
		if got := out.String(); got != "/point/here\nclosed\n" {
			t.Errorf("byName=%v: the box says %q", byName, got)
		}
	}
}

// TestLayersFailure: what cannot be a layer is refused, and nothing stays.
func TestLayersFailure(t *testing.T) {
	dir := stateDir(t)
	h := testHost(t, dir)
	l := layer(t, "echo x >f")
	file, err := os.OpenFile(l+"/f", unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	before := mountTable(t)
	for name, c := range map[string]struct {
		change func(o *Options)
		want   string
	}{
		"no id map":  {func(o *Options) { o.IDMapUserNS = nil }, "needs a user namespace"},
		"a file":     {func(o *Options) { o.Layers = append(o.Layers, file) }, "not a directory"},
		"twice":      {func(o *Options) { o.Layers = append(o.Layers, o.Layers[0]) }, "combining 2 layers: "},
		"too many":   {func(o *Options) { o.Layers = slices.Repeat(o.Layers, MaxLayers+1) }, "at most 500"},
		"no id maps": {func(o *Options) { o.IDMapUserNS = file }, "layer 0: "},
	} {
		o := ofLayers(t, testBase, l)
		c.change(&o)
		r, err := h.Build(filepath.Join(dir, "box"), o)
		if err == nil {
			r.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if after := mountTable(t); !slices.Equal(before, after) {
		t.Errorf("mounts before\n%q\nand after\n%q", before, after)
	}
}

// BenchmarkBuildLayers measures one box from Build to Close.
func BenchmarkBuildLayers(b *testing.B) {
	for _, byName := range []bool{false, true} {
		for _, n := range []int{1, 10, 100, MaxLayers} {
			b.Run(fmt.Sprintf("layers=%d/byName=%v", n, byName), func(b *testing.B) {
				dir := stateDir(b)
				h := testHost(b, dir)
				h.byName.Store(byName)
				var dirs []string
				for range n {
					dirs = append(dirs, b.TempDir())
				}
				o := ofLayers(b, testBase, dirs...)
				for b.Loop() {
					r, err := h.Build(filepath.Join(dir, "box"), o)
					if err != nil {
						b.Fatal(err)
					}
					if err := r.Close(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
