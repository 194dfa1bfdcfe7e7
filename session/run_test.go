package session

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"go.etcd.io/bbolt"
)

func asksFor(w spec.Wishes) policy.Request { return policy.Request{Wishes: w} }

// TestRun: a run has the box that it asks for, and nothing of it stays. No database is written, so a run does not wait
// for one.
func TestRun(t *testing.T) {
	b := open(t)
	fail := b.stallStore()
	defer fail()
	seen := engine.Spec{}
	b.host.SetHook(func(_ context.Context, op, id string) error {
		if op == "start" {
			seen = b.host.Box(id).Spec()
		}
		return nil
	})
	res, err := b.Run(ctx, me, "t", asksFor(spec.Wishes{Hostname: "h", TmpSize: ptr(spec.Size(2 << 20)), LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(64 << 20))}}), Exec{Args: []string{"exit", "3"}})
	if err != nil || res.ExitCode != 3 || !strings.HasPrefix(res.Session.Key.ID, "run-") {
		t.Fatalf("%+v, %v", res, err)
	}
	want := engine.Spec{ID: seen.ID, Hostname: "h", TmpSize: 2 << 20, Limits: engine.Limits{Memory: 64 << 20}}.WithDefaults()
	if seen.Labels = nil; seen.Hostname != want.Hostname || seen.Limits != want.Limits || seen.TmpSize != want.TmpSize || len(seen.Mounts) > 0 || seen.Image != want.Image {
		t.Errorf("box %+v, want %+v", seen, want)
	}
	b.eventually("the end of the session", func() bool { return len(b.List("")) == 0 && len(b.host.IDs()) == 0 })
	if got := b.ranText(res.Session.Key.ID); got != "exit 3: exited" {
		t.Errorf("history %q", got)
	}
	if !b.audit.has("create", "allow") || !b.audit.has("exec", "allow") || b.ledger.InUse("t").Sessions != 0 {
		t.Error("the audit log, or the quota, knows nothing of the run")
	}
}

// TestRunEnds: whatever ends a run, its box goes.
func TestRunEnds(t *testing.T) {
	b := open(t)
	begin := func() (Key, context.CancelFunc, <-chan error) {
		t.Helper()
		c, cancel := context.WithCancel(ctx)
		started, done := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := b.Run(c, me, "t", policy.Request{}, Exec{Args: []string{"wait"}, Started: func(engine.Process) { close(started) }})
			done <- err
		}()
		await(t, started, "the start")
		return b.List("")[0].Key, cancel, done
	}
	gone := func() {
		b.eventually("the end of the box", func() bool { return len(b.host.IDs()) == 0 && len(b.List("")) == 0 })
	}

	_, cancel, done := begin()
	cancel()
	<-done
	gone()

	key, cancel, done := begin()
	defer cancel()
	for what, err := range map[string]error{
		"exec": func() error { _, err := b.Exec(ctx, me, key, nil, Exec{Args: []string{"true"}}); return err }(),
		"start": func() error {
			_, err := b.Start(ctx, me, key, nil, ProcessSpec{ID: "p", Args: []string{"true"}})
			return err
		}(),
		"ensure": func() error { _, err := b.Ensure(ctx, me, key, policy.Request{}); return err }(),
		"update": func() error { _, err := b.Update(ctx, me, key, spec.Update{}); return err }(),
	} {
		if !errors.Is(err, ErrState) {
			t.Errorf("%s in a run: %v", what, err)
		}
	}
	must(t, b.Remove(ctx, me, key))
	<-done
	gone()

	_, cancel, done = begin()
	defer cancel()
	b.crash()
	<-done
	b.start() // finds a box without an owner
	gone()

	_, cancel, done = begin()
	defer cancel()
	must(t, b.Close(ctx, false))
	<-done
	if left := b.host.IDs(); len(left) > 0 {
		t.Errorf("a closed manager leaves %q", left)
	}
	if _, err := b.Run(ctx, me, "t", policy.Request{}, Exec{Args: []string{"true"}}); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestRunRecords: nothing about runs is in the database.
