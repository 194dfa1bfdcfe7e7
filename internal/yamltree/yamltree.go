// Package yamltree reads untrusted YAML: files that users or boxes have written.
package yamltree

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Read parses text and calls use with its tree. It turns a panic of either into an error:
// in one version after another, malformed input has made the parser panic, or return a tree
// with nil nodes on which its readers panic (goccy/go-yaml issues 191, 479, 718 and 890).
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
