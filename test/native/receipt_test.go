package native

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
)

// TestReceiptPIDs: the peak is exact, and each command's own.
func TestReceiptPIDs(t *testing.T) {
	b := newBox(t, engine.Spec{})
	for script, peak := range map[string]int64{
		"true":                              1,
		"true; true":                        1,
		"sleep 0.2 & sleep 0.2 & wait":      3,
		"sleep 0.2 | sleep 0.2 | sleep 0.2": 4,
	} {
		for range 3 {
			if got := figure(t, "pids peak", run(t, b, shell(script)).Receipt.PIDsPeak); got != peak {
				t.Errorf("%s: pids peak %d, want %d", script, got, peak)
			}
		}
	}
}

// TestReceiptMemory: a hog of 50 MiB is seen as that, what came before is not.
func TestReceiptMemory(t *testing.T) {
	b := newBox(t, engine.Spec{})
	c := python(hog, "0")
	c.Stdin = strings.NewReader("")
	base := figure(t, "memory peak", run(t, b, c).Receipt.MemoryPeak)
	for range 2 {
		c = python(hog, "50")
		c.Stdin = strings.NewReader("")
		o := run(t, b, c)
		want(t, o, engine.Exited, 0)
		if got := figure(t, "memory peak", o.Receipt.MemoryPeak) - base; got < 48*mib || got > 56*mib {
			t.Errorf("a hog of 50 MiB took %d KiB more than one of 0", got>>10)
		}
	}
	if got := figure(t, "memory peak", run(t, b, shell("true")).Receipt.MemoryPeak); got > 8*mib {
		t.Errorf("a small command after a hog has a peak of %d KiB", got>>10)
	}
}

// TestReceiptTime: the receipt has the processor time of a command, including its children and killed processes.
func TestReceiptTime(t *testing.T) {
	b := newBox(t, engine.Spec{})
	const burn = "import time\nwhile time.process_time() < 0.5: pass"
	for name, c := range map[string]engine.Command{
		"itself":  python(burn),
		"a child": {Args: []string{"sh", "-c", `python3 -c "$0"; :`, burn}},
		"a child that is not waited for": {Args: []string{"sh", "-c",
			`python3 -c "$0
print('burnt', flush=True); time.sleep(3600)" > /tmp/fifo & read x < /tmp/fifo`, burn}},
	} {
		if name == "a child that is not waited for" {
			wantOutput(t, b, "mkfifo /tmp/fifo", "")
		}
		o := run(t, b, c)
		want(t, o, engine.Exited, 0)
		used := figure(t, "user time", o.Receipt.User) + figure(t, "system time", o.Receipt.System)
		if used < 480*time.Millisecond || used > o.Receipt.Wall*2+50*time.Millisecond {
			t.Errorf("%s: burnt 500 ms and some for the start, receipt says %v in %v", name, used, o.Receipt.Wall)
		}
	}
	o := run(t, b, shell("sleep 0.3"))
	if used := figure(t, "user time", o.Receipt.User) + figure(t, "system time", o.Receipt.System); used > 200*time.Millisecond || o.Receipt.Wall < 300*time.Millisecond {
		t.Errorf("sleep 0.3 used %v in %v", used, o.Receipt.Wall)
	}
}

// TestAttribution runs two commands at once of which one runs out of memory: its
// verdict does not spill over.
func TestAttribution(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{Memory: 96 * mib}})
	for range 3 {
		out := newScreen()
		r, w := context.WithCancel(t.Context())
		defer w()
		quiet := python(hog, "8")
		release, stdin := newGate()
		quiet.Stdin, quiet.Stdout = stdin, out
		p, err := b.Start(r, quiet)
		if err != nil {
			t.Fatal(err)
		}
		out.await(t, "taken")
		o := run(t, b, python("x = bytearray(10**9)"))
		want(t, o, engine.OOM, 137)
		release()
		res := wait(t, p)
		if res.Verdict != engine.Exited || res.ExitCode != 0 || figure(t, "OOM kills", res.Receipt.OOMKills) != 0 {
			t.Errorf("the other one: %+v, %d OOM kills", res, *res.Receipt.OOMKills)
		}
	}
	// The same for processes: the bystander fails for a reason of its own.
	b = newBox(t, engine.Spec{Limits: engine.Limits{PIDs: 8}})
	out := newScreen()
	release, stdin := newGate()
	c := shell("echo ready; read x; exit 9")
	c.Stdin, c.Stdout = stdin, out
	p := begin(t, b, c)
	out.await(t, "ready")
	run(t, b, shell("exec 2>/dev/null; for i in 1 2 3 4 5 6 7 8 9; do sleep 3600 & done; exit 1"))
	release()
	// Nothing is guessed: v1 does not count refusals per command.
	if res := wait(t, p); res.Verdict != engine.Exited || res.ExitCode != 9 {
		t.Errorf("bystander of a fork bomb: %+v", res)
	}
}

// newGate is a reader that ends when release is called.
func newGate() (release func(), r gate) {
	g := make(gate)
	return func() { close(g) }, g
}

type gate chan struct{}

func (g gate) Read([]byte) (int, error) { <-g; return 0, errEnd }
