package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/oneshot"
	"github.com/spf13/cobra"
)

// App holds everything that the commands need from outside this package. All fields except
// Signals must be set.
type App struct {
	Version string
	// Stdin, Stdout and Stderr are the streams of the process. A stream that is a file is
	// passed to the command in the box as it is.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// LookupEnv reads the environment of the process.
	LookupEnv func(key string) (string, bool)
	// NewEngine returns the engine that builds boxes.
	NewEngine func(ctx context.Context, options EngineOptions) (engine.Engine, error)
	// OpenImages opens the images of this host below o.DataDir. registries are those of images.Options. The returned
	// function closes the store with all that belongs to it.
	OpenImages func(ctx context.Context, o EngineOptions, registries map[string]images.Registry) (*images.Store, func() error, error)
	// Examine gathers the facts that the doctor reports.
	Examine Examine
	// Serve runs the daemon until it is stopped.
	Serve func(options ServeOptions) error
	// CheckServe returns every reason for which Serve could not start, and what would fail later.
	CheckServe func(options ServeOptions) (found, warnings []error)
	// Signals replaces the signals that this process receives, for tests. Nil means the real ones.
	Signals <-chan os.Signal
}

// EngineOptions tell an engine where its files are.
type EngineOptions struct {
	InitPath string          // the boxd-init binary
	StateDir string          // of locks and leases
	DataDir  string          // of the layers of images; empty: boxes have the host's root only
	Programs config.Programs // of engines
	OneBox   bool            // see native.Options
	// AllowDegraded is that of boxes that unpack images.
	AllowDegraded bool
}

// Exit statuses of boxd itself. They are those of docker run, podman run and timeout(1).
const (
	statusFailed        = 125
	statusNotExecutable = 126
	statusNotFound      = 127
)

// statusConfig is the exit status of a daemon whose configuration is wrong: EX_CONFIG of sysexits.h. It stays wrong until somebody
// changes it, so boxd.service is not restarted then (RestartPreventExitStatus=).
const statusConfig = 78

// statusError ends boxd with status. If err is nil, the user has been told everything already.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return fmt.Sprintf("exit status %d: %v", e.status, e.err) }
func (e *statusError) Unwrap() error { return e.err }

// Main runs the command line args, without the program's name, and returns the
// exit status.
func (a *App) Main(args []string) int {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	root := a.command(name)
	root.SetArgs(args)
	err := checkCommand(root, args)
	if err == nil {
		err = root.Execute()
	}
	if err == nil {
		return 0
	}
	status := statusOf(err)
	if known, ok := errors.AsType[*statusError](err); ok {
		err = known.err
	}
	if err != nil {
		a.say("boxd: %s", oneline.Printable(oneline.Error(err)))
	}
	return status
}

// statusOf maps an error to the exit status of boxd.
func statusOf(err error) int {
	known, ok := errors.AsType[*statusError](err)
	switch {
	case ok:
		return known.status
	case errors.Is(err, engine.ErrNotFound):
		return statusNotFound
	case errors.Is(err, engine.ErrNotExecutable):
		return statusNotExecutable
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		status, _ := oneshot.FailureStatus(e.Code)
		return status
	}
	return statusFailed
}

// say writes one line to stderr. If that fails, there is nowhere to report it.
func (a *App) say(format string, args ...any) {
	fmt.Fprintf(a.Stderr, format+"\n", args...)
}

// Command returns the whole command line. [App.Main] runs it; other programs can describe it.
func (a *App) Command() *cobra.Command { return a.command("") }

// command returns the command line with only the command called name, or with all commands if none has that name, as
// for an alias. Building all of them costs about an eighth of the processor time that boxd needs to start.
func (a *App) command(name string) *cobra.Command {
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
	commands := a.commands()
	if i := slices.IndexFunc(commands, func(c topCommand) bool { return c.name == name }); i >= 0 {
		commands = commands[i : i+1]
	} else {
		root.AddCommand(a.newVersion(), a.newCompletion())
	}
	for _, c := range commands {
		cmd := c.build()
		cmd.GroupID = c.group
		root.AddCommand(cmd)
	}
	root.AddCommand(help)
	return root
}

// topCommand describes a command directly below the root. build returns a command called name.
type topCommand struct {
	group, name string
	build       func() *cobra.Command
}

func (a *App) commands() []topCommand {
	return []topCommand{
		{"alone", "run", a.newRun}, {"alone", "image", a.newImage}, {"alone", "doctor", a.newDoctor}, {"alone", "bench", a.newBench},
		{"daemon", "serve", a.newServe}, {"daemon", "exec", a.newExec}, {"daemon", "code", a.newCode}, {"daemon", "shell", a.newShell}, {"daemon", "start", a.newStart},
		{"daemon", "attach", a.newAttach}, {"daemon", "logs", a.newLogs}, {"daemon", "stop", a.newStop}, {"daemon", "kill", a.newKill}, {"daemon", "pause", a.newPause},
		{"daemon", "resume", a.newResume}, {"daemon", "ps", a.newPs}, {"daemon", "cp", a.newCopy}, {"daemon", "mv", a.newMove}, {"daemon", "watch", a.newWatch},
		{"daemon", "forward", a.newForward}, {"daemon", "ports", a.newPorts}, {"daemon", "link", a.newLink}, {"daemon", "sessions", a.newSessions},
		{"daemon", "volumes", a.newVolumes}, {"daemon", "sensitive", a.newSensitive}, {"daemon", "inspect", a.newInspect}, {"daemon", "prune", a.newPrune},
		{"daemon", "status", a.newStatus}, {"daemon", "top", a.newTop}, {"daemon", "net", a.newNet}, {"daemon", "events", a.newEvents}, {"daemon", "history", a.newHistory},
		{"daemon", "usage", a.newUsage}, {"daemon", "audit", a.newAudit}, {"daemon", "langbot", a.newLangbot}, {"daemon", "mcp", a.newMCP},
	}
}
