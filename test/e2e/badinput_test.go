package e2e

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestBadInput: each is one line on stderr that names flag, value and rule, with
// status 125, and nothing is left. (NUL and 1 MB cannot be in the arguments of a
// program, but in a file of variables; the library's tests have the rest.)
func TestBadInput(t *testing.T) {
	c := newCLI(t)
	dir := t.TempDir()
	write(t, dir+"/file", "")
	write(t, dir+"/nul", "A=1\nB=\x00\n")
	write(t, dir+"/huge", "A="+strings.Repeat("x", 1<<20)+"\n")
	write(t, dir+"/bad", "A=1\nno key value\n")
	l, err := net.Listen("unix", dir+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := errors.Join(syscall.Mkfifo(dir+"/fifo", 0o600), os.Symlink("/etc", dir+"/to-etc")); err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		args  string // split at blanks; DIR and STATE are replaced
		parts []string
	}{
		{"--memory 1M -- true", []string{"--memory", "1 MiB", "4 MiB"}},
		{"--memory 0 -- true", []string{"--memory", `"0"`}},
		{"--memory -5 -- true", []string{"--memory", `"-5"`}},
		{"--memory 10E -- true", []string{"--memory", `"10E"`}},
		{"--memory 9999999P -- true", []string{"--memory", `"9999999P"`}},
		{"--memory 64MX -- true", []string{"--memory", `"64MX"`}},
		{"--memory NaN -- true", []string{"--memory", `"NaN"`}},
		{"--cpus NaN -- true", []string{"--cpus", `"NaN"`}},
		{"--cpus Inf -- true", []string{"--cpus", `"Inf"`}},
		{"--cpus 0 -- true", []string{"--cpus", `"0"`}},
		{"--cpus -1 -- true", []string{"--cpus", `"-1"`}},
		{"--cpus 1e-3 -- true", []string{"--cpus", `"1e-3"`}},
		{"--cpus 0.001 -- true", []string{"--cpus", "0.001", "0.01"}},
		{"--cpus 99999 -- true", []string{"--cpus", "99999", "4096"}},
		{"--pids 0 -- true", []string{"--pids", `"0"`}},
		{"--pids -1 -- true", []string{"--pids", `"-1"`}},
		{"--pids 99999999 -- true", []string{"--pids", "99999999"}},
		{"--tmp-size 1 -- true", []string{"--tmp-size", "1 B"}},
		{"--upper-size 64M -- true", []string{"--upper-size", "--rw-rootfs"}},
		{"--output-limit 0 -- true", []string{"--output-limit", `"0"`}},
		{"--timeout 0 -- true", []string{"--timeout", `"0"`}},
		{"--timeout -1s -- true", []string{"--timeout", `"-1s"`}},
		{"--timeout soon -- true", []string{"--timeout", `"soon"`}},
		{"--user 65535 -- true", []string{"--user", "65535", "65534"}},
		{"--user root -- true", []string{"--user", `"root"`}},
		{"--user -1 -- true", []string{"--user", `"-1"`}},
		{"--image debian:12 -- true", []string{"--image", `"debian:12"`, "host"}},
		{"--hostname a_b -- true", []string{"--hostname", `"a_b"`}},
		{"--workdir tmp -- true", []string{"--workdir", `"tmp"`}},
		{"--workdir /proc/1 -- true", []string{"--workdir", `"/proc/1"`}},
		{"-e =x -- true", []string{"--env", "KEY"}},
		{"--env-file DIR/none -- true", []string{"--env-file", "DIR/none"}},
		{"--env-file DIR/nul -- true", []string{"env[1]", `"B"`, "NUL"}},
		{"--env-file DIR/huge -- true", []string{"env[0]", `"A"`, "131071"}},
		{"--env-file DIR/bad -- true", []string{"DIR/bad:2"}},
		{"--workspace none -- true", []string{"--workspace source", `"none"`}},
		{"--workspace DIR/none -- true", []string{"DIR/none", "does not exist"}},
		{"-v none:/x -- true", []string{"--mount source", `"none"`}},
		{"-v DIR/none:/x -- true", []string{"DIR/none", "does not exist"}},
		{"-v DIR/socket:/x -- true", []string{"DIR/socket", "socket"}},
		{"-v DIR/fifo:/x -- true", []string{"DIR/fifo", "FIFO"}},
		{"-v DIR/to-etc:/x -- true", []string{"DIR/to-etc", "/etc"}},
		{"-v /dev/null:/x -- true", []string{"/dev/null", "device"}},
		{"-v /:/x -- true", []string{`"/"`}},
		{"-v /etc:/x:ro -- true", []string{`"/etc"`}},
		{"-v /proc:/x -- true", []string{`"/proc"`}},
		{"-v /run:/x -- true", []string{`"/run"`}},
		{"-v STATE:/x -- true", []string{"STATE"}},
		{"-v STATE/ids:/x -- true", []string{"STATE/ids"}},
		{"-v DIR:/ -- true", []string{"target", `"/"`}},
		{"-v DIR:/../x -- true", []string{"target", `"/../x"`}},
		{"-v DIR:x -- true", []string{"target", `"x"`}},
		{"-v DIR:/bin/x -- true", []string{"target", `"/bin/x"`, "symlink"}},
		{"-v DIR:/proc/x -- true", []string{"target", `"/proc/x"`}},
		{"-v DIR:/usr/none -- true", []string{"target", `"/usr/none"`}},
		{"-v DIR:/x:rx -- true", []string{"rx"}},
		{"-v DIR -- true", []string{"DIR"}},
		{"-v DIR:/x -v DIR:/x -- true", []string{"target", `"/x"`}},
		{"--mount type=tmpfs,target=/x -- true", []string{"--mount", "tmpfs"}},
		{"--no-such-flag -- true", []string{"--no-such-flag"}},
		{"--json -t -- true", []string{"--json", "-t"}},
		{"--shell -- a b", []string{"--shell"}},
		{"--state-dir relative -- true", []string{"relative", "absolute"}},
		{"--state-dir DIR -- true", []string{"DIR", "searchable"}}, // t.TempDir is below a 0700
		{"--", []string{"no command"}},
	} {
		fill := strings.NewReplacer("DIR", dir, "STATE", c.state)
		for i := range r.parts {
			r.parts[i] = fill.Replace(r.parts[i])
		}
		got := c.run(append([]string{"run"}, strings.Fields(fill.Replace(r.args))...)...)
		// With --json the same is on stdout, for programs.
		if strings.Contains(r.args, "--json") {
			got.stdout = ""
		}
		c.wantRefused(125, got, r.parts...)
	}
	c.wantRefused(125, c.run("no-such-command"), "no-such-command")
	c.wantRefused(125, c.run("run", "--", ""), "args")
	c.wantRefused(125, c.run("run", "--env-file", dir, "--", "true"), dir)
}

