package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

var boxRoot = Owner{UID: boxBase, GID: boxBase}

// innerMaker makes mount points as the launcher does.
func innerMaker(b *testBox) MountPointMaker {
	return func(target string, dir bool) error {
		if inner, err := MakeInnerPoint(b.NS, target, dir, boxRoot); inner || err != nil {
			return err
		}
		return MakeMountPoint(b.root, target, dir)
	}
}

// startWorkspace starts a box with a directory of owner's at /workspace.
func startWorkspace(t *testing.T) (box *testBox, workspace string) {
	t.Helper()
	testutil.RequireRoot(t)
	workspace = ownedDir(t)
	box = startBox(t, "/workspace", "/secret")
	if _, err := Attach(box.NS, openTree(t, workspace, mappedOptions(t)), "/workspace", nil); err != nil {
		t.Fatal(err)
	}
	return box, workspace
}

// What is created inside a mount is the same as if its owner had created it.
func TestInnerPoints(t *testing.T) {
	box, workspace := startWorkspace(t)
	file, o := ownedFile(t), mappedOptions(t)
	defer unix.Umask(unix.Umask(0o077))
	box.must("mkdir", "/workspace/there")
	for _, c := range []struct{ source, target, read string }{
		{filepath.Dir(file), "/workspace/.skills/x", "/workspace/.skills/x/file"},
		{filepath.Dir(file), "/workspace/.skills/y", "/workspace/.skills/y/file"},
		{filepath.Dir(file), "/workspace/there/a/b/c/d", "/workspace/there/a/b/c/d/file"},
		{file, "/workspace/.skills/file", "/workspace/.skills/file"},
		{file, "/workspace/conf/deep/file", "/workspace/conf/deep/file"},
		{file, "/outside/file", "/outside/file"},
	} {
		id, err := Attach(box.NS, openTree(t, c.source, o), c.target, innerMaker(box))
		if err != nil {
			t.Fatal(err)
		}
		if got := box.must("read", c.read); got != "text" {
			t.Errorf("%s: %q", c.read, got)
		}
		if err := Detach(box.NS, c.target, id); err != nil {
			t.Error(err)
		}
	}
	err := filepath.WalkDir(workspace, func(path string, d os.DirEntry, err error) error {
		want := uint32(unix.S_IFDIR | 0o755)
		if filepath.Base(path) == "file" {
			want = unix.S_IFREG | 0o644
		}
		if st := statOf(t, path); path != workspace && (st.Uid != owner || st.Gid != owner || st.Mode != want || !d.IsDir() && st.Size != 0) {
			t.Errorf("%s: %d:%d, mode %#o, want %#o of %d", path, st.Uid, st.Gid, st.Mode, want, owner)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestInnerPointRefuses(t *testing.T) {
	box, workspace := startWorkspace(t)
	dir, o := filepath.Dir(ownedFile(t)), mappedOptions(t)
	readOnly := o
	readOnly.ReadOnly = true
	if _, err := Attach(box.NS, openTree(t, ownedDir(t), readOnly), "/workspace/ro", innerMaker(box)); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Mkdir(workspace+"/roots", 0o755), os.Mkdir(workspace+"/private", 0o700),
		os.WriteFile(workspace+"/plain", nil, 0o644), unix.Mkfifo(workspace+"/fifo", 0o666),
		os.Symlink("/secret", workspace+"/absolute"), os.Symlink("../secret", workspace+"/relative"),
		os.Symlink("/nothing", workspace+"/dangling"), os.Symlink(workspace, workspace+"/host"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	before := tree(t, workspace)
	for _, c := range []struct{ source, target, want string }{
		{dir, "/workspace/absolute/x", "passes a symlink"},
		{dir, "/workspace/relative/x", "passes a symlink"},
		{dir, "/workspace/dangling/x", "passes a symlink"},
		{dir, "/workspace/host/x", "passes a symlink"},
		{dir, "/workspace/dangling", "is a symlink"},
		{dir + "/file", "/workspace/dangling", "is a symlink"},
		{dir, "/workspace/plain/x", "passes a file"},
		{dir, "/workspace/plain", "is not a directory in the box"},
		{dir + "/file", "/workspace/fifo", "is not a regular file in the box"},
		{dir, "/workspace/fifo/x", "passes a file"},
		{dir, "/workspace/roots/x", "may not make or pass"},
		{dir + "/file", "/workspace/roots/x", "may not make or pass"},
		{dir, "/workspace/private/x/y", "does not belong to the owner"},
		{dir, "/workspace/ro/x", "read-only"},
		{dir + "/file", "/workspace/ro/x", "read-only"},
		{dir, "/workspace/ro/x/y", "read-only"},
		{dir, "/workspace" + strings.Repeat("/d", maxNewDirs+1), "has more than 64"},
	} {
		_, err := Attach(box.NS, openTree(t, c.source, o), c.target, innerMaker(box))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.target, err, c.want)
			continue
		}
		checkMessage(t, err)
	}
	if after := tree(t, workspace); after != before {
		t.Errorf("something is left: %s, before %s", after, before)
	}
	if got := box.must("ls", "/secret"); got != "" {
		t.Errorf("in /secret: %q", got)
	}
}

// tree lists everything below dir.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		all = append(all, strings.TrimPrefix(path, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// On a full file system, creating a deep directory fails halfway. Nothing of it is left, so
// there is as much room as before.
func TestInnerPointOnFullFileSystem(t *testing.T) {
	testutil.RequireRoot(t)
	box := startBox(t, "/workspace")
	m := OwnerMap(owner, owner, boxBase, boxBase)
	for _, inodes := range []int{1, 2, 3} { // one is the root's
		small, err := linux.NewMount("tmpfs", 0, linux.Option{Key: "nr_inodes", Value: fmt.Sprint(inodes)},
			linux.Option{Key: "uid", Value: fmt.Sprint(boxBase)}, linux.Option{Key: "gid", Value: fmt.Sprint(boxBase)})
		if err != nil {
			t.Fatal(err)
		}
		defer small.Close()
		under, err := Attach(box.NS, small, "/workspace", nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Attach(box.NS, openTree(t, ownedDir(t), TreeOptions{Map: m}), "/workspace/a/b/c", innerMaker(box))
		if err == nil || !strings.Contains(err.Error(), "no space is left for") {
			t.Errorf("%d inodes: %v", inodes, err)
		}
		if st, err := linux.Fstatfs(small); err != nil || st.Ffree != uint64(inodes-1) {
			t.Errorf("%d inodes: %d are free, %v", inodes, st.Ffree, err)
		}
		if err := Detach(box.NS, "/workspace", under); err != nil {
			t.Error(err)
		}
	}
}

// The box does anything it can to the directory above the target. A mount is at its target or
// nowhere, and nothing is created outside of the workspace.
func TestInnerPointRace(t *testing.T) {
	box, workspace := startWorkspace(t)
	source, o := ownedDir(t), mappedOptions(t)
	box.must("mkdir", "/workspace/dir")
	pid := box.cmd.Process.Pid
	box.must("churn", "/workspace/dir")
	attached, refused := 0, 0
	const rounds, most = 500, 20000
	for i := 0; i < most && (i < rounds || attached == 0 || refused == 0); i++ {
		id, err := Attach(box.NS, openTree(t, source, o), fmt.Sprintf("/workspace/dir/sub%d/point", i%7), innerMaker(box))
		if err != nil {
			var refusal *spec.FieldError
			if !errors.As(err, &refusal) {
				t.Errorf("round %d: %v", i, err)
			}
			refused++
			continue
		}
		attached++
		// Whatever the box does, an existing mount can be found and removed.
		for {
			err := DetachMoved(box.NS, pid, id)
			if err == nil {
				break
			}
			if !errors.Is(err, ErrNotAttached) {
				t.Fatalf("round %d: %v", i, err)
			}
		}
		if is, err := IsMounted(box.NS, pid, id); is || err != nil {
			t.Fatalf("round %d: still there: %v, %v", i, is, err)
		}
	}
	box.must("calm")
	t.Logf("attached %d times, refused %d times", attached, refused)
	if attached == 0 || refused == 0 {
		t.Error("the race was not hit")
	}
	f := must(openTable(pid))
	defer f.Close()
	for _, m := range must(linux.ParseMountInfo(f)) {
		if strings.HasPrefix(m.Point, "/workspace/") {
			t.Errorf("still mounted: %+v", m)
		}
	}
	if got := box.must("ls", "/secret"); got != "" {
		t.Errorf("in /secret: %q", got)
	}
	for _, name := range strings.Fields(tree(t, workspace)) {
		if st := statOf(t, workspace+name); st.Uid != owner {
			t.Errorf("%s belongs to %d", name, st.Uid)
		}
	}
}

// A mount moves with the directory that it is in, to any name and any depth.
func TestDetachMoved(t *testing.T) {
	box, workspace := startWorkspace(t)
	pid := box.cmd.Process.Pid
	o := mappedOptions(t)
	for name, move := range map[string]func(){
		"renamed":  func() { box.must("rename", "/workspace/dir", "/workspace/other") },
		"odd name": func() { box.must("rename", "/workspace/dir", "/workspace/a b\\c\x01 (deleted)") },
		"covered": func() {
			box.must("rename", "/workspace/dir", "/workspace/x")
			box.must("symlink", "/secret", "/workspace/dir")
		},
		"deep": func() { // far below PATH_MAX
			long := strings.Repeat("n", 250)
			top := "/workspace/dir"
			for i := range 20 {
				box.must("mkdir", fmt.Sprintf("/workspace/%d%s", i, long))
				box.must("rename", top, fmt.Sprintf("/workspace/%d%s/%s", i, long, long))
				top = fmt.Sprintf("/workspace/%d%s", i, long)
			}
		},
		"still there": func() {},
	} {
		id, err := Attach(box.NS, openTree(t, ownedDir(t), o), "/workspace/dir/point", innerMaker(box))
		if err != nil {
			t.Fatal(err)
		}
		move()
		if err := Detach(box.NS, "/workspace/dir/point", id); name != "still there" && !errors.Is(err, ErrNotAttached) {
			t.Errorf("%s: %v", name, err)
		}
		if is, err := IsMounted(box.NS, pid, id); is != (name != "still there") || err != nil {
			t.Errorf("%s: mounted %v, %v", name, is, err)
		}
		if err := DetachMoved(box.NS, pid, id); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if is, err := IsMounted(box.NS, pid, id); is || err != nil {
			t.Errorf("%s: still mounted, %v", name, err)
		}
		if err := DetachMoved(box.NS, pid, id); err != nil {
			t.Errorf("%s: gone already: %v", name, err)
		}
		for _, e := range must(os.ReadDir(workspace)) {
			if err := os.RemoveAll(filepath.Join(workspace, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A process outside removes the mount point, and with it the mount.
	id, err := Attach(box.NS, openTree(t, ownedDir(t), o), "/workspace/dir/point", innerMaker(box))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(workspace + "/dir/point"); err != nil {
		t.Fatal(err)
	}
	if err := DetachMoved(box.NS, pid, id); err != nil {
		t.Errorf("removed outside: %v", err)
	}
	if err := DetachMoved(box.NS, pid, id+1000); err != nil {
		t.Errorf("never there: %v", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// If the target has moved after it was opened, the mount is not where it should be, and is
// removed again.
func TestConfirm(t *testing.T) {
	box, _ := startWorkspace(t)
	file, o := ownedFile(t), mappedOptions(t)
	for i, source := range []string{filepath.Dir(file), file} {
		target := fmt.Sprintf("/workspace/dir%d/point", i)
		tree := openTree(t, source, o)
		id, err := Attach(box.NS, tree, target, innerMaker(box))
		if err != nil {
			t.Fatal(err)
		}
		if err := box.NS.confirm(tree, target); err != nil {
			t.Error(err)
		}
		for _, move := range []func(){
			func() { box.must("rename", filepath.Dir(target), "/workspace/moved") },
			func() { box.must("mkdir", filepath.Dir(target)) },
			func() { box.must("mkdir", target) },
		} {
			move()
			err := box.NS.confirm(tree, target)
			if err == nil || !strings.Contains(err.Error(), "moved or covered") {
				t.Errorf("%s: %v", target, err)
			}
		}
		fds, err := openFDs()
		if err != nil {
			t.Fatal(err)
		}
		err = box.NS.enter(func() error { return unmountFile(fds, tree, target) })
		fds.Close()
		if is, ierr := IsMounted(box.NS, box.cmd.Process.Pid, id); is || err != nil || ierr != nil {
			t.Errorf("%s: still mounted: %v, %v, %v", target, is, err, ierr)
		}
		box.must("remove", "/workspace/moved/point")
		box.must("remove", "/workspace/moved")
	}
}
