package e2e

import (
	"testing"
	"time"
)

// TestRetain: after its TTL a session has no box, and its workspace is there for the next use,
// also across the death of the daemon and a proper stop.
func TestRetain(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	d.says(0, "", "exec", "s", "--idle-ttl", "1s", "--retain", "1h", "--workspace-size", "8M", "--", "sh", "-c", "echo kept > file")
	stopped := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); d.run("sessions", "ls", "--format", "{{.state}}").stdout != "stopped\n"; {
			if time.Now().After(end) {
				t.Fatalf("the TTL does not end the session: %v", d.run("sessions", "show", "s"))
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	for _, meanwhile := range []func(){func() {}, func() { d.kill(); d.start() }, func() { d.stop(); d.start() }} {
		stopped()
		meanwhile()
		d.says(0, "kept\n", "exec", "s", "--no-create", "--", "cat", "file")
	}
	stopped()
	d.says(0, "", "sessions", "rm", "s")
	d.wantRefused(125, d.run("exec", "s", "--no-create", "--", "true"), "s", "not found")
}
