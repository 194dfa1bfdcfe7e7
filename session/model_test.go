package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine/enginetest"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/policy"
)

// TestModel does random things in several sessions at once, on a host that fails now
// and then, where boxes die and processes exit, and lets the manager die at random
// moments. Answers that callers got must stay true.
func TestModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	m := &model{bench: newBench(t), known: map[Key]*knownSession{}}
	m.alter = func(o *Options) { o.StopGrace = 5 * time.Millisecond }
	m.policy.Engines = []string{spec.EngineOCI, spec.EngineNative}
	m.policy.Profiles = map[string]policy.ProfileConfig{
		"hard": {Wishes: spec.Wishes{Isolation: ptr(spec.IsolationGVisor)}},
		"soft": {Wishes: spec.Wishes{Isolation: ptr(spec.IsolationGVisor), Require: ptr(false)}},
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range rounds {
		m.host.SetHook(nil)
		m.start()
		m.settle(round)
		if t.Failed() {
			return
		}
		m.round(rng)
	}
}

// model is what callers know.
type model struct {
	*bench
	mu    sync.Mutex
	known map[Key]*knownSession
	marks int64
	procs []*enginetest.Process // all that ever ran, the truth about them
}

type knownSession struct {
	generation int
	uncertain  bool  // a worker tried to remove it
	used       int64 // size of its workspace
	processes  map[string]*knownProcess
}

type knownProcess struct {
	key       string
	pid       int
	uncertain bool // a worker tried to end it, or its box was killed
}

// round runs workers until the manager dies or closes.
func (m *model) round(rng *rand.Rand) {
	faults := rng.IntN(3) // none, few, more
	m.host.SetHook(func(_ context.Context, op, _ string) error {
		if rand.IntN(20) == 0 { // an engine goes, or comes back
			m.host.SetEngine(spec.EngineOCI, spec.Isolations[rand.IntN(2)], []string{"", "it is away"}[rand.IntN(2)])
		}
		if faults > 0 && rand.IntN(60/faults) == 0 {
			return fmt.Errorf("%s: injected", op)
		}
		return nil
	})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		seeds := [2]uint64{rng.Uint64(), rng.Uint64()}
		wg.Go(func() {
			own := rand.New(rand.NewPCG(seeds[0], seeds[1]))
			for i := 0; i < 200 && !isDone(stop); i++ {
				m.step(own, w)
			}
		})
	}
	time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond) // any moment will do
	if rng.IntN(4) == 0 {
		m.Manager.Close(ctx, false)
	} else {
		m.engineFirst = rng.IntN(2) == 0
		m.crash()
	}
	close(stop)
	wg.Wait()
}

// step does one thing. Each session belongs to one worker, which therefore knows the last
// answer about it; commands may run in any session.
func (m *model) step(rng *rand.Rand, worker int) {
	key := Key{"t", fmt.Sprintf("w%d-%d", worker, rng.IntN(3))}
	id := fmt.Sprintf("p%d", rng.IntN(2))
	switch rng.IntN(14) {
	case 0, 1, 2:
		m.tryEnsure(key)
	case 3, 4:
		m.tryLaunch(key, id)
	case 5:
		m.tryStop(key, id, rng.IntN(2) == 0)
	case 6:
		m.tryRemove(key)
	case 7:
		m.killBox(key)
	case 8:
		m.exitProcess(key, id, rng.IntN(256))
	case 9:
		m.Update(ctx, me, key, spec.Update{Attach: []spec.MountWish{{Source: "/srv/data/x", Target: "/x"}}})
	case 10:
		m.Update(ctx, me, key, spec.Update{Detach: []string{"/x"}})
	default:
		other := Key{"t", fmt.Sprintf("w%d-%d", rng.IntN(4), rng.IntN(3))}
		code := rng.IntN(256)
		res, err := m.Exec(ctx, me, other, nil, Exec{Args: []string{"exit", fmt.Sprint(code)}})
		if err == nil && res.Verdict == engine.Exited && res.ExitCode != code {
			m.t.Errorf("exit code %d, want %d", res.ExitCode, code)
		}
	}
}

