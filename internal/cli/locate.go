package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/installed"
)

const defaultStateDir = "/run/boxd"

// stateDir returns the directory of --state-dir, of BOXD_STATE_DIR, or the default.
func (a *App) stateDir(flag string) string {
	return cmp.Or(a.env(flag, "BOXD_STATE_DIR"), defaultStateDir)
}

// initPath finds boxd-init. If a path was given and has no program, that is an error: initPath
// does not look elsewhere then.
func (a *App) initPath(flag string) (string, error) {
	for _, named := range []struct{ by, path string }{{"--init", flag}, {"BOXD_INIT", a.env("", "BOXD_INIT")}} {
		if named.path == "" {
			continue
		}
		if !installed.IsProgram(named.path) {
			return "", fmt.Errorf("%w: %s %s: must be an executable file", engine.ErrNoLauncher, named.by, spec.Quote(named.path))
		}
		return named.path, nil
	}
	path, err := find(installed.Init, "name it with --init or BOXD_INIT")
	if err != nil {
		return "", fmt.Errorf("%w: %w", engine.ErrNoLauncher, err)
	}
	return path, nil
}

// find is installed.Find that says where it has looked, and hint, if there is no such program.
func find(name, hint string) (string, error) {
	path, looked := installed.Find(name)
	if path == "" {
		return "", fmt.Errorf("no %s in %s; %s", name, strings.Join(looked, ", "), hint)
	}
	return path, nil
}
