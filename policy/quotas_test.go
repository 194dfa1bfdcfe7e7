package policy

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

func TestQuotasResolve(t *testing.T) {
	d := Quotas{Sessions: 1, Processes: 2, Execs: 3, Memory: 4, CPUs: 5, WorkspaceBytes: 6, Volumes: 7, VolumeBytes: 8, Watches: 9, Ports: 10}
	unlimited := Quotas{Sessions: -1, Processes: -1, Execs: -1, Memory: -1, CPUs: -1, WorkspaceBytes: -1, Volumes: -1, VolumeBytes: -1, Watches: -1, Ports: -1}
	cases := []struct {
		q, want Quotas
		ok      bool
	}{
		{Quotas{}, d, true},
		{unlimited, unlimited, true},
		{Quotas{Sessions: 9}, Quotas{9, 2, 3, 4, 5, 6, 7, 8, 9, 10}, true},
		{Quotas{CPUs: 0.01}, Quotas{1, 2, 3, 4, 0.01, 6, 7, 8, 9, 10}, true},
		{Quotas{CPUs: math.NaN()}, Quotas{}, false},
		{Quotas{CPUs: math.Inf(1)}, Quotas{}, false},
		{Quotas{CPUs: -1.5}, Quotas{}, false},
		{Quotas{CPUs: 1e-9}, Quotas{}, false}, // nothing, in millionths
		{Quotas{WorkspaceBytes: -2}, Quotas{}, false},
		{Quotas{Processes: math.MinInt64}, Quotas{}, false},
	}
	for _, c := range cases {
		got, err := c.q.resolve("limits", d)
		if c.ok != (err == nil) || got != c.want && c.ok {
			t.Errorf("%+v: %+v, %v; want %+v", c.q, got, err, c.want)
		}
	}
	for _, q := range []Quotas{DefaultQuotas, DefaultLimits} {
		if got, err := (Quotas{}).resolve("limits", q); err != nil || got != q {
			t.Errorf("the defaults are not allowed: %+v, %v", got, err)
		}
	}
}

func TestFits(t *testing.T) {
	const most = math.MaxInt64
	cases := []struct {
		asked, inUse, limit int64
		want                bool
	}{
		{0, 0, 1, true}, {1, 0, 1, true}, {1, 1, 1, false}, {2, 0, 1, false},
		{0, 5, 1, true}, {1, 5, 1, false},
		{most, 0, most, true}, {most, 1, most, false}, {1, most, most, false},
		{most, 0, engine.Unlimited, true}, {most, 1, engine.Unlimited, false}, {engine.Unlimited, most, engine.Unlimited, true},
		{engine.Unlimited, 0, most, false},
	}
	for _, c := range cases {
		if got := fits(c.asked, c.inUse, c.limit); got != c.want {
			t.Errorf("fits(%d, %d, %d) = %v, want %v", c.asked, c.inUse, c.limit, got, c.want)
		}
	}
}

func TestQuotaText(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{plain(7), "7"}, {plain(-1), "unlimited"},
		{formatCPUs(1500000), "1.5"}, {formatCPUs(10000), "0.01"}, {formatCPUs(-1), "unlimited"},
		{spec.FormatSize(-1), "unlimited"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	if len(resources) != len(amounts{}) {
		t.Error("a resource without an amount")
	}
}

func BenchmarkReserve(b *testing.B) {
	p, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	l := p.NewLedger()
	for b.Loop() {
		release, err := l.Reserve("a", Use{Execs: 1})
		if err != nil {
			b.Fatal(err)
		}
		release()
	}
}

func BenchmarkResolve(b *testing.B) {
	p, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := p.Resolve("a", Request{Wishes: spec.Wishes{Env: map[string]string{"A": "b"}}}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestBudget(t *testing.T) {
	p, err := New(Config{Tenants: map[string]Tenant{"t": {Daily: Budget{CPU: spec.Duration(time.Hour), Written: 1 << 30}}}})
	if err != nil {
		t.Fatal(err)
	}
	if !p.HasBudget("t") || p.HasBudget("other") {
		t.Error("the wrong tenant has a budget")
	}
	for _, c := range []struct {
		used Budget
		want string
	}{
		{Budget{Execs: 1 << 40, CPU: spec.Duration(time.Hour - 1)}, ""},
		{Budget{CPU: spec.Duration(time.Hour)}, `tenant "t": cpu_per_day: limit 1h0m0s, in use 1h0m0s, asked more: wait until midnight UTC, or raise tenants.t.daily.cpu`},
		{Budget{Written: 3 << 30}, `tenant "t": written_per_day: limit 1 GiB, in use 3 GiB, asked more: wait until midnight UTC, or raise tenants.t.daily.written`},
	} {
		switch err := p.CheckBudget("t", c.used); {
		case c.want == "" && err != nil, c.want != "" && (err == nil || err.Error() != c.want || !errors.Is(err, ErrQuota)):
			t.Errorf("%+v: %v, want %q", c.used, err, c.want)
		}
	}
	if err := p.CheckBudget("other", Budget{CPU: 1 << 60}); err != nil {
		t.Error(err)
	}
	for field, b := range map[string]Budget{"cpu": {CPU: -1}, "execs": {Execs: -1}, "written": {Written: -1}} {
		var bad *spec.FieldError
		if _, err := New(Config{Tenants: map[string]Tenant{"t": {Daily: b}}}); !errors.As(err, &bad) || bad.Field != "tenants.t.daily."+field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestKeep(t *testing.T) {
	program, size := KeepProgram, spec.Size(1000)
	p, err := New(Config{Profiles: map[string]ProfileConfig{"quiet": {KeepArgv: &program}, "child": {Extends: "quiet", KeepOutput: &size}}})
	if err != nil {
		t.Fatal(err)
	}
	for profile, want := range map[string]Keep{"default": {KeepFull, 0}, "quiet": {KeepProgram, 0}, "child": {KeepProgram, 1000}, "gone": {KeepProgram, 0}} {
		if got := p.Keep(Resolved{Profile: profile}); got != want {
			t.Errorf("%s: %+v, want %+v", profile, got, want)
		}
	}
	odd, large := "odd", spec.Size(MaxKeepOutput+1)
	for field, c := range map[string]ProfileConfig{"keep_argv": {KeepArgv: &odd}, "keep_output": {KeepOutput: &large}} {
		var bad *spec.FieldError
		if _, err := New(Config{Profiles: map[string]ProfileConfig{"p": c}}); !errors.As(err, &bad) || bad.Field != "profiles.p."+field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
