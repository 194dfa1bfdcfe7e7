package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/enginetest"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/policy"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

type mount = engine.Mount

// bench is a manager over a fake host, with everything needed to open it again.
type bench struct {
	t      testing.TB
	dir    string
	host   *enginetest.Host
	policy policy.Config
	alter  func(*Options)
	audit  *fakeAudit
	client *enginetest.Client
	*Manager
	engineFirst bool // see crash
}

// fakeAudit keeps the entries.
type fakeAudit struct {
	mu   sync.Mutex
	list []audit.Entry
	err  error
	told func(audit.Entry) // may be nil; set before the manager runs
}

func (a *fakeAudit) Append(e audit.Entry) error {
	if a.told != nil {
		a.told(e)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return a.err
	}
	a.list = append(a.list, e)
	return nil
}

// has reports whether there is an entry of action and decision.
func (a *fakeAudit) has(action, decision string) bool { return a.count(action, decision) > 0 }

func (a *fakeAudit) count(action, decision string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.list {
		if e.Action == action && e.Decision == decision {
			n++
		}
	}
	return n
}

func newBench(t testing.TB) *bench {
	b := &bench{t: t, dir: t.TempDir(), host: enginetest.NewHost(""), audit: &fakeAudit{}}
	b.policy = policy.Config{AllowedMountRoots: []string{"/srv/data"}, NetworkAvailable: true}
	return b
}

// open is a bench whose manager is open.
func open(t testing.TB) *bench {
	b := newBench(t)
	b.start()
	return b
}

func (b *bench) start() {
	b.t.Helper()
	if err := b.tryStart(); err != nil {
		b.t.Fatal(err)
	}
	<-b.adopted
}

func (b *bench) tryStart() error {
	p, err := policy.New(b.policy)
	if err != nil {
		return err
	}
	b.client = b.host.Connect()
	o := Options{DB: filepath.Join(b.dir, "boxd.db"), Workspaces: filepath.Join(b.dir, "workspaces"),
		Engine: b.client, Storage: b.client, Policy: p, Audit: b.audit, Logger: testLogger(b.t)}
	if b.alter != nil {
		b.alter(&o)
	}
	m, err := Open(context.Background(), o)
	if err != nil {
		return err
	}
	b.Manager = m
	b.t.Cleanup(func() { m.Close(context.Background(), false) })
	return nil
}

// crash ends the manager as SIGKILL would: nothing that it does has an effect any
// more, in the database first and then on the host, or the other way round.
func (b *bench) crash() {
	b.t.Helper()
	good, broken := b.Manager.store.db, b.brokenDB() // which takes a while
	if b.engineFirst {
		b.client.Cut()
	}
	b.swapStore(broken)
	b.client.Cut()
	b.Manager.Close(context.Background(), false)
	must(b.t, good.Close())
}

// written waits until all that was handed over to the store is on disk. An empty set would wait for nothing.
func (b *bench) written() error {
	return b.store.write(change{metaBucket, []byte("nothing"), nil})
}

// restart is a crash and another opening.
func (b *bench) restart() {
	b.t.Helper()
	b.crash()
	b.start()
}

var (
	ctx  = context.Background()
	me   = Caller{Tenant: "t", Actor: "me", Request: "r1"}
	keyA = Key{"t", "a"}
	keyB = Key{"t", "b"}
)

func (b *bench) ensure(key Key, r policy.Request) View {
	b.t.Helper()
	v, err := b.Ensure(ctx, me, key, r)
	if err != nil {
		b.t.Fatalf("Ensure(%v): %v", key, err)
	}
	return v
}

func (b *bench) get(key Key) View {
	b.t.Helper()
	v, err := b.Get(key)
	if err != nil {
		b.t.Fatalf("Get(%v): %v", key, err)
	}
	return v
}

func (b *bench) exec(key Key, args ...string) ExecResult {
	b.t.Helper()
	res, err := b.Exec(ctx, me, key, &policy.Request{}, Exec{Args: args})
	if err != nil {
		b.t.Fatalf("Exec(%v): %v", args, err)
	}
	return res
}

