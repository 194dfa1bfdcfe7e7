package testutil

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// BuildBinaries returns the paths of boxd and boxd-init under test: those in $BOXD_BIN_DIR if it is
// set; otherwise it builds both, once per test process, with the flags of the Makefile. A package that
// calls it uses [Main], which removes them. $BOXD_INIT names another boxd-init, and the programs beside it.
func BuildBinaries(t testing.TB) (boxd, boxdInit string) {
	t.Helper()
	boxd, boxdInit, err := binariesUnderTest()
	if err != nil {
		t.Fatal(err)
	}
	return boxd, boxdInit
}

func binariesUnderTest() (boxd, boxdInit string, err error) {
	dir := os.Getenv("BOXD_BIN_DIR")
	if dir == "" {
		if dir, err = built.get(); err != nil {
			return "", "", fmt.Errorf("building boxd and boxd-init: %w", err)
		}
	}
	boxd, boxdInit = filepath.Join(dir, "boxd"), filepath.Join(dir, "boxd-init")
	if path := os.Getenv("BOXD_INIT"); path != "" {
		boxdInit = path
	}
	for _, path := range []string{boxd, boxdInit, filepath.Join(filepath.Dir(boxdInit), "boxd-agent"), filepath.Join(filepath.Dir(boxdInit), "boxd-unpacker")} {
		if _, err := os.Stat(path); err != nil {
			return "", "", fmt.Errorf("binary under test: %w: run make build", err)
		}
	}
	return boxd, boxdInit, nil
}

// Root returns the directory of go.mod above the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("no go.mod above the working directory")
		}
	}
}

var built binaries

// binaries is the directory into which this process has built.
type binaries struct {
	mu   sync.Mutex
	dir  string
	err  error
	done bool
}

func (b *binaries) get() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		b.done = true
		b.dir, b.err = build()
	}
	return b.dir, b.err
}

// removeBinaries deletes what was built.
func removeBinaries() {
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	built.dir, built.err, built.done = "", nil, false
}

// build runs "make build" into a new directory. Only the Makefile has the compiler flags.
func build() (string, error) {
	dir, err := os.MkdirTemp("", "boxd-test-bin-")
	if err != nil {
		return "", err
	}
	if err := makeTarget("build", dir); err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

func makeTarget(target, dir string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	cmd := exec.Command("make", "-s", "-C", root, target, "BIN="+dir)
	cmd.Env = withoutMake(os.Environ())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make %s: %w\n%s", target, err, out)
	}
	return nil
}

// withoutMake drops the variables of an outer make for its sub-makes: the descriptors of its job
// server are not open here.
func withoutMake(env []string) []string {
	var kept []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if name != "MAKEFLAGS" && name != "MFLAGS" && name != "MAKELEVEL" {
			kept = append(kept, kv)
		}
	}
	return kept
}

// BuildContainerd returns the path of boxd-containerd, beside the programs of BuildBinaries.
func BuildContainerd(t testing.TB) string {
	t.Helper()
	return buildBeside(t, "boxd-containerd", "build-containerd")
}

// BuildBench returns the path of boxd-bench, beside the programs of BuildBinaries.
func BuildBench(t testing.TB) string {
	t.Helper()
	return buildBeside(t, "boxd-bench", "build-bench")
}

// buildBeside makes a program of a target of its own, unless it is there.
func buildBeside(t testing.TB, name, target string) string {
	t.Helper()
	boxd, _ := BuildBinaries(t)
	path := filepath.Join(filepath.Dir(boxd), name)
	built.mu.Lock()
	defer built.mu.Unlock()
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := makeTarget(target, filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	return path
}
