package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// The cases of this file need no programs of a box but true, sleep and exit, which a fake engine
// plays.

// lifetime: a box has its ID, its spec and its labels, ends once, and leaves its ID to others.
func (e *suite) lifetime(t testing.TB) {
	const id = "conformance-lifetime"
	b := e.create(t, engine.Spec{ID: id, Labels: map[string]string{"for": "me"}, Limits: engine.Limits{PIDs: 20}})
	spec := b.Spec()
	if b.ID() != id || spec.ID != id || spec.Labels["for"] != "me" || spec.Limits.PIDs != 20 || spec.Engine != e.Engine || spec.Isolation != e.Isolation {
		t.Errorf("id %q, spec %+v", b.ID(), spec)
	}
	if second, err := e.tryCreate(t.Context(), engine.Spec{ID: id}); err == nil || !strings.Contains(err.Error(), id) {
		t.Errorf("a second box of that ID: %v, %v", second, err)
	}
	if ids, err := e.client.Boxes(t.Context()); err != nil || !slices.Contains(ids, id) {
		t.Errorf("boxes: %q, %v", ids, err)
	}
	boxtest.Want(t, boxtest.Run(t, b, engine.Command{Args: []string{"true"}}), engine.Exited, 0)
	boxtest.Update(t, b, engine.Limits{PIDs: 30})
	if n := b.Spec().Limits.PIDs; n != 30 {
		t.Errorf("the limit is %d after a change to 30", n)
	}
	p := boxtest.Begin(t, b, engine.Command{Args: []string{"sleep", "3600"}})
	boxtest.Remove(t, b)
	if r := boxtest.Wait(t, p); r.Verdict != engine.BoxLost || r.ExitCode != -1 || r.Status() != 137 {
		t.Errorf("a command of a removed box: %+v", r)
	}
	select {
	case <-b.Done():
	case <-time.After(boxtest.Patience):
		t.Error("Done is not closed")
	}
	boxtest.Remove(t, b)
	_, startErr := b.Start(t.Context(), engine.Command{Args: []string{"true"}})
	_, launchErr := b.Launch(t.Context(), engine.Managed{Key: "a", Args: []string{"true"}})
	_, adoptErr := e.client.Adopt(t.Context(), id, engine.Spec{})
	for what, err := range map[string]error{
		"start": startErr, "launch": launchErr, "adopt": adoptErr,
		"update": b.Update(t.Context(), engine.Change{Limits: &engine.Limits{PIDs: 5}}),
	} {
		if !errors.Is(err, engine.ErrBoxLost) {
			t.Errorf("%s after removal: %v", what, err)
		}
	}
	boxtest.Remove(t, e.create(t, engine.Spec{ID: id}))
}

// refusals: what breaks a rule is an ErrInvalid in one line, and builds nothing.
func (e *suite) refusals(t testing.TB) {
	before, err := e.client.Boxes(t.Context())
	ok(t, err)
	for _, s := range []engine.Spec{
		{ID: "../x"}, {ID: "conformance-bad", TmpSize: 1}, {ID: "conformance-bad", Limits: engine.Limits{Memory: 1}},
		{ID: "conformance-bad", Mounts: []engine.Mount{{Source: "relative", Target: "/data"}}},
	} {
		if b, err := e.tryCreate(t.Context(), s); !errors.Is(err, engine.ErrInvalid) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, %v", s, b, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if b, err := e.tryCreate(ctx, engine.Spec{ID: "conformance-bad"}); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v, %v", b, err)
	}
	// Other cases make and remove boxes meanwhile.
	if after, err := e.client.Boxes(t.Context()); err != nil || slices.Contains(after, "conformance-bad") {
		t.Errorf("boxes before %q, now %q, %v", before, after, err)
	}
}

// endings: each way to end has its verdict, and no other has its exit status.
func (e *suite) endings(t testing.TB) {
	b := e.create(t, engine.Spec{ID: "conformance-endings"})
	for _, code := range []int{0, 1, 2, 126, 127, 128, 137, 255} {
		o := boxtest.Run(t, b, boxtest.Shell(fmt.Sprint("exit ", code)))
		if o.Verdict != engine.Exited || o.ExitCode != code || o.Signal != 0 || *o.Exit() != code {
			t.Errorf("exit %d: %+v", code, o.Result)
		}
	}
	if _, err := b.Start(t.Context(), engine.Command{Args: []string{"missing"}}); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("a program that does not exist: %v", err)
	}
	if _, err := b.Start(t.Context(), engine.Command{}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("no program: %v", err)
	}
	o := boxtest.Run(t, b, engine.Command{Args: []string{"sleep", "3600"}, Timeout: 50 * time.Millisecond})
	if o.Verdict != engine.TimedOut || o.Exit() != nil || o.Status() != 124 {
		t.Errorf("timeout: %+v", o.Result)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := b.Start(ctx, engine.Command{Args: []string{"sleep", "3600"}})
	ok(t, err)
	cancel()
	if r := boxtest.Wait(t, p); r.Verdict != engine.Canceled || r.Exit() != nil || r.Signal != syscall.SIGKILL {
		t.Errorf("cancelled: %+v", r)
	}
}

