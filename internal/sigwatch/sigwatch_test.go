package sigwatch

import (
	"os"
	"slices"
	"syscall"
	"testing"
)

// TestStop: no signal that came before Stop is lost, whatever the goroutine was about to do.
func TestStop(t *testing.T) {
	for range 100 { // a select takes any of its cases that are ready
		in := make(chan os.Signal, 8)
		w := New(in)
		var got []syscall.Signal
		w.Start()
		w.ForwardTo(func(sig syscall.Signal) error {
			got = append(got, sig)
			return nil
		})
		in <- syscall.SIGTERM
		w.Stop()
		if w.Received() != syscall.SIGTERM || !slices.Equal(got, []syscall.Signal{syscall.SIGTERM}) || w.Context.Err() == nil {
			t.Fatalf("received %v, delivered %v, %v", w.Received(), got, w.Context.Err())
		}
	}
}
