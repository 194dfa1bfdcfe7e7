package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/boxtest"
)

// TestDaemonPool: a new session gets a box of the pool, as the status says, and lives on as any session does when
// daemon and launcher are killed. What is left of the pool goes with the launcher.
func TestDaemonPool(t *testing.T) {
	d := newDaemon(t)
	d.env = append(d.env, "BOXD_POOL=2")
	d.start()
	status := func() apitypes.Pool {
		t.Helper()
		c, err := client.New(client.Options{Socket: d.socket()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err := c.Status(ctx)
		if err != nil || s.Pool == nil {
			t.Fatalf("%+v, %v, want the state of the pool", s, err)
		}
		return *s.Pool
	}
	d.says(0, "first\n", "exec", "a", "--", "echo", "first")
	d.says(0, "second\n", "exec", "another", "--", "echo", "second") // one request alone has the pool build none
	boxtest.WaitUntil(t, "a box is ready", func() bool { return status().Ready > 0 })
	d.says(0, "box\n268435456\n", "exec", "b", "--memory", "256M", "--", "sh", "-c", "hostname; echo kept >~/file; awk '/MemTotal/ {print $2 * 1024}' /proc/meminfo")
	if p := status(); p.Hits != 1 || p.Limit != 2 || p.Misses["empty"] != 2 {
		t.Errorf("%+v, want one hit after two misses", p)
	}
	d.kill()
	d.start()
	d.says(0, "kept\n", "exec", "b", "--", "sh", "-c", "cat ~/file")
	d.says(0, "", "sessions", "rm", "b")
	d.says(0, "again\n", "exec", "b", "--", "echo", "again")
}
