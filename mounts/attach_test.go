package mounts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// Files that the box writes belong to the owner of the directory, who can delete them.
func TestAttachedDirectoryBelongsToItsOwner(t *testing.T) {
	testutil.RequireRoot(t)
	dir := ownedDir(t)
	box := startBox(t, "/data")
	tree := openTree(t, dir, mappedOptions(t))
	if _, err := Attach(box.NS, tree, "/data", nil); err != nil {
		t.Fatal(err)
	}
	if got := box.must("owner", "/data"); got != "0:0" {
		t.Errorf("the box sees the directory of %s, want 0:0", got)
	}
	box.must("write", "/data/file", "hello")
	box.must("mkdir", "/data/sub")
	box.must("write", "/data/sub/file", "hello")
	for _, name := range []string{"file", "sub", "sub/file"} {
		if st := statOf(t, filepath.Join(dir, name)); st.Uid != owner || st.Gid != owner {
			t.Errorf("%s belongs to %d:%d on the host, want %d", name, st.Uid, st.Gid, owner)
		}
	}
	asOwner(t, "rm", "-r", dir+"/file", dir+"/sub")
	if got := box.must("ls", "/data"); got != "" {
		t.Errorf("the box still sees %q", got)
	}
}

// The box cannot access files of others in the same directory.
func TestForeignFilesStayForeign(t *testing.T) {
	testutil.RequireRoot(t)
	dir := ownedDir(t)
	if err := os.WriteFile(dir+"/secret", []byte("x"), 0o600); err != nil { // root's
		t.Fatal(err)
	}
	box := startBox(t, "/data")
	if _, err := Attach(box.NS, openTree(t, dir, mappedOptions(t)), "/data", nil); err != nil {
		t.Fatal(err)
	}
	if got := box.must("owner", "/data/secret"); got != "65534:65534" {
		t.Errorf("root's file appears as that of %s, want nobody", got)
	}
	box.fails("permission denied", "read", "/data/secret")
	box.fails("permission denied", "write", "/data/secret", "y")
}

func TestReadOnlyHolds(t *testing.T) {
	testutil.RequireRoot(t)
	dir, o := filepath.Dir(ownedFile(t)), mappedOptions(t)
	o.ReadOnly = true
	box := startBox(t, "/data")
	if _, err := Attach(box.NS, openTree(t, dir, o), "/data", nil); err != nil {
		t.Fatal(err)
	}
	if got := box.must("read", "/data/file"); got != "text" {
		t.Errorf("read %q", got)
	}
	box.fails("read-only file system", "write", "/data/file", "y")
	box.fails("read-only file system", "mkdir", "/data/sub")
}

func TestNodevHolds(t *testing.T) {
	testutil.RequireRoot(t)
	dir := ownedDir(t)
	if err := unix.Mknod(dir+"/zero", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/zero", 0o666); err != nil {
		t.Fatal(err)
	}
	box := startBox(t, "/data")
	if _, err := Attach(box.NS, openTree(t, dir, mappedOptions(t)), "/data", nil); err != nil {
		t.Fatal(err)
	}
	box.fails("permission denied", "read", "/data/zero")
}