func (m *model) tryEnsure(key Key) {
	r := policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}}
	switch { // a third of them each
	case strings.HasSuffix(key.ID, "-0"):
		r.WorkspaceSize = ptr(spec.Size(4 << 20))
	case strings.HasSuffix(key.ID, "-1"):
		r.Profile = "hard"
	case strings.HasSuffix(key.ID, "-2"):
		r.Profile = "soft"
	}
	v, err := m.Ensure(ctx, me, key, r)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.known[key]
	if k == nil || v.Created {
		if k != nil && !k.uncertain {
			m.t.Errorf("%v was lost: made anew", key)
		}
		k = &knownSession{processes: map[string]*knownProcess{}}
		m.known[key] = k
	}
	if v.Generation < k.generation && !k.uncertain {
		m.t.Errorf("%v: generation %d after %d", key, v.Generation, k.generation)
	}
	k.generation = v.Generation
	m.mark(key, v, k)
}

// mark writes a number into the workspace of a session that has a volume, by which it is
// known again.
func (m *model) mark(key Key, v View, k *knownSession) {
	name := volumeOf(v.Resolved)
	if name == "" {
		return
	}
	vol := m.host.Volume(name)
	switch {
	case vol == nil && v.State == Running:
		m.t.Errorf("%v has no workspace: %+v", key, v)
		return
	case vol == nil:
		return
	case v.Created && vol.UsedBytes != 0:
		m.t.Errorf("%v is new and has the workspace of another", key)
	case !v.Created && !k.uncertain && vol.UsedBytes != k.used:
		m.t.Errorf("%v has %d in its workspace, not %d", key, vol.UsedBytes, k.used)
	}
	m.marks++
	m.host.Fill(name, m.marks)
	k.used = m.marks
}

func (m *model) tryLaunch(key Key, id string) {
	v, err := m.Start(ctx, me, key, nil, ProcessSpec{ID: id, Args: []string{"serve"}})
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.known[key]; k != nil {
		k.processes[id] = &knownProcess{key: v.Key, pid: v.PID}
	}
	if b := m.host.Box(v.Box); b != nil {
		if p := b.Process(v.Key); p != nil {
			m.procs = append(m.procs, p)
		}
	}
}

// doubt says that a process may have been ended.
func (m *model) doubt(key Key, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.known[key]; k != nil {
		for other, p := range k.processes {
			p.uncertain = p.uncertain || id == "" || id == other
		}
	}
}

func (m *model) tryStop(key Key, id string, remove bool) {
	p, err := m.Process(key, id)
	if err != nil {
		return
	}
	m.doubt(key, id)
	if remove {
		p.Remove(ctx, me)
	} else if p.Stop(ctx, me, StopOptions{}) == nil && !p.View().State.Ended() {
		m.t.Errorf("process %v after its stop", p.View())
	}
}

func (m *model) tryRemove(key Key) {
	m.mu.Lock()
	k := m.known[key]
	if k != nil {
		k.uncertain = true
	}
	m.mu.Unlock()
	m.doubt(key, "")
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if m.Remove(short, me, key) == nil {
		if v, err := m.Get(key); err == nil { // only its worker makes it
			m.t.Errorf("%v is there after its removal: %+v", key, v)
		}
	}
}

func (m *model) killBox(key Key) {
	v, err := m.Get(key)
	if err != nil || v.Box == "" {
		return
	}
	m.doubt(key, "")
	m.host.Kill(v.Box)
}

func (m *model) exitProcess(key Key, id string, code int) {
	p, err := m.Process(key, id)
	if err != nil {
		return
	}
	v := p.View()
	if b := m.host.Box(v.Box); b != nil {
		if p := b.Process(v.Key); p != nil {
			p.Exit(code)
		}
	}
}

