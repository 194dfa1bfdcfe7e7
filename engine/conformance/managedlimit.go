package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/boxtest"
)

// managedHog allocates this many MiB of memory when told to, and reports it.
func managedHog(key string, mb int, memory int64) engine.Managed {
	return engine.Managed{Key: key, Args: []string{"/usr/bin/python3", "-c", "input()\n" + boxtest.Hog, fmt.Sprint(mb)}, Memory: memory}
}

// managedMemory: a process has its own limit, below that of the box, above it, or in a box without one.
// Other processes of the box do not notice.
func (e *suite) managedMemory(t testing.TB) {
	boxed := e.create(t, engine.Spec{Limits: engine.Limits{Memory: 192 * boxtest.MiB}})
	free := e.create(t, engine.Spec{Limits: engine.Limits{Memory: engine.Unlimited}})
	for i, c := range []struct {
		box     boxtest.Live
		mb      int
		memory  int64
		verdict engine.Verdict
		limit   string
	}{
		{boxed, 80, 48 * boxtest.MiB, engine.OOM, "48 MiB"},
		{boxed, 80, 128 * boxtest.MiB, engine.Exited, ""},
		{boxed, 80, 0, engine.Exited, ""},
		{boxed, 300, 0, engine.OOM, "192 MiB"},
		{boxed, 300, 1024 * boxtest.MiB, engine.OOM, "192 MiB"},
		{boxed, 300, 192 * boxtest.MiB, engine.OOM, "192 MiB"},
		{free, 80, 48 * boxtest.MiB, engine.OOM, "48 MiB"},
		{free, 300, 0, engine.Exited, ""},
		{free, 80, 48*boxtest.MiB + 1, engine.OOM, "48 MiB"},
	} {
		beside := boxtest.Launch(t, c.box, managedHog(fmt.Sprint("beside-", i), 16, 0))
		p := boxtest.Launch(t, c.box, managedHog(fmt.Sprint("p-", i), c.mb, c.memory))
		boxtest.GoOn(t, p)
		if i == 8 {
			c.limit = spec.FormatSize(c.memory) // as it was asked for
		}
		boxtest.WantVerdict(t, p, c.verdict, c.limit)
		peak := boxtest.Figure(t, "memory", p.Result().Receipt.MemoryPeak)
		if c.memory > 0 && peak > c.memory || c.verdict == engine.Exited && peak < int64(c.mb)*boxtest.MiB {
			t.Errorf("%d: peak %s", i, spec.FormatSize(peak))
		}
		boxtest.GoOn(t, beside)
		boxtest.WantVerdict(t, beside, engine.Exited, "")
		if err := errors.Join(p.Forget(boxtest.Patient(t)), beside.Forget(boxtest.Patient(t))); err != nil {
			t.Error(err)
		}
	}
	for _, memory := range []int64{1, spec.MinMemory - 1, -1, spec.MaxMemory + 1} {
		_, err := boxed.Launch(t.Context(), managedHog("bad", 1, memory))
		boxtest.WantField(t, err, "memory")
	}
	p := boxtest.Launch(t, boxed, managedHog("tiny", 16, spec.MinMemory))
	boxtest.GoOn(t, p)
	boxtest.WantVerdict(t, p, engine.OOM, spec.FormatSize(spec.MinMemory))
}

