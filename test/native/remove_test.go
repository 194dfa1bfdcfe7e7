package native

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// hungDir mounts a file system whose server never answers. release ends all
// requests to it; it is called with the end of the test at the latest.
func hungDir(t *testing.T) (dir string, release func()) {
	t.Helper()
	testutil.RequireRoot(t)
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	testutil.RequireFeature(t, "FUSE", err)
	t.Cleanup(func() { server.Close() })
	dir = hostDir(t, 0, 0)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
	if err := unix.Mount("boxd-test", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, func() { server.Close() }
}

// TestRemoveKillsFirst: a request that hangs in the launcher does not let a box
// live on that is to be removed.
func TestRemoveKillsFirst(t *testing.T) {
	dir, release := hungDir(t)
	b := newBox(t, engine.Spec{})
	t.Cleanup(release) // before the box's
	updated := make(chan error, 1)
	go func() {
		updated <- b.Update(t.Context(), engine.Change{Attach: []engine.Mount{{Source: dir, Target: "/data"}}})
	}()
	select {
	case err := <-updated:
		t.Fatalf("mounting what hangs: %v", err)
	case <-time.After(200 * time.Millisecond): // it may only be on its way: then this test shows less
	}
	// A stopped PID 1 does not see that its launcher hangs up.
	for _, pid := range initPIDs(t, b) {
		n, err := strconv.Atoi(pid)
		if err := errors.Join(err, unix.Kill(n, unix.SIGSTOP)); err != nil {
			t.Fatal(err)
		}
	}
	removed := make(chan error, 1)
	go func() { removed <- b.Remove(t.Context()) }()
	for end := time.Now().Add(patience); len(initPIDs(t, b)) > 0 && !t.Failed(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Error("PID 1 of a box that is removed lives on")
		}
	}
	release()
	if err := <-removed; err != nil {
		t.Error(err)
	}
	<-updated
}
