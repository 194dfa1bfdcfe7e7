package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
)

func TestRunFlags(t *testing.T) {
	dir := t.TempDir()
	envFile := filepath.Join(dir, "env")
	if err := os.WriteFile(envFile, []byte("# comment\r\n\n  A=file\nFROM_CALLER\nB=2 # not a comment\nNOT_SET\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := func(change func(*engine.Spec)) engine.Spec {
		s := engine.Spec{}
		change(&s)
		return s.WithDefaults()
	}
	plain := engine.Spec{}.WithDefaults()
	x := []string{"x"}
	for _, c := range []struct {
		flags string
		args  []string
		spec  engine.Spec
		cmd   engine.Command
	}{
		{"", x, plain, engine.Command{Args: x}},
		{"", []string{"x", "--memory", "1", "-t"}, plain, engine.Command{Args: []string{"x", "--memory", "1", "-t"}}},
		{"--image host --hostname h.example", x, spec(func(s *engine.Spec) { s.Hostname = "h.example" }), engine.Command{Args: x}},
		{"--memory 64M --cpus 1.5 --pids 7", x, spec(func(s *engine.Spec) { s.Limits = engine.Limits{Memory: 64 << 20, CPUs: 1.5, PIDs: 7} }), engine.Command{Args: x}},
		{"--memory unlimited --cpus unlimited --pids unlimited", x, spec(func(s *engine.Spec) { s.Limits = engine.Limits{Memory: -1, CPUs: -1, PIDs: -1} }), engine.Command{Args: x}},
		{"--timeout 30s --grace 500ms", x, plain, engine.Command{Args: x, Timeout: 30 * time.Second, Grace: 500 * time.Millisecond}},
		{"--timeout 30", x, plain, engine.Command{Args: x, Timeout: 30 * time.Second}},
		{"-e A=1 --env B=x=y -e FROM_CALLER -e NOT_SET -e A=2", x, plain, engine.Command{Args: x, Env: []string{"A=2", "B=x=y", "FROM_CALLER=yes"}}},
		{"-e A=flag --env-file " + envFile, x, plain, engine.Command{Args: x, Env: []string{"A=flag", "B=2 # not a comment", "FROM_CALLER=yes"}}},
		{"-w /tmp/a --mkdir", x, plain, engine.Command{Args: x, Dir: "/tmp/a", MakeDir: true}},
		{"-u 1000", x, spec(func(s *engine.Spec) { s.User = engine.User{UID: 1000, GID: 1000} }), engine.Command{Args: x}},
		{"--user 1000:5", x, spec(func(s *engine.Spec) { s.User = engine.User{UID: 1000, GID: 5} }), engine.Command{Args: x}},
		{"--workspace /srv/w -v /srv/a:/a:ro", x, spec(func(s *engine.Spec) {
			s.Mounts = []engine.Mount{{Source: "/srv/w", Target: "/workspace"}, {Source: "/srv/a", Target: "/a", ReadOnly: true}}
		}), engine.Command{Args: x}},
		{"--rw-rootfs --upper-size 1G --tmp-size 16M", x, spec(func(s *engine.Spec) { s.WritableRoot, s.UpperSize, s.TmpSize = true, 1<<30, 16<<20 }), engine.Command{Args: x}},
		{"--allow-degraded", x, spec(func(s *engine.Spec) { s.AllowDegraded = true }), engine.Command{Args: x}},
		{"--output-limit 1M", x, plain, engine.Command{Args: x, OutputLimit: 1 << 20}},
		{"--output-limit unlimited --json", x, plain, engine.Command{Args: x}},
		{"--json", x, plain, engine.Command{Args: x, OutputLimit: 64 << 20}},
		{"--shell", []string{"seq 3 | tac"}, plain, engine.Command{Args: []string{"sh", "-c", "seq 3 | tac"}}},
	} {
		v := newInvocation(t)
		args := append(append([]string{"run"}, strings.Fields(c.flags)...), append([]string{"--"}, c.args...)...)
		if status := v.Main(args); status != 0 {
			t.Errorf("%s: status %d: %s", c.flags, status, v.stderr.String())
			continue
		}
		if !reflect.DeepEqual(v.fake.spec, c.spec) {
			t.Errorf("%s: spec %+v, want %+v", c.flags, v.fake.spec, c.spec)
		}
		got := v.fake.cmd
		got.Stdin, got.Stdout, got.Stderr = nil, nil, nil
		if !reflect.DeepEqual(got, c.cmd) {
			t.Errorf("%s: command %+v, want %+v", c.flags, got, c.cmd)
		}
	}
}

// TestRunBadInput: one clear line that names the flag, status 125, and no engine is started.
func TestRunBadInput(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{}, "no command given"},
		{[]string{"--", ""}, "args"},
		{[]string{"--memory", "1M", "--", "x"}, `--memory 1 MiB: must be 4 MiB to 64 TiB`},
		{[]string{"--memory", "0", "--", "x"}, `--memory "0": must be more than 0`},
		{[]string{"--memory", "-5", "--", "x"}, `--memory "-5": must be a number`},
		{[]string{"--memory", "99999P", "--", "x"}, `--memory "99999P": must be at most`},
		{[]string{"--memory", "lots", "--", "x"}, `--memory "lots": must be`},
		{[]string{"--cpus", "NaN", "--", "x"}, `--cpus "NaN": must be a decimal number`},
		{[]string{"--cpus", "0", "--", "x"}, `--cpus "0": must be more than 0`},
		{[]string{"--cpus", "99999", "--", "x"}, `--cpus 99999: must be 0.01 to 4096`},
		{[]string{"--pids", "-1", "--", "x"}, `--pids "-1": must be a whole number`},
		{[]string{"--pids", "0", "--", "x"}, `--pids "0": must be more than 0`},
		{[]string{"--pids", "99999999", "--", "x"}, `--pids 99999999: must be 1 to`},
		{[]string{"--timeout", "0", "--", "x"}, `--timeout "0": must be more than 0`},
		{[]string{"--timeout", "soon", "--", "x"}, `--timeout "soon": must be a duration`},
		{[]string{"--timeout", "-1s", "--", "x"}, `--timeout "-1s": must be more than 0`},
		{[]string{"--timeout", "9999999h", "--", "x"}, `--timeout "9999999h": must be a duration`},
		{[]string{"--timeout", "999999h", "--", "x"}, `--timeout 999999h0m0s: must be at most`},
		{[]string{"--tmp-size", "1", "--", "x"}, `--tmp-size 1 B: must be 64 KiB`},
		{[]string{"--tmp-size", "unlimited", "--", "x"}, `--tmp-size "unlimited": must be`},
		{[]string{"--upper-size", "1G", "--", "x"}, `--upper-size 1 GiB: needs --rw-rootfs`},
		{[]string{"--output-limit", "0", "--", "x"}, `--output-limit "0": must be more than 0`},
		{[]string{"--image", "debian", "--pull", "never", "--data-dir", "/nonexistent", "--", "x"}, `--image "debian": unknown image: boxd image pull --local debian`},
		{[]string{"--image", "Debian", "--", "x"}, `--image "Debian": must be`},
		{[]string{"--image", "debian", "--shell"}, "no command given"},
		{[]string{"--image", "", "--", "x"}, `--image "": must not be empty`},
		{[]string{"--pull", "sometimes", "--", "x"}, `--pull "sometimes": must be missing, never or always`},
		{[]string{"--hostname", "-a", "--", "x"}, `--hostname "-a": must be`},
		{[]string{"--user", "root", "--", "x"}, `--user "root": must be UID or UID:GID`},
		{[]string{"--user", "-1", "--", "x"}, `--user "-1": must be UID or UID:GID`},
		{[]string{"--user", "65535", "--", "x"}, `--user 65535: must be 0 to 65534`},
		{[]string{"--user", "1:2:3", "--", "x"}, `--user "1:2:3": must be`},
		{[]string{"-w", "rel", "--", "x"}, `--workdir "rel": must be an absolute path`},
		{[]string{"-w", "/proc/self/cwd", "--", "x"}, `--workdir "/proc/self/cwd": must not be below /proc`},
		{[]string{"--workspace", "", "--", "x"}, `--workspace "": must not be empty; leave the flag out for the default`},
		{[]string{"--workspace", "rel", "--", "x"}, `--workspace source "rel": must be an absolute path`},
		{[]string{"-v", "rel:/a", "--", "x"}, `--mount source "rel": must be an absolute path`},
		{[]string{"-v", "/srv", "--", "x"}, `--mount "/srv": must be`},
		{[]string{"-v", "/srv:/..", "--", "x"}, `--mount target "/..": must not contain ".."`},
		{[]string{"-v", "/srv:/", "--", "x"}, `--mount target "/": must not be the root`},
		{[]string{"-v", "/srv:/a:z", "--", "x"}, `--mount option "z": must be ro or rw`},
		{[]string{"-v", "/srv:/a", "-v", "/opt:/a", "--", "x"}, `--mount target "/a"`},
		{[]string{"--mount", "type=volume,source=/srv,target=/a", "--", "x"}, `type "volume" must be bind`},
		{[]string{"-e", "=1", "--", "x"}, `--env "": must be KEY=VALUE`},
		{[]string{"-e", "A=\x00", "--", "x"}, `env[0] "A": must not contain a NUL byte`},
		{[]string{"--env-file", "/does/not/exist", "--", "x"}, `--env-file: open /does/not/exist`},
		{[]string{"--env-file", "/dev/zero", "--", "x"}, `--env-file "/dev/zero": must be at most 4 MiB`},
		{[]string{"--", "x", "\x00"}, `args[1] "\x00": must not contain a NUL byte`},
		{[]string{"--", "x", long}, `args[1] "aaaa`},
		{[]string{"--shell", "--", "a", "b"}, `--shell with 2 arguments`},
		{[]string{"--json", "-t", "--", "x"}, `--json with -t`},
		{[]string{"--upstream", "http://p:1", "--", "x"}, `--upstream-login without a network: need --network proxy`},
		{[]string{"--upstream-login", "/l", "--", "x"}, `without a network: need --network proxy`},
		{[]string{"--network", "proxy", "--upstream", "", "--", "x"}, `--upstream "": must not be empty`},
		{[]string{"--network", "proxy", "--upstream", "https://p:1", "--", "x"}, `--upstream as given: must be http://HOST:PORT or socks5://HOST:PORT; a login belongs in --upstream-login`},
		{[]string{"--network", "proxy", "--upstream", "http://p", "--", "x"}, `--upstream "p": must be http://HOST:PORT`},
		{[]string{"--network", "proxy", "--upstream", "socks5://me:secret@p:1", "--", "x"}, `--upstream as given: must be`},
		{[]string{"--network", "proxy", "--upstream-login", "/l", "--", "x"}, `--upstream-login without upstream: give --upstream as well`},
		{[]string{"--network", "proxy", "--upstream", "http://p:1", "--upstream-login", "", "--", "x"}, `--upstream-login "": must not be empty`},
		{[]string{"--network", "proxy", "--upstream", "http://p:1", "--upstream-login", "/does/not/exist", "--", "x"}, `--upstream-login: a secret of the operator cannot be read: open /does/not/exist`},
		{[]string{"--nonsense", "--", "x"}, `unknown flag --nonsense; see "boxd run --help"`},
		{[]string{"--init", "/does/not/exist", "--", "x"}, `launcher not available: --init "/does/not/exist": must be an executable file`},
	} {
		v := newInvocation(t)
		v.NewEngine = nil
		status := v.Main(append([]string{"run"}, c.args...))
		line := v.stderr.String()
		if status != 125 || !strings.HasPrefix(line, "boxd: ") || !strings.Contains(line, c.want) || strings.Count(line, "\n") != 1 || len(line) > 500 {
			t.Errorf("run %.60q: status %d, stderr %.300q, want a line with %q", c.args, status, line, c.want)
		}
		if v.stdout.Len() > 0 && c.args[0] != "--json" {
			t.Errorf("run %.60q: stdout %q, want none", c.args, v.stdout.String())
		}
	}
}

