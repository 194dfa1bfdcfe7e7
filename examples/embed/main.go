// Embed shows how a program uses boxd as a library: it creates a box, runs three commands in it and
// removes it. Run it as root, with the path of boxd-init:
//
//	sudo go run ./examples/embed bin/boxd-init
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, initPath string) error {
	eng, err := native.Start(ctx, native.Options{InitPath: initPath})
	if err != nil {
		return err
	}
	defer eng.Close() // also removes the boxes that still exist
	box, err := eng.Create(ctx, engine.Spec{Limits: engine.Limits{Memory: 64 << 20}})
	if err != nil {
		return err
	}
	for _, script := range []string{"echo 6 times 7 > job", "sed 's/.*/& is 42/' job", "tail /dev/zero"} {
		result, err := engine.Run(ctx, box, engine.Command{Args: []string{"sh", "-c", script}, Stdout: os.Stdout})
		if err != nil {
			return err
		}
		fmt.Println(result.Verdict, result.Status(), result.Limit)
	}
	return box.Remove(ctx)
}
