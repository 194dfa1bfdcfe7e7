package policy

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
)

func TestSizeJSON(t *testing.T) {
	good := map[string]Size{
		`0`: 0, `65536`: 65536, `"65536"`: 65536, `"512M"`: 512 << 20, `"512MB"`: 512 << 20, `"1.5GiB"`: 3 << 29, `-1`: engine.Unlimited, `"-1"`: engine.Unlimited,
	}
	for text, want := range good {
		var got Size
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
		out, err := json.Marshal(got)
		var again Size
		if err != nil || json.Unmarshal(out, &again) != nil || again != got {
			t.Errorf("%s is written as %s, %v", text, out, err)
		}
	}
	for _, text := range []string{`-2`, `1.5`, `1e3`, `""`, `"M"`, `"512X"`, `"1 000"`, `true`, `{}`, `[1]`, `9999999999999999999999`, `"0x10"`, `"\u0000"`} {
		var got Size
		if err := json.Unmarshal([]byte(text), &got); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %d, %v; want an error", text, got, err)
		}
	}
}

func TestDurationJSON(t *testing.T) {
	good := map[string]time.Duration{
		`0`: 0, `30`: 30 * time.Second, `1.5`: 1500 * time.Millisecond, `"30s"`: 30 * time.Second, `"1h30m"`: 90 * time.Minute, `"30"`: 30 * time.Second, `-1`: -time.Second, `1e3`: 1000 * time.Second,
	}
	for text, want := range good {
		var got Duration
		if err := json.Unmarshal([]byte(text), &got); err != nil || time.Duration(got) != want {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
		out, err := json.Marshal(got)
		var again Duration
		if err != nil || json.Unmarshal(out, &again) != nil || again != got {
			t.Errorf("%s is written as %s, %v", text, out, err)
		}
	}
	for _, text := range []string{`""`, `"soon"`, `"5 minutes"`, `true`, `{}`, `1e300`, `-1e300`, `"NaN"`, `"Inf"`, `9223372037`, `"1d"`} {
		var got Duration
		if err := json.Unmarshal([]byte(text), &got); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v; want an error", text, got, err)
		}
	}
}

func TestNullUnits(t *testing.T) {
	var r Request
	if err := json.Unmarshal([]byte(`{"memory": null, "timeout": null, "cpus": null}`), &r); err != nil || r.Memory != nil || r.Timeout != nil || r.CPUs != nil {
		t.Errorf("%+v, %v; want nothing set", r, err)
	}
}

// FuzzRequest: whatever JSON asks for, the answer is an error or a valid spec below
// the caps.
func FuzzRequest(f *testing.F) {
	p, err := New(Config{AllowedMountRoots: []string{"/srv/a"}, NetworkAvailable: true})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{
		`{}`, `{"memory":"512M","cpus":0.5,"timeout":"30s"}`, `{"profile":"offline_readonly","network":true}`, `{"mounts":[{"source":"/srv/a","target":"/m"}]}`,
		`{"workspace":"/srv/a","workspace_mode":"ro"}`, `{"env":{"A":"b"},"user":{"uid":1,"gid":2}}`, `{"cpus":-1,"pids":-1,"memory":-1}`, `{"idle_ttl":1e9,"max_lifetime":5}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		if json.Unmarshal(b, &r) != nil {
			return
		}
		got, err := p.Resolve("a", r)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		l := got.Spec.Limits
		if err := got.Spec.Validate(); err != nil {
			t.Error(err)
		}
		if !(l.CPUs > 0 && l.CPUs <= 4) || l.Memory <= 0 || l.Memory > 4<<30 || l.PIDs <= 0 || l.PIDs > 1024 || got.Timeout <= 0 || got.Timeout > 300*time.Second ||
			got.IdleTTL < MinIdleTTL || got.MaxLifetime < 0 {
			t.Errorf("%s gave %+v", b, got)
		}
		for _, m := range got.Spec.Mounts {
			if m.Within != "/srv/a" {
				t.Errorf("%s mounts %+v", b, m)
			}
		}
	})
}
