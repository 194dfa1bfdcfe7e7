package langbot

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/langbot/attest"
	"github.com/boxd/boxd/langbot/grants"
	"github.com/boxd/boxd/langbot/protocol"
)

// prober reports that every check passes except those in bad.
type prober struct {
	mu    sync.Mutex
	bad   []string
	late  string
	at    time.Time // of reports; now if zero
	asked int
	// The arguments of the last call.
	age   time.Duration
	where attest.Places
}

func (p *prober) Report(_ context.Context, maxAge time.Duration, where attest.Places) attest.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	p.age, p.where = maxAge, where
	r := attest.Report{Checks: map[string]attest.Check{}, Late: p.late, At: p.at}
	if r.At.IsZero() {
		r.At = time.Now()
	}
	for _, name := range attest.Names {
		r.Checks[name] = attest.Check{OK: true}
	}
	for _, name := range p.bad {
		r.Checks[name] = attest.Check{Reason: "it is not so"}
	}
	return r
}

func (p *prober) Close() {}

func (p *prober) set(bad ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad = bad
}

// cloud opens a bench on which admission is required and ready.
func cloud(t *testing.T, fn func(b *bench, p *prober)) {
	p := &prober{}
	bubble(t, func(b *bench) {
		b.require(nil)
		fn(b, p)
	}, func(o *Options) { o.Prober = p })
}

func (b *bench) require(change object) {
	b.Helper()
	policy := object{"required": true, "max_timeout_sec": 60, "cpus": 0.5, "memory_mb": 128, "pids_limit": 32, "workspace_quota_mb": 0}
	for k, v := range change {
		policy[k] = v
	}
	b.call("box_init", object{"local": object{"host_root": b.path("shared")}, "admission": policy})
}

func grant(at protocol.Context, revision int, d time.Duration) object {
	return object{"instance_uuid": at.Instance, "workspace_uuid": at.Workspace, "execution_generation": at.Generation, "entitlement_revision": revision,
		"expires_at": time.Now().Add(d).UTC().Format(time.RFC3339), "max_sessions": 1, "max_managed_processes": 0}
}

const upsert, revoke = "box_upsert_sandbox_admission_grant", "box_revoke_sandbox_admission_grant"

func TestAdmission(t *testing.T) {
	cloud(t, func(b *bench, _ *prober) {
		b.refused(protocol.Admission, "box_exec", cmd("s", "true"))
		if out := b.call(upsert, grant(at, 1, 4*time.Minute)); out["installed"] != true {
			t.Errorf("%v", out)
		}
		r := b.call("box_exec", specOf("any", object{"cmd": "true", "cpus": 4, "memory_mb": 4096, "read_only_rootfs": false, "timeout_sec": 600, "persistent": false}))
		if r["session_id"] != "global" || r["backend_name"] != "nsjail" {
			t.Errorf("%v", r)
		}
		s := b.call("box_get_session", object{"session_id": "global"})
		if s["memory_mb"] != 128.0 || s["cpus"] != 0.5 || s["pids_limit"] != 32.0 || s["persistent"] != true || s["read_only_rootfs"] != true ||
			s["host_path"] != b.path("shared/default/tenants/"+at.Namespace()) {
			t.Errorf("%v", s)
		}
		if c := b.host.Only().Last(); c.Timeout != time.Minute {
			t.Errorf("timeout %v", c.Timeout)
		}
		b.call("box_exec", specOf("any", object{"cmd": "true", "host_path": b.path("shared/default/tenants/" + at.Namespace())}))
		for _, change := range []object{{"network": "on"}, {"mount_path": "/data", "workdir": "/data"}, {"workdir": "/tmp"}, {"host_path": b.path("shared/default")},
			{"extra_mounts": []any{object{"host_path": b.path("shared"), "mount_path": "/x"}}}, {"skill_name": "none"}} {
			change["cmd"] = "true"
			b.refused(protocol.Admission, "box_exec", specOf("any", change))
		}
		b.refused(protocol.Admission, "box_get_session", object{"session_id": "other"})
		b.refused(protocol.Admission, "box_delete_session", object{"session_id": "other"})
		for _, action := range []string{"box_get_managed_process", "box_stop_managed_process"} {
			b.refused(protocol.Admission, action, object{"session_id": "global"})
		}
		b.refused(protocol.Admission, "box_start_managed_process", proc("global", "p", "serve"))
		if _, err := b.server.relayOf(at, at.Runtime()+"-global", "p"); err == nil || !strings.HasPrefix(err.Error(), "BoxAdmissionError: ") {
			t.Errorf("a relay: %v", err)
		}
		other := at
		other.Workspace = "v"
		b.refusedAt(other, protocol.Admission, "box_exec", cmd("s", "true"))
		b.callAt(other, "box_status", object{})
	})
}

