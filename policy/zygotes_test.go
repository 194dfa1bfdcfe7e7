package policy

import (
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

// A profile has the zygotes of the one it extends, or a list of its own; a list that no box could have is
// refused with its place in the configuration.
func TestZygotes(t *testing.T) {
	py := spec.Zygote{Name: "py", Command: []string{"python3"}, Match: true}
	p := newPolicy(t, Config{Profiles: map[string]ProfileConfig{
		"warm": {Zygotes: &[]spec.Zygote{py}},
		"heir": {Extends: "warm"},
		"cold": {Extends: "warm", Zygotes: &[]spec.Zygote{}},
	}})
	for profile, want := range map[string]int{"warm": 1, "heir": 1, "cold": 0, "default": 0, "gone": 0} {
		r := Resolved{Profile: profile}
		if got := p.Zygotes(r); len(got) != want {
			t.Errorf("%s: %+v", profile, got)
		}
	}
	for rule, list := range map[string][]spec.Zygote{
		"profiles.a.zygotes[0].name":     {{Command: []string{"python3"}}},
		"profiles.a.zygotes[0].command":  {{Name: "py"}},
		"profiles.a.zygotes[1].name":     {py, {Name: "py", Command: []string{"python3"}}},
		"profiles.a.zygotes[0].spares":   {{Name: "py", Command: []string{"python3"}, Spares: 9}},
		"profiles.a.zygotes[0].preload[": {{Name: "py", Command: []string{"python3"}, Preload: []string{"os; evil"}}},
	} {
		_, err := New(Config{Profiles: map[string]ProfileConfig{"a": {Zygotes: &list}}})
		if err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%+v: %v, want %s", list, err, rule)
		}
	}
}
