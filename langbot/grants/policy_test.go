package grants

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/boxd/boxd/langbot/protocol"
)

var defaults = Policy{false, 1, 0, 300, 120, 1, 512, 128, true, 0, 15}

func TestParsePolicy(t *testing.T) {
	for raw, change := range map[string]func(*Policy){
		``: nil, `null`: nil, `{}`: nil, `{"required":false}`: nil,
		`{"required":"yes","logical_session_id":"global","required_backend":"nsjail"}`: func(p *Policy) { p.Required = true },
		`{"required":true,"max_sessions":0,"max_managed_processes":0,"max_grant_ttl_sec":60,"max_timeout_sec":5,"cpus":0.5,"memory_mb":32,"pids_limit":1,"read_only_rootfs":false,"workspace_quota_mb":7,"readiness_cache_sec":0}`: func(p *Policy) {
			*p = Policy{true, 0, 0, 60, 5, 0.5, 32, 1, false, 7, 0}
		},
		`{"cpus":2}`: func(p *Policy) { p.CPUs = 2 },
	} {
		want := defaults
		if change != nil {
			change(&want)
		}
		if got, err := ParsePolicy(json.RawMessage(raw)); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", raw, got, err)
		}
	}
	closed := defaults
	closed.Required = true
	for _, raw := range []string{
		`[]`, `"x"`, `false`, `0`, `{`, `{"other":1}`, `{"required":"maybe"}`, `{"required":null}`, `{"logical_session_id":"x"}`, `{"required_backend":"docker"}`, `{"required_backend":null}`,
		`{"max_sessions":2}`, `{"max_sessions":-1}`, `{"max_sessions":true}`, `{"max_sessions":"1"}`, `{"max_sessions":1.0}`, `{"max_managed_processes":1}`, `{"max_grant_ttl_sec":0}`,
		`{"max_timeout_sec":0}`, `{"max_timeout_sec":null}`, `{"cpus":0}`, `{"cpus":true}`, `{"cpus":"1"}`, `{"cpus":NaN}`, `{"cpus":Infinity}`, `{"cpus":-Infinity}`, `{"cpus":1e999}`, `{"memory_mb":31}`,
		`{"pids_limit":0}`, `{"workspace_quota_mb":-1}`, `{"readiness_cache_sec":-1}`, `{"readiness_cache_sec":1.5}`, `{"read_only_rootfs":2}`,
		`{"required":false,"max_sessions":99999999999999999999}`,
	} {
		got, err := ParsePolicy(json.RawMessage(raw))
		var e *protocol.Error
		if got != closed || !errors.As(err, &e) || e.Class != protocol.Readiness {
			t.Errorf("%s: got %+v, %v", raw, got, err)
		}
	}
}

func TestApply(t *testing.T) {
	p := Policy{true, 1, 0, 300, 60, 0.5, 256, 64, true, 9, 15}
	owned := Owned{"/srv/tenants/ws-1", func(name string) (string, error) {
		if name != "good" {
			return "", errors.New("no such skill")
		}
		return "/srv/skills/good", nil
	}}
	spec := func(members string) protocol.BoxSpec {
		s, err := protocol.ParseBoxSpec(json.RawMessage(`{"session_id":"mine","cmd":"x"`+members+`}`), true)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	got := spec(`,"timeout_sec":600,"image":"evil","persistent":false,"cpus":64,"memory_mb":99999,"pids_limit":9999,"read_only_rootfs":false,"workspace_quota_mb":0,
		"host_path":"/srv/tenants/ws-1/","host_path_mode":"ro","skill_name":"good","env":{"A":"1"},"workdir":"/workspace/x"`)
	if err := p.Apply(&got, owned); err != nil {
		t.Fatal(err)
	}
	want := protocol.BoxSpec{SessionID: "global", Cmd: "x", Workdir: "/workspace/x", TimeoutSec: 60, Network: "off", Env: map[string]string{"A": "1"}, Image: protocol.DefaultImage,
		HostPath: &owned.HostPath, HostPathMode: "rw", MountPath: "/workspace", ExtraMounts: []protocol.MountSpec{{HostPath: "/srv/skills/good", MountPath: "/workspace/.skills/good", Mode: "ro"}},
		SkillName: got.SkillName, Persistent: true, CPUs: 0.5, MemoryMB: 256, PidsLimit: 64, ReadOnlyRootfs: true, WorkspaceQuotaMB: 9}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	short := spec(`,"timeout_sec":5`)
	if err := p.Apply(&short, owned); err != nil || short.TimeoutSec != 5 || *short.HostPath != owned.HostPath || len(short.ExtraMounts) != 0 {
		t.Errorf("got %+v, %v", short, err)
	}
	for members, wrong := range map[string]string{
		`,"network":"on"`: "network access is disabled",
		`,"extra_mounts":[{"host_path":"/a","mount_path":"/b","mode":"none"}]`: "host mounts are disabled",
		`,"mount_path":"/other"`:                    "mount_path is runtime-owned",
		`,"workdir":"/tmp"`:                         "workdir must stay under",
		`,"workdir":"/workspacex"`:                  "workdir must stay under",
		`,"workdir":"/workspace/../etc"`:            "workdir must stay under",
		`,"host_path":"/srv/tenants/ws-2"`:          "host_path is runtime-owned",
		`,"host_path":"/srv/tenants/ws-1/sub"`:      "host_path is runtime-owned",
		`,"host_path":"/srv/tenants/ws-1/../ws-2"`:  "host_path is runtime-owned",
		`,"host_path":"/x","host_path_mode":"none"`: "host_path is runtime-owned",
		`,"skill_name":"other"`:                     "skill is unavailable",
	} {
		s := spec(members)
		expect(t, p.Apply(&s, owned), protocol.Admission, wrong)
	}
}

func TestCheckSession(t *testing.T) {
	c := protocol.Context{Instance: "i", Workspace: "w", Generation: 1}
	for _, id := range []string{"global", " global ", "-global"} {
		expect(t, CheckSession(c, id), "", "")
	}
	for _, id := range []string{"", "Global", "mine", "glob al", "--"} {
		expect(t, CheckSession(c, id), protocol.Admission, `must be "global"`)
	}
}

func FuzzPolicyAndGrants(f *testing.F) {
	f.Add([]byte(`{"required":true,"max_sessions":0,"cpus":0.5,"read_only_rootfs":"on"}`))
	f.Add([]byte(`{"instance_uuid":"i","workspace_uuid":"w","execution_generation":1,"entitlement_revision":1,"expires_at":"2026-11-20 08:00+01","max_sessions":1,"max_managed_processes":0}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := ParsePolicy(raw)
		if err != nil && !p.Required || p.MaxSessions < 0 || p.MaxSessions > 1 || p.MaxManagedProcesses != 0 || p.MaxGrantTTLSec < 1 || p.MaxTimeoutSec < 1 || !(p.CPUs > 0) || p.MemoryMB < 32 || p.PidsLimit < 1 {
			t.Fatalf("got %+v, %v", p, err)
		}
		g, err := parseGrant(raw)
		if err == nil && (g.Instance == "" || g.Workspace == "" || g.Generation < 1 || g.Revision < 1 || g.MaxSessions < 0 || g.MaxManagedProcesses < 0) {
			t.Fatalf("got %+v", g)
		}
		if err == nil && !json.Valid(protocol.Success(nil, g.Reply())) {
			t.Fatal("reply is no JSON")
		}
		parseRevocation(raw)
	})
}
