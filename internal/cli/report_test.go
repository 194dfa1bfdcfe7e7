package cli

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestJSON pins the object that scripts read.
func TestJSON(t *testing.T) {
	for _, c := range []struct {
		golden string
		args   string
		status int
		stderr string
		behave func(*fakeProcess) engine.Result
		start  error
	}{
		{"full.json", "run --json x", 3, "", func(p *fakeProcess) engine.Result {
			p.print(p.cmd.Stdout, "5 < 6 & ä\n")
			p.print(p.cmd.Stderr, "oops\n")
			return engine.Result{Verdict: engine.Exited, ExitCode: 3, Receipt: engine.Receipt{
				Wall: 12345678 * time.Nanosecond, User: ptr(7 * time.Millisecond), System: ptr(time.Duration(0)), Throttled: ptr(time.Second),
				MemoryPeak: ptr(int64(3 << 20)), PIDsPeak: ptr(int64(2)), StdoutBytes: ptr(int64(11)), StderrBytes: ptr(int64(5)),
				IOReadBytes: ptr(int64(4096)), IOWriteBytes: ptr(int64(0)), OOMKills: ptr(int64(0)), PIDsLimitReached: ptr(int64(0)),
			}}
		}, nil},
		{"unmeasured.json", "run --json x", 0, "", func(*fakeProcess) engine.Result {
			return engine.Result{Verdict: engine.Exited, Receipt: engine.Receipt{Wall: time.Millisecond}}
		}, nil},
		{"oom.json", "run --json x", 137, "verdict: oom (limit 64 MiB)\n", func(*fakeProcess) engine.Result {
			return engine.Result{Verdict: engine.OOM, ExitCode: -1, Signal: syscall.SIGKILL, Limit: "64 MiB", Receipt: engine.Receipt{Wall: time.Second, OOMKills: ptr(int64(1))}}
		}, nil},
		{"binary.json", "run --json x", 0, "", func(p *fakeProcess) engine.Result {
			p.print(p.cmd.Stdout, "\xff\x00")
			return engine.Result{Verdict: engine.Exited}
		}, nil},
		{"truncated.json", "run --json --output-limit 8 x", 137, "verdict: output-limit (limit 8 B)\n", func(p *fakeProcess) engine.Result {
			p.print(p.cmd.Stdout, strings.Repeat("a", 8))
			p.print(p.cmd.Stderr, "b")
			return engine.Result{Verdict: engine.OutputLimit, ExitCode: -1, Signal: syscall.SIGKILL, Limit: "8 B"}
		}, nil},
		{"not-found.json", "run --json x", 127, "boxd: program not found\n", nil, engine.ErrNotFound},
		{"invalid.json", "run --json --memory 1 x", 125, "boxd: --memory 1 B: must be 4 MiB to 64 TiB\n", nil, nil},
	} {
		v := newInvocation(t)
		v.fake.behave, v.fake.startErr = c.behave, c.start
		status := v.Main(strings.Fields(c.args))
		if status != c.status || v.stderr.String() != c.stderr {
			t.Errorf("%s: status %d, stderr %q, want %d, %q", c.golden, status, v.stderr.String(), c.status, c.stderr)
		}
		wantGolden(t, c.golden, v.stdout.String())
	}
}

func wantGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is now\n%s", name, got)
	}
}
