package cgroups

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

func TestCommandInSlot(t *testing.T) {
	b := newBox(t, Limits{Memory: 64 * mib, PIDs: 16, CPUs: 0.5})
	s, stats := b.slot(t)
	c := b.start(t, s, "sleep")
	c.line(t)
	if populated, err := stats.Populated(); err != nil || !populated {
		t.Fatalf("populated %v, %v", populated, err)
	}
	for _, tree := range b.trees() {
		in := "work/" + s.Name
		if !slices.Contains(b.slotTrees(), tree) {
			in = "work" // the limit is there, and all commands with it
		}
		pids, err := readPIDs(tree.box, in+"/cgroup.procs")
		if err != nil || !slices.Contains(pids, c.cmd.Process.Pid) || in != "work" && len(pids) != 1 {
			t.Errorf("%s: processes %v, %v", tree.box.Name(), pids, err)
		}
	}
	check(t, s.Kill())
	if sig := c.wait(t); sig != syscall.SIGKILL {
		t.Errorf("ended by %v", sig)
	}
	check(t, stats.WaitEmpty(t.Context()))
	check(t, s.Remove(t.Context()))
	if populated, err := stats.Populated(); err != nil || populated {
		t.Errorf("populated after removal: %v, %v", populated, err)
	}
	check(t, stats.WaitEmpty(t.Context()))
	check(t, s.Kill())
}

// legacy returns this host as if cgroup2 were not mounted.
func legacy(t *testing.T) *Host {
	h := testHost(t)
	mounted, err := linux.ReadMountInfo()
	check(t, err)
	mounted = slices.DeleteFunc(mounted, func(m linux.MountInfo) bool { return m.FSType == "cgroup2" })
	if h.mode == Unified {
		// A mount there would change the options of the one in use.
		mounted = nil
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	check(t, err)
	l, err := detect(mounted, parseOwnCgroups(string(own)))
	check(t, err)
	t.Cleanup(func() { check(t, l.Close()) })
	if l.Mode() != Legacy || l.Mountpoint("") != "" {
		t.Errorf("mode %s, cgroup2 at %q", l.Mode(), l.Mountpoint(""))
	}
	tree, err := l.ReadOnlyTree()
	check(t, err)
	check(t, tree.Close())
	return l
}

func TestLegacyHost(t *testing.T) {
	b := newBoxOn(t, legacy(t), Limits{})
	s, stats := b.slot(t)
	b.start(t, s, "sleep").line(t)
	check(t, b.Kill())
	check(t, stats.WaitEmpty(t.Context()))
}

func TestReadOnlyTree(t *testing.T) {
	h := testHost(t)
	tree, err := h.ReadOnlyTree()
	check(t, err)
	defer tree.Close()
	if err := linux.MkdirAt(tree, "boxd-"+testID(), 0o755); !errors.Is(err, unix.EROFS) {
		t.Errorf("mkdir in the read-only tree: %v", err)
	}
	if h.v2.dir == nil || !exists(tree, "cgroup.procs") {
		t.Error("the tree is not cgroup2")
	}
}

// TestSlotDirIsSealed: the agent's descriptors give access to nothing else.
func TestSlotDirIsSealed(t *testing.T) {
	b := newBox(t, Limits{})
	s, _ := b.slot(t)
	up, err := linux.Fstat(s.Dir)
	check(t, err)
	box, err := linux.Fstat(b.v2.box)
	check(t, err)
	top, err := openDir(s.Dir, "../../../../../..")
	check(t, err)
	defer top.Close()
	st, err := linux.Fstat(top)
	check(t, err)
	if st.Ino != box.Ino || up.Ino == box.Ino {
		t.Errorf("the way up ends at inode %d, want %d, that of the box", st.Ino, box.Ino)
	}
	for _, name := range []string{"cgroup.procs", "cgroup.freeze", "../cgroup.procs", "../../cgroup.procs"} {
		if err := linux.WriteFileAt(s.Dir, name, "0"); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing %s: %v, want EROFS", name, err)
		}
	}
	if err := linux.MkdirAt(s.Dir, "x", 0o755); !errors.Is(err, unix.EROFS) {
		t.Errorf("mkdir: %v, want EROFS", err)
	}
}

