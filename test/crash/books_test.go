package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
)

// books compare what the clients of one tenant were told with the history and the usage that the daemon
// keeps. Every execution has a mark of its own: a command has it as its last argument, and that of a managed process is
// its session and ID.
type books struct {
	client *client.Client // of the tenant

	mu       sync.Mutex
	asked    map[string]string // session by mark
	answered map[string]answer // by mark
	due      []string          // marks in answered that audit has not checked yet
	refused  map[string]bool   // by mark
	runs     map[string]int    // entries of a managed process that is restarted, by mark; of others 1
	marks    int

	// Only audit uses these.
	last  uint64              // ID of the newest entry that was read
	found map[string]answer   // by mark; the newest entry
	count map[string]int      // of entries, by mark
	sums  map[account]figures // of all entries
}

// answer is what a client, or the history, says about an execution.
type answer struct {
	session, verdict string
	code             int
	receipt          *apitypes.Receipt // nil: it was not told
}

// account is what usage is counted for.
type account struct{ session, profile, day string }

// figures are the counters of an account.
type figures struct {
	execs, processes int64
	cpu, wall        time.Duration
	read, written    int64
}

func newBooks(c *client.Client) *books {
	b := &books{client: c, asked: map[string]string{}, answered: map[string]answer{}, refused: map[string]bool{}, runs: map[string]int{}}
	b.forget()
	return b
}

// forget lets the next audit read the whole history again.
func (b *books) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = slices.Collect(maps.Keys(b.answered))
	b.last, b.found, b.count, b.sums = 0, map[string]answer{}, map[string]int{}, map[account]figures{}
}

// ask returns the mark of an execution that a client is about to ask for.
func (b *books) ask(session string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.marks++
	mark := fmt.Sprintf("x%d", b.marks)
	b.asked[mark] = session
	return mark
}

// askProcess returns the mark of a managed process that a client is about to start, and that will
// run so many times.
func (b *books) askProcess(session, id string, runs int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	mark := session + "/" + id
	b.asked[mark], b.runs[mark] = session, runs
	return mark
}

// ran notes how many times a managed process has run.
func (b *books) ran(mark string, runs int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs[mark] = runs
}

// told notes the answer about a command.
func (b *books) told(mark string, r *apitypes.ExecResult) {
	code := -1
	if r.ExitCode != nil {
		code = *r.ExitCode
	}
	b.note(mark, code, r.Verdict, &r.Receipt)
}

// note notes an answer; receipt is nil for a managed process.
func (b *books) note(mark string, code int, verdict string, receipt *apitypes.Receipt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered[mark] = answer{b.asked[mark], verdict, code, receipt}
	b.due = append(b.due, mark)
}

// refuse notes that the daemon has refused an execution.
func (b *books) refuse(mark string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[mark] = true
}

