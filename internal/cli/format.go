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
	"github.com/spf13/pflag"
)

// formatFlags choose how the answer of a command is printed.
type formatFlags struct {
	json     bool
	format   string
	template *template.Template // of --format
	quiet    bool
}

// registerFormat declares --format, for commands that print objects of the daemon.
func (f *formatFlags) registerFormat(cmd *cobra.Command) {
	cmd.Flags().Var(f.formatValue(), "format", "print each object by a Go `TEMPLATE` over the names that --json has, such as '{{.id}} {{.state}}'")
	must(cmd.RegisterFlagCompletionFunc("format", cobra.NoFileCompletions))
}

// registerQuiet declares -q, for commands that print a list.
func (f *formatFlags) registerQuiet(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print only "+what)
}

func (f *formatFlags) formatValue() pflag.Value {
	return &textValue{"", func(s string) (err error) {
		if s == "" {
			return errors.New(`must be a template such as "{{.id}}"`)
		}
		f.format = s
		// A shell does not turn \t and \n into what they mean.
		s = strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(s)
		f.template, err = template.New("--format").Option("missingkey=error").Funcs(templateFuncs).Parse(s)
		if err != nil {
			return errors.New(templateError(err))
		}
		return nil
	}}
}

// templateFuncs are those of docker's templates that make sense here.
var templateFuncs = template.FuncMap{
	"json": func(v any) (string, error) {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		err := enc.Encode(v)
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

// templateError is the message of err without the package's own words in front.
func templateError(err error) string {
	return strings.TrimPrefix(err.Error(), "template: ")
}

// checkFormat refuses two ways to print one answer.
func (f *formatFlags) checkFormat() error {
	switch {
	case f.json && f.format != "":
		return &engine.FieldError{Field: "--format", Value: spec.Quote(f.format), Rule: "cannot be used together with --json"}
	case f.quiet && (f.json || f.format != ""):
		return &engine.FieldError{Field: "--quiet", Value: "with --json or --format", Rule: "cannot be used together: choose one"}
	}
	return nil
}

// printOne prints one object: as JSON, by the template, or by people.
func printOne[T any](a *App, f *formatFlags, v T, people func(screen) error) error {
	switch {
	case f.json:
		return writeJSON(a.Stdout, v)
	case f.template != nil:
		return f.execute(a.screen(a.Stdout), v)
	}
	return people(a.screen(a.Stdout))
}

// printList prints a list: doc is what --json prints, id what -q prints of one.
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

// execute prints v by the template, and a line break.
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

// templateData is v under the names that it has in JSON. Fields that JSON leaves out are
// empty, so that a template knows a missing value from a misspelt name. On a terminal
// text has no control characters.
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

// templateValue makes numbers of json.Number, which templates cannot compare.
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

// complete fills in what JSON leaves out of a value of type t: a pointer to nothing is "",
// lists are empty, objects have all their names.
func complete(v any, t reflect.Type) any {
	pointer := t.Kind() == reflect.Pointer
	if pointer {
		t = t.Elem()
	}
	_, own := reflect.New(t).Interface().(json.Marshaler) // such as a time, which is a text
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
