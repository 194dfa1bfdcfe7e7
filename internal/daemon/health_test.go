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
		var last lastCheck[int]
		asked := 0
		sick := errors.New("sick")
		var said error
		answer := make(chan struct{})
		find := func(ctx context.Context) (int, error) {
			asked++
			select {
			case <-answer:
				return asked, said
			case <-ctx.Done():
				return asked, ctx.Err()
			}
		}
		// get fails the test if the value is not that of the last call of find.
		get := func(ctx context.Context) error {
			n, err := last.get(ctx, healthTime, healthAge, find)
			if n != asked && !(n == 0 && ctx.Err() != nil) {
				t.Errorf("the result of call %d, after %d", n, asked)
			}
			return err
		}
		results := make(chan error)
		for range 5 {
			go func() { results <- get(t.Context()) }()
		}
		synctest.Wait()
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := get(impatient); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an impatient one: %v", err)
		}
		close(answer)
		for range 5 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		said = sick
		if err := get(t.Context()); err != nil || asked != 1 {
			t.Errorf("at once: %v, asked %d times", err, asked)
		}
		time.Sleep(healthAge)
		if err := get(t.Context()); err != sick || asked != 2 {
			t.Errorf("later: %v, asked %d times", err, asked)
		}
		time.Sleep(healthAge)
		answer = nil
		began := time.Now()
		if err := get(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != healthTime {
			t.Errorf("an engine that does not answer: %v after %v", err, time.Since(began))
		}
	})
}
