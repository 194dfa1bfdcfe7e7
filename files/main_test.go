package files_test

import (
	"context"
	"errors"
	"os"
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

func setUp(_, boxdInit string) (tearDown func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("/run", "boxd-test-files-")
	if err != nil {
		return nil, err
	}
	// PID 1 of a box passes through it.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	eng, err := native.Start(ctx, native.Options{InitPath: boxdInit, StateDir: dir})
	if err != nil {
		return nil, err
	}
	if box, err = eng.Create(ctx, engine.Spec{}); err != nil {
		return nil, errors.Join(err, eng.Close())
	}
	return func() error { return errors.Join(eng.Close(), os.RemoveAll(dir)) }, nil
}
