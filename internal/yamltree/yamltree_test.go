package yamltree

import (
	"errors"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

func TestRead(t *testing.T) {
	other := errors.New("not what was expected")
	var syntax yaml.Error
	for name, c := range map[string]struct {
		text string
		use  func(*ast.File) error
		ok   func(error) bool
	}{
		"fine":   {"a: 1", func(f *ast.File) error { return nil }, func(err error) bool { return err == nil }},
		"syntax": {"a: [", func(f *ast.File) error { return nil }, func(err error) bool { return errors.As(err, &syntax) }},
		"use":    {"a: 1", func(f *ast.File) error { return other }, func(err error) bool { return errors.Is(err, other) }},
		"panic":  {"a: 1", func(f *ast.File) error { panic("a hole") }, func(err error) bool { return err != nil && err.Error() == "the parser panics: a hole" }},
	} {
		if err := Read([]byte(c.text), c.use); !c.ok(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
