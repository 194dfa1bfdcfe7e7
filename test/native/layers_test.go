package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// layerIDs are those of published layers.
var idA, idB = strings.Repeat("a", 64), strings.Repeat("b", 64)

// layerEngine is what both kinds of engine have.
type layerEngine interface {
	engine.Layers
	create(t testing.TB, spec engine.Spec) engine.Box
}

type privateLayers struct {
	*native.Engine
	data string
}

func (e privateLayers) create(t testing.TB, s engine.Spec) engine.Box { return create(t, e.Engine, s) }

type serviceLayers struct{ *storage }

func (e serviceLayers) create(t testing.TB, s engine.Spec) engine.Box {
	return createLive(t, e.Service, s)
}

// startLayers starts a private engine with a data directory.
func startLayers(t testing.TB) privateLayers {
	t.Helper()
	return startLayersIn(t, filepath.Join(dataParent(t), "data"))
}

func startLayersIn(t testing.TB, data string) privateLayers {
	t.Helper()
	_, initPath := testutil.BuildBinaries(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := native.Start(ctx, native.Options{InitPath: initPath, StateDir: stateDir(t), DataDir: data})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return privateLayers{e, data}
}

// unpacks is a box that writes layer, with the layers below it.
func unpacks(layer string, below ...string) engine.Spec {
	s := engine.Spec{Unpacks: true}
	if layer != "" {
		s.Mounts = append(s.Mounts, engine.Mount{Layer: layer, Source: "/", Target: "/layer"})
	}
	for i, id := range below {
		s.Mounts = append(s.Mounts, engine.Mount{Layer: id, Source: "/", Target: fmt.Sprintf("/below/%d", i), ReadOnly: true})
	}
	return s
}

// as is a command of another user.
func as(uid int, c engine.Command) engine.Command {
	c.User = &engine.User{UID: uid, GID: uid}
	return c
}

// must fails the test unless the script exits with 0 and prints output.
func must(t testing.TB, b engine.Box, script, output string) {
	t.Helper()
	if o := run(t, b, shell("exec 2>&1; set -e; "+script)); o.Verdict != engine.Exited || o.ExitCode != 0 || o.Stdout != output {
		t.Fatalf("%s: %+v, want %q", script, o, output)
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// publish writes a layer with a script, and publishes it.
func publish(t testing.TB, e layerEngine, name, id, script string, below ...string) {
	t.Helper()
	ok(t, e.MakeLayer(t.Context(), name))
	b := e.create(t, unpacks(name, below...))
	must(t, b, "cd /layer; mkdir -m 755 fs; "+script, "")
	remove(t, b)
	ok(t, e.PublishLayer(t.Context(), name, id))
}

// TestMakeLayer: a box writes a layer, with owners, modes, times and whiteouts, and later boxes
// read it and nothing else.
func TestMakeLayer(t *testing.T) {
	testutil.Long(t)
	for _, kind := range []string{"private", "service"} {
		t.Run(kind, func(t *testing.T) {
			var e layerEngine
			var data string
			if kind == "private" {
				p := startLayers(t)
				e, data = p, p.data
			} else {
				s := startStorage(t, 0)
				e, data = serviceLayers{s}, s.data
			}
			testMakeLayer(t, e, data)
		})
	}
}

func testMakeLayer(t *testing.T, e layerEngine, data string) {
	ok(t, e.MakeLayer(t.Context(), "one"))
	ok(t, e.MakeLayer(t.Context(), "one")) // a client that lost its launcher repeats it
	b := e.create(t, unpacks("one"))
	must(t, b, `cd /layer; id -u; umask 0; mkdir fs fs/d fs/ro; echo x >fs/d/f; chmod 640 fs/d/f; chown 7:8 fs/d/f
		chown 65534:65534 fs/d; touch -d @1000000000 fs/d; ln -s /etc/shadow fs/link; mknod fs/gone c 0 0; mkfifo fs/fifo; chmod 555 fs/ro
		cat fs/d/f; printf 'd\0' >opaque; echo junk >junk; stat -c '%u:%g %a' /layer`, "0\nx\n0:0 700\n")
	if err := e.PublishLayer(t.Context(), "one", idA); !errors.Is(err, engine.ErrLayerInUse) {
		t.Errorf("publishing a layer that a box writes: %v", err)
	}
	if err := e.AbandonLayer(t.Context(), "one"); !errors.Is(err, engine.ErrLayerInUse) {
		t.Errorf("abandoning a layer that a box writes: %v", err)
	}
	remove(t, b)
	ok(t, e.PublishLayer(t.Context(), "one", idA))
	ok(t, e.PublishLayer(t.Context(), "one", idA))
	if ids, err := e.Layers(t.Context()); err != nil || !slices.Equal(ids, []string{idA}) {
		t.Errorf("layers %v, %v", ids, err)
	}

	layer := filepath.Join(data, "images", idA)
	var st unix.Stat_t
	ok(t, unix.Lstat(layer+"/fs/d/f", &st))
	if st.Uid != 0x7ffe0007 || st.Gid != 0x7ffe0008 || st.Mode != unix.S_IFREG|0o640 {
		t.Errorf("on disk %d:%d %o", st.Uid, st.Gid, st.Mode)
	}
	ok(t, unix.Lstat(layer+"/fs/gone", &st))
	if st.Rdev != 0 || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		t.Errorf("whiteout %o %x", st.Mode, st.Rdev)
	}
	value := make([]byte, 10)
	if n, err := unix.Lgetxattr(layer+"/fs/d", "trusted.overlay.opaque", value); err != nil || string(value[:n]) != "y" {
		t.Errorf("opaque: %q, %v", value, err)
	}
	if n, err := unix.Lgetxattr(layer+"/fs/ro", "trusted.overlay.opaque", value); err != unix.ENODATA {
		t.Errorf("opaque although not listed: %d, %v", n, err)
	}
	if names, err := os.ReadDir(layer); err != nil || len(names) != 2 {
		t.Errorf("the layer has %v, %v", names, err)
	}
	for _, dir := range []string{data, data + "/images", data + "/images/new", data + "/images/trash"} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}

	ok(t, e.MakeLayer(t.Context(), "two"))
	b = e.create(t, unpacks("two", idA))
	must(t, b, `cd /below/0; stat -c '%u:%g %a %F' fs/d fs/d/f fs/gone fs/link; stat -c %Y fs/d; cat fs/d/f opaque | tr '\0' '\n'
		for f in fs/new fs/d/new; do touch $f 2>/dev/null && echo written; done; rm -f fs/d/f 2>/dev/null && echo removed
		chown 1:1 fs/d/f 2>/dev/null && echo changed; chmod 777 fs 2>/dev/null && echo changed; mkdir /layer/fs; echo done`,
		"65534:65534 777 directory\n7:8 640 regular file\n0:0 666 character special file\n0:0 777 symbolic link\n1000000000\nx\nd\ndone\n")
	if err := e.RemoveLayer(t.Context(), idA); !errors.Is(err, engine.ErrLayerInUse) {
		t.Errorf("removing a layer that a box has: %v", err)
	}
	remove(t, b)
	ok(t, e.PublishLayer(t.Context(), "two", idA)) // it exists: the other one is deleted
	ok(t, e.MakeLayer(t.Context(), "three"))
	ok(t, e.AbandonLayer(t.Context(), "three"))
	ok(t, e.AbandonLayer(t.Context(), "three"))
	ok(t, e.RemoveLayer(t.Context(), idA))
	ok(t, e.RemoveLayer(t.Context(), idA))
	if ids, err := e.Layers(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("layers %v, %v", ids, err)
	}
	wantNoLayers(t, data)
	for _, name := range []string{"two", "never"} {
		if err := e.PublishLayer(t.Context(), name, idB); !errors.Is(err, engine.ErrNoLayer) {
			t.Errorf("publishing %q: %v", name, err)
		}
	}
}

// wantNoLayers: nothing is in the data directory.
func wantNoLayers(t testing.TB, data string) {
	t.Helper()
	waitUntil(t, "the launcher empties the trash", func() bool { // behind its answers
		found, err := filepath.Glob(data + "/images/trash/*")
		return err == nil && len(found) == 0
	})
	found, _ := filepath.Glob(data + "/images/new/*/*")
	all, _ := filepath.Glob(data + "/images/*")
	if len(found) > 0 || len(all) != 2 {
		t.Errorf("left: %v %v", found, all)
	}
}

// TestLayerHostile: what a box leaves in a layer is refused or harmless, and stays in the layer.
func TestLayerHostile(t *testing.T) {
	testutil.Long(t)
	e := startLayers(t)
	bait := testutil.ReachableDir(t, "")
	for i, c := range []struct{ name, script string }{
		{"nothing", ""},
		{"no fs", `printf 'd\0' >opaque`},
		{"fs is a file", "echo >fs"},
		{"fs is a symlink", "ln -s /etc fs"},
		{"fs is a symlink out", "ln -s " + bait + " fs"},
		{"fs is a fifo", "mkfifo fs"},
		{"fs is a whiteout", "mknod fs c 0 0"},
		{"opaque is a symlink", "mkdir fs; ln -s /etc/passwd opaque"},
		{"opaque is a fifo", "mkdir fs; mkfifo opaque"},
		{"opaque is a whiteout", "mkdir fs; mknod opaque c 0 0"},
		{"opaque is a directory", "mkdir fs opaque"},
		{"opaque has two names", "mkdir -p fs/d; printf 'd\\0' >opaque; ln opaque fs/other"},
		{"opaque is huge", "mkdir fs; truncate -s 1T opaque"},
		{"opaque is zeros", "mkdir fs; truncate -s 10M opaque"},
		{"no NUL", "mkdir -p fs/d; printf d >opaque"},
		{"absolute", `mkdir -p fs/etc; printf '/etc\0' >opaque`},
		{"dots", `mkdir fs; printf '../../..\0' >opaque`},
		{"leaves and comes back", `mkdir -p fs/d; printf '../fs/d\0' >opaque`},
		{"symlink", `mkdir -p fs/d; ln -s d fs/l; printf 'l\0' >opaque`},
		{"symlink out", `mkdir -p fs; ln -s ` + bait + ` fs/l; printf 'l\0' >opaque`},
		{"through a symlink", `mkdir -p fs/d/e; ln -s d fs/l; printf 'l/e\0' >opaque`},
		{"a file", `mkdir fs; echo >fs/f; printf 'f\0' >opaque`},
		{"a fifo", `mkdir fs; mkfifo fs/f; printf 'f\0' >opaque`},
		{"missing", `mkdir fs; printf 'd\0' >opaque`},
		{"newline", `mkdir fs; printf 'a\nb\0' >opaque`},
		{"too long", `mkdir fs; head -c 10000 /dev/zero | tr '\0' a >opaque; printf '\0' >>opaque`},
	} {
		name := fmt.Sprintf("layer-%d", i)
		ok(t, e.MakeLayer(t.Context(), name))
		b := e.create(t, unpacks(name))
		must(t, b, "cd /layer; "+c.script, "")
		remove(t, b)
		if err := e.PublishLayer(t.Context(), name, idA); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		} else if strings.ContainsAny(err.Error(), "\n\x00") || len(err.Error()) > 400 {
			t.Errorf("%s: %q", c.name, err)
		}
		ok(t, e.AbandonLayer(t.Context(), name))
	}
	if n, err := unix.Lgetxattr(bait, "trusted.overlay.opaque", nil); err != unix.ENODATA {
		t.Errorf("the bait: %d, %v", n, err)
	}
	wantNoLayers(t, e.data)

	// A deep tree, and directories that their owner cannot read, are published and deleted.
	publish(t, e, "deep", idA, `cd fs; python3 -c '
import os
for i in range(3000):
    os.mkdir("x" * 100); os.chdir("x" * 100)
'; mkdir -p shut/in; chmod 0 shut/in shut; cd ..; printf 'shut/in\0.\0' >opaque`)
	ok(t, e.RemoveLayer(t.Context(), idA))
	wantNoLayers(t, e.data)
}

