package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
)

// choosing is a fake with several engines.
type choosing struct {
	*fake
	states []engine.EngineState
}

func (c choosing) Engines(context.Context, string, string) ([]engine.EngineState, error) {
	return c.states, nil
}

func TestRunEngine(t *testing.T) {
	states := []engine.EngineState{
		{Engine: "native", Isolation: "namespaces"},
		{Engine: "oci", Isolation: "namespaces"}, {Engine: "oci", Isolation: "gvisor"},
		{Engine: "containerd", Isolation: "namespaces", Reason: "no socket"},
	}
	for _, c := range []struct {
		args   string
		box    string // that is built; empty: none
		stderr string
	}{
		{"", "native/namespaces", ""},
		{"--isolation namespaces", "native/namespaces", ""},
		{"--engine oci", "oci/namespaces", ""},
		{"--isolation gvisor", "oci/gvisor", ""},
		{"--engine containerd", "", `boxd: no engine of ["containerd"] can build a box with isolation namespaces: containerd: no socket`},
		{"--engine oci --isolation gvisor", "oci/gvisor", ""},
		{"--engine containerd --isolation gvisor", "", `boxd: --isolation "gvisor": the engine containerd does not have it`},
		{"--engine native --isolation gvisor", "", `boxd: --isolation "gvisor": the engine native does not have it`},
		{"--engine docker", "", `boxd: --engine "docker": must be one of native, oci, containerd`},
		{"--isolation vm", "", `boxd: --isolation "vm": must be one of namespaces, gvisor`},
	} {
		v := newInvocation(t)
		v.NewEngine = func(context.Context, EngineOptions) (engine.Engine, error) { return choosing{v.fake, states}, nil }
		status := v.Main(append(append([]string{"run"}, strings.Fields(c.args)...), "x"))
		built := ""
		if v.fake.creates > 0 {
			built = v.fake.spec.Engine + "/" + v.fake.spec.Isolation
		}
		if built != c.box || !strings.Contains(v.stderr.String(), c.stderr) || (status == 0) != (c.box != "") || strings.Count(v.stderr.String(), "\n") > 1 {
			t.Errorf("run %s: built %q, status %d, stderr %q; want %q, %q", c.args, built, status, v.stderr.String(), c.box, c.stderr)
		}
	}
}