// audit reads the entries that are new since the last audit. It checks that every execution is there at most
// once, as asked for, and those that were answered before the call exactly once, as answered; a process that was restarted once for each run. Clients may go on
// meanwhile.
func (b *books) audit(ctx context.Context) (problems []error) {
	b.mu.Lock()
	due := b.due
	b.due = nil
	b.mu.Unlock()
	entries, err := b.newEntries(ctx)
	if err != nil {
		return []error{err}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range entries {
		mark := e.Session + "/" + e.Process
		if e.Process == "" {
			mark = e.Argv[len(e.Argv)-1]
		}
		a := answer{session: e.Session, verdict: e.Verdict, code: -1, receipt: &e.Receipt}
		if e.ExitCode != nil {
			a.code = *e.ExitCode
		}
		session, known := b.asked[mark]
		b.count[mark]++
		switch {
		case !known || session != e.Session:
			problems = append(problems, fmt.Errorf("entry %d: nobody has asked session %s for %q", e.ID, e.Session, e.Argv))
		case b.count[mark] > max(1, b.runs[mark]):
			problems = append(problems, fmt.Errorf("entry %d: %s of session %s is there %d times", e.ID, mark, e.Session, b.count[mark]))
		case b.refused[mark]:
			problems = append(problems, fmt.Errorf("entry %d: %s of session %s was refused", e.ID, mark, e.Session))
		}
		b.found[mark] = a
		k := account{e.Session, e.Profile, e.EndedAt.UTC().Format(time.DateOnly)}
		sum := b.sums[k]
		sum.add(&e)
		b.sums[k] = sum
	}
	for _, mark := range due {
		want := b.answered[mark]
		got, there := b.found[mark]
		if want.receipt == nil {
			want.receipt = got.receipt
		}
		if !there {
			problems = append(problems, fmt.Errorf("%s of session %s was answered (%s, %d) and is not there", mark, want.session, want.verdict, want.code))
		} else if n := b.count[mark]; n != max(1, b.runs[mark]) {
			problems = append(problems, fmt.Errorf("%s of session %s has run %d times and is there %d times", mark, want.session, b.runs[mark], n))
		} else if !reflect.DeepEqual(got, want) {
			problems = append(problems, fmt.Errorf("%s of session %s: history has %s, the client was told %s", mark, want.session, got, want))
		}
	}
	return problems
}

func (a answer) String() string {
	return fmt.Sprintf("%s, %d, %+v", a.verdict, a.code, a.receipt)
}

// newEntries returns the entries behind b.last, newest first, and sets b.last.
func (b *books) newEntries(ctx context.Context) (list []apitypes.ExecRecord, err error) {
	o := client.HistoryOptions{Limit: 1000}
	for before := uint64(0); ; {
		h, err := b.client.History(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("reading the history: %w", err)
		}
		for _, e := range h.Execs {
			if before != 0 && e.ID >= before {
				return nil, fmt.Errorf("entry %d follows entry %d", e.ID, before)
			}
			if e.ID <= b.last {
				h.Next = 0
				break
			}
			before = e.ID
			list = append(list, e)
		}
		if o.Before = h.Next; h.Next == 0 {
			break
		}
	}
	if len(list) > 0 {
		b.last = list[0].ID
	}
	return list, nil
}

func (f *figures) add(e *apitypes.ExecRecord) {
	if e.Process == "" {
		f.execs++
	} else {
		f.processes++
	}
	r := &e.Receipt
	f.wall += r.Wall.D()
	for _, d := range []*apitypes.Duration{r.User, r.System} {
		if d != nil {
			f.cpu += d.D()
		}
	}
	if r.IOReadBytes != nil {
		f.read += *r.IOReadBytes
	}
	if r.IOWriteBytes != nil {
		f.written += *r.IOWriteBytes
	}
}

// settle audits until the usage of every account equals the sum of its receipts. No client may be asking for
// anything; only managed processes may still end.
func (b *books) settle(ctx context.Context) (problems []error) {
	for range 100 {
		if problems = b.audit(ctx); len(problems) > 0 {
			return problems
		}
		list, err := b.client.TenantUsage(ctx, client.UsageOptions{By: []string{"session", "profile", "day"}})
		if err != nil {
			return []error{fmt.Errorf("reading the usage: %w", err)}
		}
		counted := map[account]figures{}
		for _, u := range list {
			counted[account{u.Session, u.Profile, u.Day}] = figures{u.Execs, u.Processes, u.CPU.D(), u.Wall.D(), u.IOReadBytes, u.IOWriteBytes}
		}
		for k := range b.sums {
			if counted[k] != b.sums[k] {
				problems = append(problems, fmt.Errorf("usage of %+v: %+v is counted, the receipts add up to %+v", k, counted[k], b.sums[k]))
			}
		}
		for k, f := range counted {
			// The life of a box is counted as well, and is not in the history.
			if _, known := b.sums[k]; !known && f != (figures{}) {
				problems = append(problems, fmt.Errorf("usage of %+v: %+v is counted, and nothing is in the history", k, f))
			}
		}
		before := b.last
		if len(problems) == 0 {
			return nil
		}
		// Something may have ended between the two answers: that is new then.
		if more := b.audit(ctx); len(more) > 0 || b.last == before {
			return append(more, problems...)
		}
	}
	return problems
}

// on returns the sum of all accounts of the tenant on a day.
func (b *books) on(day string) (sum figures) {
	for k, f := range b.sums {
		if k.day == day {
			sum.execs, sum.processes, sum.cpu, sum.wall = sum.execs+f.execs, sum.processes+f.processes, sum.cpu+f.cpu, sum.wall+f.wall
			sum.read, sum.written = sum.read+f.read, sum.written+f.written
		}
	}
	return sum
}

// budgets are daily budgets that a tenant which has run anything has used up, with what must be in use of each.
var budgets = []struct {
	key   string
	inUse func(figures) string
	none  func(figures) bool
}{
	{"execs: 1", func(f figures) string { return strconv.FormatInt(f.execs+f.processes, 10) }, func(f figures) bool { return f.execs+f.processes == 0 }},
	{"cpu: 1ns", func(f figures) string { return f.cpu.String() }, func(f figures) bool { return f.cpu == 0 }},
}

// overBudget asks for a command of the tenant, which has used up its budget number n, and checks how much of it
// the daemon says is used. Managed processes may still end.
func (b *books) overBudget(ctx context.Context, n int) (err error) {
	const session = "over-budget"
	if _, err := b.client.Ensure(ctx, apitypes.SessionRequest{ID: session}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.client.Remove(ctx, session)) }()
	for range 100 {
		if problems := b.settle(ctx); len(problems) > 0 {
			return errors.Join(problems...)
		}
		day, before := time.Now().UTC().Format(time.DateOnly), b.last
		sum := b.on(day)
		if budgets[n].none(sum) {
			return nil // nothing has run since midnight
		}
		mark := b.ask(session)
		r, failure := b.client.Exec(ctx, session, apitypes.ExecRequest{Argv: []string{"true", mark}})
		if time.Now().UTC().Format(time.DateOnly) != day {
			return nil
		}
		b.refuse(mark)
		var refusal *client.Error
		if !errors.As(failure, &refusal) || refusal.Code != apitypes.CodeQuota {
			return fmt.Errorf("a command over the budget %q: %+v, %w", budgets[n].key, r, failure)
		}
		want := budgets[n].inUse(sum)
		if refusal.InUse == want {
			return nil
		}
		err = fmt.Errorf("budget %q: %s is in use, the receipts add up to %s", budgets[n].key, refusal.InUse, want)
		if problems := b.audit(ctx); len(problems) > 0 || b.last == before {
			return errors.Join(append(problems, err)...)
		}
	}
	return err
}
