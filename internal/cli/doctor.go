package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/doctor"
	"github.com/spf13/cobra"
)

// Examine finds the facts about a host, usually [doctor.Gather].
type Examine func(ctx context.Context, h doctor.Host) doctor.Facts

func (a *App) newDoctor() *cobra.Command {
	var asJSON, explain bool
	var initPath, stateDir string
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check whether boxes can be built on this host, and how well",
		Long: `Check whether boxes can be built on this host, and how well they are isolated.

The doctor tries every kernel feature and every limit that boxes need, then builds a
box, runs a command in it and removes it. Each line of the report is
  ok         it works
  degraded   boxes can be built, but are weaker in this respect
  unknown    it could not be checked
  failed     no box can be built
  absent     an engine that is not on this host, and that nothing asks for
and says what to do about it. --explain adds the cause on this host, such as a sysctl, a
missing controller, a mount flag or a restriction of the container that boxd runs in,
and the command that fixes it.

Exit status: 0 if a box could be built and a command ran in it, else 1.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(asJSON, explain, initPath, stateDir) },

		DisableFlagsInUseLine: true,
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVar(&explain, "explain", false, "add the cause and the command that fixes it")
	registerEngine(cmd, &initPath, &stateDir)
	return cmd
}

func (a *App) doctor(asJSON, explain bool, initFlag, stateDir string) error {
	signals := a.watchSignals()
	defer signals.Stop()
	host := doctor.Host{Version: a.Version, RunDir: a.stateDir(stateDir), StateDir: config.DefaultStateDir}
	// boxd serve --check reports a configuration that cannot be read.
	programs := a.programs()
	if c, err := config.Load(a.env("", "BOXD_CONFIG"), a.LookupEnv); err == nil && c.StateDir != "" {
		host.StateDir, host.Engines, programs = c.StateDir, c.Policy.Engines, c.Programs
	}
	// BOXD_STATE_DIR may name the directory of a daemon, or one that nothing uses yet. The doctor's
	// launcher must neither write to the first nor create the second.
	if stateDir == "" && !isLaunchersDir(host.RunDir) {
		host.RunDir = defaultStateDir
	}
	host.InitPath, host.InitError = a.initPath(initFlag)
	host.NewEngine = func(ctx context.Context) (engine.Engine, error) {
		return a.NewEngine(ctx, EngineOptions{InitPath: host.InitPath, StateDir: host.RunDir, Programs: programs})
	}
	facts := a.Examine(signals.Context, host)
	report := doctor.NewReport(facts)
	if explain {
		report.Explain(facts)
	}
	out := a.screen(a.Stdout)
	var err error
	if asJSON {
		err = encodeJSON(out, report, "  ")
	} else {
		err = report.WriteText(out, func(text string, s doctor.Status) string { return out.paint(text, stateColour(string(s))) })
	}
	switch sig := signals.Received(); {
	case err != nil:
		return err
	case sig != 0:
		return &statusError{status: 128 + int(sig)}
	case !report.OK:
		return &statusError{status: statusUnwell}
	}
	return nil
}

// isLaunchersDir reports whether dir exists and is not the state directory of a daemon.
func isLaunchersDir(dir string) bool {
	if _, err := os.Stat(dir); err != nil {
		return false
	}
	_, err := os.Stat(filepath.Join(dir, "boxd.db"))
	return errors.Is(err, fs.ErrNotExist)
}
