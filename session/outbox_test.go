package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/policy"
)

// fakeOutbox keeps what it is told. It belongs to one manager after the other, as a receiver does.
type fakeOutbox struct {
	mu     sync.Mutex
	made   int
	stored map[string]toldEnd // by key
	opened []OutboxEntry      // by the last Open
	remove func([]string) error
}

// toldEnd is the value of an entry.
type toldEnd struct {
	Type             EventType
	Session, Process string
	Verdict, Key     string
	Code             *int
	Args             []string
	Labels           spec.Labels
	Details          map[string]any
	At               time.Time
}

func (o *fakeOutbox) Open(stored []OutboxEntry, remove func([]string) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opened, o.remove = stored, remove
}

func (o *fakeOutbox) Entries(e Ending) []OutboxEntry {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.made++
	told := toldEnd{Type: e.Type, Session: e.Session, Process: e.Event.Process, Labels: e.Labels, Details: e.Details, At: e.Time}
	if v := e.Process; v != nil {
		told.Verdict, told.Key, told.Code, told.Args = string(v.Verdict), v.Key, v.ExitCode, v.Args
	}
	value, _ := json.Marshal(told)
	return []OutboxEntry{{fmt.Sprintf("%08d-%x", o.made, rand.Uint64()), value}}
}

func (o *fakeOutbox) Stored(entries []OutboxEntry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keep(entries)
}

func (o *fakeOutbox) keep(entries []OutboxEntry) {
	for _, e := range entries {
		var told toldEnd
		if err := json.Unmarshal(e.Value, &told); err != nil {
			panic(err)
		}
		o.stored[e.Key] = told
	}
}

func (o *fakeOutbox) Close() {}

// ends returns what was told, as "type session/process verdict", sorted.
func (o *fakeOutbox) ends() (list []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.stored {
		list = append(list, strings.TrimRight(fmt.Sprintf("%s %s/%s %s", e.Type, e.Session, e.Process, e.Verdict), "/ "))
	}
	slices.Sort(list)
	return list
}

func openWithOutbox(t testing.TB) (*bench, *fakeOutbox) {
	b, o := newBench(t), &fakeOutbox{stored: map[string]toldEnd{}}
	b.alter = func(opt *Options) { opt.Outbox = o }
	b.start()
	return b, o
}

func (b *bench) tells(o *fakeOutbox, want ...string) {
	b.t.Helper()
	b.eventually(fmt.Sprintf("the ends %q (got %q)", want, o.ends()), func() bool { return slices.Equal(o.ends(), want) })
}

func TestOutbox(t *testing.T) {
	b, o := openWithOutbox(t)
	labels := policy.Request{Wishes: spec.Wishes{Labels: spec.Labels{"team": "blue"}}}
	b.ensure(keyA, labels)
	p := b.launch(keyA, "p", "serve", "secret")
	b.host.Box(p.View().Box).Process(p.View().Key).Exit(7)
	b.tells(o, "process-exited a/p exited")
	for _, e := range o.stored {
		if *e.Code != 7 || e.Labels["team"] != "blue" || !slices.Equal(e.Args, []string{"serve", "secret"}) || e.Details["exit_code"] != float64(7) || !e.At.Equal(p.View().EndedAt) {
			t.Errorf("%+v, ended at %v", e, p.View().EndedAt)
		}
	}
	q := b.launch(keyA, "q", "serve")
	if err := q.Stop(ctx, me, StopOptions{}); err != nil {
		t.Fatal(err)
	}
	b.tells(o, "process-exited a/p exited", "process-stopped a/q signaled")
	b.launch(keyA, "r", "serve")
	must(t, b.Remove(ctx, me, keyA))
	want := []string{"process-exited a/p exited", "process-stopped a/q signaled", "process-stopped a/r canceled", "removed a"}
	b.tells(o, want...)
	// Commands are answered, so nobody else is told.
	b.exec(keyB, "true")
	b.tells(o, want...)
	// They stay until they are removed.
	b.restart()
	if len(o.opened) != 4 {
		t.Errorf("%d were stored", len(o.opened))
	}
	must(t, o.remove([]string{o.opened[0].Key, o.opened[2].Key}))
	b.restart()
	if len(o.opened) != 2 {
		t.Errorf("%d were left", len(o.opened))
	}
}

// A receiver learns no more of a command line than the history keeps.
func TestOutboxKeepsArgv(t *testing.T) {
	b, o := newBench(t), &fakeOutbox{stored: map[string]toldEnd{}}
	b.alter = func(opt *Options) { opt.Outbox = o }
	program, none := policy.KeepProgram, policy.KeepNone
	b.policy.Profiles = map[string]policy.ProfileConfig{"program": {KeepArgv: &program}, "none": {KeepArgv: &none}}
	b.start()
	for profile, want := range map[string][]string{"program": {"serve"}, "none": nil} {
		key := Key{"t", profile}
		b.ensure(key, policy.Request{Wishes: spec.Wishes{Profile: profile}})
		p := b.launch(key, "p", "serve", "secret")
		b.host.Box(p.View().Box).Process(p.View().Key).Exit(0)
		b.eventually("its end", func() bool { return slices.Contains(o.ends(), "process-exited "+profile+"/p exited") })
		for _, e := range o.stored {
			if e.Session == profile && !slices.Equal(e.Args, want) {
				t.Errorf("%s: %q", profile, e.Args)
			}
		}
	}
}

