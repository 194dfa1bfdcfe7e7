package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

func TestExitStatus(t *testing.T) {
	c := newCLI(t)
	for _, r := range []struct {
		args []string
		want result
	}{
		{[]string{"--", "true"}, result{0, "", ""}},
		{[]string{"true"}, result{0, "", ""}},
		{[]string{"--", "sh", "-c", "echo out; echo err >&2; exit 3"}, result{3, "out\n", "err\n"}},
		{[]string{"--", "sh", "-c", "exit 124"}, result{124, "", ""}},
		{[]string{"--", "sh", "-c", "exit 125"}, result{125, "", ""}},
		{[]string{"--", "sh", "-c", "exit 255"}, result{255, "", ""}},
		{[]string{"--", "sh", "-c", "kill -TERM $$"}, result{143, "", ""}},
		{[]string{"--", "sh", "-c", "kill -KILL $$"}, result{137, "", ""}},
		{[]string{"--timeout", "200ms", "--grace", "50ms", "--", "sleep", "3600"}, result{124, "", "verdict: timeout (limit 200ms)\n"}},
		{[]string{"--timeout", "200ms", "--", "sh", "-c", "exec 2>/dev/null; trap 'exit 0' TERM; " + testutil.SignalLoop}, result{124, "", "verdict: timeout (limit 200ms)\n"}},
		{[]string{"--", "/etc/passwd"}, result{126, "", `boxd: executing "/etc/passwd": program not executable: permission denied` + "\n"}},
		{[]string{"--", "/tmp"}, result{126, "", `boxd: executing "/tmp": program not executable: permission denied` + "\n"}},
		{[]string{"--", "nosuchprogram"}, result{127, "", `boxd: executing "nosuchprogram": program not found` + "\n"}},
		{[]string{"--output-limit", "10", "--", "sh", "-c", "printf 0123456789"}, result{0, "0123456789", ""}},
		{[]string{"--output-limit", "10", "--", "printf", "0123456789x"}, result{137, "0123456789", "verdict: output-limit (limit 10 B)\n"}},
		{[]string{"--output-limit", "64k", "--", "cat", "/dev/zero"}, result{137, strings.Repeat("\x00", 65536), "verdict: output-limit (limit 64 KiB)\n"}},
		{[]string{"--tmp-size", "1M", "--", "sh", "-c", "exec 2>/dev/null; head -c 2M /dev/zero > /tmp/f"}, result{1, "", "verdict: disk-quota (limit /tmp 1 MiB)\n"}},
		{[]string{"--rw-rootfs", "--upper-size", "2M", "--", "sh", "-c", "exec 2>/dev/null; head -c 4M /dev/zero > /usr/f"}, result{1, "", "verdict: disk-quota (limit / 2 MiB)\n"}},
		{[]string{"--pids", "8", "--", "sh", "-c", "exec 2>/dev/null; for i in 1 2 3 4 5 6 7 8 9; do sleep 3600 & done"}, result{2, "", "verdict: pids-limit (limit 8)\n"}},
	} {
		if c.canDo(r.args) {
			c.want(r.want, r.args...)
		}
	}
}

// TestNoDir: a missing working directory is not made unasked.
func TestNoDir(t *testing.T) {
	c := newCLI(t)
	c.wantRefused(125, c.run("run", "--workdir", "/no/dir", "--", "true"), `"/no/dir"`, "does not exist")
}

// canDo says whether the machine can do what args ask for: a writable root needs
// a /usr that can be id-mapped. Where that is an overlay itself, as in the virtual
// machine, boxd has to say so.
func (c *cli) canDo(args []string) bool {
	c.t.Helper()
	if !slices.Contains(args, "--rw-rootfs") {
		return true
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/usr", &st); err != nil {
		c.t.Fatal(err)
	}
	if st.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return true
	}
	got := c.run("run", "--rw-rootfs", "--", "true")
	if got.status == 0 {
		return true // newer kernels can
	}
	c.wantRefused(125, got, "cannot be id-mapped")
	return false
}

// TestOOM is the example of the issue that this engine was written for.
func TestOOM(t *testing.T) {
	c := newCLI(t)
	c.want(result{137, "", "verdict: oom (limit 64 MiB)\n"}, "--memory", "64M", "--", "python3", "-c", "x=bytearray(10**9)")
	c.want(result{137, "", "verdict: oom (limit 64 MiB)\n"}, "--memory", "64M", "--", "tail", "/dev/zero")
}

