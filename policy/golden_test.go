package policy

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

var update = flag.Bool("update", false, "write the golden files anew")

// goldenRequests are resolved with each profile: every field alone, locked fields, values
// at and above a cap, and values that no profile allows.
var goldenRequests = []string{
	`{}`,
	`{"cpus":0.25}`, `{"cpus":4}`, `{"cpus":4.5}`, `{"cpus":0}`, `{"cpus":-1}`, `{"cpus":0.001}`,
	`{"memory":"64M"}`, `{"memory":"8G"}`, `{"memory":0}`, `{"memory":-1}`, `{"memory":1}`,
	`{"pids":10}`, `{"pids":2000}`, `{"pids":-1}`, `{"pids":-2}`,
	`{"network":true}`, `{"network":false}`,
	`{"writable_root":true}`, `{"writable_root":true,"upper_size":"64M"}`, `{"upper_size":"64M"}`, `{"writable_root":true,"upper_size":"3G"}`, `{"upper_size":"3G"}`,
	`{"tmp_size":"16M"}`, `{"tmp_size":"2G"}`, `{"tmp_size":0}`, `{"tmp_size":-1}`,
	`{"workspace_mode":"ro"}`, `{"workspace_mode":"none"}`, `{"workspace_mode":"rw"}`, `{"workspace_mode":"x"}`,
	`{"workspace":"/srv/a/w"}`, `{"workspace":"/srv/a/w","workspace_mode":"none"}`, `{"workspace":"/etc"}`, `{"workspace":"/srv/a/w","workspace_mode":"ro","workspace_size":"1M"}`,
	`{"workspace_size":"64M"}`, `{"workspace_size":"8G"}`, `{"workspace_size":0}`, `{"workspace_size":"1K"}`, `{"workspace_size":-1}`,
	`{"workspace_size":"64M","workspace_inodes":100}`, `{"workspace_inodes":100}`, `{"workspace_size":"1M","workspace_inodes":100000}`, `{"workspace_mode":"none","workspace_size":"64M"}`,
	`{"workspace_target":"/data"}`, `{"workspace_target":"data"}`, `{"workspace_target":"/data","workspace_mode":"none"}`,
	`{"mounts":[{"source":"/srv/a/m","target":"/m"}]}`, `{"mounts":[{"source":"/srv/a/m","target":"/m","read_only":true}]}`, `{"mounts":[{"source":"/srv/b","target":"/m"}]}`,
	`{"mounts":[{"source":"/srv/a","target":"/workspace"}]}`, `{"mounts":[{"source":"/srv/a","target":"/m"},{"source":"/srv/a","target":"/m"}]}`,
	`{"user":{"uid":1000,"gid":100}}`, `{"user":{"uid":70000,"gid":0}}`,
	`{"env":{"A":"1","B":""}}`, `{"env":{"A=B":"1"}}`,
	`{"idle_ttl":60}`, `{"idle_ttl":"2h"}`, `{"idle_ttl":0.5}`, `{"idle_ttl":"1000h"}`,
	`{"max_lifetime":3600}`, `{"max_lifetime":0}`, `{"max_lifetime":"9000h"}`,
	`{"persistent":true}`, `{"persistent":false}`,
	`{"timeout":5}`, `{"timeout":"100h"}`, `{"timeout":0}`,
	`{"hostname":"h"}`, `{"hostname":"-"}`, `{"image":"host"}`, `{"image":"x"}`,
	`{"cpus":0.5,"memory":"128M","pids":32,"network":false,"writable_root":true,"workspace_mode":"ro","tmp_size":"1M","timeout":7,"idle_ttl":7,"max_lifetime":8,"persistent":true}`,
}

