package cli

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
)

// TestNet: a table for people, with what was refused, and with --follow what happens after it in this session.
func TestNet(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	d := newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		switch r.what {
		case "GET /v1/sessions/s":
			send(w, apitypes.Session{ID: "s", Tenant: "t"})
		case "GET /v1/events":
			for _, data := range []string{
				`{"type":"network-connection","tenant":"t","session":"s","details":{"state":"denied","name":"a\u001b.example","port":80,"rule":"default"}}`,
				`{"type":"network-connection","tenant":"t","session":"s","details":{"state":"ended","address":"203.0.113.7","port":443,"in":123456789,"out":1}}`,
				`{"type":"network-connection","tenant":"t","session":"s","details":{"state":"denied","unreported":7}}`,
				`{"type":"network-connection","tenant":"other","session":"s","details":{"state":"open"}}`,
				`{"type":"network-connection","tenant":"t","session":"s2","details":{"state":"open"}}`,
				`{"type":"exec-ended","tenant":"t","session":"s"}`,
			} {
				io.WriteString(w, "id: 5\nevent: x\ndata: "+data+"\n\n")
			}
		case "GET /v1/sessions/s/network":
			send(w, apitypes.Network{On: true,
				Live:   []apitypes.Connection{{Name: "pypi.org", Port: 443, Address: "203.0.113.9:443", In: 2048, Allowed: true, Rule: "pypi.org", Start: start}},
				Recent: []apitypes.Connection{{Name: "bad.example", Port: 80, Rule: "default", Reason: "no rule allows it", Start: start}},
				Denied: []apitypes.Denial{{Kind: "network", What: "bad.example:80", Rule: "default", Count: 12}}})
		default:
			t.Error(r.what)
		}
	})
	table := "STARTED\tSTATE\tDESTINATION\tADDRESS\tIN\tOUT\tRULE\tREASON\n" +
		"2026-01-02 03:04:05\topen\tpypi.org:443\t203.0.113.9\t2 KiB\t0 B\tpypi.org\t-\n" +
		"2026-01-02 03:04:05\tdenied\tbad.example:80\t-\t0 B\t0 B\tdefault\tno rule allows it\n\n" +
		"REFUSED\tTIMES\tRULE\nnetwork bad.example:80\t12\tdefault\n"
	if status, v := d.call("net", "s"); status != 0 || v.stdout.String() != table {
		t.Errorf("status %d, %q, %q", status, v.stdout.String(), v.stderr.String())
	}
	status, v := d.call("net", "-f", "s")
	lines, ok := strings.CutPrefix(v.stdout.String(), table)
	if want := " denied a?.example:80 rule=default\n ended 203.0.113.7:443 address=203.0.113.7 in=123456789 out=1\n denied unreported=7\n"; status != 125 || !ok || withoutTimes(lines) != want {
		t.Errorf("status %d, %q, %q", status, v.stdout.String(), v.stderr.String())
	}
	if status, v := d.call("net", "-f", "--json", "s"); status != 125 || strings.Count(v.stdout.String(), "\n") != 4 {
		t.Errorf("--json: status %d, %q, %q", status, v.stdout.String(), v.stderr.String())
	}
}

// withoutTimes cuts date and time from the beginning of each line.
func withoutTimes(text string) (out string) {
	for line := range strings.Lines(text) {
		out += line[min(len(line), len(time.DateTime)):]
	}
	return out
}

// TestExplain: --explain prints what was refused while the command ran.
func TestExplain(t *testing.T) {
	result := apitypes.ExecResult{ExitCode: number(7), Status: 7, Verdict: "exited", Denied: []apitypes.Denial{{Kind: "network", What: "bad\x1b.example:80", Rule: "default", Count: 1}, {Kind: "network", What: "…", Count: 2},
		{Kind: "network", What: "10.0.0.5:443", Rule: "address", Count: 1}}}
	d := newFakeDaemon(t, func(_ seen, w http.ResponseWriter) { stream(w, apitypes.ExecEvent{Result: &result}) })
	for flag, want := range map[string]string{"--explain": "denied: network bad?.example:80 (rule: default), 1 time\ndenied: network … (rule: -), 2 times\n" +
		"denied: network 10.0.0.5:443 (rule: address), 1 time; allow it with \"10.0.0.5:443\" in network_rules.allow of the profile\n", "--keep-background": ""} {
		if status, v := d.call("exec", "s", flag, "--", "x"); status != 7 || v.stderr.String() != want {
			t.Errorf("%s: status %d, %q", flag, status, v.stderr.String())
		}
	}
}

// TestExplainPrivate: boxd run says how to allow a private address, and only that.
func TestExplainPrivate(t *testing.T) {
	v := newInvocation(t)
	v.explain([]apitypes.Denial{
		{Kind: "network", What: "10.0.0.5:443", Rule: "address", Count: 1}, {Kind: "network", What: "169.254.169.254:80", Rule: "address", Count: 1},
		{Kind: "network", What: "10.0.0.6:25", Rule: "smtp", Count: 1}, {Kind: "network", What: "[fd00::1]:22", Rule: "address", Count: 2},
	}, "allow it with --allow ADDR:PORT")
	want := "denied: network 10.0.0.5:443 (rule: address), 1 time; allow it with --allow 10.0.0.5:443\n" +
		"denied: network 169.254.169.254:80 (rule: address), 1 time\n" +
		"denied: network 10.0.0.6:25 (rule: smtp), 1 time\n" +
		"denied: network [fd00::1]:22 (rule: address), 2 times; allow it with --allow [fd00::1]:22\n"
	if v.stderr.String() != want {
		t.Errorf("%q, want %q", v.stderr.String(), want)
	}
}
