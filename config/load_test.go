package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

func load(t *testing.T, text string, env map[string]string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "boxd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
}

func TestLoad(t *testing.T) {
	c, err := load(t, `
# a comment
state_dir: /srv/boxd
socket:
  group: bots   # another
  mode: 0600
listen: "127.0.0.1:8420"
log: {format: json, level: "debug"}
audit: {max_size: 1.5G, keep: 3, sync: true}
sessions:
  idle_ttl: 90
allowed_mount_roots:
  - /srv/jobs
  - "/srv/data"
tenants:
  alice:
    quotas: {sessions: 3, cpus: 1.5, memory: 1GiB}
    allowed_mount_roots: []
    profiles: [default]
  bob:
profiles:
  default: {memory: 1G, caps: {memory: 8G, timeout: 10m}}
  big:
    extends: network_extended
    locked: [network, memory]
    caps:
      max_lifetime: -1
limits:
  memory: -1
http:
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ got, want any }
	alice := c.Policy.Tenants["alice"]
	for i, r := range []row{
		{c.StateDir, "/srv/boxd"}, {c.Socket.Group, "bots"}, {c.Socket.Mode, "0600"}, {c.Listen, "127.0.0.1:8420"},
		{c.Log, Log{"json", "debug"}}, {c.Audit.MaxSize, spec.Size(3 << 29)}, {c.Audit.Keep, 3}, {c.Audit.Sync, true},
		{time.Duration(c.Sessions.IdleTTL), 90 * time.Second},
		{c.Policy.AllowedMountRoots, []string{"/srv/jobs", "/srv/data"}},
		{alice.Quotas, policy.Quotas{Sessions: 3, CPUs: 1.5, Memory: 1 << 30}},
		{*alice.AllowedMountRoots, []string{}}, {alice.Profiles, []string{"default"}},
		{c.Policy.Tenants["bob"], policy.Tenant{}},
		{*c.Policy.Profiles["default"].Memory, spec.Size(1 << 30)},
		{*c.Policy.Profiles["default"].Caps.Timeout, spec.Duration(10 * time.Minute)},
		{c.Policy.Profiles["big"].Extends, "network_extended"}, {*c.Policy.Profiles["big"].Locked, []string{"network", "memory"}},
		{c.Policy.Limits.Memory, spec.Size(engine.Unlimited)}, {c.Policy.Limits.Sessions, policy.DefaultLimits.Sessions},
		{c.HTTP, Default().HTTP}, {c.User, ""},
	} {
		if !reflect.DeepEqual(r.got, r.want) {
			t.Errorf("%d: %#v, want %#v", i, r.got, r.want)
		}
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestEmptyFiles(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "---\n...\n", "null\n", "state_dir:\n", "log:\n  # nothing\n", "tenants:\n", "listen: ~\n"} {
		c, err := load(t, text, nil)
		if err != nil || !reflect.DeepEqual(c, Default()) {
			t.Errorf("%q: %+v, %v; want the defaults", text, c, err)
		}
	}
	if c, err := Load("", nil); err != nil || !reflect.DeepEqual(c, Default()) {
		t.Errorf("no file: %+v, %v; want the defaults", c, err)
	}
}

func TestBadFiles(t *testing.T) {
	cases := []struct{ text, want string }{
		{"stat_dir: /x\n", `:1:1: unknown key "stat_dir"; did you mean "state_dir"?`},
		{"log:\n  leve: info\n", `:2:3: unknown key "log.leve"; did you mean "log.level"?`},
		{"log:\n  quux_and_more: info\n", `:2:3: unknown key "log.quux_and_more"; there are format, level`},
		{"log: {format: json, Level: info}\n", `unknown key "log.Level"; did you mean "log.level"?`},
		{"policy:\n  limits: {}\n", `:1:1: unknown key "policy"`},
		{"tenants:\n  a:\n    quotas:\n      session: 1\n", `:4:7: unknown key "tenants.a.quotas.session"; did you mean "tenants.a.quotas.sessions"?`},
		{"profiles: {a: {caps: {network: true}}}\n", `unknown key "profiles.a.caps.network"`},
		{"profiles: {a: {network_rules: {inject: [{host: a, hedaer: b}]}}}\n", `unknown key "profiles.a.network_rules.inject[0].hedaer"`},
		{"profiles: {a: {network_rules: {inject: [a]}}}\n", `profiles.a.network_rules.inject[0]: must have keys of its own`},
		{"profiles: {a: {network_rules: {inject: [null]}}}\n", `profiles.a.network_rules.inject[0]: must have keys of its own`},
		{"profiles: {a: {network_rules: {inject: {host: a}}}}\n", `profiles.a.network_rules.inject: must be a list`},
		{"profiles: {a: {network_rules: {inject: [{value_from: {fiel: a}}]}}}\n", `unknown key "profiles.a.network_rules.inject[0].value_from.fiel"`},
		{"network_available: true\n", `unknown key "network_available"`},
		{"idle_ttl: 1\n", `unknown key "idle_ttl"`},
		{"langbott: {}\n", `unknown key "langbott"; did you mean "langbot"?`},
		{"state_dir: [/a]\n", `:1:12: state_dir: must be a single value`},
		{"state_dir: {a: b}\n", `state_dir: must be a single value`},
		{"allowed_mount_roots: /srv\n", `:1:22: allowed_mount_roots: must be a list`},
		{"allowed_mount_roots: [[/srv]]\n", `allowed_mount_roots[0]: must be a single value`},
		{"allowed_mount_roots: [~]\n", `allowed_mount_roots[0]: must be a single value`},
		{"log: json\n", `:1:6: log: must have keys of its own`},
		{"log: [json]\n", `log: must have keys of its own`},
		{"- a\n", `:1:1: the file: must have keys of its own`},
		{"hello\n", `:1:1: the file: must have keys of its own`},
		{"audit: {keep: many}\n", `:1:15: audit.keep: "many": must be a whole number`},
		{"audit: {keep: 1.5}\n", `audit.keep: "1.5": must be a whole number`},
		{"audit: {keep: 99999999999999999999}\n", `must be a whole number`},
		{"audit: {sync: yes}\n", `audit.sync: "yes": must be true or false`},
		{"audit:\n  max_size: 10 apples\n", `:2:13: audit.max_size: size "10 apples": must be a number of bytes`},
		{"sessions: {idle_ttl: soon}\n", `sessions.idle_ttl: duration "soon": must be a duration`},
		{"limits: {cpus: .inf}\n", `limits.cpus: must be a single value`},
		{"limits: {cpus: 1e3}\n", `must be a decimal number`},
		{"user: a\nuser: b\n", `:2:1: `},
		{"log: {level: info, level: debug}\n", `:1:20: `},
		{"tenants: {a: {}, a: {}}\n", `:1:18: `},
		{"a: &x 1\nuser: *x\n", `unknown key "a"`},
		{"user: &x root\nlisten: *x\n", `:1:7: user: anchors`},
		{"user: !!str boxd\n", `anchors, aliases, tags and merge keys are not understood`},
		{"log:\n  <<: {level: info}\n", `anchors, aliases, tags and merge keys are not understood`},
		{"user: a\n---\nuser: b\n", `:3:5: a second document`},
		{"user: \"a\n", `:1:7: `},
		{"\tuser: a\n", `:1:`},
		{"log: {level\n", `:1:`},
		{"user: a\n  b: c\n", `:`},
	}
	for _, c := range cases {
		_, err := load(t, c.text, nil)
		var bad *ParseError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "boxd.yaml") {
			t.Errorf("%q:\n got %v\nwant %q", c.text, err, c.want)
		}
	}
}

func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	fifo, big := filepath.Join(dir, "fifo"), filepath.Join(dir, "big")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.WriteFile(big, make([]byte, maxFile+1), 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file", dir: "is not a regular file", fifo: "is not a regular file", big: "is longer than",
	} {
		if _, err := Load(path, nil); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	file := "log: {level: debug}\nuser: alice\nallowed_mount_roots: [/a]\nlimits: {cpus: 4}\n"
	c, err := load(t, file, map[string]string{
		"BOXD_LOG_LEVEL": "warn", "BOXD_SOCKET": "/tmp/s", "BOXD_ALLOWED_MOUNT_ROOTS": "/b:/c", "BOXD_LIMITS_CPUS": "-1",
		"BOXD_AUDIT_SYNC": "true", "BOXD_RELAY_HISTORY": "2M", "BOXD_SESSIONS_IDLE_TTL": "5m", "BOXD_USER": "", "BOXD_INIT": "/i",
		"BOXD_HTTP_MAX_CONNECTIONS": "17",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Log.Level, want.Socket.Path, want.Policy.AllowedMountRoots, want.Policy.Limits.CPUs = "warn", "/tmp/s", []string{"/b", "/c"}, -1
	want.Audit.Sync, want.Relay.History, want.Sessions.IdleTTL, want.User, want.InitPath = true, 2<<20, spec.Duration(5*time.Minute), "alice", "/i"
	want.HTTP.MaxConnections = 17
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	for name, text := range map[string]string{"BOXD_AUDIT_KEEP": "x", "BOXD_AUDIT_SYNC": "1", "BOXD_RELAY_HISTORY": "-5", "BOXD_HTTP_IDLE_TIMEOUT": "x"} {
		if _, err := load(t, "", map[string]string{name: text}); err == nil || !strings.HasPrefix(err.Error(), "environment: "+name+" (key ") {
			t.Errorf("%s=%s: %v, want an error with the name", name, text, err)
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "ac", 1}, {"kitten", "sitting", 3},
	} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("editDistance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// FuzzParse: no file makes the parser panic, hang or return an error of several lines, and
// what it accepts it accepts again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "state_dir: /x\n", "a: &x [1]\nb: *x\n", "log:\n  level: info\n", "tenants: {a: {quotas: {cpus: 1}}}", "? a\n: b\n", "a: |\n  x\n", "\x00", "---\n---\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := Default()
		if err := parse("f", b, &c); err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		again := Default()
		if err := parse("f", b, &again); err != nil || !reflect.DeepEqual(c, again) {
			t.Errorf("second time: %v", err)
		}
	})
}

// TestDocumentedBlocks: a reader can copy each YAML block of these documents as it stands.
func TestDocumentedBlocks(t *testing.T) {
	for _, name := range []string{"images.md", "zygotes.md"} {
		text, err := os.ReadFile("../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
		if len(blocks) == 0 {
			t.Errorf("docs/%s has no YAML", name)
		}
		for _, block := range blocks {
			c, err := load(t, block[1], nil)
			if err == nil {
				err = c.Validate()
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, block[1])
			}
		}
	}
}
