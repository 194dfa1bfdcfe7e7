package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/installed"
)

// Flags override the environment, which overrides the file.
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
	if got.InitError != nil || filepath.Base(got.InitPath) != installed.Init {
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
	// An empty address turns the listener off; an address that other hosts reach needs a secret.
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
	if status := v.Main([]string{"serve", "--langbot-listen", "0.0.0.0:5410"}); status != statusConfig || !strings.Contains(v.stderr.String(), "--langbot-listen \"0.0.0.0:5410\"") {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
	// The variable of clients does not move the socket of a daemon that is placed elsewhere.
	v.LookupEnv = func(key string) (string, bool) {
		if key == "BOXD_SOCKET" {
			return "/srv/other/boxd.sock", true
		}
		return lookup(key)
	}
	for args, want := range map[string]string{"": "/srv/other/boxd.sock", "--state-dir /srv/b": "/srv/b/boxd.sock", "--state-dir /srv/b --socket /srv/c": "/srv/c"} {
		if status := v.Main(append([]string{"serve"}, strings.Fields(args)...)); status != 0 || got.Config.Socket.Path != want {
			t.Errorf("%q: status %d, socket %q, want %q", args, status, got.Config.Socket.Path, want)
		}
	}
	v.LookupEnv = lookup
	// A relative directory starts at the working directory.
	if status := v.Main([]string{"serve", "--state-dir", "state"}); status != 0 || !filepath.IsAbs(got.Config.StateDir) {
		t.Errorf("status %d, state directory %q", status, got.Config.StateDir)
	}
}

// TestServeNamesOrigin: a refused setting has the name that the user gave.
func TestServeNamesOrigin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("log: {level: loud}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	busy := &engine.FieldError{Field: "socket.path", Value: `"/x/s"`, Rule: "is taken"}
	for _, c := range []struct {
		env, args string
		serve     error
		want      string
	}{
		{"", "--listen foo", nil, `--listen "foo": must be HOST:PORT`},
		{"BOXD_LISTEN=foo", "", nil, `environment: BOXD_LISTEN "foo": must be HOST:PORT`},
		{"BOXD_LISTEN=bar", "--listen foo", nil, `--listen "foo": must`},
		{"BOXD_LOG_LEVEL=loud", "", nil, `environment: BOXD_LOG_LEVEL "loud": must`},
		{"", "--config " + file, nil, `log.level "loud": must`},
		{"", "--config " + file + ".none", nil, `configuration: open`},
		{"", "--no-such-flag", nil, `unknown flag`},
		{"", "--state-dir=", nil, `--state-dir "": must not be empty`},
		{"BOXD_SOCKET=/x/s", "", busy, `environment: BOXD_SOCKET "/x/s": is taken`},
		{"BOXD_SOCKET=/y", "--socket /x/s", busy, `--socket "/x/s": is taken`},
		{"BOXD_SOCKET=/y", "--state-dir /x", busy, `socket.path "/x/s": is taken`},
		{"", "--state-dir /x", busy, `socket.path "/x/s": is taken`},
		{"BOXD_SOCKET=/x/s", "", fmt.Errorf("more: %w", busy), `more: socket.path "/x/s": is taken`},
	} {
		v := newInvocation(t)
		lookup := v.LookupEnv
		v.LookupEnv = func(key string) (string, bool) {
			if name, value, _ := strings.Cut(c.env, "="); name != "" && name == key {
				return value, true
			}
			return lookup(key)
		}
		v.Serve = func(ServeOptions) error { return errors.Join(c.serve) }
		wantStatus := statusConfig // systemd does not start it again
		if c.serve != nil {
			wantStatus = statusFailed
		}
		if status := v.Main(append([]string{"serve"}, strings.Fields(c.args)...)); status != wantStatus || !strings.HasPrefix(v.stderr.String(), "boxd: "+c.want) || strings.Count(v.stderr.String(), "\n") != 1 {
			t.Errorf("%s serve %s: status %d, %q, want %d, %q", c.env, c.args, status, v.stderr.String(), wantStatus, c.want)
		}
	}
}
