package testutil

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DefaultStateDir is where boxd keeps its state when nothing else is asked for.
const DefaultStateDir = "/run/boxd"

// How long teardown that goes on in the background may take before what is left
// counts as leaked. A killed network namespace alone is cleaned up by a kernel
// worker some 10 to 100 ms later.
const (
	settleTime       = 10 * time.Second
	settleTimeFailed = 2 * time.Second // tests failed already, leaks are likely
)

// maxReported bounds what is said about leaks: a test of many boxes that goes
// wrong leaves thousands of things.
const maxReported = 40

// Main runs the tests of a package and exits: with 1 if they passed but left
// something behind. It is the last call of a TestMain, after the test binary
// has played its helper roles.
//
// Compared before and after: open descriptors and goroutines of the test
// process, its descendants, processes of boxes, mounts, cgroups, loop devices of files of
// tests, and files below DefaultStateDir and stateDirs. Network namespaces need no check of their own:
// a process, a descriptor or a mount keeps each alive.
//
// As root it holds a lock of the whole machine meanwhile, so that two packages
// never take the other's boxes for leaks. A package that makes nothing of the
// kind uses [MainUnprivileged].
func Main(m *testing.M, stateDirs ...string) {
	os.Exit(run(m.Run, os.Stderr, append([]string{DefaultStateDir}, stateDirs...)))
}

// MainUnprivileged is Main for a package that makes no boxes, mounts or cgroups and
// whose tests need no root: it looks for descriptors, goroutines and descendants,
// and locks nothing. Such a package counts as a unit test (.ci/packages), and
// RequireRoot fails in it.
func MainUnprivileged(m *testing.M) {
	unprivileged = true
	if isFuzzWorker() {
		os.Exit(m.Run())
	}
	os.Exit(runChecked(m.Run, os.Stderr, ownChecks(), true, settleTime))
}

// unprivileged says that MainUnprivileged runs the tests.
var unprivileged bool

// ownChecks are those that look at this process only.
func ownChecks() []check {
	return slices.DeleteFunc(checks(nil), func(c check) bool { return c.machineWide })
}

// run is Main without the exit; tests is testing.M.Run.
func run(tests func() int, report io.Writer, stateDirs []string) int {
	if isFuzzWorker() {
		// A child of the fuzzing process, which holds the lock and does the check.
		return tests()
	}
	alone, unlock := lockMachine(report)
	defer unlock()
	return runChecked(tests, report, checks(stateDirs), alone, settleTime)
}

// runChecked runs tests and compares before and after. alone says that no other
// test package runs on this machine.
func runChecked(tests func() int, report io.Writer, kinds []check, alone bool, patience time.Duration) int {
	startPoller()
	unignoreSignals()
	before := takeSnapshot(kinds)
	code := tests()
	removeBinaries()
	// A collection from here on would close forgotten files, and so hide them.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	if code != 0 {
		patience = min(patience, settleTimeFailed)
	}
	leaks := awaitClean(kinds, before, patience)
	if len(leaks) > maxReported {
		fmt.Fprintf(report, "leaked: %d things, the first %d of them:\n", len(leaks), maxReported)
		leaks = leaks[:maxReported]
	}
	for _, l := range leaks {
		if l.machineWide && !alone && os.Getenv("CI") == "" {
			fmt.Fprintf(report, "possibly leaked, or of another test run: %s\n", l)
			continue
		}
		fmt.Fprintf(report, "leaked: %s\n", l)
		code = max(code, 1)
	}
	return code
}

// isFuzzWorker reads the flag that "go test -fuzz" starts its workers with.
func isFuzzWorker() bool {
	if !flag.Parsed() {
		flag.Parse()
	}
	f := flag.Lookup("test.fuzzworker")
	return f != nil && f.Value.String() == "true"
}

// unignoreSignals drops the signals that nohup(1) and the background jobs of a
// shell ignore in a handler instead. Ignored ones would be inherited by the programs
// under test, which then would not be as their users find them.
func unignoreSignals() {
	dropped := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(dropped, sig)
		}
	}
}

// startPoller makes the runtime open the epoll and event descriptors that it
// keeps for good, so that they are in the first snapshot.
func startPoller() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}

// reapInherited reaps zombies if this process has made itself a subreaper, as
// PR_SET_CHILD_SUBREAPER(2const) asks of one: whose parent died at the very end
// may not have been seen by any test. The tests are over, nobody else waits.
func reapInherited() {
	var subreaper int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0)
	for err == nil && subreaper != 0 {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != nil || pid == 0 {
			return
		}
	}
}

// awaitClean waits, up to patience, until nothing is there that was not there
// before, and returns what still is.
func awaitClean(kinds []check, before snapshot, patience time.Duration) []leak {
	deadline := time.Now().Add(patience)
	// There is no event for "all of this is gone": it is polled, ever more slowly.
	for pause := time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		reapInherited()
		leaks := compare(kinds, before, takeSnapshot(kinds))
		if len(leaks) == 0 || time.Now().After(deadline) {
			return leaks
		}
		time.Sleep(pause)
	}
}
