package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
)

func (e *suite) managed(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p := boxtest.Launch(t, b, boxtest.ManagedShell("a", `echo out; echo err >&2; read line; echo "got $line"; exit 7`))
	if got := b.Managed(); len(got) != 1 || got[0] != p || p.Key() != "a" || p.Control().PID() < 2 {
		t.Errorf("%v, pid %d", got, p.Control().PID())
	}
	ctx := boxtest.Patient(t)
	in := p.Stdio().Stdin
	if err := in.Write(ctx, 0, []byte("hello\n")); err != nil || in.Accepted() != 6 {
		t.Errorf("%v, accepted %d", err, in.Accepted())
	}
	if out, errs := boxtest.ReadAll(t, p.Stdio().Stdout), boxtest.ReadAll(t, p.Stdio().Stderr); out != "out\ngot hello\n" || errs != "err\n" {
		t.Errorf("%q, %q", out, errs)
	}
	r := boxtest.WantManaged(t, p, engine.Exited, 7)
	if *r.Receipt.StdoutBytes != 14 || *r.Receipt.StderrBytes != 4 || r.Receipt.MemoryPeak == nil || r.Receipt.Wall <= 0 {
		t.Errorf("%+v", r.Receipt)
	}
	if oldest, end := p.Stdio().Stdout.Bounds(); oldest != 0 || end != 14 {
		t.Errorf("bounds %d to %d", oldest, end)
	}
	if n, at, err := p.Stdio().Stdout.ReadAt(ctx, make([]byte, 3), 4); n != 3 || at != 4 || err != nil {
		t.Errorf("history: %d at %d, %v", n, at, err)
	}
	if err := p.Forget(ctx); err != nil {
		t.Error(err)
	}
	if err := p.Forget(ctx); err != nil {
		t.Errorf("forgetting twice: %v", err)
	}
	if _, _, err := p.Stdio().Stdout.ReadAt(ctx, make([]byte, 1), 0); err == nil {
		t.Error("a forgotten output can be read")
	}
	if got := b.Managed(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

func (e *suite) managedEndings(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{Memory: 64 << 20}})
	for i, c := range []struct {
		script  string
		verdict engine.Verdict
		code    int
		signal  syscall.Signal
	}{
		{"exit 0", engine.Exited, 0, 0},
		{"exit 255", engine.Exited, 255, 0},
		{"kill -SEGV $$", engine.Signaled, -1, syscall.SIGSEGV},
		{"kill -KILL $$", engine.Signaled, -1, syscall.SIGKILL},
		{"sleep 1000 & sleep 1000 & exit 3", engine.Exited, 3, 0},
		{`exec /usr/bin/python3 -c 'x = bytearray(200 << 20)'`, engine.OOM, -1, syscall.SIGKILL},
	} {
		p := boxtest.Launch(t, b, boxtest.ManagedShell(fmt.Sprint("p", i), c.script))
		r := boxtest.WantManaged(t, p, c.verdict, c.code)
		if r.Signal != c.signal {
			t.Errorf("%s: signal %v", c.script, r.Signal)
		}
		if err := p.Forget(boxtest.Patient(t)); err != nil {
			t.Error(err)
		}
	}
	if o := boxtest.Run(t, b, boxtest.Shell("ps -e -o comm= | grep -c sleep")); strings.TrimSpace(o.Stdout) != "0" {
		t.Errorf("%q processes are left after Forget", o.Stdout)
	}
}

// What is written in the end is delivered, and the end is not held up by those who
// hold the pipes without having anything to say.
func (e *suite) managedBackground(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p := boxtest.Launch(t, b, boxtest.ManagedShell("a", `(sleep 1000; echo never) & (while :; do echo noise; done) >&2 & echo last; exit 4`))
	began := time.Now()
	errs := make(chan string)
	go func() {
		text, _ := io.ReadAll(boxtest.NewReader(t, p.Stdio().Stderr))
		errs <- string(text)
	}()
	if out := boxtest.ReadAll(t, p.Stdio().Stdout); out != "last\n" {
		t.Errorf("%q", out)
	}
	boxtest.WantManaged(t, p, engine.Exited, 4)
	if d := time.Since(began); d < 1500*time.Millisecond {
		t.Errorf("ended after %v, before the background could", d)
	}
	if text := <-errs; len(text) < 100 || strings.Trim(text, "noise\n") != "" {
		t.Errorf("%d bytes of noise", len(text))
	}
	if err := p.Control().Kill(boxtest.Patient(t)); err != nil {
		t.Error(err)
	}
	if err := p.Forget(boxtest.Patient(t)); err != nil {
		t.Error(err)
	}
}

