package launcher

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine/oci"
)

// TestProofWaits: a proof that has no turn yet, or gets none, says nothing about gVisor, however long that
// takes. The next look tries again.
func TestProofWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, file := kind{"oci", "gvisor"}, oci.File{}
		l := &Launcher{works: newWorks(), creating: map[kind]chan struct{}{k: make(chan struct{}, 1)}}
		g := &gvisor{launcher: l}
		l.runtimes = map[kind]boxRuntime{k: g}
		l.creating[k] <- struct{}{} // others are being built
		p := g.prove(file)
		time.Sleep(2 * proofTime)
		synctest.Wait()
		select {
		case <-p.over:
			t.Errorf("it has failed while it waited: %v", p.err)
		default:
		}
		if !p.holds(file) {
			t.Error("a second proof would begin while the first one waits")
		}
		p.work.refuse("the test ends it")
		if <-p.over; p.err == nil || p.holds(file) {
			t.Errorf("after an attempt that got no turn, with %v, nobody tries again", p.err)
		}
		l.works.hanging[k] = maxHanging
		p = g.prove(file)
		if <-p.over; p.err == nil || p.holds(file) {
			t.Errorf("after an attempt when too many boxes hang, with %v, nobody tries again", p.err)
		}
		if !l.works.idle() {
			t.Error("works are left: " + l.works.text())
		}
		l.requests.Wait()
	})
}
