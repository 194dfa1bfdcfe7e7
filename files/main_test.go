package files_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// box is the box in which the Examples work. The Examples of package engine show how to make
// one.
var box engine.Box

func TestMain(m *testing.M) { testutil.MainExamples(m, setUp) }

func setUp(_, boxdInit, dir string) (tearDown func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	eng, err := native.Start(ctx, native.Options{InitPath: boxdInit, StateDir: dir})
	if err != nil {
		return nil, err
	}
	if box, err = eng.Create(ctx, engine.Spec{}); err != nil {
		return nil, errors.Join(err, eng.Close())
	}
	return eng.Close, nil
}
