package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// runBy are the ways of boxd run: in the part that starts fast, in full, and without a daemon.
func (d *daemon) runBy() map[string][]string {
	return map[string][]string{
		"quick": {"run", "--socket", d.socket()}, "full": {"run", "--rm", "--socket", d.socket()},
		"direct": {"run", "--direct", "--state-dir", d.state},
	}
}

// TestRunByDaemon: a command has the same result whoever runs it, to the byte.
func TestRunByDaemon(t *testing.T) {
	d := startDaemon(t)
	d.env = append(d.env, "FROM_CALLER=passed on")
	data := make([]byte, 4_000_000)
	rand.NewChaCha8([32]byte{1}).Read(data)
	file := filepath.Join(t.TempDir(), "in")
	write(t, file, string(data))
	sh := func(script string) []string { return []string{"--", "sh", "-c", script} }
	for _, r := range []struct {
		args  []string
		stdin string // none, pipe, file or socket: one that cannot be passed on, at its end
	}{
		{args: []string{"--", "true"}},
		{args: []string{"true"}},
		{args: sh("echo out; echo err >&2; exit 3")},
		{args: sh("exit 125")},
		{args: sh("exit 255")},
		{args: sh("kill -TERM $$")},
		{args: sh("kill -KILL $$")},
		{args: []string{"--timeout", "200ms", "--grace", "50ms", "--", "sleep", "3600"}},
		{args: []string{"--memory", "64M", "--", "tail", "/dev/zero"}},
		{args: []string{"--pids", "8", "--", "sh", "-c", "exec 2>/dev/null; for i in 1 2 3 4 5 6 7 8 9; do sleep 3600 & done"}},
		{args: []string{"--tmp-size", "1M", "--", "sh", "-c", "exec 2>/dev/null; head -c 2M /dev/zero > /tmp/f"}},
		{args: []string{"--output-limit", "10", "--", "printf", "0123456789"}},
		{args: []string{"--output-limit", "10", "--", "printf", "0123456789x"}},
		{args: []string{"--output-limit", "64k", "--", "cat", "/dev/zero"}},
		{args: []string{"--", "/etc/passwd"}},
		{args: []string{"--", "nosuchprogram"}},
		{args: []string{"--workdir", "/no/dir", "--", "true"}},
		{args: []string{"--workdir", "/tmp/a/b", "--mkdir", "--", "pwd"}},
		{args: []string{"-e", "B=1", "-e", "A=2 3", "-e", "FROM_CALLER", "-e", "NOT_SET", "-e", "B=", "--", "env"}},
		{args: []string{"--hostname", "name.example", "-u", "1000:7", "--", "sh", "-c", "hostname; id; ulimit -a; cat /proc/self/uid_map | tr -s ' ' | cut -d' ' -f2,4; ls -d /workspace; df -B1 --output=size /tmp ~; pwd"}},
		{args: []string{"--memory", "100M", "--cpus", "1.5", "--pids", "77", "--shell", "head -n 1 /proc/meminfo; nproc"}},
		{args: sh("echo 'ä \U0001F600' \"$0\"; for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done 2>&1")},
		{args: sh("cat; echo none"), stdin: "none"},
		{args: []string{"-i", "--", "cat"}, stdin: "pipe"},
		{args: []string{"-i", "--", "cat"}, stdin: "file"},
		{args: []string{"-i", "--", "sh", "-c", "head -c 3; exit 4"}, stdin: "pipe"},
		{args: []string{"-i", "--output-limit", "1G", "--", "cat"}, stdin: "file"},
		{args: []string{"-i", "--", "cat"}, stdin: "socket"},
		{args: []string{"-i", "--", "nosuchprogram"}, stdin: "socket"},
		{args: []string{"-i", "--", "/etc/passwd"}, stdin: "socket"},
	} {
		got := map[string]result{}
		for way, args := range d.runBy() {
			switch r.stdin {
			case "pipe":
				d.stdin = io.MultiReader(bytes.NewReader(data))
			case "file":
				f, err := os.Open(file)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				d.stdin = f
			case "socket":
				fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				f := os.NewFile(uintptr(fds[0]), "socket")
				defer f.Close()
				if err := syscall.Close(fds[1]); err != nil {
					t.Fatal(err)
				}
				d.stdin = f
			}
			got[way] = d.run(slices.Concat(args, r.args)...)
			d.stdin = nil
		}
		for way, g := range got {
			if g != got["direct"] {
				t.Errorf("boxd run %q: %s: %v\nwithout a daemon: %v", r.args, way, g, got["direct"])
			}
		}
		if r.stdin == "file" && got["quick"].stdout != string(data) {
			t.Errorf("boxd run %q: %d bytes are not the %d of stdin", r.args, len(got["quick"].stdout), len(data))
		}
	}

	// JSON has the same members, and the same values but for what was measured.
	for _, args := range [][]string{sh("echo out; echo err >&2; exit 3"), {"--timeout", "100ms", "--", "sleep", "9"}, sh(`printf '\377'; kill -9 $$`)} {
		docs := map[string]map[string]any{}
		for way, base := range d.runBy() {
			docs[way] = parse(t, d.run(slices.Concat(base, []string{"--json"}, args)...))
			receipt := docs[way]["receipt"].(map[string]any)
			for name := range receipt {
				receipt[name] = "measured"
			}
		}
		want, err := json.Marshal(docs["direct"])
		if err != nil {
			t.Fatal(err)
		}
		for way := range docs {
			if got, err := json.Marshal(docs[way]); err != nil || string(got) != string(want) {
				t.Errorf("boxd run --json %q: %s: %s, %v; without a daemon %s", args, way, got, err, want)
			}
		}
	}
	// The lines of the receipt are the same, but for the figures.
	names := map[string]string{}
	for way, base := range d.runBy() {
		for line := range strings.Lines(d.run(slices.Concat(base, []string{"--receipt"}, sh("echo x"))...).stderr) {
			names[way] += line[:min(len(line), 14)] + "\n"
		}
	}
	if names["quick"] != names["direct"] || names["full"] != names["direct"] || !strings.Contains(names["direct"], "wall") {
		t.Errorf("lines of the receipt: %q", names)
	}

	// What the daemon would do in another way, it does not do.
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--network", "proxy"}, "--network"}, {[]string{"--publish", "80"}, "--publish"}, {[]string{"-t"}, "--tty"},
		{[]string{"-v", "/usr:/x"}, "mount"}, {[]string{"--engine", "oci"}, "--engine"}, {[]string{"--isolation", "gvisor"}, "--isolation"},
		{[]string{"--state-dir", d.state}, "--state-dir"}, {[]string{"--memory", "64G"}, "memory"}, {[]string{"--pids", "unlimited"}, "pids"},
		{[]string{"-e", "A=\xff"}, "UTF-8"},
	} {
		got := d.run(slices.Concat([]string{"run", "--socket", d.socket()}, c.args, []string{"--", "true"})...)
		d.wantRefused(125, got, "--socket", c.says)
	}
	d.awaitNoRuns()
	if n := strings.Count(d.run("history", "--json", "--limit", "1000").stdout, `"run-`); n < 40 {
		t.Errorf("the history has %d runs", n)
	}
}