// If a program of the box's root has the setuid bit and another user of the box runs it,
// it runs as that user. The same mount without nosuid shows that the test would notice
// otherwise.
func TestNosuidHolds(t *testing.T) {
	testutil.RequireRoot(t)
	dir := ownedDir(t)
	if out, err := exec.Command("cp", testutil.RequireProgram(t, "id"), dir+"/id").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := errors.Join(os.Chown(dir+"/id", owner, owner), os.Chmod(dir+"/id", 0o755|os.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		tree func(*testing.T) *os.File
		want string
	}{
		{"tree", func(t *testing.T) *os.File { return openTree(t, dir, mappedOptions(t)) }, "5"},
		{"control", func(t *testing.T) *os.File { return suidTree(t, dir) }, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// It keeps the host's root, because id is linked dynamically.
			box := &testBox{t: t}
			box.start()
			t.Cleanup(box.stop)
			var err error
			if box.NS, err = OpenNS(box.cmd.Process.Pid); err != nil {
				t.Fatal(err)
			}
			point := t.TempDir()
			if err := os.Chmod(filepath.Dir(point), 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := Attach(box.NS, c.tree(t), point, nil); err != nil {
				t.Fatal(err)
			}
			if got := box.must("run", point+"/id", "-u"); got != c.want {
				t.Errorf("effective user %s, want %s", got, c.want)
			}
		})
	}
}

// suidTree is an id-mapped clone without the attributes that Tree sets.
func suidTree(t *testing.T, dir string) *os.File {
	t.Helper()
	tree, err := linux.OpenTree(nil, dir, unix.OPEN_TREE_CLONE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_IDMAP,
		Attr_clr:    unix.MOUNT_ATTR_NOSUID,
		Propagation: unix.MS_PRIVATE,
		Userns_fd:   uint64(mappedOptions(t).UserNS.Fd()),
	}
	if err := linux.MountSetattr(tree, false, attr); err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestAttachAndDetachLive(t *testing.T) {
	testutil.RequireRoot(t)
	file, o := ownedFile(t), mappedOptions(t)
	dir := filepath.Dir(file)
	box := startBox(t, "/data/in")
	if err := MakeMountPoint(box.root, "/conf", false); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ source, target, file string }{
		{dir, "/data", "/data/file"},
		{dir, "/data/in", "/data/in/file"},
		{file, "/conf", "/conf"},
	} {
		for round := range 3 {
			id, err := Attach(box.NS, openTree(t, c.source, o), c.target, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := box.must("read", c.file); got != "text" {
				t.Errorf("round %d: %s holds %q", round, c.file, got)
			}
			if err := Detach(box.NS, c.target, id); err != nil {
				t.Fatal(err)
			}
			if text, _ := box.do("read", c.file); text != "" {
				t.Errorf("round %d: %s is still there", round, c.file)
			}
			if err := Detach(box.NS, c.target, id); !errors.Is(err, ErrNotAttached) {
				t.Errorf("round %d: detaching twice: %v", round, err)
			}
		}
	}
}

func TestDetachRefuses(t *testing.T) {
	testutil.RequireRoot(t)
	box := startBox(t, "/data", "/usr")
	o := mappedOptions(t)
	base := openTree(t, ownedDir(t), o) // stands for a mount of the image
	if _, err := Attach(box.NS, base, "/usr", nil); err != nil {
		t.Fatal(err)
	}
	id, err := Attach(box.NS, openTree(t, ownedDir(t), o), "/data", nil)
	if err != nil {
		t.Fatal(err)
	}
	box.must("mkdir", "/data/sub")
	box.must("symlink", "/data", "/data/link")
	for _, target := range []string{"/usr", "/data/sub", "/data/link", "/nothing", "/nothing/below", "/data/link/sub"} {
		if err := Detach(box.NS, target, id); !errors.Is(err, ErrNotAttached) {
			t.Errorf("detaching %s: %v, want ErrNotAttached", target, err)
		}
	}
	for _, target := range []string{"/", "/proc", "relative"} {
		if err := Detach(box.NS, target, id); err == nil {
			t.Errorf("detaching %s succeeded", target)
		}
	}
	if err := Detach(box.NS, "/data", id+1); !errors.Is(err, ErrNotAttached) {
		t.Errorf("detaching by a wrong id: %v", err)
	}
	covering, err := Attach(box.NS, openTree(t, ownedDir(t), o), "/data", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := Detach(box.NS, "/data", id); !errors.Is(err, ErrNotAttached) {
		t.Errorf("detaching what is covered: %v", err)
	}
	if err := errors.Join(Detach(box.NS, "/data", covering), Detach(box.NS, "/data", id)); err != nil {
		t.Error(err)
	}
}

// The box can shape its own tree as it likes, but cannot redirect a mount.
func TestAttachRefusesTargets(t *testing.T) {
	testutil.RequireRoot(t)
	dir, o := filepath.Dir(ownedFile(t)), mappedOptions(t)
	box := startBox(t, "/data", "/secret/dir")
	if _, err := Attach(box.NS, openTree(t, dir, o), "/data", nil); err != nil {
		t.Fatal(err)
	}
	box.must("mkdir", "/data/dir")
	box.must("symlink", "/secret", "/data/absolute")
	box.must("symlink", "../../../secret", "/data/relative")
	box.must("symlink", "/nothing", "/data/dangling")
	for _, c := range []struct{ source, target, want string }{
		{dir, "/data/absolute", "is a symlink in the box"},
		{dir, "/data/relative", "is a symlink in the box"},
		{dir, "/data/dangling", "is a symlink in the box"},
		{dir, "/data/absolute/dir", "passes a symlink in the box"},
		{dir, "/data/dangling/dir", "passes a symlink in the box"},
		{dir, "/data/nothing", "does not exist in the box"},
		{dir, "/data/nothing/below", "does not exist in the box"},
		{dir, "/data/file", "is not a directory in the box, but the source is one"},
		{dir, "/data/file/below", "passes a file in the box"},
		{dir + "/file", "/data/dir", "is a directory in the box, but the source is a file"},
		{dir + "/file", "/data/absolute", "is a symlink in the box"},
		{dir, "/", "must not be the root of the box"},
		{dir, "/data/../secret", `must not contain ".."`},
		{dir, "/proc/self", "must not be /proc or below"},
	} {
		_, err := Attach(box.NS, openTree(t, c.source, o), c.target, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s at %s: %v, want %q", filepath.Base(c.source), c.target, err, c.want)
			continue
		}
		checkMessage(t, err)
		if missing := strings.Contains(c.want, "does not exist"); missing != errors.Is(err, ErrNoTarget) {
			t.Errorf("%s: ErrNoTarget is %v, want %v", c.target, !missing, missing)
		}
	}
	if got := box.must("ls", "/secret"); got != "/secret/dir" {
		t.Errorf("something appeared in /secret: %q", got)
	}
}

func TestAttachMakesTheMountPoint(t *testing.T) {
	testutil.RequireRoot(t)
	dir, o := filepath.Dir(ownedFile(t)), mappedOptions(t)
	box := startBox(t, "/usr")
	makePoint := func(target string, dir bool) error { return MakeMountPoint(box.root, target, dir) }
	if _, err := Attach(box.NS, openTree(t, dir, o), "/a/b/c", makePoint); err != nil {
		t.Fatal(err)
	}
	if _, err := Attach(box.NS, openTree(t, dir+"/file", o), "/etc/app.conf", makePoint); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"/a/b/c/file", "/etc/app.conf"} {
		if got := box.must("read", file); got != "text" {
			t.Errorf("%s holds %q", file, got)
		}
	}
	// Nothing can be created below a mount of the image, whether the maker sees the mount
	// or the mount hides what it creates.
	if _, err := Attach(box.NS, openTree(t, ownedDir(t), o), "/usr", nil); err != nil {
		t.Fatal(err)
	}
	for name, maker := range map[string]MountPointMaker{
		"seen":   makePoint,
		"hidden": func(string, bool) error { return nil },
	} {
		_, err := Attach(box.NS, openTree(t, dir, o), "/usr/data", maker)
		if err == nil || !strings.Contains(err.Error(), "does not exist in the box and cannot be created") {
			t.Errorf("%s: mount point below a mount of the image: %v", name, err)
		}
	}
}

func TestOpenNSOfNobody(t *testing.T) {
	if _, err := OpenNS(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want os.ErrNotExist", err)
	}
}

// No thread of this process may stay in the namespace of a box, least of all the main
// thread.
func TestNoThreadStaysInTheBox(t *testing.T) {
	testutil.RequireRoot(t)
	box := startBox(t, "/data")
	tree := openTree(t, ownedDir(t), mappedOptions(t))
	for range 50 {
		id, err := Attach(box.NS, tree, "/data", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := Detach(box.NS, "/data", id); err != nil {
			t.Fatal(err)
		}
		tree = openTree(t, ownedDir(t), mappedOptions(t))
	}
	mine, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	boxed, err := os.Readlink("/proc/" + strconv.Itoa(box.cmd.Process.Pid) + "/ns/mnt")
	if err != nil || mine == boxed {
		t.Errorf("the main thread is in the namespace of the box: %s, %v", mine, err)
	}
}
