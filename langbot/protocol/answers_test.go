package protocol

import (
	"encoding/json"
	"testing"
	"time"
)

// TestAnswers: missing values are null, and all members that clients demand are present.
func TestAnswers(t *testing.T) {
	at := Time(time.Unix(0, 0))
	code, path := -9, "/srv/x"
	for _, tt := range []struct {
		v    any
		want string
	}{
		{SessionInfo{SessionID: "s", BackendName: "boxd", BackendSessionID: "b", Image: DefaultImage, Network: "off", HostPathMode: "rw", MountPath: "/workspace", CPUs: 1, MemoryMB: 512,
			PidsLimit: 128, ReadOnlyRootfs: true, CreatedAt: at, LastUsedAt: at},
			`{"session_id":"s","backend_name":"boxd","backend_session_id":"b","image":"rockchin/langbot-sandbox:latest","network":"off","host_path":null,"host_path_mode":"rw","mount_path":"/workspace",` +
				`"persistent":false,"cpus":1,"memory_mb":512,"pids_limit":128,"read_only_rootfs":true,"workspace_quota_mb":0,"created_at":"1970-01-01T00:00:00.000000Z","last_used_at":"1970-01-01T00:00:00.000000Z"}`},
		{ExecutionResult{SessionID: "s", BackendName: "boxd", Status: TimedOut},
			`{"session_id":"s","backend_name":"boxd","status":"timed_out","exit_code":null,"stdout":"","stderr":"","duration_ms":0}`},
		{ProcessInfo{SessionID: "s", ProcessID: "default", Status: Running, Command: "sh", Args: []string{}, Cwd: "/", EnvKeys: []string{}, StartedAt: at},
			`{"session_id":"s","process_id":"default","status":"running","command":"sh","args":[],"cwd":"/","env_keys":[],"attached":false,"started_at":"1970-01-01T00:00:00.000000Z",` +
				`"exited_at":null,"exit_code":null,"stderr_preview":""}`},
		{ProcessInfo{Status: Exited, ExitCode: &code, ExitedAt: &at}.ExitCode, `-9`},
		{SessionInfo{HostPath: &path}.HostPath, `"/srv/x"`},
		{DefaultLimits(), `{"max_sessions":64,"max_managed_processes":64,"max_completed_processes":256,"max_admission_records":100000,"max_rpc_file_bytes":20971520}`},
	} {
		if got, err := json.Marshal(tt.v); err != nil || string(got) != tt.want {
			t.Errorf("got  %s, %v\nwant %s", got, err, tt.want)
		}
	}
	with := SessionInfo{ManagedProcesses: map[string]ProcessInfo{"default": {}}, ManagedProcess: &ProcessInfo{}}
	var m map[string]any
	if b, _ := json.Marshal(with); json.Unmarshal(b, &m) != nil || m["managed_processes"] == nil || m["managed_process"] == nil {
		t.Errorf("got %v", m)
	}
}
