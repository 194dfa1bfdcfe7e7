package hostile

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/native/rpc"
)

// answers are what only a launcher sends.
var answers = []byte{rpc.TypeHello, rpc.TypeReply, rpc.TypeEvent}

// requests are the types of all requests by the names of their constants, as the source of
// package rpc has them.
func requests(t *testing.T) map[string]byte {
	t.Helper()
	files, err := filepath.Glob("../../engine/native/rpc/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no source of package rpc: %v", err)
	}
	found := map[string]byte{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				for i, name := range v.Names {
					if !strings.HasPrefix(name.Name, "Type") {
						continue
					}
					var n int64
					if i < len(v.Values) {
						if lit, ok := v.Values[i].(*ast.BasicLit); ok {
							n, _ = constant.Int64Val(constant.MakeFromLiteral(lit.Value, lit.Kind, 0))
						}
					}
					if n <= 0 || n > 255 {
						t.Fatalf("%s: %s has no number of its own", file, name.Name)
					}
					if !slices.Contains(answers, byte(n)) {
						found[name.Name] = byte(n)
					}
				}
			}
		}
	}
	return found
}

// TestEveryRequestIsFuzzed: no request is left out of the corpus. That each is also tried on
// purpose is seen in TestHostileClient.
func TestEveryRequestIsFuzzed(t *testing.T) {
	all := requests(t)
	if len(all) < 20 || all["TypeWhere"] != rpc.TypeWhere || all["TypeOutside"] != rpc.TypeOutside {
		t.Fatalf("found %v", all)
	}
	fuzzed := map[byte]bool{}
	for _, f := range (&attacker{}).corpus() {
		fuzzed[f.typ] = true
	}
	for name, typ := range all {
		if fuzzed[typ] == slices.Contains(unfuzzed, typ) {
			t.Errorf("%s: in the corpus: %v", name, fuzzed[typ])
		}
	}
}
