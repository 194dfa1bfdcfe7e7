package policy

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/boxd/boxd/engine"
)

func TestLedger(t *testing.T) {
	p := newPolicy(t, Config{
		TenantDefaults: Quotas{Sessions: 2, Memory: 1 << 30, CPUs: 1.5},
		Limits:         Quotas{Sessions: 3, CPUs: 2},
		Tenants:        map[string]Tenant{"big": {Quotas: Quotas{Sessions: 100, Memory: -1, CPUs: -1}}},
	})
	l := p.NewLedger()
	reserve := func(tenant string, u Use, want string) func() {
		t.Helper()
		release, err := l.Reserve(tenant, u)
		if want == "" {
			if err != nil {
				t.Fatal(err)
			}
			return release
		}
		if !errors.Is(err, ErrQuota) || err.Error() != want || release != nil {
			t.Errorf("Reserve(%q, %+v): %v\nwant %s", tenant, u, err, want)
		}
		return nil
	}
	one := Use{Sessions: 1, Memory: 512 << 20, CPUs: 0.1}
	r1 := reserve("a", one, "")
	reserve("a", one, "")
	reserve("a", Use{Sessions: 1}, `tenant "a": sessions: limit 2, in use 2, asked 1: remove a session, or raise tenants.a.quotas.sessions`)
	reserve("a", Use{Memory: 1}, `tenant "a": memory: limit 1 GiB, in use 1 GiB, asked 1 B: ask for less, or remove a session, or raise tenants.a.quotas.memory`)
	reserve("a", Use{CPUs: 1.4}, `tenant "a": cpus: limit 1.5, in use 0.2, asked 1.4: ask for fewer, or remove a session, or raise tenants.a.quotas.cpus`)
	reserve("a", Use{Memory: engine.Unlimited}, `tenant "a": memory: limit 1 GiB, in use 1 GiB, asked unlimited: ask for less, or remove a session, or raise tenants.a.quotas.memory`)
	r3 := reserve("big", Use{Sessions: 1, Memory: 1 << 40, CPUs: 1.8}, "")
	reserve("big", Use{Sessions: 1}, `all tenants: sessions: limit 3, in use 3, asked 1: remove a session, or raise limits.sessions`)
	reserve("big", Use{CPUs: engine.Unlimited}, `all tenants: cpus: limit 2, in use 2, asked unlimited: ask for fewer, or remove a session, or raise limits.cpus`)
	if got := l.InUse(""); got != (Use{Sessions: 3, Memory: 1<<30 + 1<<40, CPUs: 2}) {
		t.Errorf("in use: %+v", got)
	}
	r1()
	r1() // a second release does nothing
	if got := l.InUse("a"); got != one {
		t.Errorf("in use: %+v, want %+v", got, one)
	}
	r3()
	if got := l.InUse("big"); got != (Use{}) {
		t.Errorf("in use: %+v, want nothing", got)
	}
	if got := l.Limits("a"); got.Sessions != 2 || got.Processes != DefaultQuotas.Processes || got.CPUs != 1.5 {
		t.Errorf("limits: %+v", got)
	}
	if got := l.Limits(""); got.Sessions != 3 || got.Memory != DefaultLimits.Memory {
		t.Errorf("global limits: %+v", got)
	}
}

func TestAllOrNothing(t *testing.T) {
	l := newPolicy(t, Config{TenantDefaults: Quotas{Execs: 1}}).NewLedger()
	if _, err := l.Reserve("a", Use{Sessions: 1, Processes: 1, Memory: 1, WorkspaceBytes: 1, Execs: 2}); !errors.Is(err, ErrQuota) {
		t.Fatal(err)
	}
	if l.InUse("a") != (Use{}) || l.InUse("") != (Use{}) || len(l.tenants) != 0 {
		t.Errorf("a refusal left %+v", l.InUse("a"))
	}
}

func TestAdopt(t *testing.T) {
	l := newPolicy(t, Config{TenantDefaults: Quotas{Sessions: 1}}).NewLedger()
	release := l.Adopt("a", Use{Sessions: 3})
	if _, err := l.Reserve("a", Use{Sessions: 1}); !errors.Is(err, ErrQuota) || !strings.Contains(err.Error(), "limit 1, in use 3, asked 1") {
		t.Errorf("Reserve: %v, want a QuotaError", err)
	}
	execs, err := l.Reserve("a", Use{Execs: 1}) // a resource above its quota does not block the others
	if err != nil {
		t.Fatal(err)
	}
	release()
	execs()
	if l.InUse("") != (Use{}) {
		t.Errorf("%+v", l.InUse(""))
	}
	defer func() {
		if recover() == nil {
			t.Error("Adopt took a negative amount")
		}
	}()
	l.Adopt("a", Use{Sessions: -1})
}

