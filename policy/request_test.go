package policy

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

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
		l := got.Spec().Limits
		if err := got.Spec().Validate(); err != nil {
			t.Error(err)
		}
		if !(l.CPUs > 0 && l.CPUs <= 4) || l.Memory <= 0 || l.Memory > 4<<30 || l.PIDs <= 0 || l.PIDs > 1024 || got.Timeout <= 0 || got.Timeout > seconds(300) ||
			got.IdleTTL.D() < spec.MinIdleTTL || got.MaxLifetime < 0 {
			t.Errorf("%s gave %+v", b, got)
		}
		for _, m := range got.Mounts {
			if m.Within != "/srv/a" {
				t.Errorf("%s mounts %+v", b, m)
			}
		}
	})
}
