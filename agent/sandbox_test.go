package agent

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestFirstOnly: each signal has a place of its own among those that Go delivers.
func TestFirstOnly(t *testing.T) {
	seen := map[unix.Signal]unix.Signal{}
	for sig := unix.Signal(1); sig <= 31; sig++ {
		as := firstOnly(sig)
		if sig == unix.SIGSTKFLT {
			if as != 0 {
				t.Errorf("SIGSTKFLT is passed as %d", as)
			}
			continue
		}
		if as < 35 || as > 64 || seen[as] != 0 || passed(as) != sig {
			t.Errorf("signal %d is passed as %d, like %d, and arrives as %d", sig, as, seen[as], passed(as))
		}
		seen[as] = sig
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, 33, 34} {
		if passed(sig) != 0 {
			t.Errorf("signal %d counts as one for the first process", sig)
		}
	}
}