// TestNoRoot: a user who may not build boxes gets a message that says so.
func TestNoRoot(t *testing.T) {
	c := newCLI(t)
	c.install(t)
	cmd, cancel := c.command("run", "--", "true")
	defer cancel()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	c.wantRefused(125, finish(t, cmd), "root", "65534")
}

// install copies the programs to a directory that everybody can reach, and has
// c use these without naming boxd-init.
func (c *cli) install(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "boxd-test-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	agent, unpacker := filepath.Join(filepath.Dir(c.init), "boxd-agent"), filepath.Join(filepath.Dir(c.init), "boxd-unpacker")
	for _, p := range []*string{&c.boxd, &c.init, &agent, &unpacker} {
		content, err := os.ReadFile(*p)
		if err != nil {
			t.Fatal(err)
		}
		*p = filepath.Join(dir, filepath.Base(*p))
		if err := os.WriteFile(*p, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.env = append(c.env, "BOXD_INIT=")
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// TestInit: boxd-init is missing, is something else, or of another build.
func TestInit(t *testing.T) {
	c := newCLI(t)
	c.install(t)
	c.want(result{0, "works\n", ""}, "--", "echo", "works") // found beside boxd
	stamp, err := exec.Command(c.init, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimSpace(string(stamp))
	content, err := os.ReadFile(c.init)
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Map(func(r rune) rune { return 'x' }, version)
	// The stamp is data of the linker: another of the same length is another build.
	if err := os.WriteFile(c.init, bytes.ReplaceAll(content, []byte(version), []byte(other)), 0o755); err != nil {
		t.Fatal(err)
	}
	c.wantRefused(125, c.run("run", "--", "true"), c.init, version, other)

	if err := os.WriteFile(c.init, content, 0o755); err != nil {
		t.Fatal(err)
	}
	c.wantOtherAgents(t, version, other)

	if err := os.WriteFile(c.init, content[:len(content)/2], 0o755); err != nil {
		t.Fatal(err)
	}
	c.wantRefused(125, c.run("run", "--", "true"), c.init)

	if err := os.Remove(c.init); err != nil {
		t.Fatal(err)
	}
	c.wantRefused(125, c.run("run", "--", "true"), "boxd-init", filepath.Dir(c.init))
	c.wantRefused(125, c.run("run", "--init", c.init, "--", "true"), "--init", c.init)
	c.wantRefused(125, c.run("run", "--init", "/usr", "--", "true"), "--init", "/usr")
	c.wantRefused(125, c.run("run", "--init", "/etc/passwd", "--", "true"), "--init", "/etc/passwd")
	c.wantRefused(125, c.run("run", "--init", "/usr/bin/true", "--", "true"), "/usr/bin/true")
}

// wantOtherAgents: boxd-agent is of another build, could be changed by others than boxd-init can, is
// no program, or is missing.
func (c *cli) wantOtherAgents(t *testing.T, version, other string) {
	t.Helper()
	agent := filepath.Join(filepath.Dir(c.init), "boxd-agent")
	content, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(parts ...string) {
		t.Helper()
		c.wantRefused(125, c.run("run", "--", "true"), parts...)
	}
	for _, bad := range []struct {
		change func() error
		parts  []string
	}{
		{func() error {
			return os.WriteFile(agent, bytes.ReplaceAll(content, []byte(version), []byte(other)), 0o755)
		}, []string{version, other, "one build"}},
		{func() error { return os.Chown(agent, 12345, 0) }, []string{agent, "belongs to user 12345"}},
		{func() error { return os.Chmod(agent, 0o775) }, []string{agent, "0775", "writable"}},
		{func() error { return os.WriteFile(agent, nil, 0o755) }, []string{agent, "not a program"}},
		{func() error { return errors.Join(os.Remove(agent), os.Mkdir(agent, 0o755)) }, []string{agent, "regular"}},
		{func() error { return errors.Join(os.Remove(agent), os.Symlink("/usr/bin/true", agent)) }, []string{agent}},
		{func() error { return os.Remove(agent) }, []string{agent, "no such file"}},
	} {
		if err := bad.change(); err != nil {
			t.Fatal(err)
		}
		refused(bad.parts...)
		if err := errors.Join(os.RemoveAll(agent), os.WriteFile(agent, content, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	unpacker := filepath.Join(filepath.Dir(c.init), "boxd-unpacker")
	if err := os.Rename(unpacker, unpacker+".away"); err != nil {
		t.Fatal(err)
	}
	refused(unpacker, "no such file")
	if err := os.Rename(unpacker+".away", unpacker); err != nil {
		t.Fatal(err)
	}
	c.want(result{0, "works\n", ""}, "--", "echo", "works")
}

// TestUnenforceable takes the memory controller from boxd's sight: a limit that
// cannot be enforced is refused, unless a weaker box was asked for.
func TestUnenforceable(t *testing.T) {
	c := newCLI(t)
	if _, err := os.Stat("/sys/fs/cgroup/memory/tasks"); err != nil {
		// On v2 a controller cannot be hidden: its files are all in one tree.
		return
	}
	blind := func(args ...string) result {
		cmd, cancel := c.command()
		defer cancel()
		cmd.Path = "/bin/sh"
		cmd.Args = append([]string{"sh", "-c", `umount /sys/fs/cgroup/memory && exec "$0" "$@"`, c.boxd, "run"}, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		return finish(t, cmd)
	}
	c.wantRefused(125, blind("--memory", "64M", "--", "true"), "memory", "cannot be enforced on this host")
	c.wantRefused(125, blind("--", "true"), "memory", "cannot be enforced on this host")
	got := blind("--allow-degraded", "--memory", "64M", "--", "echo", "ran")
	if got.status != 0 || got.stdout != "ran\n" || !strings.Contains(got.stderr, "memory") {
		t.Errorf("degraded: %+v, want it to run and to say what is missing", got)
	}
	got = blind("--memory", "unlimited", "--", "echo", "ran")
	if got != (result{0, "ran\n", ""}) {
		t.Errorf("unlimited: %v", got)
	}
}