// That holds for probes and for output as well, and what it learns of a command line is bounded.
func TestOutboxKeepsNoMoreThanTheProfile(t *testing.T) {
	b := newBench(t)
	none, size := policy.KeepNone, spec.Size(1000)
	b.policy.Profiles = map[string]policy.ProfileConfig{"quiet": {KeepArgv: &none}, "open": {KeepOutput: &size}}
	b.start()
	long := strings.Repeat("x", 8000)
	for profile, want := range map[string]struct{ output, probe string }{"quiet": {}, "open": {"password", "probe " + long[:maxRecordArgs-len("probe")] + "…"}} {
		key := Key{"t", profile}
		b.ensure(key, policy.Request{Wishes: spec.Wishes{Profile: profile}})
		p := b.launch(key, "p", "serve")
		end := p.record
		end.State, end.Result, end.FailureOutput = ProcessFailed, &engine.Result{Verdict: engine.Exited, ExitCode: 1}, "password"
		end.Ready = &spec.Ready{Command: []string{"probe", long}}
		v := p.endingAs(end).Process
		if got := strings.Join(v.Ready.Command, " "); v.FailureOutput != want.output || got != want.probe {
			t.Errorf("%s: %q, %d bytes of %q", profile, v.FailureOutput, len(got), got[:min(20, len(got))])
		}
		if len(end.Ready.Command[1]) != len(long) {
			t.Errorf("%s: the record was changed", profile)
		}
	}
}

func TestOutboxOfTTLs(t *testing.T) {
	o := &fakeOutbox{stored: map[string]toldEnd{}}
	bubble(t, func(b *bench) {
		b.crash()
		b.alter = func(opt *Options) { opt.Outbox = o }
		b.start()
		b.ensure(keyA, retaining("1h"))
		b.ensure(keyB, policy.Request{})
		b.expired(keyA)
		for !b.gone(keyB) {
			time.Sleep(time.Second)
		}
		if want := []string{"expired a", "expired b"}; !slices.Equal(o.ends(), want) {
			t.Errorf("%q, want %q", o.ends(), want)
		}
	})
}

// Whoever completes the end of a session says what the one said who began it.
func TestOutboxOfTTLsThatASuccessorCompletes(t *testing.T) {
	for name, r := range map[string]policy.Request{"kept": retaining("1h"), "not kept": {}} {
		o := &fakeOutbox{stored: map[string]toldEnd{}}
		bubble(t, func(b *bench) {
			b.crash()
			b.alter = func(opt *Options) { opt.Outbox = o }
			b.start()
			box := b.ensure(keyA, r).Box
			b.ensure(keyB, policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Persistent: ptr(true)}}})
			b.host.SetHook(func(_ context.Context, op, _ string) error {
				if op == "remove" || op == "discard" {
					return errors.New("busy")
				}
				return nil
			})
			time.Sleep(2 * policy.DefaultIdleTTL)
			if state := b.recorded(keyA); state != Stopping {
				t.Fatalf("%s: after its idle time it is %q", name, state)
			}
			brief, cancel := context.WithTimeout(ctx, time.Second)
			_ = b.Remove(brief, me, keyB)
			cancel()
			b.crash()
			b.host.SetHook(nil)
			b.start()
			time.Sleep(time.Minute)
			if want := []string{"expired a", "removed b"}; !slices.Equal(o.ends(), want) {
				t.Errorf("%s: %q, want %q", name, o.ends(), want)
			}
			if b.host.Box(box) != nil {
				t.Errorf("%s: its box is there", name)
			}
		})
	}
}

// A box that is lost, also while no manager is there, ends its processes.
func TestOutboxOfLostBoxes(t *testing.T) {
	b, o := openWithOutbox(t)
	p := b.launch(keyA, "p", "serve")
	b.host.Box(p.View().Box).Die()
	b.tells(o, "process-exited a/p box-lost")
	q := b.launch(keyB, "q", "serve")
	box := q.View().Box
	b.crash()
	b.host.Box(box).Die()
	b.start()
	b.tells(o, "process-exited a/p box-lost", "process-exited b/q box-lost")
}

// An end that cannot be recorded is told when it is.
func TestOutboxWhileNothingCanBeWritten(t *testing.T) {
	b, o := openWithOutbox(t)
	p := b.launch(keyA, "p", "serve")
	mend := b.breakStore()
	b.host.Box(p.View().Box).Process(p.View().Key).Exit(1)
	await(t, p.Done(), "the end")
	if list := o.ends(); len(list) != 0 {
		t.Errorf("told before it was stored: %q", list)
	}
	mend()
	b.tells(o, "process-exited a/p exited")
}

