package launcher

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// However many requests test a directory that hangs, only one of them stays. Requests for a
// directory that does not hang all get their turn.
func TestTrials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all trials
		works := newWorks()
		enter := func(path string) (func(), error) {
			w := works.request(nil, &wire.Frame{Type: rpc.TypeOpenDirectory})
			leave, err := all.enter(engine.Directory{Path: path, Within: "/"}, w)
			if err != nil {
				w.end()
			}
			return leave, err
		}
		first, err := enter("/hangs")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for range 3 {
			_, err := enter("/hangs")
			if !errors.Is(err, engine.ErrNoLauncher) || !strings.Contains(err.Error(), "opening a directory has taken 5.0 s: ") || time.Since(began) != stallTime {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		}
		if len(works.all) != 1 {
			t.Errorf("%d requests stay", len(works.all))
		}
		other, err := enter("/answers")
		if err != nil {
			t.Fatalf("another directory: %v", err)
		}
		results := make(chan error)
		for range 3 {
			go func() {
				leave, err := enter("/answers")
				if err == nil {
					leave()
				}
				results <- err
			}()
		}
		synctest.Wait()
		other()
		first() // it has passed
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if leave, err := enter("/hangs"); err != nil {
			t.Errorf("once it has passed: %v", err)
		} else {
			leave()
		}
		if len(all.all) != 0 {
			t.Errorf("left: %v", all.all)
		}
	})
}
