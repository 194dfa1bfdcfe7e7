package policy

// Use is what is in use, or asked for. CPUs are counted in millionths, rounded up.
type Use struct {
	Sessions, Processes, Execs int
	Memory                     int64 // bytes; [engine.Unlimited] is without a limit
	CPUs                       float64
	WorkspaceBytes             int64
}

// Ledger counts what tenants use. It is safe for concurrent use.
type Ledger struct{}

// NewLedger returns an empty ledger with the quotas of p.
func (p *Policy) NewLedger() *Ledger { return &Ledger{} }

// Reserve counts u for tenant, all of it or nothing. A refusal is a *[QuotaError].
// release gives u back; calling it again does nothing.
func (l *Ledger) Reserve(tenant string, u Use) (release func(), err error) { return func() {}, nil }

// Adopt counts u without asking: for what exists already, such as sessions that
// are found again after a restart.
func (l *Ledger) Adopt(tenant string, u Use) (release func()) { return func() {} }

// InUse is what tenant uses now; "" is all tenants together.
func (l *Ledger) InUse(tenant string) Use { return Use{} }

// Limits are the quotas of tenant, with defaults filled in; "" gives the global
// caps.
func (l *Ledger) Limits(tenant string) Quotas { return Quotas{} }
