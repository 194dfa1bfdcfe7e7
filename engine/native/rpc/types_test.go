package rpc

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestTypes: no two requests have the same number.
func TestTypes(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{} // by number
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(v.Names[0].Name, "Type") {
				return true
			}
			number, ok := v.Values[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: write its number", v.Names[0].Name)
				return true
			}
			if other := names[number.Value]; other != "" {
				t.Errorf("%s and %s have the number %s", other, v.Names[0].Name, number.Value)
			}
			names[number.Value] = v.Names[0].Name
			return true
		})
	}
	if len(names) < 20 {
		t.Errorf("only %v were found", names)
	}
}
