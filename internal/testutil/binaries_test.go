package testutil

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// besideInit are the programs that belong beside boxd-init.
func besideInit(boxdInit string) []string {
	dir := filepath.Dir(boxdInit)
	return []string{filepath.Join(dir, "boxd-agent"), filepath.Join(dir, "boxd-unpacker")}
}

// TestBinariesAreStatic: all but boxd run from sealed memory files where there are no libraries, and
// users copy them to machines without a compiler.
func TestBinariesAreStatic(t *testing.T) {
	boxd, boxdInit := BuildBinaries(t)
	for _, path := range append(besideInit(boxdInit), boxd, boxdInit) {
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

// TestBinariesAreOfOneVersion: otherwise they refuse to work together. The version may be that of an
// earlier commit.
func TestBinariesAreOfOneVersion(t *testing.T) {
	boxd, boxdInit := BuildBinaries(t)
	first, second := output(t, boxd, "version"), output(t, boxdInit, "version")
	version := strings.TrimSpace(second)
	if version == "" || version == "dev" || strings.Fields(first)[1] != version {
		t.Errorf("boxd: %q, boxd-init: %q: want one version, stamped by the Makefile", first, second)
	}
	for _, path := range besideInit(boxdInit) {
		if got := strings.TrimSpace(output(t, path, "version")); got != version {
			t.Errorf("%s: %q, boxd-init: %q: want one version", path, got, version)
		}
	}
}

func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v", program, args, err)
	}
	return string(out)
}
