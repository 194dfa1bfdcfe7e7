package daemon

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// signals are the signals that the daemon receives.
type signals struct {
	ctx    context.Context // ends with the first SIGTERM or SIGINT, which is its cause
	hurry  context.Context // ends with the second one
	hangup chan os.Signal  // SIGHUP

	stops chan os.Signal
	quit  chan struct{}
	done  chan struct{}
}

// watchSignals subscribes to signals. The caller calls stop.
func watchSignals() *signals {
	s := &signals{hangup: make(chan os.Signal, 1), stops: make(chan os.Signal, 2), quit: make(chan struct{}), done: make(chan struct{})}
	signal.Notify(s.stops, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(s.hangup, syscall.SIGHUP)
	var stop, hurry context.CancelCauseFunc
	s.ctx, stop = context.WithCancelCause(context.Background())
	s.hurry, hurry = context.WithCancelCause(context.Background())
	go func() {
		defer close(s.done)
		for _, cancel := range []context.CancelCauseFunc{stop, hurry} {
			select {
			case sig := <-s.stops:
				cancel(fmt.Errorf("signal: %s", sig))
			case <-s.quit:
				cancel(nil)
			}
		}
	}()
	return s
}

// stop unsubscribes and waits for the goroutine of watchSignals.
func (s *signals) stop() {
	signal.Stop(s.stops)
	signal.Stop(s.hangup)
	close(s.quit)
	<-s.done
}