// managedMemoryOfTrees: the limit holds for all descendants together, wherever they have moved, and for no
// other process.
func (e *suite) managedMemoryOfTrees(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{Memory: 512 * boxtest.MiB}})
	const tree = `
import os, sys, time
def child(depth):
    if depth and os.fork() == 0: os.setsid(); child(depth - 1)
    x = bytearray(24 << 20)
    for i in range(0, len(x), 4096): x[i] = 1
    print("taken", flush=True)
    time.sleep(1000)
child(7)`
	p := boxtest.Launch(t, b, engine.Managed{Key: "tree", Args: []string{"/usr/bin/python3", "-c", tree}, Memory: 96 * boxtest.MiB})
	// cgroup2 kills them all, v1 one after the other until it is enough.
	deadline := time.After(boxtest.Patience)
	for killed := false; !killed; {
		select {
		case <-p.Done():
			killed = true
		case <-time.After(20 * time.Millisecond):
			killed = strings.Count(boxtest.Run(t, b, boxtest.Shell("ps -e -o comm=")).Stdout, "python3") < 8 && strings.Contains(writtenBy(t, p), "taken")
		case <-deadline:
			t.Fatal("nobody is killed")
		}
	}
	if o := boxtest.Run(t, b, boxtest.Python(boxtest.Hog, "200")); o.Verdict != engine.Exited {
		t.Errorf("beside it: %+v", o.Result)
	}
	if err := p.Control().Kill(boxtest.Patient(t)); err != nil {
		t.Error(err)
	}
	r := boxtest.Await(t, p)
	if r.Verdict != engine.OOM || r.Limit != "96 MiB" || boxtest.Figure(t, "kills", r.Receipt.OOMKills) < 1 {
		t.Errorf("%+v", r)
	}
	if peak := boxtest.Figure(t, "memory", r.Receipt.MemoryPeak); peak > 96*boxtest.MiB || peak < 64*boxtest.MiB {
		t.Errorf("peak %s", spec.FormatSize(peak))
	}
}

