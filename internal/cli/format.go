package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/template"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

// formatFlags choose how a command prints its answer.
type formatFlags struct {
	json     bool
	format   string
	template *template.Template // of --format
	quiet    bool
}

// registerFormat declares --format, for commands that print objects of the daemon.
func (f *formatFlags) registerFormat(cmd *cobra.Command) {
	parse := func(s string) (err error) {
		if s == "" {
			return errors.New(`must be a template such as "{{.id}}"`)
		}
		f.format = s
		// Shells pass \t and \n on as they are.
		s = strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(s)
		f.template, err = template.New("--format").Option("missingkey=error").Funcs(templateFuncs).Parse(s)
		if err != nil {
			return errors.New(templateError(err))
		}
		return nil
	}
	cmd.Flags().Var(&textValue{"", parse}, "format", "print each object by a Go `TEMPLATE` over the names that --json has, such as '{{.id}} {{.state}}'")
	completeFlag(cmd, "format")
}

// registerQuiet declares -q, for commands that print a list.
func (f *formatFlags) registerQuiet(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print only "+what)
}

// templateFuncs are the functions of docker's templates that make sense here.
var templateFuncs = template.FuncMap{
	"json": func(v any) (string, error) {
		var b strings.Builder
		err := encodeJSON(&b, v, "")
		return strings.TrimSuffix(b.String(), "\n"), err
	},
	"join": func(list []any, separator string) string {
		words := make([]string, len(list))
		for i, v := range list {
			words[i] = fmt.Sprint(v)
		}
		return strings.Join(words, separator)
	},
	"upper": strings.ToUpper,
	"lower": strings.ToLower,
}

// templateError returns the message of err without the prefix of package template.
func templateError(err error) string {
	return strings.TrimPrefix(err.Error(), "template: ")
}

// checkFormat refuses two forms of output at a time.
func (f *formatFlags) checkFormat() error {
	switch {
	case f.json && f.format != "":
		return &engine.FieldError{Field: "--format", Value: spec.Quote(f.format), Rule: "cannot be used together with --json"}
	case f.quiet && (f.json || f.format != ""):
		return &engine.FieldError{Field: "--quiet", Value: "with --json or --format", Rule: "cannot be used together: choose one"}
	}
	return nil
}

// printOne prints one object: as JSON, with the template, or with the function people.
func (a *App) printOne(f *formatFlags, v any, people func(screen) error) error {
	switch {
	case f.json:
		return writeJSON(a.Stdout, v)
	case f.template != nil:
		return f.execute(a.screen(a.Stdout), v)
	}
	return people(a.screen(a.Stdout))
}

// printList prints a list: --json prints doc, -q the id of each element, and without flags people
// prints the list.
func printList[T any](a *App, f *formatFlags, doc any, list []T, id func(T) string, people func(screen) error) error {
	s := a.screen(a.Stdout)
	switch {
	case f.json:
		return writeJSON(a.Stdout, doc)
	case f.template != nil:
		for _, v := range list {
			if err := f.execute(s, v); err != nil {
				return err
			}
		}
		return nil
	case f.quiet:
		for _, v := range list {
			if _, err := fmt.Fprintln(a.Stdout, id(v)); err != nil {
				return err
			}
		}
		return nil
	}
	return people(s)
}

// execute prints v with the template, and a line break.
func (f *formatFlags) execute(s screen, v any) error {
	data, err := templateData(v, s.terminal)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := f.template.Execute(&b, data); err != nil {
		return &engine.FieldError{Field: "--format", Value: spec.Quote(f.format), Rule: templateError(err)}
	}
	b.WriteByte('\n')
	_, err = io.Copy(s, &b)
	return err
}

// templateData returns v with the names that it has in JSON. Fields that JSON omits are present
// and empty, so that only a misspelt name is an error. For a terminal, texts contain no control
// characters.
func templateData(v any, terminal bool) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var data any
	if err := dec.Decode(&data); err != nil {
		return nil, err
	}
	return complete(templateValue(data, terminal), reflect.TypeOf(v)), nil
}

// templateValue replaces each json.Number, which templates cannot compare, by a number.
func templateValue(v any, terminal bool) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		n, _ := v.Float64()
		return n
	case string:
		if terminal && v != "" {
			return printable(v)
		}
	case []any:
		for i := range v {
			v[i] = templateValue(v[i], terminal)
		}
	case map[string]any:
		for key := range v {
			v[key] = templateValue(v[key], terminal)
		}
	}
	return v
}

// complete adds to v, the JSON of a value of type t, what JSON omits: a nil pointer is "", a nil
// list is empty, and objects have all their names.
func complete(v any, t reflect.Type) any {
	pointer := t.Kind() == reflect.Pointer
	if pointer {
		t = t.Elem()
	}
	_, own := reflect.New(t).Interface().(json.Marshaler) // such as a time, which is a string
	switch {
	case own:
	case t.Kind() == reflect.Struct:
		object, _ := v.(map[string]any)
		if object == nil {
			object = map[string]any{}
		}
		for _, field := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
				object[name] = complete(object[name], field.Type)
			}
		}
		return object
	case t.Kind() == reflect.Slice && v == nil:
		return []any{}
	case t.Kind() == reflect.Map && v == nil:
		return map[string]any{}
	}
	if list, ok := v.([]any); ok && t.Kind() == reflect.Slice {
		for i := range list {
			list[i] = complete(list[i], t.Elem())
		}
	}
	switch {
	case v != nil:
		return v
	case !pointer && t.Kind() == reflect.Bool:
		return false
	case !pointer && (t.Kind() == reflect.Int || t.Kind() == reflect.Int64):
		return int64(0)
	}
	return ""
}
