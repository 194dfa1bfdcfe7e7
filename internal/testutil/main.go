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

// How long teardown in the background may take before the rest counts as leaked. A kernel worker
// cleans up a network namespace, for example, 10 to 100 ms after its end.
const (
	settleTime       = 10 * time.Second
	settleTimeFailed = 2 * time.Second // tests failed already, leaks are likely
)

// maxReported bounds how many leaks are reported: if a test of many boxes fails, it leaves thousands
// of things.
const maxReported = 40

// Main runs the tests of a package and exits, with status 1 if they passed but left something behind.
// It is the last call of a TestMain, after the test binary has played its helper roles.
//
// It compares before and after: open descriptors and goroutines of the test process, its descendants,
// processes of boxes, mounts, cgroups, loop devices of tests' files, and files below DefaultStateDir
// and stateDirs. Network namespaces need no check of their own, because a process, a descriptor or a
// mount keeps each alive.
//
// As root it holds a lock of the whole machine, so that no package takes another's boxes for leaks.
// A package that creates nothing of the kind uses [MainUnprivileged].
func Main(m *testing.M, stateDirs ...string) {
	os.Exit(run(m.Run, os.Stderr, append([]string{DefaultStateDir}, stateDirs...)))
}

// MainReaping is [Main] for a package whose tests kill daemons. What outlives its parent becomes a
// child of this process, so nothing gets out of sight, and is reaped at the end.
func MainReaping(m *testing.M) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	Main(m)
}

// MainUnprivileged is [Main] for a package whose tests need no root and create no boxes, mounts or
// cgroups: it compares descriptors, goroutines and descendants, and locks nothing. Such a package
// counts as a unit test (.ci/packages), and RequireRoot fails in it.
func MainUnprivileged(m *testing.M) {
	unprivileged = true
	if isFuzzWorker() {
		os.Exit(m.Run())
	}
	os.Exit(runChecked(m.Run, os.Stderr, ownChecks(), true, settleTime))
}

// unprivileged is set if MainUnprivileged runs the tests.
var unprivileged bool

// ownChecks returns the checks that look at this process only.
func ownChecks() []check {
	return slices.DeleteFunc(checks(nil), func(c check) bool { return c.machineWide })
}

// run is Main without the exit; tests is testing.M.Run.
func run(tests func() int, report io.Writer, stateDirs []string) int {
	if isFuzzWorker() {
		// The fuzzing process, its parent, holds the lock and does the check.
		return tests()
	}
	alone, unlock := lockMachine(report)
	defer unlock()
	return runChecked(tests, report, checks(stateDirs), alone, settleTime)
}

// runChecked runs tests and compares before and after. alone means that no other test package runs on
// this machine.
func runChecked(tests func() int, report io.Writer, kinds []check, alone bool, patience time.Duration) int {
	startPoller()
	unignoreSignals()
	before := takeSnapshot(kinds)
	code := tests()
	for _, f := range slices.Backward(afterTests) {
		if err := f(); err != nil {
			fmt.Fprintf(report, "after the tests: %v\n", err)
			code = max(code, 1)
		}
	}
	removeBinaries()
	// A garbage collection would close forgotten files, and so hide them.
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

var afterTests []func() error

// AfterTests has [Main] call f when the tests have ended, before it looks for leaks: for what
// several tests of a package share. An error fails the package.
func AfterTests(f func() error) { afterTests = append(afterTests, f) }

// isFuzzWorker reads the flag that "go test -fuzz" starts its workers with.
func isFuzzWorker() bool {
	if !flag.Parsed() {
		flag.Parse()
	}
	f := flag.Lookup("test.fuzzworker")
	return f != nil && f.Value.String() == "true"
}

// unignoreSignals handles, and drops, the signals that nohup(1) and background jobs of a shell ignore.
// The programs under test would inherit ignored signals, and behave as they do for no user.
func unignoreSignals() {
	dropped := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(dropped, sig)
		}
	}
}

// startPoller has the runtime open the epoll and event descriptors that it keeps for good, so that
// they are in the first snapshot.
func startPoller() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}

// reapInherited reaps zombies if this process is a subreaper, PR_SET_CHILD_SUBREAPER(2const). The
// tests are over, so nothing else waits for children.
func reapInherited() {
	var subreaper int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0)
	for err == nil && subreaper != 0 {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != nil || pid == 0 {
			return
		}
	}
}

// awaitClean waits, at most for patience, until everything new is gone, and returns what is left.
func awaitClean(kinds []check, before snapshot, patience time.Duration) []leak {
	deadline := time.Now().Add(patience)
	// There is no event for "all of this is gone", so it polls, ever more slowly.
	for pause := time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		reapInherited()
		leaks := compare(kinds, before, takeSnapshot(kinds))
		if len(leaks) == 0 || time.Now().After(deadline) {
			return leaks
		}
		time.Sleep(pause)
	}
}
