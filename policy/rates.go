package policy

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/time/rate"
)

// Rates bound what may begin per second. 0 is the default, which is no limit for a token and
// [Config.TenantRates] for a tenant; -1 ([spec.Unlimited]) is no limit. A burst is how many may
// begin at once after a pause; 0 is one second's worth, and at least 1.
type Rates struct {
	Requests      float64 `yaml:"requests"` // to the API, and actions of LangBot's workspaces
	RequestsBurst int64   `yaml:"requests_burst"`
	Creates       float64 `yaml:"creates"` // boxes: of new sessions, and in place of lost and stopped ones
	CreatesBurst  int64   `yaml:"creates_burst"`
	Execs         float64 `yaml:"execs"` // commands, code, and managed processes that are started
	ExecsBurst    int64   `yaml:"execs_burst"`
}

// RateKind is what one of the [Rates] counts.
type RateKind int

// The kinds.
const (
	RequestRate RateKind = iota
	CreateRate
	ExecRate
	rateKinds
)

var rateNames = [rateKinds]string{"requests", "creates", "execs"}

func (k RateKind) String() string { return rateNames[k] }

// The bounds of a rate and a burst.
const (
	minRate = 0.001
	maxRate = 1e6
)

// of returns the rate of k and its burst.
func (r *Rates) of(k RateKind) (perSecond *float64, burst *int64) {
	switch k {
	case RequestRate:
		return &r.Requests, &r.RequestsBurst
	case CreateRate:
		return &r.Creates, &r.CreatesBurst
	}
	return &r.Execs, &r.ExecsBurst
}

// Set sets the rate or the burst that is called name, such as "execs_burst", to what text says. It
// reports whether there is one of that name.
func (r *Rates) Set(name, text string) (known bool, err error) {
	for k := range rateKinds {
		perSecond, burst := r.of(k)
		switch name {
		case k.String():
			f, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return true, badRate(name, spec.Quote(text))
			}
			*perSecond = f
			return true, nil
		case k.String() + "_burst":
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return true, badBurst(name, spec.Quote(text))
			}
			*burst = n
			return true, nil
		}
	}
	return false, nil
}

// Validate checks r. field is put in front of the names of its fields in errors.
func (r Rates) Validate(field string) error {
	_, err := r.resolve(field, Rates{})
	return err
}

// resolve fills in zero rates of r from d, with their bursts, and checks the others.
func (r Rates) resolve(field string, d Rates) (Rates, error) {
	for k := range rateKinds {
		perSecond, burst := r.of(k)
		if *perSecond == 0 {
			if *burst != 0 {
				return Rates{}, &spec.FieldError{Field: field + k.String() + "_burst", Value: fmt.Sprint(*burst), Rule: fmt.Sprintf("has no use without %s%s", field, k)}
			}
			other, most := d.of(k)
			*perSecond, *burst = *other, *most
			continue
		}
		if *perSecond != spec.Unlimited && !(*perSecond >= minRate && *perSecond <= maxRate) {
			return Rates{}, badRate(field+k.String(), fmt.Sprint(*perSecond))
		}
		if *burst < 0 || *burst > maxRate {
			return Rates{}, badBurst(field+k.String()+"_burst", fmt.Sprint(*burst))
		}
	}
	return r, nil
}

func badRate(field, value string) error {
	return &spec.FieldError{Field: field, Value: value, Rule: "must be a number per second, 0.001 to 1000000, 0 for the default, or -1 for no limit"}
}

func badBurst(field, value string) error {
	return &spec.FieldError{Field: field, Value: value, Rule: "must be a whole number, 1 to 1000000, or 0 for one second's worth"}
}

// Limiter counts what one tenant or one token begins. A nil Limiter has no limits. It is safe for
// concurrent use.
type Limiter struct {
	holder  RateError // what its refusals have in common
	rates   Rates
	buckets [rateKinds]*rate.Limiter // nil: no limit

	// taking is held from looking at a bucket until one is taken from it. Reservations that are
	// taken back when there is too little would use up the rate: rate.Limiter does not restore
	// all of one if another came in between.
	taking sync.Mutex
}

// NewTokenLimiter returns the limiter of the token of that name; nil if r has no limit. r is valid.
func NewTokenLimiter(name string, r Rates) *Limiter {
	return newLimiter(RateError{Scope: "token", Holder: name, key: "%s= of this token in tokens_file"}, r)
}

func newTenantLimiter(name string, r Rates) *Limiter {
	return newLimiter(RateError{Scope: "tenant", Holder: name, key: "tenants." + name + ".rates.%s"}, r)
}

func newLimiter(holder RateError, r Rates) *Limiter {
	l, limited := &Limiter{holder: holder, rates: r}, false
	for k := range rateKinds {
		perSecond, burst := r.of(k)
		if *perSecond <= 0 {
			continue
		}
		if *burst == 0 {
			*burst = int64(max(1, math.Ceil(*perSecond)))
		}
		l.buckets[k], limited = rate.NewLimiter(rate.Limit(*perSecond), int(*burst)), true
	}
	if !limited {
		return nil
	}
	l.rates = r
	return l
}

