package native

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// hanging is a create that hangs.
type hanging struct {
	id      string
	release func()
	ended   <-chan error
}

// hang has a create hang at one of the processes of its box, see testutil.CatchInit. limit
// bounds the create.
func hang(t *testing.T, s *native.Service, id, at string, limit time.Duration) hanging {
	t.Helper()
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		ended := make(chan error, 1)
		done := make(chan struct{})
		pid, release := testutil.CatchInit(t, id, at, func() <-chan struct{} {
			go func() {
				defer close(done)
				b, err := s.Create(ctx, engine.Spec{ID: id})
				if err == nil {
					err = b.Remove(context.Background())
				}
				ended <- err
			}()
			return done
		})
		t.Cleanup(cancel)
		if pid != 0 {
			return hanging{id, release, ended}
		}
		release()
		<-done
		cancel()
	}
	t.Fatalf("no process of a box was caught at %q", at)
	return hanging{}
}

// hangAtMount has a create hang at a mount whose source does not answer.
func hangAtMount(t *testing.T, s *native.Service, id, source string, limit time.Duration) <-chan error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() {
		b, err := s.Create(ctx, engine.Spec{ID: id, Mounts: []engine.Mount{{Source: source, Target: "/data"}}})
		if err == nil {
			err = b.Remove(context.Background())
		}
		ended <- err
	}()
	return ended
}

// wantEnd waits for an error that names all of words.
func wantEnd(t *testing.T, ended <-chan error, target error, words ...string) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, target) {
			t.Errorf("%v, want %v", err, target)
		}
		for _, word := range words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%v: does not say %q", err, word)
			}
		}
	case <-time.After(patience):
		t.Fatalf("not answered after %v", patience)
	}
}

// healthWithin waits for a health that is as wanted, for 10 s: the promise.
func healthWithin(t *testing.T, s *native.Service, words ...string) {
	t.Helper()
	began := time.Now()
	var err error
	for time.Since(began) < 10*time.Second {
		err = s.Health(t.Context())
		if (err == nil) == (len(words) == 0) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if (err == nil) != (len(words) == 0) {
		t.Errorf("health after %v: %v", time.Since(began), err)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v: does not say %q", err, word)
		}
	}
}

// TestHangingCreates: creates that hang in the kernel block no other request. Their clients, and health checks,
// get the step at which they hang. Nothing is left.
func TestHangingCreates(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	source, freeMount := testutil.StuckFS(t)
	s, dir := newService(t)
	healthWithin(t, s)
	limit := 8 * time.Second
	open := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		f, err := s.OpenDirectory(ctx, engine.Directory{Path: source, Within: source, ReadOnly: true, Mappable: true})
		if err == nil {
			f.Close()
		}
		return err
	}
	atOpen := make(chan error, 1)
	go func() { atOpen <- open(limit) }()
	atMount := hangAtMount(t, s, "at-mount", source, limit)
	atAgent := hang(t, s, "at-agent", "agent", limit)
	healthWithin(t, s, "hangs", "has taken", "wchan")
	// Others are built, whatever the number of processors.
	for range 3 {
		b := createLive(t, s, engine.Spec{})
		wantOutput(t, b, "echo works", "works\n")
		remove(t, b)
	}
	// The stage may be caught after it has told the launcher that it is done, on the way to the agent: then the
	// step is the agent's.
	var atStage hanging
	for n, early := 0, false; !early; n++ {
		atStage = hang(t, s, fmt.Sprintf("at-stage-%d", n), "", time.Second)
		err := <-atStage.ended
		early = err != nil && strings.Contains(err.Error(), "starting its init stage")
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "state ") ||
			!early && !strings.Contains(err.Error(), "the agent's start, with its system call filter") {
			t.Fatalf("at the init stage: %v", err)
		}
		if !early {
			atStage.release()
		}
	}
	wantEnd(t, atMount, context.DeadlineExceeded, "attaching a mount at \"/data\"", "request_wait_answer")
	wantEnd(t, atOpen, context.DeadlineExceeded, "opening a directory has taken", "request_wait_answer")
	for range 3 { // no further one hangs, so they cannot use up what requests may hold
		err := open(patience)
		if !errors.Is(err, engine.ErrNoLauncher) || errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "hangs already: opening a directory has taken") || !strings.Contains(err.Error(), "request_wait_answer") {
			t.Errorf("a directory that hangs already: %v", err)
		}
	}
	wantEnd(t, atAgent.ended, context.DeadlineExceeded, "the agent's start, with its system call filter", "state ")
	// Nobody waits for them any more, and they hang all the same.
	healthWithin(t, s, "hangs")
	freeMount()
	atAgent.release()
	atStage.release()
	healthWithin(t, s)
	waitUntil(t, "the directory does not hang", func() bool { err := open(patience); return err != nil && !strings.Contains(err.Error(), "hangs") })
	waitUntil(t, "what was made of them is gone", func() bool {
		ids, err := s.Boxes(t.Context())
		return err == nil && len(ids) == 0
	})
	if n := len(serviceProcesses(t, "launcher", dir)); n != 1 {
		t.Errorf("%d launchers", n)
	}
}
