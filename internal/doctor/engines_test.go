package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
)

// choosing is a patient with several engines.
type choosing struct {
	patient
	states []engine.EngineState
	built  []string
}

func (c *choosing) Engines(context.Context, string, string) ([]engine.EngineState, error) {
	return c.states, nil
}

func (c *choosing) Create(ctx context.Context, spec engine.Spec) (engine.Box, error) {
	if spec = spec.WithDefaults(); spec.Engine != "native" {
		c.built = append(c.built, spec.Engine+"/"+spec.Isolation)
	}
	if spec.Isolation == "gvisor" {
		return nil, errors.New("it hangs")
	}
	return c.patient.Create(ctx, spec)
}

// TestEngines: each engine that is there is tried, and one that is not is a fault only if the
// configuration has it.
func TestEngines(t *testing.T) {
	states := []engine.EngineState{
		{Engine: "native", Isolation: "namespaces"},
		{Engine: "oci", Isolation: "namespaces", Runtime: "runc 1.1.5"},
		{Engine: "oci", Isolation: "gvisor", Runtime: "runsc 1"},
		{Engine: "containerd", Isolation: "namespaces", Reason: "no socket"},
		{Engine: "containerd", Isolation: "gvisor", Reason: "no runsc"},
	}
	gone := slices.Clone(states)
	gone[1].Reason = "no runc"
	for _, c := range []struct {
		wanted string
		states []engine.EngineState
		want   map[string]Status
		detail string
		built  string
	}{
		{"native", states, map[string]Status{"engine oci": OK, "engine oci gvisor": Degraded, "engine containerd": Absent, "engine containerd gvisor": Absent}, "runc 1.1.5: built a box in", "oci/namespaces oci/gvisor"},
		{"containerd native", states, map[string]Status{"engine oci": OK, "engine oci gvisor": Degraded, "engine containerd": Degraded, "engine containerd gvisor": Absent}, "the daemon's engines have it, but no socket", "oci/namespaces oci/gvisor"},
		{"containerd", gone, map[string]Status{"engine oci": Absent, "engine oci gvisor": Degraded, "engine containerd": Degraded, "engine containerd gvisor": Absent, "engines": Failed}, "none of the daemon's engines, containerd, can build a box", "oci/gvisor"},
		{"", nil, map[string]Status{}, "", ""},
	} {
		p := &choosing{states: c.states}
		var f Facts
		f.Wanted = strings.Fields(c.wanted)
		f.tryBox(t.Context(), Host{NewEngine: func(context.Context) (engine.Engine, error) { return p, nil }})
		got, details := map[string]Status{}, ""
		for _, check := range f.engines() {
			got[check.Name] = check.Status
			details += check.Detail + "\n"
			if (check.Status == OK) != (check.Mend == "") {
				t.Errorf("%+v: status and mend do not fit", check)
			}
		}
		if len(got) != len(c.want) || !strings.Contains(details, c.detail) || strings.Join(p.built, " ") != c.built {
			t.Errorf("engines %s: %v, %q, built %q; want %v, %q, %q", c.wanted, got, details, p.built, c.want, c.detail, c.built)
		}
		for name, status := range c.want {
			if got[name] != status {
				t.Errorf("engines %s: %s is %s, want %s", c.wanted, name, got[name], status)
			}
		}
		r := NewReport(f)
		r.Explain(f)
		for _, check := range r.Checks {
			if strings.HasPrefix(check.Name, enginePrefix) && (check.Cause != "") != (check.Status == Degraded) {
				t.Errorf("%+v: explained or not", check)
			}
		}
	}
}
