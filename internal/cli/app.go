package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/spf13/cobra"
)

// App is what the commands need from the outside. All fields must be set.
type App struct {
	Version string
	// Stdin, Stdout and Stderr are those of the process. Files are handed to the
	// command in the box as they are.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// LookupEnv reads the environment of the process.
	LookupEnv func(key string) (string, bool)
	// NewEngine makes the engine that boxes are built with.
	NewEngine func(ctx context.Context, options EngineOptions) (engine.Engine, error)
	// Examine gathers what the doctor reports.
	Examine Examine
	// Serve runs the daemon until it is stopped.
	Serve func(options ServeOptions) error
	// CheckServe finds what would keep Serve from starting.
	CheckServe func(options ServeOptions) []error
	// Signals are those sent to this process. Nil: the real ones.
	Signals <-chan os.Signal
}

// EngineOptions say where an engine finds its parts.
type EngineOptions struct {
	InitPath string // the boxd-init binary
	StateDir string // where locks and leases are kept
}

// Exit statuses of boxd itself, those of docker run, podman run and timeout(1).
const (
	statusFailed        = 125
	statusNotExecutable = 126
	statusNotFound      = 127
)

// statusError ends boxd with a status. A nil err means that all has been said.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return fmt.Sprintf("exit status %d: %v", e.status, e.err) }
func (e *statusError) Unwrap() error { return e.err }

// Main runs the command line args, without the program's name, and returns the
// exit status.
func (a *App) Main(args []string) int {
	root := a.newRoot()
	root.SetArgs(args)
	err := checkCommand(root, args)
	if err == nil {
		err = root.Execute()
	}
	if err == nil {
		return 0
	}
	status := statusOf(err)
	var known *statusError
	if errors.As(err, &known) {
		status, err = known.status, known.err
	}
	if err != nil {
		a.say("boxd: %s", oneline.Error(err))
	}
	return status
}

// statusOf maps an error to the exit status of boxd run.
func statusOf(err error) int {
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return statusNotFound
	case errors.Is(err, engine.ErrNotExecutable):
		return statusNotExecutable
	}
	return statusFailed
}

// say writes one line to stderr. That it cannot be written can be told nobody.
func (a *App) say(format string, args ...any) {
	fmt.Fprintf(a.Stderr, format+"\n", args...)
}

// Command is the whole command line, for programs that describe it.
func (a *App) Command() *cobra.Command { return a.newRoot() }

func (a *App) newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "boxd",
		Short: "Run untrusted code in hardened Linux boxes, without a container daemon",
		Long: `boxd runs untrusted commands in boxes. A box has its own Linux namespaces, cgroup
limits, a read-only root file system, a seccomp filter and no network but loopback.

boxd run makes a box for a single command. boxd serve runs a daemon that keeps named
sessions, in which boxd exec and boxd start run commands.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetFlagErrorFunc(flagError)
	root.Version = a.versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	help := newHelp()
	root.SetHelpCommand(help)
	root.AddGroup(&cobra.Group{ID: "alone", Title: "Without a daemon:"}, &cobra.Group{ID: "daemon", Title: "The daemon and its sessions:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	add("alone", a.newRun(), a.newDoctor())
	add("daemon", a.newServe(), a.newExec(), a.newShell(), a.newStart(), a.newAttach(), a.newLogs(), a.newStop(), a.newKill(), a.newPs(), a.newCopy(),
		a.newSessions(), a.newInspect(), a.newPrune(), a.newStatus(), a.newTop(), a.newEvents(), a.newAudit(), a.newLangbot())
	root.AddCommand(a.newVersion(), a.newCompletion(), help)
	return root
}
