package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
)

// TestSessionSeesItsLimits: a session's commands see its limits and live changes of them, before and
// after the daemon was killed.
func TestSessionSeesItsLimits(t *testing.T) {
	d := startDaemon(t)
	read := func(want string) {
		t.Helper()
		d.says(0, want, "exec", "s", "--", "sh", "-c", "free -m | awk '/^Mem/ {print $2}'")
	}
	change := func(memory apitypes.Size) {
		t.Helper()
		c, err := client.New(client.Options{Socket: d.socket()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Update(ctx, "s", apitypes.SessionUpdate{LiveWishes: spec.LiveWishes{Memory: &memory}}); err != nil {
			t.Fatal(err)
		}
	}
	d.says(0, "256\n0\n", "exec", "s", "--memory", "256M", "--cpus", "1", "--", "sh", "-c", "free -m | awk '/^Mem/ {print $2}'; cat /sys/devices/system/cpu/online")
	change(384 << 20)
	read("384\n")
	d.kill()
	d.start()
	read("384\n")
	change(128 << 20)
	read("128\n")
}
