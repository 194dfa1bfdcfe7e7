package config

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/yamltree"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// ParseError says where and why a configuration file cannot be read.
type ParseError struct {
	File         string
	Line, Column int // from 1; 0: unknown
	What         string
	Err          error // of the value's own type, or nil
}

func (e *ParseError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.What)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.What)
}

func (e *ParseError) Unwrap() error { return e.Err }

// parse sets c to the YAML in b, on top of the values that it has. It understands only
// mappings, lists and scalars: with anchors, tags and merge keys, a reader would not see
// the value where it stands.
func parse(file string, b []byte, c *Config) error {
	return parseInto(file, b, reflect.ValueOf(c).Elem())
}

// parseInto is parse for any struct whose fields have yaml tags.
func parseInto(file string, b []byte, dst reflect.Value) error {
	p := yamlParser{file: file}
	err := yamltree.Read(b, func(f *ast.File) error {
		seen := false
		for _, doc := range f.Docs {
			if doc.Body == nil || doc.Body.Type() == ast.NullType || doc.Body.Type() == ast.CommentType {
				continue
			}
			if seen {
				return p.fail(doc.Body, "a second document: there can be only one")
			}
			seen = true
			if err := p.mapping(doc.Body, "", dst); err != nil {
				return err
			}
		}
		return nil
	})
	if _, ours := errors.AsType[*ParseError](err); err == nil || ours {
		return err
	}
	// The library's error is folded into one line.
	e := &ParseError{File: file, What: "is not YAML: " + err.Error()}
	if at, ok := errors.AsType[yaml.Error](err); ok {
		e.What = at.GetMessage()
		if tk := at.GetToken(); tk != nil {
			e.at(tk)
		}
	}
	e.What = oneline.Fold(e.What)
	return e
}

type yamlParser struct{ file string }

func (p yamlParser) fail(n ast.Node, format string, args ...any) error {
	e := &ParseError{File: p.file, What: fmt.Sprintf(format, args...)}
	if tk := n.GetToken(); tk != nil {
		e.at(tk)
	}
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			e.Err = err
		}
	}
	return e
}

func (e *ParseError) at(tk *token.Token) {
	if tk.Position != nil {
		e.Line, e.Column = tk.Position.Line, tk.Position.Column
	}
}

// mapping sets the fields of dst, a struct, or the entries of dst, a map, from n.
func (p yamlParser) mapping(n ast.Node, path string, dst reflect.Value) error {
	var pairs []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.NullNode: // "key:" with nothing but comments in it
		return nil
	case *ast.MappingNode:
		pairs = m.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{m}
	default:
		return p.fail(n, "%s: must have keys of its own", name(path))
	}
	seen := make(map[string]bool, len(pairs))
	for _, pair := range pairs {
		key, err := p.word(pair.Key, "a key in "+name(path))
		if err != nil {
			return err
		}
		if seen[key] {
			return p.fail(pair.Key, "key %q: is here twice", join(path, key))
		}
		seen[key] = true
		set := p.field
		if dst.Kind() == reflect.Map {
			set = p.entry
		}
		if err := set(pair, path, key, dst); err != nil {
			return err
		}
	}
	return nil
}

// field sets the field of dst that is called key.
func (p yamlParser) field(pair *ast.MappingValueNode, path, key string, dst reflect.Value) error {
	var names []string
	for f := range fields(dst.Type()) {
		if f.name == key {
			return p.value(pair.Value, join(path, key), dst.FieldByIndex(f.index))
		}
		names = append(names, f.name)
	}
	return p.fail(pair.Key, "unknown key %q%s", join(path, key), hint(key, path, names))
}

// entry puts the value of pair into dst, a map.
func (p yamlParser) entry(pair *ast.MappingValueNode, path, key string, dst reflect.Value) error {
	if dst.IsNil() {
		dst.Set(reflect.MakeMap(dst.Type()))
	}
	value := reflect.New(dst.Type().Elem()).Elem()
	if err := p.value(pair.Value, join(path, key), value); err != nil {
		return err
	}
	dst.SetMapIndex(reflect.ValueOf(key), value)
	return nil
}

// value sets dst, of any kind, to n. A null leaves it as it is.
func (p yamlParser) value(n ast.Node, path string, dst reflect.Value) error {
	target := indirect(dst.Type())
	switch {
	case n.Type() == ast.NullType:
		return nil
	case isScalar(target):
		text, err := p.word(n, path)
		if err != nil {
			return err
		}
		if err := setScalar(dst, text); err != nil {
			return p.fail(n, "%s: %v", path, err)
		}
		return nil
	case target.Kind() == reflect.Slice:
		return p.list(n, path, dst)
	}
	return p.mapping(n, path, dst)
}

// list sets dst, a slice of strings or of structs, or a pointer to one.
func (p yamlParser) list(n ast.Node, path string, dst reflect.Value) error {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return p.fail(n, `%s: must be a list, such as ["a", "b"]`, path)
	}
	list := reflect.New(indirect(dst.Type()))
	list.Elem().Set(reflect.MakeSlice(list.Type().Elem(), len(seq.Values), len(seq.Values)))
	for i, v := range seq.Values {
		at := fmt.Sprintf("%s[%d]", path, i)
		if to := list.Elem().Index(i); to.Kind() == reflect.Struct {
			if v.Type() == ast.NullType {
				return p.fail(v, "%s: must have keys of its own", at)
			}
			if err := p.mapping(v, at, to); err != nil {
				return err
			}
			continue
		}
		word, err := p.word(v, at)
		if err != nil {
			return err
		}
		list.Elem().Index(i).SetString(word)
	}
	if dst.Kind() == reflect.Pointer {
		dst.Set(list)
	} else {
		dst.Set(list.Elem())
	}
	return nil
}

// word returns the text of a scalar as it was written: 0660 stays 0660.
func (p yamlParser) word(n ast.Node, path string) (string, error) {
	switch s := n.(type) {
	case *ast.StringNode:
		return s.Value, nil
	case *ast.LiteralNode:
		return s.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, nil
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		return "", p.fail(n, "%s: anchors, aliases, tags and merge keys are not understood: write the value out", path)
	}
	return "", p.fail(n, "%s: must be a single value", path)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// name returns path for people; the file as a whole has none.
func name(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}
