package langbot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWorkspaceQuota: a full workspace affects its writer only.
func TestWorkspaceQuota(t *testing.T) {
	t.Parallel()
	w := begin(t)
	b, other := w.bot("i", "w"), w.bot("i", "v")
	s := spec("s", object{"workspace_quota_mb": 8, "timeout_sec": 60})
	r := b.exec(s, "head -c 20M /dev/zero > big")
	if *r.Exit == 0 || r.Verdict != "disk-quota" || !strings.Contains(strings.ToLower(r.Stderr), "space") && !strings.Contains(strings.ToLower(r.Stderr), "quota") {
		t.Errorf("%v", r)
	}
	if out := other.sh(spec("s", object{"workspace_quota_mb": 8}), "head -c 4M /dev/zero > f && stat -c %s f"); out != "4194304" {
		t.Errorf("the neighbour: %q", out)
	}
	if out := other.sh(spec("free", nil), "head -c 20M /dev/zero > f && stat -c %s f"); out != "20971520" {
		t.Errorf("a neighbour without a quota: %q", out)
	}
	if out := b.sh(s, "rm big && head -c 4M /dev/zero > f && stat -c %s f"); out != "4194304" {
		t.Errorf("after making room: %q", out)
	}
	// Files count too.
	r = b.exec(s, "i=0; while : > f$i; do i=$((i+1)); [ $i -gt 20000 ] && exit 0; done")
	if *r.Exit == 0 || r.Verdict != "disk-quota" {
		t.Errorf("files without end: %v", r)
	}
	if out := b.sh(s, "rm -f f*; df -Pm /workspace | tail -1 | awk '{print ($2 <= 10)}'"); out != "1" {
		t.Errorf("statfs does not show the limit: %q", out)
	}
	message := b.refused("BoxSessionConflictError", "box_create_session", spec("s", object{"workspace_quota_mb": 9}))
	if !strings.Contains(message, "workspace_quota_mb=8") {
		t.Errorf("%q", message)
	}
	// The limit holds for processes, and after the daemon was killed.
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	b = w.bot("i", "w")
	b.launch("s", "p", "sh", "-c", "head -c 20M /dev/zero > /workspace/big; exit 4")
	if i := b.ended("s", "p"); *i.Exit != 4 || !strings.Contains(strings.ToLower(i.Preview), "space") && !strings.Contains(strings.ToLower(i.Preview), "quota") {
		t.Errorf("%+v", i)
	}
	b.call("box_delete_session", object{"session_id": "s"})
	if out := b.sh(s, "ls"); out != "" {
		t.Errorf("a new session has %q", out)
	}
}

// TestHostPathQuota: a directory of the host is limited where its file system can do
// that, and refused where it cannot: never limited in name only.
func TestHostPathQuota(t *testing.T) {
	b := begin(t).bot("i", "w")
	dir := filepath.Join(b.w.shared, "limited")
	s := spec("s", object{"host_path": dir, "workspace_quota_mb": 8})
	var r result
	err := b.try("box_create_session", s, nil)
	if err != nil {
		if !strings.HasPrefix(err.Error(), "BoxValidationError: ") || !strings.Contains(err.Error(), "quota") {
			t.Errorf("%v", err)
		}
		b.call("box_create_session", spec("s", object{"host_path": dir}))
		t.Skip("the file system of the shared directory has no project quota, and says so")
	}
	if r = b.exec(s, "head -c 20M /dev/zero > big"); *r.Exit == 0 || r.Verdict != "disk-quota" {
		t.Errorf("%v", r)
	}
	info, err := os.Stat(filepath.Join(dir, "big"))
	if err != nil || info.Size() > 8<<20 {
		t.Errorf("%v, %v", info, err)
	}
	if err := asOwner(func() error { return os.Remove(filepath.Join(dir, "big")) }); err != nil {
		t.Error(err)
	}
	if out := b.sh(s, "head -c 4M /dev/zero > f && stat -c %s f"); out != "4194304" {
		t.Errorf("%q", out)
	}
}

// TestBoundedEverywhere: whatever else a session can write to has an end as well.
func TestBoundedEverywhere(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	s := spec("s", object{"timeout_sec": 60})
	for _, dir := range []string{"/tmp", "$HOME", "/dev/shm"} {
		if r := b.exec(s, "head -c 400M /dev/zero > "+dir+"/big; echo $?; rm -f "+dir+"/big"); strings.HasPrefix(r.Stdout, "0") {
			t.Errorf("%s: %v", dir, r)
		}
	}
}

// readiness is what /readyz says.
type readiness struct {
	Ready      bool                 `json:"ready"`
	Mode       string               `json:"mode"`
	Backend    object               `json:"backend"`
	Checks     map[string]bool      `json:"checks"`
	Guarantees map[string]guarantee `json:"guarantees"`
}

type guarantee struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason"`
}

// TestReadiness: each guarantee that is true was measured on this host, and each other one has a reason.
func TestReadiness(t *testing.T) {
	t.Parallel()
	b := begin(t).bot("i", "w")
	var got readiness
	if status := b.w.get("/readyz", &got); status != 200 || !got.Ready || got.Mode != "standard" || got.Backend["available"] != true || !got.Checks["backend_available"] {
		t.Errorf("%d %+v", status, got)
	}
	unified := exists("/sys/fs/cgroup/cgroup.controllers")
	for _, name := range []string{"namespace_isolation", "mount_isolation", "network_isolation", "bounded_ephemeral_storage", "hard_workspace_quota", "hard_skill_storage_quota", "inode_quota", "cgroup_v2"} {
		g, ok := got.Guarantees[name]
		want := name != "cgroup_v2" || unified
		if !ok || g.OK != want || g.OK == (g.Reason != "") || strings.Contains(g.Reason, "\n") {
			t.Errorf("%s: %+v, want %v", name, g, want)
		}
	}
	if boxes := b.w.boxes(); len(boxes) != 0 {
		t.Errorf("boxes %v are left", boxes)
	}
	var live object
	if status := b.w.get("/healthz", &live); status != 200 || live["live"] != true {
		t.Errorf("%d %v", status, live)
	}
	if status := b.w.get("/elsewhere", nil); status != 404 {
		t.Errorf("%d", status)
	}
	// Without its launcher a daemon is not ready, and says why.
	for _, pid := range append(b.w.Find("keeper"), b.w.Find("launcher")...) {
		terminate(t, pid)
	}
	b.w.await("it is not ready any more", func() bool { return b.w.get("/readyz", &got) == 503 })
	if got.Ready || got.Checks["backend_available"] {
		t.Errorf("%+v", got)
	}
	b.w.again() // which starts another
	if status := b.w.get("/readyz", &got); status != 200 || !got.Ready {
		t.Errorf("%d %+v", status, got)
	}
}
