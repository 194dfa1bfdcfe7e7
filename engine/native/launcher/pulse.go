package launcher

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
)

// Whether the kernel can build boxes is known from the boxes that it builds. When it has not
// built one for a while, and only if somebody asks, a probe box is built for nobody: so an
// idle launcher costs nothing, and one that is asked every second some 10 ms of a processor
// every probeAge. What breaks is known after at most probeAge + probeTime to those who ask.
const (
	// probeAge is how old the last box may be as a proof.
	probeAge = 4 * time.Second
	// probeTime is how long a probe box may take, and so an answer.
	probeTime = 4 * time.Second
)

// pulse is the probe that is under way, or was the last.
type pulse struct {
	mu   sync.Mutex
	last *probe
}

type probe struct {
	work  *work
	began time.Time
	built chan struct{} // closed when there is the box, or err
	err   error
	over  chan struct{} // closed when the box is gone
}

// canBuild is nil if the kernel can build boxes, and else says what keeps it from that.
func (l *Launcher) canBuild() error {
	if hangs := l.works.report(); hangs != "" {
		return unavailable(hangs)
	}
	if l.works.builtSince(time.Now().Add(-probeAge)) {
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

// probe returns the probe under way, or one that failed within probeAge, or a new one.
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
	go l.runProbe(p)
	l.requests.Go(func() { // so that the launcher ends with the box gone, unless it hangs
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
	if p.err = p.work.enter(l.creating); p.err != nil {
		close(p.built)
		return
	}
	defer p.work.leave()
	b, err := l.create(p.work, engine.Spec{ID: p.work.box, AllowDegraded: true})
	if err != nil {
		p.err = fmt.Errorf("a probe box cannot be built: %w", err)
	}
	close(p.built)
	if err == nil {
		_ = l.abandon(b, nil) // the next launcher removes what is left, and reports it
	}
}
