package native

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
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
