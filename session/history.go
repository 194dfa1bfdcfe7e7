package session

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/headtail"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/history"
)

// userLabel is the label of a session whose value usage is counted for.
const userLabel = "user"

// maxHistoryArgs bounds how many bytes of a command line the history keeps.
const maxHistoryArgs = 4096

func (m *Manager) openHistory() (err error) {
	o := m.options.ExecHistory
	o.Dir = cmp.Or(o.Dir, filepath.Join(filepath.Dir(m.options.DB), "history"))
	o.Report = func(err error) { m.report(Key{}, "", err.Error()) }
	m.history, err = history.Open(o)
	return err
}

// keptOutput is what the history keeps of a command's output; nil: nothing.
type keptOutput struct{ stdout, stderr *headtail.Buffer }

// tee lets cmd also write to k, which keeps limit bytes of each stream.
func (k *keptOutput) tee(cmd *engine.Command, limit int64) {
	if limit <= 0 {
		return
	}
	one := false // stream for both, which the engine must notice
	if t := reflect.TypeOf(cmd.Stdout); t != nil && t.Comparable() {
		one = cmd.Stdout == cmd.Stderr
	}
	k.stdout = &headtail.Buffer{Limit: limit}
	cmd.Stdout = io.MultiWriter(k.stdout, cmd.Stdout)
	switch {
	case one:
		cmd.Stderr = cmd.Stdout
	case cmd.Stderr != nil:
		k.stderr = &headtail.Buffer{Limit: limit}
		cmd.Stderr = io.MultiWriter(k.stderr, cmd.Stderr)
	}
}

// rememberExec adds a command that has ended to the history.
func (m *Manager) rememberExec(c Caller, u *use, r *admittedExec, started time.Time, res engine.Result) {
	e := m.entry(u.s.key, r.resolved, r.cmd.Args)
	e.Box, e.Actor, e.Request = u.box.ID(), c.ActorIn(u.s.key.Tenant), c.Request
	e.StartedAt, e.EndedAt, e.Result = started.Round(0), time.Now().Round(0), res
	e.Memory = u.s.unsampled(started, &res.Receipt)
	if r.kept.stdout != nil {
		e.Stdout, e.StdoutMissing = r.kept.stdout.Bytes()
	}
	if r.kept.stderr != nil {
		e.Stderr, e.StderrMissing = r.kept.stderr.Bytes()
	}
	_ = m.history.Append(e) // reports its error; a command that has run has a result even so
}

// remember adds the end of p to the history, unless it is there.
func (p *Process) remember(end processRecord) {
	s := p.s
	s.mu.Lock()
	resolved := s.record.Resolved
	s.mu.Unlock()
	e := s.m.entry(s.key, resolved, end.Args)
	e.Box, e.Process, e.Key = end.Box, p.id, end.Key
	e.StartedAt, e.EndedAt, e.Result = end.StartedAt, end.EndedAt, *end.Result
	e.Memory = s.unsampled(end.StartedAt, &end.Result.Receipt)
	_ = s.m.history.Append(e) // reports its error
}

// rememberProbe counts what a probe in box has used.
func (p *Process) rememberProbe(kind history.Probe, box string, started time.Time, res engine.Result) {
	s := p.s
	s.mu.Lock()
	resolved := s.record.Resolved
	s.mu.Unlock()
	e := s.m.entry(s.key, resolved, nil)
	e.Box, e.Process, e.Probe = box, p.id, kind
	e.StartedAt, e.EndedAt, e.Result = started.Round(0), time.Now().Round(0), res
	_ = s.m.history.Append(e) // reports its error
}

// entry returns an entry of session key with as much of args as its profile keeps.
func (m *Manager) entry(key Key, r policy.Resolved, args []string) history.Entry {
	e := history.Entry{Tenant: key.Tenant, Session: key.ID, Profile: r.Profile, User: r.Labels[userLabel]}
	for _, key := range m.options.MetricLabels {
		if value, ok := r.Labels[key]; ok {
			if e.Labels == nil {
				e.Labels = map[string]string{}
			}
			e.Labels[key] = value
		}
	}
	switch m.policy.Keep(r).Argv {
	case policy.KeepFull:
		e.Argv = shownArgs(args, maxHistoryArgs)
	case policy.KeepProgram:
		e.Argv = shownArgs(args[:min(1, len(args))], maxHistoryArgs)
	}
	return e
}

// ActorIn is who c is to tenant.
func (c Caller) ActorIn(tenant string) string {
	if c.Tenant != "" && c.Tenant != tenant { // for example an administrator
		return c.Tenant + "/" + c.Actor
	}
	return c.Actor
}

// History returns what ran and has ended, newest first, and the Before of a query for more; 0: there is
// no more. A session without
// entries must exist, or the error is ErrNotFound; one with entries may have been removed.
func (m *Manager) History(q history.Query) (list []history.Entry, next uint64, err error) {
	list, next, err = m.history.List(q)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the history: %w", err)
	}
	if len(list) == 0 && q.Session != "" {
		if _, err := m.find(Key{q.Tenant, q.Session}); err != nil && !m.hasHistory(q) {
			return nil, 0, err
		}
	}
	return list, next, nil
}

// hasHistory reports whether the session of q has any entry.
func (m *Manager) hasHistory(q history.Query) bool {
	list, next, err := m.history.List(history.Query{Tenant: q.Tenant, Session: q.Session, Limit: 1})
	return err != nil || len(list) > 0 || next > 0
}

// Usage returns what ran has used, by tenant and whatever else q tells apart. The lives of boxes are
// counted up to some seconds ago.
func (m *Manager) Usage(q history.UsageQuery) ([]history.Usage, error) {
	m.countForUsage()
	list, err := m.history.Usage(q)
	if err != nil {
		return nil, fmt.Errorf("reading the usage: %w", err)
	}
	return list, nil
}

// UsageTotals returns what was used since ever, by tenant, profile and Options.MetricLabels.
func (m *Manager) UsageTotals() []history.Totals { return m.history.Totals() }

// checkBudget refuses to start anything for a tenant that has used up what it may use on one day. What runs
// counts when it ends.
func (m *Manager) checkBudget(tenant string) error {
	if !m.policy.HasBudget(tenant) {
		return nil
	}
	used := m.history.Today(tenant)
	return m.policy.CheckBudget(tenant, policy.Budget{CPU: spec.Duration(used.CPU), Execs: used.Execs + used.Processes, Written: spec.Size(used.Written)})
}
