package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/doctor"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/spf13/cobra"
)

// checkServe is boxd serve --check: it reports whether the daemon could start with o, and starts
// nothing. If the configuration could not be loaded, loadErr says why.
func (a *App) checkServe(cmd *cobra.Command, o ServeOptions, loadErr error) error {
	signals := a.watchSignals()
	defer signals.Stop()
	var report doctor.Report
	found, warnings := []error{loadErr}, []error(nil)
	if loadErr == nil {
		found, warnings = a.CheckServe(o)
		host := doctor.Host{Version: a.Version, RunDir: o.Config.RuntimeDir, StateDir: o.Config.StateDir, Engines: o.Config.Policy.Engines, InitPath: o.InitPath, InitError: o.InitError}
		host.NewEngine = func(ctx context.Context) (engine.Engine, error) {
			runDir := host.RunDir
			if !isLaunchersDir(runDir) { // the check must not create it
				runDir = defaultStateDir
			}
			return a.NewEngine(ctx, EngineOptions{InitPath: host.InitPath, StateDir: runDir, Programs: o.Config.Programs})
		}
		facts := a.Examine(signals.Context, host)
		report = doctor.NewReport(facts)
		if facts.UID != 0 {
			// The daemon's launcher is root. What takes root could not be tried here.
			report.Checks = slices.DeleteFunc(report.Checks, func(c doctor.Check) bool {
				return c.Name == "privilege" || c.Name == "boxd-init" || c.Name == "box"
			})
			report.OK = true
		}
		report.OK = report.OK && !slices.ContainsFunc(report.Checks, func(c doctor.Check) bool { return c.Status == doctor.Failed })
	}
	if sig := signals.Received(); sig != 0 {
		return &statusError{status: 128 + int(sig)}
	}
	out := a.screen(a.Stdout)
	line := func(status doctor.Status, name, detail string) {
		fmt.Fprintf(out, "%s %-19s %s\n", out.paint(fmt.Sprintf("%-9s", status), stateColour(string(status))), name, detail)
	}
	for _, err := range found {
		line(doctor.Failed, "configuration", oneline.Error(a.traced(cmd, o.ConfigFile, err)))
	}
	if len(found) == 0 {
		line(doctor.OK, "configuration", cmp.Or(o.ConfigFile, "defaults, environment and flags; no file"))
	}
	for _, err := range warnings {
		line(doctor.Degraded, "configuration", oneline.Error(err))
	}
	for _, c := range report.Checks {
		if c.Status != doctor.OK && c.Status != doctor.Absent {
			line(c.Status, c.Name, strings.ReplaceAll(c.Detail, "\n", "; "))
		}
	}
	if len(found) > 0 || !report.OK {
		_, err := fmt.Fprintln(out, "\nboxd serve cannot start like this; boxd doctor --explain says more about the host.")
		return errors.Join(err, &statusError{status: statusUnwell})
	}
	_, err := fmt.Fprintln(out, "\nboxd serve can start.")
	return err
}

// traced adds to err where a refused setting comes from: a flag, a variable or the file.
func (a *App) traced(cmd *cobra.Command, file string, err error) error {
	bad, ok := errors.AsType[*engine.FieldError](err)
	if !ok {
		return err
	}
	key, _, _ := strings.Cut(bad.Field, "[")
	from := a.origin(cmd, bad.Field)
	switch {
	case from != "" && err.Error() == bad.Error():
		return a.nameOrigin(cmd, err)
	case from == "" && file != "" && config.SetIn(file, key):
		from = file
	case from == "":
		return err
	}
	return fmt.Errorf("%s: %w", from, err)
}
