package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// setup runs ".ci/setup run" where nothing is installed, with an apt-get that does what
// script says. It returns what setup printed, and the calls of apt-get.
func setup(t *testing.T, script string, env ...string) (text string, calls []string) {
	t.Helper()
	// It looks into /usr/sbin by itself: where that is /usr/bin, all may be there.
	if sbin, err := filepath.EvalSymlinks("/usr/sbin"); err != nil || filepath.Base(sbin) != "sbin" {
		t.Skip("this host has no /usr/sbin of its own, so programs cannot be hidden from setup")
	}
	dir := t.TempDir()
	write := func(name, script string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bash", "sh", "env", "sed", "head", "dirname", "cat", "wc"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"install", "rm", "sleep", "apt-cache", "systemctl"} {
		write(name, "cat >/dev/null </dev/null\n") // nothing
	}
	write("id", "echo 0\n")
	log := filepath.Join(dir, "log")
	write("apt-get", `echo "$*" >>`+log+"\n"+`n=$(wc -l <`+log+")\n"+script)
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bash, "../.ci/setup", "run")
	cmd.Env = append([]string{"PATH=" + dir}, env...)
	out, _ := cmd.CombinedOutput() // it fails in the end: there is no Go
	called, err := os.ReadFile(log)
	if err != nil {
		t.Fatalf("apt-get was not called: %s", out)
	}
	return string(out), strings.Split(strings.TrimSpace(string(called)), "\n")
}

const busy = `echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 77 (unattended-upgr)" >&2
echo "E: Unable to lock directory /var/lib/apt/lists/" >&2
exit 100
`

// A package manager that is busy is waited for, and named once.
func TestSetupWaits(t *testing.T) {
	text, calls := setup(t, `case $n in 1 | 2 | 4) `+busy+`;; esac`)
	if want := "Could not get lock /var/lib/apt/lists/lock. It is held by process 77 (unattended-upgr)"; strings.Count(text, want) != 2 || !strings.Contains(text, "waiting for the package manager, for up to 900 s: "+want) {
		t.Errorf("%s", text)
	}
	if len(calls) != 5 {
		t.Fatalf("calls: %q", calls)
	}
	for i, part := range []string{"Timeout=0 update", "Timeout=10 update", "Timeout=10 update", "Timeout=0 install", "Timeout=10 install"} {
		if !strings.Contains(calls[i], part) {
			t.Errorf("call %d: %q, want %q", i+1, calls[i], part)
		}
	}
}

func TestSetupGivesUp(t *testing.T) {
	text, calls := setup(t, busy, "SETUP_PATIENCE=0")
	if len(calls) != 1 || !strings.Contains(text, "still busy") || !strings.Contains(text, "process 77") {
		t.Errorf("%q: %s", calls, text)
	}
	// Anything else is no reason to wait.
	text, calls = setup(t, "echo 'E: Unable to locate package x' >&2; exit 100")
	if len(calls) != 1 || !strings.Contains(text, "Unable to locate package x") {
		t.Errorf("%q: %s", calls, text)
	}
}
