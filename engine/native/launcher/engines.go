package launcher

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneline"
)

// handleEngines lists the engines of this launcher that a client asks for. It looks at their programs at
// the same time.
func (l *Launcher) handleEngines(body []byte) (any, error) {
	var m rpc.Engines
	if err := decode(body, &m); err != nil {
		return nil, err
	}
	var list rpc.EngineList
	for _, e := range spec.Engines {
		for _, i := range spec.Isolations {
			if l.runtimes[kind{e, i}] != nil && cmp.Or(m.Engine, e) == e && cmp.Or(m.Isolation, i) == i {
				list.Engines = append(list.Engines, engine.EngineState{Engine: e, Isolation: i})
			}
		}
	}
	var wg sync.WaitGroup
	for n := range list.Engines {
		s := &list.Engines[n]
		wg.Go(func() {
			k := kind{s.Engine, s.Isolation}
			var err error
			if s.Runtime, err = l.runtimes[k].look(true); err == nil {
				err = l.works.full(k)
			}
			if err != nil {
				s.Reason = strings.TrimPrefix(oneline.Error(err), engine.ErrNoEngine.Error()+": ") // which a Reason means anyway
			}
		})
	}
	wg.Wait()
	return list, nil
}

// How long what was found out about a program holds: for a list of the engines, for a create
// after a success, if the program's file is the same, and for a create after a failure.
const (
	freshTime   = time.Second
	soundTime   = time.Minute
	unsoundTime = 3 * time.Second
)
