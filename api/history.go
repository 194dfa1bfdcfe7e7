package api

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/session"
	"github.com/boxd/boxd/session/history"
)

// Bounds of one answer about the history.
const (
	defaultHistoryLimit = 100
	maxHistoryLimit     = 1000
	maxHistoryBytes     = 1 << 20 // of entries, as stored
	// maxHistories bounds the answers that are in memory at once, of all tenants.
	maxHistories = 32
)

func (c *call) sessionHistory(key session.Key) error {
	return c.history(history.Query{Tenant: key.Tenant, Session: key.ID})
}

func (c *call) tenantHistory() error { return c.history(history.Query{Tenant: c.listTenant()}) }

// history answers with the entries of q that match the parameters of the request.
func (c *call) history(q history.Query) error {
	output, err := c.historyQuery(&q)
	if err != nil {
		return err
	}
	done, err := c.takeHistory()
	if err != nil {
		return err
	}
	defer done()
	list, next, err := c.s.opt.Sessions.History(q)
	if err != nil {
		return err
	}
	out := apitypes.History{Execs: make([]apitypes.ExecRecord, len(list)), Next: next}
	for i := range list {
		out.Execs[i] = c.recordOf(&list[i], output)
	}
	return c.reply(http.StatusOK, out)
}

// takeHistory takes a place for an answer about the history or the usage, which can be large. It
// waits while other tenants have all of them. The caller calls done when the answer has been sent.
func (c *call) takeHistory() (done func(), err error) {
	if !c.s.historyShare.takePlace(c.who.Tenant) {
		return nil, refuse(apitypes.CodeTooManyConnections, "", "%d answers about the history and usage of this tenant are being sent: wait for one of them", c.s.historyShare.most)
	}
	select {
	case c.s.histories <- struct{}{}:
	case <-c.r.Context().Done():
		c.s.historyShare.freePlace(c.who.Tenant)
		return nil, context.Cause(c.r.Context())
	}
	return func() {
		<-c.s.histories
		c.s.historyShare.freePlace(c.who.Tenant)
	}, nil
}

func (c *call) historyQuery(q *history.Query) (output bool, err error) {
	if q.Since, err = c.queryMoment("since"); err != nil {
		return false, err
	}
	if q.Until, err = c.queryMoment("until"); err != nil {
		return false, err
	}
	known := make([]string, len(verdicts))
	for i, v := range verdicts {
		known[i] = string(v.(engine.Verdict))
	}
	for _, v := range c.values["verdict"] {
		if !slices.Contains(known, v) {
			return false, &engine.FieldError{Field: "verdict", Value: spec.Quote(v), Rule: "must be one of " + strings.Join(known, ", ")}
		}
		q.Verdicts = append(q.Verdicts, v)
	}
	before, err := c.queryInt("before", 0)
	if err != nil {
		return false, err
	}
	limit, err := c.queryInt("limit", 0)
	if err != nil {
		return false, err
	}
	if limit > maxHistoryLimit {
		return false, &engine.FieldError{Field: "limit", Value: c.query("limit"), Rule: "must be at most 1000: ask for more with before"}
	}
	if limit == 0 {
		limit = defaultHistoryLimit
	}
	q.Before, q.Limit, q.Bytes = uint64(before), int(limit), maxHistoryBytes
	output, err = c.queryBool("output")
	if output && c.who.Role < Operator {
		return false, refuse(apitypes.CodeForbidden, "output", "output: role %s may not see what commands wrote: %s may; leave it out", c.who.Role, Operator)
	}
	return output, err
}

// recordOf returns e for the caller: command lines and output, which may hold secrets, are for those who
// may run commands.
func (c *call) recordOf(e *history.Entry, output bool) apitypes.ExecRecord {
	r := apitypes.ExecRecord{
		ID: e.Seq, Tenant: e.Tenant, Session: e.Session, Box: e.Box, Process: e.Process, Profile: e.Profile, Actor: e.Actor, Request: e.Request,
		Argv: e.Argv, StartedAt: e.StartedAt, EndedAt: e.EndedAt, ExitCode: e.Result.Exit(), Signal: linux.SignalName(e.Result.Signal),
		Verdict: string(e.Result.Verdict), Limit: e.Result.Limit, Receipt: receiptOf(&e.Result.Receipt),
	}
	if c.who.Role < Operator {
		r.Argv = nil
	}
	if output {
		r.Stdout, r.StdoutBase64 = textOrBytes(e.Stdout)
		r.Stderr, r.StderrBase64 = textOrBytes(e.Stderr)
		r.StdoutMissing, r.StderrMissing = (*apitypes.Missing)(e.StdoutMissing), (*apitypes.Missing)(e.StderrMissing)
	}
	return r
}

// usageParts are the values of the parameter by.
var usageParts = []string{"tenant", "profile", "user", "session", "day"}

// tenantUsage answers with the usage, split by the parts that the request names.
func (c *call) tenantUsage() error {
	q := history.UsageQuery{Tenant: c.listTenant()}
	for _, bound := range []struct {
		name string
		day  *string
	}{{"from", &q.From}, {"to", &q.To}} {
		*bound.day = c.query(bound.name)
		if _, err := time.Parse(time.DateOnly, *bound.day); err != nil && *bound.day != "" {
			return &engine.FieldError{Field: bound.name, Value: spec.Quote(*bound.day), Rule: "must be a day in UTC such as 2006-01-02"}
		}
	}
	if q.To != "" && q.To < q.From {
		return &engine.FieldError{Field: "to", Value: spec.Quote(q.To), Rule: "must not be before from, " + spec.Quote(q.From)}
	}
	for _, part := range c.values["by"] {
		switch part {
		case "tenant": // always
		case "profile":
			q.By.Profile = true
		case "user":
			q.By.User = true
		case "session":
			q.By.Session = true
		case "day":
			q.By.Day = true
		default:
			return &engine.FieldError{Field: "by", Value: spec.Quote(part), Rule: "must be one of " + strings.Join(usageParts, ", ") + "; it may be repeated"}
		}
	}
	done, err := c.takeHistory()
	if err != nil {
		return err
	}
	defer done()
	list, err := c.s.opt.Sessions.Usage(q)
	if err != nil {
		return err
	}
	out := apitypes.UsageList{Usage: make([]apitypes.UsageRow, len(list))}
	for i, u := range list {
		out.Usage[i] = apitypes.UsageRow{
			Tenant: u.Tenant, Profile: u.Profile, User: u.User, Session: u.Session, Day: u.Day, Execs: u.Execs, Processes: u.Processes,
			CPU: apitypes.Duration(u.CPU), Wall: apitypes.Duration(u.Wall), IOReadBytes: u.Read, IOWriteBytes: u.Written,
			SessionTime: float64(u.Lived) / 1000, MemoryGiBSeconds: u.GiBSeconds(),
		}
	}
	return c.reply(http.StatusOK, out)
}
