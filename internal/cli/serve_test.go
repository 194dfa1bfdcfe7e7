package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The file counts least, then the environment, then flags.
func TestServePrecedence(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte("state_dir: /srv/file\nlisten: 127.0.0.1:1\nlog: {format: json, level: warn}\nallowed_mount_roots: [/srv/a]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var got ServeOptions
	v := newInvocation(t)
	lookup := v.LookupEnv
	v.LookupEnv = func(key string) (string, bool) {
		switch key {
		case "BOXD_CONFIG":
			return file, true
		case "BOXD_LISTEN":
			return "127.0.0.1:2", true
		case "BOXD_LANGBOT_LISTEN":
			return "127.0.0.1:3", true
		case "BOXD_LOG_LEVEL":
			return "error", true
		}
		return lookup(key)
	}
	v.Serve = func(o ServeOptions) error {
		got = o
		return errors.New("that is all")
	}
	status := v.Main([]string{"serve", "--log-level", "debug", "--allow-mount-root", "/srv/b", "--langbot-listen", "127.0.0.1:4", "--stop-sessions"})
	if status != 125 || v.stderr.String() != "boxd: that is all\n" {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
	c := got.Config
	text := fmt.Sprintf("%s %s %s %s %s %s %s %q %v", c.StateDir, c.RuntimeDir, c.Socket.Path, c.Listen, c.Langbot.Listen, c.Log.Format, c.Log.Level, c.Policy.AllowedMountRoots, got.StopSessions)
	if want := `/srv/file /srv/file/run /srv/file/boxd.sock 127.0.0.1:2 127.0.0.1:4 json debug ["/srv/a" "/srv/b"] true`; text != want {
		t.Errorf("%s, want %s", text, want)
	}
	if got.InitError != nil || filepath.Base(got.InitPath) != initName {
		t.Errorf("boxd-init: %q, %v", got.InitPath, got.InitError)
	}
	// SIGHUP reads all of them again.
	if err := os.WriteFile(file, []byte("log: {format: text}\nno_such_key: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := got.Reload(); err == nil || !strings.Contains(err.Error(), "no_such_key") {
		t.Errorf("Reload: %v", err)
	}
}

func TestServeDefaults(t *testing.T) {
	v := newInvocation(t)
	var got ServeOptions
	v.Serve = func(o ServeOptions) error {
		got = o
		return nil
	}
	if status := v.Main([]string{"serve"}); status != 0 {
		t.Fatalf("status %d, %q", status, v.stderr.String())
	}
	c := got.Config
	text := fmt.Sprintf("%s %s %s %q %04o %s", c.StateDir, c.RuntimeDir, c.Socket.Path, c.Listen, c.Socket.FileMode(), c.Log.Format)
	if want := `/var/lib/boxd /run/boxd /run/boxd/boxd.sock "" 0660 text`; text != want {
		t.Errorf("%s, want %s", text, want)
	}
	// An empty address turns a door off; one for strangers needs a secret.
	lookup := v.LookupEnv
	v.LookupEnv = func(key string) (string, bool) {
		if key == "BOXD_LANGBOT_LISTEN" {
			return "127.0.0.1:3", true
		}
		return lookup(key)
	}
	if status := v.Main([]string{"serve", "--langbot-listen", ""}); status != 0 || got.Config.Langbot.Listen != "" {
		t.Errorf("status %d, %+v", status, got.Config.Langbot)
	}
	if status := v.Main([]string{"serve", "--langbot-listen", "0.0.0.0:5410"}); status != 125 || !strings.Contains(v.stderr.String(), "langbot.listen") {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
	// A relative directory is that of the caller.
	if status := v.Main([]string{"serve", "--state-dir", "state"}); status != 0 || !filepath.IsAbs(got.Config.StateDir) {
		t.Errorf("status %d, state directory %q", status, got.Config.StateDir)
	}
}
