package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/session"
	"golang.org/x/sys/unix"
)

// lockState makes this process the only daemon of the state directory. It comes before everything
// else, so that a second daemon does not disturb the first.
func lockState(dir string, a account) (lock *os.File, err error) {
	err = asUser(a, func() error {
		lock, err = session.LockState(dir)
		return err
	})
	if errors.Is(err, fs.ErrPermission) {
		return nil, explainWay(dir, a, err)
	}
	return lock, err
}

// explainWay returns an error that names the directory above the state directory dir that the
// daemon's user may not enter. If there is none, it returns err.
func explainWay(dir string, a account, err error) error {
	real, serr := filepath.EvalSymlinks(dir)
	if serr != nil {
		return err
	}
	for i, c := range real + "/" {
		if i == 0 || c != '/' {
			continue
		}
		at := real[:i]
		entered := asUser(a, func() error {
			f, err := os.OpenFile(at+"/.", unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				return err
			}
			return f.Close()
		})
		if errors.Is(entered, fs.ErrPermission) {
			info, serr := os.Stat(at)
			if serr != nil {
				return err
			}
			return &engine.FieldError{Field: "state_dir", Value: spec.Quote(dir), Rule: fmt.Sprintf(
				"the daemon's user %s may not enter %s, which has mode %04o: allow it (chmod o+x), or name another --state-dir", a, spec.Quote(at), info.Mode().Perm())}
		}
	}
	return err
}
