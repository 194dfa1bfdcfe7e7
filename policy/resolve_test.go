package policy

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

func newPolicy(t *testing.T, c Config) *Policy {
	t.Helper()
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ptr[T any](v T) *T { return &v }

func seconds(n float64) spec.Duration { return spec.Duration(n * float64(time.Second)) }

// TestBuiltinProfiles holds the numbers that are promised.
func TestBuiltinProfiles(t *testing.T) {
	p := newPolicy(t, Config{NetworkAvailable: true})
	cases := []struct {
		name                 string
		network              bool
		cpus                 float64
		memory, pids         int64
		writable             bool
		workspace            string
		timeout, cap, idle   time.Duration
		locked               []string
		upper, tmp, fileSize int64
		life                 time.Duration
	}{
		{"app", false, 2, 1 << 30, 512, false, "rw", time.Minute, time.Hour, 24 * time.Hour, nil, 0, 256 << 20, -1, 0},
		{"browser", false, 2, 2 << 30, 1024, false, "rw", 2 * time.Minute, 10 * time.Minute, 15 * time.Minute, nil, 0, 512 << 20, -1, 0},
		{"default", false, 1, 512 << 20, 256, false, "rw", 30 * time.Second, 120 * time.Second, 300 * time.Second, nil, 0, 64 << 20, -1, 0},
		{"execution", false, 1, 512 << 20, 128, false, "rw", time.Minute, 10 * time.Minute, 300 * time.Second, nil, 0, 64 << 20, -1, time.Hour},
		{"langbot", false, 1, 512 << 20, 256, false, "rw", 30 * time.Second, time.Hour, 300 * time.Second, nil, 0, 64 << 20, -1, 0},
		{"network_basic", true, 1, 512 << 20, 256, false, "rw", 30 * time.Second, 120 * time.Second, 300 * time.Second, nil, 0, 64 << 20, -1, 0},
		{"network_extended", true, 2, 1024 << 20, 512, true, "rw", 30 * time.Second, 300 * time.Second, 300 * time.Second, nil, 256 << 20, 64 << 20, -1, 0},
		{"offline_readonly", false, 0.5, 256 << 20, 64, false, "ro", 30 * time.Second, 60 * time.Second, 300 * time.Second,
			[]string{"network", "sensitive", "workspace_mode", "writable_root"}, 0, 64 << 20, -1, 0},
		{"run", false, 1, 512 << 20, 256, false, "none", 30 * time.Second, 0, 300 * time.Second, nil, 0, 64 << 20, -1, 0},
	}
	var names []string
	for _, profile := range p.Profiles() {
		names = append(names, profile.Name)
	}
	if want := []string{"app", "browser", "default", "execution", "langbot", "network_basic", "network_extended", "offline_readonly", "run"}; !slices.Equal(names, want) {
		t.Errorf("profiles %q, want %q", names, want)
	}
	for _, c := range cases {
		r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: c.name}})
		if err != nil {
			t.Fatal(err)
		}
		l := r.Spec().Limits
		if r.Profile != c.name || r.Network != c.network || l.CPUs != c.cpus || l.Memory != c.memory || l.PIDs != c.pids ||
			r.Spec().WritableRoot != c.writable || r.WorkspaceMode != c.workspace || r.Timeout.D() != c.timeout || r.TimeoutCap.D() != c.cap ||
			r.IdleTTL.D() != c.idle || r.Spec().UpperSize != c.upper || r.Spec().TmpSize != c.tmp || l.FileSize != c.fileSize ||
			r.MaxLifetime.D() != c.life || l.OpenFiles != 4096 || r.Persistent || r.WorkspaceSize != 0 || r.WorkspaceInodes != 0 || r.WorkspaceTarget != "/workspace" || r.MountMode != map[bool]string{true: "ro", false: "rw"}[c.workspace == "ro"] || len(r.Overridden) != 0 || r.Spec().AllowDegraded || len(r.Mounts) != 0 {
			t.Errorf("%s: %+v", c.name, r)
		}
		i := slices.IndexFunc(p.Profiles(), func(p Profile) bool { return p.Name == c.name })
		if got := p.Profiles()[i].Locked; !slices.Equal(got, c.locked) {
			t.Errorf("%s: locked %q, want %q", c.name, got, c.locked)
		}
	}
}

