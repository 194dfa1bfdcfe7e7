package launcher

import (
	"fmt"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneline"
)

// handleEngines lists the engines of this launcher. It looks at their programs at the same time.
func (l *Launcher) handleEngines() (any, error) {
	var list rpc.EngineList
	for _, e := range spec.Engines {
		for _, i := range spec.Isolations {
			if l.runtimes[kind{e, i}] != nil {
				list.Engines = append(list.Engines, engine.EngineState{Engine: e, Isolation: i})
			}
		}
	}
	var wg sync.WaitGroup
	for n := range list.Engines {
		s := &list.Engines[n]
		wg.Go(func() {
			var err error
			if s.Runtime, err = l.runtimes[kind{s.Engine, s.Isolation}].look(true); err != nil {
				s.Reason = oneline.Error(err)
			}
		})
	}
	wg.Wait()
	return list, nil
}

// runtimeOf returns the runtime of a new box, or engine.ErrNoEngine if boxes cannot be built as s says.
func (l *Launcher) runtimeOf(w *work, s engine.Spec) (boxRuntime, error) {
	r := l.runtimes[kindOf(s)]
	if r == nil {
		return nil, fmt.Errorf("engine %q with isolation %q: %w", s.Engine, s.Isolation, engine.ErrNoEngine)
	}
	defer w.begin("looking at its engine", "", nil)()
	if _, err := r.look(false); err != nil {
		return nil, fmt.Errorf("engine %q with isolation %q: %w", s.Engine, s.Isolation, err)
	}
	if isGVisor(s) {
		return r, checkGVisor(s)
	}
	return r, nil
}

// How long what was found out about a program holds: for a list of the engines, for a create
// after a success, if the program's file is the same, and for a create after a failure.
const (
	freshTime   = time.Second
	soundTime   = time.Minute
	unsoundTime = 3 * time.Second
)