// TestGrantEnds: sessions end with the grant that admitted them, persistent or not.
func TestGrantEnds(t *testing.T) {
	cloud(t, func(b *bench, _ *prober) {
		b.call(upsert, grant(at, 1, time.Minute))
		b.call("box_exec", cmd("s", "true"))
		time.Sleep(30 * time.Second)
		b.call(upsert, grant(at, 1, time.Minute)) // renewed
		time.Sleep(45 * time.Second)
		b.call("box_exec", cmd("s", "true"))
		if len(b.host.Made()) != 1 {
			t.Errorf("%d boxes: a renewal has ended the session", len(b.host.Made()))
		}
		time.Sleep(16 * time.Second)
		b.refused(protocol.Admission, "box_exec", cmd("s", "true"))
		time.Sleep(sweepEvery)
		synctest.Wait()
		if ids := b.host.IDs(); len(ids) != 0 {
			t.Errorf("boxes %q", ids)
		}
	})
}

// TestRevoke: when a revocation is answered, nothing of the workspace is left and nothing new
// begins, whatever was in progress.
func TestRevoke(t *testing.T) {
	cloud(t, func(b *bench, _ *prober) {
		b.call(upsert, grant(at, 1, time.Minute))
		wait, entered := make(chan struct{}), make(chan struct{}, 1)
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "create" {
				entered <- struct{}{}
				<-wait
			}
			return nil
		})
		ended := make(chan error, 2)
		exec := func() {
			_, err := b.try(context.Background(), &at, "box_exec", cmd("s", "wait"))
			ended <- err
		}
		go exec()
		<-entered
		revoked := make(chan error, 1)
		go func() {
			_, err := b.try(context.Background(), &at, revoke, object{"instance_uuid": "i", "workspace_uuid": "w", "entitlement_revision": 2})
			revoked <- err
		}()
		synctest.Wait()
		go exec()
		synctest.Wait()
		close(wait)
		if err := <-revoked; err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-ended; err == nil {
				t.Error("a command has a result")
			}
		}
		if ids := b.host.IDs(); len(ids) != 0 || len(b.server.boxes) != 0 {
			t.Errorf("boxes %q", ids)
		}
		b.refused(protocol.Admission, "box_exec", cmd("s", "true"))
		b.refused(protocol.Admission, upsert, grant(at, 2, time.Minute))
		b.call(upsert, grant(at, 3, time.Minute))
	})
}

// TestRevokedBeforeCreation: a command was admitted, but creates its session only after the
// revocation searched for the sessions of the workspace.
func TestRevokedBeforeCreation(t *testing.T) {
	cloud(t, func(b *bench, _ *prober) {
		b.call(upsert, grant(at, 1, time.Minute))
		unlock := must(b.server.ops.LockContext(context.Background(), at.Runtime()+"-global"))
		ended := make(chan error, 1)
		go func() {
			_, err := b.try(context.Background(), &at, "box_exec", cmd("s", "true"))
			ended <- err
		}()
		synctest.Wait()
		b.call(revoke, object{"instance_uuid": "i", "workspace_uuid": "w", "entitlement_revision": 2})
		unlock()
		if err := <-ended; err == nil || !strings.HasPrefix(err.Error(), "BoxAdmissionError: ") {
			t.Errorf("%v", err)
		}
		if len(b.host.Made()) != 0 {
			t.Errorf("%d boxes were made", len(b.host.Made()))
		}
	})
}

// TestAdmissionOfAnother: an instance whose box_init does not mention admission does not turn it
// off for the one that requires it, and needs grants itself.
func TestAdmissionOfAnother(t *testing.T) {
	cloud(t, func(b *bench, _ *prober) {
		b.call(upsert, grant(at, 1, time.Minute))
		other := protocol.Context{Instance: "j", Workspace: "w", Generation: 1}
		b.callAt(other, "box_init", object{"limits": object{}})
		b.call("box_exec", cmd("s", "true"))
		b.refusedAt(other, protocol.Admission, "box_exec", cmd("s", "true"))
	})
}

// TestGrantAdvances: a grant of a new generation ends the sessions of the old one.
func TestGrantAdvances(t *testing.T) {
	cloud(t, func(b *bench, _ *prober) {
		b.call(upsert, grant(at, 1, time.Minute))
		b.call("box_exec", cmd("s", "true"))
		next := at
		next.Generation = 2
		b.call(upsert, grant(next, 1, time.Minute))
		if n := len(b.host.IDs()); n != 0 {
			t.Errorf("%d boxes", n)
		}
		b.refused(protocol.Admission, "box_exec", cmd("s", "true"))
		b.refused(protocol.PermissionError, "box_status", object{})
		b.callAt(next, "box_exec", cmd("s", "true"))
	})
}

