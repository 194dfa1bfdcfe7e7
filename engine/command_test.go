package engine

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

func wantField(t *testing.T, name string, err error, field string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("%s: %v, want no error", name, err)
		}
		return
	}
	var bad *FieldError
	if !errors.As(err, &bad) || bad.Field != field || !errors.Is(err, ErrInvalid) {
		t.Errorf("%s: %v, want a FieldError for %q", name, err, field)
		return
	}
	if line := err.Error(); len(line) > 400 || strings.ContainsAny(line, "\n\x00") || bad.Value == "" || bad.Rule == "" {
		t.Errorf("%s: %q is not one clear line", name, line)
	}
}

func TestCommandValidate(t *testing.T) {
	args := func(a ...string) Command { return Command{Args: a} }
	env := func(e ...string) Command { return Command{Args: []string{"x"}, Env: e} }
	with := func(change func(*Command)) Command {
		c := args("x")
		change(&c)
		return c
	}
	// 15 strings of 131,071 bytes leave 2097152-8192 - 15*(131071+9) = 122,760
	// bytes, less what "x" takes: 1+9.
	full := append([]string{"x"}, strings.Split(strings.TrimSuffix(strings.Repeat(strings.Repeat("a", maxArg)+"\n", 15), "\n"), "\n")...)
	for _, c := range []struct {
		name  string
		cmd   Command
		field string
	}{
		{"plain", args("sh", "-c", ""), ""},
		{"no args", args(), "args"},
		{"empty program", args("", "x"), "args"},
		{"NUL in program", args("a\x00b"), "args[0]"},
		{"NUL in argument", args("x", "\x00"), "args[1]"},
		{"longest argument", args("x", strings.Repeat("a", 131071)), ""},
		{"argument too long", args("x", strings.Repeat("a", 131072)), "args[1]"},
		{"argument of 1 MB", args("x", strings.Repeat("a", 1<<20)), "args[1]"},
		{"largest total", args(append(full, strings.Repeat("b", 122760-10-9))...), ""},
		{"total too large", args(append(full, strings.Repeat("b", 122760-10-8))...), "args and env"},
		{"many short arguments", args(strings.Split(strings.Repeat("x ", 300000), " ")[:300000]...), "args and env"},
		{"builtin", with(func(c *Command) { c.Builtin = BuiltinFiles }), ""},
		{"builtin unknown", with(func(c *Command) { c.Builtin = "init" }), "builtin"},
		{"builtin with env", with(func(c *Command) { c.Builtin, c.Env = BuiltinFiles, []string{"A=1"} }), "env"},
		{"builtin with tty", with(func(c *Command) { c.Builtin, c.TTY = BuiltinFiles, &WindowSize{} }), "tty"},
		{"builtin with zygote", with(func(c *Command) { c.Builtin, c.Zygote = BuiltinFiles, "a" }), "zygote"},
		{"env", env("A=", "B=1=2", "ä=\n"), ""},
		{"env without =", env("A=1", "B"), "env[1]"},
		{"env without key", env("=1"), "env[0]"},
		{"env empty", env(""), "env[0]"},
		{"NUL in env", env("A=1", "B=\x00"), "env[1]"},
		{"env too long", env("A=" + strings.Repeat("a", 1<<20)), "env[0]"},
		{"dir", with(func(c *Command) { c.Dir = "/a/../b" }), ""},
		{"dir relative", with(func(c *Command) { c.Dir = "a" }), "dir"},
		{"dir NUL", with(func(c *Command) { c.Dir = "/\x00" }), "dir"},
		{"dir too long", with(func(c *Command) { c.Dir = strings.Repeat("/a", 2048) }), "dir"},
		{"dir in proc", with(func(c *Command) { c.Dir = "/x/..//proc/self/fd/7" }), "dir"},
		{"dir like proc", with(func(c *Command) { c.Dir = "/process" }), ""},
		{"user", with(func(c *Command) { c.User = &User{UID: 1000, GID: 1000} }), ""},
		{"user too high", with(func(c *Command) { c.User = &User{UID: MaxID + 1} }), "user.uid"},
		{"tty", with(func(c *Command) { c.TTY = &WindowSize{} }), ""},
		{"tty and stderr", with(func(c *Command) { c.TTY, c.Stderr = &WindowSize{}, &strings.Builder{} }), "stderr"},
		{"output limit negative", with(func(c *Command) { c.OutputLimit = -1 }), "output_limit"},
		{"output limit huge", with(func(c *Command) { c.OutputLimit = math.MaxInt64 }), "output_limit"},
		{"timeout negative", with(func(c *Command) { c.Timeout = -1 }), "timeout"},
		{"timeout huge", with(func(c *Command) { c.Timeout = math.MaxInt64 }), "timeout"},
		{"grace negative", with(func(c *Command) { c.Grace = -time.Second }), "grace"},
		{"cancel grace negative", with(func(c *Command) { c.CancelGrace = -time.Second }), "cancel_grace"},
		{"cancel grace huge", with(func(c *Command) { c.CancelGrace = 2 * time.Hour }), "cancel_grace"},
		{"grace huge", with(func(c *Command) { c.Grace = 2 * time.Hour }), "grace"},
	} {
		wantField(t, c.name, c.cmd.Validate(), c.field)
	}
}

