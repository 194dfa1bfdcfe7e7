package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// engines judges the engines besides boxd's own. They are optional: one that is not there is a fault
// only if the daemon's configuration has it.
func (f Facts) engines() (checks []Check) {
	for _, e := range f.Engines {
		if e.Engine == spec.EngineNative {
			continue // see box
		}
		c := Check{Name: engineCheck(e), Status: OK}
		switch {
		case !e.Available():
			c.Status, c.Detail, c.Mend = Absent, e.Reason, mendEngine(e)
		case e.Box.Error != nil:
			c.Status, c.Detail, c.Mend = Degraded, e.Box.Error.Error(), "until it builds boxes, the next engine of the daemon's engines does"
		default:
			c.Detail = e.Runtime
			if e.Box != (Trial{}) {
				c.Detail += fmt.Sprintf(": built a box in %s, ran a command in %s", millis(e.Box.Create), millis(e.Box.Run))
			}
			var differs []string
			for _, d := range engine.DifferencesOf(e.Engine, e.Isolation) {
				differs = append(differs, d.Capability)
			}
			if len(differs) > 0 {
				c.Detail += "; differs in " + strings.Join(differs, ", ") + " (docs/engines.md)"
			}
		}
		// Isolations other than namespaces are asked for by profiles, which are not known here.
		if c.Status == Absent && e.Isolation == spec.IsolationNamespaces && slices.Contains(f.Wanted, e.Engine) {
			c.Status = Degraded
			c.Detail = "the daemon's engines have it, but " + c.Detail
		}
		checks = append(checks, c)
	}
	able := func(name string) bool {
		return slices.ContainsFunc(f.Engines, func(e EngineFacts) bool { return e.Engine == name && e.Available() && e.Box.Error == nil })
	}
	if len(f.Engines) > 0 && len(f.Wanted) > 0 && !slices.ContainsFunc(f.Wanted, able) {
		checks = append(checks, Check{Name: "engines", Status: Failed, Detail: fmt.Sprintf("none of the daemon's engines, %s, can build a box", strings.Join(f.Wanted, ", ")),
			Mend: "see above, or add native to engines"})
	}
	return checks
}

// enginePrefix begins the names of the checks of engines.
const enginePrefix = "engine "

func engineCheck(e EngineFacts) string {
	name := enginePrefix + e.Engine
	if e.Isolation != spec.IsolationNamespaces {
		name += " " + e.Isolation
	}
	return name
}

// mendEngine says how to get an engine.
func mendEngine(e EngineFacts) string {
	switch {
	case e.Isolation == spec.IsolationGVisor:
		return "for isolation gvisor, install runsc (https://gvisor.dev/docs/user_guide/install/) where only root can write, such as /usr/local/bin, or name it with oci.gvisor in the daemon's configuration"
	case e.Engine == spec.EngineOCI:
		return "for engine oci, apt-get install runc, or name the program with oci.runtime in the daemon's configuration"
	}
	return "for engine containerd, apt-get install containerd, and start it"
}
