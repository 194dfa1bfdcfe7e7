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

// wanted are the cgroup2 controllers that boxes get where they exist: for limits
// the first three, for receipts all of them.
var wanted = []string{"memory", "pids", "cpu", "io"}

// enableError says why a controller could not be handed down.
type enableError struct {
	controller string
	dir        string
	err        error
}

func (e *enableError) Error() string {
	return fmt.Sprintf("enabling the %s controller below %s: %v", e.controller, e.dir, e.err)
}

func (e *enableError) Unwrap() error { return e.err }

// enable hands the wanted controllers of dir down to its children. What is
// missing is no failure here: it becomes one when a limit needs it. Enabled
// controllers of the root and of boxd/ stay enabled, others may rely on them.
func enable(dir *os.File, failed map[string]error) error {
	have, err := linux.ReadFileAt(dir, "cgroup.controllers", maxFile)
	if err != nil {
		return err
	}
	on, err := linux.ReadFileAt(dir, "cgroup.subtree_control", maxFile)
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
	// All or nothing: try them one by one to learn which one it is.
	for _, c := range missing {
		if err := linux.WriteFileAt(dir, "cgroup.subtree_control", "+"+c); err != nil && failed[c] == nil {
			failed[c] = &enableError{controller: c, dir: dir.Name(), err: errnoOf(err)}
		}
	}
	return nil
}

// errnoOf strips op and path, which the caller says better.
func errnoOf(err error) error {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err
	}
	return err
}

// mendEnable says what to do about a controller that could not be handed down.
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
