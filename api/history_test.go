package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

func TestHistory(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	labels := apitypes.Labels{"user": "ada"}
	for _, id := range []string{"a", "b"} {
		if _, err := c.Ensure(ctx, apitypes.SessionRequest{ID: id, SessionSpec: apitypes.SessionSpec{Labels: labels}}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 {
		if _, err := c.Exec(ctx, "a", apitypes.ExecRequest{Argv: []string{"sh", "-c", fmt.Sprint("exit ", n)}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.ExecStream(ctx, "b", apitypes.ExecRequest{Argv: []string{"echo", "x"}}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	h, err := c.History(ctx, client.HistoryOptions{Session: "a", Limit: 2})
	if err != nil || len(h.Execs) != 2 || *h.Execs[0].ExitCode != 2 || h.Next == 0 {
		t.Fatalf("%+v, %v", h, err)
	}
	if e := h.Execs[0]; e.Tenant != DefaultTenant || e.Session != "a" || e.Profile != "default" || e.Actor == "" || e.Request == "" || e.Verdict != "exited" || e.Argv[2] != "exit 2" {
		t.Errorf("%+v", e)
	}
	h, err = c.History(ctx, client.HistoryOptions{Session: "a", Limit: 2, Before: h.Next})
	if err != nil || len(h.Execs) != 1 || *h.Execs[0].ExitCode != 0 || h.Next != 0 {
		t.Errorf("%+v, %v", h, err)
	}
	for _, tc := range []struct {
		o    client.HistoryOptions
		want int
	}{
		{client.HistoryOptions{}, 4},
		{client.HistoryOptions{Session: "b", Output: true}, 1},
		{client.HistoryOptions{Since: "1h"}, 4},
		{client.HistoryOptions{Until: "1h"}, 0},
		{client.HistoryOptions{Verdicts: []string{"oom", "exited"}}, 4},
		{client.HistoryOptions{Verdicts: []string{"oom"}}, 0},
	} {
		if h, err := c.History(ctx, tc.o); err != nil || len(h.Execs) != tc.want {
			t.Errorf("%+v: %d, %v", tc.o, len(h.Execs), err)
		}
	}
	for query, field := range map[string]string{"verdict=odd": "verdict", "since=odd": "since", "until=-1h": "until", "limit=1001": "limit", "limit=x": "limit", "before=-1": "before", "output=odd": "output"} {
		if p := f.problem("GET", "/v1/execs?"+query, adminToken, ""); p.Code != apitypes.CodeInvalid || p.Field != field {
			t.Errorf("%s: %+v", query, p)
		}
	}
	if p := f.problem("GET", "/v1/sessions/none/execs", adminToken, ""); p.Code != apitypes.CodeSessionNotFound {
		t.Errorf("%+v", p)
	}
	// Another tenant sees nothing of it.
	if p := f.problem("GET", "/v1/sessions/a/execs", viewerToken, ""); p.Code != apitypes.CodeSessionNotFound {
		t.Errorf("%+v", p)
	}
	if err := c.Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if h, err := c.History(ctx, client.HistoryOptions{Session: "a"}); err != nil || len(h.Execs) != 3 {
		t.Errorf("removed: %+v, %v", h, err)
	}
}

func TestUsage(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) { o.MetricLabels = []string{"user", "my-team"} })
	c, ctx := f.client(), t.Context()
	for id, user := range map[string]string{"a": "ada", "b": "ada", "c": "eve"} {
		if _, err := c.Ensure(ctx, apitypes.SessionRequest{ID: id, SessionSpec: apitypes.SessionSpec{Labels: apitypes.Labels{"user": user}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Exec(ctx, id, apitypes.ExecRequest{Argv: []string{"true"}}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := c.TenantUsage(ctx, client.UsageOptions{})
	if err != nil || len(list) != 1 || list[0].Execs != 3 || list[0].User != "" || list[0].Tenant != DefaultTenant {
		t.Errorf("%+v, %v", list, err)
	}
	list, err = c.TenantUsage(ctx, client.UsageOptions{By: []string{"user", "day", "profile"}, From: "2000-01-01"})
	if err != nil || len(list) != 2 || list[0].User != "ada" || list[0].Execs != 2 || list[1].User != "eve" || list[0].Day == "" || list[0].Profile != "default" {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err = c.TenantUsage(ctx, client.UsageOptions{To: "2000-01-01"}); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := c.TenantUsage(ctx, client.UsageOptions{From: "2000-01-02", To: "2000-01-01"}); !isCode(err, apitypes.CodeInvalid) {
		t.Errorf("days in the wrong order: %v", err)
	}
	_, metrics := f.raw("GET", "/metrics", scraperToken, "")
	for _, line := range []string{`boxd_usage_execs_total{label_my_team="",label_user="ada",profile="default",tenant="default"} 2`,
		`boxd_usage_execs_total{label_my_team="",label_user="eve",profile="default",tenant="default"} 1`,
		`boxd_usage_processes_total{label_my_team="",label_user="eve",profile="default",tenant="default"} 0`,
		`boxd_tenant_sessions{label_my_team="",label_user="ada",profile="default",tenant="default"} 2`} {
		if !strings.Contains(string(metrics), line+"\n") {
			t.Errorf("metrics without %s", line)
		}
	}
	for query, field := range map[string]string{"by=odd": "by", "from=yesterday": "from", "to=" + url.QueryEscape("2026-13-01"): "to"} {
		if p := f.problem("GET", "/v1/usage?"+query, adminToken, ""); p.Code != apitypes.CodeInvalid || p.Field != field {
			t.Errorf("%s: %+v", query, p)
		}
	}
}

// TestHistoryOfViewer: what may hold secrets is for those who may run commands.
func TestHistoryOfViewer(t *testing.T) {
	size := spec.Size(1000)
	f := serve(t, func(_ *Options, c *policy.Config) {
		c.Profiles = map[string]policy.ProfileConfig{"default": {KeepOutput: &size}}
	})
	ours, ctx := f.as(operatorToken, ""), t.Context()
	ensure(t, ours, "a")
	if _, err := ours.Exec(ctx, "a", apitypes.ExecRequest{Argv: []string{"echo", "secret"}}); err != nil {
		t.Fatal(err)
	}
	for _, session := range []string{"", "a"} {
		h, err := ours.History(ctx, client.HistoryOptions{Session: session, Output: true})
		if err != nil || len(h.Execs) != 1 || h.Execs[0].Argv[1] != "secret" || string(h.Execs[0].Out()) != "secret\n" {
			t.Errorf("operator: %+v, %v", h, err)
		}
		viewer := f.as(viewerToken, "")
		h, err = viewer.History(ctx, client.HistoryOptions{Session: session})
		if err != nil || len(h.Execs) != 1 {
			t.Fatalf("viewer: %+v, %v", h, err)
		}
		if e := h.Execs[0]; e.Argv != nil || len(e.Out()) > 0 || e.Verdict != "exited" || *e.ExitCode != 0 || e.StartedAt.IsZero() || e.Receipt.Wall == 0 {
			t.Errorf("viewer: %+v", e)
		}
		if _, err := viewer.History(ctx, client.HistoryOptions{Session: session, Output: true}); !isCode(err, apitypes.CodeForbidden) {
			t.Errorf("viewer, output: %v", err)
		}
		if _, err := f.as(scraperToken, "acme").History(ctx, client.HistoryOptions{Session: session, Output: true}); !isCode(err, apitypes.CodeForbidden) {
			t.Errorf("viewer of all tenants, output: %v", err)
		}
	}
}

// TestHistoryIsBounded: an answer has at most 1 MiB of entries and says where the others begin, and only
// so many answers are made at once.
func TestHistoryIsBounded(t *testing.T) {
	size := spec.Size(400 << 10)
	f := serve(t, func(_ *Options, c *policy.Config) {
		c.Profiles = map[string]policy.ProfileConfig{"default": {KeepOutput: &size}}
	})
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	const commands = 5
	for range commands {
		if _, err := c.Exec(ctx, "a", apitypes.ExecRequest{Argv: []string{"sh", "-c", "head -c 500000 /dev/zero"}}); err != nil {
			t.Fatal(err)
		}
	}
	seen, answers := 0, 0
	for o := (client.HistoryOptions{Session: "a", Output: true}); ; answers++ {
		h, err := c.History(ctx, o)
		if err != nil || len(h.Execs) == 0 || len(h.Execs) > 2 {
			t.Fatalf("%d entries, %v", len(h.Execs), err)
		}
		seen += len(h.Execs)
		if o.Before = h.Next; h.Next == 0 {
			break
		}
	}
	if seen != commands || answers < 2 {
		t.Errorf("%d entries in %d answers", seen, answers+1)
	}

	for range f.historyShare.most {
		f.historyShare.takePlace("acme")
	}
	if _, err := f.as(viewerToken, "").History(ctx, client.HistoryOptions{}); !isCode(err, apitypes.CodeTooManyConnections) {
		t.Errorf("too many of a tenant: %v", err)
	}
	if _, err := f.as(viewerToken, "").TenantUsage(ctx, client.UsageOptions{}); !isCode(err, apitypes.CodeTooManyConnections) {
		t.Errorf("too many of a tenant, usage: %v", err)
	}
	if _, err := f.as(strangerToken, "").History(ctx, client.HistoryOptions{}); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	for range maxHistories {
		f.histories <- struct{}{}
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := c.History(short, client.HistoryOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("too many of all tenants: %v", err)
	}
	for range maxHistories {
		<-f.histories
	}
	if _, err := c.History(ctx, client.HistoryOptions{}); err != nil {
		t.Error(err)
	}
}
