// Package bench runs "boxd bench" as a user would. What it measures is not judged.
package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/bench/plan"
	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// program returns boxd, with the programs that it needs beside it.
func program(t *testing.T) string {
	testutil.RequireRoot(t)
	boxd, _ := testutil.BuildBinaries(t)
	testutil.BuildBench(t)
	return boxd
}

func status(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// TestReport: the rows have the names that scripts rely on, with figures; the page is written; a report
// compared with itself has no regression, and one that is slower has.
func TestReport(t *testing.T) {
	boxd := program(t)
	dir := t.TempDir()
	only, want := "exec,create", []string{"exec.bare", "exec.warm", "exec.captured", "create.cold"}
	if testutil.Full() {
		only += ",knob,inside,rate,zygote,process,engines,memory,daemon,relay,langbot,scale"
		want = append(want, "knob.ns.user", "knob.seccomp", "knob.mount.idmapped", "knob.box.writable-root", "knob.audit", "knob.relay", "inside.getpid", "inside.fork", "inside.loopback", "inside.write-mount",
			"exec.daemon", "rate.lib4", "rate.lib4-free", "rate.daemon4", "rate.daemon4-free", "zygote.python", "process.boxd", "process.boxd-pool", "memory.idle", "relay.bulk", "relay.echo", "langbot.exec", "langbot.new", "engine.native.create", "scale.clients.8")
	}
	page := filepath.Join(dir, "page.html")
	var messages bytes.Buffer
	cmd := exec.Command(boxd, "bench", "-n", "10", "--only", only, "--json", "--html", page)
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, messages.String())
	}
	measured := filepath.Join(dir, "measured.json")
	if err := os.WriteFile(measured, out, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := report.Read(measured)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range want {
		row := r.Row(name)
		switch {
		case row == nil:
			t.Errorf("no row %s", name)
		case row.Skipped != "" || row.P50 <= 0 || row.Lo > row.P50 || row.P50 > row.Hi:
			t.Errorf("%s: %q, %v in %v to %v", name, row.Skipped, row.P50, row.Lo, row.Hi)
		}
	}
	if warm := r.Row("exec.warm"); warm != nil && (warm.Ratio <= 0 || len(warm.Samples) != 10 || len(warm.BareSamples) != 10) {
		t.Errorf("exec.warm: %+v", warm)
	}
	// Of what the host may not have: that it is told.
	for _, row := range r.Rows {
		if len(row.Samples) == 0 && row.Skipped == "" {
			t.Errorf("%s has neither figures nor a reason: %+v", row.Name, row)
		}
	}
	if html, err := os.ReadFile(page); err != nil || !bytes.Contains(html, []byte("<svg")) || bytes.Contains(html, []byte("src=")) {
		t.Errorf("the page: %d bytes, %v", len(html), err)
	}

	// The samples of a noisy host prove nothing of a comparison: these are as steady as can be.
	steady := func(name string, factor float64) string {
		for _, row := range r.Rows {
			for i := range row.Samples {
				row.Samples[i] = factor * row.P50
			}
			for i := range row.BareSamples {
				row.BareSamples[i] = row.BareP50
			}
		}
		text, err := json.Marshal(r)
		path := filepath.Join(dir, name)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	before, after := steady("before.json", 1), steady("after.json", 3)
	for _, c := range []struct {
		files  []string
		status int
		says   string
	}{
		{[]string{before, before}, 0, "same"}, {[]string{before, after}, plan.StatusRegression, "WORSE"},
		{[]string{before, page}, plan.StatusFailed, "not a report"}, {[]string{before, dir + "/none"}, plan.StatusFailed, "no such file"},
		{[]string{before, after, "--threshold", "900"}, 0, "within the threshold"}, {[]string{before, after, "--threshold", "-1"}, 125, "--threshold"},
	} {
		out, err := exec.Command(boxd, append([]string{"bench", "compare"}, c.files...)...).CombinedOutput()
		if status(err) != c.status || !strings.Contains(string(out), c.says) {
			t.Errorf("compare %q: %v: %s", c.files, err, out)
		}
	}
}

// TestRefusals: what cannot be measured is refused before anything is made.
func TestRefusals(t *testing.T) {
	boxd := program(t)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-n", "3"}, "--samples"}, {[]string{"--only", "none"}, "--only"}, {[]string{"surplus"}, "surplus"},
		{[]string{"--init", "/nonexistent"}, "/nonexistent"}, {[]string{"compare", "one"}, "compare"},
	} {
		out, err := exec.Command(boxd, append([]string{"bench"}, c.args...)...).CombinedOutput()
		if status(err) != 125 || !strings.Contains(string(out), c.says) || strings.Count(strings.TrimSpace(string(out)), "\n") > 0 {
			t.Errorf("%q: %v: %s", c.args, err, out)
		}
	}
	if out, err := exec.Command(boxd, "bench", "--list").Output(); err != nil || !slices.Contains(strings.Fields(string(out)), "knob") {
		t.Errorf("--list: %v: %s", err, out)
	}
}

// TestInterrupted: a run that is interrupted leaves nothing; testutil.Main looks for mounts, cgroups and
// processes.
func TestInterrupted(t *testing.T) {
	boxd := program(t)
	for _, section := range []string{"create", "daemon", "inside"} {
		cmd := exec.Command(boxd, "bench", "-n", "2000", "--only", section)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches the whole group
		messages, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(messages)
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, section) {
			t.Errorf("%q, %v", line, err)
		}
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
			t.Error(err)
		}
		rest, _ := lines.ReadString(0)
		if err := cmd.Wait(); status(err) != plan.StatusFailed || !strings.Contains(rest, "interrupt") {
			t.Errorf("%s: %v: %s", section, err, rest)
		}
	}
	if left, _ := filepath.Glob("/run/boxd-bench-*"); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}
