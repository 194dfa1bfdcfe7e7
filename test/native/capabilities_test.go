package native

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// trial is a client of a launcher service that may lack something.
type trial struct {
	*native.Service
	t      *testing.T
	ctx    context.Context
	owned  string // a directory of user 1000, 0700, with a file in it
	rooted string // one of root's
	box    engine.LiveBox
}

// operations are what a launcher is for, in an order in which each can use what the ones
// before have made.
var operations = []struct {
	name string
	do   func(*trial) error
}{
	{"create", func(s *trial) (err error) {
		s.box, err = s.Create(s.ctx, engine.Spec{ID: "one"})
		return err
	}},
	{"run a command", func(s *trial) error { return s.says("echo on", "on\n") }},
	{"mount a directory of a user", func(s *trial) error {
		m := engine.Mount{Source: s.owned, Target: "/owned"}
		if err := s.box.Update(s.ctx, engine.Change{Attach: []engine.Mount{m}}); err != nil {
			return err
		}
		return s.says("cat /owned/f && echo more > /owned/g && stat -c %u /owned/g", "text0\n")
	}},
	{"mount a directory of root's", func(s *trial) error {
		m := engine.Mount{Source: s.rooted, Target: "/rooted"}
		if err := s.box.Update(s.ctx, engine.Change{Attach: []engine.Mount{m}}); err != nil {
			return err
		}
		return s.says("echo more > /rooted/g && stat -c %u /rooted/g", "0\n")
	}},
	{"mount in a mount", func(s *trial) error {
		m := engine.Mount{Source: s.rooted, Target: "/owned/made/here"}
		if err := s.box.Update(s.ctx, engine.Change{Attach: []engine.Mount{m}}); err != nil {
			return err
		}
		return s.says("cat /owned/made/here/g", "more\n")
	}},
	{"detach", func(s *trial) error {
		if err := s.box.Update(s.ctx, engine.Change{Detach: []string{"/owned/made/here", "/rooted"}}); err != nil {
			return err
		}
		return s.says("ls /rooted | wc -l", "0\n")
	}},
	{"terminal", func(s *trial) error {
		r, err := engine.Run(s.ctx, s.box, engine.Command{Args: []string{"sh", "-c", "test -t 0"}, TTY: &engine.WindowSize{Rows: 24, Cols: 80}})
		if err == nil && r.ExitCode != 0 {
			err = fmt.Errorf("%+v", r)
		}
		return err
	}},
	{"kill a command", func(s *trial) error {
		r, err := engine.Run(s.ctx, s.box, engine.Command{Args: []string{"sh", "-c", "sleep 1000 & sleep 1000"}, Timeout: 100 * time.Millisecond})
		if err == nil && r.Verdict != engine.TimedOut {
			err = fmt.Errorf("%+v", r)
		}
		return err
	}},
	{"managed process", func(s *trial) error {
		p, err := s.box.Launch(s.ctx, engine.Managed{Key: "p", Args: []string{"/bin/sh", "-c", "exec sleep 1000"}})
		if err != nil {
			return err
		}
		return p.Control().Terminate(s.ctx, unix.SIGTERM)
	}},
	{"coarse timers", func(s *trial) error {
		for _, pid := range initPIDs(s.t, s.box) {
			threads, err := filepath.Glob("/proc/" + pid + "/task/*")
			if err != nil {
				return err
			}
			for _, thread := range threads {
				if text, _ := os.ReadFile("/proc/" + filepath.Base(thread) + "/timerslack_ns"); string(text) == "2000000\n" {
					return nil
				}
			}
		}
		return errors.New("no thread of the agent has coarse timers")
	}},
	{"volume", func(s *trial) error {
		return s.MakeVolume(s.ctx, engine.Volume{Name: "v", Bytes: 8 << 20})
	}},
	{"open a volume", func(s *trial) error {
		f, err := s.OpenDirectory(s.ctx, engine.Directory{Volume: "v", Path: "/"})
		if err != nil {
			return err
		}
		return f.Close()
	}},
	{"mount a volume", func(s *trial) error {
		m := engine.Mount{Volume: "v", Source: "/", Target: "/v"}
		if err := s.box.Update(s.ctx, engine.Change{Attach: []engine.Mount{m}}); err != nil {
			return err
		}
		return s.says("echo x > /v/f && cat /v/f", "x\n")
	}},
	{"make a directory", func(s *trial) error {
		f, err := s.OpenDirectory(s.ctx, engine.Directory{Path: s.owned + "/a/b", Within: s.owned, Make: true})
		if err != nil {
			return err
		}
		return f.Close()
	}},
	{"second box with its limits", func(s *trial) error {
		b, err := s.Create(s.ctx, engine.Spec{ID: "two", Limits: engine.Limits{Memory: 64 << 20, PIDs: 20}})
		if err != nil {
			return err
		}
		if err := b.Update(s.ctx, engine.Change{Limits: &engine.Limits{Memory: 32 << 20}}); err != nil {
			return err
		}
		return b.Remove(s.ctx)
	}},
	{"remove", func(s *trial) error { return s.box.Remove(s.ctx) }},
	{"remove a volume", func(s *trial) error { return s.RemoveVolume(s.ctx, "v") }},
}