// TestLayerPrivileges: only user 0 of a box that unpacks has capabilities, and they reach no
// further than files of the box.
func TestLayerPrivileges(t *testing.T) {
	e := startLayers(t)
	publish(t, e, "other", idB, "echo secret >fs/f; chmod 600 fs/f")
	ok(t, e.MakeLayer(t.Context(), "mine"))
	b := e.create(t, unpacks("mine", idB))
	const caps = "grep -E '^Cap|NoNew' /proc/self/status | cut -f 2 | tr '\\n' ' '"
	const files, none = "000000000000000d", "0000000000000000"
	must(t, b, "mkdir -p /layer/fs; chmod 755 /layer; touch /layer/f /layer/own; chown 1:1 /layer/own; chmod 700 /layer/fs; echo s >/layer/fs/s; "+caps,
		strings.Join([]string{files, files, files, none, files, "1 "}, " "))
	for _, uid := range []int{1, 2, 65534} {
		o := run(t, b, as(uid, shell(caps)))
		if want := strings.Join([]string{none, none, none, none, none, "1 "}, " "); o.Stdout != want {
			t.Errorf("user %d: %q, want %q", uid, o.Stdout, want)
		}
	}
	if _, err := tryRun(t, b, as(1, engine.Command{Args: []string{"true"}, Dir: "/layer/fs"})); err == nil {
		t.Error("user 1 can start in a directory that only user 0 may enter")
	}
	if _, err := tryRun(t, b, as(1, engine.Command{Args: []string{"true"}, Dir: "/layer/fs/new", MakeDir: true})); err == nil {
		t.Error("user 1 can have a directory made where it may not write")
	}
	for _, c := range []struct {
		uid    int
		script string
	}{
		{1, "chown 1:1 /layer/f"}, {1, "chmod 777 /layer/f"}, {1, "cat /layer/fs/s"}, {1, "ls /layer/fs"}, {1, "chown 0:0 /layer/own"}, {1, "echo >/layer/new"},
		{1, "mknod /layer/gone c 0 0"}, {1, "mknod /tmp/null c 1 3"}, {1, "cat /below/0/fs/f"}, {1, "ls /below/0"},
		{0, "mount -t tmpfs none /tmp"}, {0, "mount --bind /layer /tmp"}, {0, "umount /layer"}, {0, "mount -o remount,rw /below/0"}, {0, "unshare -U true"}, {0, "chroot / true"},
		{0, "mknod /layer/null c 1 3"}, {0, "mknod /layer/disk b 7 0"}, {0, "mknod /tmp/null c 1 3"}, {0, "chmod u+s /layer/f"}, {0, "chmod g+s /layer/fs"},
		{0, "echo >/below/0/fs/f"}, {0, "chown 1 /below/0/fs/f"}, {0, "touch /below/0/fs/f"}, {0, "mknod /below/0/fs/x c 0 0"},
		{0, "cat /proc/1/environ"}, {0, "cat /proc/1/maps"}, {0, "ls /proc/1/fd"}, {0, "ls /proc/1/root"}, {0, "cat /proc/1/mem"}, {0, "kill -9 1"}, {0, "chown 0 /proc/1/oom_score_adj"},
		{0, "cat /etc/shadow"}, {0, "chmod 777 /usr"}, {0, "chown 0 /usr/bin/env"}, {0, "chmod 777 /usr/bin/env"}, {0, "echo >/usr/x"}, {0, "echo 1 >/proc/sys/kernel/panic"},
		{0, `python3 -c 'import os; os.setxattr(os.open("/layer/f", 0), "trusted.overlay.opaque", b"y")'`}, {0, `python3 -c 'import os; os.setxattr(os.open("/layer/f", 0), "security.capability", b"\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")'`},
		{0, setSecurityXattr}, {0, `python3 -c 'import os; os.setuid(1)'`},
		{0, `python3 -c 'import os; os.chown("/layer/f", 65536, 0)'`}, {0, `python3 -c 'import os; os.chown("/layer/f", 0x7ffe0001, 0)'`},
	} {
		o := run(t, b, as(c.uid, shell(c.script)))
		if o.Verdict != engine.Exited || o.ExitCode != 0 {
			continue
		}
		if c.script == setSecurityXattr && securityXattrsForAll(t, e.data) {
			t.Logf("this kernel lets every user set security.* attributes")
			continue
		}
		t.Errorf("user %d: %s: %+v", c.uid, c.script, o)
	}
	must(t, b, `cat /layer/fs/s /below/0/fs/f; python3 -c 'import os; os.setxattr(os.open("/layer/f", 0), "user.x", b"y"); print(os.getxattr("/layer/f", "user.x"))'`, "s\nsecret\nb'y'\n")

	// Boxes that do not unpack have none of it.
	plain := e.create(t, engine.Spec{})
	if o := run(t, plain, shell(caps)); o.Stdout != strings.Join([]string{none, none, none, none, none, "1 "}, " ") {
		t.Errorf("another box: %q", o.Stdout)
	}
	for _, script := range []string{"mknod /tmp/gone c 0 0", "touch /tmp/f; chown 1 /tmp/f", `python3 -c 'import os; os.setxattr(os.open("/tmp", 0), "user.x", b"y")'`} {
		if o := run(t, plain, shell(script)); o.ExitCode == 0 {
			t.Errorf("another box: %s: %+v", script, o)
		}
	}
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: "/usr", Target: "/tmp/usr", ReadOnly: true}}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a mount of a directory in a box that unpacks: %v", err)
	}
}

