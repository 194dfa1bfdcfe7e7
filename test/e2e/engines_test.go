package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// engineEnv are the variables with which daemons of the tests choose what builds their boxes; none: the
// native engine.
var engineEnv []string

// isolation is that of the boxes. A test that writes profiles of its own has to name it there.
var isolation = spec.IsolationNamespaces

// onEngine runs the short form with daemons whose boxes another engine builds, in full the long form as well. It
// leaves out what the engine does not do (engine.Differences).
func onEngine(t *testing.T, env []string, without ...string) {
	t.Helper()
	tests := maps.Clone(shortForm)
	if testutil.Full() {
		maps.Copy(tests, longForm)
	}
	for _, name := range without {
		delete(tests, name)
	}
	engineEnv = env
	defer func() { engineEnv = nil }()
	t.Run("on", func(t *testing.T) { // ends when those that run in parallel have ended, too
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			t.Run(name, tests[name])
		}
	})
}

// shortForm are the tests that every engine has to pass besides package engine/conformance: sessions and their
// TTLs, commands and terminals, managed processes whose output outlives the daemon, files, limits as
// programs see them, the network and published ports.
var shortForm = map[string]func(*testing.T){
	"engine": func(t *testing.T) {
		d := startDaemon(t)
		d.says(0, "", "exec", "s", "--", "true")
		got := d.run("sessions", "show", "s", "--format", "BOXD_ENGINES={{.engine}} {{.isolation}}")
		if want := engineEnv[0] + " " + isolation; strings.TrimSpace(got.stdout) != want {
			t.Errorf("the box was built by %v, want %s", got, want)
		}
	},
	"lost": func(t *testing.T) { // with a reason, and there again when it is used
		d := startDaemon(t)
		d.says(0, "", "exec", "s", "--", "sh", "-c", "echo kept > file")
		box := strings.TrimSpace(d.run("sessions", "show", "s", "--format", "{{.box}}").stdout)
		if isolation == spec.IsolationGVisor {
			d.killIn(box, "runsc-sandbox\x00")
		} else {
			d.killInit(box)
		}
		d.awaitFailed("s")
		if got := d.run("sessions", "show", "s", "--format", "{{.reason}}"); !strings.Contains(got.stdout, box) {
			t.Errorf("no reason: %v", got)
		}
		d.says(0, "kept\n", "exec", "s", "--", "cat", "file")
		if got := d.run("sessions", "show", "s", "--format", "{{.state}} {{.isolation}}"); got.stdout != "running "+isolation+"\n" {
			t.Errorf("after the next use: %v", got)
		}
	},
	"state": TestDaemonKeepsState, "killed": TestDaemonKilled, "ttl": TestRetain, "terminal": TestTerminalCommand,
	"bytes": TestAttachPassesBytesUntouched, "processes": TestProcesses, "copies": TestCopy,
	"watch": TestWatchInBox, "limits": TestSessionSeesItsLimits, "network": TestNetwork, "ports": TestPublishedPorts,
}

// longForm are more of them, of which the launcher does nearly everything.
var longForm = map[string]func(*testing.T){
	"tree": TestCopyTree, "ratchet": TestNetworkRatchet, "readiness": TestReadiness, "volumes": TestNamedVolumes,
	"published": TestPublishedRatchet, "sensitive": TestSensitive, "history": TestHistory, "images": TestDaemonPulls,
}

func TestOnOCI(t *testing.T) {
	testutil.RequireProgram(t, "runc")
	onEngine(t, []string{"BOXD_ENGINES=oci"})
}

