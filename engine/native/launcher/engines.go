package launcher

import (
	"fmt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
)

// handleEngines lists the engines of this launcher.
func (l *Launcher) handleEngines() (any, error) {
	return rpc.EngineList{Engines: []engine.EngineState{{Engine: spec.EngineNative, Isolation: spec.IsolationNamespaces, Runtime: "libcontainer"}}}, nil
}

// checkEngine returns engine.ErrNoEngine if this launcher cannot build boxes as s says.
func (l *Launcher) checkEngine(s engine.Spec) error {
	if isGVisor(s) && l.runtimes[kindOf(s)] != nil {
		return checkGVisor(s)
	}
	if s.Engine != spec.EngineNative || s.Isolation != spec.IsolationNamespaces {
		return fmt.Errorf("engine %q with isolation %q: %w", s.Engine, s.Isolation, engine.ErrNoEngine)
	}
	return nil
}