func TestRunRecords(t *testing.T) {
	b := open(t)
	for range 3 * maxTidying {
		if res, err := b.Run(ctx, me, "t", policy.Request{}, Exec{Args: []string{"true"}}); err != nil || res.ExitCode != 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		if n := len(b.List("")); n > maxTidying {
			t.Fatalf("%d runs are being removed", n)
		}
	}
	b.eventually("the end of all", func() bool { return len(b.List("")) == 0 })
	must(t, b.Manager.store.db.View(func(tx *bbolt.Tx) error {
		if n := tx.Bucket(sessionsBucket).Stats().KeyN; n > 0 {
			t.Errorf("%d records", n)
		}
		return nil
	}))
}

// TestRunRefused: a run gets what it asks for, or nothing.
func TestRunRefused(t *testing.T) {
	b := newBench(t)
	b.policy.Profiles = map[string]policy.ProfileConfig{}
	b.start()
	for _, c := range []struct {
		wishes spec.Wishes
		exec   Exec
		field  string
	}{
		{spec.Wishes{WorkspaceMode: ptr("rw")}, Exec{}, "workspace_mode"},
		{spec.Wishes{Workspace: "/srv/data"}, Exec{}, "workspace"},
		{spec.Wishes{Mounts: []spec.MountWish{{Source: "/srv/data", Target: "/x"}}}, Exec{}, "mounts"},
		{spec.Wishes{Volumes: []spec.VolumeWish{{Name: "v", Target: "/v"}}}, Exec{}, "volumes"},
		{spec.Wishes{Publish: []spec.PublishWish{{Port: 80}}}, Exec{}, "publish"},
		{spec.Wishes{Timeout: ptr(spec.Duration(time.Second))}, Exec{}, "timeout"},
		{spec.Wishes{LiveWishes: spec.LiveWishes{Network: ptr(true)}}, Exec{}, "network"},
		{spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}, Exec{}, "persistent"},
		{spec.Wishes{LiveWishes: spec.LiveWishes{Sensitive: ptr(true)}}, Exec{}, "sensitive"},
		{spec.Wishes{Image: ptr("python:3")}, Exec{}, "image"},
		{spec.Wishes{LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(64 << 30))}}, Exec{}, "memory"},
		{spec.Wishes{LiveWishes: spec.LiveWishes{CPUs: ptr(-1.0)}}, Exec{}, "cpus"},
		{spec.Wishes{Profile: "offline_readonly"}, Exec{}, "workspace_mode"},
		{spec.Wishes{Profile: "execution"}, Exec{}, "pids"},
		{spec.Wishes{Profile: "default"}, Exec{}, "timeout"},
		{spec.Wishes{Profile: "default"}, Exec{Timeout: time.Hour}, "timeout"},
		{spec.Wishes{Profile: "network_extended"}, Exec{Timeout: time.Second}, "cpus"},
		{spec.Wishes{Profile: "none"}, Exec{}, "profile"},
	} {
		c.exec.Args = []string{"true"}
		_, err := b.Run(ctx, me, "t", asksFor(c.wishes), c.exec)
		field := ""
		if bad, ok := errors.AsType[*engine.FieldError](err); ok {
			field = bad.Field
		} else if denied, ok := errors.AsType[*policy.DeniedError](err); ok {
			field = denied.Field
		}
		if field != c.field {
			t.Errorf("%+v: %v, want a refusal of %s", c.wishes, err, c.field)
		}
	}
	if made := b.host.Made(); len(made) > 0 {
		t.Errorf("boxes of refused runs: %v", made)
	}
	if res, err := b.Run(ctx, me, "t", asksFor(spec.Wishes{Profile: "default"}), Exec{Args: []string{"true"}, Timeout: time.Minute}); err != nil || res.Timeout != time.Minute {
		t.Errorf("another profile that gives the same: %+v, %v", res, err)
	}
	if res, err := b.Run(ctx, me, "t", policy.Request{}, Exec{Args: []string{"true"}}); err != nil || res.Timeout != 0 {
		t.Errorf("without a timeout: %+v, %v", res.Timeout, err)
	}
}

// TestRunAnswered: a removal that fails, however often, does not withhold the result of a command that has ended.
func TestRunAnswered(t *testing.T) {
	b := open(t)
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "remove" || op == "discard" {
			return errors.New("the box does not go")
		}
		return nil
	})
	for i := range maxTidying + 2 {
		if res, err := b.Run(ctx, me, "t", policy.Request{}, Exec{Args: []string{"exit", "3"}}); err != nil || res.ExitCode != 3 {
			t.Fatalf("%d: %+v, %v", i, res, err)
		}
	}
	if n := len(b.List("")); n != maxTidying+2 {
		t.Errorf("%d are left", n)
	}
	b.host.SetHook(nil)
	b.eventually("the end of all", func() bool { return len(b.List("")) == 0 })
}