// TestFlags gives every flag at least once and looks from inside.
func TestFlags(t *testing.T) {
	c := newCLI(t)
	c.env = append(c.env, "FROM_CALLER=passed on", "NOT_MINE=secret")
	dir := t.TempDir()
	write(t, dir+"/in", "data\n")
	write(t, dir+"/env", "# a comment\nX=1\n\nFROM_CALLER\nNOT_SET\nY=a b\n")
	for _, r := range []struct {
		args []string
		want string
	}{
		{[]string{"--image", "host", "--", "cat", "/etc/hostname"}, "box\n"},
		{[]string{"--hostname", "name.example", "--", "hostname"}, "name.example\n"},
		{[]string{"--shell", "echo $((1+2)) | cat"}, "3\n"},
		{[]string{"-e", "A=1 2", "--env", "B=", "-e", "A=3", "--", "sh", "-c", "echo $A; echo ${B-unset}"}, "3\n\n"},
		{[]string{"-e", "FROM_CALLER", "-e", "NO_SUCH", "--", "sh", "-c", "echo $FROM_CALLER; echo ${NOT_MINE-unset} ${NO_SUCH-unset}"}, "passed on\nunset unset\n"},
		{[]string{"--env-file", dir + "/env", "--", "sh", "-c", "echo $X $Y $FROM_CALLER ${NOT_SET-unset}"}, "1 a b passed on unset\n"},
		{[]string{"-w", "/usr", "--", "pwd"}, "/usr\n"},
		{[]string{"--workdir", "/tmp/a/b", "--mkdir", "--", "pwd"}, "/tmp/a/b\n"},
		{[]string{"-u", "1000", "--", "id"}, "uid=1000(user) gid=1000(user) groups=1000(user)\n"},
		{[]string{"--user", "7:8", "--", "sh", "-c", "id -u; id -g; id -G"}, "7\n8\n8\n"},
		{[]string{"--workspace", dir, "--", "sh", "-c", "pwd; cat in; echo new > made"}, "/workspace\ndata\n"},
		{[]string{"--mount", dir + ":/data:ro", "--", "sh", "-c", "cat /data/in; echo x 2>&- > /data/x || echo read-only"}, "data\nread-only\n"},
		{[]string{"-v", dir + "/in:/in", "--", "cat", "/in"}, "data\n"},
		{[]string{"-v", dir + ":/a/b", "-v", dir + ":/c:rw", "--", "sh", "-c", "cat /a/b/in; echo x > /c/y; cat /a/b/y"}, "data\nx\n"},
		{[]string{"--mount", "type=bind,source=" + dir + ",target=/d,readonly", "--", "sh", "-c", "cat /d/in; touch /d/x 2>&- || echo read-only"}, "data\nread-only\n"},
		{[]string{"--rw-rootfs", "--", "sh", "-c", "echo x > /usr/lib/new && cat /usr/lib/new"}, "x\n"},
		{[]string{"--tmp-size", "3M", "--", "stat", "-f", "-c", "%b", "/tmp", "/home/box", "/dev/shm"}, "768\n768\n768\n"},
		{[]string{"--rw-rootfs", "--upper-size", "3M", "--", "sh", "-c", "head -c 2M /dev/zero > /opt/f && echo fits"}, "fits\n"},
		{[]string{"--memory", "unlimited", "--cpus", "unlimited", "--pids", "unlimited", "--output-limit", "unlimited", "--", "echo", "x"}, "x\n"},
		{[]string{"--memory", "1.5g", "--cpus", ".5", "--pids", "7", "--timeout", "90", "--", "echo", "-n", "--memory"}, "--memory"},
		{[]string{"--allow-degraded", "--", "echo", "x"}, "x\n"},
		{[]string{"--init", c.init, "--state-dir", c.state, "--", "echo", "x"}, "x\n"},
	} {
		if c.canDo(r.args) {
			c.want(result{0, r.want, ""}, r.args...)
		}
	}
	if got, err := os.ReadFile(dir + "/made"); err != nil || string(got) != "new\n" {
		t.Errorf("what the box wrote to its workspace: %q, %v", got, err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPassThrough: not a byte is added, lost or changed.
func TestPassThrough(t *testing.T) {
	c := newCLI(t)
	data := make([]byte, 20_000_000)
	rand.NewChaCha8([32]byte{1}).Read(data)
	for name, stdin := range map[string]func() io.Reader{
		"pipe": func() io.Reader { return io.MultiReader(bytes.NewReader(data)) },
		"file": func() io.Reader {
			path := filepath.Join(t.TempDir(), "in")
			write(t, path, string(data))
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return f
		},
	} {
		for _, args := range [][]string{{"run", "-i", "--", "cat"}, {"run", "-i", "--output-limit", "1G", "--", "cat"}} {
			c.stdin = stdin()
			got := c.run(args...)
			if got.status != 0 || got.stderr != "" || got.stdout != string(data) {
				t.Errorf("%s, %q: status %d, %d bytes of stdout, stderr %q", name, args, got.status, len(got.stdout), got.stderr)
			}
		}
	}
	// Without -i nothing is read.
	c.stdin = strings.NewReader("not for you")
	c.want(result{0, "", ""}, "--", "cat")
}

// TestClosedStreams: if its stdout has no reader, boxd ends like any program.
func TestClosedStreams(t *testing.T) {
	c := newCLI(t)
	for _, limit := range []string{"unlimited", "1G"} {
		cmd, cancel := c.command("run", "--output-limit", limit, "--", "cat", "/dev/zero")
		defer cancel()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		out.Close()
		// The command, or boxd on its behalf, gets SIGPIPE or EPIPE.
		if err := cmd.Wait(); err == nil {
			t.Errorf("output limit %s: exit status 0", limit)
		}
		c.awaitNothingLeft()
	}
}

// TestJSON pins the names and what can be known of the values.
func TestJSON(t *testing.T) {
	c := newCLI(t)
	got := c.run("run", "--json", "--memory", "64M", "--", "sh", "-c", "printf 'ä\\n'; echo err >&2; exit 3")
	doc := parse(t, got)
	wantKeys(t, doc, "exit_code", "status", "verdict", "stdout", "stdout_truncated", "stderr", "stderr_truncated", "receipt")
	if got.status != 3 || got.stderr != "" || doc["exit_code"] != 3.0 || doc["verdict"] != "exited" || doc["stdout"] != "ä\n" || doc["stderr"] != "err\n" {
		t.Errorf("%v", got)
	}
	receipt := doc["receipt"].(map[string]any)
	for _, name := range []string{"wall_ms", "user_ms", "system_ms", "memory_peak_bytes", "pids_peak", "stdout_bytes", "stderr_bytes", "oom_kills", "pids_limit_reached"} {
		if _, ok := receipt[name].(float64); !ok {
			t.Errorf("receipt: %s is %v", name, receipt[name])
		}
	}
	if receipt["stdout_bytes"] != 3.0 || receipt["stderr_bytes"] != 4.0 || receipt["pids_peak"] != 1.0 || receipt["oom_kills"] != 0.0 {
		t.Errorf("receipt: %v", receipt)
	}

	got = c.run("run", "--json", "--memory", "64M", "--", "tail", "/dev/zero")
	doc = parse(t, got)
	wantKeys(t, doc, "exit_code", "status", "verdict", "signal", "limit", "stdout", "stdout_truncated", "stderr", "stderr_truncated", "receipt")
	if got.status != 137 || doc["exit_code"] != nil || doc["status"] != 137.0 || doc["verdict"] != "oom" || doc["signal"] != "SIGKILL" || doc["limit"] != "64 MiB" || got.stderr != "verdict: oom (limit 64 MiB)\n" {
		t.Errorf("%v", got)
	}

	// It has ended by itself by the time that boxd sees the fifth byte.
	got = c.run("run", "--json", "--output-limit", "4", "--", "printf", `\377\376xyz`)
	doc = parse(t, got)
	if doc["stdout_base64"] != "//54eQ==" || doc["stdout_truncated"] != true || doc["stdout"] != nil || doc["verdict"] != "output-limit" || got.status != 137 {
		t.Errorf("%v", doc)
	}

	got = c.run("run", "--json", "--", "nosuchprogram")
	doc = parse(t, got)
	wantKeys(t, doc, "exit_code", "status", "error")
	if got.status != 127 || doc["exit_code"] != nil || doc["status"] != 127.0 || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("%v", got)
	}
	got = c.run("run", "--json", "--image", "nosuch", "--", "true")
	if doc = parse(t, got); got.status != 125 || doc["status"] != 125.0 {
		t.Errorf("%v", got)
	}
}

func parse(t *testing.T, r result) map[string]any {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &doc); err != nil || strings.Count(r.stdout, "\n") != 1 {
		t.Fatalf("%+v: want one JSON object on one line: %v", r, err)
	}
	return doc
}

func wantKeys(t *testing.T, doc map[string]any, keys ...string) {
	t.Helper()
	got := slices.Sorted(maps.Keys(doc))
	slices.Sort(keys)
	if !slices.Equal(got, keys) {
		t.Errorf("keys %q, want %q", got, keys)
	}
}

// TestReceipt: what --receipt prints goes to stderr, after the output.
func TestReceipt(t *testing.T) {
	c := newCLI(t)
	got := c.run("run", "--receipt", "--output-limit", "1M", "--", "sh", "-c", "echo out; echo err >&2; sleep 0.01 & sleep 0.01 & wait")
	want := regexp.MustCompile(`^err\nreceipt:\n  wall +[0-9.]+ m?s\n  user +[0-9.]+ m?s\n  system +[0-9.]+ m?s\n  memory peak +[0-9.]+ [KM]iB\n  pids peak +3\n  stdout +4 B\n  stderr +4 B\n`)
	if got.status != 0 || got.stdout != "out\n" || !want.MatchString(got.stderr) {
		t.Errorf("%v", got)
	}
}

// TestOtherCommands: version, completion, doctor, help.
func TestOtherCommands(t *testing.T) {
	c := newCLI(t)
	if got := c.run("version"); got.status != 0 || got.stderr != "" || len(strings.TrimSpace(got.stdout)) == 0 {
		t.Errorf("version: %v", got)
	}
	for _, name := range []string{"bash", "zsh", "fish"} {
		if got := c.run("completion", name); got.status != 0 || got.stderr != "" || !strings.Contains(got.stdout, "boxd") {
			t.Errorf("completion %s: %v", name, got)
		}
	}
	if got := c.run("run", "--help"); got.status != 0 || got.stderr != "" || !strings.Contains(got.stdout, "--memory") {
		t.Errorf("help: %v", got)
	}
	if got := c.run("doctor"); got.status != 0 || got.stderr != "" {
		t.Errorf("doctor: %v", got)
	}
	got := c.run("doctor", "--json")
	var doc map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &doc); err != nil || got.status != 0 {
		t.Errorf("doctor --json: %v, %v", got, err)
	}
}

