package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

const (
	defaultStateDir = "/run/boxd"
	initName        = "boxd-init"
)

// initDirs are the directories in which packages install programs that users do not start.
var initDirs = []string{"/usr/libexec/boxd", "/usr/lib/boxd"}

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
		if !isProgram(named.path) {
			return "", fmt.Errorf("%w: %s %s: must be an executable file", engine.ErrNoLauncher, named.by, spec.Quote(named.path))
		}
		return named.path, nil
	}
	path, err := installed(initName, "name it with --init or BOXD_INIT")
	if err != nil {
		return "", fmt.Errorf("%w: %w", engine.ErrNoLauncher, err)
	}
	return path, nil
}

// installed finds a program that users do not start: beside boxd, or where packages install it.
func installed(name, hint string) (string, error) {
	dirs := initDirs
	if self, err := os.Executable(); err == nil {
		here := filepath.Dir(self)
		dirs = append([]string{here, filepath.Join(filepath.Dir(here), "libexec/boxd")}, dirs...)
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); isProgram(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s in %s; %s", name, strings.Join(dirs, ", "), hint)
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
