package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/boxd/boxd/engine"
	"golang.org/x/sys/unix"
)

// The data directory holds the volumes and the project ids in use (package volumes). Unlike
// the state directory it survives a reboot. An image in it is a file system that the kernel
// mounts and trusts: write access to it would be control of the kernel.

// checkDataDir makes the data directory if it is missing; its parent must exist. It refuses
// a directory that anyone but root could write or replace.
func checkDataDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("data directory: %w", err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if real != filepath.Clean(dir) {
		return fmt.Errorf("data directory %q: passes a symlink, name the real path %q", dir, real)
	}
	for d := real; ; d = filepath.Dir(d) {
		var st unix.Stat_t
		if err := unix.Lstat(d, &st); err != nil {
			return fmt.Errorf("data directory: %w", &os.PathError{Op: "lstat", Path: d, Err: err})
		}
		writable := st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return fmt.Errorf("data directory %q: must be a directory", d)
		case d == real && (st.Uid != 0 || st.Mode&0o077 != 0):
			return fmt.Errorf("data directory %q: must belong to root and be closed to all others (chown root, chmod 700)", d)
		case st.Uid != 0 || writable:
			return fmt.Errorf("data directory %q: %q must belong to root, and either be writable by root only or have the sticky bit: otherwise another directory could be put in its place", real, d)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// dataStore is a store in the data directory that is opened when it is first needed.
type dataStore[S any] struct {
	dir string // the data directory

	opening sync.Mutex
	store   *S // nil until the data directory could be opened
}

// open opens the store, unless it is open. It tries each time, because the operator may have corrected
// the data directory meanwhile.
func (d *dataStore[S]) open(open func() (*S, error)) error {
	d.opening.Lock()
	defer d.opening.Unlock()
	if d.store != nil {
		return nil
	}
	if err := checkDataDir(d.dir); err != nil {
		return fmt.Errorf("%w: %w", engine.ErrUnenforceable, err)
	}
	store, err := open()
	if err != nil {
		return fmt.Errorf("%w: data directory %q: %w", engine.ErrUnenforceable, d.dir, err)
	}
	d.store = store
	return nil
}
