package launcher

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Each box that is built proves that the kernel can build boxes. If none was built for a while
// and a client asks, the launcher builds a probe box. So an idle launcher costs nothing, and
// one that is asked every second costs some 10 ms of processor time every probeAge. Clients
// that ask learn of a failure after at most probeAge + probeTime.
const (
	// probeAge is how long a box counts as proof.
	probeAge = 4 * time.Second
	// probeTime is how long building a probe box, and so an answer, may take.
	probeTime = 4 * time.Second
)

// pulse holds the current probe, or the last one.
type pulse struct {
	mu   sync.Mutex
	last *probe
}

type probe struct {
	work  *work
	began time.Time
	built chan struct{} // closed when the box is built or err is set
	err   error
	over  chan struct{} // closed when the box is gone
}

// canBuild returns nil if boxes can be built, and otherwise the reason why not.
func (l *Launcher) canBuild() error {
	if hangs := l.works.report(nativeKind); hangs != "" {
		return unavailable(hangs)
	}
	l.works.mu.Lock()
	built := l.works.built
	l.works.mu.Unlock()
	if time.Since(built) < probeAge {
		return nil
	}
	p := l.probe()
	select {
	case <-p.built:
		return p.err
	case <-time.After(time.Until(p.began.Add(probeTime))):
		return unavailable(fmt.Sprintf("a probe box is not there after %v: %s", probeTime, l.works.textOf(p.work)))
	}
}

// probe returns the current probe, or one that failed within probeAge, or starts a new one.
func (l *Launcher) probe() *probe {
	l.pulse.mu.Lock()
	defer l.pulse.mu.Unlock()
	if last := l.pulse.last; last != nil {
		select {
		case <-last.over:
			if last.err != nil && time.Since(last.began) < probeAge {
				return last
			}
		default:
			return last
		}
	}
	p := &probe{work: &work{what: "building a probe box"}, began: time.Now(), built: make(chan struct{}), over: make(chan struct{})}
	l.pulse.last = p
	l.works.add(p.work)
	p.work.makes("probe-"+strings.ToLower(rand.Text()), true)
	p.work.by(nativeKind)
	go l.runProbe(p)
	l.requests.Go(func() { // so that the launcher waits for the removal of the box, unless it hangs
		select {
		case <-p.over:
		case <-p.work.refused:
		}
	})
	return p
}

// runProbe builds the box of a probe and removes it.
func (l *Launcher) runProbe(p *probe) {
	defer close(p.over)
	defer p.work.end()
	if p.err = p.work.enter(l.creating[nativeKind]); p.err != nil {
		close(p.built)
		return
	}
	defer p.work.leave()
	b, err := l.newBox(p.work, engine.Spec{ID: p.work.box, Engine: spec.EngineNative, AllowDegraded: true})
	if err == nil {
		err = l.create(p.work, b)
	}
	if err != nil {
		p.err = fmt.Errorf("a probe box cannot be built: %w", err)
	}
	close(p.built)
	if err == nil {
		_ = l.abandon(b, nil) // the next launcher removes and reports what is left
	}
}
