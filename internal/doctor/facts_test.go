package doctor

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// patient is an engine whose boxes work, work only without limits, or do not work.
type patient struct {
	createErr, runErr error
	needsDegraded     bool
	status            int
	removed, closed   int
}

func (p *patient) Create(_ context.Context, spec engine.Spec) (engine.Box, error) {
	if p.needsDegraded && !spec.AllowDegraded {
		return nil, engine.ErrUnenforceable
	}
	return p, p.createErr
}
func (p *patient) Close() error                                { p.closed++; return nil }
func (p *patient) ID() string                                  { return "patient" }
func (p *patient) Done() <-chan struct{}                       { return nil }
func (p *patient) Update(context.Context, engine.Change) error { return errors.ErrUnsupported }
func (p *patient) Remove(context.Context) error                { p.removed++; return nil }
func (p *patient) Start(context.Context, engine.Command) (engine.Process, error) {
	return p, p.runErr
}
func (p *patient) Wait() (engine.Result, error) {
	return engine.Result{Verdict: engine.Exited, ExitCode: p.status}, nil
}
func (p *patient) Signal(syscall.Signal) error    { return nil }
func (p *patient) Resize(engine.WindowSize) error { return nil }

func TestTryBox(t *testing.T) {
	ill := errors.New("ill")
	for _, c := range []struct {
		name     string
		patient  patient
		ok       bool
		degraded bool
		removed  int
	}{
		{"healthy", patient{}, true, false, 1},
		{"limits missing", patient{needsDegraded: true}, false, true, 1},
		{"no box", patient{createErr: ill}, false, false, 0},
		{"no command", patient{runErr: ill}, false, false, 2},
		{"command fails", patient{status: 1}, false, false, 2},
	} {
		var f Facts
		f.tryBox(context.Background(), Host{NewEngine: func(context.Context) (engine.Engine, error) { return &c.patient, nil }})
		if (f.Box.Error == nil) != c.ok || f.Box.Degraded != c.degraded || c.patient.removed != c.removed || c.patient.closed != 1 {
			t.Errorf("%s: %+v, removed %d, closed %d", c.name, f.Box, c.patient.removed, c.patient.closed)
		}
	}
	var f Facts
	f.tryBox(context.Background(), Host{NewEngine: func(context.Context) (engine.Engine, error) { return nil, engine.ErrNoLauncher }})
	if !errors.Is(f.InitError, engine.ErrNoLauncher) || !errors.Is(f.Box.Error, engine.ErrNoLauncher) {
		t.Errorf("without a launcher: %+v", f)
	}
}

// TestGather: every feature in the report was tried. On a host that runs the privileged tests each of
// them works, except for an id-mapped mount of a root that cannot be id-mapped. TestMain checks that
// nothing is left behind.
func TestGather(t *testing.T) {
	testutil.RequireRoot(t)
	f := Gather(context.Background(), Host{Version: "1", InitError: engine.ErrNoLauncher})
	if f.Release == "" || f.Machine == "" || !errors.Is(f.Box.Error, engine.ErrNoLauncher) {
		t.Errorf("%+v", f)
	}
	if f.CgroupError != nil || f.CgroupMode == "" || len(f.Enforcement) == 0 {
		t.Errorf("cgroup mode %q, error %v, limits %v", f.CgroupMode, f.CgroupError, f.Enforcement)
	}
	if err := f.Images.LayersError; err != nil && !testutil.Lacks("id-mapped root file system") || f.Images.Size == 0 {
		t.Errorf("images: %+v", f.Images)
	}
	for _, need := range append(needs, need{name: featureUserNS}) {
		err, tried := f.Features[need.name]
		if need.name == featureIDMap && testutil.Lacks("id-mapped root file system") {
			err = nil
		}
		if !tried || err != nil {
			t.Errorf("%s: tried %v, %v", need.name, tried, err)
		}
	}
}
