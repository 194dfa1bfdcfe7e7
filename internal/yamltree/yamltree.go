// Package yamltree reads YAML that strangers wrote: files of users, and of boxes.
package yamltree

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Read parses text and calls use with its tree. A panic of either becomes an error: malformed
// input has made the parser panic, and left holes in its tree that make readers of it panic,
// in one version after another (goccy/go-yaml issues 191, 479, 718 and 890).
func Read(text []byte, use func(*ast.File) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the parser panics: %v", r)
		}
	}()
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return err
	}
	return use(file)
}