func (b *bench) launch(key Key, id string, args ...string) *Process {
	b.t.Helper()
	if _, err := b.Start(ctx, me, key, &policy.Request{}, ProcessSpec{ID: id, Args: args}); err != nil {
		b.t.Fatalf("Start(%q): %v", id, err)
	}
	p, err := b.Process(key, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// await fails the test if ch is not closed soon.
func await(t testing.TB, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(testutil.Patience()):
		t.Fatal("waited too long for", what)
	}
}

// eventually waits until ok holds, asking after each event.
func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	sub := b.Subscribe("", 0)
	defer sub.Close()
	deadline := time.After(testutil.Patience())
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-sub.C:
		case <-tick.C:
		case <-deadline:
			b.t.Fatal("waited too long for", what)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestEnsureMakesAndReuses(t *testing.T) {
	b := open(t)
	first := b.ensure(keyA, policy.Request{})
	if !first.Created || first.State != Running || first.Generation != 1 || first.Box == "" {
		t.Errorf("first use: %+v", first)
	}
	second := b.ensure(keyA, policy.Request{})
	if second.Created || second.Recreated || second.Box != first.Box {
		t.Errorf("second use: %+v", second)
	}
	if st := b.Stats(); st.Created != 1 || st.Reused != 1 || st.States[Running] != 1 {
		t.Errorf("stats %+v", st)
	}
	if !b.audit.has("create", audit.Allow) || !b.audit.has("create", audit.Done) {
		t.Error("the audit log has no creation")
	}
}

func TestKeysAreExact(t *testing.T) {
	b := open(t)
	boxes := map[string]Key{}
	for _, key := range []Key{{"t", "a"}, {"t", "A"}, {"u", "a"}, {"t", "a.b"}, {"t", "a_b"}, {"t", "a-b"}, {"t", "a:b"}} {
		v := b.ensure(key, policy.Request{})
		if other, twice := boxes[v.Box]; twice || !v.Created {
			t.Errorf("%v has the box of %v", key, other)
		}
		boxes[v.Box] = key
	}
	for _, key := range []Key{{"t", ""}, {"t", "a/b"}, {"t", ".."}, {"t", "a\x00b"}, {"", "a"}, {"t", "é"}} {
		if _, err := b.Ensure(ctx, me, key, policy.Request{}); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("Ensure(%q): %v, want an invalid id", key, err)
		}
	}
}

func TestScope(t *testing.T) {
	b := open(t)
	r := policy.Request{Scope: "{launcher_type}_{launcher_id}", Variables: map[string]string{"launcher_type": "person", "launcher_id": "7"}}
	if v := b.ensure(Key{Tenant: "t"}, r); v.ID != "person_7" {
		t.Errorf("id %q", v.ID)
	}
	r.Variables = nil
	if v := b.ensure(Key{Tenant: "t"}, r); v.ID != "unknown_unknown" {
		t.Errorf("id %q", v.ID)
	}
}

func TestConflict(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Env: map[string]string{"SECRET": "one"}, LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(64 << 20))}}})
	_, err := b.Ensure(ctx, me, keyA, policy.Request{Wishes: spec.Wishes{Env: map[string]string{"SECRET": "two"}, LiveWishes: spec.LiveWishes{Memory: ptr(spec.Size(128 << 20)), Network: ptr(true)}}})
	var conflict *ConflictError
	if !errors.As(err, &conflict) || !errors.Is(err, ErrConflict) {
		t.Fatalf("error %v, want a conflict", err)
	}
	want := []Conflict{
		{"env", "with its own SECRET", "with its own SECRET"}, {"memory", "64 MiB", "128 MiB"}, {"network", "false", "true"},
	}
	if len(conflict.Fields) != len(want) {
		t.Fatalf("fields %+v, want %+v", conflict.Fields, want)
	}
	for i, f := range conflict.Fields {
		if f != want[i] {
			t.Errorf("field %+v, want %+v", f, want[i])
		}
	}
	// What is left open fits.
	if v := b.ensure(keyA, policy.Request{}); v.Resolved.Memory != 64<<20 {
		t.Errorf("memory %d", v.Resolved.Memory)
	}
}

