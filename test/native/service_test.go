package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// startService runs a launcher service for uid on dir. With the test it is stopped and
// its boxes are removed.
func startService(t testing.TB, dir string, uid int) (socket string) {
	t.Helper()
	socket, err := tryStartService(t, dir, uid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopService(t, dir, uid) })
	return socket
}

func tryStartService(t testing.TB, dir string, uid int) (string, error) {
	t.Helper()
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return native.StartLauncher(ctx, native.LauncherOptions{InitPath: initPath, StateDir: dir, ClientUID: uid, ClientGID: uid})
}

// stopService also ends one that lost its keeper.
func stopService(t testing.TB, dir string, uid int) {
	t.Helper()
	socket, err := tryStartService(t, dir, uid)
	if err == nil {
		err = stopAt(socket)
	}
	if err != nil {
		t.Errorf("stopping the service: %v", err)
	}
	waitUntil(t, "the service has ended", func() bool {
		return len(serviceProcesses(t, "launcher", dir)) == 0 && len(serviceProcesses(t, "keeper", dir)) == 0
	})
}

func stopAt(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
	if err != nil {
		return err
	}
	return s.Stop(ctx, true)
}

// waitUntil waits for what nothing announces.
func waitUntil(t testing.TB, what string, is func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for pause := time.Millisecond; !is(); pause = min(2*pause, 100*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
		time.Sleep(pause)
	}
}

// serviceProcesses are the pids of the launcher or keeper of a state directory.
func serviceProcesses(t testing.TB, role, dir string) (pids []int) {
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

// connect is a client of the service that ends with the test.
func connect(t testing.TB, socket string) *native.Service {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newService is a service with a state directory of its own, and a client.
func newService(t testing.TB) (s *native.Service, dir string) {
	t.Helper()
	dir = stateDir(t)
	return connect(t, startService(t, dir, 0)), dir
}

func createLive(t testing.TB, s *native.Service, spec engine.Spec) engine.LiveBox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := s.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func adoptLive(t testing.TB, s *native.Service, id string) engine.LiveBox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := s.Adopt(ctx, id, engine.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestServiceClientsComeAndGo: the next client gets the box of the previous one, with its files and its PID 1, but
// without the commands that the previous client left running.
func TestServiceClientsComeAndGo(t *testing.T) {
	testutil.Long(t)
	s, dir := newService(t)
	_, m := workspace(t, 0, 0)
	b := createLive(t, s, engine.Spec{ID: "live-one", Labels: map[string]string{"for": "me"}})
	first := initPIDs(t, b)
	wantOutput(t, b, "echo kept > /tmp/f", "")
	// The box cannot use the directory through which the launcher creates mount points.
	wantOutput(t, b, "ls /dev/.host 2>/dev/null || touch /dev/.host/top/root/x 2>/dev/null || mv /dev/.host /dev/x 2>/dev/null || echo closed", "closed\n")
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}, Limits: &engine.Limits{PIDs: 77}}); err != nil {
		t.Fatal(err)
	}
	background := shell("sleep 1000 & echo")
	background.KeepBackground = true
	want(t, run(t, b, background), engine.Exited, 0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = connect(t, filepath.Join(dir, native.SocketName))
	b = adoptLive(t, s, "live-one")
	if again := initPIDs(t, b); len(first) != 1 || strings.Join(first, " ") != strings.Join(again, " ") {
		t.Errorf("PID 1 was %q and is %q", first, again)
	}
	if n := len(commands(t, b)); n != 1 {
		t.Errorf("%d processes after adoption, not the one in the background", n)
	}
	wantOutput(t, b, "cat /tmp/f", "kept\n")
	spec := b.Spec()
	if spec.Limits.PIDs != 77 || len(spec.Mounts) != 1 || spec.Mounts[0] != m || spec.Labels["for"] != "me" {
		t.Errorf("spec after adoption: %+v", spec)
	}
	if err := b.Update(t.Context(), engine.Change{Detach: []string{m.Target}}); err != nil {
		t.Error(err)
	}
	if _, err := s.Adopt(t.Context(), "none", engine.Spec{}); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("adopting what there is not: %v", err)
	}
}

