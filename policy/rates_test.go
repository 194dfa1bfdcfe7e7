package policy

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

func throttle(t *testing.T, c Config) *Throttle {
	t.Helper()
	return newPolicy(t, c).NewThrottle()
}

func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttle(t, Config{
			TenantRates: Rates{Execs: 4},
			Tenants:     map[string]Tenant{"acme": {Rates: Rates{Requests: 0.5, RequestsBurst: 2, Execs: -1}}, "free": {Rates: Rates{Execs: -1}}},
		})
		token := NewTokenLimiter("ci", Rates{Creates: 1, Requests: 100})
		admit := func(tenant string, l *Limiter, k RateKind, want string) {
			t.Helper()
			err := th.Admit(tenant, l, k)
			if want == "" && err != nil || want != "" && (err == nil || err.Error() != want || !errors.Is(err, ErrRate)) {
				t.Errorf("%s %v: %v, want %q", tenant, k, err, want)
			}
		}
		admit("acme", nil, RequestRate, "")
		admit("acme", token, RequestRate, "")
		refused := `tenant "acme": requests: limit 0.5 per second, burst 2: retry in 2 s, or raise tenants.acme.rates.requests`
		admit("acme", token, RequestRate, refused)
		for range 100 { // a refusal counts nothing, for neither holder
			admit("acme", token, RequestRate, refused)
		}
		for range 99 {
			admit("free", token, RequestRate, "")
		}
		admit("free", token, RequestRate, `token "ci": requests: limit 100 per second, burst 100: retry in 1 s, or raise requests= of this token in tokens_file`)
		time.Sleep(1500 * time.Millisecond)
		admit("acme", nil, RequestRate, `tenant "acme": requests: limit 0.5 per second, burst 2: retry in 1 s, or raise tenants.acme.rates.requests`)
		time.Sleep(500 * time.Millisecond)
		admit("acme", nil, RequestRate, "")

		for range 100 {
			admit("acme", nil, ExecRate, "")
			admit("free", nil, ExecRate, "")
			admit("", nil, ExecRate, "")
		}
		for range 4 {
			admit("new", nil, ExecRate, "")
			admit("other", nil, ExecRate, "")
		}
		admit("new", nil, ExecRate, `tenant "new": execs: limit 4 per second, burst 4: retry in 1 s, or raise tenants.new.rates.execs`)
		admit("other", nil, ExecRate, `tenant "other": execs: limit 4 per second, burst 4: retry in 1 s, or raise tenants.other.rates.execs`)
		admit("new", token, CreateRate, "")
		admit("new", token, CreateRate, `token "ci": creates: limit 1 per second, burst 1: retry in 1 s, or raise creates= of this token in tokens_file`)
	})
}

// Tenants that the configuration does not name take a bounded amount of memory, and none of them
// escapes its limit.
func TestManyTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttle(t, Config{TenantRates: Rates{Requests: 1}})
		for n := range maxLimiters {
			if err := th.Admit(fmt.Sprint("t", n), nil, RequestRate); err != nil {
				t.Fatal(err)
			}
		}
		if err := th.Admit("one", nil, RequestRate); err != nil { // as one of the crowd
			t.Fatal(err)
		}
		for n := range 10 {
			if err := th.Admit(fmt.Sprint("more", n), nil, RequestRate); !errors.Is(err, ErrRate) {
				t.Errorf("one of the crowd: %v", err)
			}
		}
		if err := th.Admit("t7", nil, RequestRate); !errors.Is(err, ErrRate) {
			t.Errorf("a known one: %v", err)
		}
		time.Sleep(time.Second)
		if err := th.Admit("later", nil, RequestRate); err != nil {
			t.Error(err)
		}
		if len(th.others) != 1 {
			t.Errorf("%d limiters are kept", len(th.others))
		}
	})
}

func TestRateValues(t *testing.T) {
	for field, r := range map[string]Rates{
		"requests": {Requests: -2}, "creates": {Creates: math.NaN()}, "execs": {Execs: 1e7}, "requests_burst": {Requests: 1, RequestsBurst: -1},
		"creates_burst": {CreatesBurst: 3}, "execs_burst": {Execs: 1, ExecsBurst: 1e7},
	} {
		var bad *spec.FieldError
		if err := r.Validate("x."); !errors.As(err, &bad) || bad.Field != "x."+field {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := New(Config{Tenants: map[string]Tenant{"t": {Rates: r}}}); !errors.As(err, &bad) || bad.Field != "tenants.t.rates."+field {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := New(Config{TenantRates: r}); !errors.As(err, &bad) || bad.Field != "tenant_rates."+field {
			t.Errorf("%s: %v", field, err)
		}
	}
	var r Rates
	for _, c := range []struct {
		name, text string
		known, ok  bool
	}{{"execs", "2.5", true, true}, {"execs_burst", "7", true, true}, {"execs", "many", true, false}, {"creates_burst", "1.5", true, false}, {"scope", "x", false, true}} {
		if known, err := r.Set(c.name, c.text); known != c.known || c.ok != (err == nil) {
			t.Errorf("%s=%s: %v, %v", c.name, c.text, known, err)
		}
	}
	if err := r.Validate(""); err != nil || r.ExecsBurst != 7 {
		t.Errorf("%+v, %v", r, err)
	}
	if NewTokenLimiter("x", Rates{Requests: -1}) != nil {
		t.Error("a limiter without limits")
	}
	if got := NewTokenLimiter("x", Rates{Requests: 2.5}).Rates().RequestsBurst; got != 3 {
		t.Errorf("burst %d", got)
	}
}

func BenchmarkAdmitUnlimited(b *testing.B) {
	p, err := New(Config{Tenants: map[string]Tenant{"a": {}}})
	if err != nil {
		b.Fatal(err)
	}
	th := p.NewThrottle()
	for b.Loop() {
		if err := th.Admit("a", nil, ExecRate); err != nil {
			b.Fatal(err)
		}
	}
}

// What is refused costs nothing, also if much is refused at once: or else a client that retries in
// parallel would wait ever longer.
func TestRefusedAtOnce(t *testing.T) {
	l := newTenantLimiter("t", Rates{Execs: 0.001, ExecsBurst: 1})
	throttle := &Throttle{named: map[string]*Limiter{"t": l}}
	if err := throttle.Admit("t", nil, ExecRate); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50000 {
				if throttle.Admit("t", nil, ExecRate) == nil {
					t.Error("one too many")
				}
			}
		})
	}
	wg.Wait()
	if err, ok := errors.AsType[*RateError](throttle.Admit("t", nil, ExecRate)); !ok || err.RetryAfter > 1001*time.Second {
		t.Errorf("%v", err)
	}
}
