package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// removeTimeout bounds Remove where ctx does not.
const removeTimeout = 10 * time.Second

// Remove removes the cgroups of the box, and boxd/ with the last one, and closes
// the Group. It waits for processes that are dying already but kills none.
// Removing what is gone is no error.
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
		// The descriptors stay open: the caller may try again.
		return fmt.Errorf("removing cgroup %q: %w", g.ID, err)
	}
	for _, t := range g.trees() {
		// Other boxes may be in it, or just be made.
		_ = linux.RmdirAt(t.on.dir, baseName)
	}
	return g.Close()
}

// removeFrom removes the box from one hierarchy, again and again while it is
// busy. Only cgroup2 tells when it is empty; v1 follows within the same exit, so
// that little is left to poll for.
func (g *Group) removeFrom(ctx context.Context, t *tree) error {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := removeTree(t.on.dir, baseName+"/"+g.ID)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if !t.on.v1 {
			if werr := g.WaitEmpty(ctx); werr != nil {
				return errors.Join(err, werr)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
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

// join is path.Join for relative names, where "" is the directory itself.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// readAll returns the content of a list file.
func readAll(f *os.File) (string, error) {
	text, err := io.ReadAll(f)
	return string(text), err
}
