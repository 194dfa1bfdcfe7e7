package native

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// TestRemove: a removed box is gone, and its commands end with the verdict for it.
func TestRemove(t *testing.T) {
	e := start(t)
	b := create(t, e, engine.Spec{})
	p := begin(t, b, engine.Command{Args: []string{"sleep", "3600"}})
	remove(t, b)
	if r := wait(t, p); r.Verdict != engine.BoxLost || r.Status() != 137 {
		t.Errorf("running command: %+v", r)
	}
	select {
	case <-b.Done():
	case <-time.After(patience):
		t.Error("Done is not closed")
	}
	remove(t, b)
	if _, err := tryRun(t, b, shell("true")); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("command in a removed box: %v", err)
	}
	if err := b.Update(t.Context(), engine.Change{Limits: &engine.Limits{PIDs: 5}}); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("update of a removed box: %v", err)
	}
	if dirs := workDirs(t, b); len(dirs) > 0 {
		t.Errorf("cgroups are left: %q", dirs)
	}
	// Its name is free again.
	create(t, e, engine.Spec{ID: b.ID()})
}

// TestClose: an engine that is closed takes everything with it.
func TestClose(t *testing.T) {
	dir := stateDir(t)
	e := startIn(t, dir)
	var running []engine.Process
	for range 5 {
		b, err := e.Create(t.Context(), engine.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, begin(t, b, shell("trap '' TERM; sleep 3600 & setsid sleep 3600 & wait")))
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	wantCleanState(t, dir)
	for _, p := range running {
		if r := wait(t, p); r.Verdict != engine.BoxLost {
			t.Errorf("%+v", r)
		}
	}
	if err := e.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if _, err := e.Create(t.Context(), engine.Spec{}); err == nil {
		t.Error("a closed engine makes boxes")
	}
}

// TestSameID: an ID can be used once in an engine, and a second attempt does not harm the first box. Another
// engine has IDs of its own.
func TestSameID(t *testing.T) {
	testutil.Long(t)
	e, other := start(t), start(t)
	const id = "boxd-test-same-id"
	b := create(t, e, engine.Spec{ID: id})
	if b.ID() != id {
		t.Errorf("id %q", b.ID())
	}
	if second, err := e.Create(t.Context(), engine.Spec{ID: id}); err == nil {
		t.Error("a second box of the same name")
		remove(t, second)
	} else if !strings.Contains(err.Error(), id) {
		t.Errorf("%v: want the name in it", err)
	}
	wantOutput(t, b, "echo alive", "alive\n")

	namesake, err := other.Create(t.Context(), engine.Spec{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	wantOutput(t, namesake, "echo alive", "alive\n")
	remove(t, namesake)
	wantOutput(t, b, "echo alive", "alive\n")
}

// TestCreateCanceled leaves nothing: TestMain and the state directory tell.
func TestCreateCanceled(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	for _, after := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		b, err := e.Create(ctx, engine.Spec{})
		cancel()
		if err == nil {
			remove(t, b)
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", after, err)
		}
	}
}

// TestManyBoxes builds boxes in parallel, with ids of their own.
func TestManyBoxes(t *testing.T) {
	testutil.Long(t)
	n := 100
	if testing.Short() {
		n = 10
	}
	e := start(t)
	var wg sync.WaitGroup
	ids := make([]string, n)
	for i := range n {
		wg.Go(func() {
			b, err := e.Create(t.Context(), engine.Spec{})
			if err != nil {
				t.Error(err)
				return
			}
			defer remove(t, b)
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

// TestIdleBoxes keeps many boxes alive at once.
func TestIdleBoxes(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	var boxes []engine.Box
	seen := map[int]bool{}
	for range 100 {
		b := create(t, e, engine.Spec{})
		base := hostID(t, b)
		if seen[base] || base < 0x70000000 || base >= 0x7fff0000 {
			t.Errorf("box %d has host ids from %d on", len(boxes), base)
		}
		seen[base] = true
		boxes = append(boxes, b)
	}
	for _, b := range boxes {
		wantOutput(t, b, "echo alive", "alive\n")
	}
}

// TestInvalid: a refusal names field, value and rule in one line, before anything is built.
func TestInvalid(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	b := create(t, e, engine.Spec{})
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
		b, err := e.Create(t.Context(), c.spec)
		wantField(t, err, c.field)
		if err == nil {
			remove(t, b)
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
		_, err := tryRun(t, b, c.cmd)
		wantField(t, err, c.field)
	}
	// The longest argument and the largest total that the kernel takes are taken.
	args := []string{"sh", "-c", "echo ${#1} $#", "sh"}
	for range 15 {
		args = append(args, strings.Repeat("a", 131071))
	}
	if o := run(t, b, engine.Command{Args: args}); o.stdout != "131071 15\n" {
		t.Errorf("%q", o.stdout)
	}
}

func wantField(t *testing.T, err error, field string) {
	t.Helper()
	var bad *engine.FieldError
	if !errors.As(err, &bad) || bad.Field != field || strings.Contains(err.Error(), "\n") || bad.Rule == "" || bad.Value == "" {
		t.Errorf("%v, want one line about %s", err, field)
	}
}