func TestDefaultProfile(t *testing.T) {
	r, err := newPolicy(t, Config{}).Resolve("a", Request{})
	if err != nil || r.Profile != "default" || r.Spec().Image != "host" || r.Spec().Hostname != "box" {
		t.Errorf("%+v, %v; want the default profile", r, err)
	}
	if r, err := newPolicy(t, Config{DefaultProfile: "offline_readonly"}).Resolve("a", Request{}); err != nil || r.Profile != "offline_readonly" {
		t.Errorf("%+v, %v; want offline_readonly", r, err)
	}
}

func TestRequestWins(t *testing.T) {
	p := newPolicy(t, Config{NetworkAvailable: true, AllowDegraded: true})
	r, err := p.Resolve("a", Request{Wishes: spec.Wishes{WritableRoot: ptr(true), WorkspaceMode: ptr("none"), User: &engine.User{UID: 1000, GID: 1001}, Env: map[string]string{"B": "2", "A": "1", "EMPTY": "", "X": "a=b\n"}, Timeout: ptr(seconds(60)), TmpSize: ptr(spec.Size(1 << 20)), UpperSize: ptr(spec.Size(2 << 20)), Hostname: "h", Image: ptr("host"), LiveWishes: spec.LiveWishes{CPUs: ptr(2.0), Memory: ptr(spec.Size(1 << 30)), PIDs: ptr(int64(7)), Network: ptr(true), IdleTTL: ptr(seconds(60)), MaxLifetime: ptr(seconds(3600)), Persistent: ptr(true), Retain: ptr("7d")}}})
	if err != nil {
		t.Fatal(err)
	}
	want := Resolved{
		Profile: "default", WorkspaceTarget: "/workspace", Env: []string{"A=1", "B=2", "EMPTY=", "X=a=b\n"}, TimeoutCap: seconds(120),
		Settings: spec.Settings{
			Image: "host", Pull: "never", Isolation: "namespaces", Require: true, Network: true, WorkspaceMode: "none", IdleTTL: seconds(60), MaxLifetime: seconds(3600), Persistent: true, Retain: "7d", Timeout: seconds(60), MountMode: "rw",
			WritableRoot: true, UpperSize: 2 << 20, TmpSize: 1 << 20, Memory: 1 << 30, PIDs: 7, CPUs: 2, OpenFiles: 4096, FileSize: -1,
		},
		Hostname: "h", User: engine.User{UID: 1000, GID: 1001}, AllowDegraded: true,
		Decisions: []Decision{{Action: ActionResolve, Allowed: true, Rule: "profile default", Details: map[string]any{"profile": "default"}}},
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
}

func TestLocks(t *testing.T) {
	p := newPolicy(t, Config{NetworkAvailable: true, Profiles: map[string]ProfileConfig{"all": {Locked: ptr(spec.Lockable())}}})
	r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: "offline_readonly", WorkspaceMode: ptr("rw"), WritableRoot: ptr(true), LiveWishes: spec.LiveWishes{Network: ptr(true), Memory: ptr(spec.Size(64 << 20))}}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Network || r.WorkspaceMode != "ro" || r.Spec().WritableRoot || r.Spec().Limits.Memory != 64<<20 {
		t.Errorf("a lock was passed: %+v", r)
	}
	want := []string{"network", "workspace_mode", "writable_root"}
	if !slices.Equal(r.Overridden, want) || !reflect.DeepEqual(r.Decisions[len(r.Decisions)-1].Details["overridden"], want) {
		t.Errorf("overridden %q, decisions %+v; want %q", r.Overridden, r.Decisions, want)
	}
	// What is asked for just as it is locked is not overridden.
	r, err = p.Resolve("a", Request{Wishes: spec.Wishes{Profile: "offline_readonly", WorkspaceMode: ptr("ro"), WritableRoot: ptr(false), LiveWishes: spec.LiveWishes{Network: ptr(false)}}})
	if err != nil || len(r.Overridden) != 0 {
		t.Errorf("overridden %q, %v; want none", r.Overridden, err)
	}
	// If everything is locked, even nonsense has no effect, and Overridden names all of it.
	r, err = p.Resolve("a", Request{Wishes: spec.Wishes{Profile: "all", Image: ptr("?"), Engine: ptr("x"), Isolation: ptr(""), Require: ptr(false), Timeout: ptr(seconds(-1)), TmpSize: ptr(spec.Size(-1)), UpperSize: ptr(spec.Size(-1)), WorkspaceMode: ptr("x"), WritableRoot: ptr(true), WorkspaceSize: ptr(spec.Size(-1)), WorkspaceInodes: ptr(int64(-1)), NetworkRules: &spec.NetworkRules{Allow: []string{"*"}}, LiveWishes: spec.LiveWishes{CPUs: ptr(math.NaN()), IdleTTL: ptr(seconds(-1)), MaxLifetime: ptr(seconds(-1)), Memory: ptr(spec.Size(-1)), Network: ptr(true), Sensitive: ptr(true), Persistent: ptr(true), AutoResume: ptr(true), Retain: ptr("x"), PIDs: ptr(int64(-1))}}})
	if err != nil || !slices.Equal(r.Overridden, spec.Lockable()) {
		t.Errorf("overridden %q, %v; want %q", r.Overridden, err, spec.Lockable())
	}
	plain, _ := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: "all"}})
	if !reflect.DeepEqual(r.Spec(), plain.Spec()) || r.Network || r.Persistent || r.IdleTTL != plain.IdleTTL {
		t.Errorf("locked profile gave %+v, want %+v", r, plain)
	}
}