// awaitNoRuns waits until the daemon has no session.
func (d *daemon) awaitNoRuns() {
	d.t.Helper()
	boxtest.WaitUntil(d.t, "the daemon has no session", func() bool { got := d.run("sessions", "ls", "-q"); return got.status == 0 && got.stdout == "" })
}

// beginRun starts a run that says "started" and then waits.
func (d *daemon) beginRun(script string) (*exec.Cmd, *bytes.Buffer, io.Reader) {
	d.t.Helper()
	cmd, cancel := d.command("run", "--socket", d.socket(), "--", "sh", "-c", script)
	d.t.Cleanup(cancel)
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	stderr := new(bytes.Buffer)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.awaitText(out, "started\n")
	return cmd, stderr, out
}

// awaitText reads text from r.
func (d *daemon) awaitText(r io.Reader, text string) {
	d.t.Helper()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != text {
		d.t.Fatalf("%q, %v, want %q", got, err, text)
	}
}

// TestRunInterrupted: signals reach the command; when client, daemon or session go, so does the box, and nobody
// invents an exit status.
func TestRunInterrupted(t *testing.T) {
	d := startDaemon(t)
	const wait = "echo started; " + testutil.SignalLoop
	end := func(cmd *exec.Cmd) int {
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode()
	}
	signal := func(cmd *exec.Cmd, sig syscall.Signal) {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}

	cmd, stderr, _ := d.beginRun("trap 'exit 7' TERM; " + wait)
	signal(cmd, syscall.SIGTERM)
	if got := end(cmd); got != 7 || stderr.Len() > 0 {
		t.Errorf("after SIGTERM: %d, %q", got, stderr)
	}
	cmd, stderr, _ = d.beginRun(wait)
	signal(cmd, syscall.SIGINT)
	if got := end(cmd); got != 130 || stderr.Len() > 0 {
		t.Errorf("after SIGINT: %d, %q", got, stderr)
	}
	cmd, stderr, out := d.beginRun("trap 'echo got' TERM; " + wait)
	signal(cmd, syscall.SIGTERM)
	d.awaitText(out, "got\n")
	signal(cmd, syscall.SIGINT)
	if got := end(cmd); got != 143 || stderr.String() != "verdict: canceled\n" {
		t.Errorf("after a second signal: %d, %q", got, stderr)
	}

	cmd, _, _ = d.beginRun(wait)
	signal(cmd, syscall.SIGKILL)
	if got := end(cmd); got != -1 {
		t.Errorf("killed client: %d", got)
	}
	d.awaitNoRuns()

	cmd, stderr, _ = d.beginRun(wait)
	id := strings.TrimSpace(d.run("sessions", "ls", "-q").stdout)
	if !strings.HasPrefix(id, "run-") || strings.Contains(id, "\n") {
		t.Fatalf("sessions: %q", id)
	}
	d.wantRefused(125, d.run("exec", id, "--", "true"), "is a run")
	d.says(0, "", "sessions", "rm", id)
	if got := end(cmd); got != 125 || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("removed session: %d, %q", got, stderr)
	}

	cmd, stderr, _ = d.beginRun(wait)
	d.kill()
	if got := end(cmd); got != 125 || !strings.HasPrefix(stderr.String(), "boxd: the daemon has ended") || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("killed daemon: %d, %q", got, stderr)
	}
	d.wantRefused(125, d.run("run", "--socket", d.socket(), "--", "true"), "--socket", "connecting")
	d.start()
	d.awaitNoRuns() // and the test's main looks for what is left of the box
	d.says(0, "again\n", "run", "--socket", d.socket(), "--", "echo", "again")
}

