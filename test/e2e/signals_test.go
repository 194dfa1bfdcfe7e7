package e2e

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

// begin calls boxd and returns when the command has said "ready".
func (c *cli) begin(args ...string) (*exec.Cmd, *bufio.Reader, *strings.Builder) {
	c.t.Helper()
	cmd, cancel := c.command(args...)
	c.t.Cleanup(cancel)
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	r := bufio.NewReader(out)
	if line, err := r.ReadString('\n'); line != "ready\n" {
		c.t.Fatalf("%q, %v, stderr %q", line, err, &stderr)
	}
	return cmd, r, &stderr
}

// TestSignals: what ends a program ends the command, and boxd with its status.
func TestSignals(t *testing.T) {
	c := newCLI(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		cmd, _, stderr := c.begin("run", "--", "sh", "-c", "echo ready; exec sleep 3600")
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != 128+int(sig) || stderr.String() != "" {
			t.Errorf("%v: status %d, stderr %q", sig, got, stderr)
		}
		c.wantNothingLeft()
	}

	// A command may take it as it likes.
	cmd, out, _ := c.begin("run", "--", "sh", "-c", "trap 'echo caught; exit 5' TERM; echo ready; "+testutil.SignalLoop)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(out)
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 5 || string(rest) != "caught\n" {
		t.Errorf("status %d, %q", got, rest)
	}

	// The second one kills.
	cmd, out, stderr := c.begin("run", "--", "sh", "-c", "trap 'echo no' TERM INT; echo ready; "+testutil.SignalLoop)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_, _ = out.ReadString('\n') // the answer to the first, the end after the second
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 143 || stderr.String() != "verdict: canceled\n" {
		t.Errorf("status %d, stderr %q", got, stderr)
	}
	c.wantNothingLeft()
}

// TestIgnoredSignals: what the caller of boxd ignores is not ignored in the box:
// a box begins afresh.
func TestIgnoredSignals(t *testing.T) {
	c := newCLI(t)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `trap '' HUP INT QUIT PIPE USR1 TERM TSTP; exec "$0" run -- grep -E '^Sig(Ign|Blk)' /proc/self/status`, c.boxd)
	cmd.Env = c.env
	out, err := cmd.CombinedOutput()
	const zero = "0000000000000000"
	if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != "SigBlk: "+zero+" SigIgn: "+zero {
		t.Errorf("%q, %v", got, err)
	}
}

// TestKilled: a killed boxd leaves nothing behind, because its launcher notices. If the launcher is
// killed too, the next boxd removes what is left.
func TestKilled(t *testing.T) {
	c := newCLI(t)
	const job = "trap '' TERM; echo ready; sleep 3600 & setsid sleep 3600 & wait"
	cmd, _, _ := c.begin("run", "--", "sh", "-c", job)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	c.awaitNothingLeft()

	cmd, _, _ = c.begin("run", "--", "sh", "-c", job)
	// The launcher first: it has no chance to clean up.
	for _, pid := range append(children(t, cmd.Process.Pid), cmd.Process.Pid) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	if len(c.left()) == 0 {
		t.Error("nothing was left to find: the launcher was not killed")
	}
	c.want(result{0, "next\n", ""}, "--", "echo", "next")
	c.wantNothingLeft()
}

// children of a process, from all of its threads.
func children(t *testing.T, pid int) []int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, task := range tasks {
		list, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + task.Name() + "/children")
		for field := range strings.FieldsSeq(string(list)) {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, n)
		}
	}
	return pids
}

// A signal ends boxd while it writes its result to a reader that does not read.
func TestSignalWhileReaderStalls(t *testing.T) {
	c := newCLI(t)
	cmd, cancel := c.command("run", "--json", "--", "head", "-c", "1M", "/dev/zero")
	t.Cleanup(cancel)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	// Nothing is written before the command has ended. The pipe then holds 64 KiB.
	for full := 0; full < 64<<10; {
		if full, err = unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		}
		if cmd.ProcessState != nil || syscall.Kill(cmd.Process.Pid, 0) != nil {
			t.Fatal("it ended although nobody read its result")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the context of the command bounds it
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("%v, want it ended by SIGTERM", cmd.ProcessState)
	}
	c.awaitNothingLeft()
}