func TestRefusals(t *testing.T) {
	p := newPolicy(t, Config{Profiles: map[string]ProfileConfig{
		"bounded": {AllowPersistent: ptr(false), Caps: spec.CapWishes{MaxLifetime: ptr(seconds(100))}, Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{MaxLifetime: ptr(seconds(60))}}},
		"nonet":   {AllowNetwork: ptr(false)},
	}})
	cases := []struct {
		r     Request
		field string
		text  string // part of the error
	}{
		{Request{Wishes: spec.Wishes{Profile: "no"}}, "profile", "default, execution, langbot, network_basic"},
		{Request{Wishes: spec.Wishes{Profile: "Default"}}, "profile", "unknown profile"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(4.01)}}}, "cpus", `4.01: is above the cap 4 of profile "default"`},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(math.Inf(1))}}}, "cpus", "above the cap"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(math.NaN())}}}, "cpus", "above the cap"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(-1.0)}}}, "cpus", "unlimited: is above the cap"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(0.0)}}}, "cpus", "must be above 0"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(0.001)}}}, "cpus", "0.01"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(4<<30 + 1))}}}, "memory", "is above the cap 4 GiB"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(-1))}}}, "memory", "unlimited: is above the cap"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(-5))}}}, "memory", "above the cap"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(0))}}}, "memory", "must be above 0"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(1))}}}, "memory", "4 MiB"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{PIDs: ptr(int64(1025))}}}, "pids", "is above the cap 1024"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{PIDs: ptr(int64(-1))}}}, "pids", "unlimited"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{PIDs: ptr(int64(0))}}}, "pids", "must be above 0"},
		{Request{Wishes: spec.Wishes{TmpSize: ptr(spec.Size(2 << 30))}}, "tmp_size", "is above the cap 1 GiB"},
		{Request{Wishes: spec.Wishes{TmpSize: ptr(spec.Size(0))}}, "tmp_size", "must be above 0"},
		{Request{Wishes: spec.Wishes{TmpSize: ptr(spec.Size(1))}}, "tmp_size", "64 KiB"},
		{Request{Wishes: spec.Wishes{WritableRoot: ptr(true), UpperSize: ptr(spec.Size(3 << 30))}}, "upper_size", "is above the cap 2 GiB"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: ptr(seconds(8 * 86400))}}}, "idle_ttl", "is above the cap 168h0m0s"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: ptr(seconds(0))}}}, "idle_ttl", "persistent"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{IdleTTL: ptr(seconds(-1))}}}, "idle_ttl", "must be 1s"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{MaxLifetime: ptr(seconds(-1))}}}, "max_lifetime", "must be at most"},
		{Request{Wishes: spec.Wishes{Profile: "bounded", LiveWishes: spec.LiveWishes{MaxLifetime: ptr(seconds(101))}}}, "max_lifetime", "1m41s: is above the cap 1m40s"},
		{Request{Wishes: spec.Wishes{Profile: "bounded", LiveWishes: spec.LiveWishes{MaxLifetime: ptr(seconds(0))}}}, "max_lifetime", "(no end): is above the cap"},
		{Request{Wishes: spec.Wishes{Profile: "bounded", LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}}, "persistent", "allow_persistent is false"},
		{Request{Wishes: spec.Wishes{Timeout: ptr(seconds(0))}}, "timeout", "above 0"},
		{Request{Wishes: spec.Wishes{Timeout: ptr(seconds(-1))}}, "timeout", "above 0"},
		{Request{Wishes: spec.Wishes{WorkspaceMode: ptr("")}}, "workspace_mode", `"rw", "ro" or "none"`},
		{Request{Wishes: spec.Wishes{WorkspaceMode: ptr("RO")}}, "workspace_mode", `"rw", "ro" or "none"`},
		{Request{Wishes: spec.Wishes{Image: ptr("Debian")}}, "image", "host"},
		{Request{Wishes: spec.Wishes{Hostname: "a b"}}, "hostname", "RFC 1123"},
		{Request{Wishes: spec.Wishes{User: &engine.User{UID: -1}}}, "user", ""},
		{Request{Wishes: spec.Wishes{User: &engine.User{GID: 65535}}}, "user", ""},
		{Request{Wishes: spec.Wishes{Env: map[string]string{"": "x"}}}, "env", "must not be empty"},
		{Request{Wishes: spec.Wishes{Env: map[string]string{"A=B": "x"}}}, "env", "must not be empty"},
		{Request{Wishes: spec.Wishes{Env: map[string]string{"A\x00": "x"}}}, "env", "NUL"},
		{Request{Wishes: spec.Wishes{Env: map[string]string{"A": "x\x00"}}}, "env[0]", "NUL"},
		{Request{Wishes: spec.Wishes{Env: map[string]string{"A": strings.Repeat("x", 40<<10), "B": strings.Repeat("x", 30<<10)}}}, "env", "at most 65536 bytes"},
		{Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Network: ptr(true)}}}, "network", "gives no box a network"},
		{Request{Wishes: spec.Wishes{Profile: "network_basic"}}, "network", "gives no box a network"},
		{Request{Wishes: spec.Wishes{Profile: "network_extended"}}, "network", "gives no box a network"},
		{Request{Wishes: spec.Wishes{Profile: "nonet", LiveWishes: spec.LiveWishes{Network: ptr(true)}}}, "network", "allow_network is false"},
	}
	for _, c := range cases {
		_, err := p.Resolve("a", c.r)
		var bad *engine.FieldError
		var denied *DeniedError
		field := ""
		switch {
		case errors.As(err, &bad):
			field = bad.Field
		case errors.As(err, &denied) && errors.Is(err, ErrDenied):
			field = denied.Field
		}
		if !strings.HasPrefix(field, c.field) || field == "" || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v:\n got %v\nwant %s: … %s", c.r, err, c.field, c.text)
		}
	}
	for _, tenant := range []string{"", "../a", "a/b", "\x00"} {
		var bad *engine.FieldError
		if _, err := p.Resolve(tenant, Request{}); !errors.As(err, &bad) || bad.Field != "tenant" {
			t.Errorf("tenant %q: %v, want an error of it", tenant, err)
		}
	}
}

