package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// TestTable: every capability has a case, every case a capability, and a row of a difference names an
// engine, a capability and cases of it that exist, with one line for each of its texts.
func TestTable(t *testing.T) {
	known := map[string]bool{} // by capability: whether it has a case
	for _, c := range engine.Capabilities {
		if _, twice := known[c.Name]; twice || c.Meaning == "" {
			t.Errorf("capability %+v", c)
		}
		known[c.Name] = false
	}
	capability := map[string]string{} // by case
	for _, c := range cases {
		if _, is := known[c.capability]; !is || capability[c.name] != "" {
			t.Errorf("case %q of capability %q: one of them is unknown, or the name is taken", c.name, c.capability)
		}
		known[c.capability], capability[c.name] = true, c.capability
	}
	for name, tested := range known {
		if !tested {
			t.Errorf("capability %q has no case", name)
		}
	}
	rows := map[string]bool{}
	for _, d := range engine.Differences {
		if !slices.Contains(spec.Engines, d.Engine) || !slices.Contains(spec.Isolations, d.Isolation) || d.Engine == spec.EngineNative && d.Isolation == spec.IsolationNamespaces {
			t.Errorf("%+v: not an engine that can differ", d)
		}
		for _, text := range []string{d.Instead, d.Reason} {
			if text == "" || strings.ContainsAny(text, "\n|") {
				t.Errorf("%+v: %q is not one line", d, text)
			}
		}
		for _, name := range d.Cases {
			if row := d.Engine + " " + d.Isolation + " " + name; capability[name] != d.Capability || rows[row] {
				t.Errorf("%s, %s, %s: case %q is of capability %q, or in another row as well", d.Engine, d.Isolation, d.Capability, name, capability[name])
			} else {
				rows[row] = true
			}
		}
		if len(d.Cases) == 0 {
			t.Errorf("%+v: no case shows it", d)
		}
	}
}

// TestFails: a case that fails in any of the ways of a test fails, its cleanups run, and the test that it
// runs in does not fail.
func TestFails(t *testing.T) {
	for name, c := range map[string]struct {
		run  func(testing.TB)
		want bool
	}{
		"nothing":         {func(testing.TB) {}, false},
		"error":           {func(t testing.TB) { t.Error("x") }, true},
		"fatal":           {func(t testing.TB) { t.Fatalf("%d", 1); panic("goes on") }, true},
		"fatal in a part": {func(t testing.TB) { sub(t, "part", func(t testing.TB) { t.FailNow() }) }, true},
		"cleanup":         {func(t testing.TB) { t.Cleanup(func() { t.Errorf("left") }) }, true},
		"skipped":         {func(t testing.TB) { t.Skip("not here"); panic("goes on") }, false},
	} {
		cleaned := false
		got := fails(t, func(t testing.TB) {
			t.Cleanup(func() { cleaned = true })
			c.run(t)
		})
		if got != c.want || !cleaned {
			t.Errorf("%s: fails %v, want %v; cleaned up: %v", name, got, c.want, cleaned)
		}
	}
}
