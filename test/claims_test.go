package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// proseSections are the sections of SECURITY.md that promise nothing; "" is what stands before the first one. In every
// other section each line of text is a claim: a row of a table "| claim | tests |", whose second cell names tests by the
// folder of their package, `test/attack` TestProbes (mknod, devices), TestTerminal; `rootfs` TestDevices. Names in
// parentheses are literals of that folder, such as names of table rows.
var proseSections = []string{"", "Reporting", "Threat model", "What boxd does not protect against"}

// promise finds the words with which a promise would begin that hides in prose.
var promise = regexp.MustCompile(`(?i)\b(never|cannot|can not|must not|may not|refuses?|refused|rejects?|rejected|deny|denies|denied|prevents?|prevented|guarantees?|guaranteed|ensures?|always|impossible)\b`)

const oneTest = `((?:Test|Fuzz)\w+)(?: \(([^()]+)\))?`

var (
	claimRow    = regexp.MustCompile(`^\| (.+) \| (.*) \|$`)
	claimTests  = regexp.MustCompile("^`([a-z0-9/]+)` (" + oneTest + "(?:, " + oneTest + ")*)$")
	claimedTest = regexp.MustCompile(oneTest)
)

// faultsOfClaims is what is wrong with the claims of SECURITY.md. missing says why there is no such test, or is empty.
func faultsOfClaims(text string, missing func(where, test, row string) string) (faults []string, claims int) {
	section := ""
	for line := range strings.SplitSeq(text, "\n") {
		fault := func(what string) { faults = append(faults, what+": "+line) }
		row := claimRow.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "## "):
			section = line[3:]
		case slices.Contains(proseSections, section):
			if word := promise.FindString(line); word != "" {
				fault("a promise (" + word + ") outside of a table of claims")
			}
		case line == "" || strings.HasPrefix(line, "### ") || line == "| claim | tests |" || line == "|---|---|":
		case row == nil:
			fault("a line that is no claim with its tests")
		case !strings.HasSuffix(row[1], ".") || strings.Contains(row[1], ". ") || strings.Contains(row[1], " | "):
			fault("a claim that is not one sentence")
		default:
			claims++
			for group := range strings.SplitSeq(row[2], "; ") {
				m := claimTests.FindStringSubmatch(group)
				if m == nil {
					fault("a claim without tests")
					continue
				}
				for _, test := range claimedTest.FindAllStringSubmatch(m[2], -1) {
					for name := range strings.SplitSeq(test[2], ", ") {
						if why := missing(m[1], test[1], name); why != "" {
							fault(why)
						}
					}
				}
			}
		}
	}
	return faults, claims
}

// TestClaims: each claim of SECURITY.md names tests that exist.
func TestClaims(t *testing.T) {
	faults, claims := faultsOfClaims(read(t, "../SECURITY.md"), missingTest)
	for _, fault := range faults {
		t.Error("SECURITY.md: " + fault)
	}
	if claims < 100 {
		t.Errorf("SECURITY.md: %d claims were found: the test is blind", claims)
	}
}

func TestFaultsOfClaims(t *testing.T) {
	const good, table = "# Security\nText.\n\n## Network\n\n### Part\n", "| claim | tests |\n|---|---|\n"
	for text, want := range map[string]string{
		"| A box cannot. | `test` TestFaultsOfClaims (node_modules, docs/api.md) |\n| It cannot (X). | `test` TestLinks, TestAnchors; `egress` FuzzHead |\n\n": "",
		"A sentence without a test.\n":                                    "a line that is no claim",
		"- An item.\n":                                                    "a line that is no claim",
		"| A box cannot. |\n":                                             "a line that is no claim",
		"| A box cannot. | |\n":                                           "a line that is no claim",
		"| A box cannot. | someone looked |\n":                            "a claim without tests",
		"| A box cannot. | TestLinks |\n":                                 "a claim without tests",
		"| A box cannot. | `test` TestLinks; |\n":                         "a claim without tests",
		"| A box cannot. Nor can it. | `test` TestLinks |\n":              "not one sentence",
		"| A box cannot | `test` TestLinks |\n":                           "not one sentence",
		"| A box cannot. | `test` TestLink |\n":                           "no test TestLink in test",
		"| A box cannot. | `egress` TestLinks |\n":                        "no test TestLinks in egress",
		"| A box cannot. | `no/such` TestLinks |\n":                       "no test TestLinks in no/such",
		"| A box cannot. | `test` TestLinks (no such row) |\n":            `no "no such row" in test`,
		"## Reporting\nA box cannot do that.\n":                           "a promise (cannot)",
		"## What boxd does not protect against\n- boxd never stops it.\n": "a promise (never)",
	} {
		faults, claims := faultsOfClaims(good+table+text, missingTest)
		if want == "" && (len(faults) > 0 || claims != 2) || want != "" && !strings.Contains(strings.Join(faults, "\n"), want) {
			t.Errorf("%q: %d claims, faults %q, want %q", text, claims, faults, want)
		}
	}
}

// missingTest says why there is no such test in a folder or file of the repository, or with row, if that is not empty, no
// such string literal in the folder or below it.
func missingTest(where, test, row string) string {
	dir, file := where, ""
	if strings.HasSuffix(where, ".go") {
		dir, file = filepath.Split(where)
	}
	in := sourceOf(filepath.Clean(dir))
	switch {
	case in.tests[test] == "" || file != "" && in.tests[test] != file:
		return "there is no test " + test + " in " + where
	case row != "" && !in.literals[row]:
		return "there is no " + strconv.Quote(row) + " in " + where
	}
	return ""
}

// source is what the Go files of a folder have: its own tests, with their files, and the string literals of all files
// in it and below it.
type source struct {
	tests    map[string]string
	literals map[string]bool
}

var sources sync.Map // of source, by folder

func sourceOf(dir string) source {
	if s, ok := sources.Load(dir); ok {
		return s.(source)
	}
	s := source{map[string]string{}, map[string]bool{}}
	root := filepath.Join("..", dir)
	filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || dir == "test" && path != root) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, _ := strconv.Unquote(l.Value)
				s.literals[text] = true
			}
			return true
		})
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && strings.HasSuffix(path, "_test.go") && filepath.Dir(path) == root && fn.Recv == nil && fn.Type.Params.NumFields() == 1 {
				s.tests[fn.Name.Name] = filepath.Base(path)
			}
		}
		return nil
	})
	sources.Store(dir, s)
	return s
}