// However much a caller asks for, its refusal is a line that fits into the audit log.
func TestLongRefusalIsAudited(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Env: map[string]string{"A": "1"}}})
	r := policy.Request{Wishes: spec.Wishes{Env: map[string]string{}}}
	for i := range 3000 {
		r.Env[fmt.Sprintf("<<<<<<<<%d", i)] = ""
	}
	if _, err := b.Ensure(ctx, me, keyA, r); !errors.Is(err, ErrConflict) {
		t.Fatal(err)
	}
	b.audit.mu.Lock()
	defer b.audit.mu.Unlock()
	last := b.audit.list[len(b.audit.list)-1]
	if last.Decision != audit.Deny || len(last.Reason) > 2*maxAuditArgs {
		t.Errorf("%q of %d bytes", last.Decision, len(last.Reason))
	}
}

func TestMountsChangeLive(t *testing.T) {
	b := open(t)
	one, two := spec.MountWish{Source: "/srv/data/one", Target: "/one"}, spec.MountWish{Source: "/srv/data/two", Target: "/two", ReadOnly: true}
	first := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{one}}})
	second := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{two}}})
	if second.Box != first.Box || second.Created {
		t.Error("another box")
	}
	has := func(target string) bool {
		for _, m := range b.host.Box(first.Box).Spec().Mounts {
			if m.Target == target {
				return true
			}
		}
		return false
	}
	if has("/one") || !has("/two") || !has("/workspace") {
		t.Errorf("mounts %+v", b.host.Box(first.Box).Spec().Mounts)
	}
	b.ensure(keyA, policy.Request{}) // names none: leaves them
	if !has("/two") {
		t.Error("a request without mounts took one away")
	}
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{}}})
	if has("/two") {
		t.Error("an empty list left a mount")
	}
	if !b.audit.has("attach", audit.Done) || !b.audit.has("detach", audit.Done) {
		t.Error("mounts are not in the audit log")
	}
	_, err := b.Ensure(ctx, me, keyA, policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/etc", Target: "/x"}}}})
	if err == nil || !b.audit.has("ensure", audit.Deny) {
		t.Errorf("mounting /etc: %v", err)
	}
}

func TestOneCreateForManyCallers(t *testing.T) {
	b := open(t)
	creates, free := 0, make(chan struct{})
	b.host.SetHook(func(ctx context.Context, op, _ string) error {
		if op == "create" {
			creates++
			<-free
		}
		return nil
	})
	var wg sync.WaitGroup
	made := make(chan bool, 20)
	for range 20 {
		wg.Go(func() {
			v, err := b.Ensure(ctx, me, keyA, policy.Request{})
			if err != nil {
				t.Error(err)
			}
			made <- v.Created
		})
	}
	// One that gives up waiting does so by its own context.
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	b.eventually("the creation", func() bool { _, err := b.Get(keyA); return err == nil })
	if _, err := b.Ensure(short, me, keyA, policy.Request{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the context", err)
	}
	close(free)
	wg.Wait()
	close(made)
	n := 0
	for created := range made {
		if created {
			n++
		}
	}
	if creates != 1 || n != 1 {
		t.Errorf("%d creates, %d callers were told that they made it", creates, n)
	}
}

func TestSessionsDoNotWaitForEachOther(t *testing.T) {
	b := open(t)
	free := make(chan struct{})
	boxA := make(chan string, 1)
	b.host.SetHook(func(ctx context.Context, op, box string) error {
		if op == "create" {
			select {
			case boxA <- box: // the first one hangs
				<-free
			default:
			}
		}
		return nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Ensure(ctx, me, keyA, policy.Request{})
	}()
	b.eventually("the creation", func() bool { return len(boxA) == 1 })
	b.exec(keyB, "true")
	b.launch(keyB, "p", "serve")
	if v := b.get(keyA); v.State != Creating {
		t.Errorf("state %q", v.State)
	}
	if len(b.List("t")) != 2 {
		t.Error("a list waits or lacks one")
	}
	if err := b.Remove(ctx, me, keyB); err != nil {
		t.Error(err)
	}
	close(free)
	await(t, done, "the creation")
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	b := open(t)
	boom := errors.New("boom")
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "create" {
			return boom
		}
		return nil
	})
	if _, err := b.Ensure(ctx, me, keyA, policy.Request{}); !errors.Is(err, boom) {
		t.Errorf("error %v", err)
	}
	if _, err := b.Get(keyA); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get: %v", err)
	}
	if use, _ := b.Quota("t"); use != (policy.Use{}) {
		t.Errorf("in use: %+v", use)
	}
	if n := len(b.Errors()); n != 1 {
		t.Errorf("%d errors", n)
	}
	b.host.SetHook(nil)
	if v := b.ensure(keyA, policy.Request{}); !v.Created {
		t.Error("not made anew")
	}
}

