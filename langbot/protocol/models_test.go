package protocol

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestBoxSpecDefaults(t *testing.T) {
	got, err := ParseBoxSpec([]byte(`{"session_id":" s ","unknown":{"a":1}}`), false)
	want := BoxSpec{SessionID: "s", Workdir: "/workspace", TimeoutSec: 30, Network: "off", Env: map[string]string{}, Image: DefaultImage,
		HostPathMode: "rw", MountPath: "/workspace", ExtraMounts: []MountSpec{}, CPUs: 1, MemoryMB: 512, PidsLimit: 128, ReadOnlyRootfs: true}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestBoxSpecRead(t *testing.T) {
	tests := []struct {
		member string
		get    func(BoxSpec) any
		want   any
	}{
		{`"cmd":"\t echo 1 \n"`, func(s BoxSpec) any { return s.Cmd }, "echo 1"},
		{`"cmd":"\u2028a\ud83d\ude00\/\u0041"`, func(s BoxSpec) any { return s.Cmd }, "a😀/A"},
		{`"workdir":null,"mount_path":"/m"`, func(s BoxSpec) any { return s.Workdir }, "/m"},
		{`"workdir":"","mount_path":"/m"`, func(s BoxSpec) any { return s.Workdir }, "/m"},
		{`"mount_path":" /m "`, func(s BoxSpec) any { return s.Workdir }, "/m"},
		{`"mount_path":"/m","workdir":" /w "`, func(s BoxSpec) any { return s.Workdir }, "/w"},
		{`"host_path":"/h","mount_path":"/m","workdir":"/m/x"`, func(s BoxSpec) any { return *s.HostPath + s.Workdir }, "/h/m/x"},
		{`"host_path":"/h","mount_path":"/","workdir":"/x"`, func(s BoxSpec) any { return s.Workdir }, "/x"},
		{`"host_path":"/h","host_path_mode":"none","workdir":"/elsewhere"`, func(s BoxSpec) any { return s.Workdir }, "/elsewhere"},
		{`"host_path":" C:\\x "`, func(s BoxSpec) any { return *s.HostPath }, `C:\x`},
		{`"host_path":"\\\\server\\x"`, func(s BoxSpec) any { return *s.HostPath }, `\\server\x`},
		{`"timeout_sec":"45"`, func(s BoxSpec) any { return s.TimeoutSec }, int64(45)},
		{`"timeout_sec":" 1_000 "`, func(s BoxSpec) any { return s.TimeoutSec }, int64(1000)},
		{`"timeout_sec":"12.00"`, func(s BoxSpec) any { return s.TimeoutSec }, int64(12)},
		{`"timeout_sec":3e2`, func(s BoxSpec) any { return s.TimeoutSec }, int64(300)},
		{`"timeout_sec":45.0`, func(s BoxSpec) any { return s.TimeoutSec }, int64(45)},
		{`"timeout_sec":true`, func(s BoxSpec) any { return s.TimeoutSec }, int64(1)},
		{`"timeout_sec":9223372036854775807`, func(s BoxSpec) any { return s.TimeoutSec }, int64(math.MaxInt64)},
		{`"network":"\u006f\u006e"`, func(s BoxSpec) any { return s.Network }, "on"},
		{`"persistent":"\u0079es"`, func(s BoxSpec) any { return s.Persistent }, true},
		{`"env":{"A":"1","B_":"x=y"}`, func(s BoxSpec) any { return s.Env }, map[string]string{"A": "1", "B_": "x=y"}},
		{`"image":""`, func(s BoxSpec) any { return s.Image }, ""},
		{`"extra_mounts":[{"host_path":" /a ","mount_path":"/b","x":1},{"host_path":"/c","mount_path":"/d","mode":"ro"}]`,
			func(s BoxSpec) any { return s.ExtraMounts }, []MountSpec{{"/a", "/b", "rw"}, {"/c", "/d", "ro"}}},
		{`"skill_name":" a-b_9é "`, func(s BoxSpec) any { return *s.SkillName }, "a-b_9é"},
		{`"skill_name":"  "`, func(s BoxSpec) any { return s.SkillName == nil }, true},
		{`"skill_name":null`, func(s BoxSpec) any { return s.SkillName == nil }, true},
		{`"persistent":"YES"`, func(s BoxSpec) any { return s.Persistent }, true},
		{`"persistent":1`, func(s BoxSpec) any { return s.Persistent }, true},
		{`"persistent":1.0`, func(s BoxSpec) any { return s.Persistent }, true},
		{`"persistent":"t"`, func(s BoxSpec) any { return s.Persistent }, true},
		{`"read_only_rootfs":"Off"`, func(s BoxSpec) any { return s.ReadOnlyRootfs }, false},
		{`"read_only_rootfs":"n"`, func(s BoxSpec) any { return s.ReadOnlyRootfs }, false},
		{`"read_only_rootfs":0`, func(s BoxSpec) any { return s.ReadOnlyRootfs }, false},
		{`"cpus":"0.5"`, func(s BoxSpec) any { return s.CPUs }, 0.5},
		{`"cpus":2`, func(s BoxSpec) any { return s.CPUs }, 2.0},
		{`"cpus":true`, func(s BoxSpec) any { return s.CPUs }, 1.0},
		{`"memory_mb":32`, func(s BoxSpec) any { return s.MemoryMB }, int64(32)},
		{`"memory_mb":16,"memory_mb":64`, nil, nil}, // each is checked
		{`"workspace_quota_mb":"0"`, func(s BoxSpec) any { return s.WorkspaceQuotaMB }, int64(0)},
	}
	for _, tt := range tests {
		s, err := ParseBoxSpec([]byte(`{"session_id":"s",`+tt.member+`}`), false)
		if tt.get == nil {
			if err == nil {
				t.Errorf("%s: accepted", tt.member)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.member, err)
		} else if got := tt.get(s); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %v", tt.member, got)
		}
	}
}