// goldenProfiles are profiles with every lock and every cap.
func goldenProfiles() map[string]ProfileConfig {
	seconds := func(n int) *spec.Duration { return ptr(spec.Duration(time.Duration(n) * time.Second)) }
	size := func(mib int64) *spec.Size { return ptr(spec.Size(mib << 20)) }
	return map[string]ProfileConfig{
		"locked": {Locked: ptr(spec.Lockable()), Wishes: spec.Wishes{WorkspaceSize: size(32), WorkspaceInodes: ptr(int64(64)), LiveWishes: spec.LiveWishes{MaxLifetime: seconds(900)}}},
		"capped": {MountMode: ptr("none"), AllowNetwork: ptr(false), AllowPersistent: ptr(false), OpenFiles: ptr(int64(64)), FileSize: size(5), Caps: spec.CapWishes{
			CPUs: ptr(0.5), Memory: size(64), PIDs: ptr(int64(16)), TmpSize: size(4), UpperSize: size(16), WorkspaceSize: size(16), Timeout: seconds(10), IdleTTL: seconds(30), MaxLifetime: seconds(600),
		}, Wishes: spec.Wishes{WorkspaceSize: size(16), Timeout: seconds(10), UpperSize: size(16), TmpSize: size(4), LiveWishes: spec.LiveWishes{MaxLifetime: seconds(600), IdleTTL: seconds(30), Memory: size(64), PIDs: ptr(int64(16)), CPUs: ptr(0.5)}}},
		"free": {Caps: spec.CapWishes{CPUs: ptr(-1.0), Memory: ptr(spec.Size(-1)), PIDs: ptr(int64(-1)), TmpSize: ptr(spec.Size(-1)), UpperSize: ptr(spec.Size(-1)), WorkspaceSize: ptr(spec.Size(-1)),
			Timeout: ptr(spec.Duration(-time.Second)), IdleTTL: ptr(spec.Duration(-time.Second)), MaxLifetime: ptr(spec.Duration(-time.Second))}},
	}
}

// goldenForm is r in the form of the golden file, whatever the fields of Resolved are.
func goldenForm(r Resolved) any {
	return []any{
		struct {
			Profile                        string
			Spec                           engine.Spec
			Network                        bool
			Mode, Workspace, Target        string
			Size, Inodes                   int64
			Make                           bool
			Env                            []string
			Idle, Life, Timeout, Cap       string
			Persistent                     bool
			MountMode                      string
			Overridden, Warnings           []string
			OwnWorkspace                   bool
			DefaultTarget, DecidedProfiles string
			Image                          string `json:",omitempty"`
		}{
			r.Profile, r.Spec(), r.Network, r.WorkspaceMode, r.Workspace, r.WorkspaceTarget, int64(r.WorkspaceSize), r.WorkspaceInodes, r.MakeWorkspace, r.Env,
			r.IdleTTL.String(), r.MaxLifetime.String(), r.Timeout.String(), r.TimeoutCap.String(), r.Persistent, r.MountMode, r.Overridden, r.Warnings,
			r.OwnWorkspace(), r.Target(), fmt.Sprint(len(r.Decisions)),
			strings.TrimPrefix(r.Image, "host"),
		},
		r.Decisions,
	}
}

// TestResolveGolden pins what every profile makes of every request.
func TestResolveGolden(t *testing.T) {
	p := newPolicy(t, Config{AllowedMountRoots: []string{"/srv/a"}, NetworkAvailable: true, AllowDegraded: true, Profiles: goldenProfiles()})
	var out bytes.Buffer
	for _, profile := range p.Profiles() {
		for _, text := range goldenRequests {
			var r Request
			if err := json.Unmarshal([]byte(text), &r); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			r.Profile = profile.Name
			fmt.Fprintf(&out, "%s %s\n", profile.Name, text)
			got, err := p.Resolve("tenant", r)
			if err != nil {
				kind := fmt.Sprintf("%T", err)
				fmt.Fprintf(&out, "  %s: %v\n", kind[strings.Index(kind, ".")+1:], err)
				continue
			}
			line, err := json.Marshal(goldenForm(got))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "  %s\n", line)
		}
	}
	const golden = "testdata/resolve.golden"
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	have, wanted := strings.Split(out.String(), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(have), len(wanted)) {
		if have[i] != wanted[i] {
			t.Fatalf("line %d, after %s:\n got %s\nwant %s", i+1, have[max(0, i-1)], have[i], wanted[i])
		}
	}
	if len(have) != len(wanted) {
		t.Errorf("%d lines, want %d", len(have), len(wanted))
	}
}
