package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// The Examples use these.
var (
	initPath string         // the boxd-init binary
	eng      engine.Engine  // as Example starts one
	svc      engine.Service // as ExampleService connects to one
	socket   string         // of a launcher service of its own, for ExampleService
)

func TestMain(m *testing.M) { testutil.MainExamples(m, setUp) }

// setUp runs an engine and two launcher services, of which each serves one client.
func setUp(_, boxdInit, dir string) (tearDown func() error, err error) {
	initPath = boxdInit
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	service := func(name string) (string, error) {
		return native.StartLauncher(ctx, native.LauncherOptions{InitPath: initPath, StateDir: dir + "/" + name})
	}
	e, err := native.Start(ctx, native.Options{InitPath: initPath, StateDir: dir + "/engine"})
	if err != nil {
		return nil, err
	}
	first, err := service("first")
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: first})
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if socket, err = service("second"); err != nil {
		return nil, errors.Join(err, s.Stop(ctx, true), e.Close())
	}
	eng, svc = e, s
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		second, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
		if err == nil {
			err = second.Stop(ctx, true)
		}
		return errors.Join(err, s.Stop(ctx, true), e.Close())
	}, nil
}

// newBox makes an empty box for Examples that are not about making one.
func newBox(spec engine.Spec) engine.Box {
	box, err := eng.Create(context.Background(), spec)
	if err != nil {
		panic(fmt.Sprintf("creating a box: %v", err))
	}
	return box
}
