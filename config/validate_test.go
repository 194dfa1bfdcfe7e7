package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

func TestDerivedPaths(t *testing.T) {
	cases := []struct{ state, runtime, socket, wantRuntime, wantSocket, wantAudit string }{
		{"", "", "", "/run/boxd", "/run/boxd/boxd.sock", "/var/lib/boxd/audit.log"},
		{"/var/lib/boxd", "", "", "/run/boxd", "/run/boxd/boxd.sock", "/var/lib/boxd/audit.log"},
		{"/x", "", "", "/x/run", "/x/boxd.sock", "/x/audit.log"},
		{"/x", "/y", "", "/y", "/x/boxd.sock", "/x/audit.log"},
		{"/x", "", "/z/s", "/x/run", "/z/s", "/x/audit.log"},
		{"/var/lib/boxd", "/y", "", "/y", "/run/boxd/boxd.sock", "/var/lib/boxd/audit.log"},
	}
	for _, c := range cases {
		got := Default()
		got.StateDir, got.RuntimeDir, got.Socket.Path = c.state, c.runtime, c.socket
		for range 2 { // the second time changes nothing
			if err := got.Validate(); err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			if got.RuntimeDir != c.wantRuntime || got.Socket.Path != c.wantSocket || got.Audit.File != c.wantAudit {
				t.Errorf("%+v: %q, %q, %q", c, got.RuntimeDir, got.Socket.Path, got.Audit.File)
			}
		}
	}
}

func registry(host string, r Registry) func(*Config) {
	return func(c *Config) { c.Images.Registries = map[string]Registry{host: r} }
}