// writtenBy is what a process has written so far.
func writtenBy(t testing.TB, p engine.ManagedProcess) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	buf := make([]byte, 4096)
	n, _, err := p.Stdio().Stdout.ReadAt(ctx, buf, 0)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && err != io.EOF {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// managedKept: a process keeps its memory limit and the released offset of its output for as long as it runs,
// whichever clients come and go.
func (e *suite) managedKept(t testing.TB) {
	s := e.private(t)
	b := s.create(t, engine.Spec{ID: "kept", Limits: engine.Limits{Memory: 256 * boxtest.MiB}})
	p := boxtest.Launch(t, b, managedHog("hog", 100, 48*boxtest.MiB))
	free := boxtest.Launch(t, b, managedHog("free", 100, 0))
	talk := boxtest.Launch(t, b, boxtest.ManagedShell("talk", "seq -w 1000; read x; seq -w 1000"))
	drops := boxtest.Launch(t, b, engine.Managed{Key: "drops", Args: []string{"sh", "-c", "seq -w 100000; read x"}, DropOldest: true, History: engine.MinHistory})
	out := talk.Stdio().Stdout
	boxtest.WaitUntil(t, "it has talked", func() bool { _, end := out.Bounds(); return end == 5000 })
	for off := int64(5); off <= 2345; off += 5 { // one by one, as a reader of lines does
		out.Release(off)
	}
	dropped := drops.Stdio().Stdout
	boxtest.WaitUntil(t, "it has dropped", func() bool { _, end := dropped.Bounds(); return end == 700000 })
	dropped.Release(1 << 60)
	_, end := dropped.Bounds()
	if got := dropped.Released(); got != end {
		t.Errorf("released %d of %d", got, end)
	}
	again := func() {
		t.Helper()
		s.connect(t)
		b = s.adopt(t, "kept")
		find := func(key string) engine.ManagedProcess {
			all := b.Managed()
			i := slices.IndexFunc(all, func(p engine.ManagedProcess) bool { return p.Key() == key })
			if i < 0 {
				t.Fatalf("process %q is gone", key)
			}
			return all[i]
		}
		p, free, talk, drops = find("hog"), find("free"), find("talk"), find("drops")
		out = talk.Stdio().Stdout
	}
	for _, step := range []func(){
		func() {
			s.disconnect(t)
		},
		func() { s.KillLauncher(t); s.disconnect(t) },
	} {
		step()
		again()
		if got := out.Released(); got != 2345 {
			t.Errorf("released %d, want 2345", got)
		}
		if got, err := talk.Stdio().Stderr.Released(), drops.Stdio().Stdout.Released(); got != 0 || err != end {
			t.Errorf("released %d of stderr, %d of what was dropped", got, err)
		}
	}
	s.KillLauncher(t)
	if _, err := b.Usage(); err != nil { // the next one is there, and watches
		t.Error(err)
	}
	boxtest.GoOn(t, p)
	boxtest.WantVerdict(t, p, engine.OOM, "48 MiB")
	boxtest.WantEvent(t, b, engine.EventOOM)
	boxtest.GoOn(t, free)
	boxtest.WantVerdict(t, free, engine.Exited, "")
	boxtest.GoOn(t, talk)
	boxtest.WantVerdict(t, talk, engine.Exited, "")
	out.Release(1 << 60)
	if got := out.Released(); got != 10000 {
		t.Errorf("released %d at the end", got)
	}
	// After the end too, until it is forgotten.
	s.disconnect(t)
	again()
	if got := out.Released(); got != 10000 {
		t.Errorf("released %d after the end", got)
	}
	boxtest.Await(t, talk)
	if err := talk.Forget(boxtest.Patient(t)); err != nil {
		t.Error(err)
	}
}

// stderrFlood writes numbered lines to stdout, and thousands of bytes to stderr for each.
const stderrFlood = `
import os, sys
noise = b"n" * 4096
for i in range(20000):
    for _ in range(4): os.write(2, noise)
    os.write(1, b"%07d\n" % i)
`

// managedDropStderr: a process that floods its stderr is never held up by that, and
// not a byte of its stdout is lost, however slowly that is read.
func (e *suite) managedDropStderr(t testing.TB) {
	b := e.create(t, engine.Spec{})
	m := boxtest.ManagedPython("a", stderrFlood)
	m.DropStderr, m.History = true, 16<<10
	p := boxtest.Launch(t, b, m)
	ctx, buf := boxtest.Patient(t), make([]byte, 1000)
	h := sha256.New()
	var off int64
	slow := 0
	for {
		n, at, err := p.Stdio().Stdout.ReadAt(ctx, buf, off)
		if err == io.EOF {
			break
		}
		if err != nil || at != off {
			t.Fatalf("%d bytes at %d, %v; want %d", n, at, err, off)
		}
		h.Write(buf[:n])
		off += int64(n)
		if slow++; slow%20 == 0 {
			time.Sleep(time.Millisecond)
		}
		p.Stdio().Stdout.Release(off)
	}
	boxtest.WantManaged(t, p, engine.Exited, 0)
	want := sha256.New()
	for i := range 20000 {
		fmt.Fprintf(want, "%07d\n", i)
	}
	if off != 8*20000 || !bytes.Equal(h.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes of stdout, and not those that were written", off)
	}
	oldest, end := p.Stdio().Stderr.Bounds()
	if end != 4*4096*20000 || oldest == 0 || end-oldest > 32<<10 {
		t.Errorf("stderr from %d to %d", oldest, end)
	}
	// Nobody reads: stdout makes it wait, stderr does not.
	q := boxtest.Launch(t, b, engine.Managed{Key: "b", Args: m.Args, DropStderr: true, History: 16 << 10})
	var at int64
	boxtest.WaitUntil(t, "stdout is full", func() bool {
		last := at
		_, at = q.Stdio().Stdout.Bounds()
		time.Sleep(50 * time.Millisecond)
		_, now := q.Stdio().Stdout.Bounds()
		return last == at && at == now && at >= 8<<10
	})
	if oldest, _ := q.Stdio().Stdout.Bounds(); oldest != 0 {
		t.Errorf("stdout begins at %d", oldest)
	}
	select {
	case <-q.Done():
		t.Error("it did not wait for a reader of its stdout")
	default:
	}
	if err := q.Control().Kill(boxtest.Patient(t)); err != nil {
		t.Error(err)
	}
	if r := boxtest.Await(t, q); r.Signal != syscall.SIGKILL {
		t.Errorf("%+v", r)
	}
	// And the other way round, without it: a full stderr holds it up.
	r := boxtest.Launch(t, b, engine.Managed{Key: "c", Args: m.Args, History: 16 << 10})
	boxtest.WaitUntil(t, "stderr is full", func() bool { _, end := r.Stdio().Stderr.Bounds(); return end >= 8<<10 })
	if text := readSome(t, r.Stdio().Stderr); len(text) == 0 || strings.Trim(text, "n") != "" {
		t.Errorf("%q", text)
	}
	if oldest, _ := r.Stdio().Stderr.Bounds(); oldest != 0 {
		t.Errorf("stderr begins at %d", oldest)
	}
	if err := r.Control().Kill(boxtest.Patient(t)); err != nil {
		t.Error(err)
	}
	boxtest.Await(t, r)
}

func readSome(t testing.TB, out engine.Output) string {
	t.Helper()
	buf := make([]byte, 1000)
	n, _, err := out.ReadAt(boxtest.Patient(t), buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}
