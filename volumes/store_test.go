package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

func TestMakeRemove(t *testing.T) {
	kinds(t, func(t *testing.T, by string) {
		p := newPlace(t)
		s := p.open(t, by)
		if _, err := s.Root("v"); !errors.Is(err, ErrUnknown) {
			t.Errorf("root of nothing: %v", err)
		}
		if _, err := s.Get("v"); !errors.Is(err, ErrUnknown) {
			t.Errorf("state of nothing: %v", err)
		}
		if err := errors.Join(s.Make("..", 4<<20, 0), s.Remove("a/b"), s.Release("")); err == nil {
			t.Error("names are not checked")
		}
		if err := errors.Join(s.Remove("v"), s.Release("v")); err != nil {
			t.Errorf("removing nothing: %v", err)
		}
		mustMake(t, s, "v", 4<<20, 0)
		mustMake(t, s, "v", 4<<20, 0)
		root := mustRoot(t, s, "v")
		st, err := linux.Fstat(root)
		if err != nil {
			t.Fatal(err)
		}
		if st.Uid != testUID || st.Gid != testGID || st.Mode != unix.S_IFDIR|0o700 {
			t.Errorf("root has owner %d:%d and mode %#o", st.Uid, st.Gid, st.Mode)
		}
		if flags, err := unix.FcntlInt(root.Fd(), unix.F_GETFL, 0); flags&unix.O_PATH == 0 || err != nil {
			t.Errorf("root has flags %#x, %v", flags, err)
		}
		asUser(t, root, func() error {
			names, err := os.ReadDir(".")
			if len(names) != 0 {
				t.Errorf("a new volume has %v in it", names)
			}
			return err
		})
		soon(func() bool { return mustState(t, s, "v").UsedInodes == 1 })
		if got := mustState(t, s, "v"); got != (State{Name: "v", Bytes: 4 << 20, Inodes: got.Inodes, UsedBytes: got.UsedBytes, UsedInodes: 1, By: by}) || got.UsedBytes > 4096 {
			t.Errorf("%+v", got)
		}
		root.Close()
		if err := s.Remove("v"); err != nil {
			t.Fatal(err)
		}
		if states, err := s.List(); len(states) != 0 || err != nil {
			t.Errorf("after removal: %v, %v", states, err)
		}
		onlyMarker(t, p)
	})
}

// onlyMarker checks that nothing but the marker is left in the data directory.
func onlyMarker(t testing.TB, p place) {
	t.Helper()
	for _, dir := range []string{p.data, filepath.Join(p.data, trashName), p.mounts} {
		names, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		for _, name := range names {
			if name.Name() != markerName && name.Name() != trashName {
				t.Errorf("left in %s: %s", dir, name.Name())
			}
		}
	}
}

// TestImageIsClosed: only root can access an image or its content.
func TestImageIsClosed(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "v", 4<<20, 0)
	root := mustRoot(t, s, "v")
	for _, path := range []string{p.data, p.mounts, filepath.Join(p.data, "v.img"), filepath.Join(p.mounts, "v/root")} {
		asUser(t, root, func() error {
			if _, err := os.Stat(path + "/."); !errors.Is(err, os.ErrPermission) {
				t.Errorf("%s can be reached: %v", path, err)
			}
			return nil
		})
	}
	st, err := os.Stat(filepath.Join(p.data, "v.img"))
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode() != 0o600 {
		t.Errorf("image has mode %v", st.Mode())
	}
	fs, err := linux.Fstatfs(root)
	if err != nil || fs.Flags&(unix.ST_NOSUID|unix.ST_NODEV) != unix.ST_NOSUID|unix.ST_NODEV {
		t.Errorf("mounted with flags %#x, %v", fs.Flags, err)
	}
	for _, loop := range loopsOf(t, p.data) {
		node, _, _ := strings.Cut(loop, " ")
		asUser(t, root, func() error {
			if f, err := os.Open(node); err == nil {
				t.Errorf("%s can be opened", node)
				f.Close()
			}
			return nil
		})
	}
}

