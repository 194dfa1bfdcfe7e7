package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// removeTimeout bounds Remove if ctx does not.
const removeTimeout = 10 * time.Second

// Remove removes the cgroups of the box, and boxd/ with the last box, and closes the Group.
// It waits for dying processes but kills none. It is not an error if the cgroups are gone.
func (g *Group) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	var errs []error
	for _, t := range g.trees() {
		if t.box == nil {
			continue
		}
		errs = append(errs, g.removeFrom(ctx, t))
	}
	if err := errors.Join(errs...); err != nil {
		// The descriptors stay open, so that the caller may retry.
		return fmt.Errorf("removing cgroup %q: %w", g.ID, err)
	}
	for _, t := range g.trees() {
		// It fails if other boxes are in it.
		_ = linux.RmdirAt(t.on.dir, baseName)
	}
	return g.Close()
}

// removeFrom removes the box from one hierarchy, and retries while it is busy. Only cgroup2
// announces when it is empty. On v1, an exiting process leaves its cgroups at almost the same
// time, so polling does not take long.
func (g *Group) removeFrom(ctx context.Context, t *tree) error {
	var busy error
	end := poll(ctx, 100*time.Microsecond, 20*time.Millisecond, func() (done bool, err error) {
		busy = nil
		if err := removeTree(t.on.dir, baseName+"/"+g.ID); !errors.Is(err, unix.EBUSY) {
			return true, err
		} else if busy = err; t.on.v1 {
			return false, nil
		}
		return false, g.WaitEmpty(ctx) // if it cannot be waited for, more attempts are of no use
	})
	return errors.Join(busy, end)
}

// whileBusy repeats fn while its error is EBUSY, until ctx ends.
func whileBusy(ctx context.Context, fn func() error) error {
	var err error
	end := poll(ctx, 100*time.Microsecond, 20*time.Millisecond, func() (bool, error) {
		err = fn()
		return !errors.Is(err, unix.EBUSY), nil
	})
	return errors.Join(err, end)
}

// removeTree removes the cgroup name beneath dir, children first.
func removeTree(dir *os.File, name string) error {
	if err := linux.RmdirAt(dir, name); err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	} else if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	children, err := subdirectories(dir, name)
	if err != nil {
		return ignoreGone(err)
	}
	for _, c := range children {
		if err := removeTree(dir, join(name, c)); err != nil {
			return err
		}
	}
	return ignoreGone(linux.RmdirAt(dir, name))
}

// subdirectories lists the child cgroups of name beneath dir.
func subdirectories(dir *os.File, name string) ([]string, error) {
	f, err := linux.OpenAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// join joins relative names, where "" is the directory itself.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