// TestServiceLauncherKilled: boxes, and commands under way, notice nothing; the next
// launcher goes on with them.
func TestServiceLauncherKilled(t *testing.T) {
	s, dir := newService(t)
	for _, c := range []struct {
		name string
		spec engine.Spec
	}{{"read-only root", engine.Spec{}}, {"writable root", engine.Spec{WritableRoot: true}}} {
		t.Run(c.name, func(t *testing.T) {
			b, err := s.Create(t.Context(), c.spec)
			if err != nil {
				if c.spec.WritableRoot {
					t.Skip(err) // the host's file system cannot be id-mapped
				}
				t.Fatal(err)
			}
			_, m := workspace(t, 0, 0)
			m.Target = "/made/for/this"
			p := begin(t, b, shell("read x; echo $x; exit 7"))
			killLauncher(t, dir)
			if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); err != nil {
				t.Fatal(err)
			}
			wantOutput(t, b, "echo 1 > /made/for/this/f; cat /made/for/this/f", "1\n")
			killLauncher(t, dir)
			if err := b.Update(t.Context(), engine.Change{Detach: []string{m.Target}, Limits: &engine.Limits{Memory: 99 << 20}}); err != nil {
				t.Fatal(err)
			}
			tty := shell("test -t 0 && echo terminal")
			tty.TTY = &engine.WindowSize{Rows: 9, Cols: 9}
			if o := run(t, b, tty); !strings.Contains(o.stdout, "terminal") {
				t.Errorf("no terminal: %q", o.stdout)
			}
			if r := wait(t, p); r.ExitCode != 7 {
				t.Errorf("the command under way ended with %+v", r)
			}
			if err := b.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if ids, err := s.Boxes(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("boxes in the end: %v, %v", ids, err)
	}
}

// killLauncher ends the launcher of dir the hard way.
func killLauncher(t testing.TB, dir string) {
	t.Helper()
	waitUntil(t, "there is a launcher", func() bool { return len(serviceProcesses(t, "launcher", dir)) > 0 })
	for _, pid := range serviceProcesses(t, "launcher", dir) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// killAll kills the launcher or keeper of a state directory and waits for its end: until then
// it may hold locks, although it has no command line any more.
func killAll(t testing.TB, role, dir string) {
	t.Helper()
	for _, pid := range serviceProcesses(t, role, dir) {
		process, err := linux.PidfdOpen(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer process.Close()
		if err := linux.PidfdSignal(process, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if ended, err := linux.HasExited(process, patience); !ended || err != nil {
			t.Fatalf("%s %d has not ended after %v: %v", role, pid, patience, err)
		}
	}
}

// TestServiceKeeperKilled: without a keeper the launcher keeps running. If it dies, the next start of the service
// fixes that.
func TestServiceKeeperKilled(t *testing.T) {
	testutil.Long(t)
	s, dir := newService(t)
	b := createLive(t, s, engine.Spec{ID: "live-one"})
	killAll(t, "keeper", dir)
	if err := s.Health(t.Context()); err != nil {
		t.Errorf("without a keeper: %v", err)
	}
	killAll(t, "launcher", dir)
	restart := func() {
		if _, err := tryStartService(t, dir, 0); err != nil {
			t.Fatal(err)
		}
	}
	restart()
	if err := s.Health(t.Context()); err != nil {
		t.Errorf("with a new keeper: %v", err)
	}
	wantOutput(t, b, "echo here", "here\n")

	// A restart replaces a launcher that has neither keeper nor client.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	killAll(t, "keeper", dir)
	restart()
	if n := len(serviceProcesses(t, "keeper", dir)); n != 1 {
		t.Errorf("%d keepers", n)
	}
}

// TestServiceStop leaves the boxes, or not.
func TestServiceStop(t *testing.T) {
	s, dir := newService(t)
	b := createLive(t, s, engine.Spec{ID: "live-one"})
	pids := initPIDs(t, b)
	if err := s.Stop(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the launcher has ended", func() bool { return len(serviceProcesses(t, "keeper", dir)) == 0 })
	if err := s.Health(t.Context()); !errors.Is(err, engine.ErrNoLauncher) {
		t.Errorf("health of a stopped service: %v", err)
	}
	socket, err := tryStartService(t, dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	b = adoptLive(t, connect(t, socket), "live-one")
	if again := initPIDs(t, b); strings.Join(pids, " ") != strings.Join(again, " ") {
		t.Errorf("PID 1 was %q and is %q", pids, again)
	}
}

// TestServiceEvents: the kernel tells of limits, and the box of what listens in it.
func TestServiceEvents(t *testing.T) {
	testutil.Long(t)
	s, _ := newService(t)
	b := createLive(t, s, engine.Spec{Limits: engine.Limits{Memory: 64 << 20, PIDs: 8}})
	run(t, b, python("x = bytearray(200 << 20)"))
	wantEvent(t, b, engine.EventOOM)
	run(t, b, shell("for i in 1 2 3 4 5 6 7 8 9; do sleep 0.1 & done; wait"))
	wantEvent(t, b, engine.EventPIDs)
	u, err := b.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if figure(t, "memory", u.Memory) <= 0 || figure(t, "CPU", u.CPU) <= 0 || u.PIDs == nil {
		t.Errorf("usage: %+v", u)
	}
	const listen = `
import socket
s = socket.socket(); s.bind(("127.0.0.1", 8080)); s.listen()
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("127.0.0.1", 99))
import time; time.sleep(1000)`
	p := begin(t, b, python(listen))
	waitUntil(t, "two ports are there", func() bool {
		ports, err := b.Ports()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(ports) == "[{tcp 127.0.0.1 8080} {udp 127.0.0.1 99}]"
	})
	_ = p.Signal(unix.SIGKILL)
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := b.Ports(); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("ports of a box that is gone: %v", err)
	}
	for range b.Events() { // ends
	}
}

func wantEvent(t testing.TB, b engine.LiveBox, kind engine.EventKind) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case e := <-b.Events():
			if e.Kind == kind && e.Count > 0 {
				return
			}
		case <-late:
			t.Fatalf("no event of kind %q after %v", kind, patience)
		}
	}
}

// TestServiceInitKilled: a box ends with its PID 1.
func TestServiceInitKilled(t *testing.T) {
	s, _ := newService(t)
	b := createLive(t, s, engine.Spec{ID: "live-one"})
	for _, pid := range initPIDs(t, b) {
		n, _ := strconv.Atoi(pid)
		_ = unix.Kill(n, unix.SIGKILL)
	}
	select {
	case <-b.Done():
	case <-time.After(patience):
		t.Fatal("the box goes on without PID 1")
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestServiceIdleDescriptors: a thousand idle boxes must fit into one process on each
// side.
func TestServiceIdleDescriptors(t *testing.T) {
	testutil.Long(t)
	s, dir := newService(t)
	const boxes, most = 10, 15
	launcher := serviceProcesses(t, "launcher", dir)
	createLive(t, s, engine.Spec{})
	ours, theirs := openFiles(t, os.Getpid()), openFiles(t, launcher[0])
	for range boxes {
		wantOutput(t, createLive(t, s, engine.Spec{}), "echo x", "x\n")
	}
	waitUntil(t, "idle boxes have few descriptors", func() bool {
		return openFiles(t, os.Getpid()) <= ours+boxes*most && openFiles(t, launcher[0]) <= theirs+boxes*most
	})
	t.Logf("descriptors of an idle box: %d here, %d in the launcher",
		(openFiles(t, os.Getpid())-ours)/boxes, (openFiles(t, launcher[0])-theirs)/boxes)
}