const setSecurityXattr = `python3 -c 'import os; os.setxattr(os.open("/layer/fs", 0), "security.boxd", b"y")'`

// securityXattrsForAll reports whether this kernel lets a user without capabilities set a security.* attribute of
// its own file. Kernels with the BPF security module do (6.1 does, 6.18 does not): the module's empty hook
// answers for the check of capabilities.
func securityXattrsForAll(t *testing.T, dir string) bool {
	f, err := os.CreateTemp(dir, "xattr")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	const nobody = 65534
	ok(t, f.Chown(nobody, nobody))
	cmd := exec.Command("/usr/bin/python3", "-c", `import os; os.setxattr(3, "security.boxd", b"y")`)
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd.Run() == nil
}

// TestLayersMissing: requests for layers that do not exist, and engines without a data directory,
// have one clear line each.
func TestLayersMissing(t *testing.T) {
	testutil.Long(t)
	e := startLayers(t)
	for _, s := range []engine.Spec{unpacks("none"), unpacks("", idA)} {
		if _, err := e.Create(t.Context(), s); !errors.Is(err, engine.ErrNoLayer) {
			t.Errorf("%v: %v", s.Mounts, err)
		}
	}
	ok(t, e.MakeLayer(t.Context(), "a"))
	b := e.create(t, unpacks("a"))
	must(t, b, "mkdir /layer/fs", "")
	remove(t, b)
	if err := e.MakeLayer(t.Context(), "a"); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("making a layer that is written: %v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "../x", ".new-x", strings.Repeat("c", 64), "A"} {
		if err := e.MakeLayer(t.Context(), name); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	for _, id := range []string{"", "new", "trash", "..", strings.Repeat("A", 64), strings.Repeat("a", 63)} {
		if err := errors.Join(e.PublishLayer(t.Context(), "a", id), e.RemoveLayer(t.Context(), id)); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("id %q: %v", id, err)
		}
	}
	without := start(t)
	for what, err := range map[string]error{"make": without.MakeLayer(t.Context(), "a"), "publish": without.PublishLayer(t.Context(), "a", idA)} {
		if !errors.Is(err, engine.ErrUnenforceable) || !strings.Contains(err.Error(), "--data-dir") {
			t.Errorf("%s without a data directory: %v", what, err)
		}
	}
	if _, err := without.Create(t.Context(), unpacks("", idA)); !errors.Is(err, engine.ErrUnenforceable) {
		t.Errorf("a box without a data directory: %v", err)
	}
	if ids, err := without.Layers(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("layers without a data directory: %v, %v", ids, err)
	}
	if err := errors.Join(without.AbandonLayer(t.Context(), "a"), without.RemoveLayer(t.Context(), idA)); err != nil {
		t.Error(err)
	}
}

