// Package services runs launcher services for tests, in directories of their own, and looks at
// their boxes from the host.
package services

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// Service is a launcher service with a state directory and a data directory of its own.
type Service struct {
	// State and Data are its directories, Socket the path of its socket.
	State, Data, Socket string

	t       testing.TB
	options native.LauncherOptions
}

// Start starts a service. Its directories and the program are filled in; what else o says holds.
// With the test it is stopped with its boxes, and the test fails if anything is left.
func Start(t testing.TB, o native.LauncherOptions) *Service {
	t.Helper()
	_, o.InitPath = testutil.BuildBinaries(t)
	s := &Service{State: StateDir(t), Data: filepath.Join(DataParent(t), "volumes"), t: t}
	o.StateDir, o.DataDir = s.State, s.Data
	s.options = o
	s.Start()
	t.Cleanup(s.stop)
	t.Cleanup(s.wantNothingMounted)
	return s
}

// Start starts the service unless it runs.
func (s *Service) Start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), boxtest.Patience)
	defer cancel()
	var err error
	if s.Socket, err = native.StartLauncher(ctx, s.options); err != nil {
		s.t.Fatal(err)
	}
}

// Connect connects to the service. The caller closes the client.
func (s *Service) Connect(ctx context.Context) (*native.Service, error) {
	return native.Connect(ctx, native.ServiceOptions{Socket: s.Socket})
}

// Stop stops the service, while no client is connected, with its boxes or without.
func (s *Service) Stop(boxes bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), boxtest.Patience)
	defer cancel()
	client, err := s.Connect(ctx)
	if err == nil {
		err = client.Stop(ctx, boxes)
	}
	if err != nil {
		s.t.Errorf("stopping the service: %v", err)
	}
	s.wantEnded()
}

// stop also ends a service that has lost its keeper. Nothing waits for containerd, so a launcher may
// leave the records of its last boxes there, and the next one has them deleted.
func (s *Service) stop() {
	s.Start()
	s.Stop(true)
	records := func() []string {
		left, _ := filepath.Glob(filepath.Join(s.State, "containerd", "*"))
		return left
	}
	if len(records()) > 0 {
		s.Start()
		boxtest.WaitUntil(s.t, "containerd has no record of a box", func() bool { return len(records()) == 0 })
		s.Stop(true)
	}
}

func (s *Service) wantEnded() {
	boxtest.WaitUntil(s.t, "the service has ended", func() bool {
		return len(Processes(s.t, "launcher", s.State))+len(Processes(s.t, "keeper", s.State)) == 0
	})
}

// wantNothingMounted: a launcher soon has no volume mounted.
func (s *Service) wantNothingMounted() {
	for _, pid := range Processes(s.t, "launcher", s.State) {
		boxtest.WaitUntil(s.t, "the launcher has no volume mounted", func() bool {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
			return !strings.Contains(string(text), "/private/volumes/")
		})
	}
}

// StateDir creates a state directory. PID 1 of a box passes through it.
func StateDir(t testing.TB) string {
	t.Helper()
	testutil.RequireRoot(t)
	dir := testutil.ReachableDir(t, "/run")
	t.Cleanup(func() {
		if err := LeftIn(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// LeftIn returns an error that names what is left in a state directory, besides what the next
// launcher uses again.
func LeftIn(dir string) error {
	var left []error
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		switch rel, _ := filepath.Rel(dir, path); rel {
		case ".", "lock", "ids", "spare", "containerd": // the last one empty: its content would be listed
		default:
			left = append(left, fmt.Errorf("left in the state directory: %q", rel))
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		left = append(left, err)
	}
	return errors.Join(left...)
}

// DataParent is where a data directory can be made. It is removed before loop devices of
// files in it are looked for.
func DataParent(t testing.TB) string {
	t.Helper()
	testutil.RequireRoot(t)
	dir, err := os.MkdirTemp("", "boxd-test-data-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		boxtest.WaitUntil(t, "no loop device is left", func() bool { return len(Loops(t, dir)) == 0 })
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Loops are the files below dir that are, or were, behind loop devices.
func Loops(t testing.TB, dir string) (files []string) {
	t.Helper()
	found, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		text, _ := os.ReadFile(path) // freed meanwhile
		if file := strings.TrimSpace(string(text)); strings.HasPrefix(file, dir+"/") {
			files = append(files, file)
		}
	}
	return files
}

// Processes are the pids of the launcher or keeper of a state directory.
func Processes(t testing.TB, role, dir string) (pids []int) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		args, _ := os.ReadFile(path) // it may be gone
		if bytes.HasPrefix(args, []byte("boxd-init\x00"+role+"\x00")) && bytes.Contains(args, []byte("\x00"+dir+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// KillLauncher ends the launcher of a state directory the hard way.
func KillLauncher(t testing.TB, dir string) {
	t.Helper()
	boxtest.WaitUntil(t, "there is a launcher", func() bool { return len(Processes(t, "launcher", dir)) > 0 })
	for _, pid := range Processes(t, "launcher", dir) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// KillAll kills the launcher or keeper of a state directory and waits for its end: until then
// it may hold locks, although it has no command line any more.
func KillAll(t testing.TB, role, dir string) {
	t.Helper()
	for _, pid := range Processes(t, role, dir) {
		process, err := linux.PidfdOpen(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer process.Close()
		if err := linux.PidfdSignal(process, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if ended, err := linux.HasExited(process, boxtest.Patience); !ended || err != nil {
			t.Fatalf("%s %d has not ended after %v: %v", role, pid, boxtest.Patience, err)
		}
	}
}

// WorkDirs are the cgroups of the commands of a box, on cgroup2.
func WorkDirs(t testing.TB, id string) []string {
	t.Helper()
	return cgroupDirs(t, id, "work/*")
}

// Commands are the pids, on the host, of what runs in a box besides PID 1. The kernel tells, not
// the box.
func Commands(t testing.TB, id string) []int {
	t.Helper()
	return pidsIn(t, WorkDirs(t, id))
}

// Init is PID 1 of a box, as the host knows it.
func Init(t testing.TB, id string) []int {
	t.Helper()
	return pidsIn(t, cgroupDirs(t, id, "init"))
}

// cgroupDirs are cgroups of a box in the cgroup2 tree, which is one of two.
func cgroupDirs(t testing.TB, id, within string) (dirs []string) {
	t.Helper()
	// A box of a pool has cgroups of another name, see the launcher's pool.go.
	born, err := filepath.Glob("/run/*/run-*/boxes/" + id + "/born")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range born {
		if name, err := os.Readlink(link); err == nil {
			id = name
		}
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		found, err := filepath.Glob(filepath.Join(root, "boxd", "*."+id, within, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			dirs = append(dirs, filepath.Dir(f))
		}
	}
	return dirs
}

func pidsIn(t testing.TB, dirs []string) (pids []int) {
	t.Helper()
	for _, dir := range dirs {
		content, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")) // it may be gone meanwhile
		for _, word := range strings.Fields(string(content)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}
