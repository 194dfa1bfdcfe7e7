package badluck

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
	"golang.org/x/sys/unix"
)

// TestUnprivileged: what faces the network has no privilege, and cannot get any.
func TestUnprivileged(t *testing.T) {
	d, _ := start(t, newDir(t))
	if uid := statusNumber(t, d.PID(), "Uid", 10); uid == 0 {
		t.Error("the daemon runs as root")
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if caps := statusNumber(t, d.PID(), set, 16); caps != 0 && set != "CapBnd" {
			t.Errorf("the daemon has capabilities: %s %x", set, caps)
		}
	}
	if statusNumber(t, d.PID(), "NoNewPrivs", 10) != 1 {
		t.Error("the daemon can get new privileges")
	}
	if n := len(d.Find(daemon.Launcher)); n != 1 {
		t.Errorf("%d launchers, must be one", n)
	}
}

// TestLauncherGone: without a launcher and its keeper, the daemon reports that it cannot serve, and why.
// The next start of the daemon fixes that.
func TestLauncherGone(t *testing.T) {
	t.Parallel()
	d, c := start(t, newDir(t))
	before := ensure(t, c, "lives")
	for _, role := range []daemon.Role{daemon.Keeper, daemon.Launcher} {
		for _, pid := range d.Find(role) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	status, err := c.Status(timeLimit(t))
	if err != nil || status.Available || !strings.Contains(status.Reason, "launcher") {
		t.Errorf("status %+v, %v; must not be available, because of the launcher", status, err)
	}
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	if status, err := c.Status(timeLimit(t)); err != nil || !status.Available {
		t.Errorf("status %+v, %v; must be available again", status, err)
	}
	if after := ensure(t, c, "lives"); after.Box != before.Box {
		t.Errorf("the session has box %s, had %s", after.Box, before.Box)
	}
	run(t, c, "lives", "true")
}

// TestSecondDaemon: one daemon per state directory.
func TestSecondDaemon(t *testing.T) {
	dir := newDir(t)
	d, c := start(t, dir)
	before := ensure(t, c, "first")
	second := &daemon.Daemon{Config: d.Config}
	second.Dir = newDir(t)
	second.Args = []string{"--state-dir", d.State()}
	err := second.Start()
	if err == nil {
		t.Fatal("a second daemon runs on the same state directory")
	}
	if !strings.Contains(err.Error(), "process "+strconv.Itoa(d.PID())) {
		t.Errorf("the refusal does not name the first one: %v", err)
	}
	after := ensure(t, c, "first")
	if after.Box != before.Box || after.Recreated || after.Created {
		t.Errorf("the first daemon was disturbed: %+v", after)
	}
}

// TestCorruptDatabase: without its database the daemon finds the sessions again from
// the boxes that live.
func TestCorruptDatabase(t *testing.T) {
	damages := map[string]func(path string) error{
		"garbage":   func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("garbage "), 4096), 0o600) },
		"truncated": func(path string) error { return os.Truncate(path, 1000) },
		"removed":   os.Remove,
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			d, c := start(t, newDir(t))
			before := ensure(t, c, "survivor")
			run(t, c, "survivor", "echo kept > /workspace/file; echo kept > /tmp/file")
			p, err := c.Start(timeLimit(t), "survivor", apitypes.ProcessRequest{ID: "service", Argv: []string{"cat"}})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(d.State(), "boxd.db")); err != nil {
				t.Fatal(err)
			}
			if err := d.Start(); err != nil {
				t.Fatal(err)
			}
			aside, _ := filepath.Glob(filepath.Join(d.State(), "boxd.db.corrupt-*"))
			if name != "removed" && len(aside) != 1 {
				t.Errorf("databases kept aside: %q, must be one", aside)
			}
			after, err := c.Session(timeLimit(t), "survivor")
			if err != nil || after.Box != before.Box || after.State != "running" {
				t.Fatalf("the session is %+v, %v; its box was %s", after, err, before.Box)
			}
			if out := run(t, c, "survivor", "cat /workspace/file /tmp/file; kill -0 "+strconv.Itoa(p.PID)+" && echo alive"); out != "kept\nkept\nalive\n" {
				t.Errorf("in the box: %q", out)
			}
		})
	}
}