func TestErrorsKeepSecrets(t *testing.T) {
	for _, kv := range []string{"TOKEN=hunter2\x00", "TOKEN=hunter2" + strings.Repeat("x", maxArg), "=hunter2"} {
		err := Command{Args: []string{"x"}, Env: []string{kv}}.Validate()
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error for a bad variable: %v, want one without its value", err)
		}
	}
}

func TestCommandWithDefaults(t *testing.T) {
	all := []string{"PATH=" + defaultPATH, "HOME=/home/box", "USER=root", "LANG=C.UTF-8", "TMPDIR=/tmp"}
	withWorkspace := Spec{Mounts: []Mount{{Source: "/srv", Target: "/data"}, {Source: "/srv", Target: WorkspaceTarget}}}
	for name, c := range map[string]struct {
		cmd  Command
		spec Spec
		want Command
	}{
		"empty":     {Command{}, Spec{}, Command{User: &User{}, Dir: "/home/box", Grace: DefaultGrace, Env: all}},
		"workspace": {Command{}, withWorkspace, Command{User: &User{}, Dir: "/workspace", Grace: DefaultGrace, Env: all}},
		"all set": {
			Command{Args: []string{"x"}, User: &User{UID: 7, GID: 8}, Dir: "/tmp", Grace: 1, Env: []string{"USER=me", "LANG=", "TMPDIR=/t", "HOME=/h", "PATH=/p"}}, withWorkspace,
			Command{Args: []string{"x"}, User: &User{UID: 7, GID: 8}, Dir: "/tmp", Grace: 1, Env: []string{"USER=me", "LANG=", "TMPDIR=/t", "HOME=/h", "PATH=/p"}},
		},
		"user of the box": {
			Command{Env: []string{"PATH=/p", "PATHS=1"}}, Spec{User: User{UID: 42, GID: 43}},
			Command{User: &User{UID: 42, GID: 43}, Dir: "/home/box", Grace: DefaultGrace, Env: []string{"PATH=/p", "PATHS=1", "HOME=/home/box", "USER=user42", "LANG=C.UTF-8", "TMPDIR=/tmp"}},
		},
	} {
		got := c.cmd.WithDefaults(c.spec)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if again := got.WithDefaults(c.spec); !reflect.DeepEqual(again, got) {
			t.Errorf("%s: WithDefaults twice = %+v", name, again)
		}
		if err := (Command{Args: []string{"x"}, Env: got.Env, Dir: got.Dir}).Validate(); err != nil {
			t.Errorf("%s: defaults are invalid: %v", name, err)
		}
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		result Result
		want   int
	}{
		{Result{Verdict: Exited, ExitCode: 3}, 3},
		{Result{Verdict: Signaled, ExitCode: -1, Signal: 15}, 143},
		{Result{Verdict: TimedOut, ExitCode: -1, Signal: 9}, 124},
		{Result{Verdict: TimedOut, ExitCode: 0}, 124},
		{Result{Verdict: OOM, ExitCode: -1, Signal: 9}, 137},
		{Result{Verdict: BoxLost, ExitCode: -1}, 137},
		{Result{Verdict: OutputLimit, ExitCode: -1, Signal: 9}, 137},
		{Result{Verdict: OutputLimit, ExitCode: 0}, 137},
	} {
		if got := c.result.Status(); got != c.want {
			t.Errorf("%+v.Status() = %d, want %d", c.result, got, c.want)
		}
	}
}
