package cli

import (
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

// initDirs is where packages put programs that are not for people.
var initDirs = []string{"/usr/libexec/boxd", "/usr/lib/boxd"}

// stateDir is the directory of --state-dir, of BOXD_STATE_DIR, or the default.
func (a *App) stateDir(flag string) string {
	if flag != "" {
		return flag
	}
	if dir, _ := a.LookupEnv("BOXD_STATE_DIR"); dir != "" {
		return dir
	}
	return defaultStateDir
}

// initPath finds boxd-init. One that was named and is not there is an error, not
// a reason to look elsewhere.
func (a *App) initPath(flag string) (string, error) {
	fromEnv, _ := a.LookupEnv("BOXD_INIT")
	for _, named := range []struct{ by, path string }{{"--init", flag}, {"BOXD_INIT", fromEnv}} {
		if named.path == "" {
			continue
		}
		if !isProgram(named.path) {
			return "", fmt.Errorf("%w: %s %s: must be an executable file", engine.ErrNoLauncher, named.by, spec.Quote(named.path))
		}
		return named.path, nil
	}
	dirs := initDirs
	if self, err := os.Executable(); err == nil {
		here := filepath.Dir(self)
		dirs = append([]string{here, filepath.Join(filepath.Dir(here), "libexec/boxd")}, dirs...)
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, initName); isProgram(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no %s in %s; name it with --init or BOXD_INIT", engine.ErrNoLauncher, initName, strings.Join(dirs, ", "))
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
