package launcher

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
)

// TestUnsentEvents: events that could not be sent to a client wait for the next one.
func TestUnsentEvents(t *testing.T) {
	e := newEvents()
	e.add("x.b", cgroups.MemoryLimit, 1)
	e.add("x.b", cgroups.PIDsLimit, 2)
	e.add("x.c", cgroups.PIDsLimit, 3)
	ours, theirs, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs.Close()
	taken := e.take()
	e.add("x.b", cgroups.PIDsLimit, 5) // meanwhile
	e.putBack(sendTo(&client{conn: ours}, taken))
	oom, pids := eventKey{"b", engine.EventOOM}, eventKey{"b", engine.EventPIDs}
	if left := e.take(); len(left) != 3 || left[oom] != 1 || left[pids] != 5 {
		t.Errorf("pending: %v", left)
	}
}

// TestFailedStartKeepsRecords: a service that cannot start leaves its boxes to the next
// launcher.
func TestFailedStartKeepsRecords(t *testing.T) {
	l := newTestLauncher(t)
	l.service = &service{}
	if err := os.Mkdir(filepath.Join(l.instance.boxes(), "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(l.instance.boxes(), "b")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(l.instance.boxes(), "b")); err != nil {
		t.Fatal(err)
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(l.instance.dir); err == nil {
		t.Error("an instance without boxes is left")
	}
}
