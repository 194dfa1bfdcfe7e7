package conformance

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// receiptPIDs: the peak is exact, and each command's own.
func (e *suite) receiptPIDs(t testing.TB) {
	b := e.create(t, engine.Spec{})
	for script, peak := range map[string]int64{
		"true":                              1,
		"true; true":                        1,
		"sleep 0.2 & sleep 0.2 & wait":      3,
		"sleep 0.2 | sleep 0.2 | sleep 0.2": 4,
	} {
		for range 3 {
			if got := boxtest.Figure(t, "pids peak", boxtest.Run(t, b, boxtest.Shell(script)).Receipt.PIDsPeak); got != peak {
				t.Errorf("%s: pids peak %d, want %d", script, got, peak)
			}
		}
	}
}

// receiptMemory: a boxtest.Hog of 50 MiB is seen as that, what came before is not.
func (e *suite) receiptMemory(t testing.TB) {
	b := e.create(t, engine.Spec{})
	c := boxtest.Python(boxtest.Hog, "0")
	c.Stdin = strings.NewReader("")
	base := boxtest.Figure(t, "memory peak", boxtest.Run(t, b, c).Receipt.MemoryPeak)
	for range 2 {
		c = boxtest.Python(boxtest.Hog, "50")
		c.Stdin = strings.NewReader("")
		o := boxtest.Run(t, b, c)
		boxtest.Want(t, o, engine.Exited, 0)
		if got := boxtest.Figure(t, "memory peak", o.Receipt.MemoryPeak) - base; got < 48*boxtest.MiB || got > 56*boxtest.MiB {
			t.Errorf("a boxtest.Hog of 50 MiB took %d KiB more than one of 0", got>>10)
		}
	}
	if got := boxtest.Figure(t, "memory peak", boxtest.Run(t, b, boxtest.Shell("true")).Receipt.MemoryPeak); got > 8*boxtest.MiB {
		t.Errorf("a small command after a boxtest.Hog has a peak of %d KiB", got>>10)
	}
}

// receiptTime: the receipt has the processor time of a command, including its children and killed processes.
func (e *suite) receiptTime(t testing.TB) {
	b := e.create(t, engine.Spec{})
	const burn = "import time\nwhile time.process_time() < 0.5: pass"
	for name, c := range map[string]engine.Command{
		"itself":  boxtest.Python(burn),
		"a child": {Args: []string{"sh", "-c", `python3 -c "$0"; :`, burn}},
		"a child that is not waited for": {Args: []string{"sh", "-c",
			`python3 -c "$0
print('burnt', flush=True); time.sleep(3600)" > /tmp/fifo & read x < /tmp/fifo`, burn}},
	} {
		if name == "a child that is not waited for" {
			boxtest.WantOutput(t, b, "mkfifo /tmp/fifo", "")
		}
		o := boxtest.Run(t, b, c)
		boxtest.Want(t, o, engine.Exited, 0)
		used := boxtest.Figure(t, "user time", o.Receipt.User) + boxtest.Figure(t, "system time", o.Receipt.System)
		if used < 480*time.Millisecond || used > o.Receipt.Wall*2+50*time.Millisecond {
			t.Errorf("%s: burnt 500 ms and some for the start, receipt says %v in %v", name, used, o.Receipt.Wall)
		}
	}
	o := boxtest.Run(t, b, boxtest.Shell("sleep 0.3"))
	if used := boxtest.Figure(t, "user time", o.Receipt.User) + boxtest.Figure(t, "system time", o.Receipt.System); used > 200*time.Millisecond || o.Receipt.Wall < 300*time.Millisecond {
		t.Errorf("sleep 0.3 used %v in %v", used, o.Receipt.Wall)
	}
}

// attribution runs two commands at once of which one runs out of memory: its
// verdict does not spill over.
func (e *suite) attribution(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{Memory: 96 * boxtest.MiB}})
	for range 3 {
		out := boxtest.NewScreen()
		r, w := context.WithCancel(t.Context())
		defer w()
		quiet := boxtest.Python(boxtest.Hog, "8")
		release, stdin := boxtest.NewGate()
		quiet.Stdin, quiet.Stdout = stdin, out
		p, err := b.Start(r, quiet)
		if err != nil {
			t.Fatal(err)
		}
		out.Await(t, "taken")
		o := boxtest.Run(t, b, boxtest.Python("x = bytearray(10**9)"))
		boxtest.Want(t, o, engine.OOM, 137)
		release()
		res := boxtest.Wait(t, p)
		if res.Verdict != engine.Exited || res.ExitCode != 0 || boxtest.Figure(t, "OOM kills", res.Receipt.OOMKills) != 0 {
			t.Errorf("the other one: %+v, %d OOM kills", res, *res.Receipt.OOMKills)
		}
	}
	// The same for processes: the bystander fails for a reason of its own.
	b = e.create(t, engine.Spec{Limits: engine.Limits{PIDs: 8}})
	out := boxtest.NewScreen()
	release, stdin := boxtest.NewGate()
	c := boxtest.Shell("echo ready; read x; exit 9")
	c.Stdin, c.Stdout = stdin, out
	p := boxtest.Begin(t, b, c)
	out.Await(t, "ready")
	boxtest.Run(t, b, boxtest.Shell("exec 2>/dev/null; for i in 1 2 3 4 5 6 7 8 9; do sleep 3600 & done; exit 1"))
	release()
	// Nothing is guessed: v1 does not count refusals per command.
	if res := boxtest.Wait(t, p); res.Verdict != engine.Exited || res.ExitCode != 9 {
		t.Errorf("bystander of a fork bomb: %+v", res)
	}
}
