package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// setup runs ".ci/setup run" as if nothing were installed, with script as apt-get. It returns the output
// of setup, and the calls of apt-get.
func setup(t *testing.T, script string, env ...string) (text string, calls []string) {
	t.Helper()
	// It also looks into /usr/sbin. If that is /usr/bin, everything may be installed.
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
	out, _ := cmd.CombinedOutput() // it fails at the end, because there is no Go
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

// setup waits for a busy package manager, and names it once.
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
	// It does not wait for anything else.
	text, calls = setup(t, "echo 'E: Unable to locate package x' >&2; exit 100")
	if len(calls) != 1 || !strings.Contains(text, "Unable to locate package x") {
		t.Errorf("%q: %s", calls, text)
	}
}