// TestLoopFlags: the device frees itself whatever happens to this process.
func TestLoopFlags(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "v", 4<<20, 0)
	image, err := openFile(s.dir, "v.img", unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	dev, err := findLoop(image)
	if err != nil || dev == nil {
		t.Fatal(dev, err)
	}
	defer dev.Close()
	info, err := linux.LoopStatus(dev)
	if err != nil || info.Flags&unix.LO_FLAGS_AUTOCLEAR == 0 {
		t.Errorf("flags %#x, %v", info.Flags, err)
	}
	t.Logf("flags %#x: direct I/O is %v", info.Flags, info.Flags&unix.LO_FLAGS_DIRECT_IO != 0)
}

func TestConcurrent(t *testing.T) {
	kinds(t, func(t *testing.T, by string) {
		p := newPlace(t)
		s := p.open(t, by)
		var all sync.WaitGroup
		for i := range 40 {
			// Four goroutines use each volume, and some remove it meanwhile.
			name := fmt.Sprintf("v%d", i/4)
			all.Go(func() {
				for range 3 {
					if err := s.Make(name, 4<<20, 0); err != nil {
						t.Error(err)
						return
					}
					root, err := s.Root(name)
					if i/4%3 == 0 && errors.Is(err, ErrUnknown) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					root.Close()
					if i/4%3 == 0 {
						err = s.Remove(name)
					} else {
						err = s.Release(name)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Go(func() {
			for range 5 {
				if _, err := s.List(); err != nil {
					t.Error(err)
				}
			}
		})
		all.Wait()
		states, err := s.List()
		if err != nil {
			t.Fatal(err)
		}
		if len(states) < 6 {
			t.Errorf("%d volumes", len(states))
		}
		for _, st := range states {
			if err := s.Remove(st.Name); err != nil {
				t.Error(err)
			}
		}
		onlyMarker(t, p)
	})
}

// TestManyImages: two Stores bind many images at the same time, and compete for free devices.
func TestManyImages(t *testing.T) {
	requireLoop(t)
	stores := []*Store{openStore(t, ByImage), openStore(t, ByImage)}
	var all sync.WaitGroup
	for _, s := range stores {
		for i := range 12 {
			all.Go(func() {
				if err := s.Make(fmt.Sprintf("v%d", i), 1<<20, 16); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	for _, s := range stores {
		states, err := s.List()
		if len(states) != 12 || err != nil {
			t.Errorf("%d volumes: %v", len(states), err)
		}
	}
}

// TestImageRemovedInUse: a box continues to use its image, within its limits, and a new volume
// of the same name is a different one.
func TestImageRemovedInUse(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "v", 4<<20, 0)
	root := mustRoot(t, s, "v")
	box := hold(t, root)
	asUser(t, root, func() error { return os.WriteFile("old", nil, 0o600) })
	if err := s.Remove("v"); err != nil {
		t.Fatal(err)
	}
	onlyMarker(t, p)
	if _, err := s.Root("v"); !errors.Is(err, ErrUnknown) {
		t.Errorf("%v", err)
	}
	asUser(t, root, func() error {
		if n, err := fill("more"); n > 4<<20 || !isFull(err) {
			t.Errorf("%d bytes, then %v", n, err)
		}
		return nil
	})
	mustMake(t, s, "v", 4<<20, 0)
	next := mustRoot(t, s, "v")
	asUser(t, next, func() error {
		if _, err := os.Stat("old"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the new volume has the old one's files: %v", err)
		}
		return os.WriteFile("new", nil, 0o600)
	})
	next.Close()
	if n := len(loopsOf(t, p.data)); n != 2 {
		t.Errorf("%d devices", n)
	}
	if err := s.Release("v"); err != nil {
		t.Fatal(err)
	}
	asUser(t, mustRoot(t, s, "v"), func() error { return second(os.Stat("new")) })
	root.Close()
	box()
	if err := s.Remove("v"); err != nil {
		t.Error(err)
	}
	onlyMarker(t, p)
}

// TestReleaseInUse: descriptors stay usable, and Root finds the same file system.
func TestReleaseInUse(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "v", 4<<20, 0)
	root := mustRoot(t, s, "v")
	if err := s.Release("v"); err != nil {
		t.Fatal(err)
	}
	asUser(t, root, func() error { return os.WriteFile("f", nil, 0o600) })
	again := mustRoot(t, s, "v")
	asUser(t, again, func() error { return second(os.Stat("f")) })
	if n := len(loopsOf(t, p.data)); n != 1 {
		t.Errorf("%d devices", n)
	}
	again.Close()
	root.Close()
	if err := s.Release("v"); err != nil {
		t.Fatal(err)
	}
	if loops := loopsOf(t, p.data); len(loops) != 0 {
		t.Errorf("idle, but has %v", loops)
	}
	if st, err := s.Get("v"); st.UsedInodes != 2 || err != nil {
		t.Errorf("%+v, %v", st, err)
	}
}

// hold makes a copy of the mount of root, like that of a box, until end is called.
func hold(t *testing.T, root *os.File) (end func()) {
	t.Helper()
	tree, err := linux.OpenTree(root, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return func() { tree.Close() }
}

// TestImageFoundAgain: the launcher dies while a box uses an image. The next launcher must
// mount the same device: a second device on the same image would destroy it.
func TestImageFoundAgain(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "v", 4<<20, 0)
	root := mustRoot(t, s, "v")
	box := hold(t, root)
	root.Close()
	before := loopsOf(t, p.data)
	if err := s.Close(); err != nil { // takes its mounts away, as the end of its namespace does
		t.Fatal(err)
	}
	s = p.open(t, ByImage)
	root = mustRoot(t, s, "v")
	if after := loopsOf(t, p.data); len(before) != 1 || len(after) != 1 || before[0] != after[0] {
		t.Errorf("devices before %v, after %v", before, after)
	}
	asUser(t, root, func() error { return os.WriteFile("f", []byte("x"), 0o600) })
	root.Close()
	box()
	if err := s.Release("v"); err != nil {
		t.Fatal(err)
	}
	asUser(t, mustRoot(t, s, "v"), func() error {
		text, err := os.ReadFile("f")
		if string(text) != "x" {
			t.Errorf("read %q", text)
		}
		return err
	})
}

// TestDiskFull: if the disk has no room for an image, the image becomes read-only. It is refused
// as long as it is in use, and then repaired.
func TestDiskFull(t *testing.T) {
	requireLoop(t)
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=40M,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	p := place{data: filepath.Join(dir, "data"), mounts: filepath.Join(dir, "mounts")}
	s := p.open(t, ByImage)
	mustMake(t, s, "v", 200<<20, 0)
	root := mustRoot(t, s, "v")
	if err := tryAsUser(root, func() error { return second(fill("file")) }); err == nil {
		t.Fatal("the disk was not full")
	}
	err := tryAsUser(root, func() error { return os.WriteFile("other", nil, 0o600) })
	if !errors.Is(err, unix.EROFS) {
		t.Skip("the file system goes on: ", err)
	}
	again, err := s.Root("v")
	if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "read-only after an error") {
		t.Errorf("opened while it cannot be written to: %v", err)
		again.Close() // nil is fine
	}
	if _, err := s.List(); err != nil {
		t.Error(err)
	}
	root.Close()
	if err := s.Release("v"); err != nil {
		t.Fatal(err)
	}
	root = mustRoot(t, s, "v")
	asUser(t, root, func() error { return errors.Join(os.Remove("file"), os.WriteFile("other", nil, 0o600)) })
	root.Close()
	if err := s.Remove("v"); err != nil {
		t.Error(err)
	}
	mustMake(t, s, "w", 4<<20, 0)
}

// TestUnclean: a power failure while the image was mounted.
func TestUnclean(t *testing.T) {
	requireLoop(t)
	testutil.RequireProgram(t, "e2fsck")
	p := newPlace(t)
	s := p.open(t, ByImage)
	mustMake(t, s, "v", 4<<20, 0)
	root := mustRoot(t, s, "v")
	asUser(t, root, func() error { return os.WriteFile("f", []byte("x"), 0o600) })
	unix.Sync()
	// Copy what is on disk while it is mounted.
	copied, err := os.ReadFile(filepath.Join(p.data, "v.img"))
	if err != nil {
		t.Fatal(err)
	}
	root.Close()
	if err := s.Release("v"); err != nil {
		t.Fatal(err)
	}
	// Also make something wrong in it: the count of free blocks.
	if sb, err := parseSuper(copied[superOffset : superOffset+superSize]); err != nil || sb.clean {
		t.Fatalf("%+v, %v: a mounted file system must not be marked as clean", sb, err)
	}
	if err := os.WriteFile(filepath.Join(p.data, "v.img"), copied, 0o600); err != nil {
		t.Fatal(err)
	}
	asUser(t, mustRoot(t, s, "v"), func() error {
		text, err := os.ReadFile("f")
		if string(text) != "x" {
			t.Errorf("read %q", text)
		}
		return err
	})
	if err := s.Make("v", 4<<20, 0); err != nil {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	testutil.RequireRoot(t)
	patience := lockPatience
	lockPatience = 0
	defer func() { lockPatience = patience }()
	for _, test := range []struct {
		name string
		make func(t *testing.T, p place) error
		want string
	}{
		{"other user", func(t *testing.T, p place) error {
			return errors.Join(os.Mkdir(p.data, 0o700), os.Chown(p.data, testUID, 0))
		}, "belongs to user"},
		{"open to others", func(t *testing.T, p place) error {
			return errors.Join(os.Mkdir(p.data, 0o755), os.Chmod(p.data, 0o755))
		}, "with mode 0755"},
		{"symlink", func(t *testing.T, p place) error {
			return errors.Join(os.Mkdir(p.data+"x", 0o700), os.Symlink(p.data+"x", p.data))
		}, "no symlink"},
		{"file", func(t *testing.T, p place) error { return os.WriteFile(p.data, nil, 0o600) }, "must be a directory"},
		{"not empty", func(t *testing.T, p place) error { return os.MkdirAll(p.data+"/something", 0o700) }, "is empty"},
		{"no parent", func(t *testing.T, p place) error { return os.Remove(filepath.Dir(p.data)) }, "cannot be made"},
		{"mounts of others", func(t *testing.T, p place) error {
			return errors.Join(os.Mkdir(p.mounts, 0o777), os.Chmod(p.mounts, 0o777))
		}, "mount directory"},
		{"marker is a symlink", func(t *testing.T, p place) error {
			return errors.Join(os.Mkdir(p.data, 0o700), os.Symlink("/etc/passwd", p.data+"/"+markerName))
		}, "symbolic links"},
		{"shared mount", func(t *testing.T, p place) error {
			err := errors.Join(os.Mkdir(p.mounts, 0o700), unix.Mount(p.mounts, p.mounts, "", unix.MS_BIND, ""), unix.Mount("", p.mounts, "", unix.MS_SHARED, ""))
			t.Cleanup(func() { unix.Unmount(p.mounts, unix.MNT_DETACH) })
			return err
		}, "shared mount"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPlace(t)
			if err := test.make(t, p); err != nil {
				t.Fatal(err)
			}
			s, err := Open(p.data, p.mounts, testUID, testGID)
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	t.Run("twice", func(t *testing.T) {
		p := newPlace(t)
		s := p.open(t, ByImage)
		if _, err := Open(p.data, p.mounts, testUID, testGID); err == nil || !strings.Contains(err.Error(), "another process") {
			t.Errorf("%v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		p.open(t, ByImage)
	})
}

// TestSwapped: something else is in the place of what the Store has created.
func TestSwapped(t *testing.T) {
	kinds(t, func(t *testing.T, by string) {
		suffix := map[string]string{ByImage: imageSuffix, ByProjectQuota: dirSuffix}[by]
		outside := filepath.Join(t.TempDir(), "outside")
		for _, test := range []struct {
			name string
			swap func(path string) error
		}{
			{"symlink", func(path string) error { return os.Symlink(outside, path) }},
			{"symlink to the right thing", func(path string) error {
				return errors.Join(os.Rename(path+".x", path+".y"), os.Symlink(path+".y", path))
			}},
			{"FIFO", func(path string) error { return unix.Mkfifo(path, 0o600) }},
			{"other kind", func(path string) error {
				if by == ByImage {
					return os.Mkdir(path, 0o700)
				}
				return os.WriteFile(path, nil, 0o600)
			}},
			{"second name", func(path string) error {
				if by == ByProjectQuota {
					return os.Mkdir(path, 0o700) // of no project
				}
				return os.Link(path+".x", path)
			}},
			{"of a user", func(path string) error {
				if by == ByProjectQuota {
					return os.Mkdir(path, 0o700)
				}
				return errors.Join(os.Rename(path+".x", path), os.Chown(path, testUID, 0))
			}},
			{"open to others", func(path string) error {
				if by == ByProjectQuota {
					return os.Mkdir(path, 0o777)
				}
				return errors.Join(os.Rename(path+".x", path), os.Chmod(path, 0o666))
			}},
		} {
			t.Run(test.name, func(t *testing.T) {
				p := newPlace(t)
				s := p.open(t, by)
				if err := os.MkdirAll(outside, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(outside+"/kept", nil, 0o600); err != nil {
					t.Fatal(err)
				}
				mustMake(t, s, "v", 4<<20, 0)
				if err := s.Release("v"); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(p.data, "v"+suffix)
				if err := errors.Join(os.Rename(path, path+".x"), test.swap(path)); err != nil {
					t.Fatal(err)
				}
				if root, err := s.Root("v"); err == nil {
					t.Error("the root was opened")
					root.Close()
				}
				mustMake(t, s, "w", 4<<20, 0)
				list, err := s.List()
				if len(list) != 2 || list[0].Name != "v" || list[1].Bytes != 4<<20 {
					t.Errorf("list: %+v, %v", list, err)
				}
				if by == ByImage && (err == nil || list[0].By != "") {
					t.Errorf("what cannot be read: %+v, %v", list[0], err)
				}
				if err := errors.Join(s.Remove("v"), s.Remove("w")); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(outside + "/kept"); err != nil {
					t.Error(err)
				}
				if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("still there: %v", err)
				}
				os.RemoveAll(path + ".x")
				os.RemoveAll(path + ".y")
				mustMake(t, s, "v", 4<<20, 0)
				mustRoot(t, s, "v").Close()
			})
		}
	})
}

// TestNothing: the error of a host that supports neither kind says so.
func TestNothing(t *testing.T) {
	testutil.RequireRoot(t)
	s := openStore(t, ByImage)
	null, err := os.Create(filepath.Join(t.TempDir(), "null"))
	if err != nil {
		t.Fatal(err)
	}
	null.Close()
	if err := unix.Mount(null.Name(), "/dev/loop-control", "", unix.MS_BIND, ""); err != nil {
		t.Skip("no /dev/loop-control to hide: ", err)
	}
	err = s.Make("v", 4<<20, 0)
	if e := unix.Unmount("/dev/loop-control", 0); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, ErrNoLoop) || !errors.Is(err, ErrNoQuota) {
		t.Errorf("%v", err)
	}
	if states, err := s.List(); len(states) != 0 || err != nil {
		t.Error(states, err)
	}
}

// TestNoNodes: the same on a host without nodes of loop devices.
func TestNoNodes(t *testing.T) {
	requireLoop(t)
	p := newPlace(t)
	s := p.open(t, ByImage)
	dev := t.TempDir()
	for _, name := range []string{"null", "loop-control"} {
		if err := os.WriteFile(filepath.Join(dev, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("/dev/"+name, filepath.Join(dev, name), "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(filepath.Join(dev, name), unix.MNT_DETACH)
	}
	if err := unix.Mount(dev, "/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	err := s.Make("v", 4<<20, 0)
	if e := unix.Unmount("/dev", unix.MNT_DETACH); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, ErrNoLoop) {
		t.Errorf("%v", err)
	}
	onlyMarker(t, p)
}

// TestIDMapped: an ID-mapped mount can show the root as another user's, as for boxes.
func TestIDMapped(t *testing.T) {
	kinds(t, func(t *testing.T, by string) {
		testutil.RequireFeature(t, "id-mapped mounts", linux.ProbeIDMap(t.TempDir()))
		s := openStore(t, by)
		mustMake(t, s, "v", 4<<20, 0)
		const boxUser = 300_000
		ns, err := linux.NewUserNS(fmt.Sprintf("%d %d 1\n", testUID, boxUser), fmt.Sprintf("%d %d 1\n", testGID, boxUser))
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		root := mustRoot(t, s, "v")
		tree, err := linux.OpenTree(root, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		err = linux.MountSetattr(tree, false, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := linux.Fstat(tree); st.Uid != boxUser || err != nil {
			t.Errorf("belongs to %d, %v", st.Uid, err)
		}
		root.Close()
		if err := s.Release("v"); err != nil {
			t.Error(err)
		}
		// It still works: a box has such a clone.
		if _, err := linux.Fstatfs(tree); err != nil {
			t.Error(err)
		}
	})
}

// TestTornSuper: an e2fsck that was killed while it wrote the super block leaves new values
// with the old checksum. The next check continues from there. Anything but a super block of
// ours is left alone.
func TestTornSuper(t *testing.T) {
	for name, field := range map[string]int64{"free blocks": 0xc, "free inodes": 0x10, "time of the last check": 0x40, "state": 0x3a, "checksum": 0x3fc} {
		image, err := os.Create(filepath.Join(t.TempDir(), "image"))
		if err != nil {
			t.Fatal(err)
		}
		defer image.Close()
		if err := format(image, 8<<20, 1024); err != nil {
			t.Fatal(err)
		}
		if err := sealSuper(image); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), "e2fsck", image, 0, "-f", "-n"); err != nil {
			t.Fatalf("our checksum is not that of e2fsprogs: %v", err)
		}
		for range 2 {
			var b [1]byte
			if _, err := image.ReadAt(b[:], superOffset+field); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 1
			if _, err := image.WriteAt(b[:], superOffset+field); err != nil {
				t.Fatal(err)
			}
			if sb, err := readSuper(image); err != nil || sb.clean {
				t.Errorf("%s: %+v, %v: want one to be checked", name, sb, err)
			}
			if err := check(t.Context(), image); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if sb, err := readSuper(image); err != nil || !sb.clean {
				t.Errorf("%s: %+v, %v after the check", name, sb, err)
			}
		}
		if err := run(t.Context(), "e2fsck", image, 0, "-f", "-n"); err != nil {
			t.Errorf("%s: after the check: %v", name, err)
		}
		if _, err := image.WriteAt([]byte{0}, superOffset+0x38); err != nil { // the magic number
			t.Fatal(err)
		}
		if check(t.Context(), image) == nil {
			t.Errorf("%s: a super block that is none was taken for one", name)
		}
	}
}
