package native

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/command"
	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/sys/unix"
)

// TestNestRests: a zygote that fails again and again is left alone for longer each time, and one that has lived for long
// only shortly.
func TestNestRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &nest{}
		for want := firstRest; want < lastRest; want *= 2 {
			n.began = time.Now()
			n.failedLocked()
			if got := time.Until(n.until); got != want {
				t.Errorf("it rests for %v, want %v", got, want)
			}
		}
		for range 3 {
			n.began = time.Now()
			n.failedLocked()
			if got := time.Until(n.until); got != lastRest {
				t.Errorf("it rests for %v, want %v", got, lastRest)
			}
		}
		n.began = time.Now().Add(-goodLife - 1)
		n.failedLocked()
		if got := time.Until(n.until); got != firstRest {
			t.Errorf("after a good life it rests for %v, want %v", got, firstRest)
		}
	})
}

// TestMaxNests: what the nests of a box ask of its agent is what the agent accepts.
func TestMaxNests(t *testing.T) {
	if maxNests < 1 || maxNests*(1+spec.MaxSpares) > wire.MaxWarm {
		t.Errorf("%d nests of %d processes, an agent accepts %d", maxNests, 1+spec.MaxSpares, wire.MaxWarm)
	}
}

// TestMemberFrames: what an agent says about zygotes and spares may be anything, in any order and number.
func TestMemberFrames(t *testing.T) {
	w := newWarmth(&box{slots: &slots{closed: true}})
	n := &nest{}
	w.box.next = 6
	m := w.add(n, &slot{}, nil)
	if m.id != 7 {
		t.Errorf("id %d", m.id)
	}
	for range 100 {
		for typ := range byte(40) {
			if typ != wire.TypeExited {
				w.event(&wire.Frame{Type: typ, ID: m.id})
				w.event(&wire.Frame{Type: typ, ID: 8})
			}
		}
	}
	var failed *wire.FailedMsg
	if _, err := w.await(m, wire.TypeWarm, time.Minute); !errors.As(err, &failed) {
		t.Errorf("%v, want what a Failed frame says", err)
	}
	w.lose()
	w.event(&wire.Frame{Type: wire.TypeExited, ID: m.id, Body: []byte("no status")})
	w.event(&wire.Frame{Type: wire.TypeExited, ID: m.id})
	<-m.gone
	if _, err := w.await(&member{frames: make(chan *wire.Frame), gone: m.gone}, wire.TypeWaiting, time.Minute); !errors.Is(err, errEnded) && !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("%v, want that it has ended", err)
	}
	w.close()
	if len(w.members) != 0 {
		t.Errorf("members %v", w.members)
	}
}

// TestMemberHeld: while the descriptors of a slot may be on their way to an agent, nothing that the agent says closes
// them, since other files could get their numbers.
func TestMemberHeld(t *testing.T) {
	for what, done := range map[string]func(*warmth, *member){
		"given up": (*warmth).end,
		"ready too late": func(w *warmth, m *member) {
			if w.ready(m, func() { t.Error("a member that has ended is used") }) {
				t.Error("a member that has ended is ready")
			}
		},
	} {
		file, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		s := &slots{closed: true, taken: map[*slot]struct{}{}}
		w := newWarmth(&box{slots: s})
		w.lose()
		m := w.add(&nest{}, &slot{name: "c1", birth: []*os.File{file}}, nil)
		w.event(&wire.Frame{Type: wire.TypeExited, ID: m.id})
		w.wg.Wait()
		if _, err := file.Stat(); err != nil || len(s.used) != 0 {
			t.Errorf("%s: while it is held: %v, released %v", what, err, s.used)
		}
		done(w, m)
		w.wg.Wait()
		if _, err := file.Stat(); !errors.Is(err, os.ErrClosed) || !slices.Equal(s.used, []string{"c1"}) {
			t.Errorf("%s: afterwards: %v, released %v", what, err, s.used)
		}
		w.end(m)
		if len(s.used) != 1 {
			t.Errorf("%s: released %v", what, s.used)
		}
	}
}

// TestMemberUsed: a member that waits ends when the agent says so.
func TestMemberUsed(t *testing.T) {
	s := &slots{closed: true, taken: map[*slot]struct{}{}}
	w := newWarmth(&box{slots: s})
	w.lose()
	n := &nest{}
	m := w.add(n, &slot{name: "c1"}, nil)
	if !w.ready(m, func() { n.spares = append(n.spares, m) }) {
		t.Fatal("it is not ready")
	}
	w.event(&wire.Frame{Type: wire.TypeExited, ID: m.id})
	w.wg.Wait()
	if len(n.spares) != 0 || !slices.Equal(s.used, []string{"c1"}) {
		t.Errorf("spares %v, released %v", n.spares, s.used)
	}
}

// TestSpareStays: a command without descriptors takes no spare, which would wait for it for ever.
func TestSpareStays(t *testing.T) {
	z := spec.Zygote{Name: "python", Command: []string{"python3"}, Spares: 1}
	b := &box{engine: new(core), spec: engine.Spec{Engine: spec.EngineNative, Zygotes: []spec.Zygote{z}}, slots: &slots{closed: true}, processes: map[uint32]*process{}}
	b.warm = newWarmth(b)
	user := engine.User{UID: 7, GID: 8}
	n := &nest{of: z, user: user}
	b.warm.nests[nestKey{z.Name, user}] = n
	m := b.warm.add(n, &slot{name: "c1"}, command.Rlimits(b.currentLimits()))
	b.warm.ready(m, func() { n.spares = append(n.spares, m) })
	var out bytes.Buffer
	p := &process{account: account{box: b}, cmd: engine.Command{Args: []string{"python3"}, User: &user, Stdout: &out}}

	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	err := p.startWarm(t.Context(), &z)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("%v, want %v", err, unix.EMFILE)
	}
	if len(n.spares) != 1 || b.warm.members[m.id] != m || p.slot != nil {
		t.Errorf("%d spares wait, and the command has slot %v", len(n.spares), p.slot)
	}
}

// TestPausedNest: a zygote that did not answer since its box was paused has not failed.
func TestPausedNest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := &box{engine: &core{log: slog.New(slog.NewTextHandler(&log, nil))}, pauses: newPauses()}
		w := newWarmth(b)
		fails := func(during func()) (rests bool) {
			n := &nest{}
			log.Reset()
			before, _, _ := b.pauses.now()
			during()
			w.failedLocked(n, before, errEnded)
			if rests := n.until.After(time.Now()); rests != (log.Len() > 0) {
				t.Errorf("it rests: %v, and the log says %q", rests, log.String())
			}
			return n.until.After(time.Now())
		}
		exits := func() (rests bool) {
			n := &nest{}
			m := w.add(n, &slot{}, nil)
			w.ready(m, func() { n.zygote = m; m.held = true }) // so that nothing is released
			w.event(&wire.Frame{Type: wire.TypeExited, ID: m.id})
			return n.until.After(time.Now())
		}
		if !fails(func() {}) || !exits() {
			t.Error("without a pause it does not rest")
		}
		if fails(func() {
			b.pauses.set(true, time.Now())
			if exits() {
				t.Error("a zygote that was killed in a pause has failed")
			}
		}) {
			t.Error("in a pause it rests")
		}
		if fails(func() { time.Sleep(time.Second); b.pauses.set(false, time.Now()) }) {
			t.Error("after a pause it rests")
		}
		if !fails(func() {}) {
			t.Error("long after a pause it does not rest")
		}
	})
}