func TestValidate(t *testing.T) {
	long := "/" + strings.Repeat("x", maxSocketPath)
	cases := []struct {
		change func(*Config)
		field  string // empty: valid
	}{
		{func(c *Config) {}, ""},
		{func(c *Config) { c.Images.Platform = "linux/arm/v7" }, ""},
		{func(c *Config) { c.Images.Platform = "arm64" }, "images.platform"},
		{func(c *Config) { c.Images.MaxSize, c.Images.TenantSize = 0, 0 }, ""},
		{func(c *Config) { c.Images.MaxSize = 1 }, "images.max_size"},
		{func(c *Config) { c.Images.TenantSize = -1 }, "images.tenant_size"},
		{func(c *Config) { c.Images.Prefetch = []string{"python", "ghcr.io/a/b:c"} }, ""},
		{func(c *Config) { c.Images.Prefetch = []string{"python", "host"} }, "images.prefetch[1]"},
		{func(c *Config) { c.Images.Prefetch = []string{"sha256:" + strings.Repeat("0", 64)} }, "images.prefetch[0]"},
		{func(c *Config) { c.Images.Prefetch = []string{"../a"} }, "images.prefetch[0]"},
		{registry("docker.io", Registry{Mirrors: []string{"https://mirror.example.org:8443/hub"}, LoginFile: "/etc/boxd/hub"}), ""},
		{func(c *Config) {
			c.Images.Registries = map[string]Registry{"docker.io": {Mirrors: []string{"http://127.0.0.1:5001"}}, "127.0.0.1:5001": {Insecure: true}}
		}, ""},
		{registry("localhost:5000", Registry{Mirrors: []string{"http://127.0.0.1:5001"}, Insecure: true}), "images.registries.localhost:5000.mirrors[0]"},
		{registry("https://docker.io", Registry{}), "images.registries.https://docker.io"},
		{registry("GHCR.io", Registry{}), "images.registries.GHCR.io"},
		{registry("docker.io", Registry{Mirrors: []string{"http://mirror.example.org"}}), "images.registries.docker.io.mirrors[0]"},
		{registry("docker.io", Registry{Mirrors: []string{"https://a:b@mirror.example.org"}}), "images.registries.docker.io.mirrors[0]"},
		{registry("docker.io", Registry{Mirrors: []string{"mirror.example.org"}}), "images.registries.docker.io.mirrors[0]"},
		{registry("docker.io", Registry{LoginFile: "hub"}), "images.registries.docker.io.login_file"},
		{registry("docker.io", Registry{LoginFile: "/srv/hub"}), ""},
		{func(c *Config) { c.Langbot.ImageNames = map[string]string{"x": "python:3.12"} }, ""},
		{func(c *Config) { c.Langbot.ImageNames = map[string]string{"a": "host", "x": "no image"} }, "langbot.image_names.x"},
		{func(c *Config) {
			c.Langbot.ImageNames, c.Policy.AllowedImages = map[string]string{"x": "python:3.12"}, []string{"host"}
		}, "langbot.image_names.x"},
		{func(c *Config) {
			c.Langbot.ImageNames = map[string]string{"x": "python:3.12"}
			c.Policy.Profiles = map[string]policy.ProfileConfig{"langbot": {Locked: &[]string{"image"}}}
		}, "langbot.image_names.x"},
		{func(c *Config) { c.StateDir = "state" }, "state_dir"},
		{func(c *Config) { c.StateDir = "/" }, "state_dir"},
		{func(c *Config) { c.StateDir = "/a/../b" }, "state_dir"},
		{func(c *Config) { c.StateDir = "/a/" }, "state_dir"},
		{func(c *Config) { c.StateDir = "/a\nb" }, "state_dir"},
		{func(c *Config) { c.RuntimeDir = "run" }, "runtime_dir"},
		{func(c *Config) { c.InitPath = "boxd-init" }, "init_path"},
		{func(c *Config) { c.TokensFile = "tokens" }, "tokens_file"},
		{func(c *Config) { c.Audit.File = "audit.log" }, "audit.file"},
		{func(c *Config) { c.Socket.Path = long[:maxSocketPath] }, ""},
		{func(c *Config) { c.Socket.Path = long }, "socket.path"},
		{func(c *Config) { c.Socket.Mode = "0600" }, ""},
		{func(c *Config) { c.Socket.Mode = "0666" }, "socket.mode"},
		{func(c *Config) { c.Socket.Mode = "0664" }, ""},
		{func(c *Config) { c.Socket.Mode = "rw" }, "socket.mode"},
		{func(c *Config) { c.Socket.Mode = "" }, "socket.mode"},
		{func(c *Config) { c.Socket.Mode = "4660" }, "socket.mode"},
		{func(c *Config) { c.Socket.Mode = "-1" }, "socket.mode"},
		{func(c *Config) { c.Socket.Group = "a b" }, "socket.group"},
		{func(c *Config) { c.Socket.Group = "1000" }, ""},
		{func(c *Config) { c.User = "" }, ""},
		{func(c *Config) { c.User = "-x" }, "user"},
		{func(c *Config) { c.Log.Format = "xml" }, "log.format"},
		{func(c *Config) { c.Network = "nat" }, "network"},
		{func(c *Config) { c.Network = NetworkProxy }, ""},
		{func(c *Config) { c.Log.Format = "" }, "log.format"},
		{func(c *Config) { c.Log.Level = "INFO" }, "log.level"},
		{func(c *Config) { c.Audit.MaxSize = 1 }, "audit.max_size"},
		{func(c *Config) { c.Audit.MaxSize = engine.Unlimited }, "audit.max_size"},
		{func(c *Config) { c.Audit.Keep = 0 }, "audit.keep"},
		{func(c *Config) { c.Sessions.IdleTTL = 0 }, "sessions.idle_ttl"},
		{func(c *Config) { c.Sessions.IdleTTL = -1 }, "sessions.idle_ttl"},
		{func(c *Config) { c.Sessions.KeepEnded = 0 }, "sessions.keep_ended"},
		{func(c *Config) { c.HTTP.MetricLabels = []string{"team", "a b"} }, "http.metric_labels[1]"},
		{func(c *Config) { c.HTTP.MetricLabels = []string{"a-b", "a.b"} }, "http.metric_labels[1]"},
		{func(c *Config) { c.HTTP.MetricLabels = []string{"a", "b", "c", "d", "e"} }, "http.metric_labels[4]"},
		{func(c *Config) { c.History.SessionEntries = 0 }, "history.session_entries"},
		{func(c *Config) { c.History.TenantSize = c.History.SessionSize - 1 }, "history.tenant_size"},
		{func(c *Config) { c.History.Keep = 0 }, "history.keep"},
		{func(c *Config) { c.Sessions.MinFree = 51 }, "sessions.min_free"},
		{func(c *Config) { c.Sessions.MinFree = -1 }, "sessions.min_free"},
		{func(c *Config) { c.Sessions.StopGrace = 0 }, "sessions.stop_grace"},
		{func(c *Config) { c.Exec.OutputLimit = engine.Unlimited }, ""},
		{func(c *Config) { c.Exec.OutputLimit = 0 }, "exec.output_limit"},
		{func(c *Config) { c.Exec.CaptureLimit = 0 }, "exec.capture_limit"},
		{func(c *Config) { c.Relay.History = engine.MinHistory - 1 }, "relay.history"},
		{func(c *Config) { c.Relay.History = engine.MaxHistory + 1 }, "relay.history"},
		{func(c *Config) { c.Relay.MaxClients = 0 }, "relay.max_clients"},
		{func(c *Config) { c.HTTP.MaxBody = 0 }, "http.max_body"},
		{func(c *Config) { c.HTTP.MaxFile = 0 }, "http.max_file"},
		{func(c *Config) { c.HTTP.MaxTree = 0 }, "http.max_tree"},
		{func(c *Config) { c.HTTP.MaxConnections = 0 }, "http.max_connections"},
		{func(c *Config) { c.HTTP.HeaderTimeout = 0 }, "http.header_timeout"},
		{func(c *Config) { c.HTTP.IdleTimeout = 0 }, "http.idle_timeout"},
		{func(c *Config) { c.Policy.DefaultProfile = "no" }, "default_profile"},
		{func(c *Config) { c.Policy.Limits.Sessions = -2 }, "limits.sessions"},
	}
	for i, test := range cases {
		c := Default()
		test.change(&c)
		err := c.Validate()
		var bad *engine.FieldError
		switch {
		case test.field == "" && err != nil:
			t.Errorf("%d: %v, want nil", i, err)
		case test.field != "" && (!errors.As(err, &bad) || bad.Field != test.field || strings.Contains(err.Error(), "\n")):
			t.Errorf("%d: %v, want an error of %q", i, err, test.field)
		}
	}
}

