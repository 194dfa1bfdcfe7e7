package daemon

import (
	"testing"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
)

// ForTest runs a daemon with the programs under test, and returns it with a client. The test ends
// both, and all sessions of the daemon. If it fails, its log contains the end of the daemon's.
func ForTest(t testing.TB, c Config) (*Daemon, *client.Client) {
	t.Helper()
	c.Boxd, c.Init = testutil.BuildBinaries(t)
	c.Args = append([]string{"--stop-sessions"}, c.Args...)
	d, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := d.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the daemon's log ends with:\n%s", d.LogTail(40))
		}
	})
	return d, conn
}
