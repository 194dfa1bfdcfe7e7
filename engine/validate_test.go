package engine

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/mounts"
)

func manyMounts(n int) []mounts.Mount {
	list := make([]mounts.Mount, n)
	for i := range list {
		list[i] = mounts.Mount{Source: "/srv", Target: fmt.Sprintf("/m%d", i)}
	}
	return list
}

// wantField checks that err is a FieldError for field, on one line; an empty
// field wants no error.
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

func TestSpecValidate(t *testing.T) {
	for _, c := range []struct {
		name  string
		spec  Spec
		field string
	}{
		{"zero value", Spec{}, ""},
		{"defaults", Spec{}.WithDefaults(), ""},
		{"writable defaults", Spec{WritableRoot: true}.WithDefaults(), ""},
		{"id", Spec{ID: "a"}, ""},
		{"id of 64", Spec{ID: strings.Repeat("9", 64)}, ""},
		{"id of 65", Spec{ID: strings.Repeat("a", 65)}, "id"},
		{"id upper case", Spec{ID: "Box"}, "id"},
		{"id hyphen first", Spec{ID: "-a"}, "id"},
		{"id dots", Spec{ID: ".."}, "id"},
		{"id slash", Spec{ID: "a/b"}, "id"},
		{"id NUL", Spec{ID: "a\x00"}, "id"},
		{"id letter beyond ASCII", Spec{ID: "ä"}, "id"},
		{"image host", Spec{Image: "host"}, ""},
		{"image unknown", Spec{Image: "debian:12"}, "image"},
		{"image case", Spec{Image: "Host"}, "image"},
		{"hostname", Spec{Hostname: "a-1.Example.org"}, ""},
		{"hostname label of 63", Spec{Hostname: strings.Repeat("a", 63)}, ""},
		{"hostname label of 64", Spec{Hostname: strings.Repeat("a", 64)}, "hostname"},
		{"hostname of 64", Spec{Hostname: strings.Repeat("a", 32) + "." + strings.Repeat("b", 31)}, ""},
		{"hostname of 65", Spec{Hostname: strings.Repeat("a", 32) + "." + strings.Repeat("b", 32)}, "hostname"},
		{"hostname hyphen first", Spec{Hostname: "-a"}, "hostname"},
		{"hostname hyphen last", Spec{Hostname: "a-.b"}, "hostname"},
		{"hostname empty label", Spec{Hostname: "a..b"}, "hostname"},
		{"hostname dot last", Spec{Hostname: "a."}, "hostname"},
		{"hostname underscore", Spec{Hostname: "a_b"}, "hostname"},
		{"hostname newline", Spec{Hostname: "a\nb"}, "hostname"},
		{"uid highest", Spec{User: User{MaxID, MaxID}}, ""},
		{"uid of PID 1", Spec{User: User{UID: 65535}}, "user.uid"},
		{"uid negative", Spec{User: User{UID: -1}}, "user.uid"},
		{"gid too high", Spec{User: User{GID: 1 << 32}}, "user.gid"},
		{"upper without writable root", Spec{UpperSize: 1 << 20}, "upper_size"},
		{"upper", Spec{WritableRoot: true, UpperSize: 1 << 20}, ""},
		{"upper small", Spec{WritableRoot: true, UpperSize: 1}, "upper_size"},
		{"upper unlimited", Spec{WritableRoot: true, UpperSize: Unlimited}, "upper_size"},
		{"tmp smallest", Spec{TmpSize: MinTmpSize}, ""},
		{"tmp small", Spec{TmpSize: MinTmpSize - 1}, "tmp_size"},
		{"tmp negative", Spec{TmpSize: -5}, "tmp_size"},
		{"tmp huge", Spec{TmpSize: math.MaxInt64}, "tmp_size"},
		{"limits", Spec{Limits: Limits{Memory: 1}}, "memory"},
		{"mounts", Spec{Mounts: []mounts.Mount{{Source: "/srv/a", Target: WorkspaceTarget}, {Source: "/srv/b", Target: "/b"}}}, ""},
		{"mount source relative", Spec{Mounts: []mounts.Mount{{Source: "/srv", Target: "/a"}, {Source: "srv", Target: "/b"}}}, "mounts[1].source"},
		{"mount target above root", Spec{Mounts: []mounts.Mount{{Source: "/srv", Target: "/../a"}}}, "mounts[0].target"},
		{"mount target twice", Spec{Mounts: []mounts.Mount{{Source: "/srv", Target: "/a"}, {Source: "/opt", Target: "/a"}}}, "mounts.target"},
		{"too many mounts", Spec{Mounts: manyMounts(65)}, "mounts"},
		{"first error wins", Spec{ID: "A", Image: "x", Limits: Limits{PIDs: -2}}, "id"},
	} {
		wantField(t, c.name, c.spec.Validate(), c.field)
	}
}

func TestLimitsValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits Limits
		field  string
	}{
		{"defaults", Limits{}.WithDefaults(), ""},
		{"unlimited", Limits{Memory: Unlimited, PIDs: Unlimited, CPUs: Unlimited, FileSize: Unlimited}, ""},
		{"lowest", Limits{MinMemory, 1, MinCPUs, 16, 1}, ""},
		{"highest", Limits{MaxMemory, MaxPIDs, MaxCPUs, MaxOpenFiles, MaxMemory}, ""},
		{"memory low", Limits{Memory: MinMemory - 1}, "memory"},
		{"memory high", Limits{Memory: MaxMemory + 1}, "memory"},
		{"memory negative", Limits{Memory: -2}, "memory"},
		{"memory smallest", Limits{Memory: math.MinInt64}, "memory"},
		{"pids negative", Limits{PIDs: -2}, "pids"},
		{"pids high", Limits{PIDs: MaxPIDs + 1}, "pids"},
		{"cpus NaN", Limits{CPUs: math.NaN()}, "cpus"},
		{"cpus Inf", Limits{CPUs: math.Inf(1)}, "cpus"},
		{"cpus -Inf", Limits{CPUs: math.Inf(-1)}, "cpus"},
		{"cpus low", Limits{CPUs: 0.009}, "cpus"},
		{"cpus high", Limits{CPUs: 4096.1}, "cpus"},
		{"cpus negative", Limits{CPUs: -0.5}, "cpus"},
		{"open files low", Limits{OpenFiles: 15}, "open_files"},
		{"open files unlimited", Limits{OpenFiles: Unlimited}, "open_files"},
		{"open files high", Limits{OpenFiles: MaxOpenFiles + 1}, "open_files"},
		{"file size negative", Limits{FileSize: -2}, "file_size"},
	} {
		wantField(t, c.name, c.limits.Validate(), c.field)
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
		{"user", with(func(c *Command) { c.User = &User{1000, 1000} }), ""},
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

func TestChangeValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		change Change
		field  string
	}{
		{"empty", Change{}, ""},
		{"limits", Change{Limits: &Limits{Memory: MinMemory}}, ""},
		{"bad limits", Change{Limits: &Limits{CPUs: math.NaN()}}, "cpus"},
		{"attach", Change{Attach: []mounts.Mount{{Source: "/srv", Target: "/a"}}}, ""},
		{"attach to root", Change{Attach: []mounts.Mount{{Source: "/srv", Target: "/"}}}, "attach[0].target"},
		{"detach", Change{Detach: []string{"/a"}}, ""},
		{"detach root", Change{Detach: []string{"/a", "/"}}, "detach[1]"},
		{"detach relative", Change{Detach: []string{"a"}}, "detach[0]"},
		{"detach not clean", Change{Detach: []string{"/a/../b"}}, "detach[0]"},
		{"detach NUL", Change{Detach: []string{"/a\x00"}}, "detach[0]"},
	} {
		wantField(t, c.name, c.change.Validate(), c.field)
	}
}