// TestDiskFull: what cannot be recorded is not done, nothing is left half-done, and all can
// be ended, by a daemon that was started on the full disk as well.
func TestDiskFull(t *testing.T) {
	t.Run("tmpfs", func(t *testing.T) {
		testDiskFull(t, func(dir string) error {
			return unix.Mount("boxd-badluck", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=32m,mode=711")
		})
	})
	t.Run("ext4", func(t *testing.T) { testDiskFull(t, mountImage(t, 48<<20)) })
}

// mountImage returns what mounts an ext4 file system of this size.
func mountImage(t *testing.T, size int64) func(dir string) error {
	mkfs := testutil.RequireProgram(t, "mkfs.ext4")
	image := filepath.Join(newDir(t), "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(mkfs, "-q", "-m", "0", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	return func(dir string) error {
		if out, err := exec.Command("mount", "-o", "loop,nosuid,nodev", image, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("mount: %w: %s", err, out)
		}
		return os.Chmod(dir, 0o711)
	}
}

func testDiskFull(t *testing.T, mount func(dir string) error) {
	dir := newDir(t)
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := mount(state); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(state, 0); err != nil {
			t.Error(err)
		}
	})
	d, c := daemon.ForTest(t, daemon.Config{Dir: dir, Runtime: filepath.Join(dir, "run")})
	before, err := c.Ensure(timeLimit(t), apitypes.SessionRequest{ID: "old"})
	testutil.RequireFeature(t, "id-mapped tmpfs", err)
	for _, id := range []string{"gone", "later"} {
		ensure(t, c, id)
		run(t, c, id, "echo kept > /workspace/file")
	}
	for _, id := range []string{"stopped", "removed"} {
		if _, err := c.Start(timeLimit(t), "old", apitypes.ProcessRequest{ID: id, Argv: []string{"sleep", "1000"}}); err != nil {
			t.Fatal(err)
		}
	}
	filler := filepath.Join(state, "filler")
	fill(t, filler)
	refused := func(what string, err error) {
		t.Helper()
		switch {
		case err == nil:
			t.Errorf("%s was begun, which could not be recorded", what)
		case strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "no space left on device") || !strings.Contains(err.Error(), "free space in "+state):
			t.Errorf("%s: the refusal is not one clear line: %v", what, err)
		}
	}
	full := func(removed string) {
		t.Helper()
		var err error
		for i := 0; err == nil && i < 1000; i++ { // until what is left of the last block is used up
			_, err = c.Exec(timeLimit(t), "old", apitypes.ExecRequest{Shell: "true"})
		}
		refused("a command", err)
		_, err = c.Ensure(timeLimit(t), apitypes.SessionRequest{ID: "new"})
		refused("a session", err)
		if _, err := c.Session(timeLimit(t), "new"); !client.IsCode(err, apitypes.CodeSessionNotFound) {
			t.Errorf("the session that could not be made: %v", err)
		}
		_, err = c.Start(timeLimit(t), "old", apitypes.ProcessRequest{ID: "new", Argv: []string{"true"}})
		refused("a process", err)
		if status, err := c.Status(timeLimit(t)); err != nil || status.Available || !strings.Contains(status.Reason, "free space in "+state) {
			t.Errorf("status %+v, %v", status, err)
		}
		if err := c.Remove(timeLimit(t), removed); err != nil {
			t.Errorf("removing a session: %v", err)
		}
		fill(t, filler+removed) // what that has given back
	}
	full("gone")
	if _, err := c.Stop(timeLimit(t), "old", "stopped", apitypes.StopRequest{}); err != nil {
		t.Errorf("stopping a process: %v", err)
	}
	if err := c.RemoveProcess(timeLimit(t), "old", "removed"); err != nil {
		t.Errorf("removing a process: %v", err)
	}
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatalf("the daemon does not start on a full disk: %v", err)
	}
	full("later")
	p, err := c.Process(timeLimit(t), "old", "stopped")
	if err != nil || p.State != "stopped" {
		t.Errorf("the process that was stopped: %+v, %v", p, err)
	}
	for _, name := range []string{filler, filler + "gone", filler + "later"} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if after := ensure(t, c, "old"); after.Box != before.Box {
		t.Errorf("the session has box %s, had %s", after.Box, before.Box)
	}
	run(t, c, "old", "true")
	ensure(t, c, "new")
	run(t, c, "new", "true")
	status, err := c.Status(timeLimit(t))
	if err != nil || !status.Available {
		t.Errorf("the status after all is well again: %+v, %v", status, err)
	}
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	report, err := audit.Verify(filepath.Join(state, "audit.log"), audit.Head{})
	if err != nil || len(report.Torn) > 0 {
		t.Errorf("the audit log: %+v, %v", report, err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
}

// TestStartOnFullDisk: daemon and launcher start on a full disk as often as they are killed,
// with the launcher's files on it, and the boxes go on. What cannot be made says where space
// is missing.
func TestStartOnFullDisk(t *testing.T) {
	t.Run("tmpfs", func(t *testing.T) {
		testStartOnFullDisk(t, func(dir string) error {
			return unix.Mount("boxd-badluck", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=32m,mode=711")
		})
	})
	t.Run("ext4", func(t *testing.T) { testStartOnFullDisk(t, mountImage(t, 48<<20)) })
}

func testStartOnFullDisk(t *testing.T, mount func(dir string) error) {
	dir := newDir(t)
	state := filepath.Join(dir, "state")
	if err := errors.Join(os.Mkdir(state, 0o711), mount(state)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(state, 0); err != nil {
			t.Error(err)
		}
	})
	d, c := start(t, dir)
	before, err := c.Ensure(timeLimit(t), apitypes.SessionRequest{ID: "old"})
	testutil.RequireFeature(t, "id-mapped tmpfs", err)
	var filled []string
	for _, round := range []string{"1", "2"} {
		filled = append(filled, filepath.Join(state, "filler"+round))
		fill(t, filled[len(filled)-1])
		if _, err := c.Ensure(timeLimit(t), apitypes.SessionRequest{ID: "new"}); err == nil || client.IsCode(err, apitypes.CodeInternal) || !strings.Contains(err.Error(), "free space in "+state) {
			t.Errorf("a session: %v", err)
		}
		if err := d.Kill(); err != nil {
			t.Fatal(err)
		}
		for _, role := range []daemon.Role{daemon.Keeper, daemon.Launcher} {
			for _, pid := range d.Find(role) {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
					t.Fatal(err)
				}
			}
		}
		waitFor(t, "the launcher to end", func() bool { return len(d.Find(daemon.Launcher)) == 0 })
		filled = append(filled, filepath.Join(state, "further"+round))
		fill(t, filled[len(filled)-1])
		if err := d.Start(); err != nil {
			t.Fatalf("start %s: %v", round, err)
		}
		if after, err := c.Session(timeLimit(t), "old"); err != nil || after.Box != before.Box {
			t.Errorf("start %s: the session is %+v, %v; its box was %s", round, after, err, before.Box)
		}
	}
	if err := c.Remove(timeLimit(t), "old"); err != nil {
		t.Errorf("removing a session: %v", err)
	}
	for _, name := range filled {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	ensure(t, c, "new")
	run(t, c, "new", "true")
}

// fill leaves no space in the file system of path.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		_, err := f.Write(make([]byte, size))
		if errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestBoxDies: the next use of a session whose box is gone gets a new box on the same workspace, and the
// answer says so.
func TestBoxDies(t *testing.T) {
	_, c := start(t, newDir(t))
	before := ensure(t, c, "mortal")
	run(t, c, "mortal", "echo kept > /workspace/file; echo gone > /tmp/file")
	if _, err := c.Start(timeLimit(t), "mortal", apitypes.ProcessRequest{ID: "service", Argv: []string{"cat"}}); err != nil {
		t.Fatal(err)
	}
	killBox(t, before.Box)
	waitFor(t, "the session and its process to fail", func() bool {
		s, serr := c.Session(timeLimit(t), "mortal")
		p, perr := c.Process(timeLimit(t), "mortal", "service")
		return serr == nil && perr == nil && s.State == "failed" && p.State == "failed"
	})
	p, err := c.Process(timeLimit(t), "mortal", "service")
	if err != nil || p.ExitCode != nil || p.Verdict != "box-lost" {
		t.Errorf("the process of a lost box: %+v, %v", p, err)
	}
	r, err := c.Exec(timeLimit(t), "mortal", apitypes.ExecRequest{Shell: "cat /workspace/file; cat /tmp/file"})
	if err != nil || !r.Recreated || string(r.Out()) != "kept\n" {
		t.Errorf("the next exec: %+v, %v", r, err)
	}
}

// killBox kills PID 1 of a box.
func killBox(t *testing.T, box string) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		names, _ := filepath.Glob(filepath.Join(root, "boxd", "*."+box, "init", "cgroup.kill"))
		for _, name := range names {
			if err := os.WriteFile(name, []byte("1"), 0); err == nil {
				return
			}
		}
	}
	t.Fatalf("no cgroup of box %s", box)
}
