package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
)

// TestHistory: what ran in real boxes, with its receipt and kept output, is listed after the daemon was killed
// and after its session was removed, and is counted once.
func TestHistory(t *testing.T) {
	config := filepath.Join(t.TempDir(), "boxd.yaml")
	text := fmt.Sprintf("profiles:\n  default: {keep_output: 100, isolation: %[1]s}\n  secret: {keep_argv: none, isolation: %[1]s}\n", isolation)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, "--config", config)
	began := time.Now()
	d.says(7, "out\n", "exec", "--label", "user=ada", "s", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
	lives := time.Now()
	d.run("exec", "s", "--", "sh", "-c", "seq 1 1000; echo the end")
	d.says(0, "x\n", "exec", "--profile", "secret", "quiet", "--", "echo", "x")
	d.says(0, "", "start", "s", "--id", "p", "--", "sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 5")
	d.run("attach", "s", "p") // until it ends
	d.kill()
	d.start()
	d.says(0, "", "sessions", "rm", "quiet")

	receipts := isolation != spec.IsolationGVisor // of more than time
	var h apitypes.History
	list := d.run("history", "--output", "--json")
	if err := json.Unmarshal([]byte(list.stdout), &h); err != nil || len(h.Execs) != 4 {
		t.Fatalf("%v, %v", list, err)
	}
	p, quiet, long, first := h.Execs[0], h.Execs[1], h.Execs[2], h.Execs[3]
	if first.Stdout != "out\n" || first.Stderr != "err\n" || *first.ExitCode != 7 || first.Session != "s" || first.Actor != "uid:0" || (first.Receipt.User != nil) != receipts || first.Receipt.Wall <= 0 {
		t.Errorf("%+v", first)
	}
	if !strings.HasPrefix(long.Stdout, "1\n2\n") || !strings.HasSuffix(long.Stdout, "the end\n") || len(long.Stdout) != 100 || long.StdoutMissing == nil {
		t.Errorf("%+v", long)
	}
	if quiet.Argv != nil || quiet.Profile != "secret" || quiet.Session != "quiet" {
		t.Errorf("%+v", quiet)
	}
	if p.Process != "p" || *p.ExitCode != 5 || receipts && (p.Receipt.User == nil || *p.Receipt.User <= 0) {
		t.Errorf("%+v", p)
	}
	var u apitypes.UsageList
	before := time.Now()
	usage := d.run("usage", "--by", "user", "--json")
	after := time.Now()
	if err := json.Unmarshal([]byte(usage.stdout), &u); err != nil || len(u.Usage) != 2 || u.Usage[0].User != "" || u.Usage[0].Execs != 1 {
		t.Fatalf("%v, %v", usage, err)
	}
	if ada := u.Usage[1]; ada.User != "ada" || ada.Execs != 2 || ada.Processes != 1 || receipts && ada.CPU <= 0 || ada.Wall <= 0 {
		t.Errorf("%+v", ada)
	}
	// Nothing of the life of a box is missing that outlived the daemon, and nothing is counted twice.
	if got := u.Usage[1].SessionTime; got < before.Sub(lives).Seconds() || got > after.Sub(began).Seconds() {
		t.Errorf("session time %v, at least %v, at most %v", got, before.Sub(lives), after.Sub(began))
	}
	if receipts && u.Usage[1].MemoryGiBSeconds <= 0 || u.Usage[0].SessionTime <= 0 {
		t.Errorf("%+v", u.Usage)
	}
	d.says(0, "7\n", "history", "--format", "{{.exit_code}}", "-n", "1", "s", "--until", first.EndedAt.Add(1000).UTC().Format("2006-01-02T15:04:05.999999999Z"))
	d.wantRefused(125, d.run("history", "--verdict", "odd"), "verdict")
	d.wantRefused(125, d.run("history", "none"), "none")
	if text := d.run("history", "s").stdout; strings.Count(text, "\n") != 4 || !strings.Contains(text, "[p] sh -c") {
		t.Errorf("%s", text)
	}
	if text := d.run("usage", "--csv", "--by", "session").stdout; !strings.HasPrefix(text, "tenant,session,execs,") || strings.Count(text, "\n") != 3 {
		t.Errorf("%s", text)
	}
}

// TestRates: what is over a rate is refused with one line that names it, and nothing of it has happened.
func TestRates(t *testing.T) {
	config := filepath.Join(t.TempDir(), "boxd.yaml")
	text := "tenants:\n  default:\n    rates: {execs: 0.001, execs_burst: 2, creates: 0.001}\n"
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, "--config", config)
	d.says(0, "x\n", "exec", "s", "--", "echo", "x")
	d.wantRefused(125, d.run("exec", "r", "--", "true"), `tenant "default": creates: limit 0.001 per second, burst 1: retry in `)
	d.wantRefused(125, d.run("exec", "s", "--", "true"), `tenant "default": execs: limit 0.001 per second, burst 2: retry in `)
	if list := d.run("sessions", "ls", "-q").stdout; list != "s\n" {
		t.Errorf("sessions: %q", list)
	}
	if h := d.run("history", "-q").stdout; h != "1\n" {
		t.Errorf("history: %q", h)
	}
}
