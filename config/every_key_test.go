package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine/spec"
)

// sample returns a text for a value of t that differs from every default, and the value.
func sample(t *testing.T, typ reflect.Type) (text string, want any) {
	t.Helper()
	switch indirect(typ) {
	case reflect.TypeFor[string]():
		return "some-text", "some-text"
	case reflect.TypeFor[bool]():
		return "true", true
	case reflect.TypeFor[int]():
		return "77", 77
	case reflect.TypeFor[int64]():
		return "77", int64(77)
	case reflect.TypeFor[float64]():
		return "7.5", 7.5
	case reflect.TypeFor[spec.Size]():
		return "77M", spec.Size(77 << 20)
	case reflect.TypeFor[spec.Duration]():
		return "77s", seconds77
	case reflect.TypeFor[[]rules.Inject]():
		return "{host: a.example, header: X-Key, value_from: {file: /x}}", []rules.Inject{{Host: "a.example", Header: "X-Key", ValueFrom: rules.Source{File: "/x"}}}
	case reflect.TypeFor[[]spec.Zygote]():
		return "{name: a, command: [python3], preload: [json], match: true, spares: 7}", []spec.Zygote{{Name: "a", Command: []string{"python3"}, Preload: []string{"json"}, Match: true, Spares: 7}}
	case reflect.TypeFor[[]MCPMount]():
		return "{source: /a, target: /b, read_only: true}", []MCPMount{{"/a", "/b", true}}
	case reflect.TypeFor[[]MCPVolume]():
		return "{name: a, target: /b, size: 77M, read_only: true}", []MCPVolume{{"a", "/b", 77 << 20, true}}
	case reflect.TypeFor[[]string]():
		return "x", []string{"x"}
	}
	t.Fatalf("no sample of %v: a key of a new type", typ)
	return "", nil
}

var seconds77 = spec.Duration(77e9)

// find returns the field of c with the key path, in which NAME stands for any name.
func find(v reflect.Value, path string) reflect.Value {
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Map {
			v = v.MapIndex(reflect.ValueOf(name))
			continue
		}
		for f := range fields(v.Type()) {
			if f.name == name {
				v = v.FieldByIndex(f.index)
				break
			}
		}
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v
}

// asYAML writes a key and its value in one line of each depth.
func asYAML(path, text string) string {
	var out strings.Builder
	names := strings.Split(path, ".")
	for i, name := range names {
		fmt.Fprintf(&out, "%s%s:", strings.Repeat("  ", i), name)
		if i < len(names)-1 {
			out.WriteString("\n")
		}
	}
	return out.String() + " " + text + "\n"
}

// TestEveryKey sets each key alone, in the file and in the environment: exactly that
// field of the configuration changes.
func TestEveryKey(t *testing.T) {
	for _, k := range keys() {
		text, want := sample(t, k.typ)
		inFile := text
		if indirect(k.typ).Kind() == reflect.Slice {
			inFile = "[" + text + "]"
		}
		c, err := load(t, asYAML(k.path, inFile), nil)
		if err != nil {
			t.Errorf("%s: %v", k.path, err)
			continue
		}
		if got := find(reflect.ValueOf(c), k.path).Interface(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s in the file: %v, want %v", k.path, got, want)
		}
		if k.env == "" {
			continue
		}
		byEnv, err := load(t, "", map[string]string{k.env: text})
		if err != nil || !reflect.DeepEqual(byEnv, c) {
			t.Errorf("%s: %+v, %v; want what the file gives", k.env, byEnv, err)
		}
		// The environment goes before the file.
		both, err := load(t, asYAML(k.path, inFile), map[string]string{k.env: text})
		if err != nil || !reflect.DeepEqual(both, c) {
			t.Errorf("%s and file: %+v, %v", k.env, both, err)
		}
		find(reflect.ValueOf(&c).Elem(), k.path).Set(find(reflect.ValueOf(Default()), k.path))
		if !reflect.DeepEqual(c, Default()) {
			t.Errorf("%s changes more than itself: %+v", k.path, c)
		}
	}
}

// TestEveryKeyMisspelt: a letter too many is an error that names the right key.
func TestEveryKeyMisspelt(t *testing.T) {
	for _, k := range keys() {
		if strings.HasSuffix(k.path, ".NAME") {
			continue // any name will do
		}
		text, _ := sample(t, k.typ)
		at := strings.LastIndex(k.path, ".") + 1
		name := k.path[at:]
		_, err := load(t, asYAML(k.path[:at]+name[:1]+"_"+name[1:], text), nil)
		if err == nil || !strings.Contains(err.Error(), "unknown key") {
			t.Errorf("%s misspelt: %v, want an unknown key", k.path, err)
			continue
		}
		if len(name) > 4 && !strings.Contains(err.Error(), fmt.Sprintf("did you mean %q", k.path)) {
			t.Errorf("%s misspelt: %v, want a hint", k.path, err)
		}
	}
}
