// Apply writes the tar stream on its stdin to a directory, as containerd does when it unpacks a layer. Tests compare
// it with what boxd makes of the same stream. It is a module of its own, so that boxd's does not depend on
// containerd.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/pkg/archive"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: apply DIRECTORY < ARCHIVE")
		os.Exit(2)
	}
	if _, err := archive.Apply(context.Background(), os.Args[1], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "apply:", err)
		os.Exit(1)
	}
}
