package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// runShell runs a script that ends with a "boxd run" of a command with status 7. It returns the status and
// the text on stderr.
func runShell(t *testing.T, state, before string) (status int, said string) {
	t.Helper()
	boxd, boxdInit := binaries(t)
	script := fmt.Sprintf("%s\nexec %s run --init %s --state-dir %s -- sh -c 'exit 7'", before, boxd, boxdInit, state)
	cmd := exec.Command("sh", "-c", script)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err := runBounded(cmd, patience)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stderr.String()
}

// more is the next amount of a resource to try: with -short, in the emulated
// machine, in large steps.
func more(n, step int) int {
	if testing.Short() {
		step = n/2 + 1
	}
	return n + step
}

// rounds is how often it has to work before the amount is enough.
func rounds(t *testing.T) int {
	t.Helper()
	if testing.Short() {
		return 1
	}
	return 3
}

// wantOneLine: it works, or it says in one line why not.
func wantOneLine(t *testing.T, name string, status int, said string) {
	t.Helper()
	line := strings.HasPrefix(said, "boxd: ") && strings.Count(said, "\n") == 1
	if worked := status == ownStatus && said == ""; !worked && (status != 125 || !line) {
		t.Errorf("%s: status %d, stderr %q; want it to work, or 125 and one line", name, status, said)
	}
}

// TestFewDescriptors runs boxd with ever more descriptors allowed, until it works.
func TestFewDescriptors(t *testing.T) {
	binaries(t)
	state := newState(t)
	worked := 0
	for limit := 8; worked < rounds(t) && limit < 1000; limit = more(limit, 2+limit/16) {
		status, said := runShell(t, state, fmt.Sprintf("ulimit -n %d", limit))
		if limit < 16 && strings.Contains(said, "runtime") {
			continue // too few for the Go runtime itself
		}
		wantOneLine(t, fmt.Sprintf("%d descriptors", limit), status, said)
		waitGone(t, patience)
		follow(t, state)
		wantNothingLeft(t, state, nil)
		if status == ownStatus {
			worked++
		}
		if t.Failed() {
			return
		}
	}
	if worked == 0 {
		t.Error("it never worked")
	}
}

// TestFullState has the state directory on a file system with ever more room,
// until it is enough.
func TestFullState(t *testing.T) {
	unshare := testutil.RequireProgram(t, "unshare")
	boxd, boxdInit := binaries(t)
	dir := newState(t) // only a place to mount on, in a namespace of the test's own
	for name, option := range map[string]string{"inodes": "nr_inodes=%d", "blocks": "nr_blocks=%d"} {
		t.Run(name, func(t *testing.T) {
			worked := 0
			for n := 1; worked < rounds(t) && n < 200; n = more(n, 1) {
				script := fmt.Sprintf(`mount -t tmpfs -o mode=711,`+option+` state %[2]s || exit 7
					%[3]s run --init %[4]s --state-dir %[2]s -- sh -c 'exit 7'; status=$?
					find %[2]s -mindepth 1 ! -path '*/lock' ! -path '*/ids' >&2
					exit $status`, n, dir, boxd, boxdInit)
				cmd := exec.Command(unshare, "--mount", "sh", "-c", script)
				var stderr strings.Builder
				cmd.Stderr = &stderr
				_ = runBounded(cmd, patience)
				status := cmd.ProcessState.ExitCode()
				wantOneLine(t, fmt.Sprintf("room for %d", n), status, stderr.String())
				waitGone(t, patience)
				if status == ownStatus {
					worked++
				}
				if t.Failed() {
					return
				}
			}
			if worked == 0 {
				t.Error("it never worked")
			}
		})
	}
}

// TestPIDsLimitAtStart starts commands in a box that is at its pids limit: each is
// refused with a clear error or a verdict, and the box works again afterwards.
func TestPIDsLimitAtStart(t *testing.T) {
	binaries(t)
	state := newState(t)
	ctx := context.Background()
	b, err := startEngine(t, state).Create(ctx, engine.Spec{Limits: engine.Limits{PIDs: 4}})
	if err != nil {
		t.Fatal(err)
	}
	full, said := io.Pipe()
	fill, err := b.Start(ctx, engine.Command{Args: []string{"sh", "-c", "sleep 1000 & sleep 1000 & sleep 1000 & echo full; wait"}, Stdout: said})
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(full).ReadString('\n'); err != nil {
		t.Fatalf("filling the box: %q, %v", line, err)
	}
	refused := 0
	for range 50 {
		p, err := b.Start(ctx, engine.Command{Args: []string{"sh", "-c", "sleep 0.01 & wait; exit 7"}, Stdout: io.Discard, Stderr: io.Discard})
		if err != nil {
			refused++
			if !errors.Is(err, unix.EAGAIN) || !strings.Contains(err.Error(), "pids limit") {
				t.Fatalf("Start at the limit: %v", err)
			}
			continue
		}
		if r, err := p.Wait(); err != nil || r.Verdict != engine.PIDsLimit && r.Verdict != engine.Exited {
			t.Fatalf("at the limit: %+v, %v", r, err)
		}
	}
	if refused == 0 {
		t.Error("no start was refused at the limit")
	}
	if err := fill.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if _, err := fill.Wait(); err != nil {
		t.Error(err)
	}
	wantUsable(t, b)
	if err := b.Remove(ctx); err != nil {
		t.Error(err)
	}
}

// TestFewDescriptorsInProcess: a program that embeds boxd and runs out of
// descriptors gets errors, and is as before when it has some again.
func TestFewDescriptorsInProcess(t *testing.T) {
	binaries(t)
	state := newState(t)
	ctx := context.Background()
	b, err := startEngine(t, state).Create(ctx, engine.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	wantUsable(t, b)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	open, _ := os.ReadDir("/proc/self/fd")
	for _, more := range []int{0, 1, 2, 3, 4, 5, 8, 12} {
		few := unix.Rlimit{Cur: uint64(len(open) + more), Max: old.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
			t.Fatal(err)
		}
		var failed error
		for range 20 {
			r, err := engine.Run(ctx, b, engine.Command{Args: []string{"sh", "-c", "exit 7"}, Stdout: new(strings.Builder)})
			if err == nil && r.ExitCode != ownStatus {
				err = fmt.Errorf("%+v", r)
			}
			if err != nil {
				failed = err
			}
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d more descriptors: %v", more, failed)
		if failed != nil && !errors.Is(failed, unix.EMFILE) {
			t.Errorf("%d more descriptors: %v, want EMFILE", more, failed)
		}
		select {
		case <-b.Done():
			t.Fatalf("%d more descriptors: the box is lost", more)
		default:
		}
		wantUsable(t, b)
	}
	if err := b.Remove(ctx); err != nil {
		t.Error(err)
	}
}
