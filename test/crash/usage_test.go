package crash

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// TestUsage kills more often than TestCrash, also while the daemon starts: no execution is lost that was
// answered, none is counted twice, and usage and budgets are the sums of the receipts. Half of the clients have boxes with
// warm interpreters, and boxes come from a pool.
func TestUsage(t *testing.T) {
	testutil.RequireRoot(t)
	few := int64(8)
	if testutil.Full() {
		few = 1000
	}
	rounds := number(t, "BOXD_CRASH_ROUNDS", few)
	if testing.Short() || os.Getenv("BOXD_TEST_VM") != "" {
		rounds = min(rounds, 4)
	}
	seed, random := seeded(t, rounds)
	w := newWorld(t, daily(amply))
	acme, err := client.New(client.Options{Socket: w.daemon.Socket(), Tenant: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	defer acme.Close()
	u := &payers{world: w, tenants: []*books{w.books, newBooks(acme)}}
	for i := range 4 {
		u.work(i, u.tenants[i%2], seed)
	}
	stats := &recovery{}
	const every = 10 // rounds between two comparisons of usage and receipts
	for round := range int(rounds) {
		// Entries are moved from the journal to the database every 250 ms.
		pause(nil, time.Duration(random.Int64N(int64(400*time.Millisecond))))
		kill := victims[random.IntN(len(victims))]
		u.round(kill, random, stats)
		for _, b := range u.tenants {
			for _, err := range b.audit(w.ctx) {
				w.fail("%w", err)
			}
		}
		if round%every == every-1 && w.failure() == nil {
			u.compare(round/every, stats)
		}
		if err := w.failure(); err != nil || t.Failed() {
			t.Fatalf("round %d (%v killed): %v\nthe daemon's log ends with:\n%s", round, kill, err, w.daemon.LogTail(40))
		}
	}
	close(w.stop)
	w.actors.Wait()
	if err := w.failure(); err != nil {
		t.Error(err)
	}
	for _, b := range u.tenants {
		w.settle(b)
	}
	w.shut()
	t.Logf("%d SIGKILLs, %d of them during a start; %d commands, %d pieces of code, %d of them by warm interpreters, %d managed processes in %d sessions",
		w.kills, u.cutStarts, w.execs.Load(), u.codes.Load(), u.warm.Load(), u.processes.Load(), w.churned.Load())
	t.Logf("%d answers compared with %d entries, %d requests cut off, %d comparisons of usage, %d budgets read",
		u.sum(func(b *books) int { return len(b.answered) }), u.sum(func(b *books) int { return len(b.found) }), w.cut.Load(), u.compared, u.budgets)
	t.Log(stats)
}

// daily gives both tenants a daily budget, and the daemon a pool; amply is a budget that nothing uses up.
func daily(budget string) string {
	return fmt.Sprintf("pool: 2\ntenants: {default: {daily: {%[1]s}}, acme: {daily: {%[1]s}}}\n", budget)
}

const amply = "execs: 1000000000, cpu: 8000h"

// payers are the clients whose executions are counted.
type payers struct {
	*world
	tenants []*books
	gate    sync.RWMutex // a client holds it for reading during a step

	codes, warm, processes       atomic.Int64
	compared, budgets, cutStarts int
}

func (u *payers) sum(of func(*books) int) (n int) {
	for _, b := range u.tenants {
		n += of(b)
	}
	return n
}

// round kills and starts again, sometimes after starts that were cut off themselves.
func (u *payers) round(v victim, random *rand.Rand, stats *recovery) {
	u.kill(v)
	if !v.daemon {
		return
	}
	for random.IntN(4) == 0 {
		if err := u.daemon.StartAndKill(time.Duration(random.Int64N(int64(80 * time.Millisecond)))); err != nil {
			u.t.Fatal(err)
		}
		u.cutStarts++
		u.kills++
	}
	u.start(stats)
}

// compare stops the clients, and compares usage and receipts. Then it asks with a budget that is
// used up, after another kill, how much of it is used, and kills the daemon again.
func (u *payers) compare(n int, stats *recovery) {
	u.gate.Lock()
	defer u.gate.Unlock()
	for _, b := range u.tenants {
		for _, err := range b.settle(u.ctx) {
			u.fail("%w", err)
		}
	}
	u.compared++
	config, budget := filepath.Join(u.daemon.Dir, "boxd.yaml"), n%len(budgets)
	for _, asking := range []bool{true, false} {
		more := daily(amply)
		if asking {
			more = daily(budgets[budget].key)
		}
		writeConfig(u.t, config, more)
		u.kill(victim{daemon: true})
		u.start(stats)
		for _, b := range u.tenants {
			if !asking {
				break
			}
			if err := b.overBudget(u.ctx, budget); err != nil {
				u.fail("%w", err)
			}
			u.budgets++
		}
	}
}

// work lets client i run commands, code and managed processes in one session after the other.
func (u *payers) work(i int, b *books, seed uint64) {
	random := rand.New(rand.NewPCG(seed, uint64(i)+1))
	u.act(func() {
		warm := i >= len(u.tenants)
		for generation := 0; !u.stopping() && u.failure() == nil; generation++ {
			id := fmt.Sprintf("payer-%d-%d", i, generation)
			failing := generation%4 == 0
			u.step(func() {
				u.ensure(b, id, i, warm)
				if failing {
					u.startFailing(b, id)
				}
			})
			for n := range 10 + random.IntN(30) {
				if u.stopping() || u.failure() != nil {
					break
				}
				u.step(func() {
					switch kind := random.IntN(10); {
					case kind == 0:
						u.process(b, id, fmt.Sprintf("p%d", n), random)
					case kind == 1 || warm && kind > 5:
						u.code(b, id, warm, random)
					default:
						u.command(b, id, kind == 2, random)
					}
				})
			}
			if failing {
				u.step(func() { u.awaitFailing(b, id) })
			}
			u.step(func() { u.remove(b, id, random) })
			u.churned.Add(1)
		}
	})
}

func (u *payers) step(f func()) {
	u.gate.RLock()
	defer u.gate.RUnlock()
	f()
}

func (u *payers) ensure(b *books, id string, i int, warm bool) {
	s := apitypes.SessionSpec{Labels: spec.Labels{"user": fmt.Sprintf("user-%d", i)}}
	if warm {
		s.Profile = "warm"
	}
	u.again(func() error {
		_, err := b.client.Ensure(u.ctx, apitypes.SessionRequest{ID: id, SessionSpec: s})
		return err
	})
}

// command runs something that uses processor time, or writes.
func (u *payers) command(b *books, id string, stream bool, random *rand.Rand) {
	code := random.IntN(256)
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); done; exit %d", random.IntN(3000), code)
	switch random.IntN(8) {
	case 0:
		script = fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; exit %d", random.IntN(64<<10), code) // is kept
	case 1:
		script = fmt.Sprintf("dd if=/dev/zero of=f bs=4k count=%d conv=fsync 2>/dev/null || exit 99; exit %d", 1+random.IntN(16), code)
	}
	mark, before := b.ask(id), u.phase.Load()
	request := apitypes.ExecRequest{Argv: []string{"sh", "-c", script, mark}}
	var r *apitypes.ExecResult
	var err error
	if stream {
		r, err = b.client.ExecStream(u.ctx, id, request, io.Discard, io.Discard)
	} else {
		r, err = b.client.Exec(u.ctx, id, request)
	}
	u.answer(b, mark, code, before, r, err)
	u.execs.Add(1)
}

// code runs a piece of code, in Python if its interpreter is kept warm.
func (u *payers) code(b *books, id string, warm bool, random *rand.Rand) {
	code := random.IntN(256)
	mark, before := b.ask(id), u.phase.Load()
	request := apitypes.CodeRequest{Language: "bash", Code: fmt.Sprintf("exit %d", code), Args: []string{mark}}
	if warm {
		request.Language, request.Code = "python", fmt.Sprintf("sum(range(%d)); exit(%d)", random.IntN(100_000), code)
	}
	r, err := b.client.Code(u.ctx, id, request)
	u.answer(b, mark, code, before, r, err)
	u.codes.Add(1)
	if err == nil && r.Warm {
		u.warm.Add(1)
	}
}

// answer notes the answer to a command that must exit with code.
func (u *payers) answer(b *books, mark string, code int, phaseBefore int64, r *apitypes.ExecResult, err error) {
	switch {
	case err != nil && !u.forgiven(err, phaseBefore):
		u.fail("%s: %w", mark, err)
	case err != nil:
		pause(u.stop, 5*time.Millisecond)
	case r.ExitCode == nil || *r.ExitCode != code || r.Recreated:
		u.fail("%s: %s, want exit code %d", mark, describe(r), code)
	default:
		b.told(mark, r)
	}
}

// process starts a managed process, and awaits its end, or leaves it to end by itself.
func (u *payers) process(b *books, id, name string, random *rand.Rand) {
	code := random.IntN(256)
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); done; sleep 0.0%d; exit %d", random.IntN(5000), random.IntN(10), code)
	b.askProcess(id, name, 1)
	u.startOnce(b, id, apitypes.ProcessRequest{ID: name, Argv: []string{"sh", "-c", script}, Labels: spec.Labels{"of": id}})
	u.processes.Add(1)
	if random.IntN(3) == 0 {
		return
	}
	u.await(b, id, name, code, 0)
}