func TestBoxSpecRefused(t *testing.T) {
	tests := []string{
		`"session_id":""`, `"session_id":"\u3000"`, `"session_id":5`, `"session_id":null`,
		`"cmd":5`, `"cmd":null`, `"cmd":"a\u0000b"`, `"cmd":"\udc00"`, `"cmd":["a"]`,
		`"workdir":"x"`, `"workdir":" "`, `"workdir":5`, `"mount_path":"x"`, `"mount_path":""`, `"mount_path":null`,
		`"timeout_sec":0`, `"timeout_sec":-1`, `"timeout_sec":1.5`, `"timeout_sec":"x"`, `"timeout_sec":""`, `"timeout_sec":null`, `"timeout_sec":[]`,
		`"timeout_sec":"1.5"`, `"timeout_sec":"1e3"`, `"timeout_sec":"0x10"`, `"timeout_sec":"1__0"`, `"timeout_sec":"_1"`, `"timeout_sec":false`,
		`"timeout_sec":9223372036854775808`, `"timeout_sec":1e19`, `"timeout_sec":1e999`, `"timeout_sec":NaN`, `"timeout_sec":Infinity`,
		`"network":"ON"`, `"network":true`, `"network":null`, `"network":"on "`,
		`"env":null`, `"env":[]`, `"env":{"A":1}`, `"env":{"A":null}`, `"env":{"":"1"}`, `"env":{"A=B":"1"}`, `"env":{"A\u0000":"1"}`, `"env":{"A":"\u0000"}`,
		`"image":5`, `"host_path":"x"`, `"host_path":""`, `"host_path":"C:x"`, `"host_path":7`,
		`"host_path_mode":"wr"`, `"host_path":"/h","workdir":"/elsewhere"`, `"host_path":"/h","workdir":"/workspacex"`,
		`"extra_mounts":null`, `"extra_mounts":{}`, `"extra_mounts":[1]`, `"extra_mounts":[{"host_path":"/a"}]`, `"extra_mounts":[{"mount_path":"/a"}]`,
		`"extra_mounts":[{"host_path":"a","mount_path":"/b"}]`, `"extra_mounts":[{"host_path":"/a","mount_path":"b"}]`, `"extra_mounts":[{"host_path":"/a","mount_path":"/b","mode":"x"}]`,
		`"skill_name":"a/b"`, `"skill_name":".."`, `"skill_name":"a b"`, `"skill_name":5`, `"skill_name":"` + strings.Repeat("é", 65) + `"`,
		`"persistent":2`, `"persistent":"maybe"`, `"persistent":null`, `"persistent":" yes"`, `"persistent":0.5`,
		`"cpus":0`, `"cpus":-1`, `"cpus":"nan"`, `"cpus":NaN`, `"cpus":Infinity`, `"cpus":"inf"`, `"cpus":1e400`, `"cpus":"x"`, `"cpus":"0x1p4"`, `"cpus":null`, `"cpus":{}`,
		`"memory_mb":31`, `"memory_mb":"31"`, `"pids_limit":0`, `"workspace_quota_mb":-1`, `"read_only_rootfs":"x"`,
	}
	for _, member := range tests {
		data := `{"session_id":"s",` + member + `}`
		if s, err := ParseBoxSpec([]byte(data), false); !isClass(err, BoxValidation) {
			t.Errorf("%s: got %+v, %v", member, s, err)
		}
	}
	for _, data := range []string{`{}`, `[]`, `null`, `5`, `{"session_id":"s"`, ``} {
		if _, err := ParseBoxSpec([]byte(data), false); !isClass(err, BoxValidation) {
			t.Errorf("%s: got %v", data, err)
		}
	}
	for _, cmd := range []string{``, `,"cmd":""`, `,"cmd":" \u0085\n"`} {
		if _, err := ParseBoxSpec([]byte(`{"session_id":"s"`+cmd+`}`), true); !isClass(err, BoxValidation) || !strings.Contains(err.Error(), "cmd must not be empty") {
			t.Errorf("%s: got %v", cmd, err)
		}
	}
}