func TestOtherCommandLines(t *testing.T) {
	for _, c := range []struct {
		args           string
		status         int
		stdout, stderr string
	}{
		{"", 0, "Usage:\n  boxd [command]\n", ""},
		{"--help", 0, "The daemon and its sessions:", ""},
		{"run --help", 0, "--memory SIZE", ""},
		{"version", 0, "boxd 1.2.3 go", ""},
		{"--version", 0, "boxd 1.2.3 go", ""},
		{"version x", 125, "", `boxd: "x": is one argument too many: boxd version; see "boxd version --help"`},
		{"nonsense", 125, "", `boxd: unknown command "nonsense"; see "boxd --help"` + "\n"},
		{"rnu", 125, "", `boxd: unknown command "rnu": did you mean run?; see "boxd --help"` + "\n"},
		{"rnu --json -- x", 125, "", `boxd: unknown command "rnu": did you mean run?; see "boxd --help"` + "\n"},
		{"--url x", 125, "", `boxd: unknown flag --url; see "boxd --help"` + "\n"},
		{"audit verify /no/such/log", 125, "", `no such file or directory: name the file that the daemon writes`},
		{"--nonsense", 125, "", `boxd: unknown flag --nonsense; see "boxd --help"` + "\n"},
		{"help", 0, "Usage:\n  boxd [command]\n", ""},
		{"help run", 0, "--memory SIZE", ""},
		{"help sessions rm", 0, "boxd sessions rm SESSION", ""},
		{"help nonsense", 125, "", `boxd: unknown command "nonsense"; see "boxd --help"` + "\n"},
		{"help sessions nonsense", 125, "", `boxd: unknown command "sessions nonsense"; see "boxd sessions --help"` + "\n"},
		{"sessions", 0, "Usage:\n  boxd sessions [command]\n", ""},
		{"doctor x", 125, "", `"x": is one argument too many: boxd doctor`},
		{"completion", 125, "", `boxd: SHELL is missing: boxd completion SHELL; see "boxd completion --help"` + "\n"},
		{"__complete help sess", 0, "sessions\t", ""},
		{"completion bash", 0, "__start_boxd", ""},
		{"completion zsh", 0, "#compdef boxd", ""},
		{"completion fish", 0, "complete -c boxd", ""},
		{"completion tcsh", 125, "", `SHELL "tcsh": must be bash, zsh or fish`},
		{"__complete run --memory ", 0, "512M\n", ""},
		{"__complete run --image ", 0, "host", ""},
		{"__complete run --work", 0, "--workspace", ""},
		{"__complete r", 0, "run\t", ""},
	} {
		v := newInvocation(t)
		args := strings.Split(c.args, " ")
		if c.args == "" {
			args = nil
		}
		status := v.Main(args)
		if status != c.status || !strings.Contains(v.stdout.String(), c.stdout) || !strings.Contains(v.stderr.String(), c.stderr) {
			t.Errorf("boxd %s: status %d, stdout %q, stderr %q", c.args, status, v.stdout.String(), v.stderr.String())
		}
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		result engine.Result
		status int
		stderr string
	}{
		{engine.Result{Verdict: engine.Exited, ExitCode: 0}, 0, ""},
		{engine.Result{Verdict: engine.Exited, ExitCode: 42}, 42, ""},
		{engine.Result{Verdict: engine.Exited, ExitCode: 255}, 255, ""},
		{engine.Result{Verdict: engine.Signaled, ExitCode: -1, Signal: syscall.SIGSEGV}, 139, ""},
		{engine.Result{Verdict: engine.TimedOut, ExitCode: -1, Signal: syscall.SIGTERM, Limit: "30s"}, 124, "verdict: timeout (limit 30s)\n"},
		{engine.Result{Verdict: engine.OOM, ExitCode: -1, Signal: syscall.SIGKILL, Limit: "64 MiB"}, 137, "verdict: oom (limit 64 MiB)\n"},
		{engine.Result{Verdict: engine.PIDsLimit, ExitCode: 2, Limit: "7"}, 2, "verdict: pids-limit (limit 7)\n"},
		{engine.Result{Verdict: engine.OutputLimit, ExitCode: -1, Signal: syscall.SIGKILL, Limit: "1 MiB"}, 137, "verdict: output-limit (limit 1 MiB)\n"},
		{engine.Result{Verdict: engine.DiskQuota, ExitCode: 1}, 1, "verdict: disk-quota\n"},
		{engine.Result{Verdict: engine.BoxLost, ExitCode: -1}, 137, "verdict: box-lost\n"},
	} {
		v := newInvocation(t)
		v.fake.behave = func(*fakeProcess) engine.Result { return c.result }
		if status := v.Main([]string{"run", "x"}); status != c.status || v.stderr.String() != c.stderr {
			t.Errorf("%+v: status %d, stderr %q, want %d, %q", c.result, status, v.stderr.String(), c.status, c.stderr)
		}
		if want := []string{"start", "remove", "close"}; !reflect.DeepEqual(v.fake.log, want) {
			t.Errorf("%+v: engine saw %q, want %q", c.result, v.fake.log, want)
		}
	}
}