func TestListen(t *testing.T) {
	tokens := func(c *Config) { c.TokensFile = "/t" }
	tls := func(c *Config) { c.TLS = TLS{Cert: "/c", Key: "/k"} }
	mtls := func(c *Config) { c.TLS = TLS{Cert: "/c", Key: "/k", ClientCA: "/ca"} }
	none := func(*Config) {}
	cases := []struct {
		listen string
		with   func(*Config)
		want   string // part of the error; empty: valid
	}{
		{"127.0.0.1:8420", none, ""},
		{"127.1.2.3:0", none, ""},
		{"[::1]:8420", none, ""},
		{"[::ffff:127.0.0.1]:8420", none, ""},
		{"localhost:8420", none, ""},
		{"0.0.0.0:8420", none, "is open to other hosts"},
		{":8420", none, "is open to other hosts"},
		{"[::]:8420", none, "is open to other hosts"},
		{"10.0.0.1:8420", none, "is open to other hosts"},
		{"localhost.example.org:8420", none, "is open to other hosts"},
		{"LOCALHOST.:8420", none, "is open to other hosts"},
		{"127.0.0.1.nip.io:8420", none, "is open to other hosts"},
		{"[::1%lo]:8420", none, "is open to other hosts"},
		{"0.0.0.0:8420", tokens, ""},
		{"0.0.0.0:8420", mtls, ""},
		{"0.0.0.0:8420", tls, "is open to other hosts"},
		{"127.0.0.1", none, "must be HOST:PORT"},
		{"127.0.0.1:", none, "port"},
		{"127.0.0.1:http", none, "port"},
		{"127.0.0.1:65536", none, "port"},
		{"127.0.0.1:08420", none, "port"},
		{"127.0.0.1:+1", none, "port"},
		{"::1:8420", none, "must be HOST:PORT"},
		{"", tls, "has no use without listen"},
		{"127.0.0.1:1", func(c *Config) { c.TLS.Cert = "/c" }, "needs both cert and key"},
		{"127.0.0.1:1", func(c *Config) { c.TLS.Key = "/k" }, "needs both cert and key"},
		{"127.0.0.1:1", func(c *Config) { c.TLS.ClientCA = "/k" }, "needs tls.cert"},
		{"0.0.0.0:1", func(c *Config) { c.TLS.ClientCA = "/k" }, "needs tls.cert"},
	}
	for _, test := range cases {
		c := Default()
		c.Listen = test.listen
		test.with(&c)
		err := c.Validate()
		if (test.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%q: %v, want %q", test.listen, err, test.want)
		}
		if err != nil && test.listen != "" && strings.HasPrefix(test.want, "is open") && !strings.Contains(err.Error(), test.listen) {
			t.Errorf("%q: %v does not name the address", test.listen, err)
		}
	}
}