func isClass(err error, c Class) bool {
	var e *Error
	return errors.As(err, &e) && e.Class == c
}

func TestErrorsAreShort(t *testing.T) {
	_, err := ParseBoxSpec([]byte(`{"session_id":"s","timeout_sec":"`+strings.Repeat("ü", 1000)+`"}`), false)
	if err == nil || len(err.Error()) > 200 || strings.Contains(err.Error(), "\ufffd") {
		t.Errorf("got %v", err)
	}
}

func TestProcessSpec(t *testing.T) {
	got, err := ParseProcessSpec([]byte(`{"command":" sh ","args":["-c",""],"env":{"A":"1"},"cwd":"/x ","memory_mb":"64","process_id":"","other":1}`))
	want := ProcessSpec{"", "sh", []string{"-c", ""}, map[string]string{"A": "1"}, "/x", 64}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = ParseProcessSpec([]byte(`{"command":"x"}`))
	want = ProcessSpec{"default", "x", []string{}, map[string]string{}, "/workspace", 0}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, spec := range []string{`{}`, `null`, `"x"`, `{"command":""}`, `{"command":" "}`, `{"command":null}`, `{"command":"x","args":null}`, `{"command":"x","args":[1]}`,
		`{"command":"x","args":"y"}`, `{"command":"x","args":["\u0000"]}`, `{"command":"x","env":{"A":true}}`, `{"command":"x","cwd":"y"}`, `{"command":"x","cwd":null}`,
		`{"command":"x","memory_mb":-1}`, `{"command":"x","memory_mb":0.5}`, `{"command":"x","process_id":null}`, `{"command":"x","process_id":1}`} {
		if s, err := ParseProcessSpec([]byte(spec)); !isClass(err, BoxValidation) {
			t.Errorf("%s: got %+v, %v", spec, s, err)
		}
	}
}