// TestRunQuota: a run that has been answered is no reason to refuse the next one.
func TestRunQuota(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults.Sessions = 1
	b.start()
	second := make(chan struct{})
	release := sync.OnceFunc(func() { close(second) })
	defer release()
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "remove" {
			<-second
		}
		return nil
	})
	run := func(c context.Context) error {
		_, err := b.Run(c, me, "t", policy.Request{}, Exec{Args: []string{"true"}})
		return err
	}
	must(t, run(ctx))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	b.eventually("the second run", func() bool { return len(b.List("")) == 2 })
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := run(gone); !errors.Is(err, policy.ErrQuota) {
		t.Errorf("a caller that does not wait: %v", err)
	}
	release()
	must(t, <-done)
	b.eventually("the end of all", func() bool { return len(b.List("")) == 0 })
	b.ensure(keyA, policy.Request{})
	if err := run(ctx); !errors.Is(err, policy.ErrQuota) {
		t.Errorf("beside a session: %v", err)
	}
}

// TestRunProfile: a profile gives a run nothing that it has not asked for.
func TestRunProfile(t *testing.T) {
	b := newBench(t)
	hour := spec.Duration(time.Hour)
	b.policy.Profiles = map[string]policy.ProfileConfig{
		"warm": {Extends: RunProfile, Zygotes: &[]spec.Zygote{
			{Name: "py", Command: []string{"python3"}, Match: true}, {Name: "other", Command: []string{"python3", "-I"}, Match: true},
		}},
		"weak":  {Extends: RunProfile, Wishes: spec.Wishes{Require: ptr(false)}},
		"brief": {Extends: RunProfile, Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{MaxLifetime: &hour}}},
	}
	b.start()
	var zygotes []spec.Zygote // of the last box
	b.host.SetHook(func(_ context.Context, op, id string) error {
		if op != "start" {
			return nil
		}
		zygotes = b.host.Box(id).Spec().Zygotes
		return errors.New("this is all that the test wants to know")
	})
	for _, c := range []struct {
		args []string
		want string
	}{{[]string{"true"}, ""}, {[]string{"python3", "-c", "1"}, "py"}, {[]string{"python3", "-I", "x.py"}, "other"}} {
		zygotes = []spec.Zygote{{Name: "no box was made"}}
		_, err := b.Run(ctx, me, "t", asksFor(spec.Wishes{Profile: "warm"}), Exec{Args: c.args})
		if len(zygotes) > 1 || (len(zygotes) == 1) != (c.want != "") || c.want != "" && zygotes[0].Name != c.want {
			t.Errorf("%q: %+v, %v", c.args, zygotes, err)
		}
	}
	for _, wish := range []*bool{nil, ptr(true), ptr(false)} {
		_, a, err := b.resolveRun(me, "t", asksFor(spec.Wishes{Profile: "weak", Require: wish}), &Exec{Args: []string{"true"}})
		if must(t, err); a.resolved.Require != (wish == nil || *wish) {
			t.Errorf("require %v: %v", wish, a.resolved.Require)
		}
	}
	_, err := b.Run(ctx, me, "t", asksFor(spec.Wishes{Profile: "brief"}), Exec{Args: []string{"true"}})
	if denied, ok := errors.AsType[*policy.DeniedError](err); !ok || denied.Field != "profile" || !strings.Contains(denied.Rule, "max_lifetime") {
		t.Errorf("a profile with an end: %v", err)
	}
}

// TestRunAdmitted: a run that was admitted counts once in the rate of commands.
func TestRunAdmitted(t *testing.T) {
	b := newBench(t)
	b.policy.Tenants = map[string]policy.Tenant{"t": {Rates: policy.Rates{Execs: 0.001, ExecsBurst: 2}}}
	b.start()
	for range 2 {
		e := Exec{Args: []string{"true"}}
		must(t, b.AdmitRun(ctx, me, "t", policy.Request{}, &e))
		_, err := b.Run(ctx, me, "t", policy.Request{}, e)
		must(t, err)
	}
	if err := b.AdmitRun(ctx, me, "t", policy.Request{}, &Exec{Args: []string{"true"}}); !errors.Is(err, policy.ErrRate) {
		t.Errorf("the third: %v", err)
	}
}
