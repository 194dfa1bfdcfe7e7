package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/config"
)

// Check finds every mistake that would keep the daemon from starting, all at once, and leaves nothing
// behind.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("not a token\x00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("unix", filepath.Join(dir, "busy"))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	base := func(c *config.Config) {
		c.StateDir, c.RuntimeDir, c.Socket.Path = filepath.Join(dir, "state"), filepath.Join(dir, "run"), filepath.Join(dir, "s")
		if os.Geteuid() == 0 {
			c.User = "" // an ID of its own
		}
	}
	for _, c := range []struct {
		name   string
		change func(c *config.Config)
		wants  []string
	}{
		{"nothing", func(*config.Config) {}, nil},
		{"a daemon runs there", func(c *config.Config) { c.Socket.Path = busy.Addr().String() }, nil},
		{"user", func(c *config.Config) { c.User = "no-such-user" }, []string{"no-such-user"}},
		{"state below /proc", func(c *config.Config) { c.StateDir = "/proc/x" }, []string{"state_dir"}},
		{"no directory", func(c *config.Config) { c.StateDir = filepath.Join(dir, "file", "x") }, []string{"state_dir"}},
		{"long socket", func(c *config.Config) { c.Socket.Path = filepath.Join(dir, strings.Repeat("x", 110)) }, []string{"at most 107 bytes"}},
		{"no socket", func(c *config.Config) { c.Socket.Path = filepath.Join(dir, "file") }, []string{"is no socket"}},
		{"group", func(c *config.Config) { c.Socket.Group = "no-such-group" }, []string{"no-such-group"}},
		{"listener for all", func(c *config.Config) { c.Listen = "0.0.0.0:1" }, []string{"must be a loopback address"}},
		{"no address", func(c *config.Config) { c.Listen = "x" }, []string{"must be HOST:PORT"}},
		{"langbot for all", func(c *config.Config) { c.Langbot.Listen = "0.0.0.0:1" }, []string{"langbot: "}},
		{"tokens", func(c *config.Config) { c.TokensFile = filepath.Join(dir, "none") }, []string{"none"}},
		{"TLS", func(c *config.Config) { c.TLS.Cert, c.TLS.Key = filepath.Join(dir, "c"), filepath.Join(dir, "k") }, []string{"tls"}},
		{"users", func(c *config.Config) { c.ListenUsers = []string{"no-such-user"} }, []string{"listen_users[0]"}},
		{"several", func(c *config.Config) {
			c.Listen, c.TLS.Cert, c.StateDir = "0.0.0.0:1", "x", "/sys/x"
		}, []string{"state_dir", "needs both cert and key", "loopback"}},
	} {
		var conf config.Config
		base(&conf)
		c.change(&conf)
		found, _ := Check(Options{Config: conf})
		if os.Geteuid() != 0 { // only root can start the launcher
			found = found[:len(found)-1]
		}
		text := fmt.Sprint(errors.Join(found...))
		if len(c.wants) == 0 && len(found) > 0 {
			t.Errorf("%s: %s", c.name, text)
		}
		for _, want := range c.wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s, want %q", c.name, text, want)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestCheckInit(t *testing.T) {
	dir := t.TempDir()
	conf := config.Config{StateDir: dir, RuntimeDir: dir}
	conf.Socket.Path = filepath.Join(dir, "s")
	conf.Policy.AllowedMountRoots = []string{"/a:b"}
	found, _ := Check(Options{Config: conf, InitError: errors.New("no boxd-init")})
	text := fmt.Sprint(errors.Join(found...))
	wants := []string{"no boxd-init", "must not contain a colon"}
	if os.Geteuid() != 0 {
		wants = []string{"launcher service"} // which it cannot start itself
	}
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%s, want %q", text, want)
		}
	}
}