func TestParseLimits(t *testing.T) {
	tests := []struct {
		raw   string
		want  func(*Limits)
		wrong string
	}{
		{``, nil, ""}, {`null`, nil, ""}, {`{}`, nil, ""}, {`[ ]`, nil, ""}, {`""`, nil, ""}, {`false`, nil, ""}, {`0`, nil, ""}, {`-0.0`, nil, ""},
		{`{"max_sessions":0,"max_workspace_entries":"x"}`, func(l *Limits) { l.MaxSessions = 0 }, ""},
		{`{"max_sessions":5000,"max_managed_processes":1024,"max_completed_processes":10000,"max_admission_records":250000,"max_rpc_file_bytes":104857600,"completed_process_retention_sec":86400}`,
			func(l *Limits) { *l = Limits{5000, 1024, 10000, 250000, 104857600, 86400} }, ""},
		{`{"max_sessions":5001}`, nil, "box.limits.max_sessions must be between 0 and 5000"},
		{`{"max_sessions":-1}`, nil, "box.limits.max_sessions must be between 0 and 5000"},
		{`{"max_sessions":99999999999999999999}`, nil, "box.limits.max_sessions must be between 0 and 5000"},
		{`{"max_managed_processes":1025}`, nil, "box.limits.max_managed_processes must be between 0 and 1024"},
		{`{"max_completed_processes":10001}`, nil, "box.limits.max_completed_processes must be between 0 and 10000"},
		{`{"max_admission_records":0}`, nil, "box.limits.max_admission_records must be between 1 and 250000"},
		{`{"max_rpc_file_bytes":0}`, nil, "box.limits.max_rpc_file_bytes must be between 1 and 104857600"},
		{`{"completed_process_retention_sec":86401}`, nil, "box.limits.completed_process_retention_sec must be between 0 and 86400"},
		{`{"max_sessions":"5"}`, nil, "box.limits.max_sessions must be an integer"},
		{`{"max_sessions":5.0}`, nil, "box.limits.max_sessions must be an integer"},
		{`{"max_sessions":1e1}`, nil, "box.limits.max_sessions must be an integer"},
		{`{"max_sessions":true}`, nil, "box.limits.max_sessions must be an integer"},
		{`{"max_sessions":null}`, nil, "box.limits.max_sessions must be an integer"},
		{`{"max_sessions":Infinity}`, nil, "box.limits.max_sessions must be an integer"},
		{`{"max_sessions":-Infinity}`, nil, "box.limits.max_sessions must be an integer"},
		{`[1]`, nil, "box.limits must be an object"}, {`"x"`, nil, "box.limits must be an object"}, {`7`, nil, "box.limits must be an object"}, {`true`, nil, "box.limits must be an object"},
		{`NaN`, nil, "box.limits must be an object"},
	}
	for _, tt := range tests {
		want := Limits{64, 64, 256, 100000, 20 << 20, 300}
		if tt.want != nil {
			tt.want(&want)
		}
		got, err := ParseLimits(json.RawMessage(tt.raw))
		if tt.wrong == "" && (err != nil || got != want) {
			t.Errorf("%s: got %+v, %v", tt.raw, got, err)
		}
		if tt.wrong != "" && (err == nil || err.Error() != "ValueError: "+tt.wrong) {
			t.Errorf("%s: got %v", tt.raw, err)
		}
	}
}