// TestAdmissionOutlivesRestart: the policy, the grants and the revocations survive a restart.
func TestAdmissionOutlivesRestart(t *testing.T) {
	cloud(t, func(b *bench, _ *prober) {
		b.call(upsert, grant(at, 1, 4*time.Minute))
		b.call("box_exec", cmd("s", "true"))
		b.restart()
		b.call("box_get_session", object{"session_id": "global"})
		b.refused(protocol.Admission, "box_get_session", object{"session_id": "other"})
		// The daemon dies between the revocation and the end of the sessions.
		_, err := b.server.book.Revoke(must(json.Marshal(object{"instance_uuid": "i", "workspace_uuid": "w", "entitlement_revision": 1})),
			grants.Asker{Instance: "i", Current: b.server.Current, MaxRecords: 10})
		if err != nil {
			t.Fatal(err)
		}
		b.restart()
		synctest.Wait()
		if ids := b.host.IDs(); len(ids) != 0 {
			t.Errorf("boxes %q of a workspace that was revoked", ids)
		}
		b.refused(protocol.Admission, upsert, grant(at, 1, time.Minute))
		// A box_init that does not mention admission leaves it on; one that does can turn it off.
		b.restart()
		b.call("box_init", object{"limits": object{}})
		b.refused(protocol.Admission, "box_exec", cmd("s", "true"))
		b.restart()
		b.call("box_init", object{"admission": object{"required": false}})
		b.call("box_exec", cmd("s", "true"))
	})
}

func TestReadiness(t *testing.T) {
	cloud(t, func(b *bench, p *prober) {
		b.call(upsert, grant(at, 1, time.Hour/20))
		ready := b.call("box_health", object{})
		want := []string{"backend_available", "bounded_ephemeral_storage", "cgroup_v2", "configuration", "hard_skill_storage_quota", "hard_workspace_quota", "inode_quota",
			"managed_process_cap", "mount_isolation", "namespace_isolation", "network_isolation", "required_backend", "session_cap", "workspace_mount"}
		var checks []string
		for name, ok := range ready["checks"].(object) {
			if checks = append(checks, name); ok != true {
				t.Errorf("%s is %v", name, ok)
			}
		}
		slices.Sort(checks)
		if !slices.Equal(checks, want) || ready["ready"] != true || ready["mode"] != "grant_enforced" || ready["backend"].(object)["name"] != "nsjail" || ready["unsafe_soft_storage_limits"] != false {
			t.Errorf("%v", ready)
		}
		asked := p.asked
		b.call("box_exec", cmd("s", "true"))
		if p.asked != asked {
			t.Error("measured again at once")
		}
		p.set("cgroup_v2", "inode_quota")
		time.Sleep(16 * time.Second)
		if text := b.refused(protocol.Readiness, "box_exec", cmd("s", "true")); text != "managed sandbox isolation is not ready (failed checks: cgroup_v2, inode_quota)" {
			t.Errorf("%q", text)
		}
		if text := b.refused(protocol.Readiness, "box_health", object{}); text != "managed sandbox isolation is not ready" {
			t.Errorf("%q", text)
		}
		info := b.call("box_get_backend_info", object{})
		if info["name"] != "nsjail" || info["readiness"].(object)["guarantees"].(object)["cgroup_v2"].(object)["reason"] != "it is not so" {
			t.Errorf("%v", info)
		}
		if body, ok := b.server.Ready(context.Background()); ok || body.(readiness).Ready {
			t.Errorf("%v", body)
		}
		p.set()
		time.Sleep(16 * time.Second)
		b.call("box_exec", cmd("s", "true"))
		b.require(object{"surprise": 1}) // cannot be read: nobody is admitted
		b.refused(protocol.Readiness, "box_exec", cmd("s", "true"))
		b.call("box_init", object{"admission": object{"required": false}})
		b.refused(protocol.Readiness, "box_exec", cmd("s", "true")) // not switched off either
	})
}

func TestStandardReadiness(t *testing.T) {
	p := &prober{bad: []string{"hard_workspace_quota"}}
	b := open(t, func(o *Options) { o.Prober = p })
	body, ok := b.server.Ready(context.Background())
	r := body.(readiness)
	if !ok || r.Mode != "standard" || !r.Ready || len(r.Checks) != 1 || !r.Checks["backend_available"] || r.Guarantees["hard_workspace_quota"].OK || !r.Guarantees["cgroup_v2"].OK {
		t.Errorf("%+v", r)
	}
	b.host.SetHealth(context.DeadlineExceeded)
	body, ok = b.server.Ready(context.Background())
	if r := body.(readiness); ok || r.Backend.Name != nil || r.Guarantees["cgroup_v2"].OK || r.Error != context.DeadlineExceeded.Error() {
		t.Errorf("%+v", r)
	}
	if h := b.call("box_health", object{}); h["name"] != nil || h["available"] != false {
		t.Errorf("%v", h)
	}
	if st := b.call("box_status", object{}); st["backend"].(object)["available"] != false {
		t.Errorf("%v", st)
	}
	if l := b.server.Live().(map[string]any); l["live"] != true {
		t.Errorf("%v", l)
	}
}