func TestErrors(t *testing.T) {
	disk := errors.New("no space left on device")
	for _, c := range []struct {
		name   string
		breakf func(*fake)
		status int
		stderr string
		log    string
	}{
		{"engine", func(f *fake) { f.newErr = fmt.Errorf("%w: version 0.1, this is 0.2", engine.ErrNoLauncher) }, 125, "boxd: launcher not available: version 0.1, this is 0.2\n", ""},
		{"create", func(f *fake) { f.createErr = disk }, 125, "boxd: no space left on device\n", "close"},
		{"a layer that is gone", func(f *fake) { f.createErr = engine.ErrNoLayer }, 125, "boxd: --image \"host\": it was removed meanwhile, pull or import it again: layer does not exist\n", "close"},
		{"create field", func(f *fake) {
			f.createErr = &engine.FieldError{Field: "mounts[0].source", Value: `"/x"`, Rule: "does not exist"}
		}, 125, "boxd: --mount source \"/x\": does not exist\n", "close"},
		{"text of others", func(f *fake) { f.startErr = errors.New("a\x1b[2J\u009b\nb") }, 125, "boxd: a?[2J?; b\n", "remove close"},
		{"not found", func(f *fake) { f.startErr = fmt.Errorf("%w: %q", engine.ErrNotFound, "x") }, 127, "boxd: program not found: \"x\"\n", "remove close"},
		{"not executable", func(f *fake) { f.startErr = engine.ErrNotExecutable }, 126, "boxd: program not executable\n", "remove close"},
		{"no dir", func(f *fake) { f.startErr = engine.ErrNoDir }, 125, "boxd: working directory does not exist\n", "remove close"},
		{"several", func(f *fake) { f.startErr = errors.Join(disk, disk) }, 125, "boxd: no space left on device; no space left on device\n", "remove close"},
		{"clean-up", func(f *fake) { f.removeErr, f.closeErr = disk, disk }, 0, "boxd: removing box: no space left on device\nboxd: closing engine: no space left on device\n", "start remove close"},
	} {
		v := newInvocation(t)
		c.breakf(v.fake)
		status := v.Main([]string{"run", "x"})
		if status != c.status || v.stderr.String() != c.stderr || strings.Join(v.fake.log, " ") != c.log {
			t.Errorf("%s: status %d, stderr %q, engine saw %q; want %d, %q, %q", c.name, status, v.stderr.String(), v.fake.log, c.status, c.stderr, c.log)
		}
	}
}