func TestKeys(t *testing.T) {
	data := json.RawMessage(` {"a":"x","b":null,"c":5,"a":"\u0079","nested":{"d":"no"}} `)
	if s, err := String(data, "a"); s != "y" || err != nil {
		t.Errorf("got %q, %v", s, err)
	}
	if _, err := String(data, "d"); err == nil || err.Error() != "KeyError: 'd'" {
		t.Errorf("got %v", err)
	}
	for _, key := range []string{"b", "c", "nested"} {
		if _, err := String(data, key); !isClass(err, ValueError) {
			t.Errorf("%s: got %v", key, err)
		}
	}
	for key, want := range map[string]string{"a": "y", "b": "other", "d": "other"} {
		if s, err := StringOr(data, key, "other"); s != want || err != nil {
			t.Errorf("%s: got %q, %v", key, s, err)
		}
	}
	if _, err := StringOr(data, "c", "other"); !isClass(err, ValueError) {
		t.Errorf("got %v", err)
	}
}

func TestTime(t *testing.T) {
	at := time.Date(2026, 11, 20, 9, 33, 23, 760522999, time.FixedZone("", 3600))
	if got := Time(at); got != "2026-11-20T08:33:23.760522Z" {
		t.Errorf("got %s", got)
	}
	if got := Time(at.Truncate(time.Second)); got != "2026-11-20T08:33:23.000000Z" {
		t.Errorf("got %s", got)
	}
}

// TestTrim tries all characters of the first planes that the peer's language counts as
// white space.
func TestTrim(t *testing.T) {
	const space = "\t\n\v\f\r\x1c\x1d\x1e\x1f \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
	if got := Trim(space + "x" + space); got != "x" {
		t.Errorf("got %q", got)
	}
	for _, r := range "\x00\x1b\u200b\u180e\ufeff\u2060" {
		if s := string(r) + "x"; Trim(s) != s {
			t.Errorf("%q is taken for white space", r)
		}
	}
}

func FuzzBoxSpec(f *testing.F) {
	f.Add([]byte(`{"session_id":"s","cmd":"x","workdir":"/w","timeout_sec":"1_0.0","env":{"A":"1"},"host_path":"/h","extra_mounts":[{"host_path":"/a","mount_path":"/b","mode":"ro"}],"skill_name":"a","cpus":"1e3"}`))
	f.Add([]byte(`{"session_id":"s","cpus":NaN,"memory_mb":1e400,"persistent":"on","mount_path":"/","host_path_mode":"none"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := ParseProcessSpec(data); err == nil && (p.Command == "" || p.Cwd[0] != '/' || p.MemoryMB < 0 || p.Args == nil || p.Env == nil) {
			t.Fatalf("accepted %+v", p)
		} else if err != nil && !isClass(err, BoxValidation) {
			t.Fatal(err)
		}
		if l, err := ParseLimits(json.RawMessage(strings.TrimSpace(string(data)))); err == nil && (l.MaxSessions < 0 || l.MaxSessions > 5000 || l.MaxRPCFileBytes < 1) {
			t.Fatalf("accepted %+v", l)
		}
		s, err := ParseBoxSpec(data, true)
		if err != nil {
			if !isClass(err, BoxValidation) {
				t.Fatal(err)
			}
			return
		}
		if s.SessionID == "" || s.Cmd == "" || s.Workdir[0] != '/' || s.MountPath[0] != '/' || s.TimeoutSec < 1 || s.MemoryMB < 32 || s.PidsLimit < 1 ||
			s.WorkspaceQuotaMB < 0 || !(s.CPUs > 0) || math.IsInf(s.CPUs, 0) || s.Network != "on" && s.Network != "off" || s.Env == nil || s.ExtraMounts == nil ||
			strings.Contains(s.Cmd, "\x00") {
			t.Fatalf("accepted %+v", s)
		}
		again, err := json.Marshal(s) // a spec survives another round
		if err != nil {
			t.Fatal(err)
		}
		if s2, err := ParseBoxSpec(again, true); err != nil || !reflect.DeepEqual(s, s2) && json.Valid(data) {
			t.Fatalf("%+v became %+v, %v", s, s2, err)
		}
	})
}