// TestOnGVisor has the whole short form only in full: these boxes take longer to build.
func TestOnGVisor(t *testing.T) {
	runsc := testutil.Runsc(t)
	without := []string{"terminal", "limits", "volumes", "sensitive"} // the last two attach volumes to running boxes
	if !testutil.Full() {
		without = append(without, "state", "ttl", "processes", "copies", "watch", "ports")
	}
	config := filepath.Join(t.TempDir(), "boxd.yaml")
	if err := os.WriteFile(config, []byte("profiles: {default: {isolation: gvisor}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	isolation = spec.IsolationGVisor
	defer func() { isolation = spec.IsolationNamespaces }()
	onEngine(t, []string{"BOXD_ENGINES=oci", "BOXD_OCI_GVISOR=" + runsc, "BOXD_CONFIG=" + config}, without...)
}

// TestEngines: sessions of one daemon have boxes of several engines, by profile, by request and by what
// works at that moment, and keep them over the death of the daemon.
func TestEngines(t *testing.T) {
	testutil.RequireProgram(t, "runc")
	config := filepath.Join(t.TempDir(), "boxd.yaml") // before the daemon, which reads it once more in its clean-up
	d := newDaemon(t)
	runc := filepath.Join(testutil.ReachableDir(t, "/run"), "runc") // only root can write there
	path, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(runc, program, 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("engines: [oci, native]\noci: {runtime: %s}\nprofiles:\n  own: {engines: [native]}\n  hard: {isolation: gvisor}\n", runc)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d.flags = append(d.flags, "--config", config)
	d.start()
	built := func(session, want, reason string) {
		t.Helper()
		got := d.run("sessions", "show", session, "--format", "{{.engine}} {{.isolation}}: {{.engine_reason}}")
		if !strings.HasPrefix(got.stdout, want+" namespaces: ") || !strings.Contains(got.stdout, reason) {
			t.Errorf("%s: %v, want %s, %s", session, got, want, reason)
		}
	}
	d.says(0, "", "exec", "a", "--", "sh", "-c", "echo kept > file")
	d.says(0, "", "exec", "b", "--profile", "own", "--", "true")
	d.says(0, "", "exec", "c", "--engine", "native", "--", "true")
	built("a", "oci", "the first of oci, native")
	built("b", "native", "the only engine")
	built("c", "native", "the only engine")
	if got := d.run("status"); !strings.Contains(got.stdout, "engine oci namespaces") || !strings.Contains(got.stdout, "engine native namespaces") {
		t.Errorf("%v", got)
	}
	d.wantNoBox(d.run("exec", "x", "--profile", "hard", "--", "true"), "native: has no isolation gvisor", "oci: ")
	d.wantNoBox(d.run("exec", "x", "--engine", "containerd", "--", "true"), "engine", `"containerd"`)

	// Its program goes: the next box is native, the old one is not touched. The session has its workspace
	// whichever engine builds its box.
	if err := os.Rename(runc, runc+".away"); err != nil {
		t.Fatal(err)
	}
	d.says(0, "kept\n", "exec", "a", "--", "cat", "file")
	built("a", "oci", "the first of oci, native")
	d.says(0, "", "exec", "d", "--", "true")
	built("d", "native", "oci: ")
	d.kill()
	d.start()
	d.says(0, "kept\n", "exec", "a", "--", "cat", "file")
	built("a", "oci", "the first of oci, native")
	d.wantNoBox(d.run("exec", "e", "--engine", "oci", "--", "true"), "oci: ", "runc")
	d.killInit(strings.TrimSpace(d.run("sessions", "show", "a", "--format", "{{.box}}").stdout))
	d.awaitFailed("a")
	d.says(0, "kept\n", "exec", "a", "--", "cat", "file")
	built("a", "native", "oci: ")

	if err := os.Rename(runc+".away", runc); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); d.run("exec", "e", "--engine", "oci", "--", "true").status != 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the engine does not come back")
		}
	}
	built("e", "oci", "the only engine")
}

// awaitFailed waits until the loss of a session's box was noticed.
func (d *daemon) awaitFailed(session string) {
	d.t.Helper()
	for end := time.Now().Add(patience); d.run("sessions", "show", session, "--format", "{{.state}}").stdout != "failed\n"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			d.t.Fatalf("session %s does not fail", session)
		}
	}
}

// wantNoBox checks that a call was refused with one line that has all of parts.
func (d *daemon) wantNoBox(got result, parts ...string) {
	d.t.Helper()
	if got.status != 125 || strings.Count(got.stderr, "\n") != 1 {
		d.t.Errorf("%v, want a refusal", got)
	}
	for _, part := range parts {
		if !strings.Contains(got.stderr, part) {
			d.t.Errorf("%v, want %q in it", got, part)
		}
	}
}