// TestLayersBelow: a box can have as many layers below its own as a root can have.
func TestLayersBelow(t *testing.T) {
	e := startLayers(t)
	publish(t, e, "a", idA, "echo x >fs/f")
	ok(t, e.MakeLayer(t.Context(), "b"))
	b := e.create(t, unpacks("b", slices.Repeat([]string{idA}, spec.MaxLayers-1)...))
	must(t, b, "cat /below/*/fs/f | uniq -c", "    499 x\n")
	remove(t, b)
	ok(t, e.RemoveLayer(t.Context(), idA))
}

// TestLayersShared: launchers with the same data directory see the same layers, each removes only
// what none uses, and none touches what another one is writing.
func TestLayersShared(t *testing.T) {
	testutil.Long(t)
	one := startLayers(t)
	ok(t, one.MakeLayer(t.Context(), "a"))
	writing := one.create(t, unpacks("a"))
	must(t, writing, "mkdir /layer/fs; echo one >/layer/fs/f", "")
	two := startLayersIn(t, one.data)
	publish(t, two, "a", idB, "echo two >fs/f")
	must(t, writing, "cat /layer/fs/f", "one\n")
	reading := one.create(t, unpacks("", idB))
	if err := two.RemoveLayer(t.Context(), idB); !errors.Is(err, engine.ErrLayerInUse) {
		t.Errorf("removing what a box of another launcher has: %v", err)
	}
	must(t, reading, "cat /below/0/fs/f", "two\n")
	remove(t, reading)
	ok(t, two.RemoveLayer(t.Context(), idB))
	remove(t, writing)
	ok(t, one.PublishLayer(t.Context(), "a", idA))
	if ids, err := two.Layers(t.Context()); err != nil || !slices.Equal(ids, []string{idA}) {
		t.Errorf("layers %v, %v", ids, err)
	}
}

