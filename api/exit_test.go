package api

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/policy"
)

// end is how a command ended, in whichever document it stands.
type end struct {
	ExitCode *int   `json:"exit_code"`
	Signal   string `json:"signal"`
}

// endOf reads an end from a JSON object, which must name the exit code even if there is
// none.
func endOf(t *testing.T, where string, doc any) end {
	t.Helper()
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	var e end
	if err := json.Unmarshal(raw, &e); err != nil || !bytes.Contains(raw, []byte(`"exit_code":`)) {
		t.Errorf("%s: %v in %s", where, err, raw)
	}
	return e
}

// The exit code of a command that a signal ended is null, with the name of the signal
// beside it, in answers, streams, events and the audit log alike.
func TestEndsHaveOneForm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(path, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	f := serve(t, func(o *Options, _ *policy.Config) { o.Audit = log })
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	sub := f.sessions.Subscribe("", 0)
	defer sub.Close()
	for _, x := range []struct {
		shell string
		code  *int
		name  string
	}{
		{"exit 3", ptr(3), ""},
		{"kill -9 $$", nil, "SIGKILL"},
		{"kill -15 $$", nil, "SIGTERM"},
	} {
		check := func(where string, doc any) {
			t.Helper()
			e := endOf(t, where, doc)
			if (e.ExitCode == nil) != (x.code == nil) || x.code != nil && *e.ExitCode != *x.code || e.Signal != x.name {
				t.Errorf("%q, %s: %+v, want %v, %q", x.shell, where, e, x.code, x.name)
			}
		}
		one, err := c.Exec(ctx, "a", apitypes.ExecRequest{Shell: x.shell})
		if err != nil {
			t.Fatal(err)
		}
		check("exec", one)
		streamed, err := c.ExecStream(ctx, "a", apitypes.ExecRequest{Shell: x.shell}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		check("streamed exec", streamed)
		if _, err := c.Start(ctx, "a", apitypes.ProcessRequest{ID: "p", Shell: x.shell}); err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for seen["process-exited"] == 0 || seen["exec-ended"] < 2 {
			e := <-sub.C
			if seen[string(e.Type)]++; e.Type == "process-exited" || e.Type == "exec-ended" {
				check("event "+string(e.Type), e.Details)
			}
		}
		p, err := c.Process(ctx, "a", "p")
		if err != nil {
			t.Fatal(err)
		}
		check("process", p)
		if err := c.RemoveProcess(ctx, "a", "p"); err != nil {
			t.Fatal(err)
		}
		lines, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		ends := 0
		for _, line := range bytes.Split(bytes.TrimSpace(lines), []byte("\n")) {
			var entry struct{ Details map[string]any }
			if err := json.Unmarshal(line, &entry); err != nil {
				t.Fatal(err)
			}
			if _, ok := entry.Details["verdict"]; ok {
				ends++
				check("audit", entry.Details)
			}
		}
		if ends != 3 {
			t.Errorf("%q: the audit log has %d ends, want 3: %s", x.shell, ends, lines)
		}
		if err := os.Truncate(path, 0); err != nil { // the next round looks at its own only
			t.Fatal(err)
		}
	}
}
