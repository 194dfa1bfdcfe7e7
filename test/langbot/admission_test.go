package langbot

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// cloud turns admission on.
func (b *bot) cloud(change object) {
	b.w.t.Helper()
	admission := object{"required": true, "logical_session_id": "global", "required_backend": "nsjail", "max_sessions": 1, "max_managed_processes": 0, "max_grant_ttl_sec": 300,
		"max_timeout_sec": 60, "cpus": 0.5, "memory_mb": 128, "pids_limit": 32, "read_only_rootfs": true, "workspace_quota_mb": 16, "readiness_cache_sec": 15}
	for k, v := range change {
		admission[k] = v
	}
	b.call("box_init", object{"admission": admission})
}

// grant is a grant of the bot's workspace.
func (b *bot) grant(revision int, change object) object {
	g := object{"instance_uuid": b.at.Instance, "workspace_uuid": b.at.Workspace, "execution_generation": b.at.Generation, "entitlement_revision": revision,
		"expires_at": time.Now().UTC().Add(4 * time.Minute).Format("2006-01-02T15:04:05.000000+00:00"), "max_sessions": 1, "max_managed_processes": 0}
	for k, v := range change {
		g[k] = v
	}
	return g
}

// TestAdmission: without a grant nothing runs, and with one what the policy says.
func TestAdmission(t *testing.T) {
	w := begin(t)
	b := w.bot("i", "w")
	b.refused("BoxAdmissionError", "box_upsert_sandbox_admission_grant", b.grant(1, nil)) // admission is off
	b.cloud(nil)
	var ready readiness
	w.get("/readyz", &ready)
	if ready.Mode != "grant_enforced" || ready.Backend["name"] != "nsjail" {
		t.Errorf("%+v", ready)
	}
	if !exists("/sys/fs/cgroup/cgroup.controllers") {
		// What cannot be had here is said, and nothing runs.
		if ready.Ready || ready.Checks["cgroup_v2"] {
			t.Errorf("%+v", ready)
		}
		b.call("box_upsert_sandbox_admission_grant", b.grant(1, nil))
		if m := b.refused("BoxReadinessError", "box_exec", spec("s", object{"cmd": "true"})); !strings.Contains(m, "(failed checks: cgroup_v2)") {
			t.Errorf("%q", m)
		}
		b.refused("BoxReadinessError", "box_health", object{})
		return
	}
	if !ready.Ready {
		t.Fatalf("%+v", ready)
	}
	b.refused("BoxAdmissionError", "box_exec", spec("s", object{"cmd": "true"}))
	got := b.call("box_upsert_sandbox_admission_grant", b.grant(1, nil))
	if got["installed"] != true || got["entitlement_revision"] != 1.0 {
		t.Errorf("%v", got)
	}
	r := b.exec(spec("whatever", object{"cpus": 4.0, "memory_mb": 4096, "pids_limit": 1000, "read_only_rootfs": false, "timeout_sec": 600}), "echo ok")
	if r.Stdout != "ok" || r.Session != "global" {
		t.Errorf("%v %q", r, r.Session)
	}
	info := b.call("box_get_session", object{"session_id": "global"})
	if info["memory_mb"] != 128.0 || info["pids_limit"] != 32.0 || info["workspace_quota_mb"] != 16.0 || info["persistent"] != true || info["read_only_rootfs"] != true {
		t.Errorf("%s", show(info))
	}
	for what, change := range map[string]object{
		"network": {"network": "on"}, "mounts": {"extra_mounts": []object{{"host_path": w.shared, "mount_path": "/x"}}},
		"mount_path": {"mount_path": "/data", "workdir": "/data"}, "workdir": {"workdir": "/tmp"}, "host_path": {"host_path": w.shared},
	} {
		change["cmd"] = "true"
		b.refused("BoxAdmissionError", "box_exec", spec("global", change))
		_ = what
	}
	b.refused("BoxAdmissionError", "box_get_session", object{"session_id": "other"})
	b.refused("BoxAdmissionError", "box_start_managed_process", object{"session_id": "global", "spec": object{"command": "true"}})
	other := w.bot("i", "v")
	other.refused("BoxAdmissionError", "box_exec", spec("s", object{"cmd": "true"}))

	// Killed between grant and use: the grant holds, and so does its end.
	b.call("box_upsert_sandbox_admission_grant", b.grant(2, nil))
	w.again()
	b = w.bot("i", "w")
	b.cloud(nil)
	if r := b.exec(spec("s", nil), "echo again"); r.Stdout != "again" {
		t.Errorf("%v", r)
	}
	b.call("box_revoke_sandbox_admission_grant", object{"instance_uuid": "i", "workspace_uuid": "w", "entitlement_revision": 2})
	b.refused("BoxAdmissionError", "box_exec", spec("s", object{"cmd": "true"}))
	w.await("its session is gone", func() bool { return len(w.boxes()) == 0 })
	w.again()
	b = w.bot("i", "w")
	b.cloud(nil)
	b.refused("BoxAdmissionError", "box_exec", spec("s", object{"cmd": "true"}))
	b.refused("BoxAdmissionError", "box_upsert_sandbox_admission_grant", b.grant(2, nil)) // it was revoked
	b.call("box_upsert_sandbox_admission_grant", b.grant(3, nil))
	b.exec(spec("s", nil), "true")
}

// TestAdmissionWorkspace: in this mode a shared directory is the workspace's own or none.
func TestSharedWorkspaceProbe(t *testing.T) {
	anyKernel(t)
	w := begin(t)
	b := w.bot("i", "w")
	b.call("box_init", object{"local": object{"host_root": w.shared, "default_workspace": filepath.Join(w.shared, "default")}})
	if !exists(filepath.Join(w.shared, "default")) {
		t.Fatal("the default workspace was not made")
	}
	marker := ".langbot-box-volume-probe-" + strings.Repeat("0a", 16)
	b.refused("BoxReadinessError", "box_verify_shared_workspace", object{"marker_name": marker})
	write(t, filepath.Join(w.shared, "default", marker), "hello")
	got := b.call("box_verify_shared_workspace", object{"marker_name": marker})
	if got["sha256"] != "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" || got["size"] != 5.0 || got["marker_name"] != marker {
		t.Errorf("%v", got)
	}
	for _, name := range []string{"../" + marker, marker + "x", "", "passwd"} {
		b.refused("BoxReadinessError", "box_verify_shared_workspace", object{"marker_name": name})
	}
	b.refused("BoxValidationError", "box_init", object{"local": object{"default_workspace": "/etc/langbot"}})
	if exists("/etc/langbot") {
		t.Error("a directory was made outside of every root")
	}
}