// Rates returns the limits, with bursts filled in.
func (l *Limiter) Rates() Rates {
	if l == nil {
		return Rates{}
	}
	return l.rates
}

// take counts one of k, unless it has to wait. It returns nil if k is not limited.
func (l *Limiter) take(k RateKind, now time.Time) (r *rate.Reservation, wait time.Duration) {
	if l == nil || l.buckets[k] == nil {
		return nil, 0
	}
	l.taking.Lock()
	defer l.taking.Unlock()
	b := l.buckets[k]
	if missing := 1 - b.TokensAt(now); missing > 0 {
		return nil, max(1, time.Duration(missing/float64(b.Limit())*float64(time.Second)))
	}
	return b.ReserveN(now, 1), 0
}

// refusal returns the error of l for the kind k, for the holder of that name.
func (l *Limiter) refusal(k RateKind, holder string, wait time.Duration) error {
	e := l.holder
	perSecond, burst := l.rates.of(k)
	e.Holder, e.Kind, e.PerSecond, e.Burst, e.RetryAfter = holder, k, *perSecond, *burst, wait
	return &e
}

// isFull reports whether l is like a new one.
func (l *Limiter) isFull(now time.Time) bool {
	for _, b := range l.buckets {
		if b != nil && b.TokensAt(now) < float64(b.Burst()) {
			return false
		}
	}
	return true
}

// ErrRate: too much at once. See [RateError].
var ErrRate = errors.New("rate limit exceeded")

// RateError says that a tenant or a token has begun as much as it may for now. It matches ErrRate.
type RateError struct {
	Scope      string // "tenant" or "token"
	Holder     string // its name
	Kind       RateKind
	PerSecond  float64
	Burst      int64
	RetryAfter time.Duration

	key string // of the configuration, with %s for Kind
}

// Value is the limit, for people.
func (e *RateError) Value() string {
	return fmt.Sprintf("%s per second, burst %d", strconv.FormatFloat(e.PerSecond, 'f', -1, 64), e.Burst)
}

// Seconds is RetryAfter in whole seconds, rounded up: at least 1.
func (e *RateError) Seconds() int { return max(1, int(math.Ceil(e.RetryAfter.Seconds()))) }

func (e *RateError) Error() string {
	return fmt.Sprintf("%s %s: %s: limit %s: retry in %d s, or raise %s",
		e.Scope, spec.Quote(e.Holder), e.Kind, e.Value(), e.Seconds(), fmt.Sprintf(e.key, e.Kind))
}

// Is makes every RateError an ErrRate.
func (e *RateError) Is(target error) bool { return target == ErrRate }

// Throttle has the limiters of all tenants. It is safe for concurrent use.
type Throttle struct {
	named    map[string]*Limiter // tenants that the configuration names
	fallback Rates               // of all others
	none     bool                // no tenant has a limit

	mu     sync.Mutex
	others map[string]*Limiter
	crowd  *Limiter  // of all that find no place in others
	swept  time.Time // when full limiters were last dropped from others
}

// maxLimiters bounds the limiters of tenants that the configuration does not name. A limiter that
// is as full as a new one leaves its place to another tenant.
const maxLimiters = 10000

// NewThrottle returns the limiters of p.
func (p *Policy) NewThrottle() *Throttle {
	t := &Throttle{named: map[string]*Limiter{}, fallback: p.fallback.rates, others: map[string]*Limiter{}}
	t.crowd = newTenantLimiter("*", t.fallback)
	t.none = t.crowd == nil
	for name, rules := range p.tenants {
		t.named[name] = newTenantLimiter(name, rules.rates)
		t.none = t.none && t.named[name] == nil
	}
	return t
}

// Admit counts one of k for tenant and for the token of its caller, or refuses it with a
// *[RateError] and counts nothing. An empty tenant or a nil token has no limit.
func (t *Throttle) Admit(tenant string, token *Limiter, k RateKind) error {
	if t.none && token == nil {
		return nil
	}
	now := time.Now()
	mine, wait := token.take(k, now)
	if wait > 0 {
		return token.refusal(k, token.holder.Holder, wait)
	}
	l := t.limiter(tenant, now)
	if _, wait := l.take(k, now); wait > 0 {
		if mine != nil {
			mine.CancelAt(now)
		}
		return l.refusal(k, tenant, wait)
	}
	return nil
}

// limiter returns the limiter of tenant.
func (t *Throttle) limiter(tenant string, now time.Time) *Limiter {
	if tenant == "" || t.none {
		return nil
	}
	if l, ok := t.named[tenant]; ok {
		return l
	}
	if t.crowd == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.others[tenant]; l != nil {
		return l
	}
	if len(t.others) >= maxLimiters {
		if now.Sub(t.swept) < time.Second {
			return t.crowd
		}
		t.swept = now
		for name, l := range t.others {
			if l.isFull(now) {
				delete(t.others, name)
			}
		}
		if len(t.others) >= maxLimiters {
			return t.crowd
		}
	}
	l := newTenantLimiter(tenant, t.fallback)
	t.others[tenant] = l
	return l
}