// TestStreams: without a limit the command gets boxd's own files, with one it gets writers, whose
// bytes the engine can count.
func TestStreams(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()

	v := newInvocation(t)
	v.Stdin, v.Stdout, v.Stderr = file, file, file
	v.Main([]string{"run", "x"})
	if v.fake.cmd.Stdin != nil || v.fake.cmd.Stdout != file || v.fake.cmd.Stderr != file {
		t.Errorf("streams %v, %v, %v, want nil and the files themselves", v.fake.cmd.Stdin, v.fake.cmd.Stdout, v.fake.cmd.Stderr)
	}

	v = newInvocation(t)
	v.Stdin, v.Stdout, v.Stderr = file, file, file
	v.Main([]string{"run", "-i", "--output-limit", "1M", "x"})
	if v.fake.cmd.Stdin != file {
		t.Errorf("stdin with -i is %v, want the file itself", v.fake.cmd.Stdin)
	}
	for _, w := range []any{v.fake.cmd.Stdout, v.fake.cmd.Stderr} {
		if _, isFile := w.(*os.File); isFile {
			t.Error("a file was handed on although output is limited")
		}
	}
}

func TestReceipt(t *testing.T) {
	v := newInvocation(t)
	v.fake.behave = func(p *fakeProcess) engine.Result {
		p.print(p.cmd.Stdout, "out\n")
		return engine.Result{Verdict: engine.Exited, Receipt: engine.Receipt{
			Wall: 1500 * time.Millisecond, User: ptr(1230 * time.Microsecond), MemoryPeak: ptr(int64(3 << 20)), PIDsPeak: ptr(int64(2)),
			Throttled: ptr(20 * time.Millisecond), OOMKills: ptr(int64(0)), PIDsLimitReached: ptr(int64(4)), StdoutBytes: ptr(int64(4)),
		}}
	}
	if status := v.Main([]string{"run", "--receipt", "x"}); status != 0 || v.stdout.String() != "out\n" {
		t.Errorf("status %d, stdout %q", status, v.stdout.String())
	}
	want := `receipt:
  wall         1.50 s
  user         1.23 ms
  system       not measured on this host
  memory peak  3 MiB
  pids peak    2
  stdout       4 B
  throttled    20.00 ms
  forks denied 4
`
	if v.stderr.String() != want {
		t.Errorf("receipt is\n%s\nwant\n%s", v.stderr.String(), want)
	}
}

func ptr[T any](v T) *T { return &v }

func TestHelpIsTidy(t *testing.T) {
	v := newInvocation(t)
	v.Main([]string{"run", "--help"})
	for i, line := range bytes.Split(v.stdout.Bytes(), []byte("\n")) {
		if len(line) > 150 || bytes.HasSuffix(line, []byte(" ")) {
			t.Errorf("line %d of the help: %q", i+1, line)
		}
	}
}
