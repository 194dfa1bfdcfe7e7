package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

var lastID atomic.Int64

// testID is a box id that no other test process uses.
func testID() string { return fmt.Sprintf("cgtest-%d-%d", os.Getpid(), lastID.Add(1)) }

// testHost detects the host's cgroups.
func testHost(t testing.TB) *Host {
	t.Helper()
	testutil.RequireRoot(t)
	h, err := Detect()
	check(t, err)
	t.Cleanup(func() { check(t, h.Close()) })
	return h
}

// testGroup makes a box that is killed and removed when the test ends.
func testGroup(t testing.TB, l Limits) *Group {
	t.Helper()
	g, err := testHost(t).Create(testID(), Owner{}, l)
	check(t, err)
	t.Cleanup(func() {
		check(t, g.Kill())
		check(t, g.Remove(context.Background()))
	})
	return g
}

// testSlot makes a slot; it goes with its box.
func testSlot(t testing.TB, g *Group) (*Slot, *SlotStats) {
	t.Helper()
	s, err := g.NewSlot()
	check(t, err)
	stats := OpenStats(s.Stats)
	s.Stats = nil // now owned by stats
	t.Cleanup(func() {
		check(t, stats.Close())
		check(t, s.Close())
	})
	return s, stats
}

func TestSmoke(t *testing.T) {
	g := testGroup(t, Limits{Memory: 64 << 20, PIDs: 16, CPUs: 0.5})
	s, stats := testSlot(t, g)
	c := start(t, s, "sleep")
	if got := c.line(t); got != "ready" {
		t.Fatalf("child says %q", got)
	}
	populated, err := stats.Populated()
	if err != nil || !populated {
		t.Fatalf("populated %v, %v", populated, err)
	}
	check(t, g.Kill())
	if sig := c.wait(t); sig != syscall.SIGKILL {
		t.Errorf("ended by %v", sig)
	}
	check(t, stats.WaitEmpty(t.Context()))
	u, err := stats.Read()
	check(t, err)
	t.Logf("%s", u)
}

var _ = errors.Is
var _ fs.FileMode
var _ = slices.Sort[[]int]
var _ = strings.Cut
var _ = time.Now
var _ = unix.EBUSY
var _ context.Context
