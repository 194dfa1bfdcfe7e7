package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// many is a bench with n sessions s0, s1, …, each with a process, whose manager has died.
// Whoever takes over a box from now on waits for its name in the map, if it is there.
func many(t *testing.T, n int) (b *bench, views map[Key]View, holdUp func(Key) (release func())) {
	b, views = open(t), map[Key]View{}
	for i := range n {
		key := Key{"t", fmt.Sprintf("s%d", i)}
		views[key] = b.ensure(key, policy.Request{})
		b.launch(key, "p", "serve")
	}
	b.crash()
	var mu sync.Mutex
	waits := map[string]chan struct{}{}
	b.host.SetHook(func(ctx context.Context, op, box string) error {
		mu.Lock()
		wait := waits[box]
		mu.Unlock()
		if op != "adopt" || wait == nil {
			return nil
		}
		select {
		case <-wait:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return b, views, func(key Key) func() {
		wait := make(chan struct{})
		mu.Lock()
		waits[views[key].Box] = wait
		mu.Unlock()
		return sync.OnceFunc(func() { close(wait) })
	}
}

// TestServeBeforeBoxesAreTakenOver: a caller gets its session, however long the takeover of
// the other boxes takes.
func TestServeBeforeBoxesAreTakenOver(t *testing.T) {
	const n = 3 * parallel
	b, views, holdUp := many(t, n)
	wanted := Key{"t", "s7"}
	var release []func()
	for key := range views {
		if key != wanted {
			release = append(release, holdUp(key))
		}
	}
	must(t, b.tryStart())
	if list := b.List(""); len(list) != n {
		t.Errorf("%d sessions are listed", len(list))
	}
	if v := b.ensure(wanted, policy.Request{}); v.Created || v.Recreated || v.Box != views[wanted].Box {
		t.Errorf("%+v", v)
	}
	b.exec(wanted, "true")
	if p, err := b.Process(wanted, "p"); err != nil || p.Live() == nil || p.View().State != ProcessRunning {
		t.Errorf("its process: %v", err)
	}
	if v := b.ensure(Key{"t", "new"}, policy.Request{}); !v.Created {
		t.Errorf("%+v", v)
	}
	other := Key{"t", "s3"}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := b.Exec(short, me, other, nil, Exec{Args: []string{"true"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a session whose box is not taken over: %v", err)
	}
	if use, _ := b.Quota("t"); use.Sessions != n+1 || use.Processes != n {
		t.Errorf("in use meanwhile: %+v", use)
	}
	// What waits for the box gets it.
	seen := make(chan *Process, 1)
	go func() {
		p, err := b.Process(other, "p")
		if err != nil {
			t.Error(err)
		}
		seen <- p
	}()
	for _, fn := range release {
		fn()
	}
	if p := <-seen; p == nil || p.Live() == nil {
		t.Error("a process without its streams")
	}
	<-b.adopted
	for key, v := range views {
		if got := b.get(key); got.State != Running || got.Box != v.Box || got.Processes != 1 {
			t.Errorf("%+v", got)
		}
	}
	if st := b.Stats(); st.Adopted != n || st.BoxesLost != 0 {
		t.Errorf("%+v", st)
	}
	if use, _ := b.Quota("t"); use.Sessions != n+1 || use.Processes != n {
		t.Errorf("in use: %+v", use)
	}
}

// TestRemoveBeforeTheBoxIsTakenOver: a removal takes the box over itself, and does not wait long for
// that.
func TestRemoveBeforeTheBoxIsTakenOver(t *testing.T) {
	b, views, holdUp := many(t, 2)
	first := Key{"t", "s0"}
	holdUp(first)
	must(t, b.tryStart())
	b.eventually("somebody who takes over its box", func() bool { return len(b.session(first).op) == 1 })
	must(t, b.Remove(ctx, me, first))
	if b.host.Box(views[first].Box) != nil {
		t.Error("its box is there")
	}
	if use, _ := b.Quota("t"); use.Sessions != 1 || use.Processes != 1 {
		t.Errorf("in use: %+v", use)
	}
}

// TestEndBeforeBoxesAreTakenOver: a manager that closes leaves the remaining boxes to its
// successor; one that stops all sessions ends them.
func TestEndBeforeBoxesAreTakenOver(t *testing.T) {
	b, views, holdUp := many(t, 2*parallel)
	for key := range views {
		holdUp(key)
	}
	must(t, b.tryStart())
	must(t, b.Close(ctx, false))
	b.host.SetHook(nil)
	b.start()
	for key, v := range views {
		if got := b.get(key); got.State != Running || got.Box != v.Box || got.Processes != 1 {
			t.Errorf("%+v", got)
		}
	}
	b.crash()
	must(t, b.tryStart())
	must(t, b.Close(ctx, true))
	if ids := b.host.IDs(); len(ids) != 0 {
		t.Errorf("boxes are left: %q", ids)
	}
}

// TestBoxThatIsLostMeanwhile: callers that ask for a session get its true state.
func TestBoxThatIsLostMeanwhile(t *testing.T) {
	b, views, _ := many(t, 1)
	key := Key{"t", "s0"}
	b.host.Box(views[key].Box).Die()
	must(t, b.tryStart())
	if v := b.get(key); v.State != Failed || v.Processes != 0 {
		t.Errorf("%+v", v)
	}
	if p, err := b.Process(key, "p"); err != nil || p.View().State != ProcessFailed || p.View().Verdict != engine.BoxLost {
		t.Errorf("its process: %v", err)
	}
	if use, _ := b.Quota("t"); use.Processes != 0 {
		t.Errorf("in use: %+v", use)
	}
}
