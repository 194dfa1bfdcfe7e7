package badluck

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

// sized asks for session id with a workspace that has a hard limit.
func sized(t *testing.T, c *client.Client, id string, size, inodes int64) (apitypes.Session, error) {
	t.Helper()
	ask := apitypes.SessionSpec{WorkspaceSize: (*apitypes.Size)(&size)}
	if inodes > 0 {
		ask.WorkspaceInodes = &inodes
	}
	return c.Ensure(timeLimit(t), apitypes.SessionRequest{ID: id, SessionSpec: ask})
}

// volumeFiles lists what the launcher of d keeps of volumes that are workspaces.
func volumeFiles(t *testing.T, d *daemon.Daemon) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(d.State(), "volumes", "w-*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// loops counts loop devices whose file is in the state directory of d.
func loops(t *testing.T, d *daemon.Daemon) int {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENXIO) && !errors.Is(err, syscall.ENODEV) {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(b), d.State()+"/") {
			n++
		}
	}
	return n
}

// TestWorkspaceFull: a command that fills a workspace with a hard limit gets the verdict for that, and
// other sessions do not notice.
func TestWorkspaceFull(t *testing.T) {
	d, c := start(t, newDir(t))
	var ofOther int
	for _, id := range []string{"other", "full"} {
		ofOther = len(volumeFiles(t, d))
		s, err := sized(t, c, id, 8<<20, 100)
		testutil.RequireFeature(t, "volumes", err)
		if s.WorkspaceSize != 8<<20 || s.WorkspaceInodes != 100 || s.Unenforced != "" {
			t.Errorf("%+v", s)
		}
	}
	ensure(t, c, "plain")
	running, err := c.Start(timeLimit(t), "full", apitypes.ProcessRequest{ID: "service", Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	var before syscall.Statfs_t
	if err := syscall.Statfs(d.State(), &before); err != nil {
		t.Fatal(err)
	}
	full := func(what, line, want string) {
		t.Helper()
		r, err := c.Exec(timeLimit(t), "full", apitypes.ExecRequest{Shell: line})
		if err != nil || r.Status == 0 || r.Verdict != "disk-quota" || !(strings.Contains(r.Stderr, "No space left") || strings.Contains(r.Stderr, "quota exceeded")) {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
		if err == nil && !strings.Contains(r.Limit, want) {
			t.Errorf("%s: limit %q, want %q in it", what, r.Limit, want)
		}
	}
	full("bytes", "dd if=/dev/zero of=big bs=1M", "/workspace")
	full("full already", "dd if=/dev/zero of=more bs=1M", "/workspace")
	for _, id := range []string{"other", "plain"} {
		run(t, c, id, "dd if=/dev/zero of=some bs=64k count=50 2>/dev/null && echo ok > small && cat small")
	}
	if out := run(t, c, "full", "rm big more && echo again > file && cat file"); out != "again\n" {
		t.Errorf("after there is room again: %q", out)
	}
	full("files", "for i in $(seq 200); do : > f$i || exit 1; done", "/workspace")
	run(t, c, "other", "for i in $(seq 50); do : > f$i || exit 1; done")
	run(t, c, "full", "rm f*")
	if p, err := c.Process(timeLimit(t), "full", "service"); err != nil || p.State != "running" || p.PID != running.PID {
		t.Errorf("the process beside it: %+v, %v", p, err)
	}
	// It is not the state directory that has become full.
	var after syscall.Statfs_t
	if err := syscall.Statfs(d.State(), &after); err != nil {
		t.Fatal(err)
	}
	if used := int64(before.Bfree-after.Bfree) * after.Bsize; used > 64<<20 {
		t.Errorf("%d bytes less are free", used)
	}
	if err := c.Remove(timeLimit(t), "full"); err != nil {
		t.Fatal(err)
	}
	if names := volumeFiles(t, d); len(names) != ofOther || ofOther == 0 {
		t.Errorf("volumes of one session: %q, want %d files", names, ofOther)
	}
	if s, err := sized(t, c, "full", 8<<20, 100); err != nil || !s.Created {
		t.Errorf("%+v, %v", s, err)
	}
	if out := run(t, c, "full", "ls -A"); out != "" {
		t.Errorf("a new session has the files of the old one: %q", out)
	}
}

// TestLimitedWorkspaceIsLasting: a session with a hard limit comes through the end of
// daemon, launcher and box with its files and its limit.
func TestLimitedWorkspaceIsLasting(t *testing.T) {
	d, c := start(t, newDir(t))
	before, err := sized(t, c, "lasting", 8<<20, 0)
	testutil.RequireFeature(t, "volumes", err)
	run(t, c, "lasting", "echo kept > file")
	filled := func(when string) {
		t.Helper()
		r, err := c.Exec(timeLimit(t), "lasting", apitypes.ExecRequest{Shell: "cat file; dd if=/dev/zero of=big bs=64k count=1000; rm -f big"})
		if err != nil || !strings.HasPrefix(string(r.Out()), "kept\n") || !(strings.Contains(r.Stderr, "No space left") || strings.Contains(r.Stderr, "quota exceeded")) {
			t.Errorf("%s: %+v, %v", when, r, err)
		}
	}
	filled("at first")
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	filled("after the daemon died")
	for _, pid := range d.Find(daemon.Launcher) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	filled("after the launcher died")
	if s := ensure(t, c, "lasting"); s.Box != before.Box {
		t.Errorf("box %s, was %s", s.Box, before.Box)
	}
	killBox(t, before.Box)
	waitFor(t, "the session to fail", func() bool {
		s, err := c.Session(timeLimit(t), "lasting")
		return err == nil && s.State == "failed"
	})
	filled("in a new box")
	waitFor(t, "a launcher", func() bool { s, err := c.Status(timeLimit(t)); return err == nil && s.Available })
	if err := c.Remove(timeLimit(t), "lasting"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the end of the volume", func() bool { return len(volumeFiles(t, d)) == 0 && loops(t, d) == 0 })
}

// TestDaemonDiesWhileItMakesWorkspaces: whenever the daemon dies, no workspace without a session is left.
func TestDaemonDiesWhileItMakesWorkspaces(t *testing.T) {
	d, c := start(t, newDir(t))
	_, err := sized(t, c, "first", 2<<20, 0)
	testutil.RequireFeature(t, "volumes", err)
	perVolume := len(volumeFiles(t, d))
	if perVolume == 0 {
		t.Fatal("the volume is not where it is looked for")
	}
	for round := range 4 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 8 {
				// It dies under one of them.
				if _, err := sized(t, c, fmt.Sprintf("s%d-%d", round, i), 2<<20, 0); err != nil {
					return
				}
			}
		}()
		// A volume that appears is one whose box is not there yet.
		had := len(volumeFiles(t, d))
		for len(volumeFiles(t, d)) < had+(round+1)*perVolume {
			select {
			case <-done:
				t.Fatal("no workspaces appear")
			default:
			}
		}
		if err := d.Kill(); err != nil {
			t.Fatal(err)
		}
		<-done
		left := len(volumeFiles(t, d))
		if err := d.Start(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "one volume for each session", func() bool {
			list, err := c.Sessions(timeLimit(t))
			return err == nil && len(volumeFiles(t, d)) == perVolume*len(list) && loops(t, d) <= len(list)
		})
		t.Logf("round %d: %d files of volumes without a session", round, left-len(volumeFiles(t, d)))
		run(t, c, "first", "echo ok > file")
	}
	list, err := c.Sessions(timeLimit(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if err := c.Remove(timeLimit(t), s.ID); err != nil {
			t.Error(err)
		}
	}
	waitFor(t, "the end of all volumes", func() bool { return len(volumeFiles(t, d)) == 0 && loops(t, d) == 0 })
}

// TestProcessBeyondItsMemory: a process that has a limit of its own dies of it alone.
func TestProcessBeyondItsMemory(t *testing.T) {
	d, c := start(t, newDir(t))
	ensure(t, c, "lab")
	_, err := c.Start(timeLimit(t), "lab", apitypes.ProcessRequest{ID: "neighbour", Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	hungry := apitypes.ProcessRequest{ID: "hungry", Shell: "until [ -e go ]; do sleep 0.05; done; head -c 300m /dev/zero | tail", Memory: 64 << 20}
	if _, err := c.Start(timeLimit(t), "lab", hungry); err != nil {
		t.Fatal(err)
	}
	// The box keeps the limit even if the daemon that has set it is gone.
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	run(t, c, "lab", "touch go")
	waitFor(t, "the end of the process", func() bool {
		p, err := c.Process(timeLimit(t), "lab", "hungry")
		return err == nil && p.State == "exited"
	})
	p, err := c.Process(timeLimit(t), "lab", "hungry")
	if err != nil || p.Verdict != "oom" || p.Limit != "64 MiB" || p.Memory != 64<<20 {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := c.Process(timeLimit(t), "lab", "neighbour"); err != nil || p.State != "running" {
		t.Errorf("the process beside it: %+v, %v", p, err)
	}
	run(t, c, "lab", "head -c 100m /dev/zero | tail | wc -c") // more than the process had
}
