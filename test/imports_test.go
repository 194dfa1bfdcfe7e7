package test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// listed is what "go list -json" says about a package.
type listed struct {
	ImportPath                string
	Imports, Deps             []string
	TestImports, XTestImports []string
}

// name is the path below the module.
func (p listed) name() string { return strings.TrimPrefix(p.ImportPath, module) }

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		r, ok := find(p.name())
		if !ok {
			t.Errorf("package %q has no row in %q: decide what it may import, and why", p.name(), "test/imports_test.go")
			continue
		}
		for _, imp := range p.Imports {
			checkImport(t, importer{r, p.name(), false}, imp)
		}
		for _, imp := range p.TestImports {
			checkImport(t, importer{r, p.name(), true}, imp)
		}
		external := r
		if e, ok := exampleRow(p.name()); ok {
			external.may = slices.Concat(r.may, e.may)
		}
		for _, imp := range p.XTestImports {
			checkImport(t, importer{external, p.name(), true}, imp)
		}
		for _, n := range never {
			if n.pkg == p.name() {
				checkNever(t, p, n.dep, n.why)
			}
		}
	}
}

// TestTables: a row for something that no longer exists would mislead.
func TestTables(t *testing.T) {
	pkgs := packages(t)
	for _, r := range rows {
		isTree := strings.HasSuffix(r.pkg, "/...") // may be empty
		if !isTree && !slices.ContainsFunc(pkgs, func(p listed) bool { return r.pkg == p.name() }) {
			t.Errorf("rows: %q: no such package", r.pkg)
		}
	}
	for _, e := range exampleRows {
		if !slices.ContainsFunc(pkgs, func(p listed) bool { return e.pkg == p.name() }) {
			t.Errorf("exampleRows: %q: no such package", e.pkg)
		}
	}
	for _, n := range never {
		if !slices.ContainsFunc(pkgs, func(p listed) bool { return n.pkg == p.name() }) {
			t.Errorf("never: %q: no such package", n.pkg)
		}
	}
	for _, f := range foreigns {
		if !slices.ContainsFunc(pkgs, func(p listed) bool { return importsAny(p, f.path) }) {
			t.Errorf("foreigns: nobody imports %q", f.path)
		}
	}
}

func importsAny(p listed, path string) bool {
	return slices.ContainsFunc(slices.Concat(p.Imports, p.TestImports, p.XTestImports), func(imp string) bool {
		return match(path+"/...", imp)
	})
}

// importer is a package, or its tests.
type importer struct {
	row  row
	name string
	test bool
}

func (i importer) String() string {
	if i.test {
		return "a test of " + i.name
	}
	return i.name
}

func checkImport(t *testing.T, by importer, imp string) {
	if own, ok := strings.CutPrefix(imp, module); ok {
		switch {
		case own == by.name: // an external test
		case own == "internal/testutil":
			if !by.test && !strings.HasPrefix(by.name, "test/") && !matchAny(by.row.may, own) {
				t.Errorf("%s imports %s: that is for _test.go files, and for packages whose row says so", by, own)
			}
		case !slices.Contains(base, own) && !matchAny(by.row.may, own):
			t.Errorf("%s imports %s: not in its row (%s)", by, own, by.row.why)
		}
		return
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return // the standard library
	}
	for _, f := range foreigns {
		if match(f.path+"/...", imp) {
			if !matchAny(f.by, by.name) && !(by.test && matchAny(f.tests, by.name)) {
				t.Errorf("%s imports %s: only %s may (%s)", by, imp, strings.Join(f.by, ", "), f.why)
			}
			return
		}
	}
	t.Errorf("%s imports %s: no row in foreigns says who may, and why", by, imp)
}

func checkNever(t *testing.T, p listed, dep, why string) {
	for _, d := range p.Deps {
		if match(dep+"/...", d) {
			t.Errorf("%s links %s: %s", p.name(), d, why)
			return
		}
	}
}

// find returns the row of a package; an exact one goes before a tree.
func find(name string) (row, bool) {
	for _, exact := range []bool{true, false} {
		for _, r := range rows {
			if exact && r.pkg == name || !exact && match(r.pkg, name) {
				return r, true
			}
		}
	}
	return row{}, false
}

// exampleRow returns the row of a package in exampleRows.
func exampleRow(name string) (row, bool) {
	i := slices.IndexFunc(exampleRows, func(r row) bool { return r.pkg == name })
	if i < 0 {
		return row{}, false
	}
	return exampleRows[i], true
}

func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, name) })
}

// match understands "a", "a/..." (a and all below) and "..." (all).
func match(pattern, name string) bool {
	tree, ok := strings.CutSuffix(pattern, "...")
	if !ok {
		return pattern == name
	}
	return strings.HasPrefix(name+"/", tree)
}

// makefile returns what "make target" prints.
func makefile(t *testing.T, target string) string {
	t.Helper()
	out, err := exec.Command("make", "-s", "-C", "..", "--no-print-directory", target).Output()
	if err != nil {
		t.Fatalf("make %s: %v", target, err)
	}
	return strings.TrimSpace(string(out))
}

// packages lists the module as the Makefile tests it.
func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-tags="+makefile(t, "print-testtags"), "-json=ImportPath,Imports,Deps,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
}

func TestMatch(t *testing.T) {
	cases := []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true},
		{"a", "a/b", false},
		{"a/...", "a", true},
		{"a/...", "a/b", true},
		{"a/...", "ab", false},
		{"...", "a/b", true},
	}
	for _, c := range cases {
		if got := match(c.pattern, c.name); got != c.want {
			t.Errorf("match(%q, %q) = %v, want %v", c.pattern, c.name, got, c.want)
		}
	}
}
