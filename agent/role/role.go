// Package role is the main function of the programs that run in boxes.
package role

import (
	"fmt"
	"os"
	"runtime"

	"github.com/boxd/boxd/agent"
	"github.com/boxd/boxd/agent/dial"
	"github.com/boxd/boxd/agent/files"
	"github.com/boxd/boxd/internal/version"
)

// The main goroutine keeps the main thread, which stands for the process in /proc. So the threads of
// the agent that change namespaces, cgroups or privileges are others.
func init() { runtime.LockOSThread() }

// Main plays the role that the arguments name, and exits. more are roles, besides those of
// boxd-agent, that take the arguments after their name and return an exit status.
func Main(program string, more map[string]func([]string) int) {
	if err := run(program, os.Args[1:], more); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		os.Exit(125)
	}
	os.Exit(0)
}

func run(program string, args []string, more map[string]func([]string) int) error {
	switch {
	case len(args) == 1 && args[0] == "agent":
		return agent.Main()
	case len(args) > 0 && args[0] == "files":
		os.Exit(files.Main(args[1:]))
	case len(args) > 0 && args[0] == "dial":
		os.Exit(dial.Main(args[1:]))
	case len(args) > 0 && more[args[0]] != nil:
		os.Exit(more[args[0]](args[1:]))
	case len(args) > 0 && args[0] == "enter":
		agent.Enter(args[1:])
	case len(args) == 1 && args[0] == "hold":
		agent.Hold()
	case len(args) == 1 && args[0] == "guest":
		return agent.Guest()
	case len(args) == 1 && args[0] == "guest-init":
		agent.GuestInit()
	case len(args) == 1 && args[0] == "version":
		fmt.Println(version.Version)
		return nil
	}
	return fmt.Errorf("arguments %q: %s is started by boxd, not by hand", args, program)
}