// TestParallel runs boxd many times at once: they share nothing but the machine.
func TestParallel(t *testing.T) {
	c := newCLI(t)
	const n = 12
	errs := make(chan error, n)
	for i := range n {
		go func() {
			cmd, cancel := c.command("run", "--", "sh", "-c", fmt.Sprintf("echo %d", i))
			defer cancel()
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != fmt.Sprintln(i) {
				err = fmt.Errorf("%d: %v, %q", i, err, out)
			}
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// TestWorkspaceOwner: files that a box writes belong to the owner of the directory, who can delete them.
// A child process plays the owner.
func TestWorkspaceOwner(t *testing.T) {
	c := newCLI(t)
	const owner = 12345
	dir, err := os.MkdirTemp("", "boxd-test-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Chown(dir, owner, owner), os.Chmod(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	c.want(result{0, "0\n", ""}, "--workspace", dir, "--", "sh", "-c", "umask 077; mkdir -p a/b; echo x > a/b/c; ln -s / a/link; stat -c %u a/b/c")
	c.want(result{0, "x\n", ""}, "--user", "1000", "--workspace", dir, "--", "cat", "a/b/c")
	for _, name := range []string{"a", "a/b", "a/b/c", "a/link"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != owner || st.Gid != owner {
			t.Errorf("%s belongs to %d:%d, want %d", name, st.Uid, st.Gid, owner)
		}
	}
	rm, cancel := c.command()
	defer cancel()
	rm.Path, rm.Args = "/bin/rm", []string{"rm", "-r", dir + "/a"}
	rm.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner, Gid: owner}}
	if out, err := rm.CombinedOutput(); err != nil {
		t.Errorf("the owner cannot delete what the box wrote: %v: %s", err, out)
	}
}
