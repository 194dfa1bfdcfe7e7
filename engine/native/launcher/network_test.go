package launcher

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// TestNetworksOnce: a launcher of one box makes one namespace for it, for which the box waits. Boxes beside it get
// others, and none waits for a namespace that nobody makes.
func TestNetworksOnce(t *testing.T) {
	for _, late := range []bool{false, true} { // the first one is being made while they ask
		var made atomic.Int32
		ready, wait := make(chan struct{}), make(chan struct{})
		n := newNetworks(true, func() (*os.File, error) {
			if made.Add(1) == 1 {
				if late {
					<-wait
				}
				defer close(ready)
			}
			return os.Open(os.DevNull)
		})
		if !late {
			<-ready
		}
		const boxes = 8
		var wg sync.WaitGroup
		for range boxes {
			wg.Go(func() {
				f, err := n.take()
				if err != nil {
					t.Error(err)
				}
				f.Close()
				n.prepare()
			})
		}
		close(wait)
		wg.Wait()
		if got := made.Load(); got != boxes {
			t.Errorf("%d namespaces for %d boxes", got, boxes)
		}
		n.close()
	}
}
