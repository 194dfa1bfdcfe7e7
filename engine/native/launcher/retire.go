package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/internal/leftover"
)

// Retire is the role "sweep --state-dir DIR", for the removal of boxd from a host: it ends the boxes of all
// launchers that have died and, unlike other sweeps, those of a service that has been stopped. Then it
// removes the cgroup that held them and the state directory, unless another launcher uses them. It fails if a
// service launcher runs, or if a box cannot be removed. The daemon's records of sessions stay.
func Retire(args []string) error {
	if len(args) != 2 || args[0] != "--state-dir" || !filepath.IsAbs(args[1]) {
		return fmt.Errorf("arguments %q: want --state-dir DIR, absolute", args)
	}
	state := args[1]
	if _, err := os.Stat(state); errors.Is(err, fs.ErrNotExist) {
		return nil // no launcher has run since the host booted
	}
	host, err := cgroups.Detect()
	if err != nil {
		return err
	}
	defer host.Close()
	global, err := lockPatiently(filepath.Join(state, "lock"), lockTime)
	if err != nil {
		return fmt.Errorf("locking state directory: %w", err)
	}
	defer global.Close()
	switch service, err := findService(state); {
	case err != nil:
		return err
	case service != nil:
		err := os.Remove(filepath.Join(service.dir, serviceName))
		service.lock.Close() // now it is a dead launcher's
		if err != nil {
			return err
		}
	}
	failed, err := sweep(context.Background(), state, host)
	if line := leftover.Line(failed); line != "" {
		err = errors.Join(err, errors.New(line))
	}
	if others, gerr := filepath.Glob(filepath.Join(state, instancePrefix+"*")); err != nil || gerr != nil || len(others) > 0 {
		return errors.Join(err, gerr)
	}
	return errors.Join(host.RemoveBase(), os.RemoveAll(state))
}
