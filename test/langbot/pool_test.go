package langbot

import (
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/boxtest"
)

// TestPool: a new session gets a box of the pool, which has nothing of the session before and everything
// that was asked for, and lives on when the daemon is killed.
func TestPool(t *testing.T) {
	t.Setenv("BOXD_POOL", "2")
	w := begin(t)
	b := w.bot("i", "w")
	pool := func() apitypes.Pool {
		t.Helper()
		s, err := w.api.Status(t.Context())
		if err != nil || s.Pool == nil {
			t.Fatalf("%+v, %v, want the state of the pool", s, err)
		}
		return *s.Pool
	}
	const traces = "cat /tmp/left ~/left /workspace/left 2>/dev/null; echo clean; for f in /tmp/left ~/left /workspace/left; do echo theirs >$f; done; " +
		`pwd; id -u; awk '/MemTotal/ {print $2 * 1024}' /proc/meminfo; echo "$A"`
	for _, session := range []string{"a", "b"} { // one request alone has the pool build none
		b.sh(spec(session, nil), traces)
	}
	for i, c := range []struct {
		session string
		fields  object
		want    string
	}{
		{"c", nil, "clean\n/workspace\n0\n536870912"},
		{"d", object{"memory_mb": 256, "env": object{"A": "b"}}, "clean\n/workspace\n0\n268435456\nb"},
	} {
		boxtest.WaitUntil(t, "a box is ready", func() bool { return pool().Ready > 0 })
		if out := b.sh(spec(c.session, c.fields), traces); out != c.want {
			t.Errorf("session %s: %q, want %q", c.session, out, c.want)
		}
		if p := pool(); p.Hits != int64(i+1) {
			t.Errorf("session %s: %+v, want %d hits", c.session, p, i+1)
		}
	}
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	if out := w.bot("i", "w").sh(spec("c", nil), "cat /tmp/left"); out != "theirs" {
		t.Errorf("after the death of the daemon: %q, want the same box", out)
	}
}
