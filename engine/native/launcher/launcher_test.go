package launcher

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
)

// newTestLauncher returns a launcher with an instance and no kernel objects.
func newTestLauncher(t *testing.T) *Launcher {
	t.Helper()
	state := t.TempDir()
	i := &instance{state: state, dir: filepath.Join(state, "run-x")}
	if err := os.MkdirAll(i.boxes(), 0o700); err != nil {
		t.Fatal(err)
	}
	return &Launcher{instance: i, boxes: map[string]*box{}, works: newWorks()}
}

func newTestBox(id string) *box {
	b := &box{id: id}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// TestFailedRemovalStaysOnRecord: the next launcher has to find what this one
// could not remove.
func TestFailedRemovalStaysOnRecord(t *testing.T) {
	for _, c := range []struct {
		name   string
		lease  string // to be released, in the state directory
		remain bool
	}{{"good", "lease", false}, {"bad", "missing", true}} {
		t.Run(c.name, func(t *testing.T) {
			l := newTestLauncher(t)
			if err := os.WriteFile(filepath.Join(l.instance.state, "lease"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			b := newTestBox("b")
			b.lease = &idLease{path: filepath.Join(l.instance.state, c.lease)}
			l.boxes["b"] = b
			if err := l.handleRemove([]byte(`{"id":"b"}`)); (err != nil) != c.remain {
				t.Errorf("removing: %v", err)
			}
			if err := l.close(); err != nil {
				t.Errorf("closing: %v", err)
			}
			if _, err := os.Stat(l.instance.dir); (err == nil) != c.remain {
				t.Errorf("instance directory after close: %v", err)
			}
		})
	}
}

func TestCgroupName(t *testing.T) {
	if got := cgroupName("/run/boxd/run-abc", "b1"); got != "abc.b1" {
		t.Error(got)
	}
}

// TestStillThere: a zombie keeps its number, a process that was reaped does not.
func TestStillThere(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := linux.PidfdOpen(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	b := &box{pidfd: pidfd}
	if err := errors.Join(b.stillThere(), cmd.Process.Kill(), b.stillThere()); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if b.stillThere() == nil {
		t.Error("a process that was waited for is still there")
	}
}

// TestLockPatiently: the wait for a launcher that hangs with the lock ends with an error that
// names the lock.
func TestLockPatiently(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := lockPatiently(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockPatiently(path, 0); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("taking a lock that is held: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { held.Close() })
	f, err := lockPatiently(path, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// A change that replaces a mount, repeated after it was carried out, leaves the new mount.
func TestReplacementAgain(t *testing.T) {
	b := &box{id: "b"}
	b.init()
	fresh := engine.Mount{Source: "/srv/new", Target: "/data"}
	c := engine.Change{Detach: []string{"/data"}, Attach: []engine.Mount{fresh}}
	for _, s := range []struct {
		there          mounted
		detach, attach int
	}{
		{mounted{Mount: fresh, ID: 7}, 0, 0},
		{mounted{Mount: engine.Mount{Source: "/srv/old", Target: "/data"}, ID: 7}, 1, 1},
		{mounted{Mount: fresh, ID: pending}, 1, 1},
	} {
		b.mounted["/data"] = s.there
		if got := b.undone(c); len(got.Detach) != s.detach || len(got.Attach) != s.attach {
			t.Errorf("with %+v: %+v", s.there, got)
		}
	}
	delete(b.mounted, "/data")
	if got := b.undone(c); len(got.Detach) != 0 || len(got.Attach) != 1 {
		t.Errorf("detached already: %+v", got)
	}
}
