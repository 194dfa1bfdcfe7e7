package launcher

import (
	"testing"
	"testing/synctest"
)

// TestBudget: a request that does not fit waits until enough is given back.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget()
		b.take(requestsMax + 1) // alone, it fits
		in := make(chan struct{})
		go func() {
			b.take(requestCost)
			close(in)
		}()
		synctest.Wait()
		select {
		case <-in:
			t.Error("a request was taken on beyond the bound")
		default:
		}
		b.give(requestsMax + 1)
		<-in
		b.take(requestsMax - requestCost)
		b.give(requestsMax)
		if b.used != 0 {
			t.Errorf("%d bytes used in the end", b.used)
		}
	})
}