func TestQuotaOfSessions(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults.Sessions = 1
	b.start()
	b.ensure(keyA, policy.Request{})
	if _, err := b.Ensure(ctx, me, keyB, policy.Request{}); !errors.Is(err, policy.ErrQuota) {
		t.Errorf("error %v, want a quota", err)
	}
	if err := b.Remove(ctx, me, keyA); err != nil {
		t.Fatal(err)
	}
	b.ensure(keyB, policy.Request{})
}

func TestAuditThatFailsStopsAll(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	b.audit.mu.Lock()
	b.audit.err = errors.New("disk full")
	b.audit.mu.Unlock()
	if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); !errors.Is(err, ErrStorage) {
		t.Error("a command ran without an audit entry")
	}
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}); err == nil {
		t.Error("a process was started without an audit entry")
	}
	if _, err := b.Ensure(ctx, me, keyB, policy.Request{}); err == nil {
		t.Error("a session was made without an audit entry")
	}
	if err := b.Remove(ctx, me, keyA); err == nil {
		t.Error("a session was removed without an audit entry")
	}
	if n := len(b.host.IDs()); n != 1 {
		t.Errorf("%d boxes", n)
	}
}

// The session's profile decides about its mounts, not the profile of a later request.
func TestMountsOfALiveSessionKeepItsProfile(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Profile: "offline_readonly"}})
	b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}}})
	for _, m := range b.host.Box(v.Box).Spec().Mounts {
		if !m.ReadOnly {
			t.Errorf("%+v can be written", m)
		}
	}
}

func TestRevokedMountIsNotMountedAgain(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}}})
	b.Close(ctx, false)
	b.policy.AllowedMountRoots = []string{"/srv/other"}
	b.start()
	if list := b.Errors(); len(list) != 1 || !strings.Contains(list[0].Message, "not allowed any more") {
		t.Errorf("operators are told %+v", list)
	}
	b.host.Kill(v.Box)
	if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("error %v, want a refusal", err)
	}
	if v := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{}}}); !v.Recreated {
		t.Errorf("without the mount: %+v", v)
	}
}

func TestAccess(t *testing.T) {
	b := newBench(t)
	b.policy.TenantDefaults.Execs = 1
	b.start()
	box, release, err := b.Access(ctx, me, keyA, &policy.Request{}, Access{Action: "file-write", Path: "/workspace/x", Write: true})
	if err != nil || box == nil || !b.audit.has("file-write", audit.Allow) {
		t.Fatalf("%v", err)
	}
	if _, _, err := b.Access(ctx, me, keyA, nil, Access{Action: "file-read"}); !errors.Is(err, policy.ErrQuota) || !b.audit.has("file-read", audit.Deny) {
		t.Errorf("error %v, want a quota", err)
	}
	release()
	release()
	b.exec(keyA, "true")
}