func (e *suite) managedBulk(t testing.TB) {
	b := e.create(t, engine.Spec{})
	histories := []int64{64 << 10, 1 << 20}
	if testutil.Full() {
		histories = append(histories, engine.MinHistory) // 8 s
	}
	for _, history := range histories {
		m := boxtest.ManagedPython(fmt.Sprint("h", history), boxtest.Writer100MB)
		m.History = history
		p := boxtest.Launch(t, b, m)
		began := time.Now()
		h := sha256.New()
		n, err := io.CopyBuffer(struct{ io.Writer }{h}, boxtest.NewReader(t, p.Stdio().Stdout), make([]byte, 256<<10))
		if err != nil || n != 100<<20 {
			t.Errorf("history %d: %d bytes, %v", history, n, err)
		}
		t.Logf("history %d: %.0f MB/s", history, float64(n)/1e6/time.Since(began).Seconds())
		if want := sha256.Sum256(boxtest.Numbered(100 << 20)); hex.EncodeToString(h.Sum(nil)) != hex.EncodeToString(want[:]) {
			t.Errorf("history %d: the bytes are not those that were written", history)
		}
		boxtest.WantManaged(t, p, engine.Exited, 0)
		if oldest, end := p.Stdio().Stdout.Bounds(); end != 100<<20 || end-oldest > max(2*history, 8<<10) || end-oldest < min(history, 4<<10) {
			t.Errorf("history %d: bounds %d to %d", history, oldest, end)
		}
	}
}

// Without a reader the process waits; later a reader gets everything.
func (e *suite) managedBackPressure(t testing.TB) {
	b := e.create(t, engine.Spec{})
	m := boxtest.ManagedPython("a", `
import os, sys
os.set_blocking(1, False)
n, block = 0, b"x" * 4096
import time
idle = 0
while idle < 20:
    try:
        n += os.write(1, block)
        idle = 0
    except BlockingIOError:
        idle += 1
        time.sleep(0.01)
sys.stderr.write(str(n))
sys.stderr.close(); os.close(2)
os.set_blocking(1, True)
os.write(1, b"y")
`)
	m.History = 64 << 10
	p := boxtest.Launch(t, b, m)
	var n int64
	fmt.Sscan(boxtest.ReadAll(t, p.Stdio().Stderr), &n)
	// The ring keeps a part free that is as large as the pipe, or half of it.
	if n < 64<<10 || n > 64<<10+256<<10 {
		t.Errorf("the process could write %d bytes", n)
	}
	select {
	case <-p.Done():
		t.Error("it does not wait")
	default:
	}
	if out := boxtest.ReadAll(t, p.Stdio().Stdout); int64(len(out)) != n+1 || out[n] != 'y' {
		t.Errorf("%d bytes", len(out))
	}
	boxtest.WantManaged(t, p, engine.Exited, 0)
}

// The end of a process is reported even if its output is never read.
func (e *suite) managedEndsUnread(t testing.TB) {
	b := e.create(t, engine.Spec{})
	m := boxtest.ManagedPython("a", `import os; [os.write(1, b"x" * 1024) for i in range(60)]`)
	m.History = 64 << 10
	p := boxtest.Launch(t, b, m)
	boxtest.WantManaged(t, p, engine.Exited, 0)
	if out := boxtest.ReadAll(t, p.Stdio().Stdout); len(out) != 60<<10 {
		t.Errorf("%d bytes", len(out))
	}
}

// With DropOldest the process never waits, and a reader never gets other bytes than those written at that offset.
func (e *suite) managedDropOldest(t testing.TB) {
	b := e.create(t, engine.Spec{})
	m := boxtest.ManagedPython("a", boxtest.Writer100MB)
	m.DropOldest, m.History = true, 64<<10
	p := boxtest.Launch(t, b, m)
	want := boxtest.Numbered(100 << 20)
	ctx, buf := boxtest.Patient(t), make([]byte, 48<<10)
	var off, lost int64
	for {
		n, at, err := p.Stdio().Stdout.ReadAt(ctx, buf, off)
		if err == io.EOF {
			break
		}
		if err != nil || at < off || !bytes.Equal(buf[:n], want[at:at+int64(n)]) {
			t.Fatalf("%d bytes at %d after %d, %v", n, at, off, err)
		}
		lost += at - off
		off = at + int64(n)
	}
	boxtest.WantManaged(t, p, engine.Exited, 0)
	t.Logf("%d of %d bytes were dropped", lost, off)
	q := boxtest.Launch(t, b, engine.Managed{Key: "b", Args: m.Args, DropOldest: true, History: engine.MinHistory})
	boxtest.WantManaged(t, q, engine.Exited, 0) // unread
	if oldest, end := q.Stdio().Stdout.Bounds(); end != 100<<20 || end == oldest {
		t.Errorf("bounds %d to %d", oldest, end)
	}
}