// flood makes the box write to its layer until it ends, and returns when it does.
func flood(t testing.TB, b engine.Box) {
	t.Helper()
	read, write, err := os.Pipe()
	ok(t, err)
	defer read.Close()
	_, err = b.Start(t.Context(), engine.Command{Stdout: write, Args: []string{"sh", "-c",
		"mkdir /layer/fs; while :; do for i in 1 2 3 4 5 6 7 8 9; do mkdir -p /layer/fs/$i; echo >/layer/fs/$i/f; done; [ -e /tmp/told ] || echo writing; touch /tmp/told; done 2>/tmp/err"}})
	write.Close()
	ok(t, err)
	if _, err := read.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
}

func waitNoneUnpublished(t testing.TB, data string) {
	t.Helper()
	waitUntil(t, "everything unpublished is deleted", func() bool {
		found, _ := filepath.Glob(data + "/images/trash/*")
		more, _ := filepath.Glob(data + "/images/new/*/*")
		return len(found)+len(more) == 0
	})
}

// TestLayersClientGone: what a client was unpacking ends with it, and nothing else.
func TestLayersClientGone(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	publish(t, serviceLayers{s}, "done", idB, "echo done >fs/f")
	session := createLive(t, s.Service, engine.Spec{ID: "session", Layers: []string{idB}})
	for _, name := range []string{"empty", "whole", "half"} {
		ok(t, s.MakeLayer(t.Context(), name))
	}
	b := createLive(t, s.Service, unpacks("whole"))
	must(t, b, "mkdir -p /layer/fs; echo >/layer/fs/f", "")
	remove(t, b)
	writing := createLive(t, s.Service, unpacks("half", idB))
	flood(t, writing)
	createLive(t, s.Service, unpacks("", idB)) // as for a sum
	ok(t, s.Close())
	s.start()
	waitNoneUnpublished(t, s.data)
	waitUntil(t, "only the box of the session is left", func() bool {
		ids, err := s.Boxes(t.Context())
		return err == nil && slices.Equal(ids, []string{session.ID()})
	})
	kept := adoptLive(t, s.Service, session.ID())
	if err := s.RemoveLayer(t.Context(), idB); !errors.Is(err, engine.ErrLayerInUse) {
		t.Errorf("removing what the box of a session has: %v", err)
	}
	if err := s.PublishLayer(t.Context(), "whole", idA); !errors.Is(err, engine.ErrNoLayer) {
		t.Errorf("publishing what the last client wrote: %v", err)
	}
	remove(t, kept)
	ok(t, s.RemoveLayer(t.Context(), idB))
	wantNoLayers(t, s.data)
}

