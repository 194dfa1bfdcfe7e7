package session

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// slow is one event in a thousand seconds, so that a test sees no second one.
const slow = 0.001

// Boxes count as creates and commands as execs, of the tenant and of the caller's token.
func TestRates(t *testing.T) {
	b := newBench(t)
	b.policy.Tenants = map[string]policy.Tenant{"t": {Rates: policy.Rates{Creates: slow, CreatesBurst: 3, Execs: slow, ExecsBurst: 3}}}
	b.start()
	b.ensure(keyA, policy.Request{})
	b.ensure(keyA, policy.Request{})
	b.host.Box(b.get(keyA).Box).Die() // the box is lost: another one is another create
	b.eventually("the loss is known", func() bool { return b.get(keyA).State == Failed })
	b.exec(keyA, "true")

	// One create is left. A token that may not use it does not take it from others, although they
	// wait for the same session.
	none := me
	none.Limits = policy.NewTokenLimiter("none", policy.Rates{Creates: slow})
	if err := b.AdmitRequest("t", none.Limits); err != nil { // another kind
		t.Error(err)
	}
	if err := b.throttle.Admit("", none.Limits, policy.CreateRate); err != nil {
		t.Fatal(err)
	}
	var made, refused atomic.Int32
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			c := me
			if n%2 == 0 {
				c = none
			}
			_, err := b.Ensure(ctx, c, keyB, policy.Request{})
			var rate *policy.RateError
			switch {
			case err == nil:
				made.Add(1)
			case errors.As(err, &rate) && rate.Scope == "token" && c.Limits != nil && rate.Holder == "none":
				refused.Add(1)
			default:
				t.Errorf("token %v: %v", c.Limits != nil, err)
			}
		})
	}
	wg.Wait()
	if made.Load() < 10 || made.Load()+refused.Load() != 20 {
		t.Errorf("%d got the session, %d were refused", made.Load(), refused.Load())
	}
	_, err := b.Ensure(ctx, me, Key{"t", "c"}, policy.Request{})
	var rate *policy.RateError
	if !errors.As(err, &rate) || rate.Scope != "tenant" || rate.Kind != policy.CreateRate {
		t.Errorf("one too many: %v", err)
	}
	if _, err := b.Get(Key{"t", "c"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("what was refused is there: %v", err)
	}
	if b.audit.has("create", "failed") {
		t.Error("a refused rate is in the audit log")
	}

	if _, err := b.Exec(ctx, me, Key{"t", "none"}, nil, Exec{Args: []string{"true"}}); !errors.Is(err, ErrNotFound) { // is not counted
		t.Error(err)
	}
	b.launch(keyA, "p", "sleep", "99")
	b.exec(keyB, "true")
	if _, err := b.Exec(ctx, me, keyB, nil, Exec{Args: []string{"true"}}); !errors.As(err, &rate) || rate.Kind != policy.ExecRate || rate.PerSecond != slow || rate.Burst != 3 {
		t.Errorf("a fourth command: %v", err)
	}
	if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "q", Args: []string{"true"}}); !errors.Is(err, policy.ErrRate) {
		t.Errorf("a process: %v", err)
	}
	// What does not start a command goes on.
	size := spec.Size(64 << 20)
	if _, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Memory: &size}}); err != nil {
		t.Error(err)
	}
	// Other tenants are not concerned.
	if _, err := b.Exec(ctx, Caller{}, Key{"u", "a"}, &policy.Request{}, Exec{Args: []string{"true"}}); err != nil {
		t.Error(err)
	}
}
