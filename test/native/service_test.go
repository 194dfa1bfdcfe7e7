package native

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// startService runs a launcher service for uid on dir.
func startService(t testing.TB, dir string, uid int) (socket string) {
	t.Helper()
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	socket, err := native.StartLauncher(ctx, native.LauncherOptions{InitPath: initPath, StateDir: dir, ClientUID: uid, ClientGID: uid})
	if err != nil {
		t.Fatal(err)
	}
	return socket
}

// connect is a client of the service. With the test it stops the service and removes
// its boxes.
func connect(t testing.TB, socket string) *native.Service {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stopService(t testing.TB, socket string) {
	t.Helper()
	if _, err := os.Stat(socket); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
	if err == nil {
		err = s.Stop(ctx, true)
	}
	if err != nil {
		t.Errorf("stopping the service: %v", err)
	}
}

// newService is a service with a state directory of its own, and a client.
func newService(t testing.TB) (*native.Service, string) {
	t.Helper()
	dir := stateDir(t)
	socket := startService(t, dir, 0)
	t.Cleanup(func() { stopService(t, socket) })
	s := connect(t, socket)
	t.Cleanup(func() { s.Close() })
	return s, dir
}

func TestServiceExec(t *testing.T) {
	s, dir := newService(t)
	b, err := s.Create(t.Context(), engine.Spec{ID: "one"})
	if err != nil {
		t.Fatal(err)
	}
	wantOutput(t, b, "echo here", "here\n")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = connect(t, filepath.Join(dir, native.SocketName))
	t.Cleanup(func() { s.Close() })
	b, err = s.Adopt(t.Context(), "one", engine.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	wantOutput(t, b, "echo again", "again\n")
}
