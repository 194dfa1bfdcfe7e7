package conformance

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// remove: a removed box is gone, and its commands end with the verdict for it.
func (e *suite) remove(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p := boxtest.Begin(t, b, engine.Command{Args: []string{"sleep", "3600"}})
	boxtest.Remove(t, b)
	if r := boxtest.Wait(t, p); r.Verdict != engine.BoxLost || r.Status() != 137 {
		t.Errorf("running command: %+v", r)
	}
	select {
	case <-b.Done():
	case <-time.After(boxtest.Patience):
		t.Error("Done is not closed")
	}
	boxtest.Remove(t, b)
	if _, err := boxtest.TryRun(t, b, boxtest.Shell("true")); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("command in a removed box: %v", err)
	}
	if err := b.Update(t.Context(), engine.Change{Limits: &engine.Limits{PIDs: 5}}); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("update of a removed box: %v", err)
	}
	e.wantNoCommands(t, b)
	if pids := e.Init(t, b.ID()); len(pids) > 0 {
		t.Errorf("PID 1 is left: %v", pids)
	}
	// Its name is free again.
	e.create(t, engine.Spec{ID: b.ID()})
}

// sameID: an ID can be used once in an engine, and a second attempt does not harm the first box. Another
// engine has IDs of its own.
func (e *suite) sameID(t testing.TB) {
	other := e.private(t)
	const id = "boxd-test-same-id"
	b := e.create(t, engine.Spec{ID: id})
	if b.ID() != id {
		t.Errorf("id %q", b.ID())
	}
	if second, err := e.tryCreate(t.Context(), engine.Spec{ID: id}); err == nil {
		t.Error("a second box of the same name")
		boxtest.Remove(t, second)
	} else if !strings.Contains(err.Error(), id) {
		t.Errorf("%v: want the name in it", err)
	}
	boxtest.WantOutput(t, b, "echo alive", "alive\n")

	namesake, err := other.tryCreate(t.Context(), engine.Spec{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	boxtest.WantOutput(t, namesake, "echo alive", "alive\n")
	boxtest.Remove(t, namesake)
	boxtest.WantOutput(t, b, "echo alive", "alive\n")
}

// createCanceled leaves nothing: TestMain and the state directory tell.
func (e *suite) createCanceled(t testing.TB) {
	for _, after := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		b, err := e.tryCreate(ctx, engine.Spec{})
		cancel()
		if err == nil {
			boxtest.Remove(t, b)
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", after, err)
		}
	}
}

// manyBoxes builds boxes in parallel, with ids of their own.
func (e *suite) manyBoxes(t testing.TB) {
	n, atOnce := 100, 100
	if testing.Short() {
		n = 10
	}
	if os.Getenv("BOXD_TEST_VM") != "" {
		atOnce = 50 // it is emulated, and with containerd the last of 100 would wait longer than a client does, 2 minutes
	}
	turns := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	ids := make([]string, n)
	for i := range n {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			b, err := e.tryCreate(t.Context(), engine.Spec{})
			if err != nil {
				t.Error(err)
				return
			}
			defer boxtest.Remove(t, b)
			var out strings.Builder
			r, err := engine.Run(t.Context(), b, engine.Command{Args: []string{"cat", "/proc/self/uid_map"}, Stdout: &out})
			if err != nil || r.Verdict != engine.Exited {
				t.Errorf("%+v, %v", r, err)
			}
			ids[i] = out.String()
		})
	}
	wg.Wait()
	// Inside, a map is shown from the reader's own user namespace on: the identity.
	for _, got := range ids {
		if f := strings.Fields(got); len(f) != 3 || f[0] != "0" || f[2] != "65536" {
			t.Errorf("uid map %q", got)
		}
	}
}

// invalid: a refusal names field, value and rule in one line, before anything is built.
func (e *suite) invalid(t testing.TB) {
	b := e.create(t, engine.Spec{})
	mount := func(source, target string) engine.Spec {
		return engine.Spec{Mounts: []engine.Mount{{Source: source, Target: target}}}
	}
	limits := func(l engine.Limits) engine.Spec { return engine.Spec{Limits: l} }
	for _, c := range []struct {
		field string
		spec  engine.Spec
	}{
		{"memory", limits(engine.Limits{Memory: 1 << 20})},
		{"memory", limits(engine.Limits{Memory: -5})},
		{"memory", limits(engine.Limits{Memory: math.MaxInt64})},
		{"pids", limits(engine.Limits{PIDs: math.MaxInt64})},
		{"pids", limits(engine.Limits{PIDs: -2})},
		{"cpus", limits(engine.Limits{CPUs: math.NaN()})},
		{"cpus", limits(engine.Limits{CPUs: math.Inf(1)})},
		{"cpus", limits(engine.Limits{CPUs: 1e-9})},
		{"open_files", limits(engine.Limits{OpenFiles: 3})},
		{"tmp_size", engine.Spec{TmpSize: 1}},
		{"image", engine.Spec{Image: "debian:12"}},
		{"id", engine.Spec{ID: "../x"}},
		{"mounts[0].source", mount("relative", "/data")},
		{"mounts[0].target", mount("/srv", "/../x")},
	} {
		b, err := e.tryCreate(t.Context(), c.spec)
		boxtest.WantField(t, err, c.field)
		if err == nil {
			boxtest.Remove(t, b)
		}
	}
	for _, c := range []struct {
		field string
		cmd   engine.Command
	}{
		{"args", engine.Command{}},
		{"args[1]", engine.Command{Args: []string{"echo", "a\x00b"}}},
		{"args[1]", engine.Command{Args: []string{"echo", strings.Repeat("a", 1<<20)}}},
		{"env[0]", engine.Command{Args: []string{"true"}, Env: []string{"A=\x00"}}},
		{"dir", engine.Command{Args: []string{"true"}, Dir: "/proc/1"}},
		{"user.uid", engine.Command{Args: []string{"true"}, User: &engine.User{UID: 65535}}},
		{"timeout", engine.Command{Args: []string{"true"}, Timeout: -1}},
	} {
		_, err := boxtest.TryRun(t, b, c.cmd)
		boxtest.WantField(t, err, c.field)
	}
	// The longest argument and the largest total that the kernel takes are taken.
	args := []string{"sh", "-c", "echo ${#1} $#", "sh"}
	for range 15 {
		args = append(args, strings.Repeat("a", 131071))
	}
	if o := boxtest.Run(t, b, engine.Command{Args: args}); o.Stdout != "131071 15\n" {
		t.Errorf("%q", o.Stdout)
	}
}
