package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/session"
)

var update = flag.Bool("update", false, "write docs/openapi.json anew")

const documentPath = "../docs/openapi.json"

func TestOpenAPIDocument(t *testing.T) {
	if *update {
		if err := os.WriteFile(documentPath, Document(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(documentPath)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, Document()) {
		t.Errorf("%s is not what the code says: go test ./api -run OpenAPI -update", documentPath)
	}
	f := serve(t, nil)
	resp, body := f.raw("GET", "/v1/openapi.json", viewerToken, "")
	if resp.StatusCode != 200 || !bytes.Equal(body, want) {
		t.Errorf("served: %d, %d bytes", resp.StatusCode, len(body))
	}
}

// The document has each route, with parameters for its path, and every reference
// leads somewhere.
func TestOpenAPIIsWhole(t *testing.T) {
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Parameters  []struct{ Name, In string }
			Responses   map[string]any
		}
		Components struct{ Schemas map[string]any }
	}
	raw := Document()
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1.") {
		t.Errorf("version %q", doc.OpenAPI)
	}
	ids := map[string]bool{}
	for _, rt := range routes {
		op, ok := doc.Paths[rt.path][strings.ToLower(rt.method)]
		if !ok || op.OperationID != rt.name || ids[rt.name] {
			t.Errorf("%s %s: %+v", rt.method, rt.path, op)
		}
		ids[rt.name] = true
		for _, name := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(rt.path, -1) {
			if !slices.Contains(op.Parameters, struct{ Name, In string }{name[1], "path"}) {
				t.Errorf("%s: no parameter %s", rt.name, name[1])
			}
		}
		if op.Responses["default"] == nil || op.Responses[fmt.Sprint(rt.status)] == nil {
			t.Errorf("%s: responses %v", rt.name, op.Responses)
		}
	}
	for _, rt := range routes {
		for _, code := range rt.refusals() {
			if byCode(code).status >= 500 || byCode(code).status == statusVanished {
				t.Errorf("%s: %s is not about the request", rt.name, code)
			}
		}
	}
	for _, ref := range regexp.MustCompile(`"\$ref": "([^"]*)"`).FindAllStringSubmatch(string(raw), -1) {
		if doc.Components.Schemas[strings.TrimPrefix(ref[1], schemas)] == nil {
			t.Errorf("reference to %s", ref[1])
		}
	}
}

// The document names every value that the packages below have.
func TestEnumsAreWhole(t *testing.T) {
	for _, c := range []struct{ property, file, pattern string }{
		{"Session.state", "../session/view.go", `\bState = "([a-z-]+)"`},
		{"Process.state", "../session/view.go", `ProcessState = "([a-z-]+)"`},
		{"ExecResult.verdict", "../engine/command.go", `Verdict = "([a-z-]+)"`},
		{"Event.type", "../session/events.go", `EventType = "([a-z-]+)"`},
		{"Problem.code", "apitypes/codes.go", `= "(\w+)"`},
	} {
		source, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]bool{}
		for _, v := range enums[c.property] {
			values[fmt.Sprint(v)] = true
		}
		for _, m := range regexp.MustCompile(c.pattern).FindAllStringSubmatch(string(source), -1) {
			// Missed is an answer of its own shape, and a canceled request has none to answer.
			if !values[m[1]] && m[1] != string(session.EventMissed) && m[1] != apitypes.CodeCanceled {
				t.Errorf("%s: %q is missing", c.property, m[1])
			}
			delete(values, m[1])
		}
		for v := range values {
			t.Errorf("%s: there is no %q", c.property, v)
		}
	}
}

// Each code is of one kind, each constant is used, and docs/api.md has the table.
func TestCodes(t *testing.T) {
	source, err := os.ReadFile("apitypes/codes.go")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`= "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		known[m[1]] = true
	}
	var table strings.Builder
	seen := map[string]bool{}
	for _, k := range slices.Concat(kinds, fileKinds) {
		if seen[k.code] || !known[k.code] {
			t.Errorf("%s: twice, or no constant", k.code)
		}
		seen[k.code] = true
		if k.code != apitypes.CodeCanceled { // no client receives it
			fmt.Fprintf(&table, "| `%s` | %d | %s |\n", k.code, k.status, k.title)
		}
	}
	if len(seen) != len(known) {
		t.Errorf("%d kinds, %d constants", len(seen), len(known))
	}
	checkDocument(t, "codes", table.String())
}

// docs/api.md has the table of routes and who may use them.
func TestRoutesAreDocumented(t *testing.T) {
	var table strings.Builder
	for _, rt := range routes {
		who := rt.role.String()
		if rt.open {
			who = "anybody"
		}
		if rt.everyTenant {
			who += " of all tenants"
		}
		fmt.Fprintf(&table, "| %s | `%s` | %s | %s |\n", rt.method, rt.path, who, rt.summary)
	}
	checkDocument(t, "routes", table.String())
}

// checkDocument compares a table between two marks in docs/api.md, or writes it.
func checkDocument(t *testing.T, mark, want string) {
	t.Helper()
	const path = "../docs/api.md"
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+mark+" -->\n", "<!-- end of "+mark+" -->"
	before, rest, ok := strings.Cut(string(doc), begin)
	have, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: no marks %q", path, begin)
	}
	// The head of the table is the document's.
	lines := strings.SplitAfterN(have, "\n", 3)
	if len(lines) < 3 {
		t.Fatalf("%s: %s: no head", path, mark)
	}
	if lines[2] == want {
		return
	}
	if !*update {
		t.Errorf("%s: the table of %s is not what the code says: go test ./api -update", path, mark)
		return
	}
	if err := os.WriteFile(path, []byte(before+begin+lines[0]+lines[1]+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