func TestUncountable(t *testing.T) {
	l := newPolicy(t, Config{TenantDefaults: Quotas{Memory: -1, CPUs: -1}, Limits: Quotas{Memory: -1, CPUs: -1}}).NewLedger()
	for _, u := range []Use{{Sessions: -1}, {Execs: -5}, {Memory: -2}, {WorkspaceBytes: -1}, {CPUs: -2}, {CPUs: math.NaN()}, {CPUs: math.Inf(1)}, {CPUs: 1e18}} {
		if _, err := l.Reserve("a", u); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", u, err)
		}
	}
	release, err := l.Reserve("a", Use{Memory: engine.Unlimited, CPUs: engine.Unlimited})
	if err != nil || l.InUse("a") != (Use{}) {
		t.Errorf("%v, %+v", err, l.InUse("a"))
	}
	release()
	if _, err := l.Reserve("a", Use{Memory: math.MaxInt64}); err != nil {
		t.Error(err)
	}
	if _, err := l.Reserve("b", Use{Memory: 1}); !errors.Is(err, ErrQuota) {
		t.Errorf("an overflow gave %v, want ErrQuota", err)
	}
}

// TestExactCPUs: sums of fractions come back to exactly nothing.
func TestExactCPUs(t *testing.T) {
	l := newPolicy(t, Config{TenantDefaults: Quotas{CPUs: 100}}).NewLedger()
	var releases []func()
	for range 1000 {
		release, err := l.Reserve("a", Use{CPUs: 0.1})
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	if _, err := l.Reserve("a", Use{CPUs: 0.01}); !errors.Is(err, ErrQuota) {
		t.Errorf("%v, want ErrQuota at exactly 100", err)
	}
	for _, release := range releases {
		release()
	}
	if l.InUse("a") != (Use{}) || l.InUse("").CPUs != 0 || len(l.tenants) != 0 {
		t.Errorf("left: %+v", l.InUse("a"))
	}
}

// TestParallelLedger: many goroutines never hold more than the quotas between them,
// and leave nothing.
func TestParallelLedger(t *testing.T) {
	const perTenant, global = 7, 15
	l := newPolicy(t, Config{TenantDefaults: Quotas{Sessions: perTenant, CPUs: 2}, Limits: Quotas{Sessions: global}}).NewLedger()
	tenants := []string{"a", "b", "c"}
	var mu sync.Mutex // over held: what the test knows to be in use, never more than the ledger's
	held := make(map[string]int64)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 500 {
				tenant := tenants[rng.IntN(len(tenants))]
				n := 1 + rng.Int64N(3)
				release, err := l.Reserve(tenant, Use{Sessions: n, CPUs: 0.07})
				if err != nil {
					if !errors.Is(err, ErrQuota) {
						t.Error(err)
					}
					continue
				}
				mu.Lock()
				held[tenant] += n
				if held[tenant] > perTenant || held["a"]+held["b"]+held["c"] > global {
					t.Errorf("held %v", held)
				}
				mu.Unlock()
				l.InUse(tenant)
				mu.Lock()
				held[tenant] -= n
				mu.Unlock()
				release()
				go release()
			}
		})
	}
	wg.Wait()
	if l.InUse("") != (Use{}) {
		t.Errorf("left: %+v", l.InUse(""))
	}
}

func FuzzLedger(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 255, 0})
	p, err := New(Config{TenantDefaults: Quotas{Sessions: 5, Execs: 3, CPUs: 1}, Limits: Quotas{Sessions: 8}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		l := p.NewLedger()
		model := map[string]int64{}
		type holding struct {
			tenant  string
			n       int64
			release func()
		}
		var all []holding
		for _, op := range ops {
			if op >= 200 && len(all) > 0 {
				h := all[int(op)%len(all)]
				h.release()
				all = append(all[:int(op)%len(all)], all[int(op)%len(all)+1:]...)
				model[h.tenant] -= h.n
				continue
			}
			tenant, n := string('a'+rune(op%3)), int64(op/3%4)
			release, err := l.Reserve(tenant, Use{Sessions: n})
			fits := n == 0 || model[tenant]+n <= 5 && model["a"]+model["b"]+model["c"]+n <= 8
			if fits != (err == nil) {
				t.Fatalf("%d for %s with %v in use: %v", n, tenant, model, err)
			}
			if err == nil {
				model[tenant] += n
				all = append(all, holding{tenant, n, release})
			}
		}
		for _, tenant := range []string{"a", "b", "c"} {
			if l.InUse(tenant).Sessions != model[tenant] {
				t.Fatalf("%s: %+v, want %d", tenant, l.InUse(tenant), model[tenant])
			}
		}
	})
}