// Whatever deletes the record of an end before that could be written, or writes over it, stores what tells of it.
func TestOutboxBeforeTheRetry(t *testing.T) {
	for name, do := range map[string]func(*bench, *Process) error{
		"forget":  func(b *bench, p *Process) error { return p.forget(ctx) },
		"replace": func(b *bench, p *Process) error { b.launch(keyA, "p", "serve"); return nil },
		"remove":  func(b *bench, p *Process) error { return b.Remove(ctx, me, keyA) },
	} {
		o := &fakeOutbox{stored: map[string]toldEnd{}}
		bubble(t, func(b *bench) {
			b.crash()
			b.alter = func(opt *Options) { opt.Outbox = o }
			b.start()
			p := b.launch(keyA, "p", "serve")
			mend := b.breakStore()
			b.host.Box(p.View().Box).Process(p.View().Key).Exit(1)
			await(t, p.Done(), "the end")
			time.Sleep(7 * time.Second) // the retries are rare by now
			mend()
			before := time.Now()
			must(t, do(b, p))
			if took := time.Since(before); took > time.Second {
				t.Fatalf("%s took %v: a retry came first", name, took)
			}
			b.crash()
			b.start()
			told := 0
			for _, e := range o.opened {
				if strings.Contains(string(e.Value), `"process-exited"`) {
					told++
				}
			}
			if told != 1 {
				t.Errorf("%s: the end is stored %d times", name, told)
			}
			time.Sleep(time.Minute)
		})
	}
}

// An end that a successor finds, and cannot record at once, is told once.
func TestOutboxOfSuccessorThatCannotWrite(t *testing.T) {
	b, o := openWithOutbox(t)
	p := b.launch(keyA, "p", "serve")
	box := p.View().Box
	b.crash()
	hold := make(chan struct{})
	b.host.SetHook(func(ctx context.Context, op, _ string) error {
		if op == "adopt" {
			<-hold
		}
		return nil
	})
	b.host.Box(box).Die()
	must(t, b.tryStart())
	mend := b.breakStore()
	close(hold)
	<-b.adopted
	if list := o.ends(); len(list) != 0 {
		t.Errorf("told before it was stored: %q", list)
	}
	mend()
	b.tells(o, "process-exited a/p box-lost")
	b.restart()
	b.tells(o, "process-exited a/p box-lost")
	if len(o.opened) != 1 {
		t.Errorf("%d messages", len(o.opened))
	}
}

// A database of which a page is damaged is written anew with what can be read of the outbox.
func TestOutboxIsSalvaged(t *testing.T) {
	b, o := openWithOutbox(t)
	p := b.launch(keyA, "p", "serve")
	b.host.Box(p.View().Box).Process(p.View().Key).Exit(1)
	b.tells(o, "process-exited a/p exited")
	must(t, b.Manager.store.write(change{processBucket, []byte("nonsense"), []byte("x")}, change{outboxBucket, []byte("nonsense"), []byte("xxxxx")}))
	b.restart()
	if len(o.opened) != 1 {
		t.Errorf("%d entries", len(o.opened))
	}
}

// However often and whenever the manager dies, each end is told once, and what was told stays.
func TestOutboxSurvivesCrashes(t *testing.T) {
	b, o := openWithOutbox(t)
	keys := map[string]string{} // of processes in their boxes, by ID
	rounds := 10
	if testutil.Full() {
		rounds = 200
	}
	for round := range rounds {
		key := Key{"t", fmt.Sprintf("s%d", round)}
		b.engineFirst = rand.N(2) == 0
		var wg sync.WaitGroup
		for i := range 4 {
			id := fmt.Sprintf("p%d-%d", round, i)
			p := b.launch(key, id, "serve")
			keys[id] = p.View().Key
			fake := b.host.Box(p.View().Box).Process(p.View().Key)
			wg.Go(func() {
				time.Sleep(rand.N(3 * time.Millisecond))
				fake.Exit(i)
			})
		}
		if round%2 == 0 {
			m := b.Manager
			wg.Go(func() { _ = m.Remove(ctx, me, key) })
		}
		time.Sleep(rand.N(4 * time.Millisecond))
		b.crash()
		wg.Wait()
		b.start()
		// What was stored and not told yet is told now.
		o.mu.Lock()
		o.keep(o.opened)
		o.mu.Unlock()
	}
	for round := range rounds {
		if err := b.Remove(ctx, me, Key{"t", fmt.Sprintf("s%d", round)}); round%2 == 1 {
			must(t, err)
		}
	}
	b.Manager.Close(context.Background(), false)
	o.mu.Lock()
	defer o.mu.Unlock()
	times, sessions := map[string]int{}, map[string]int{}
	for _, e := range o.stored {
		switch e.Type {
		case EventRemoved:
			sessions[e.Session]++
		default:
			times[e.Key]++
		}
	}
	for id, key := range keys {
		if times[key] != 1 {
			t.Errorf("the end of %s is told %d times", id, times[key])
		}
	}
	for s, n := range sessions {
		if n != 1 {
			t.Errorf("the end of %s is told %d times", s, n)
		}
	}
	if len(sessions) != rounds {
		t.Errorf("the ends of %d of %d sessions are told", len(sessions), rounds)
	}
}
