package langbot

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// dialerAs is dialer for connections of the user uid.
func (w *world) dialerAs(uid int) Dialer {
	d := w.dialer()
	d.NetDial = func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		return conn, linux.OnThrowawayThread(func() error {
			if err := unix.Setfsuid(uid); err != nil {
				return err
			}
			var d net.Dialer
			conn, err = d.DialContext(ctx, network, addr)
			return err
		})
	}
	return d
}

// TestThreeLines: the user who owns the shared directory needs no secret, and nothing
// but the three lines of docs/langbot.md. Another user needs the secret.
func TestThreeLines(t *testing.T) {
	anyKernel(t)
	w := begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := w.dialerAs(sharedOwner).Dial(ctx, "i")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := &bot{c, w, Context{"i", "w", 1}}
	b.call("box_init", object{"local": object{"host_root": w.shared, "allowed_mount_roots": []string{w.shared}}})
	dir := filepath.Join(w.shared, "work")
	if out := b.sh(spec("s", object{"host_path": dir}), "echo kept > file; cat file"); strings.TrimSpace(out) != "kept" {
		t.Errorf("got %q", out)
	}
	info, err := os.Stat(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != sharedOwner {
		t.Errorf("the file belongs to user %d, want %d", owner, sharedOwner)
	}
	var status *StatusError
	if c, err := w.dialerAs(sharedOwner+1).Dial(ctx, "i"); !errors.As(err, &status) || status.Status != 403 || !strings.Contains(err.Error(), "listen_users") {
		t.Errorf("another user: %v, %v; want a refusal that names listen_users", c, err)
	}
}

// With the secret, any user may connect.
func TestSecretOfAnyUser(t *testing.T) {
	anyKernel(t)
	secret := strings.Repeat("s3cret-", 6)
	t.Setenv("LANGBOT_BOX_CONTROL_TOKEN", secret)
	w := begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dialer := w.dialerAs(sharedOwner + 1)
	dialer.Token = secret
	c, err := dialer.Dial(ctx, "i")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	var status *StatusError
	dialer = w.dialerAs(sharedOwner)
	if _, err := dialer.Dial(ctx, "i"); !errors.As(err, &status) || status.Status != 401 {
		t.Errorf("without the secret: %v, want 401", err)
	}
}

// Relays of "boxd langbot --stdio" without a secret are for root and the user who runs it.
func TestBridgeUsers(t *testing.T) {
	anyKernel(t)
	w := begin(t)
	b := w.stdioBox(Context{"child", "w", 1})
	b.call("box_create_session", spec("s", nil), nil)
	b.call("box_start_managed_process", object{"session_id": "s", "spec": object{"process_id": "p", "command": "cat"}}, nil)
	for uid, admitted := range map[int]bool{0: true, sharedOwner: false} {
		d := w.dialerAs(uid)
		d.Base = "ws://" + b.relays
		ws, err := d.Relay(t.Context(), b.at.Headers(), physicalOf(b.at, "s"), "p")
		var status *StatusError
		if admitted && err != nil || !admitted && (!errors.As(err, &status) || status.Status != 403) {
			t.Errorf("user %d: %v", uid, err)
		}
		if err == nil {
			ws.Close()
		}
	}
}
