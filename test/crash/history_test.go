package crash

import (
	"fmt"
	"maps"
	"sync"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
)

// asked are the commands that one actor has asked for in one session. They have consecutive numbers.
type asked struct {
	mu    sync.Mutex
	last  int
	codes map[int]int // of the answered ones, by number
}

func (a *asked) begin() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	return a.last
}

func (a *asked) answered(n, code int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.codes[n] = code
}

// prepared is how many commands populate runs in a session, besides those of the actor.
const prepared = 1

// checkHistory checks that the history of each session has every command that was answered, exactly once,
// and no other command twice; and that session has the process quitter once.
func (w *world) checkHistory(round int, session, quitter string, code int) {
	counted := w.counted()
	for id, a := range w.asked {
		a.mu.Lock()
		codes := maps.Clone(a.codes)
		a.mu.Unlock()
		list, err := w.historyOf(id)
		if err != nil {
			w.t.Fatalf("round %d: history of %s: %v", round, id, err)
		}
		found, quitters, lowest := map[int]int{}, 0, 0
		for _, r := range list {
			if r.Process == quitter && r.ExitCode != nil && *r.ExitCode == code {
				quitters++
			}
			var n int
			if _, err := fmt.Sscanf(r.Argv[len(r.Argv)-1], ": %d;", &n); err != nil || r.Process != "" {
				continue // not of this actor
			}
			found[n]++
			lowest = n // the list is newest first
			if want, ok := codes[n]; ok && (r.Verdict != "exited" || r.ExitCode == nil || *r.ExitCode != want) {
				w.t.Errorf("round %d: history of %s: command %d: %s, %v, want exit code %d", round, id, n, r.Verdict, r.ExitCode, want)
			}
		}
		for n := range codes {
			// The bound of a session forgets the oldest; those of the last rounds must be there.
			if n >= lowest && found[n] == 0 {
				w.t.Errorf("round %d: history of %s: command %d was answered and is missing", round, id, n)
			}
		}
		for n, times := range found {
			if times > 1 {
				w.t.Errorf("round %d: history of %s: command %d is there %d times", round, id, n, times)
			}
		}
		if id == session && quitters != 1 {
			w.t.Errorf("round %d: history of %s: process %s is there %d times", round, id, quitter, quitters)
		}
		a.mu.Lock()
		most := a.last
		a.mu.Unlock()
		if n := counted[id] - prepared; n > most {
			w.t.Errorf("round %d: usage of %s: %d commands are counted, %d were asked for", round, id, n, most)
		}
	}
	for id, a := range w.asked {
		a.mu.Lock()
		least := len(a.codes)
		a.mu.Unlock()
		if n := w.counted()[id] - prepared; n < least {
			w.t.Errorf("round %d: usage of %s: %d commands are counted, %d were answered", round, id, n, least)
		}
	}
}

// counted returns how many commands are counted for each session.
func (w *world) counted() map[string]int {
	list, err := w.client.TenantUsage(w.ctx, client.UsageOptions{By: []string{"session"}})
	if err != nil {
		w.t.Fatalf("usage: %v", err)
	}
	n := map[string]int{}
	for _, u := range list {
		n[u.Session] = int(u.Execs)
	}
	return n
}

// historyOf returns the whole history of a session, newest first.
func (w *world) historyOf(session string) (list []apitypes.ExecRecord, err error) {
	o := client.HistoryOptions{Session: session, Limit: 1000}
	for {
		h, err := w.client.History(w.ctx, o)
		if err != nil {
			return nil, err
		}
		list = append(list, h.Execs...)
		if o.Before = h.Next; h.Next == 0 {
			return list, nil
		}
	}
}