// TestNetworkOff: asking for no network makes the network profiles usable.
func TestNetworkOff(t *testing.T) {
	r, err := newPolicy(t, Config{}).Resolve("a", Request{Wishes: spec.Wishes{Profile: "network_extended", LiveWishes: spec.LiveWishes{Network: ptr(false)}}})
	if err != nil || r.Network || r.Spec().Limits.PIDs != 512 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestUnlimitedCaps(t *testing.T) {
	p := newPolicy(t, Config{Profiles: map[string]ProfileConfig{"free": {Caps: spec.CapWishes{
		CPUs: ptr(-1.0), Memory: ptr(spec.Size(-1)), PIDs: ptr(int64(-1)), Timeout: ptr(seconds(-1)), IdleTTL: ptr(seconds(-1)),
	}}}})
	r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: "free", Timeout: ptr(seconds(1e6)), LiveWishes: spec.LiveWishes{CPUs: ptr(-1.0), Memory: ptr(spec.Size(-1)), PIDs: ptr(int64(-1)), IdleTTL: ptr(seconds(1e7))}}})
	if err != nil || r.Spec().Limits.Memory != engine.Unlimited || r.Spec().Limits.CPUs != engine.Unlimited || r.Spec().Limits.PIDs != engine.Unlimited ||
		r.Timeout.D() != 1e6*time.Second || r.TimeoutCap != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if got := p.Timeout(r, 2e6*time.Second); got != 2e6*time.Second {
		t.Errorf("timeout %v, want what was asked", got)
	}
	if got := p.Timeout(r, math.MaxInt64); got != spec.MaxTime {
		t.Errorf("timeout %v, want %v: more the engine refuses", got, spec.MaxTime)
	}
	for name, r := range map[string]Request{
		"nan": {Wishes: spec.Wishes{Profile: "free", LiveWishes: spec.LiveWishes{CPUs: ptr(math.NaN())}}}, "inf": {Wishes: spec.Wishes{Profile: "free", LiveWishes: spec.LiveWishes{CPUs: ptr(math.Inf(1))}}}, "-2": {Wishes: spec.Wishes{Profile: "free", LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(-2))}}},
	} {
		if _, err := p.Resolve("a", r); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestTimeout(t *testing.T) {
	p := newPolicy(t, Config{})
	r, err := p.Resolve("a", Request{Wishes: spec.Wishes{Timeout: ptr(seconds(1000))}})
	if err != nil || r.Timeout.D() != 120*time.Second {
		t.Fatalf("timeout %v, %v; want it cut to the cap", r.Timeout, err)
	}
	r, _ = p.Resolve("a", Request{Wishes: spec.Wishes{Timeout: ptr(seconds(10))}})
	for asked, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, -5: 10 * time.Second, 1: 1, 120 * time.Second: 120 * time.Second, 121 * time.Second: 120 * time.Second, math.MaxInt64: 120 * time.Second,
	} {
		if got := p.Timeout(r, asked); got != want {
			t.Errorf("Timeout(%v) = %v, want %v", asked, got, want)
		}
	}
	d := p.MayExec(r, time.Hour)
	if !d.Allowed || d.Action != ActionExec || d.Details["timeout"] != "2m0s" || d.Details["asked"] != "1h0m0s" || !strings.Contains(d.Rule, "cut to the cap") {
		t.Errorf("%+v", d)
	}
	if d := p.MayExec(r, 0); d.Details["timeout"] != "10s" || d.Details["asked"] != nil {
		t.Errorf("%+v", d)
	}
}

