// Package confine tries to break out of what boxd serve confines itself to.
package confine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

// probe builds the program without cgo, as boxd is. The virtual machine has no Go: there it
// is beside the binaries.
func probe(t *testing.T) string {
	t.Helper()
	if built := filepath.Join(os.Getenv("BOXD_BIN_DIR"), "confine-probe"); filepath.IsAbs(built) {
		if _, err := os.Stat(built); err == nil {
			return built
		}
	}
	program := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command("go", "build", "-o", program, "./probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the probe: %v\n%s", err, out)
	}
	return program
}

// attempt is one line of the probe's: what must refuse it and with which error, and how it
// ended.
type attempt struct{ name, owner, want, result string }

// run plays a role and returns how each attempt ended, and the version of Landlock.
func run(t *testing.T, program, role string) (attempts []attempt, landlock string) {
	t.Helper()
	dir := t.TempDir()
	inside, outside := dir+"/inside", dir+"/outside"
	for _, err := range []error{
		os.Mkdir(inside, 0o700), os.Mkdir(outside, 0o700), os.Symlink(outside, inside+"/link"),
		os.WriteFile(inside+"/file", []byte("x"), 0o600), os.WriteFile(inside+"/away", []byte("x"), 0o600),
		os.WriteFile(outside+"/file", []byte("x"), 0o600), os.WriteFile(outside+"/victim", nil, 0o600), os.WriteFile(outside+"/program", []byte("#!/bin/sh\n"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(program, role, inside, outside).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", role, err, out)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		switch {
		case len(f) == 4:
			attempts = append(attempts, attempt{f[0], f[1], f[2], f[3]})
		case len(f) == 2 && f[0] == "landlock":
			landlock = f[1]
		default:
			t.Fatalf("%s: %q", role, line)
		}
	}
	return attempts, landlock
}

// TestNoWayOut: the filter or Landlock, as expected, refuses everything that an attacker in the daemon
// tries, with the expected error. What the daemon needs works. Unconfined, the attempts would succeed.
func TestNoWayOut(t *testing.T) {
	program := probe(t)
	control, _ := run(t, program, "control")
	if len(control) < 20 {
		t.Fatalf("only %d attempts unconfined", len(control))
	}
	for _, a := range control {
		if a.result != "done" {
			t.Errorf("%s: %s unconfined: its refusal proves nothing", a.name, a.result)
		}
	}
	attempts, landlock := run(t, program, "confined")
	if landlock == "" || len(attempts) < 60 {
		t.Fatalf("only %d attempts with Landlock %q", len(attempts), landlock)
	}
	for _, a := range attempts {
		if a.owner == "Landlock" && landlock == "0" {
			a.want = "done"
		}
		if a.result != a.want {
			t.Errorf("%s: %s, want %s (%s)", a.name, a.result, a.want, a.owner)
		}
	}
	if landlock == "0" {
		t.Log("this kernel has no Landlock: files were tried against the filter alone")
	}
}