// TestRunPool: a run gets a box of the pool.
func TestRunPool(t *testing.T) {
	d := newDaemon(t)
	d.env = append(d.env, "BOXD_POOL=2")
	d.start()
	pool := func() (p struct {
		Ready int
		Hits  int64
	}) {
		t.Helper()
		var s struct{ Pool any }
		s.Pool = &p
		if out := d.run("status", "--json").stdout; json.Unmarshal([]byte(out), &s) != nil {
			t.Fatalf("status: %s", out)
		}
		return p
	}
	for range 2 { // one request alone has the pool build none
		d.says(0, "box\n", "run", "--socket", d.socket(), "--", "hostname")
	}
	boxtest.WaitUntil(t, "a box is ready", func() bool { return pool().Ready > 0 })
	d.says(0, "other\n", "run", "--socket", d.socket(), "--hostname", "other", "--memory", "100M", "--", "hostname")
	if p := pool(); p.Hits != 1 {
		t.Errorf("%+v, want one hit", p)
	}
}

// TestRunWarm: the first command of a fresh box is a warm one if the profile of runs keeps its interpreter warm, and is told
// from another by nothing else.
func TestRunWarm(t *testing.T) {
	if available, err := linux.MemAvailable(); err != nil || available < 4<<30 {
		t.Skipf("%d MiB of memory are available (%v): too few for a pool with interpreters", available>>20, err)
	}
	config := filepath.Join(t.TempDir(), "boxd.yaml")
	text := "pool: 1\nprofiles: {run: {zygotes: [{name: python, command: [python3], preload: [json], match: true}]}}\n"
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, "--config", config)
	d.start()
	c, err := client.New(client.Options{Socket: d.socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	script := "import json, os, sys\nprint(json.dumps([sys.argv, sys.stdin.read(), os.environ['X'], os.getcwd(), os.path.exists('seen')]))\nopen('seen', 'w').close(); sys.exit(7)"
	want := "[[\"-c\", \"a\"], \"in\", \"y\", \"/home/box\", false]\n"
	run := func() *apitypes.ExecResult {
		t.Helper()
		r, err := c.Run(t.Context(), apitypes.RunRequest{Argv: []string{"python3", "-c", script, "a"}, Stdin: "in", Env: map[string]string{"X": "y"}})
		if err != nil {
			t.Fatal(err)
		}
		if r.Stdout != want || r.ExitCode == nil || *r.ExitCode != 7 || r.Verdict != "exited" || r.Receipt.PIDsPeak == nil || *r.Receipt.PIDsPeak != 1 {
			t.Errorf("%+v", r)
		}
		return r
	}
	boxtest.WaitUntil(t, "a run is warm", func() bool { return run().Warm })
	// By descriptors as well; and a program of another kind gets a box without an interpreter.
	d.stdin = strings.NewReader("in")
	d.says(7, want, "run", "--socket", d.socket(), "--env", "X=y", "-i", "--", "python3", "-c", script, "a")
	d.says(0, "here\n", "run", "--socket", d.socket(), "--", "echo", "here")

	// Nothing but PID 1 is beside a command, whether its box came with an interpreter or not.
	alone := "import os, time\nfor i in range(500):\n n = sum(p.isdigit() for p in os.listdir('/proc'))\n if n == 2 and i > 150: break\n time.sleep(0.01)\nprint(n)"
	for _, pool := range []string{"1", "0"} {
		d.stop()
		d.env = append(d.env, "BOXD_POOL="+pool)
		d.start()
		for range 3 {
			d.says(0, "2\n", "run", "--socket", d.socket(), "--", "python3", "-c", alone)
		}
	}
}

// TestRunWithoutRoot: a user who may use the socket needs no root for boxd run.
func TestRunWithoutRoot(t *testing.T) {
	d := startDaemon(t)
	_, gid := servingUser(t)
	cmd, cancel := d.command("run", "--socket", d.socket(), "--", "id", "-u")
	defer cancel()
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: uint32(gid)}}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "0\n" {
		t.Errorf("%q, %v", out, err)
	}
}