// TestTimeoutLater: sessions from before a change of the configuration, and a Resolved
// in which something is missing, never run without an end.
func TestTimeoutLater(t *testing.T) {
	old, err := newPolicy(t, Config{Profiles: map[string]ProfileConfig{
		"p": {Wishes: spec.Wishes{Timeout: ptr(seconds(90))}}, "free": {Caps: spec.CapWishes{Timeout: ptr(seconds(-1))}},
	}}).Resolve("a", Request{Wishes: spec.Wishes{Profile: "p"}})
	if err != nil {
		t.Fatal(err)
	}
	p := newPolicy(t, Config{Profiles: map[string]ProfileConfig{"p": {Caps: spec.CapWishes{Timeout: ptr(seconds(10))}, Wishes: spec.Wishes{Timeout: ptr(seconds(5))}}}})
	cases := []struct {
		r           Resolved
		asked, want time.Duration
	}{
		{old, 0, 10 * time.Second},
		{old, 3 * time.Second, 3 * time.Second},
		{old, time.Hour, 10 * time.Second},
		{Resolved{Profile: "gone", Settings: spec.Settings{Timeout: seconds(3600)}}, 0, 120 * time.Second},
		{Resolved{}, 0, 30 * time.Second},
		{Resolved{}, time.Hour, 120 * time.Second},
		{Resolved{Settings: spec.Settings{Timeout: -1}, TimeoutCap: -1}, -1, 30 * time.Second},
		{Resolved{Profile: "p", TimeoutCap: seconds(1)}, 0, time.Second},
	}
	for _, c := range cases {
		if got := p.Timeout(c.r, c.asked); got != c.want {
			t.Errorf("Timeout(%+v, %v) = %v, want %v", c.r, c.asked, got, c.want)
		}
	}
}

