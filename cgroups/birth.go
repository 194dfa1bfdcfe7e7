package cgroups

import (
	"errors"
	"fmt"
	"os"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// InitDir opens the cgroup2 directory for starting PID 1 of the box with
// clone3(CLONE_INTO_CGROUP), as [Slot.Dir] is for commands. The caller owns it.
func (g *Group) InitDir() (*os.File, error) {
	dir, err := openDir(g.sealed, "init")
	if err != nil {
		return nil, fmt.Errorf("opening the cgroup of PID 1 of box %q: %w", g.ID, err)
	}
	return dir, nil
}

// EnterThread moves the calling thread into the v1 cgroups of the box, so that the next
// process that it starts begins there. The goroutine must be locked to its thread.
// LeaveThread must follow; if either fails, the thread must be thrown away (never
// unlocked). On a host without v1 hierarchies it does nothing.
func (g *Group) EnterThread() error {
	for _, t := range g.v1 {
		if err := linux.WriteFileAt(t.box, "tasks", "0"); err != nil {
			return errors.Join(fmt.Errorf("entering cgroup %q: %w", g.ID, err), g.LeaveThread())
		}
	}
	return nil
}

// InitTasks opens the v1 tasks files of the cgroups of PID 1: a thread of another process that
// writes "0" to each of them enters the v1 cgroups of the box, as EnterThread does. The caller
// owns them. On a host without v1 hierarchies there are none.
func (g *Group) InitTasks() (_ []*os.File, err error) {
	var files []*os.File
	defer func() {
		if err != nil {
			linux.CloseAll(files)
		}
	}()
	for _, t := range g.v1 {
		f, err := linux.OpenAt(t.box, "tasks", unix.O_WRONLY)
		if err != nil {
			return nil, fmt.Errorf("opening the cgroups of PID 1 of box %q: %w", g.ID, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// LeaveThread moves the calling thread back to the cgroups in which this process was when
// the Host was detected.
func (g *Group) LeaveThread() error {
	var errs []error
	for _, t := range g.v1 {
		errs = append(errs, linux.WriteFileAt(t.on.dir, t.on.home+"/tasks", "0"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("leaving cgroup %q: %w", g.ID, err)
	}
	return nil
}
