package door

import (
	"errors"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
)

// A user of this host who may not use the door is refused before an upgrade. Probes are
// open to everyone.
func TestLocalUsers(t *testing.T) {
	var refused atomic.Bool
	o := Options{Local: func(uid int, err error) error {
		if err != nil || uid != os.Getuid() {
			t.Errorf("user %d, %v; want %d", uid, err, os.Getuid())
		}
		if refused.Load() {
			return errors.New("langbot.listen: user 7 may not")
		}
		return nil
	}}
	b := newBackend(nil)
	b.ready = true
	d, addr := serve(t, b, o)
	refused.Store(true)
	for _, path := range []string{"/rpc/ws", "/v1/sessions/x/managed-process/ws", "/v1/sessions/x/managed-process/y/ws"} {
		if status, body, _ := get(t, addr, path, upgradeHeaders...); status != 403 || body != "langbot.listen: user 7 may not" {
			t.Errorf("%s: got %d %q", path, status, body)
		}
	}
	if d.Instance() != "" {
		t.Errorf("pinned to %q, which was refused", d.Instance())
	}
	for path, status := range map[string]int{"/healthz": 200, "/readyz": 200, "/nothing": 404} {
		if got, body, _ := get(t, addr, path); got != status {
			t.Errorf("%s: got %d %q, want %d", path, got, body, status)
		}
	}
	refused.Store(false)
	dial(t, addr, false)
}

// Under another server, the door does not know the connection.
func TestLocalUsersBelowAnotherServer(t *testing.T) {
	d := New(newBackend(nil), Options{Local: func(_ int, err error) error { return err }})
	s := httptest.NewServer(d)
	defer s.Close()
	if status, body, _ := get(t, s.Listener.Addr().String(), "/rpc/ws", upgradeHeaders...); status != 403 {
		t.Errorf("got %d %q", status, body)
	}
}
