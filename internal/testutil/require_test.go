package testutil

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// recorder is a testing.TB that notes how a test was ended and unwinds it.
type recorder struct {
	testing.TB
	outcome string
}

type ended struct{}

func (r *recorder) Helper()              {}
func (r *recorder) end(how, text string) { r.outcome = how + ": " + text; panic(ended{}) }
func (r *recorder) Skip(a ...any)        { r.end("skip", fmt.Sprint(a...)) }
func (r *recorder) Fatal(a ...any)       { r.end("fatal", fmt.Sprint(a...)) }
func (r *recorder) Skipf(f string, a ...any) {
	r.end("skip", fmt.Sprintf(f, a...))
}
func (r *recorder) Fatalf(f string, a ...any) {
	r.end("fatal", fmt.Sprintf(f, a...))
}

// outcome says how call ended a test, or "".
func outcome(t *testing.T, call func(t testing.TB)) string {
	r := &recorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil && p != (ended{}) {
				panic(p)
			}
		}()
		call(r)
	}()
	return r.outcome
}

func TestRequireFeature(t *testing.T) {
	no := errors.New("not here")
	cases := []struct {
		name, require string
		err           error
		want          string
	}{
		{"pidfd", "1", nil, ""},
		{"pidfd", "", no, "skip: "},
		{"pidfd", "1", no, "fatal: "},
		{"never heard of", "1", no, "fatal: "},
		{"never heard of", "", no, "skip: "},
	}
	for _, c := range cases {
		t.Setenv("BOXD_TEST_REQUIRE", c.require)
		got := outcome(t, func(tb testing.TB) { RequireFeature(tb, c.name, c.err) })
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("RequireFeature(%q, %v) with %q = %q, want %q", c.name, c.err, c.require, got, c.want)
		}
	}
}

func TestExpectedAbsent(t *testing.T) {
	cases := []struct {
		name   string
		host   host
		absent bool
	}{
		{"id-mapped tmpfs", host{6, 1, cgroupV2, ""}, true},
		{"id-mapped tmpfs", host{6, 3, cgroupV2, ""}, false},
		{"id-mapped tmpfs", host{7, 0, cgroupV2, ""}, false},
		{"memory.peak", host{6, 18, cgroupV1, ""}, true},
		{"memory.peak", host{6, 18, cgroupV2, ""}, false},
		{"cgroup v1 controllers", host{6, 18, cgroupV2, ""}, true},
		{"pidfd", host{5, 2, cgroupV1, ""}, true},
		{"id-mapped root file system", host{6, 18, cgroupV1, ""}, false},
		{"id-mapped root file system", host{6, 18, cgroupV1, "overlayfs"}, true},
		{"id-mapped mounts", host{6, 18, cgroupV1, "overlayfs"}, false},
	}
	for _, c := range cases {
		if why, absent := expectedAbsent(c.name, c.host); absent != c.absent {
			t.Errorf("expectedAbsent(%q, %+v) = %v (%s), want %v", c.name, c.host, absent, why, c.absent)
		}
	}
}

func TestRequireProgram(t *testing.T) {
	t.Setenv("BOXD_TEST_REQUIRE", "1")
	if path := RequireProgram(t, "sh"); !strings.HasSuffix(path, "/sh") {
		t.Errorf("RequireProgram(sh) = %q", path)
	}
	got := outcome(t, func(tb testing.TB) { RequireProgram(tb, "no-such-program") })
	if !strings.HasPrefix(got, "skip: ") {
		t.Errorf("a program that setup does not install: %q, want a skip", got)
	}
	t.Setenv("PATH", "/nonexistent")
	got = outcome(t, func(tb testing.TB) { RequireProgram(tb, "python3") })
	if !strings.HasPrefix(got, "fatal: ") {
		t.Errorf("python3 missing: %q, want a failure", got)
	}
}

func TestRequireRoot(t *testing.T) {
	t.Setenv("CI", "true")
	got := outcome(t, func(tb testing.TB) { RequireRoot(tb) })
	if root := os.Geteuid() == 0; root != (got == "") || !root && !strings.HasPrefix(got, "fatal: ") {
		t.Errorf("RequireRoot as uid %d in CI: %q", os.Geteuid(), got)
	}
}

// TestRequireRootUnprivileged: make test does not run such a package as root.
func TestRequireRootUnprivileged(t *testing.T) {
	unprivileged = true
	defer func() { unprivileged = false }()
	if got := outcome(t, func(tb testing.TB) { RequireRoot(tb) }); !strings.HasPrefix(got, "fatal: ") {
		t.Errorf("RequireRoot after MainUnprivileged: %q, want a failure", got)
	}
	for _, c := range ownChecks() {
		if c.machineWide {
			t.Errorf("MainUnprivileged looks at the whole machine: %s", c.kind)
		}
	}
}

func TestParseRelease(t *testing.T) {
	cases := map[string][2]int{"6.1.0-56-cloud-amd64": {6, 1}, "5.15": {5, 15}, "6.18.44-x": {6, 18}, "": {0, 0}, "x": {0, 0}}
	for release, want := range cases {
		if major, minor := parseRelease(release); [2]int{major, minor} != want {
			t.Errorf("parseRelease(%q) = %d, %d, want %v", release, major, minor, want)
		}
	}
}
