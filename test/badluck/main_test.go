package badluck

import (
	"context"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

func TestMain(m *testing.M) { testutil.MainReaping(m) }

// patience bounds what a test waits for, so that a hang is a failure with a name.
const patience = 2 * time.Minute

// newDir creates a directory for a daemon.
func newDir(t *testing.T) string {
	t.Helper()
	testutil.RequireRoot(t)
	return testutil.ReachableDir(t, "")
}

// start runs a daemon that ends, with its sessions, when the test does.
func start(t *testing.T, dir string, args ...string) (*daemon.Daemon, *client.Client) {
	t.Helper()
	return daemon.ForTest(t, daemon.Config{Dir: dir, Args: args})
}

func timeLimit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func ensure(t *testing.T, c *client.Client, id string) apitypes.Session {
	t.Helper()
	s, err := c.Ensure(timeLimit(t), apitypes.SessionRequest{ID: id})
	if err != nil {
		t.Fatalf("making session %s: %v", id, err)
	}
	return s
}

// run runs a line of shell, which must succeed, and returns its output.
func run(t *testing.T, c *client.Client, session, line string) string {
	t.Helper()
	r, err := c.Exec(timeLimit(t), session, apitypes.ExecRequest{Shell: line})
	if err != nil || r.Status != 0 {
		t.Fatalf("%s in %s: %+v, %v", line, session, r, err)
	}
	return string(r.Out())
}