// TestLayersClosed: an engine that is closed deletes what was not published.
func TestLayersClosed(t *testing.T) {
	testutil.Long(t)
	_, initPath := testutil.BuildBinaries(t)
	data := filepath.Join(dataParent(t), "data")
	e, err := native.Start(t.Context(), native.Options{InitPath: initPath, StateDir: stateDir(t), DataDir: data})
	if err != nil {
		t.Fatal(err)
	}
	ok(t, e.MakeLayer(t.Context(), "half"))
	b, err := e.Create(t.Context(), unpacks("half"))
	ok(t, err)
	flood(t, b)
	ok(t, e.Close())
	wantNoLayers(t, data)
	if left, err := filepath.Glob(data + "/images/new/*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestLayersLauncherKilled: what was not published is gone with the launcher, and the box that wrote
// it. What was published stays, and a box that outlives the launcher keeps its layers from being removed.
func TestLayersLauncherKilled(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	e := serviceLayers{s}
	publish(t, e, "done", idB, "echo done >fs/f")
	ok(t, e.MakeLayer(t.Context(), "half"))
	writing := createLive(t, s.Service, unpacks("half", idB))
	flood(t, writing)
	b := createLive(t, s.Service, unpacks("", idB))
	killLauncher(t, s.dir)
	waitUntil(t, "the next launcher has the layers", func() bool {
		ids, err := e.Layers(t.Context())
		return err == nil && slices.Equal(ids, []string{idB})
	})
	if err := e.RemoveLayer(t.Context(), idB); !errors.Is(err, engine.ErrLayerInUse) {
		t.Errorf("removing what an adopted box has: %v", err)
	}
	must(t, b, "cat /below/0/fs/f", "done\n")
	remove(t, b)
	if _, err := tryRun(t, writing, shell("true")); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("a box that writes a layer of the last launcher: %v", err)
	}
	if err := e.PublishLayer(t.Context(), "half", idA); !errors.Is(err, engine.ErrNoLayer) {
		t.Errorf("publishing what the last launcher did not: %v", err)
	}
	waitNoneUnpublished(t, s.data)
	ok(t, e.RemoveLayer(t.Context(), idB))
	wantNoLayers(t, s.data)
}

// TestLayerPublishKilled: a launcher that is killed while it publishes has published all or nothing,
// and its client learns which.
func TestLayerPublishKilled(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	e := serviceLayers{s}
	outcomes := map[bool]int{}
	step := 2 // milliseconds between the moments
	if testutil.Full() {
		step = 1
	}
	for round := 0; round < 8; round += step {
		name, id := fmt.Sprintf("layer-%d", round), fmt.Sprintf("%064x", round)
		ok(t, e.MakeLayer(t.Context(), name))
		b := createLive(t, s.Service, unpacks(name))
		must(t, b, `cd /layer; mkdir fs; for i in $(seq 300); do mkdir fs/$i; echo $i >fs/$i/f; printf "$i\0"; done >opaque`, "")
		remove(t, b)
		published := make(chan error, 1)
		go func() { published <- e.PublishLayer(context.Background(), name, id) }()
		time.Sleep(time.Duration(round) * time.Millisecond) // a choice of moments, not a wait
		killLauncher(t, s.dir)
		err := <-published
		if err != nil && !errors.Is(err, engine.ErrNoLayer) {
			t.Fatal(err)
		}
		ids, lerr := e.Layers(t.Context())
		if ok := slices.Contains(ids, id); lerr != nil || ok != (err == nil) {
			t.Errorf("round %d: publishing: %v; layers %v, %v", round, err, ids, lerr)
		}
		outcomes[err == nil]++
		for i := 1; err == nil && i <= 300; i++ {
			dir := fmt.Sprintf("%s/images/%s/fs/%d", s.data, id, i)
			value := make([]byte, 2)
			if n, xerr := unix.Lgetxattr(dir, "trusted.overlay.opaque", value); n != 1 || xerr != nil {
				t.Fatalf("round %d: %s: %d, %v", round, dir, n, xerr)
			}
			if text, rerr := os.ReadFile(dir + "/f"); rerr != nil || string(text) != fmt.Sprintln(i) {
				t.Fatalf("round %d: %s: %q, %v", round, dir, text, rerr)
			}
		}
		ok(t, e.RemoveLayer(t.Context(), id))
	}
	t.Logf("published %d, not %d", outcomes[true], outcomes[false])
	waitNoneUnpublished(t, s.data)
	wantNoLayers(t, s.data)
}
