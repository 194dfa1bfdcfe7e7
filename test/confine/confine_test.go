// Package confine tries to break out of what boxd serve confines itself to.
package confine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// probe builds the program without cgo, as boxd is.
func probe(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command("go", "build", "-o", program, "./probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the probe: %v\n%s", err, out)
	}
	return program
}

// run plays a role and returns how each attempt ended.
func run(t *testing.T, program, role string) map[string]string {
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
	results := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, result, _ := strings.Cut(strings.TrimSpace(line), "\t")
		results[name] = result
	}
	return results
}

// TestNoWayOut: what a daemon that was taken over tries is refused, with the errno of the
// filter or of Landlock and not for another reason; what it needs works, and unconfined
// the attempts would succeed.
func TestNoWayOut(t *testing.T) {
	program := probe(t)
	for name, result := range run(t, program, "control") {
		if result != "done" {
			t.Errorf("%s: %s unconfined: its refusal proves nothing", name, result)
		}
	}
	results := run(t, program, "confined")
	landlock := results["landlock"]
	delete(results, "landlock")
	if len(results) < 50 {
		t.Fatalf("only %d attempts", len(results))
	}
	for name, result := range results {
		switch result {
		case "ENOSYS", "EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT":
		case "EACCES", "EXDEV": // of Landlock, which says EXDEV to a rename that would lose a restriction
			if landlock == "0" {
				t.Errorf("%s: %s without Landlock", name, result)
			}
		default:
			if landlock != "0" || result != "done" {
				t.Errorf("%s: %s", name, result)
			}
		}
	}
	if landlock == "0" {
		t.Log("this kernel has no Landlock: files were tried against the filter alone")
	}
}
