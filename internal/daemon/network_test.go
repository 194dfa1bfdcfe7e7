package daemon

import (
	"bytes"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/policy"
)

// TestLeadsTo: which connections of boxes would reach a listener of the daemon.
func TestLeadsTo(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	pool := policy.PortPool{First: 20000, Last: 20009, Address: netip.MustParseAddr("127.0.0.1")}
	for _, c := range []struct {
		listener, to string
		own          []netip.Addr
		want         bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", own, true}, {"127.0.0.1:80", "127.9.9.9:80", own, true}, {"127.0.0.1:80", "[::1]:80", own, true}, {"127.0.0.1:80", "127.0.0.1:81", own, false},
		{"0.0.0.0:80", "192.0.2.1:80", own, true}, {"[::]:80", "[::ffff:192.0.2.1]:80", own, true}, {"127.0.0.1:80", "192.0.2.1:80", own, true},
		{"198.51.100.1:80", "198.51.100.1:80", own, true}, {"127.0.0.1:80", "192.0.2.2:80", own, false}, {"0.0.0.0:80", "0.0.0.0:80", own, true},
		{"127.0.0.1:80", "127.0.0.1:20000", own, true}, {"127.0.0.1:80", "192.0.2.1:20009", own, true}, {"127.0.0.1:80", "127.0.0.1:20010", own, false}, {"127.0.0.1:80", "192.0.2.2:20000", own, false},
		{"127.0.0.1:80", "192.0.2.2:80", nil, true}, {"127.0.0.1:80", "192.0.2.2:81", nil, false}, // every address may be the host's
	} {
		l := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.listener))
		if got := leadsTo(netip.MustParseAddrPort(c.to), []*net.TCPAddr{l}, pool, c.own); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// TestNetworkFiles: connections of boxes leave the rest of the daemon what it needs.
func TestNetworkFiles(t *testing.T) {
	for _, c := range []struct {
		have, need uint64
		want       int
	}{{1000, 100, 500}, {1000, 700, 300}, {1000, 990, 250}, {1000, 5000, 250}, {20_000, 156_000, 5000}, {0, 0, 0}} {
		if got := networkFiles(c.have, c.need); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	// The default quotas, in a process that root started.
	c := config.Default()
	c.Network = config.NetworkProxy
	need := filesNeeded(c)
	if got := networkFiles(wantedFiles, need); got < wantedFiles/4 || uint64(got)+need > wantedFiles {
		t.Errorf("%d for connections of boxes, %d for the rest, of %d", got, need, wantedFiles)
	}
	without := c
	without.Network = config.NetworkOff
	if filesNeeded(without) >= need {
		t.Error("the listeners in boxes are not counted")
	}
}

// TestStandardLog: what libraries log is one line of the daemon's log, at level debug.
func TestStandardLog(t *testing.T) {
	out, flags := log.Writer(), log.Flags()
	defer func() { log.SetOutput(out); log.SetFlags(flags) }()
	var b bytes.Buffer
	level := new(slog.LevelVar)
	catchStandardLog(NewLogger(&b, "text", level))
	log.Printf("Unsolicited response received on idle HTTP channel starting with %s", "HTTP/1.1 200\nlevel=ERROR msg=forged")
	if b.Len() != 0 {
		t.Errorf("%q", b.String())
	}
	level.Set(slog.LevelDebug)
	log.Print("one\ntwo")
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=DEBUG") {
		t.Errorf("%q", got)
	}
}

// TestUnreadableSecrets: what root can read and the daemon's user cannot is reported, and the reverse.
func TestUnreadableSecrets(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // the daemon's user may look for it
		t.Fatal(err)
	}
	self := account{uid: os.Getuid(), gid: os.Getgid()}
	if os.Geteuid() == 0 {
		self = account{name: "daemon", uid: 1, gid: 1}
	}
	file := func(name string, mode os.FileMode, owner int) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte("user:secret\n"), 0o600), os.Chown(path, owner, owner), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	closed, open, missing := file("closed", 0, os.Getuid()), file("open", 0o400, self.uid), filepath.Join(dir, "missing")
	inject := func(file string) []rules.Inject { return []rules.Inject{{ValueFrom: rules.Source{File: file}}} }
	c := config.Config{}
	c.Policy.Tenants = map[string]policy.Tenant{"a": {}, "b": {}, "c": {}, "d": {}}
	for name, list := range map[string][]rules.Inject{"a": inject(closed), "b": inject(open), "c": inject(missing), "d": {{ValueFrom: rules.Source{Env: "BOXD_TEST_MISSING"}}}} {
		tenant := c.Policy.Tenants[name]
		tenant.NetworkRules.Inject = list
		c.Policy.Tenants[name] = tenant
	}
	c.Policy.Profiles = map[string]policy.ProfileConfig{"p": {}}
	profile := c.Policy.Profiles["p"]
	profile.NetworkRules.UpstreamLogin = &closed
	c.Policy.Profiles["p"] = profile
	c.Images.Registries = map[string]config.Registry{"registry.example.org": {LoginFile: closed}, "other.example.org": {LoginFile: open}}
	d := daemon{Options: Options{Config: c}, account: self}
	found := d.unreadableSecrets(func(s rules.Source) bool { return s.File != "" })
	want := []struct{ setting, file string }{
		{"profiles.p.network_rules.upstream_login: ", closed}, {"tenants.a.network_rules.inject[0].value_from: ", closed}, {"tenants.c.network_rules.inject[0].value_from: ", missing},
		{"images.registries.registry.example.org.login_file: ", closed},
	}
	for i, w := range want {
		if len(found) != len(want) || !strings.HasPrefix(found[i].Error(), w.setting) || !strings.Contains(found[i].Error(), w.file) || !strings.Contains(found[i].Error(), "the daemon's user "+self.String()) {
			t.Fatalf("%q, want %+v", found, want)
		}
	}
	if all := d.unreadableSecrets(func(rules.Source) bool { return true }); len(all) != len(want)+1 || !strings.Contains(errors.Join(all...).Error(), "BOXD_TEST_MISSING") {
		t.Errorf("with variables: %q", all)
	}
}