// TestReadinessLate: a measurement that hangs makes the answer false. One that hung before the
// engine was asked does not, nor does a host that guarantees nothing.
func TestReadinessLate(t *testing.T) {
	p := &prober{bad: attest.Names}
	bubble(t, func(b *bench) {
		want := func(ready bool, text string) {
			t.Helper()
			body, ok := b.server.Ready(context.Background())
			if r := body.(readiness); ok != ready || r.Ready != ready || !r.Checks["backend_available"] || r.Error != text {
				t.Errorf("%v, %+v, want %v", ok, r, ready)
			}
		}
		want(true, "")
		p.late = "cgroup_v2:\nno end"
		want(false, "measuring what this host guarantees did not end: cgroup_v2: no end")
		p.at = time.Now()
		time.Sleep(time.Second)
		want(true, "")
		p.late, p.at = "", time.Time{}
		want(true, "")
	}, func(o *Options) { o.Prober = p })
}

// TestReadinessNow: even where admission is required, readiness turns false, with a reason, as soon
// as no box can be created, whatever was measured before, and true as soon as one can.
func TestReadinessNow(t *testing.T) {
	cloud(t, func(b *bench, p *prober) {
		ready := func() readiness {
			body, ok := b.server.Ready(context.Background())
			if r := body.(readiness); r.Ready == ok {
				return r
			}
			t.Errorf("%v, but %+v", ok, body)
			return readiness{}
		}
		if r := ready(); !r.Ready {
			t.Fatalf("%+v", r)
		}
		b.host.SetHealth(errors.New("a step hangs\nin the kernel"))
		if r := ready(); r.Ready || r.Checks["backend_available"] || !strings.HasSuffix(r.Error, ": a step hangs in the kernel") {
			t.Errorf("%+v", r)
		}
		b.host.SetHealth(nil)
		if r := ready(); !r.Ready {
			t.Errorf("%+v", r)
		}
	})
}

// TestReadinessOfUnmappable: readiness is false if workspaces cannot be mounted into boxes.
func TestReadinessOfUnmappable(t *testing.T) {
	b := open(t, func(o *Options) { o.Prober = &prober{} })
	if err := os.MkdirAll(b.path("shared/mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.call("box_init", object{"local": object{"host_root": b.path("shared"), "default_workspace": b.path("shared/mine")}})
	for _, c := range []struct {
		err   error
		ready bool
	}{{nil, true}, {fs.ErrNotExist, true}, {errors.New("cannot be id-mapped"), false}} {
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "map" {
				return c.err
			}
			return nil
		})
		body, ok := b.server.Ready(context.Background())
		r := body.(readiness)
		if ok != c.ready || r.Checks["workspace_mount"] != c.ready || (r.Error == "cannot be id-mapped") != !c.ready {
			t.Errorf("%v: %+v", c.err, r)
		}
	}
}

// TestReadinessFlood: frequent requests do not start a measurement each, even if the policy caches
// nothing.
func TestReadinessFlood(t *testing.T) {
	cloud(t, func(b *bench, p *prober) {
		b.require(object{"readiness_cache_sec": 0})
		if _, ready := b.server.Ready(context.Background()); !ready {
			t.Error("not ready")
		}
		if p.mu.Lock(); p.age < leastAge {
			t.Errorf("a measurement may be %v old", p.age)
		}
		p.mu.Unlock()
	})
}

// TestReadinessOfSharedWorkspaces: quotas are measured on the file system of the workspaces.
func TestReadinessOfSharedWorkspaces(t *testing.T) {
	p := &prober{}
	b := open(t, func(o *Options) { o.Prober = p })
	want := func(dir engine.Directory) {
		t.Helper()
		b.server.Ready(context.Background())
		if p.where.Workspaces != dir {
			t.Errorf("measured %+v, want %+v", p.where.Workspaces, dir)
		}
	}
	want(engine.Directory{})
	b.call("box_init", object{"local": object{"host_root": b.path("shared"), "default_workspace": b.path("shared/mine")}})
	want(engine.Directory{Path: b.path("shared/mine"), Within: b.o.Roots[0]})
	b.require(nil)
	want(engine.Directory{Path: b.path("shared/default"), Within: b.o.Roots[0]})
}
