package doctor

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Each check of a report is made in the daemon, or named as one for the host: none is missing in silence.
func TestInDaemon(t *testing.T) {
	full := NewReport(healthy(func(f *Facts) {
		f.Enforcement = nil
		for _, limit := range []string{"memory", "swap", "kernel memory", "pids", "cpus"} {
			f.Enforcement = append(f.Enforcement, cgroups.Enforcement{Limit: limit, Enforced: true})
		}
	}))
	states := []engine.EngineState{{Engine: spec.EngineNative, Isolation: spec.IsolationNamespaces}, {Engine: spec.EngineOCI, Isolation: spec.IsolationNamespaces, Reason: "no runc"},
		{Engine: spec.EngineOCI, Isolation: spec.IsolationGVisor, Runtime: "runsc 1"}}
	dir := t.TempDir()
	well, missing := InDaemon(Inside{StateDir: dir, Landlock: 6, Engines: states, Wanted: []string{spec.EngineNative}})
	byName := map[string]Check{}
	for _, c := range well {
		byName[c.Name] = c
		if slices.Contains(missing, c.Name) {
			t.Errorf("%q is made, and left to the host", c.Name)
		}
	}
	for _, c := range full.Checks {
		if byName[c.Name].Name == "" && !slices.Contains(missing, c.Name) {
			t.Errorf("%q is neither made nor named", c.Name)
		}
	}
	for _, name := range missing {
		if name != "leftover" && !slices.ContainsFunc(full.Checks, func(c Check) bool { return c.Name == name }) {
			t.Errorf("%q is no check of a report", name)
		}
	}
	for name, want := range map[string]Check{
		"box": {Status: OK, Detail: "the launcher builds boxes, and mounts workspaces into them"}, featureLandlock: {Status: OK, Detail: "boxd serve is confined to its own files"},
		"engine oci": {Status: Absent, Detail: "no runc"},
	} {
		if got := byName[name]; got.Status != want.Status || got.Detail != want.Detail {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if got := byName["engine oci gvisor"]; got.Status != OK || !strings.HasPrefix(got.Detail, "runsc 1; differs in ") {
		t.Errorf("an engine that nobody has tried: %+v", got)
	}
	if got := byName[checkDisk]; got.Status == Unknown {
		t.Errorf("%+v", got)
	}

	ill, _ := InDaemon(Inside{StateDir: "/nonexistent", Box: errors.New("sick"), Wanted: []string{spec.EngineOCI}})
	for name, want := range map[string]Status{"box": Failed, featureLandlock: Degraded, checkDisk: Unknown} {
		if i := slices.IndexFunc(ill, func(c Check) bool { return c.Name == name }); i < 0 || ill[i].Status != want {
			t.Errorf("%s of an ill host: %+v, want %s", name, ill, want)
		}
	}
	missing[0] = "" // the caller's own
	if hostChecks[0] == "" {
		t.Error("the list is shared")
	}
}
