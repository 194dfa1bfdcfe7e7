package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/internal/linux"
)

func TestStarter(t *testing.T) {
	for _, c := range []struct {
		root bool
		sudo string
		want int
	}{
		{true, "", 0}, {true, "0", 0}, {true, "1234", 1234}, {true, "-1", 0}, {true, "4294967295", 0}, {true, "12x", 0},
		{false, "", os.Getuid()}, {false, "1234", os.Getuid()},
	} {
		t.Setenv("SUDO_UID", c.sudo)
		if got := (&daemon{root: c.root}).starter(); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

// Members of the socket's group are admitted whether root started the daemon or not, although a daemon
// that is not root does not set the group.
func TestSocketGroup(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	uid, uerr := strconv.Atoi(me.Uid)
	gid, gerr := strconv.Atoi(me.Gid)
	if err := errors.Join(uerr, gerr); err != nil {
		t.Fatal(err)
	}
	for _, root := range []bool{true, false} {
		d := &daemon{root: root, account: account{gid: gid}, log: slog.New(slog.DiscardHandler)}
		got, err := d.socketGroup()
		if err != nil || got != gid {
			t.Errorf("root %v: group %d, %v, want %d", root, got, err, gid)
		}
		users, err := d.newLocalUsers(got)
		if err != nil {
			t.Fatal(err)
		}
		if !users.isMember(uid) {
			t.Errorf("root %v: a member of the socket's group is none", root)
		}
	}
}

func TestLocalUsers(t *testing.T) {
	t.Setenv("SUDO_UID", "")
	var log bytes.Buffer
	d := &daemon{root: true, log: slog.New(slog.NewTextHandler(&log, nil)), Options: Options{Config: config.Config{ListenUsers: []string{"54001"}}}}
	users, err := d.newLocalUsers(54100)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "later")
	second := users.forLangbot([]string{root})
	for uid, want := range map[int]bool{0: true, 54001: true, 54002: false, nobody: false} {
		if err := users.check(uid, nil); (err == nil) != want {
			t.Errorf("user %d: %v", uid, err)
		}
	}
	if second.admits(54002) {
		t.Error("the owner of nothing is admitted")
	}
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(root), 0o777); err != nil {
		t.Fatal(err)
	}
	if me := os.Getuid(); me != 0 && second.admits(me) || (second.roots[0].ownerNow() != -1) {
		t.Error("a mount root that any user could have made names its owner")
	}
	if err := os.Chmod(filepath.Dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	if me := os.Getuid(); !second.admits(me) || me != 0 && users.admits(me) {
		t.Errorf("user %d owns a mount root: admitted at LangBot's door %v, at the other %v", me, second.admits(me), users.admits(me))
	}
	err = users.check(0, linux.ErrClientGone)
	if err == nil || !strings.Contains(err.Error(), "listen: the user who connects is unknown") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a client that has gone: %v", err)
	}
	for uid := range 3 * maxMemberships {
		users.check(100000+uid, nil)
	}
	if n := len(users.members); n > maxMemberships {
		t.Errorf("%d users are remembered, want at most %d", n, maxMemberships)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines in the log, want 1 in ten seconds:\n%.1000s", n, log.String())
	}
}

func TestLookupUser(t *testing.T) {
	for name, want := range map[string]int{"root": 0, "54001": 54001} {
		if uid, err := lookupUser("listen_users[0]", name); err != nil || uid != want {
			t.Errorf("%s: %d, %v", name, uid, err)
		}
	}
	for _, name := range []string{"no-such-user", "65534", "nobody", "-1", "4294967295", ""} {
		if uid, err := lookupUser("listen_users[0]", name); err == nil || !strings.Contains(err.Error(), "listen_users[0]") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %d, %v; want a refusal in one line", name, uid, err)
		}
	}
}
