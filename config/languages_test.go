package config

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/policy"
)

// TestLanguagesShip: every profile has the languages of languages.yaml, and a configuration
// changes, adds and removes languages in the same form.
func TestLanguagesShip(t *testing.T) {
	c, err := load(t, `
profiles:
  mine:
    extends: execution
    languages:
      bash:
      python:
        command: [python3.12, -I, "{file}"]
      c:
        command: [sh, -c, 'cc -o "$0/a.out" "$1" && shift && exec "$0/a.out" "$@"', "{dir}", "{file}"]
        file: main.c
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.New(c.Policy)
	if err != nil {
		t.Fatal(err)
	}
	for _, profile := range p.Profiles() {
		want := "bash javascript python"
		if profile.Name == "mine" {
			want = "c javascript python"
		}
		if got := strings.Join(slices.Sorted(maps.Keys(profile.CodeLanguages)), " "); got != want {
			t.Errorf("profile %s: %s, want %s", profile.Name, got, want)
		}
	}
	l, file, err := p.Language("mine", "", "x.py")
	if args, env := l.In("/d", file); err != nil || !slices.Equal(args, []string{"python3.12", "-I", "/d/x.py"}) || !slices.Equal(env, []string{"PYTHONUNBUFFERED=1"}) {
		t.Errorf("%q, %q, %v", args, env, err)
	}
}
