// Boxd-init has the roles of boxd that build boxes. Boxd-agent has those in them. People do not call it; the first argument
// is the role:
//
//	launcher   builds boxes for one client, as root; with --service it serves one client
//	           after another, and its boxes outlive it
//	keeper     runs a launcher service and restarts it when it dies
//	sweep      ends the boxes that a stopped launcher service has left, when boxd is uninstalled
//	init       the stage of libcontainer, which libcontainer starts itself
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/boxd/boxd/engine/native/launcher"
	"github.com/boxd/boxd/internal/version"
	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // its C constructor enters the namespaces of a box
)

// The main goroutine keeps the main thread, which stands for the process in /proc. So the threads of
// launcher and agent that change namespaces, cgroups or privileges are others.
func init() { runtime.LockOSThread() }

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: %v\n", err)
		if _, ok := errors.AsType[*launcher.ConfigError](err); ok {
			os.Exit(launcher.StatusConfig)
		}
		os.Exit(125)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "init":
		if err := launcher.ConfineStage(); err != nil {
			return err
		}
		libcontainer.Init() // never returns
	case len(args) > 2 && args[0] == "launcher" && args[1] == "--state-dir":
		return launcher.Main(args[1:])
	case len(args) > 2 && args[0] == "launcher" && args[1] == "--service":
		o, err := launcher.ParseService(args[2:])
		if err != nil {
			return err
		}
		return launcher.Service(o)
	case len(args) > 1 && args[0] == "keeper":
		o, err := launcher.ParseService(args[1:])
		if err != nil {
			return err
		}
		return launcher.Keeper(o)
	case len(args) > 0 && args[0] == "sweep":
		return launcher.Retire(args[1:])
	case len(args) == 1 && args[0] == "version":
		fmt.Println(version.Version)
		return nil
	}
	return fmt.Errorf("arguments %q: boxd-init is started by boxd, not by hand", args)
}
