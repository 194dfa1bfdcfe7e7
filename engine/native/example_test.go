package native_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
)

// The boxes of an Engine end with it: that fits a program that builds a box, runs
// something in it and is done. It needs root, to start the launcher.
func ExampleStart() {
	ctx := context.Background()
	eng, err := native.Start(ctx, native.Options{
		InitPath: initPath,
		StateDir: stateDir, // empty: DefaultStateDir
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer eng.Close()

	box, err := eng.Create(ctx, engine.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := engine.Run(ctx, box, engine.Command{Args: []string{"sh", "-c", "echo $((6 * 7))"}, Stdout: os.Stdout})
	fmt.Println(result.Verdict, err)
	// Output:
	// 42
	// exited <nil>
}

// The boxes of a Service stay when the program ends. StartLauncher needs root, once;
// Connect needs no privilege.
func ExampleConnect() {
	ctx := context.Background()
	socket, err := native.StartLauncher(ctx, native.LauncherOptions{InitPath: initPath, StateDir: stateDir})
	if err != nil {
		fmt.Println(err)
		return
	}
	svc, err := native.Connect(ctx, native.ServiceOptions{Socket: socket})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := svc.Create(ctx, engine.Spec{ID: "kept"}); err != nil {
		fmt.Println(err)
		return
	}
	if err := svc.Close(); err != nil { // the box stays
		fmt.Println(err)
		return
	}

	svc, err = native.Connect(ctx, native.ServiceOptions{Socket: socket})
	if err != nil {
		fmt.Println(err)
		return
	}
	ids, err := svc.Boxes(ctx)
	fmt.Println(ids, err)
	fmt.Println(svc.Stop(ctx, true)) // ends the launcher, and its boxes with it
	// Output:
	// [kept] <nil>
	// <nil>
}
