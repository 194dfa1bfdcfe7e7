package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxd/boxd/engine"
)

// try builds a box, runs a command in it and removes the box.
func try(ctx context.Context, eng engine.Engine, spec engine.Spec) (t Trial) {
	began := time.Now()
	box, err := eng.Create(ctx, spec)
	if err != nil {
		t.Error = err
		return t
	}
	defer func() { t.Error = errors.Join(t.Error, box.Remove(context.WithoutCancel(ctx))) }()
	t.Create = time.Since(began)
	began = time.Now()
	result, err := engine.Run(ctx, box, trialCommand)
	t.Run = time.Since(began)
	switch {
	case err != nil:
		t.Error = err
	case result.Status() != 0:
		t.Error = fmt.Errorf("command in the box: exit status %d, verdict %s", result.Status(), result.Verdict)
	}
	return t
}
