package cgroups

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// TestReclaim: memory of a paused box gets into swap, which is forbidden again afterwards, and a process that ends in
// between leaves a permission that Adopt ends.
func TestReclaim(t *testing.T) {
	h := testHost(t)
	swaps := testutil.Swap(t, 128*mib)
	b := newBoxOn(t, h, Limits{Memory: 96 * mib})
	if b.v1Tree("memory") != nil {
		if why := b.WhyNoReclaim(); !strings.Contains(why, "cgroup v1") {
			t.Errorf("cgroup v1: %q", why)
		}
		return
	}
	if !swaps {
		t.Skip("swap is only turned on in the virtual machine of the tests")
	}
	if why := b.WhyNoReclaim(); why != "" {
		t.Fatal(why)
	}
	slot, _ := b.slot(t)
	hog := b.start(t, slot, "hog", strconv.Itoa(64*mib))
	if got := hog.line(t); got != "full" {
		t.Fatal(got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, b.Pause(ctx))
	bytes, err := b.Reclaim(ctx)
	check(t, err)
	inSwap, err := readNumber(b.v2.box, "work/memory.swap.current")
	check(t, err)
	if bytes < 48*mib || inSwap < 48*mib {
		t.Errorf("%d bytes reclaimed, %d in swap, of a process with %d", bytes, inSwap, 64*mib)
	}
	forbidden := func(what string) {
		t.Helper()
		for _, file := range []string{"memory.swap.max", "work/memory.swap.max"} {
			if n := b.number(t, "memory", file, ""); n != 0 {
				t.Errorf("%s: %s is %d", what, file, n)
			}
		}
	}
	forbidden("after Reclaim")
	done, stop := context.WithCancel(ctx)
	stop()
	if bytes, err := b.Reclaim(done); bytes != 0 || err != nil {
		t.Errorf("Reclaim without time: %d, %v", bytes, err)
	}
	check(t, b.allowSwap(done))
	forbidden("for a Reclaim without time")
	check(t, b.allowSwap(ctx))
	if n := b.number(t, "memory", "work/memory.swap.max", ""); n != 96*mib {
		t.Errorf("room in swap: %d, want the limit", n)
	}
	g, err := h.Adopt(b.ID, Owner{}, Limits{Memory: 96 * mib})
	check(t, err)
	check(t, g.Close())
	forbidden("after adoption")
	check(t, b.allowSwap(ctx))
	check(t, b.Resume())
	forbidden("after Resume")
}

// TestReclaimUnlimited: a box without a memory limit swaps as the host does, before and after.
func TestReclaimUnlimited(t *testing.T) {
	h := testHost(t)
	if !testutil.Swap(t, 64*mib) {
		t.Skip("swap is only turned on in the virtual machine of the tests")
	}
	b := newBoxOn(t, h, Limits{})
	slot, _ := b.slot(t)
	hog := b.start(t, slot, "hog", strconv.Itoa(32*mib))
	if got := hog.line(t); got != "full" {
		t.Fatal(got)
	}
	check(t, b.Pause(t.Context()))
	if bytes, err := b.Reclaim(t.Context()); bytes < 24*mib || err != nil {
		t.Errorf("%d bytes, %v", bytes, err)
	}
	if n := b.number(t, "memory", "work/memory.swap.max", ""); n != Unlimited {
		t.Errorf("memory.swap.max %d", n)
	}
	check(t, b.Resume())
}