func (s *trial) says(script, want string) error {
	var out, errs strings.Builder
	r, err := engine.Run(s.ctx, s.box, engine.Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &errs})
	if err == nil && (r.ExitCode != 0 || out.String() != want) {
		err = fmt.Errorf("%q: %+v, %q %q", script, r, out.String(), errs.String())
	}
	return err
}

// firstFailure runs a launcher service for user client whose bounding set lacks capability lacks
// (-1: none), and returns the first operation that fails, and how.
func firstFailure(t *testing.T, client, lacks int) (operation string, err error) {
	t.Helper()
	_, initPath := testutil.BuildBinaries(t)
	dir, data := stateDir(t), filepath.Join(dataParent(t), "volumes")
	owned, rooted := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.WriteFile(owned+"/f", []byte("text"), 0o600), os.Chown(owned+"/f", 1000, 1000),
		os.Chown(owned, 1000, 1000), os.Chmod(owned, 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(initPath, "keeper", "--state-dir", dir, "--client", strconv.Itoa(client), "--data-dir", data, "--mount-root", owned, "--mount-root", rooted)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	err = linux.OnThrowawayThread(func() error { // what it starts has its bounding set
		if lacks >= 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(lacks), 0, 0, 0); err != nil {
				return err
			}
		}
		return cmd.Start()
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	starting, started := context.WithCancelCause(ctx)
	defer started(nil)
	var reading sync.WaitGroup
	reading.Go(func() {
		lines, last := bufio.NewScanner(stderr), "nothing"
		for lines.Scan() {
			if last = lines.Text(); strings.Contains(last, "the launcher ended") {
				started(errors.New(last)) // and would be for ever
			}
		}
		started(errors.New(last))
	})
	defer func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		reading.Wait()
		_ = cmd.Wait()
		stopService(t, dir, client) // what this one could not remove, a whole one can
	}()
	s := &trial{t: t, ctx: ctx, owned: owned, rooted: rooted}
	if s.Service, err = native.Connect(starting, native.ServiceOptions{Socket: filepath.Join(dir, "launcher.sock")}); err != nil {
		return "start", fmt.Errorf("%w: %w", err, context.Cause(starting))
	}
	defer s.Close()
	if lacks < 0 {
		wantBounded(t, serviceProcesses(t, "launcher", dir)[0])
	}
	for _, o := range operations {
		if err := o.do(s); err != nil {
			return o.name, err
		}
	}
	return "", nil
}

// needs says which operation is the first to fail without each capability of the launcher.
var needs = map[int]string{
	unix.CAP_CHOWN:        "start", // its socket is the client's
	unix.CAP_DAC_OVERRIDE: "create",
	unix.CAP_FOWNER:       "create",
	unix.CAP_KILL:         "create", // PID 1 is waited for and signalled
	unix.CAP_SETGID:       "create",
	unix.CAP_SETUID:       "create",
	unix.CAP_SETPCAP:      "start", // it could not give up the others
	unix.CAP_NET_ADMIN:    "create",
	unix.CAP_SYS_CHROOT:   "create",
	unix.CAP_SYS_PTRACE:   "create",
	unix.CAP_SYS_ADMIN:    "start",
	unix.CAP_SYS_NICE:     "coarse timers",
	unix.CAP_MKNOD:        "create", // it makes the /dev of boxes
	unix.CAP_SETFCAP:      "make a directory",
}

// wantBounded checks that all threads of a process have the capabilities of needs and no
// others.
func wantBounded(t *testing.T, pid int) {
	t.Helper()
	var want uint64
	for c := range needs {
		want |= 1 << c
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("threads of the launcher: %v, %v", tasks, err)
	}
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(text)) {
			name, set, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			if name == "NoNewPrivs" && set != "1" {
				t.Errorf("%s: NoNewPrivs is %s", path, set)
			}
			if got, err := strconv.ParseUint(set, 16, 64); strings.HasPrefix(name, "Cap") && (err != nil || got&^want != 0 || name == "CapBnd" && got != want) {
				t.Errorf("%s: %s is %s, want %016x", path, name, set, want)
			}
		}
	}
}

// TestLauncherCapabilities: the launcher has given up the capabilities that it does not need, and needs the
// others: without each of them an operation fails.
func TestLauncherCapabilities(t *testing.T) {
	testutil.Long(t)
	testutil.RequireRoot(t)
	for _, client := range []int{0, strangerUID} {
		if operation, err := firstFailure(t, client, -1); err != nil {
			t.Fatalf("with all of them, for user %d: %s: %v", client, operation, err)
		}
	}
	for lacks, want := range needs {
		t.Run(strconv.Itoa(lacks), func(t *testing.T) {
			client := strangerUID
			if lacks == unix.CAP_SETFCAP {
				client = 0 // root is in the id maps of its views
			}
			if operation, err := firstFailure(t, client, lacks); operation != want {
				t.Errorf("without capability %d the first operation to fail is %q (%v), want %q", lacks, operation, err, want)
			}
		})
	}
}