// successors: the next client finds every box, takes over some, and throws others away.
func (e *suite) successors(t testing.TB) {
	h := e.private(t)
	h.create(t, engine.Spec{ID: "kept", Labels: map[string]string{"for": "me"}})
	h.create(t, engine.Spec{ID: "thrown-away"})
	h.disconnect(t)
	h.connect(t)
	if ids, err := h.client.Boxes(t.Context()); err != nil || !slices.Equal(slices.Sorted(slices.Values(ids)), []string{"kept", "thrown-away"}) {
		t.Errorf("boxes: %q, %v", ids, err)
	}
	for range 2 { // an unknown one is no error
		ok(t, h.client.Discard(t.Context(), "thrown-away"))
	}
	b := h.adopt(t, "kept")
	if s := b.Spec(); s.Labels["for"] != "me" || s.Engine != e.Engine || s.Isolation != e.Isolation {
		t.Errorf("spec after adoption: %+v", s)
	}
	boxtest.Want(t, boxtest.Run(t, b, engine.Command{Args: []string{"true"}}), engine.Exited, 0)
	if _, err := h.client.Adopt(t.Context(), "thrown-away", engine.Spec{}); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("adopting what was thrown away: %v", err)
	}
	boxtest.Remove(t, b)
	if ids, err := h.client.Boxes(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("boxes in the end: %q, %v", ids, err)
	}
	ok(t, h.client.Health(t.Context()))
}

// managedLifetime: a managed process has its key once, its result for good, and outlives clients.
func (e *suite) managedLifetime(t testing.TB) {
	h := e.private(t)
	b := h.create(t, engine.Spec{ID: "managed"})
	ended := boxtest.Launch(t, b, engine.Managed{Key: "ended", Args: []string{"sh", "-c", "exit 7", "sh", "exit", "7"}})
	boxtest.WantManaged(t, ended, engine.Exited, 7)
	boxtest.Launch(t, b, engine.Managed{Key: "runs", Args: []string{"sleep", "3600"}})
	if p, err := b.Launch(t.Context(), engine.Managed{Key: "runs", Args: []string{"sleep", "3600"}}); err == nil {
		t.Errorf("a key twice: %v", p)
	}
	h.disconnect(t)
	h.connect(t)
	b = h.adopt(t, "managed")
	found := map[string]engine.ManagedProcess{}
	for _, p := range b.Managed() {
		found[p.Key()] = p
	}
	if len(found) != 2 || found["ended"] == nil || found["runs"] == nil {
		t.Fatalf("processes after adoption: %v", found)
	}
	boxtest.WantManaged(t, found["ended"], engine.Exited, 7)
	select {
	case <-found["runs"].Done():
		t.Errorf("ended with its client: %+v", found["runs"].Result())
	default:
	}
	if err := found["runs"].Forget(t.Context()); err == nil {
		t.Error("a running process was forgotten")
	}
	ok(t, found["runs"].Control().Kill(t.Context()))
	if r := boxtest.WantManaged(t, found["runs"], engine.Signaled, -1); r.Signal != syscall.SIGKILL {
		t.Errorf("killed: %+v", r)
	}
	ok(t, found["runs"].Forget(t.Context()), found["ended"].Forget(t.Context()))
	if left := b.Managed(); len(left) != 0 {
		t.Errorf("not forgotten: %v", left)
	}
	lost := boxtest.Launch(t, b, engine.Managed{Key: "lost", Args: []string{"sleep", "3600"}})
	boxtest.Remove(t, b)
	boxtest.WantManaged(t, lost, engine.BoxLost, -1)
}

// volumeHeld: a volume is made once, listed, and not removed while a box has it.
func (e *suite) volumeHeld(t testing.TB) {
	h := e.private(t)
	m := h.makeVolume(t, "held", 8*boxtest.MiB, 0, "/data")
	b := h.create(t, engine.Spec{ID: "holder", Mounts: []engine.Mount{m}})
	if v, found := h.volume(t, "held"); !found || v.Bytes != 8*boxtest.MiB || v.Inodes == 0 {
		t.Errorf("%+v, %v", v, found)
	}
	if err := h.client.RemoveVolume(t.Context(), "held"); err == nil || !strings.Contains(err.Error(), "holder") {
		t.Errorf("removing a volume in use: %v", err)
	}
	if c, err := h.tryCreate(t.Context(), engine.Spec{ID: "other", Mounts: []engine.Mount{{Source: "/", Target: "/data", Volume: "unknown"}}}); err == nil {
		t.Errorf("a box with an unknown volume: %v", c)
	}
	boxtest.Change(t, b, engine.Change{Detach: []string{"/data"}})
	for range 2 {
		ok(t, h.client.RemoveVolume(t.Context(), "held"))
	}
	if v, found := h.volume(t, "held"); found {
		t.Errorf("still there: %+v", v)
	}
}