// await waits until a managed process has ended, with code, and is not restarted.
func (u *payers) await(b *books, id, name string, code, restarts int) {
	mark := id + "/" + name
	for ended := false; !ended && u.failure() == nil && u.ctx.Err() == nil; {
		u.again(func() error {
			p, err := b.client.Process(u.ctx, id, name)
			if ended = err == nil && p.State == "exited"; !ended {
				return err
			}
			refused := strings.Contains(p.Failure, "cpu_per_day") || strings.Contains(p.Failure, "execs_per_day")
			if p.ExitCode == nil || *p.ExitCode != code || p.Restarts != restarts || strings.Contains(p.Failure, "starting it again") && !refused {
				u.fail("%s: %+v, want exit code %d after %d restarts", mark, p, code, restarts)
				return nil
			}
			if refused { // compare has used up the budget when it was to be restarted
				b.ran(mark, restarts)
			}
			b.note(mark, code, p.Verdict, nil)
			return nil
		})
		pause(u.stop, 3*time.Millisecond)
	}
}

// startFailing starts a process that fails as often as it is restarted; awaitFailing waits until it is not
// restarted any more.
func (u *payers) startFailing(b *books, id string) {
	b.askProcess(id, "failing", 2)
	u.startOnce(b, id, apitypes.ProcessRequest{ID: "failing", Argv: []string{"sh", "-c", "exit 3"}, Restart: "on-failure:1"})
}

func (u *payers) awaitFailing(b *books, id string) { u.await(b, id, "failing", 3, 1) }

// startOnce starts a managed process, unless a request that was cut off has started it.
func (u *payers) startOnce(b *books, id string, r apitypes.ProcessRequest) {
	first := true
	u.again(func() error {
		if !first {
			if _, err := b.client.Process(u.ctx, id, r.ID); !client.IsCode(err, apitypes.CodeProcessNotFound) {
				return err
			}
		}
		first = false
		_, err := b.client.Start(u.ctx, id, r)
		return err
	})
}

// remove removes a session, often with a process that runs.
func (u *payers) remove(b *books, id string, random *rand.Rand) {
	if random.IntN(2) == 0 {
		b.askProcess(id, "sleeper", 1)
		u.startOnce(b, id, apitypes.ProcessRequest{ID: "sleeper", Argv: []string{"sleep", "1000"}})
	}
	u.again(func() error {
		err := b.client.Remove(u.ctx, id)
		if client.IsCode(err, apitypes.CodeSessionNotFound) {
			return nil
		}
		return err
	})
}
