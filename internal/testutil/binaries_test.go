package testutil

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"testing"
)

// TestBinariesAreStatic: boxd-init runs from a sealed memory file in places that
// have no libraries, and both are copied to machines without a compiler.
func TestBinariesAreStatic(t *testing.T) {
	boxd, boxdInit := BuildBinaries(t)
	for _, path := range []string{boxd, boxdInit} {
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				t.Errorf("%s: has a program interpreter: it is dynamically linked", path)
			}
		}
		if libs, _ := f.ImportedLibraries(); len(libs) > 0 {
			t.Errorf("%s: needs libraries %q", path, libs)
		}
		f.Close()
	}
}

// TestBinariesAreOfOneVersion: the two refuse to work together otherwise.
func TestBinariesAreOfOneVersion(t *testing.T) {
	boxd, boxdInit := BuildBinaries(t)
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("make", "-s", "--no-print-directory", "-C", root, "print-version")
	cmd.Env = withoutMake(os.Environ())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	version := bytes.TrimSpace(out)
	if string(version) == "unknown" {
		t.Log("not a git checkout: there is no version to look for")
		return
	}
	version = bytes.TrimSuffix(version, []byte("-dirty")) // a file may have changed since
	for _, path := range []string{boxd, boxdInit} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(data, version) {
			t.Errorf("%s: is not of version %q: run make build", path, version)
		}
	}
}
