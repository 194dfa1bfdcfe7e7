package cli

import (
	"context"
	"encoding/json"
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

// statusIll says that no box can be built, which is an answer and not a failure
// of boxd.
const statusIll = 1

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
	registerEngine(cmd.Flags(), &initPath, &stateDir)
	must(cmd.MarkFlagFilename("init"))
	must(cmd.MarkFlagDirname("state-dir"))
	return cmd
}

func (a *App) doctor(asJSON, explain bool, initFlag, stateDir string) error {
	signals := a.watchSignals()
	defer signals.stop()
	host := doctor.Host{Version: a.Version, RunDir: a.stateDir(stateDir), StateDir: config.DefaultStateDir}
	// A configuration that cannot be read is for boxd serve to complain of.
	if c, err := config.Load(a.env("", "BOXD_CONFIG"), a.LookupEnv); err == nil && c.StateDir != "" {
		host.StateDir = c.StateDir
	}
	// BOXD_STATE_DIR names the directory of a daemon or that of launchers. The doctor's own
	// launcher makes nothing in a daemon's, nor a directory that nobody uses.
	if stateDir == "" && !isLaunchersDir(host.RunDir) {
		host.RunDir = defaultStateDir
	}
	host.InitPath, host.InitError = a.initPath(initFlag)
	host.NewEngine = func(ctx context.Context) (engine.Engine, error) {
		return a.NewEngine(ctx, EngineOptions{InitPath: host.InitPath, StateDir: host.RunDir})
	}
	facts := a.Examine(signals.ctx, host)
	report := doctor.NewReport(facts)
	if explain {
		report.Explain(facts)
	}
	if err := a.writeReport(report, asJSON); err != nil {
		return err
	}
	switch sig := signals.received(); {
	case sig != 0:
		return &statusError{status: 128 + int(sig)}
	case !report.OK:
		return &statusError{status: statusIll}
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

func (a *App) writeReport(r doctor.Report, asJSON bool) error {
	if !asJSON {
		out := a.screen(a.Stdout)
		return r.WriteText(out, func(text string, s doctor.Status) string { return out.paint(text, stateColour(string(s))) })
	}
	enc := json.NewEncoder(a.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
