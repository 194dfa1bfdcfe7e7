package daemon

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// However many callers there are, the engine is asked once in healthAge. No caller gets an older
// answer, or waits longer than its context allows.
func TestHealthCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h healthCheck
		asked := 0
		sick := errors.New("sick")
		var said error
		answer := make(chan struct{})
		find := func(ctx context.Context) error {
			asked++
			select {
			case <-answer:
				return said
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		results := make(chan error)
		for range 5 {
			go func() { results <- h.get(t.Context(), find) }()
		}
		synctest.Wait()
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := h.get(impatient, find); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an impatient one: %v", err)
		}
		close(answer)
		for range 5 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		said = sick
		if err := h.get(t.Context(), find); err != nil || asked != 1 {
			t.Errorf("at once: %v, asked %d times", err, asked)
		}
		time.Sleep(healthAge)
		if err := h.get(t.Context(), find); err != sick || asked != 2 {
			t.Errorf("later: %v, asked %d times", err, asked)
		}
		time.Sleep(healthAge)
		answer = nil
		began := time.Now()
		if err := h.get(t.Context(), find); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != healthTime {
			t.Errorf("an engine that does not answer: %v after %v", err, time.Since(began))
		}
	})
}
