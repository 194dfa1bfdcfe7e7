package test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExamples: go test runs an Example only if it states its output, and an Example
// that makes boxes only in a package of the privileged pass.
func TestExamples(t *testing.T) {
	out, err := exec.Command("git", "-C", "..", "ls-files", "*_test.go").Output()
	if err != nil {
		t.Skipf("listing files: %v", err) // a source tree without its history
	}
	kernel := privileged(t)
	found := map[string]int{}
	for name := range strings.Lines(string(out)) {
		path := filepath.Join("..", strings.TrimSpace(name))
		if _, err := os.Stat(path); err != nil {
			continue // deleted, not committed
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, e := range doc.Examples(file) {
			pkg := filepath.ToSlash(filepath.Dir(strings.TrimSpace(name)))
			found[pkg]++
			if e.Output == "" && !e.EmptyOutput {
				t.Errorf("%s: Example%s has no \"// Output:\" comment, so it never runs", name, e.Name)
			}
			if importsEngine(file) && !slices.Contains(kernel, module+pkg) {
				t.Errorf("%s: Example%s uses an engine or a daemon, but \"make test-root\" does not run the package: its TestMain calls testutil.MainExamples or MainWithExamples", name, e.Name)
			}
		}
	}
	for _, pkg := range []string{"engine", "engine/native", "files", "client"} {
		if found[pkg] == 0 {
			t.Errorf("public package %q has no Example", pkg)
		}
	}
}

// privileged lists the packages that "make test-root" runs.
func privileged(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command(".ci/packages", "kernel")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf(".ci/packages kernel: %v", err)
	}
	return strings.Fields(string(out))
}

// importsEngine says whether an Example of file can make a box.
func importsEngine(file *ast.File) bool {
	return slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
		path := strings.Trim(i.Path.Value, `"`)
		return slices.Contains([]string{module + "engine/native", module + "files", module + "client"}, path)
	})
}