func TestThreadGoesThereAndBack(t *testing.T) {
	b := newBox(t, Limits{PIDs: 16})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := os.ReadFile("/proc/thread-self/cgroup")
	check(t, err)
	check(t, b.EnterThread())
	within, err := os.ReadFile("/proc/thread-self/cgroup")
	check(t, err)
	dir, err := b.InitDir()
	check(t, err)
	defer dir.Close()
	c := newChild(t, nil, "sleep")
	c.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	serr := c.cmd.Start()
	check(t, b.LeaveThread())
	c.started()
	check(t, serr)
	after, err := os.ReadFile("/proc/thread-self/cgroup")
	check(t, err)
	if string(before) != string(after) {
		t.Errorf("before:\n%safter:\n%s", before, after)
	}
	if n := strings.Count(string(within), "/boxd/"+b.ID); n != strings.Count(string(within), "\n") && len(b.v1) > n {
		t.Errorf("within:\n%s", within)
	}
	c.line(t)
	for i, tree := range b.trees() {
		name := "cgroup.procs"
		if i == 0 {
			name = "init/cgroup.procs"
		}
		if pids, err := readPIDs(tree.box, name); err != nil || !slices.Contains(pids, c.cmd.Process.Pid) {
			t.Errorf("%s/%s: %v, %v", tree.box.Name(), name, pids, err)
		}
	}
	check(t, b.Kill())
	if sig := c.wait(t); sig != syscall.SIGKILL {
		t.Errorf("ended by %v", sig)
	}
}

func TestOpenGroupAndList(t *testing.T) {
	h := testHost(t)
	b := newBoxOn(t, h, Limits{})
	s, stats := b.slot(t)
	b.start(t, s, "sleep").line(t)
	ids, err := h.List()
	if err != nil || !slices.Contains(ids, b.ID) {
		t.Fatalf("list %v, %v", ids, err)
	}
	if _, err := h.Create(b.ID, Owner{}, Limits{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("creating a box twice: %v", err)
	}
	g, err := h.OpenGroup(b.ID)
	check(t, err)
	check(t, g.Kill())
	check(t, stats.WaitEmpty(t.Context()))
	check(t, g.WaitEmpty(t.Context()))
	check(t, g.Close())
	if _, err := h.OpenGroup(testID()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening a box that is not there: %v", err)
	}
	for _, id := range []string{"", ".", "..", "a/b", "../x", "a\nb", strings.Repeat("x", 201)} {
		if _, err := h.OpenGroup(id); err == nil {
			t.Errorf("opening %q worked", id)
		}
		if _, err := h.Create(id, Owner{}, Limits{}); err == nil {
			t.Errorf("creating %q worked", id)
		}
	}
}

// TestLeftoverOnOneHierarchy: a crash has left half of a box.
func TestLeftoverOnOneHierarchy(t *testing.T) {
	h := testHost(t)
	for _, on := range h.trees() {
		id := testID()
		box, err := makeBox(on.dir, id)
		check(t, err)
		check(t, linux.MkdirAt(box, "work", 0o755))
		check(t, linux.MkdirAt(box, "work/1", 0o755))
		check(t, box.Close())
		g, err := h.OpenGroup(id)
		check(t, err)
		check(t, g.Kill())
		check(t, g.Remove(t.Context()))
		mustBeGone(t, h, id)
	}
}

func TestRemoveUnderChurn(t *testing.T) {
	h := testHost(t)
	b := newBoxOn(t, h, Limits{Memory: 128 * mib, PIDs: 200})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s, err := b.NewSlot()
				if err != nil {
					t.Error(err)
					return
				}
				c := newChild(t, s, "daemon")
				done := make(chan error)
				b.spawn <- func() { done <- c.cmd.Start() }
				if err := <-done; err != nil {
					t.Error(err)
				}
				c.started()
				c.cmd.Wait()
				if err := errors.Join(s.Kill(), s.Remove(t.Context())); err != nil {
					t.Error(err)
				}
			}
		})
	}
	other := make(chan error)
	go func() {
		for range 20 {
			g, err := h.Create(testID(), Owner{}, Limits{PIDs: 10})
			if err == nil {
				err = g.Remove(t.Context())
			}
			if err != nil {
				other <- err
				return
			}
		}
		other <- nil
	}()
	check(t, <-other)
	close(stop)
	wg.Wait()
}

func TestRemoveTwice(t *testing.T) {
	h := testHost(t)
	g, err := h.Create(testID(), Owner{}, Limits{PIDs: 10})
	check(t, err)
	s, err := g.NewSlot()
	check(t, err)
	check(t, g.Remove(t.Context()))
	check(t, g.Remove(t.Context()))
	check(t, s.Remove(t.Context()))
	check(t, s.Remove(t.Context()))
	check(t, g.Close())
	mustBeGone(t, h, g.ID)
}

func TestRemoveOfALiveBoxFails(t *testing.T) {
	b := newBox(t, Limits{})
	s, _ := b.slot(t)
	b.start(t, s, "sleep").line(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Remove(ctx); !errors.Is(err, unix.EBUSY) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removing a live box: %v", err)
	}
}
