package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"
)

// heard records what a Watcher has reported.
type heard struct {
	box   string
	limit Limit
	count int64
}

func newWatcher(t *testing.T) (*Watcher, chan heard) {
	t.Helper()
	told := make(chan heard, 1000)
	w, err := NewWatcher(func(box string, l Limit, count int64) { told <- heard{box, l, count} })
	check(t, err)
	t.Cleanup(func() { check(t, w.Close()) })
	return w, told
}

func await(t *testing.T, told chan heard, id string, l Limit) int64 {
	t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case h := <-told:
			if h.box != id {
				t.Fatalf("heard of box %q, not %q", h.box, id)
			}
			if h.limit == l {
				return h.count
			}
		case <-late:
			t.Fatalf("heard nothing of %s", l)
		}
	}
}

// TestWatcher: a Watcher reports hits of each limit, even of a box that another process has
// created, and none after Remove.
func TestWatcher(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		b := newBox(t, Limits{Memory: 64 * mib, PIDs: 32})
		w, told := newWatcher(t)
		g := b.Group
		if adopted {
			var err error
			g, err = b.host.Adopt(b.ID, Owner{}, b.Limits())
			check(t, err)
			t.Cleanup(func() { check(t, g.Close()) })
		}
		check(t, w.Add(g))
		s, err := g.NewSlot()
		check(t, err)
		b.start(t, s, "hog", fmt.Sprint(256*mib)).wait(t)
		if n := await(t, told, b.ID, MemoryLimit); n < 1 {
			t.Errorf("out of memory %d times", n)
		}
		check(t, s.Remove(t.Context()))
		s, err = g.NewSlot()
		check(t, err)
		bomb := b.start(t, s, "forks", "100")
		bomb.line(t)
		if n := await(t, told, b.ID, PIDsLimit); n < 1 {
			t.Errorf("%d forks refused", n)
		}
		check(t, s.Kill())
		bomb.wait(t)
		check(t, s.Remove(t.Context()))
		w.Remove(g)
		if len(w.boxes)+len(w.files)+len(w.memory) != 0 {
			t.Errorf("still watched: %d boxes, %d files, %d eventfds", len(w.boxes), len(w.files), len(w.memory))
		}
	}
}

// TestAdopt: another process takes over a box, unless a part of it is gone.
func TestAdopt(t *testing.T) {
	b := newBox(t, Limits{Memory: 64 * mib, PIDs: 16})
	old, _ := b.slot(t)
	g, err := b.host.Adopt(b.ID, Owner{}, b.Limits())
	check(t, err)
	defer g.Close()
	g.NumberFrom(1000)
	fresh, err := g.NewSlot()
	check(t, err)
	if fresh.Name != "1001" {
		t.Errorf("the next slot is %q", fresh.Name)
	}
	names, err := g.Slots()
	if err != nil || len(names) != 2 {
		t.Errorf("slots %q, %v", names, err)
	}
	again, err := g.Slot(old.Name)
	check(t, err)
	check(t, again.Open())
	c := b.start(t, again, "sleep")
	c.line(t)
	u, err := g.Usage()
	if err != nil || u.PIDs == nil || *u.PIDs < 1 || *u.PIDs > 16 || u.Memory == nil || u.CPUUsec == nil {
		t.Errorf("usage %+v, %v", u, err)
	}
	check(t, again.Kill())
	c.wait(t)
	check(t, again.Remove(t.Context()))
	check(t, fresh.Remove(t.Context()))
	for _, name := range []string{"", "..", "x", "-1", "1/2"} {
		if _, err := g.Slot(name); err == nil {
			t.Errorf("slot %q can be opened", name)
		}
	}
	if in, err := g.HasInit(os.Getpid()); in || err != nil {
		t.Errorf("this process as PID 1: %v, %v", in, err)
	}
	check(t, g.Set(Limits{PIDs: 8}))
	if l := g.Limits(); l.PIDs != 8 || l.Memory != 64*mib {
		t.Errorf("limits %+v", l)
	}
	if _, err := b.host.Adopt(testID(), Owner{}, Limits{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("adopting nothing: %v", err)
	}
}
