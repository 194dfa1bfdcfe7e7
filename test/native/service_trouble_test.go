package native

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/leftover"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// shortKeeper is a keeper whose launchers get few descriptors from now on.
type shortKeeper struct {
	cmd    *exec.Cmd
	stderr *bufio.Scanner
}

// startShortKeeper starts a service. Its soft limit of descriptors is the hard one: then
// Go does not raise it, nor give a child another.
func startShortKeeper(t *testing.T, dir string) *shortKeeper {
	t.Helper()
	k := &shortKeeper{cmd: exec.Command("sh", "-c", `ulimit -n 1000 && exec "$@"`, "sh", initPath(t), "keeper", "--state-dir", dir, "--client", "0")}
	stderr, err := k.cmd.StderrPipe()
	if err == nil {
		err = k.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	k.stderr = bufio.NewScanner(stderr)
	return k
}

// fail lets launchers have few descriptors until one has given up, and ends the service.
func (k *shortKeeper) fail(t *testing.T, dir string, few int) {
	t.Helper()
	limit := unix.Rlimit{Cur: uint64(few), Max: uint64(few)}
	if err := unix.Prlimit(k.cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	killLauncher(t, dir)
	failed := false
	for !failed && k.stderr.Scan() {
		line := k.stderr.Text()
		// The first one was killed.
		failed = strings.Contains(line, "the launcher ended") && !strings.Contains(line, "killed")
		// The launcher's own probe box may not have been finished.
		if strings.Contains(line, "is removed") && !strings.Contains(line, `box "probe-`) {
			t.Fatalf("%d descriptors: %s", few, line)
		}
	}
	if !failed {
		t.Errorf("%d descriptors: the keeper has given up", few)
	}
	_ = k.cmd.Process.Kill()
	for _, pid := range serviceProcesses(t, "launcher", dir) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for k.stderr.Scan() {
	}
	_ = k.cmd.Wait()
}

// TestServiceShortage: a launcher that has not enough descriptors to start, or to take
// over its boxes, leaves them alone, and the next one that has takes them over.
func TestServiceShortage(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	dir := stateDir(t)
	k := startShortKeeper(t, dir)
	t.Cleanup(func() { _ = k.cmd.Wait() })
	t.Cleanup(func() { stopService(t, dir, 0) })
	waitUntil(t, "there is a launcher", func() bool { return len(serviceProcesses(t, "launcher", dir)) > 0 })
	s := connect(t, filepath.Join(dir, "launcher.sock"))
	empty := openFiles(t, serviceProcesses(t, "launcher", dir)[0])
	ids := []string{"a", "b", "c", "d", "e", "f"}
	var pids []string
	for _, id := range ids {
		pids = append(pids, initPIDs(t, createLive(t, s, engine.Spec{ID: id}))...)
	}
	limits := []int{3, empty + 12}
	if testutil.Full() {
		limits = []int{3, 16, empty, empty + 12}
	}
	for _, few := range limits {
		k.fail(t, dir, few)
		k = startShortKeeper(t, dir)
		waitUntil(t, "a launcher serves", func() bool { return s.Health(t.Context()) == nil })
		if got, err := s.Boxes(t.Context()); err != nil || strings.Join(got, " ") != strings.Join(ids, " ") {
			t.Fatalf("%d descriptors: boxes afterwards: %q, %v", few, got, err)
		}
		for _, pid := range pids {
			if _, err := os.Stat("/proc/" + pid); err != nil {
				t.Errorf("%d descriptors: PID 1 of a box: %v", few, err)
			}
		}
	}
	go func() { // it must not be held up
		for k.stderr.Scan() {
		}
	}()
}

// inLauncher runs a program in the mount namespace of the launcher.
func inLauncher(t *testing.T, dir string, args ...string) {
	t.Helper()
	testutil.RequireProgram(t, "nsenter")
	pid := strconv.Itoa(serviceProcesses(t, "launcher", dir)[0])
	if out, err := exec.Command("nsenter", append([]string{"-t", pid, "-m"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
}

// boxDir is the directory of a box of the service.
func boxDir(t *testing.T, dir, id string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "run-*", "boxes", id))
	if err != nil || len(found) != 1 {
		t.Fatalf("directories of box %q: %q, %v", id, found, err)
	}
	return found[0]
}

// TestServiceRemovesAgain: a box that could not be removed is not forgotten: it can be
// removed again.
func TestServiceRemovesAgain(t *testing.T) {
	s, dir := newService(t)
	b := createLive(t, s, engine.Spec{ID: "sticky"})
	obstacle := filepath.Join(boxDir(t, dir, "sticky"), "kept")
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	inLauncher(t, dir, "mount", "--bind", obstacle, obstacle)
	if err := b.Remove(t.Context()); err == nil {
		t.Error("removed a box whose directory cannot be removed")
	}
	if err := s.Discard(t.Context(), "sticky"); err == nil {
		t.Error("removed a box whose directory still cannot be removed")
	}
	inLauncher(t, dir, "umount", obstacle)
	if err := s.Discard(t.Context(), "sticky"); err != nil {
		t.Error(err)
	}
	if ids, err := s.Boxes(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("boxes: %q, %v", ids, err)
	}
	if leases, err := os.ReadDir(filepath.Join(dir, "ids")); err != nil || len(leases) > 0 {
		t.Errorf("id ranges in use: %v, %v", leases, err)
	}
}

// TestServiceLeftover: a box that can neither be taken over nor removed is tried again
// when it is due, and not by each launcher of the service. A later box of its id is none
// of its business.
func TestServiceLeftover(t *testing.T) {
	testutil.Long(t)
	s, dir := newService(t)
	createLive(t, s, engine.Spec{ID: "sticky"})
	path := boxDir(t, dir, "sticky")
	instance := filepath.Base(filepath.Dir(filepath.Dir(path)))
	obstacle := filepath.Join(path, "obstacle")
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("boxd-test", obstacle, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(obstacle, unix.MNT_DETACH) }) // where the test failed
	if err := os.Remove(filepath.Join(path, "box.json")); err != nil {
		t.Fatal(err) // without it nobody takes the box over
	}
	restart := func() *leftover.Record {
		killLauncher(t, dir)
		if _, err := s.Boxes(t.Context()); err != nil { // the answer of the next launcher
			t.Fatal(err)
		}
		return leftover.Read(dir, instance)
	}
	due := func(r *leftover.Record) {
		r.Next = time.Time{}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(leftover.Path(dir, instance), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for try := range 2 {
		for range 2 { // the second one does not try
			if r := restart(); r == nil || r.Tries != try+1 || !strings.Contains(r.Reasons["sticky"], "device or resource busy") {
				t.Fatalf("after %d tries: %+v", try+1, r)
			}
		}
		due(leftover.Read(dir, instance))
	}
	if err := unix.Unmount(obstacle, 0); err != nil {
		t.Fatal(err)
	}
	if r := restart(); r != nil {
		t.Errorf("the box can be removed, and is on record: %+v", r)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the box is still there")
	}
	// A record of an earlier box does not keep a later one from being taken over.
	b := createLive(t, s, engine.Spec{ID: "sticky"})
	if err := leftover.Note(dir, instance, map[string]error{"sticky": unix.EBUSY}); err != nil {
		t.Fatal(err)
	}
	if r := restart(); r != nil {
		t.Errorf("a box that was taken over is on record: %+v", r)
	}
	wantOutput(t, b, "echo there", "there\n")
}

// TestServiceFullStateDir: a mount that cannot be put on record is not made. The next
// launcher would not know of it.
func TestServiceFullStateDir(t *testing.T) {
	testutil.Long(t)
	s, dir := newService(t)
	b := createLive(t, s, engine.Spec{ID: "full"})
	source, m := workspace(t, 0, 0)
	if err := os.WriteFile(filepath.Join(source, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(boxDir(t, dir, "full"), "box.json")
	if err := os.Mkdir(record+".new", 0o700); err != nil { // no file can be written there
		t.Fatal(err)
	}
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); err == nil {
		t.Error("attached a mount that is not on record")
	}
	wantOutput(t, b, "ls "+m.Target, "")
	if list := b.Spec().Mounts; len(list) > 0 {
		t.Errorf("mounts: %v", list)
	}
	if err := os.Remove(record + ".new"); err != nil {
		t.Fatal(err)
	}
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); err != nil {
		t.Error(err)
	}
	wantOutput(t, b, "ls "+m.Target, "f\n")
}

// TestServiceSecrets: what a box was made of may be secret: a session keeps its environment in labels.
func TestServiceSecrets(t *testing.T) {
	s, dir := newService(t)
	createLive(t, s, engine.Spec{ID: "secret", Labels: map[string]string{"session": "TOKEN=secret"}})
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%q has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A launcher that cannot take a connection, for want of descriptors, takes the next ones.
func TestShortageAtConnecting(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	socket := startService(t, dir, 0)
	s := connect(t, socket)
	createLive(t, s, engine.Spec{})
	launcher := serviceProcesses(t, "launcher", dir)[0]
	var old unix.Rlimit
	if err := unix.Prlimit(launcher, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(launcher, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := native.Connect(ctx, native.ServiceOptions{Socket: socket}); err == nil {
		t.Error("connected without a descriptor")
	}
	if err := unix.Prlimit(launcher, unix.RLIMIT_NOFILE, &old, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Health(t.Context()); err != nil {
		t.Errorf("after the shortage: %v", err)
	}
	if now := serviceProcesses(t, "launcher", dir); len(now) != 1 || now[0] != launcher {
		t.Errorf("launchers %v, was %d", now, launcher)
	}
}
