package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
)

func lang(file string, command ...string) LanguageConfig {
	return LanguageConfig{Command: &command, File: &file}
}

func TestLanguages(t *testing.T) {
	p := newPolicy(t, Config{
		Languages: map[string]LanguageConfig{"a": lang("main.a", "run-a", "{file}"), "b": lang("main.b", "run-b", "-I{dir}", "{file}", "{}")},
		Profiles: map[string]ProfileConfig{
			"more":  {Languages: map[string]LanguageConfig{"c++": lang("main.cc", "sh", "-c", `c++ -o "$0/out" "$1"`, "{dir}", "{file}"), "a": {Command: ptr([]string{"newer-a", "{file}"}), Env: ptr([]string{"HOME={dir}"})}}},
			"less":  {Extends: "more", Languages: map[string]LanguageConfig{"b": {}, "never": {}}},
			"twins": {Languages: map[string]LanguageConfig{"a2": lang("x.a", "a2", "{file}")}},
		},
	})
	for _, c := range []struct{ profile, name, file, want string }{
		{"default", "a", "", `["run-a" "/d/main.a"] [] main.a`},
		{"langbot", "b", "other.x", `["run-b" "-I/d" "/d/other.x" "{}"] [] other.x`},
		{"more", "a", "", `["newer-a" "/d/main.a"] ["HOME=/d"] main.a`},
		{"more", "", "x.cc", `["sh" "-c" "c++ -o \"$0/out\" \"$1\"" "/d" "/d/x.cc"] [] x.cc`},
		{"less", "a", "", `["newer-a" "/d/main.a"] ["HOME=/d"] main.a`},
		{"less", "b", "", `language "b": must be one of profile "less": a, c++`},
		{"less", "B", "", `must be one of`},
		{"twins", "", "y.a", `language "": must be given, because "y.a" can be a or a2`},
		{"twins", "", "y.b", `["run-b" "-I/d" "/d/y.b" "{}"] [] y.b`},
		{"default", "", "y", "no language has files like"},
		{"default", "", "", "must be one of"},
		{"default", "a", "x/y", "name of a file"},
		{"default", "a", strings.Repeat("x", 256), "255 bytes"},
		{"gone", "a", "", "no longer configured"},
	} {
		l, file, err := p.Language(c.profile, c.name, c.file)
		args, env := l.In("/d", file)
		got := fmt.Sprintf("%q %q %s", args, env, file)
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != c.want || err != nil && !strings.Contains(got, c.want) {
			t.Errorf("%s, %q, %q: %s, want %s", c.profile, c.name, c.file, got, c.want)
		}
	}
	// Profiles share nothing with the policy, nor with one another.
	for _, profile := range p.Profiles() {
		delete(profile.CodeLanguages, "a")
	}
	if _, _, err := p.Language("default", "a", ""); err != nil {
		t.Error(err)
	}
	if _, _, err := p.Language("default", "c++", ""); err == nil {
		t.Error("a profile's language reached another")
	}
}

func TestBadLanguages(t *testing.T) {
	many := map[string]LanguageConfig{}
	for i := range maxLanguages + 1 {
		many[fmt.Sprint(i)] = lang("f", "x", "{file}")
	}
	long := strings.Repeat("x", maxLanguageText+1)
	for i, c := range []struct {
		languages   map[string]LanguageConfig
		field, text string
	}{
		{many, "profiles.p.languages", "at most 64"},
		{map[string]LanguageConfig{"C": lang("f", "x", "{file}")}, "profiles.p.languages", "a-z"},
		{map[string]LanguageConfig{"": lang("f", "x", "{file}")}, "profiles.p.languages", "a name must be"},
		{map[string]LanguageConfig{"c": {File: ptr("f")}}, "profiles.p.languages.c.command", "a program"},
		{map[string]LanguageConfig{"c": lang("f", "", "{file}")}, "profiles.p.languages.c.command", "a program"},
		{map[string]LanguageConfig{"c": lang("f", "x")}, "profiles.p.languages.c.command", `"{file}" or "{dir}"`},
		{map[string]LanguageConfig{"c": lang("f", slices.Repeat([]string{"{file}"}, 65)...)}, "profiles.p.languages.c.command", "64"},
		{map[string]LanguageConfig{"c": lang("f", "{file}", long)}, "profiles.p.languages.c.command", "4096 bytes"},
		{map[string]LanguageConfig{"c": lang("f", "{file}", "a\x00")}, "profiles.p.languages.c.command", "NUL"},
		{map[string]LanguageConfig{"c": lang("", "{file}")}, "profiles.p.languages.c.file", "main.py"},
		{map[string]LanguageConfig{"c": lang("a/b", "{file}")}, "profiles.p.languages.c.file", "without"},
		{map[string]LanguageConfig{"c": lang("..", "{file}")}, "profiles.p.languages.c.file", "name of a file"},
		{map[string]LanguageConfig{"c": {Command: ptr([]string{"{file}"}), File: ptr("f"), Env: ptr([]string{"A"})}}, "profiles.p.languages.c.env", "KEY=VALUE"},
		{map[string]LanguageConfig{"c": {Command: ptr([]string{"{file}"}), File: ptr("f"), Env: ptr(slices.Repeat([]string{"A="}, 65))}}, "profiles.p.languages.c.env", "64"},
	} {
		_, err := New(Config{Profiles: map[string]ProfileConfig{"p": {Languages: c.languages}}})
		bad, ok := err.(*engine.FieldError)
		if !ok || bad.Field != c.field || !strings.Contains(bad.Error(), c.text) {
			t.Errorf("%d: %v, want %s: %s", i, err, c.field, c.text)
		}
	}
}
