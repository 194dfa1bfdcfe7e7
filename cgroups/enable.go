package cgroups

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// wanted are the cgroup2 controllers that boxes get if they exist: the first three
// for limits, all of them for usage.
var wanted = []string{"memory", "pids", "cpu", "io"}

// enableError says why a controller could not be enabled for children of dir.
type enableError struct {
	controller string
	dir        string
	err        error
}

func (e *enableError) Error() string {
	return fmt.Sprintf("enabling the %s controller below %s: %v", e.controller, e.dir, e.err)
}

func (e *enableError) Unwrap() error { return e.err }

// enable enables the wanted controllers of dir for its children. A controller that is
// missing or cannot be enabled, which it notes in failed, is an error only when a limit
// needs it. Controllers that are enabled in the root and in boxd/ stay enabled, because
// others may rely on them.
func enable(dir *os.File, failed map[string]error) error {
	have, err := linux.ReadFileAt(dir, "cgroup.controllers")
	if err != nil {
		return err
	}
	on, err := linux.ReadFileAt(dir, "cgroup.subtree_control")
	if err != nil {
		return err
	}
	var missing []string
	for _, c := range wanted {
		if slices.Contains(strings.Fields(have), c) && !slices.Contains(strings.Fields(on), c) {
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if linux.WriteFileAt(dir, "cgroup.subtree_control", "+"+strings.Join(missing, " +")) == nil {
		return nil
	}
	// The write enables all or none. Try them one by one to find out which one fails.
	for _, c := range missing {
		if err := linux.WriteFileAt(dir, "cgroup.subtree_control", "+"+c); err != nil && failed[c] == nil {
			if pe, ok := errors.AsType[*os.PathError](err); ok {
				err = pe.Err // enableError words op and path better
			}
			failed[c] = &enableError{controller: c, dir: dir.Name(), err: err}
		}
	}
	return nil
}

// mendEnable says what to do about a controller that could not be enabled.
func mendEnable(err error) string {
	dir := "the parent"
	if e, ok := errors.AsType[*enableError](err); ok {
		dir = e.dir
	}
	switch {
	case errors.Is(err, unix.EBUSY):
		// cgroup-v2.rst, "No Internal Process Constraint".
		return fmt.Sprintf("processes live in %s itself: move them into a child cgroup (mkdir %s/main, write their pids to %s/main/cgroup.procs)", dir, dir, dir)
	case errors.Is(err, unix.EINVAL):
		return "real-time processes may be in a child cgroup (CONFIG_RT_GROUP_SCHED): move them to the root cgroup"
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Sprintf("%s is a threaded cgroup: start boxd in a domain cgroup", dir)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return "run boxd as root with a writable cgroup file system"
	}
	return fmt.Sprintf("write the controller's name to %s/cgroup.subtree_control by hand to see why", dir)
}
