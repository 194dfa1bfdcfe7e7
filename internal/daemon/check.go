package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/api"
	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/preview"
	"golang.org/x/sys/unix"
)

// Check returns every reason that it can find for which Run would not start with these options. It
// creates and changes nothing, and a daemon that runs on the same directories is no obstacle. The
// warnings are about files with secrets that the daemon's user cannot read, without which it starts.
func Check(o Options) (found, warnings []error) {
	d := &daemon{Options: o, log: slog.New(slog.DiscardHandler), root: os.Geteuid() == 0}
	d.dirs = dirs{state: o.Config.StateDir, runtime: o.Config.RuntimeDir}
	c := &d.Config
	note := func(err error) bool {
		if err != nil {
			found = append(found, err)
		}
		return err == nil
	}
	known := note(d.findAccount())
	if known {
		warnings = d.unreadableSecrets(func(s rules.Source) bool { return s.File != "" }) // the daemon has other variables than this process
	}
	note(checkState(d.dirs.state))
	if known {
		note(checkOwner(d.dirs.state, d.account))
	}
	note(canMake("state_dir", d.dirs.state, d.dirs.state))
	note(checkSocket(c.Socket.Path))
	note(canMake("socket.path", c.Socket.Path, filepath.Dir(c.Socket.Path)))

	_, err := loadTLS(c.TLS.Cert, c.TLS.Key, c.TLS.ClientCA)
	note(err)
	if c.Preview.URL != "" {
		_, err := loadTLS(c.Preview.TLS.Cert, c.Preview.TLS.Key, "")
		note(err)
		_, err = tcpAddress(c.Preview.Listen, true)
		note(err)
		if u, err := url.Parse(c.Preview.URL); note(err) {
			_, err = preview.NewHosts(u.Hostname(), api.DefaultTenant)
			note(err)
		}
	}
	if c.TokensFile != "" {
		_, err := api.LoadTokens(c.TokensFile)
		note(err)
	}
	if known {
		gid, err := d.socketGroup()
		if note(err) {
			_, err = d.newLocalUsers(gid)
			note(err)
		}
	}
	authenticated := c.TokensFile != "" || c.TLS.ClientCA != ""
	if c.Listen != "" {
		_, err := tcpAddress(c.Listen, authenticated)
		note(err)
	}
	if c.Langbot.Listen != "" {
		secret, err := c.Langbot.Secret()
		if note(err) {
			if _, err := tcpAddress(c.Langbot.Listen, secret != ""); err != nil {
				note(fmt.Errorf("langbot: %w", err))
			}
		}
	}
	_, err = policy.New(c.Policy)
	note(err)
	if d.root {
		note(checkRoots(c.MountRoots()))
		note(o.InitError)
		note(canMake("runtime_dir", d.dirs.runtime, d.dirs.runtime))
	} else {
		socket := filepath.Join(d.dirs.runtime, native.SocketName)
		if _, err := os.Lstat(socket); err != nil {
			note(fmt.Errorf("launcher service at %q: is not running: start boxd-launcher.service, or start boxd serve as root, which starts one", socket))
		}
	}
	return found, warnings
}

// canMake refuses the value of a setting if this process cannot write in the directory dir, or in
// the nearest parent that exists.
func canMake(setting, value, dir string) error {
	for at := dir; ; at = filepath.Dir(at) {
		err := unix.Access(at, unix.W_OK|unix.X_OK)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue
		}
		if err != nil {
			return &engine.FieldError{Field: setting, Value: spec.Quote(value), Rule: fmt.Sprintf("user %d cannot write in %q: %v", os.Geteuid(), at, err)}
		}
		return nil
	}
}
