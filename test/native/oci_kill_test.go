package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

var ociSpec = engine.Spec{Engine: spec.EngineOCI}

// newOCIService is newService for a launcher with an OCI runtime; empty is the distribution's runc.
func newOCIService(t testing.TB, runtime string) (s *native.Service, dir string) {
	t.Helper()
	dir = stateDir(t)
	_, initPath := testutil.BuildBinaries(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	socket, err := native.StartLauncher(ctx, native.LauncherOptions{InitPath: initPath, StateDir: dir, Runtimes: native.Runtimes{OCI: runtime}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // another launcher would be replaced, because it has another runtime
		if err := stopAt(socket); err != nil {
			t.Errorf("stopping the service: %v", err)
		}
		waitUntil(t, "the service has ended", func() bool {
			return len(serviceProcesses(t, "launcher", dir)) == 0 && len(serviceProcesses(t, "keeper", dir)) == 0
		})
	})
	return connect(t, socket), dir
}

// TestOCIBoxLives: verdicts, mounts and limits of a box of runc are those of any box, and it survives its
// launcher with a process that runs in it.
func TestOCIBoxLives(t *testing.T) {
	realRunc(t)
	s, dir := newOCIService(t, "")
	b := createLive(t, s, engine.Spec{ID: "lives", Engine: spec.EngineOCI, Limits: engine.Limits{Memory: 64 << 20, PIDs: 8}})
	first := initPIDs(t, b)
	want(t, run(t, b, shell("echo out; echo err >&2; exit 7")), engine.Exited, 7)
	hog := run(t, b, python("x = bytearray(200 << 20)"))
	want(t, hog, engine.OOM, 137)
	boxtest.Figure(t, "memory peak", hog.Receipt.MemoryPeak)
	if r := run(t, b, shell("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 5 & done; wait")); r.Verdict != engine.PIDsLimit {
		t.Errorf("too many processes: %+v", r)
	}
	slow := shell("sleep 60")
	slow.Timeout = 100 * time.Millisecond
	if r := run(t, b, slow); r.Verdict != engine.TimedOut {
		t.Errorf("too slow: %+v", r)
	}
	p := launch(t, b, managedShell("stays", "read x; exit 5"))
	killLauncher(t, dir)
	_, m := workspace(t, 0, 0)
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}, Limits: &engine.Limits{Memory: 256 << 20}}); err != nil {
		t.Fatal(err)
	}
	want(t, run(t, b, python("x = bytearray(150 << 20)")), engine.Exited, 0)
	wantOutput(t, b, "echo kept > "+m.Target+"/f; cat "+m.Target+"/f", "kept\n")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	killLauncher(t, dir)
	s = connect(t, filepath.Join(dir, native.SocketName))
	b = adoptLive(t, s, "lives")
	if got := b.Spec(); got.Engine != spec.EngineOCI || got.Isolation != spec.IsolationNamespaces {
		t.Errorf("engine after adoption: %q, %q", got.Engine, got.Isolation)
	}
	if again := initPIDs(t, b); len(first) != 1 || strings.Join(again, " ") != first[0] {
		t.Errorf("PID 1 was %q and is %q", first, again)
	}
	if got := b.Managed(); len(got) != 1 || got[0].Control().PID() != p.Control().PID() {
		t.Fatalf("processes: %v", got)
	}
	p = b.Managed()[0]
	goOn(t, p)
	wantManaged(t, p, engine.Exited, 5)
	remove(t, b)
	if dirs := workDirs(t, b); len(dirs) > 0 {
		t.Errorf("cgroups are left: %q", dirs)
	}
}

// TestOCIRuntimeKilled: whichever process of a starting box is killed, and when: the create
// succeeds or fails, and nothing is left of it.
func TestOCIRuntimeKilled(t *testing.T) {
	testutil.Long(t)
	realRunc(t)
	e := startOCI(t, "")
	remove(t, create(t, e, ociSpec)) // the runtime has been looked at
	began := time.Now()
	remove(t, create(t, e, ociSpec))
	took := time.Since(began)
	const rounds = 16
	failed := 0
	for i := range rounds {
		done := make(chan error, 1)
		go func() {
			b, err := e.Create(t.Context(), engine.Spec{ID: "target", Engine: spec.EngineOCI})
			if err == nil {
				err = b.Remove(context.Background())
				if err != nil {
					err = fmt.Errorf("removing: %w", err)
					t.Error(err)
				}
			}
			done <- err
		}()
		time.Sleep(took * time.Duration(i/2) * 2 / rounds) // it decides when, not what is right
		killed := killRuntime(t, i%2 == 0)
		err := <-done
		if err != nil {
			failed++
		}
		if err != nil && killed == 0 {
			t.Errorf("round %d: %v", i, err)
		}
		wantNoStrays(t)
	}
	if failed == 0 {
		t.Errorf("none of %d creates was hit", rounds)
	}
	wantOutput(t, create(t, e, engine.Spec{ID: "target", Engine: spec.EngineOCI}), "echo works", "works\n")
}