func (e *suite) managedInput(t testing.TB) {
	b := e.create(t, engine.Spec{})
	ctx := boxtest.Patient(t)
	p := boxtest.Launch(t, b, boxtest.ManagedShell("a", "sha256sum"))
	in := p.Stdio().Stdin
	data := boxtest.Numbered(3 << 20)
	for off := 0; off < len(data); {
		n := min(len(data)-off, 100_000)
		if err := in.Write(ctx, int64(off), data[off:off+n]); err != nil {
			t.Fatal(err)
		}
		off += n
		if again := off - n/2; off%3 == 0 { // sent again, as after a lost connection
			if err := in.Write(ctx, int64(again), data[again:off]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := in.Write(ctx, int64(len(data)+1), []byte("x")); err == nil {
		t.Error("a gap is no error")
	}
	for range 2 {
		if err := in.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	if err := in.Write(ctx, int64(len(data)), []byte("x")); err == nil {
		t.Error("writing behind the end is no error")
	}
	sum := sha256.Sum256(data)
	if out := boxtest.ReadAll(t, p.Stdio().Stdout); !strings.HasPrefix(out, hex.EncodeToString(sum[:])) {
		t.Errorf("%q", out)
	}
	boxtest.WantManaged(t, p, engine.Exited, 0)
}

func (e *suite) managedInputOfNobody(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p := boxtest.Launch(t, b, boxtest.ManagedShell("a", "exec <&-; echo closed; sleep 1000"))
	buf := make([]byte, 10)
	if _, _, err := p.Stdio().Stdout.ReadAt(boxtest.Patient(t), buf, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdio().Stdin.Write(boxtest.Patient(t), 0, []byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("%v, want EPIPE", err)
	}
	// A process that does not read does not keep a caller from giving up, and accepted bytes stay accepted.
	q := boxtest.Launch(t, b, boxtest.ManagedShell("b", "sleep 1000"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := q.Stdio().Stdin.Write(ctx, 0, make([]byte, 1<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if n := q.Stdio().Stdin.Accepted(); n < 64<<10 || n >= 1<<20 {
		t.Errorf("accepted %d", n)
	}
	for _, p := range []engine.ManagedProcess{p, q} {
		if err := p.Control().Kill(boxtest.Patient(t)); err != nil {
			t.Error(err)
		}
		boxtest.WantManaged(t, p, engine.Signaled, -1)
	}
}

func (e *suite) managedTerminal(t testing.TB) {
	b := e.create(t, engine.Spec{})
	m := boxtest.ManagedPython("a", `
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
s = os.get_terminal_size(0); print(f"{s.lines}x{s.columns}", os.isatty(0), os.isatty(1), os.isatty(2), flush=True)
signal.sigwait([signal.SIGWINCH])
s = os.get_terminal_size(0); print(f"{s.lines}x{s.columns}", flush=True)
print("read", sys.stdin.read(), flush=True)
sys.exit(6)
`)
	m.TTY = &engine.WindowSize{Rows: 24, Cols: 80}
	p := boxtest.Launch(t, b, m)
	if p.Stdio().Stderr != nil {
		t.Error("a terminal has one output")
	}
	ctx := boxtest.Patient(t)
	r := boxtest.NewReader(t, p.Stdio().Stdout)
	expect := func(text string) {
		t.Helper()
		buf := make([]byte, len(text))
		if _, err := io.ReadFull(r, buf); err != nil || string(buf) != text {
			t.Fatalf("%q, %v; want %q", buf, err, text)
		}
	}
	expect("24x80 True True True\r\n")
	if err := p.Control().Resize(engine.WindowSize{Rows: 50, Cols: 132}); err != nil {
		t.Error(err)
	}
	expect("50x132\r\n")
	if err := p.Stdio().Stdin.Write(ctx, 0, []byte("line\n")); err != nil {
		t.Error(err)
	}
	expect("line\r\n")
	if err := p.Stdio().Stdin.Close(ctx); err != nil {
		t.Error(err)
	}
	expect("read line\r\n\r\n")
	boxtest.WantManaged(t, p, engine.Exited, 6)
	if err := p.Control().Resize(engine.WindowSize{Rows: 1, Cols: 1}); err != nil {
		t.Error(err)
	}
	q := boxtest.Launch(t, b, boxtest.ManagedShell("b", "exec sleep 1000"))
	if err := q.Control().Resize(engine.WindowSize{Rows: 1, Cols: 1}); err == nil {
		t.Error("resized without a terminal")
	}
	if err := q.Control().Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if r := boxtest.WantManaged(t, q, engine.Signaled, -1); r.Signal != syscall.SIGTERM {
		t.Errorf("%+v", r)
	}
}

// A shell with line editing sees the end of its input, even if that came before it listened.
func (e *suite) managedTerminalAtItsEnd(t testing.TB) {
	b := e.create(t, engine.Spec{})
	m := boxtest.ManagedShell("a", "exec bash --norc")
	m.TTY = &engine.WindowSize{Rows: 24, Cols: 80}
	p := boxtest.Launch(t, b, m)
	if err := p.Stdio().Stdin.Close(boxtest.Patient(t)); err != nil {
		t.Error(err)
	}
	boxtest.ReadAll(t, p.Stdio().Stdout)
	boxtest.WantManaged(t, p, engine.Exited, 0)
}

// All of a terminal's last words are there.
func (e *suite) managedTerminalEnd(t testing.TB) {
	b := e.create(t, engine.Spec{})
	for i := range 20 {
		m := boxtest.ManagedShell(fmt.Sprint("p", i), "seq 1 3000; echo the end")
		m.TTY = &engine.WindowSize{Rows: 24, Cols: 80}
		p := boxtest.Launch(t, b, m)
		out := boxtest.ReadAll(t, p.Stdio().Stdout)
		if !strings.HasPrefix(out, "1\r\n2\r\n") || !strings.HasSuffix(out, "3000\r\nthe end\r\n") {
			t.Errorf("%d bytes that end in %q", len(out), out[max(0, len(out)-20):])
		}
		boxtest.WantManaged(t, p, engine.Exited, 0)
	}
}

// The streams can be opened by name, by another user than PID 1's.
func (e *suite) managedDevStdio(t testing.TB) {
	b := e.create(t, engine.Spec{User: engine.User{UID: 1000, GID: 1000}})
	p := boxtest.Launch(t, b, boxtest.ManagedShell("a", `read x </dev/stdin; echo "out $x" >/dev/stdout; echo "err $x" >/dev/stderr`))
	if err := p.Stdio().Stdin.Write(boxtest.Patient(t), 0, []byte("x\n")); err != nil {
		t.Error(err)
	}
	if out, errs := boxtest.ReadAll(t, p.Stdio().Stdout), boxtest.ReadAll(t, p.Stdio().Stderr); out != "out x\n" || errs != "err x\n" {
		t.Errorf("%q, %q", out, errs)
	}
	boxtest.WantManaged(t, p, engine.Exited, 0)
}

func (e *suite) managedTree(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p := boxtest.Launch(t, b, boxtest.ManagedShell("a", `trap 'echo term' TERM; (setsid sleep 1000 & setsid sleep 1001 &) ; echo up; `+testutil.SignalLoop))
	r := boxtest.NewReader(t, p.Stdio().Stdout)
	buf := make([]byte, 8)
	if _, err := io.ReadFull(r, buf[:3]); err != nil {
		t.Fatal(err)
	}
	if err := p.Control().Terminate(boxtest.Patient(t), syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(r, buf[:5]); err != nil || string(buf[:5]) != "term\n" {
		t.Fatalf("%q, %v", buf, err)
	}
	if err := p.Forget(boxtest.Patient(t)); err == nil {
		t.Error("a running process was forgotten")
	}
	if err := p.Control().Kill(boxtest.Patient(t)); err != nil {
		t.Error(err)
	}
	if r := boxtest.WantManaged(t, p, engine.Signaled, -1); r.Signal != syscall.SIGKILL {
		t.Errorf("%+v", r)
	}
	if err := p.Control().Signal(syscall.SIGTERM); err != nil {
		t.Errorf("signalling what has ended: %v", err)
	}
}

func (e *suite) managedMany(t testing.TB) {
	b := e.create(t, engine.Spec{})
	var all []engine.ManagedProcess
	for i := range 64 {
		m := boxtest.ManagedShell(fmt.Sprint("p", i), "cat")
		m.History = 64 << 10
		all = append(all, boxtest.Launch(t, b, m))
	}
	if p, err := b.Launch(t.Context(), boxtest.ManagedShell("one-more", "cat")); err == nil {
		t.Errorf("one too many: %v", p)
	}
	ctx := boxtest.Patient(t)
	for i, p := range all {
		if err := p.Stdio().Stdin.Write(ctx, 0, []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		if err := p.Stdio().Stdin.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range all {
		if out := boxtest.ReadAll(t, p.Stdio().Stdout); out != fmt.Sprint(i) {
			t.Errorf("process %d: %q", i, out)
		}
		boxtest.WantManaged(t, p, engine.Exited, 0)
		if err := p.Forget(ctx); err != nil {
			t.Error(err)
		}
	}
	p := boxtest.Launch(t, b, boxtest.ManagedShell("again", "cat"))
	if err := p.Control().Kill(ctx); err != nil {
		t.Error(err)
	}
	boxtest.Await(t, p)
}

func (e *suite) managedRefused(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p := boxtest.Launch(t, b, boxtest.ManagedShell("a", "exit 0"))
	boxtest.Await(t, p)
	if err := p.Forget(boxtest.Patient(t)); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		m    engine.Managed
		want error
	}{
		"a key again":       {boxtest.ManagedShell("a", "exit 0"), engine.ErrInvalid},
		"no key":            {boxtest.ManagedShell("", "exit 0"), engine.ErrInvalid},
		"a bad key":         {boxtest.ManagedShell("A", "exit 0"), engine.ErrInvalid},
		"a small history":   {engine.Managed{Key: "b", Args: []string{"x"}, History: 1}, engine.ErrInvalid},
		"no program":        {engine.Managed{Key: "c", Args: []string{"no-such-program"}}, engine.ErrNotFound},
		"no directory":      {engine.Managed{Key: "d", Args: []string{"true"}, Dir: "/none"}, engine.ErrNoDir},
		"not executable":    {engine.Managed{Key: "e", Args: []string{"/etc/passwd"}}, engine.ErrNotExecutable},
		"no program at tty": {engine.Managed{Key: "f", Args: []string{"/none"}, TTY: &engine.WindowSize{Rows: 1, Cols: 1}}, engine.ErrNotFound},
	} {
		if _, err := b.Launch(t.Context(), c.m); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := boxtest.ManagedShell("large", "sleep 1000")
	m.History = engine.MaxHistory
	q := boxtest.Launch(t, b, m)
	m.Key = "larger"
	if _, err := b.Launch(t.Context(), m); err == nil || !strings.Contains(err.Error(), "histories") {
		t.Errorf("more history than a box has: %v", err)
	}
	// A key that came to nothing may be tried again.
	boxtest.Launch(t, b, boxtest.ManagedShell("c", "sleep 1000"))
	if got := b.Managed(); len(got) != 2 || got[0] != q {
		t.Errorf("%v", got)
	}
}

// PID 1 dies: the result says so and invents nothing, and earlier output can still be read.
func (e *suite) managedBoxLost(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p := boxtest.Launch(t, b, boxtest.ManagedShell("a", "echo before; cat"))
	q := boxtest.Launch(t, b, boxtest.ManagedShell("b", "exit 9"))
	boxtest.WantManaged(t, q, engine.Exited, 9)
	buf := make([]byte, 20)
	if n, _, err := p.Stdio().Stdout.ReadAt(boxtest.Patient(t), buf, 0); err != nil || string(buf[:n]) != "before\n" {
		t.Fatal(err)
	}
	e.killInit(t, b)
	<-b.Done()
	boxtest.WantManaged(t, p, engine.BoxLost, -1)
	boxtest.WantManaged(t, q, engine.Exited, 9)
	if p.Result().Receipt.User == nil {
		t.Errorf("nobody knows what it has used: %+v", p.Result().Receipt)
	}
	if out := boxtest.ReadAll(t, p.Stdio().Stdout); out != "before\n" {
		t.Errorf("%q", out)
	}
	if err := p.Stdio().Stdin.Write(boxtest.Patient(t), 0, []byte("x")); !errors.Is(err, engine.ErrBoxLost) {
		t.Error(err)
	}
	if _, err := b.Launch(t.Context(), boxtest.ManagedShell("c", "true")); !errors.Is(err, engine.ErrBoxLost) {
		t.Error(err)
	}
	for _, p := range []engine.ManagedProcess{p, q} {
		if err := p.Control().Kill(boxtest.Patient(t)); err != nil {
			t.Error(err)
		}
		if err := p.Forget(boxtest.Patient(t)); err != nil {
			t.Error(err)
		}
	}
}

// A reader that is slower than the removal of its box still gets all that was written.
func (e *suite) managedHold(t testing.TB) {
	b := e.create(t, engine.Spec{})
	ended := boxtest.Launch(t, b, boxtest.ManagedShell("a", "echo kept"))
	lost := boxtest.Launch(t, b, boxtest.ManagedShell("b", "echo kept; exec sleep 1000"))
	boxtest.WantManaged(t, ended, engine.Exited, 0)
	buf := make([]byte, 20)
	if n, _, err := lost.Stdio().Stdout.ReadAt(boxtest.Patient(t), buf, 0); err != nil || string(buf[:n]) != "kept\n" {
		t.Fatal(err)
	}
	first, second := lost.Hold(), lost.Hold()
	third := ended.Hold()
	boxtest.Remove(t, b)
	first()
	first() // counts once
	for _, p := range []engine.ManagedProcess{ended, lost} {
		if out := boxtest.ReadAll(t, p.Stdio().Stdout); out != "kept\n" {
			t.Errorf("%s: %q", p.Key(), out)
		}
	}
	second()
	third()
	for _, p := range []engine.ManagedProcess{ended, lost} {
		p.Hold()()
		if _, _, err := p.Stdio().Stdout.ReadAt(boxtest.Patient(t), buf, 0); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: reading what was released: %v", p.Key(), err)
		}
	}
}

// A box that is removed takes its managed processes along, and it is known what they and its commands
// have used.
func (e *suite) managedRemoved(t testing.TB) {
	b := e.create(t, engine.Spec{})
	p := boxtest.Launch(t, b, boxtest.ManagedShell("a", "yes"))
	reading := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, boxtest.NewReader(t, p.Stdio().Stdout))
		reading <- err
	}()
	const work = 50 * time.Millisecond
	burn := fmt.Sprintf("import time\nwhile time.process_time() < %g: pass\nprint(1, flush=True); time.sleep(1000)", work.Seconds())
	q := boxtest.Launch(t, b, boxtest.ManagedPython("b", burn))
	if _, _, err := q.Stdio().Stdout.ReadAt(boxtest.Patient(t), make([]byte, 1), 0); err != nil {
		t.Fatal(err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c, err := b.Start(t.Context(), engine.Command{Args: []string{"/usr/bin/python3", "-c", burn}, Stdout: in})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	boxtest.Remove(t, b)
	in.Close()
	boxtest.WantManaged(t, p, engine.BoxLost, -1)
	boxtest.WantManaged(t, q, engine.BoxLost, -1)
	r, err := c.Wait()
	if err != nil || r.Verdict != engine.BoxLost {
		t.Errorf("%+v, %v", r, err)
	}
	for _, r := range []engine.Result{q.Result(), r} {
		if r.Receipt.User == nil || *r.Receipt.User+*r.Receipt.System < work {
			t.Errorf("%+v", r.Receipt)
		}
	}
	<-reading // with the end, or that of the ring
}

// A process that enlarges its pipe beyond the reserved room, fills it and exits does not stay alive because of
// that, however little is read. The oldest output is dropped, and reported as gone.
func (e *suite) managedEnlargedPipe(t testing.TB) {
	b := e.create(t, engine.Spec{})
	m := boxtest.ManagedPython("a", `
import os, fcntl
fcntl.fcntl(1, 1031, 1 << 20) # F_SETPIPE_SZ
os.write(2, b"x")
[os.write(1, b"%08d" % i) for i in range((512 << 10) // 8)]
`)
	m.History = 64 << 10
	p := boxtest.Launch(t, b, m)
	boxtest.WantManaged(t, p, engine.Exited, 0)
	oldest, end := p.Stdio().Stdout.Bounds()
	if end != 512<<10 || oldest != end-64<<10 {
		t.Errorf("bounds %d to %d", oldest, end)
	}
	buf := make([]byte, 8)
	if n, at, err := p.Stdio().Stdout.ReadAt(boxtest.Patient(t), buf, 0); n != 8 || at != oldest || err != nil || string(buf) != fmt.Sprintf("%08d", oldest/8) {
		t.Errorf("%q at %d, %v", buf[:n], at, err)
	}
}