// settle checks all that must be true after an opening.
func (m *model) settle(round int) {
	m.t.Helper()
	fail := func(format string, args ...any) {
		m.t.Errorf("round %d: %s", round, fmt.Sprintf(format, args...))
	}
	m.eventually("the end of removals", func() bool { return m.Stats().States[Stopping] == 0 })
	m.eventually("a host without leftovers", func() bool {
		return len(m.host.IDs()) == m.Stats().States[Running] && m.volumesAgree()
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, k := range m.known {
		v, err := m.Get(key)
		if errors.Is(err, ErrNotFound) {
			if !k.uncertain {
				fail("%v is lost", key)
			}
			delete(m.known, key)
			continue
		}
		if k.uncertain {
			k.uncertain, k.generation = false, v.Generation // it is known now
			if vol := m.host.Volume(volumeOf(v.Resolved)); vol != nil {
				k.used = vol.UsedBytes
			}
		}
		if v.State == Running {
			m.checkBox(fail, v)
		}
		for id, p := range k.processes {
			m.checkProcess(fail, key, id, p)
		}
	}
	for id, n := range m.host.Made() {
		if n > 1 {
			fail("box %s was made %d times", id, n)
		}
	}
	m.eventually("figures that agree", func() bool {
		use, _ := m.Quota("t")
		return use.Sessions == int64(len(m.List("t"))) && use.Execs == 0 && use.Processes == int64(m.Stats().ProcessesRunning)
	})
}

// checkBox compares the box of a session with the truth about it, and with what its profile demands.
func (m *model) checkBox(fail func(string, ...any), v View) {
	b := m.host.Box(v.Box)
	if b == nil {
		fail("%v has no box", v.Key)
		return
	}
	has := b.Spec().WithDefaults()
	if has.Engine != v.Built.Engine || has.Isolation != v.Built.Isolation {
		fail("%v is said to have %+v, its box has %s with %s", v.Key, v.Built, has.Engine, has.Isolation)
	}
	weaker := spec.Weaker(has.Isolation, v.Resolved.Isolation)
	if weaker && v.Resolved.Profile != "soft" {
		fail("%v with profile %q has only %s", v.Key, v.Resolved.Profile, has.Isolation)
	}
	if weaker != (v.Built.Degraded != "") {
		fail("%v with %s is said to be degraded: %q", v.Key, has.Isolation, v.Built.Degraded)
	}
}

// checkProcess compares a process with the truth about it.
func (m *model) checkProcess(fail func(string, ...any), key Key, id string, known *knownProcess) {
	p, err := m.Process(key, id)
	if err != nil || p.View().Key != known.key {
		if !known.uncertain {
			fail("process %v/%s is lost: %v", key, id, err)
		}
		return
	}
	for _, truth := range m.procs {
		if truth.Managed().Key != known.key {
			continue
		}
		if !isDone(truth.Done()) {
			v := p.View()
			if !known.uncertain && v.State != ProcessRunning || v.PID != known.pid && !v.State.Ended() {
				fail("process %v/%s runs as %d, but is said to be %+v", key, id, known.pid, v)
			}
			continue
		}
		select {
		case <-p.Done():
		case <-time.After(testutil.Patience()):
			fail("process %v/%s has ended, which nobody notices", key, id)
			continue
		}
		want, got := truth.Result(), p.Result()
		if got.Verdict != want.Verdict && got.Verdict != engine.BoxLost || got.Verdict == want.Verdict && got.ExitCode != want.ExitCode {
			fail("process %v/%s ended as %+v, is said to have %+v", key, id, want, got)
		}
		if got.Verdict == engine.BoxLost && want.Verdict != engine.BoxLost && !known.uncertain {
			fail("process %v/%s: its end %+v was forgotten", key, id, want)
		}
	}
}
