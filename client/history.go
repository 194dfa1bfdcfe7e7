package client

import (
	"context"
	"net/url"
	"strconv"

	"github.com/boxd/boxd/api/apitypes"
)

// HistoryOptions select commands and managed processes that have ended. The zero value selects
// the last 100.
type HistoryOptions struct {
	Session string // empty: all of the tenant
	// Since and Until bound the time of the end: a duration before now, such as "1h", or a time
	// in RFC 3339; empty: no bound.
	Since, Until string
	Verdicts     []string // any of these, such as "timeout"; empty: all
	Output       bool     // with the output that is kept
	Limit        int      // 1 to 1000; 0: 100
	Before       uint64   // only lower IDs, such as History.Next of the last answer; 0: all
}

// History returns what ran, newest first. Next of the answer is not 0 if there is more.
func (c *Client) History(ctx context.Context, o HistoryOptions) (apitypes.History, error) {
	path := []string{"execs"}
	if o.Session != "" {
		path = []string{"sessions", o.Session, "execs"}
	}
	q := url.Values{"verdict": o.Verdicts}
	if o.Since != "" {
		q.Set("since", o.Since)
	}
	if o.Until != "" {
		q.Set("until", o.Until)
	}
	if o.Output {
		q.Set("output", "1")
	}
	if o.Limit != 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	if o.Before != 0 {
		q.Set("before", strconv.FormatUint(o.Before, 10))
	}
	return fetch[apitypes.History](ctx, c, call{method: "GET", path: path, query: q})
}

// UsageOptions select and group usage. The zero value is everything that is kept, by tenant.
type UsageOptions struct {
	From, To string   // first and last day, such as "2006-01-02" in UTC; empty: no bound
	By       []string // what to tell apart: "profile", "user", "session" and "day"
}

// TenantUsage returns what everything that has ended has used: processor time, wall time and bytes.
func (c *Client) TenantUsage(ctx context.Context, o UsageOptions) ([]apitypes.UsageRow, error) {
	q := url.Values{"by": o.By}
	if o.From != "" {
		q.Set("from", o.From)
	}
	if o.To != "" {
		q.Set("to", o.To)
	}
	l, err := fetch[apitypes.UsageList](ctx, c, call{method: "GET", path: []string{"usage"}, query: q})
	return l.Usage, err
}
