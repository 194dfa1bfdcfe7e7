package policy

import (
	"fmt"
	"math"
	"sync"

	"github.com/boxd/boxd/engine/spec"
)

// Use is an amount in use, or asked for. Memory or CPUs of [spec.Unlimited] stand for a box
// without that limit.
type Use Quotas

// amounts returns u as counts. Its fields must not be negative, except those that can be
// Unlimited.
func (u Use) amounts() (amounts, error) {
	if !(u.CPUs == spec.Unlimited || (u.CPUs >= 0 && u.CPUs <= maxCPUs)) {
		return amounts{}, &spec.FieldError{Field: "cpus", Value: fmt.Sprint(u.CPUs), Rule: "cannot be counted"}
	}
	a := Quotas(u).amounts()
	for i, n := range a {
		canBeUnlimited := resources[i].name == "memory" || resources[i].name == "cpus"
		if n < 0 && !(n == spec.Unlimited && canBeUnlimited) {
			return amounts{}, &spec.FieldError{Field: resources[i].name, Value: fmt.Sprint(n), Rule: "cannot be counted"}
		}
	}
	return a, nil
}

func (a amounts) use() Use {
	return Use{a[0], a[1], a[2], spec.Size(a[3]), float64(a[4]) / microCPUs, spec.Size(a[5]), a[6], spec.Size(a[7]), a[8], a[9]}
}

// add adds the counts of b, times sign. Unlimited counts nothing: only a tenant without a
// limit can have it.
func (a *amounts) add(b amounts, sign int64) {
	for i, n := range b {
		a[i] += sign * max(n, 0)
	}
}

// Ledger counts what tenants use. It is safe for concurrent use.
type Ledger struct {
	policy *Policy

	mu      sync.Mutex
	tenants map[string]*amounts // no entry means nothing is in use
	all     amounts
}

// NewLedger returns an empty ledger with the quotas of p.
func (p *Policy) NewLedger() *Ledger {
	return &Ledger{policy: p, tenants: make(map[string]*amounts)}
}

// Reserve counts all of u for tenant, or nothing. A refusal is a *[QuotaError]. release
// takes u back; calling it again does nothing.
func (l *Ledger) Reserve(tenant string, u Use) (release func(), err error) {
	a, err := u.amounts()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.checkLocked(tenant, a); err != nil {
		return nil, err
	}
	return l.countLocked(tenant, a), nil
}

// Adopt counts u without checking quotas: for what exists already, such as sessions found
// after a restart, or a workspace that has grown. It panics on an amount that cannot be
// counted.
func (l *Ledger) Adopt(tenant string, u Use) (release func()) {
	a, err := u.amounts()
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.countLocked(tenant, a)
}

// checkLocked checks that a fits into the quotas of tenant and the global limits.
func (l *Ledger) checkLocked(tenant string, a amounts) error {
	mine, quotas, caps := l.inUseLocked(tenant), l.policy.rules(tenant).quotas.amounts(), l.policy.limits.amounts()
	for i, asked := range a {
		if !fits(asked, mine[i], quotas[i]) {
			return newQuotaError(tenant, i, quotas[i], mine[i], asked)
		}
		if !fits(asked, l.all[i], caps[i]) {
			return newQuotaError("", i, caps[i], l.all[i], asked)
		}
	}
	return nil
}

// fits cannot overflow. Asking for nothing always fits, even if more is in use than
// allowed.
func fits(asked, inUse, limit int64) bool {
	switch {
	case asked == 0:
		return true
	case limit < 0:
		return asked < 0 || asked <= math.MaxInt64-inUse
	}
	return asked > 0 && asked <= limit-inUse
}

// countLocked counts a, and returns a function that takes it back.
func (l *Ledger) countLocked(tenant string, a amounts) (release func()) {
	mine := l.tenants[tenant]
	if mine == nil {
		mine = new(amounts)
		l.tenants[tenant] = mine
	}
	mine.add(a, 1)
	l.all.add(a, 1)
	released := false // guarded by l.mu
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if released {
			return
		}
		released = true
		l.all.add(a, -1)
		if mine.add(a, -1); *mine == (amounts{}) && l.tenants[tenant] == mine {
			delete(l.tenants, tenant)
		}
	}
}

func (l *Ledger) inUseLocked(tenant string) amounts {
	if mine := l.tenants[tenant]; mine != nil {
		return *mine
	}
	return amounts{}
}

// InUse returns what tenant uses now; "" stands for all tenants together.
func (l *Ledger) InUse(tenant string) Use {
	l.mu.Lock()
	defer l.mu.Unlock()
	if tenant == "" {
		return l.all.use()
	}
	return l.inUseLocked(tenant).use()
}

// Limits returns the quotas of tenant, with defaults filled in; "" stands for the global
// limits.
func (l *Ledger) Limits(tenant string) Quotas {
	if tenant == "" {
		return l.policy.limits
	}
	return l.policy.rules(tenant).quotas
}
