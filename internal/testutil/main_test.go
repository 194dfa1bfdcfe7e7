package testutil

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { Main(m) }

// leaksOf returns the things of the given kind that are new after make.
func leaksOf(t *testing.T, kind string, stateDirs []string, make func()) []leak {
	t.Helper()
	var kinds []check
	for _, k := range checks(stateDirs) {
		if k.kind == kind {
			kinds = append(kinds, k)
		}
	}
	before := takeSnapshot(kinds)
	make()
	return awaitClean(kinds, before, 0)
}

// one expects exactly one leak that contains text, and no others except those that other processes of
// this machine may have created.
func one(t *testing.T, leaks []leak, text string) {
	t.Helper()
	found := 0
	for _, l := range leaks {
		switch {
		case strings.Contains(l.String(), text):
			found++
		case !l.machineWide:
			t.Errorf("unexpected: %v", l)
		}
	}
	if found != 1 {
		t.Errorf("leaks = %v, want one with %q", leaks, text)
	}
}

func TestLeakedDescriptor(t *testing.T) {
	var f *os.File
	one(t, leaksOf(t, "descriptor", nil, func() { f, _ = os.Open("/etc/passwd") }), "/etc/passwd")
	f.Close()
}

func TestLeakedEventDescriptor(t *testing.T) {
	fd := -1
	one(t, leaksOf(t, "descriptor", nil, func() { fd, _ = unix.Eventfd(0, unix.EFD_CLOEXEC) }), "eventfd")
	unix.Close(fd)
}

func TestLeakedGoroutine(t *testing.T) {
	stop, stopped := make(chan bool), make(chan bool)
	leaks := leaksOf(t, "goroutine", nil, func() {
		go func() { <-stop; close(stopped) }()
	})
	one(t, leaks, "TestLeakedGoroutine")
	close(stop)
	<-stopped
}

func TestLeakedChild(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	one(t, leaksOf(t, "child process", nil, func() {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}), "parent ")
	cmd.Process.Kill()
	if leaks := leaksOf(t, "child process", nil, func() {}); len(leaks) != 0 {
		t.Errorf("leaks = %v, want none: the child was there before", leaks)
	}
	cmd.Wait()
}

func TestLeakedMount(t *testing.T) {
	RequireRoot(t)
	dir := t.TempDir()
	one(t, leaksOf(t, "mount", nil, func() {
		if err := unix.Mount("leak", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
	}), dir)
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
}

func TestLeakedCgroup(t *testing.T) {
	RequireRoot(t)
	for _, m := range readMounts() {
		if m.fstype != "cgroup" && m.fstype != "cgroup2" {
			continue
		}
		base := filepath.Join(m.target, "boxd-leak-test")
		leaks := leaksOf(t, "cgroup", nil, func() {
			if err := os.Mkdir(base, 0o755); err != nil {
				t.Fatal(err)
			}
		})
		one(t, leaks, base)
		if err := os.Remove(base); err != nil {
			t.Error(err)
		}
	}
}

func TestBareCgroupRootIsNoLeak(t *testing.T) {
	root := t.TempDir()
	list := map[string]string{}
	for _, dir := range []string{"boxd/b1/work/1", "system.slice/x.service", "a/boxd-x"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	findBoxd(root, list)
	for _, want := range []string{"boxd", "boxd/b1", "boxd/b1/work", "boxd/b1/work/1", "a/boxd-x"} {
		if list[filepath.Join(root, want)] == "" {
			t.Errorf("%q is not listed", want)
		}
	}
	if len(list) != 5 {
		t.Errorf("list = %v, want five", list)
	}
}

func TestLeakedStateFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	leaks := leaksOf(t, "state file", []string{dir}, func() {
		for _, d := range []string{"ids", "i-1"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600)
	})
	one(t, leaks, "i-1")
}

// TestRun checks a whole run: a clean one passes, slow teardown is awaited, a leak fails it, and a
// failure keeps its exit code.
func TestRun(t *testing.T) {
	var files []*os.File
	leaky := func() int {
		f, _ := os.Open("/etc/passwd")
		files = append(files, f)
		return 0
	}
	late := func() int {
		f, _ := os.Open("/etc/passwd")
		time.AfterFunc(20*time.Millisecond, func() { f.Close() })
		return 0
	}
	cases := []struct {
		name  string
		tests func() int
		code  int
		says  string
	}{
		{"clean", func() int { return 0 }, 0, ""},
		{"late", late, 0, ""},
		{"leaky", leaky, 1, "leaked: descriptor: "},
		{"failed", func() int { return 3 }, 3, ""},
	}
	kinds := checks(nil)[:1]
	for _, c := range cases {
		var report bytes.Buffer
		if code := runChecked(c.tests, &report, kinds, true, 200*time.Millisecond); code != c.code {
			t.Errorf("%s: code = %d, want %d (%s)", c.name, code, c.code, &report)
		}
		if !strings.Contains(report.String(), c.says) || c.says == "" && report.Len() > 0 {
			t.Errorf("%s: report = %q, want %q", c.name, &report, c.says)
		}
	}
	for _, f := range files {
		f.Close()
	}
}

func TestParseStat(t *testing.T) {
	line := "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 0 0"
	p, ok := parseStat(42, line)
	if !ok || p.ppid != 7 || p.comm != "a) b (c" || p.start != "98765" || p.state != "S" {
		t.Errorf("parseStat = %+v, %v", p, ok)
	}
	for _, bad := range []string{"", "42 S 1", "42 (x", ")(", "42 (x) S 1"} {
		if _, ok := parseStat(42, bad); ok {
			t.Errorf("parseStat(%q) is accepted", bad)
		}
	}
}

func TestParseMount(t *testing.T) {
	m, ok := parseMount("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue\n")
	if want := (mountLine{"36", "/mnt1", "/mnt2", "ext3", "/dev/root"}); !ok || m != want {
		t.Errorf("parseMount = %+v, %v, want %+v", m, ok, want)
	}
	for _, bad := range []string{"", "36 35 - x", "36 35 98:0 / / rw - ext4"} {
		if _, ok := parseMount(bad); ok {
			t.Errorf("parseMount(%q) is accepted", bad)
		}
	}
}

func TestLeakedLoopDevice(t *testing.T) {
	RequireRoot(t)
	losetup := RequireProgram(t, "losetup")
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	leaks := leaksOf(t, "loop device", nil, func() {
		out, err := exec.Command(losetup, "--find", "--show", image).Output()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = exec.Command(losetup, "--detach", strings.TrimSpace(string(out))).Run() })
	})
	one(t, leaks, image)
}
