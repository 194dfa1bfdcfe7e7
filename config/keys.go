package config

import (
	"cmp"
	"encoding"
	"fmt"
	"iter"
	"reflect"
	"strconv"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// key is a key of the file with a value of its own.
type key struct {
	path  string // such as "tls.cert" or "tenants.NAME.quotas.cpus"
	env   string // variable; empty for keys below a NAME
	index []int  // of the field in Config; nil below a NAME
	sep   string // between the words of a list in the environment
	typ   reflect.Type
}

// keys lists all keys, in the order of the fields.
func keys() []key { return keysOf(reflect.TypeFor[Config](), "", "", []int{}) }

// keysOf lists the keys of t below the key prefix. env is the name of the variable so far,
// and index that of the field; nil below a NAME.
func keysOf(t reflect.Type, prefix, env string, index []int) []key {
	var all []key
	for f := range fields(t) {
		path, name, at := f.name, cmp.Or(f.env, strings.ToUpper(f.name)), index
		if prefix != "" {
			path = prefix + "." + path
		}
		if env != "" && f.env == "" {
			name = env + "_" + name
		}
		if index != nil {
			at = append(append([]int{}, index...), f.index...)
		}
		switch target := indirect(f.typ); {
		case isScalar(target) || target.Kind() == reflect.Slice:
			k := key{path: path, index: at, sep: cmp.Or(f.sep, ":"), typ: f.typ}
			if index != nil {
				k.env = EnvPrefix + name
			}
			all = append(all, k)
		case target.Kind() == reflect.Map && isScalar(target.Elem()):
			all = append(all, key{path: path + ".NAME", typ: target.Elem()})
		case target.Kind() == reflect.Map:
			all = append(all, keysOf(target.Elem(), path+".NAME", "", nil)...)
		default:
			all = append(all, keysOf(target, path, name, at)...)
		}
	}
	return all
}

// field is a field of a struct that is a key.
type field struct {
	name, env, sep string
	index          []int
	typ            reflect.Type
}

// fields yields the keys of t. It yields those of an inline field as keys of t.
func fields(t reflect.Type) iter.Seq[field] {
	return func(yield func(field) bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			name := strings.TrimSuffix(f.Tag.Get("yaml"), ",omitempty")
			if name == ",inline" {
				for inner := range fields(f.Type) {
					inner.index = append([]int{i}, inner.index...)
					if !yield(inner) {
						return
					}
				}
				continue
			}
			if name != "-" && name != "" && !yield(field{name: name, env: f.Tag.Get("env"), sep: f.Tag.Get("sep"), index: []int{i}, typ: f.Type}) {
				return
			}
		}
	}
}

func indirect(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// isScalar reports whether a value of t is written as one word.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice:
		return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	}
	return true
}

// setScalar sets dst, a scalar or a pointer to one, to the value of text.
func setScalar(dst reflect.Value, text string) error {
	if dst.Kind() == reflect.Pointer {
		fresh := reflect.New(dst.Type().Elem())
		if err := setScalar(fresh.Elem(), text); err != nil {
			return err
		}
		dst.Set(fresh)
		return nil
	}
	if u, ok := dst.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	bad := func(rule string) error { return fmt.Errorf("%s: %s", spec.Quote(text), rule) }
	switch dst.Kind() {
	case reflect.String:
		dst.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return bad("must be true or false")
		}
		dst.SetBool(text == "true")
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return bad("must be a whole number")
		}
		dst.SetInt(n)
	case reflect.Float64:
		// ParseCPUs does not accept -1, which means unlimited.
		if text == "-1" {
			dst.SetFloat(engine.Unlimited)
			return nil
		}
		f, err := spec.ParseCPUs(text)
		if err != nil {
			return bad("must be a decimal number")
		}
		dst.SetFloat(f)
	default:
		panic("config: no way to set a " + dst.Type().String())
	}
	return nil
}