func TestTenantProfiles(t *testing.T) {
	p := newPolicy(t, Config{Tenants: map[string]Tenant{"a": {Profiles: []string{"offline_readonly"}}}})
	if r, err := p.Resolve("a", Request{}); err != nil || r.Profile != "offline_readonly" {
		t.Errorf("%+v, %v; want the tenant's first profile", r, err)
	}
	if _, err := p.Resolve("a", Request{Wishes: spec.Wishes{Profile: "default"}}); !errors.Is(err, ErrDenied) {
		t.Errorf("%v, want ErrDenied", err)
	}
	if _, err := p.Resolve("b", Request{Wishes: spec.Wishes{Profile: "default"}}); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

func TestIdleDecision(t *testing.T) {
	p := newPolicy(t, Config{})
	for _, c := range []struct {
		persistent bool
		running    int
		want       bool
	}{{false, 0, false}, {false, 1, true}, {true, 0, true}, {true, 2, true}} {
		if d := p.MayStayIdle(Resolved{Settings: spec.Settings{Persistent: c.persistent}}, c.running); d.Allowed != c.want || d.Action != ActionIdleExempt || d.Rule == "" {
			t.Errorf("%+v: %+v", c, d)
		}
	}
}

func TestWorkspaceMount(t *testing.T) {
	for mode, readOnly := range map[string]bool{"rw": false, "ro": true} {
		want := engine.Mount{Source: "/s/w", Target: "/workspace", ReadOnly: readOnly, Within: "/s", Users: true}
		if got := (Resolved{Settings: spec.Settings{WorkspaceMode: mode}}).WorkspaceMount("/s/w", "/s"); got != want {
			t.Errorf("%s: %+v, want %+v", mode, got, want)
		}
		want = engine.Mount{Source: "/", Target: "/data", ReadOnly: readOnly, Volume: "w-1", Users: true}
		if got := (Resolved{Settings: spec.Settings{WorkspaceMode: mode}, WorkspaceTarget: "/data"}).VolumeMount("w-1"); got != want {
			t.Errorf("%s: %+v, want %+v", mode, got, want)
		}
	}
}
