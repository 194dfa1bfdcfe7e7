package cli

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// silence is a socket whose backlog accepts connections, and which nobody serves, with a client of it.
func silence(t *testing.T) (net.Listener, *client.Client) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c, err := client.New(client.Options{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return l, c
}

// systemd's socket accepts connections even if the daemon never starts. The caller does not wait for ever.
func TestStatusSilent(t *testing.T) {
	l, c := silence(t)
	for _, wait := range []time.Duration{0, time.Second / 10} {
		began := time.Now()
		_, err := awaitStatus(t.Context(), c, wait, time.Second/10)
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "does not answer within") || !strings.Contains(err.Error(), "systemctl status boxd") || took < wait+time.Second/10 {
			t.Errorf("after %v: %v", took, err)
		}
	}
	l.Close()
	if _, err := awaitStatus(t.Context(), c, 0, time.Minute); err == nil || strings.Contains(err.Error(), "does not answer") || !isRefused(err) && !errors.Is(err, net.ErrClosed) {
		t.Errorf("without a socket: %v", err)
	}
}

// systemd gives up and closes its socket before anybody has accepted a connection. The error says where to look.
func TestStatusReset(t *testing.T) {
	l, c := silence(t)
	held := make(chan error, 1)
	go func() {
		_, err := awaitStatus(t.Context(), c, 0, time.Minute)
		held <- err
	}()
	raw, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	ready := []unix.PollFd{{Fd: int32(raw.Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(ready, int(testutil.Patience().Milliseconds()))
		if n == 1 {
			break
		}
		if err != unix.EINTR {
			t.Fatalf("nobody connects: %v", err)
		}
	}
	raw.Close()
	l.Close()
	if err := <-held; err == nil || !strings.Contains(err.Error(), "systemctl status boxd") {
		t.Errorf("a connection that is reset: %v", err)
	}
}

func TestStatusText(t *testing.T) {
	var b strings.Builder
	err := writeStatus(screen{Writer: &b}, apitypes.Status{Available: true, Audit: &apitypes.AuditHead{Seq: 1, Hash: "0123456789abcdef", OK: true},
		Webhooks: []apitypes.WebhookState{{Name: "bot", Host: "hooks.example:8443", Delivered: 3, Pending: 2, Dropped: 1, Error: "status 500"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"hooks.example:8443: 3 delivered, 2 pending, 1 dropped", "status 500", "1 entry, 0123456789ab\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