func TestMountRoots(t *testing.T) {
	dir := t.TempDir()
	link, plain := filepath.Join(dir, "link"), filepath.Join(dir, "plain")
	if err := errors.Join(os.Symlink("/etc", link), os.Mkdir(plain, 0o700)); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "state")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	ownLink := filepath.Join(dir, "ownlink")
	if err := os.Symlink(own, ownLink); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		root string
		ok   bool
	}{
		{plain, true},
		{filepath.Join(dir, "not-there-yet"), true},
		{"/", false}, {"/etc", false}, {"/etc/ssl", false}, {"/proc/1", false}, {"/run/user", false}, {"/root/x", false}, {"/dev/shm", false},
		{"/var", false}, // /var/run
		{dir, false},    // contains the state directory
		{own, false},
		{filepath.Join(own, "workspaces"), false},
		{link, false},    // by its target
		{ownLink, false}, // as well
	}
	for _, test := range cases {
		for _, tenant := range []bool{false, true} {
			c := Default()
			c.StateDir = own
			field := "allowed_mount_roots[0]"
			if tenant {
				c.Policy.Tenants = map[string]policy.Tenant{"a": {AllowedMountRoots: &[]string{test.root}}}
				field = "tenants.a." + field
			} else {
				c.Policy.AllowedMountRoots = []string{test.root}
			}
			err := c.Validate()
			var bad *engine.FieldError
			if test.ok != (err == nil) || (err != nil && (!errors.As(err, &bad) || bad.Field != field)) {
				t.Errorf("%q: %v, want ok %v", test.root, err, test.ok)
			}
		}
	}
}

// TestNoKeyForgotten: a field of the policy's configuration that is a key must have
// come through keys, and those that the daemon fills in must not.
func TestNoKeyForgotten(t *testing.T) {
	for f := range fields(reflect.TypeFor[Config]()) {
		if f.name == "" || strings.ContainsAny(f.name, ", ") {
			t.Errorf("strange key %q", f.name)
		}
	}
	for i := range reflect.TypeFor[policy.Config]().NumField() {
		if f := reflect.TypeFor[policy.Config]().Field(i); f.Tag.Get("yaml") == "" {
			t.Errorf("policy.Config.%s has no yaml tag", f.Name)
		}
	}
}

func TestPublish(t *testing.T) {
	for _, c := range []struct {
		ports, address, listen string
		want                   string // the pool, or the key that is refused
	}{
		{"", "127.0.0.1", "", "0-0"},
		{"20000-20999", "127.0.0.1", "", "20000-20999"},
		{"20000-20000", "0.0.0.0", "", "20000-20000"},
		{"1024-65535", "::1", "", "1024-65535"},
		{"20000-20999", "::", "127.0.0.1:8420", "20000-20999"},
		{"20000", "127.0.0.1", "", "publish.ports"},
		{"20999-20000", "127.0.0.1", "", "publish.ports"},
		{"80-90", "127.0.0.1", "", "publish.ports"},
		{"20000-65536", "127.0.0.1", "", "publish.ports"},
		{"20000-20999-21000", "127.0.0.1", "", "publish.ports"},
		{"a-b", "127.0.0.1", "", "publish.ports"},
		{"8000-9000", "127.0.0.1", "127.0.0.1:8420", "publish.ports"},
		{"20000-20999", "localhost", "", "publish.address"},
		{"20000-20999", "127.0.0.1:80", "", "publish.address"},
		{"20000-20999", "fe80::1%eth0", "", "publish.address"},
		{"", "", "", "publish.address"},
	} {
		have := Default()
		have.Publish, have.Listen = Publish{c.ports, c.address}, c.listen
		err := have.Validate()
		got := have.Policy.Publish.String()
		if bad, ok := errors.AsType[*engine.FieldError](err); ok {
			got = bad.Field
		}
		if got != c.want {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}
