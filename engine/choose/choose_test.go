package choose

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/enginetest"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

// TestOtherErrors: only an engine that cannot build boxes is passed over. What is wrong with a box, or
// with the launcher, would be so with the next engine as well.
func TestOtherErrors(t *testing.T) {
	disk := errors.New("disk full")
	for _, c := range []struct {
		op   string
		err  error
		made bool // by the second engine
	}{
		{"create", fmt.Errorf("it has just died: %w", engine.ErrNoEngine), true},
		{"create", engine.ErrNoLauncher, false},
		{"create", engine.ErrUnenforceable, false},
		{"create", disk, false},
		{"engines", engine.ErrNoLauncher, false},
	} {
		host := enginetest.NewHost("")
		host.SetEngine("oci", "namespaces", "")
		tries := 0
		host.SetHook(func(_ context.Context, op, _ string) error {
			if op == c.op {
				if tries++; tries == 1 {
					return c.err
				}
			}
			return nil
		})
		_, made, err := New[engine.LiveBox](host.Connect()).Create(t.Context(), engine.Spec{ID: "b"}, Request{[]string{"oci", "native"}, []string{"namespaces"}})
		if c.made {
			if err != nil || made.Engine != "native" || made.Reason != "oci: it has just died: engine not available" {
				t.Errorf("%s: %v: made %+v, %v", c.op, c.err, made, err)
			}
		} else if !errors.Is(err, c.err) || len(host.IDs()) != 0 {
			t.Errorf("%s: %v: made %+v, %v, boxes %q", c.op, c.err, made, err, host.IDs())
		}
	}
}

// plain is an engine that offers no choice.
type plain struct{ engine.Service }

func TestWithoutChoice(t *testing.T) {
	c := New[engine.LiveBox](plain{enginetest.NewHost("").Connect()})
	if _, made, err := c.Create(t.Context(), engine.Spec{ID: "a"}, Request{[]string{"containerd", "native"}, []string{"namespaces"}}); err != nil || made.Engine != "native" {
		t.Errorf("%+v, %v", made, err)
	}
	if _, _, err := c.Create(t.Context(), engine.Spec{ID: "b"}, Request{[]string{"oci"}, []string{"namespaces"}}); !errors.Is(err, engine.ErrNoEngine) {
		t.Errorf("%v, want no engine", err)
	}
	states, err := c.States(t.Context(), []string{"oci", "native"})
	if err != nil || len(states) != 3 || states[0].Available() || states[1].Available() || !states[2].Available() {
		t.Errorf("%+v, %v", states, err)
	}
}

// TestNativeAsksNothing: a native box does not wait for a list of engines.
func TestNativeAsksNothing(t *testing.T) {
	host := enginetest.NewHost("")
	host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "engines" {
			t.Error("it has asked for engines")
		}
		return nil
	})
	if _, _, err := New[engine.LiveBox](host.Connect()).Create(t.Context(), engine.Spec{ID: "a"}, Request{[]string{"native", "oci"}, []string{"namespaces"}}); err != nil {
		t.Error(err)
	}
}

// TestRandom: whatever comes and goes, a box is built by the first engine that can, or there is a reason
// why none can. Engines change only between calls, so the host says what is right.
func TestRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	synctest.Test(t, func(t *testing.T) {
		host := enginetest.NewHost("")
		up := map[[2]string]bool{{"native", "namespaces"}: true}
		c := New[engine.LiveBox](host.Connect())
		for i := range 3000 {
			if rng.IntN(3) == 0 {
				pair := [2]string{spec.Engines[1+rng.IntN(2)], spec.Isolations[rng.IntN(2)]}
				if !spec.Offers(pair[0], pair[1]) {
					continue
				}
				up[pair] = !up[pair]
				host.SetEngine(pair[0], pair[1], map[bool]string{true: "", false: "away"}[up[pair]])
			}
			fresh := rng.IntN(2) == 0
			if time.Sleep(time.Millisecond); fresh {
				time.Sleep(2 * keep) // else an engine that is back may be overlooked while another can
			}
			order := slices.Clone(spec.Engines)
			rng.Shuffle(3, func(i, j int) { order[i], order[j] = order[j], order[i] })
			order = order[:1+rng.IntN(3)]
			walls := (spec.Settings{Isolation: spec.Isolations[rng.IntN(2)], Require: rng.IntN(2) == 0}).Walls()
			var want Choice
			able := 0
			for _, wall := range walls {
				for _, name := range order {
					if up[[2]string{name, wall}] {
						if able++; able == 1 {
							want.Engine, want.Isolation = name, wall
						}
					}
				}
			}
			box, made, err := c.Create(t.Context(), engine.Spec{ID: fmt.Sprint("b", i)}, Request{order, walls})
			switch {
			case able == 0:
				if !errors.Is(err, engine.ErrNoEngine) || len(host.IDs()) != 0 {
					t.Fatalf("step %d: %v of %v, up %v: %+v, %v", i, order, walls, up, made, err)
				}
				continue
			case err != nil:
				t.Fatalf("step %d: %v of %v, up %v: %v", i, order, walls, up, err)
			case fresh && (made.Engine != want.Engine || made.Isolation != want.Isolation):
				t.Fatalf("step %d: %v of %v, up %v: built by %+v", i, order, walls, up, made)
			}
			has := host.Only().Spec()
			if has.Engine != made.Engine || has.Isolation != made.Isolation || !up[[2]string{made.Engine, made.Isolation}] ||
				made.Reason == "" || (made.Degraded != "") != (made.Isolation != walls[0]) {
				t.Fatalf("step %d: %v of %v, up %v: %+v, the box has %s/%s", i, order, walls, up, made, has.Engine, has.Isolation)
			}
			if err := box.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestHangingEngine: an engine that does not answer, and a box that it refuses, delay no box of another.
func TestHangingEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := enginetest.NewHost("")
		host.SetEngine("oci", "namespaces", "")
		host.SetEngine("containerd", "namespaces", "")
		answer, hangs := make(chan struct{}), make(chan struct{})
		hang := sync.OnceFunc(func() { close(hangs) })
		host.SetHook(func(ctx context.Context, op, engine string) error {
			if op == "engines" && engine == "containerd" {
				hang()
				select {
				case <-answer:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
		c := New[engine.LiveBox](host.Connect())
		listed := make(chan error)
		go func() {
			_, err := c.States(t.Context(), spec.Engines)
			listed <- err
		}()
		<-hangs
		if _, made, err := c.Create(t.Context(), engine.Spec{ID: "a"}, Request{[]string{"oci"}, []string{"namespaces"}}); err != nil || made.Engine != "oci" {
			t.Errorf("a box of another engine: %+v, %v", made, err)
		}
		c.note(pair{"containerd", "namespaces"}, "it has refused a box")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := c.Create(ctx, engine.Spec{ID: "b"}, Request{[]string{"containerd"}, []string{"namespaces"}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a box of the engine that hangs: %v, want the end of its context", err)
		}
		close(answer)
		if err := <-listed; err != nil {
			t.Error(err)
		}
	})
}

// TestRefusal: the text of a refusal has the reason of each engine, and says once what that means.
func TestRefusal(t *testing.T) {
	host := enginetest.NewHost("")
	host.SetEngine("oci", "namespaces", "engine not available: runc is not installed")
	_, _, err := New[engine.LiveBox](host.Connect()).Create(t.Context(), engine.Spec{ID: "a"}, Request{[]string{"oci"}, []string{"namespaces"}})
	if want := `no engine of ["oci"] can build a box with isolation namespaces: oci: engine not available: runc is not installed`; !errors.Is(err, engine.ErrNoEngine) || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