// killRuntime kills the processes of the runtimes of this process's launchers: the first
// one, or all below it. It returns how many it has killed.
func killRuntime(t *testing.T, first bool) (killed int) {
	t.Helper()
	var kill func(pid int, first bool)
	kill = func(pid int, first bool) {
		below := childrenOf(t, pid)
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if strings.HasPrefix(string(name), "runc") && unix.Kill(pid, unix.SIGKILL) == nil {
			killed++
			if first {
				return
			}
		}
		for _, pid := range below {
			kill(pid, first)
		}
	}
	for _, launcher := range childrenOf(t, os.Getpid()) {
		for _, pid := range childrenOf(t, launcher) {
			if first {
				kill(pid, true)
				continue
			}
			for _, below := range childrenOf(t, pid) {
				kill(below, false)
			}
		}
	}
	return killed
}

// TestOCILauncherKilled: the launcher is killed at any moment of a create, also while the runtime hangs
// before or after its work. The client repeats the create with the next launcher, and nothing is
// left of the first attempt.
func TestOCILauncherKilled(t *testing.T) {
	testutil.Long(t)
	runc := realRunc(t)
	killDuring := func(t *testing.T, s *native.Service, dir, id string, await func()) {
		t.Helper()
		type result struct {
			box engine.LiveBox
			err error
		}
		done := make(chan result, 1)
		go func() {
			b, err := s.Create(t.Context(), engine.Spec{ID: id, Engine: spec.EngineOCI})
			done <- result{b, err}
		}()
		await()
		killLauncher(t, dir)
		r := <-done
		waitUntil(t, "a launcher serves", func() bool { return s.Health(t.Context()) == nil })
		if r.err == nil {
			wantOutput(t, r.box, "echo works", "works\n")
			remove(t, r.box)
		} else if ids, err := s.Boxes(t.Context()); err == nil && len(ids) == 1 && ids[0] == id {
			remove(t, adoptLive(t, s, id)) // built, but its client was not told
		}
		if ids, err := s.Boxes(t.Context()); err != nil || len(ids) > 0 {
			t.Errorf("boxes in the end: %q, %v", ids, err)
		}
	}
	t.Run("any moment", func(t *testing.T) {
		s, dir := newOCIService(t, "")
		remove(t, createLive(t, s, ociSpec))
		began := time.Now()
		remove(t, createLive(t, s, ociSpec))
		took := time.Since(began)
		const rounds = 8
		for i := range rounds {
			// The time decides when, not what is right.
			killDuring(t, s, dir, fmt.Sprintf("round%d", i), func() { time.Sleep(took * time.Duration(i) / rounds) })
		}
	})
	for _, c := range []struct{ name, script string }{
		{"before it starts the box", `[ -e %[2]s ] || { touch %[2]s; sleep 1000; }; exec %[1]s "$@"`},
		{"after it has started the box", `%[1]s "$@"; [ -e %[2]s ] || { touch %[2]s; sleep 1000; }`},
		{"after it has started the box, in a session of its own", `%[1]s "$@"; [ -e %[2]s ] || { touch %[2]s; setsid sleep 1000; }`},
	} {
		t.Run(c.name, func(t *testing.T) {
			reached := filepath.Join(testutil.ReachableDir(t, "/run"), "reached")
			s, dir := newOCIService(t, fakeRuntime(t, fmt.Sprintf(c.script, runc, reached)))
			killDuring(t, s, dir, "hangs", func() {
				waitUntil(t, "the runtime hangs", func() bool { _, err := os.Stat(reached); return err == nil })
			})
		})
	}
}

// TestOCIHangs: a runtime that hangs holds up neither its client, who may give up, nor boxes of
// libcontainer, and is killed.
func TestOCIHangs(t *testing.T) {
	testutil.Long(t)
	for _, c := range []struct{ name, runtime string }{
		{"while it is asked", writeRuntime(t, "exec sleep 1000")},
		{"while it starts a box", fakeRuntime(t, "sleep 1000")},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := startOCI(t, c.runtime)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			var wg sync.WaitGroup
			for range 4 { // more than there are slots for creates
				wg.Go(func() {
					if _, err := e.Create(ctx, ociSpec); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v, not that the client has given up", err)
					}
				})
			}
			wg.Wait()
			if c.name == "while it is asked" {
				began := time.Now()
				remove(t, create(t, e, engine.Spec{Engine: spec.EngineNative}))
				if took := time.Since(began); took > 4*time.Second {
					t.Errorf("a box of libcontainer has waited %v", took)
				}
				if _, err := e.Create(t.Context(), ociSpec); !errors.Is(err, engine.ErrNoEngine) || !strings.Contains(err.Error(), "within 5s") {
					t.Error(err)
				}
			}
			wantNoStrays(t)
			remove(t, create(t, e, engine.Spec{Engine: spec.EngineNative}))
		})
	}
}

// TestOCIConcurrent: boxes of one runtime are built at the same time, and it is asked once.
func TestOCIConcurrent(t *testing.T) {
	testutil.Long(t)
	asked := filepath.Join(testutil.ReachableDir(t, "/run"), "asked")
	e := startOCI(t, writeRuntime(t, `[ "$1" = --version ] && echo >> `+asked+"\nexec "+realRunc(t)+` "$@"`))
	for range 3 {
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				b, err := e.Create(t.Context(), ociSpec)
				if err != nil {
					t.Error(err)
					return
				}
				if o, err := tryRun(t, b, shell("echo works")); err != nil || o.Stdout != "works\n" {
					t.Errorf("%+v, %v", o, err)
				}
				if err := b.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if info, err := os.Stat(asked); err != nil || info.Size() != 1 {
		t.Errorf("asked for its version %d times, %v", info.Size(), err)
	}
	wantNoStrays(t)
}
