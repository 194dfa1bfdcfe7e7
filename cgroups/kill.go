package cgroups

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Kill sends SIGKILL to every process of the box, PID 1 included, and returns
// without waiting for them to end. A box that is gone is no error.
func (g *Group) Kill() error {
	var errs []error
	if g.v2.box != nil {
		errs = append(errs, killTree(g.v2.box))
	}
	for _, t := range g.v1 {
		// Who died between birth on v1 and arrival on cgroup2 is only there.
		errs = append(errs, killStrays(t.box))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("killing box %q: %w", g.ID, err)
	}
	return nil
}

// killTree kills all processes in and below dir, a cgroup2 directory.
func killTree(dir *os.File) error {
	err := linux.WriteFileAt(dir, "cgroup.kill", "1")
	if err == nil || gone(err) && !exists(dir, "cgroup.procs") {
		return nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	return freezeAndKill(dir)
}

// freezeAndKill is cgroup.kill for kernels before 5.14: a frozen tree cannot
// fork, and frozen processes of cgroup2 can be killed.
func freezeAndKill(dir *os.File) error {
	if err := linux.WriteFileAt(dir, "cgroup.freeze", "1"); err != nil && !gone(err) {
		return err
	}
	err := signalTree(dir, unix.SIGKILL)
	// The freezer is asynchronous: what forked meanwhile is killed by a further
	// round, and thawing lets the last ones die.
	return errors.Join(err, ignoreGone(linux.WriteFileAt(dir, "cgroup.freeze", "0")))
}

// signalRounds bounds how often signalTree looks for new processes.
const signalRounds = 64

// signalTree sends sig once to every process in and below dir, until a round
// finds no new one.
func signalTree(dir *os.File, sig unix.Signal) error {
	seen := map[int]bool{}
	for range signalRounds {
		pids, err := treePIDs(dir, "")
		if err != nil {
			return err
		}
		fresh := slices.DeleteFunc(pids, func(pid int) bool { return seen[pid] })
		if len(fresh) == 0 {
			return nil
		}
		for _, pid := range fresh {
			seen[pid] = true
		}
		err = signalAll(fresh, sig, func() ([]int, error) { return treePIDs(dir, "") })
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("signalling %s: new processes appear faster than they get signal %d", dir.Name(), sig)
}

// maxPidfds is how many pidfds one call of signalAll holds at a time: a box may
// have more processes than the launcher may have descriptors.
const maxPidfds = 128

// signalAll is signalMembers for any number of processes.
func signalAll(pids []int, sig unix.Signal, members func() ([]int, error)) error {
	for some := range slices.Chunk(pids, maxPidfds) {
		if err := signalMembers(some, sig, members); err != nil {
			return err
		}
	}
	return nil
}

// signalMembers sends sig to those of pids that members still lists after a
// pidfd of each was opened. A pid that was given to a stranger in between is
// thus never signalled: either the stranger is no member, or the member has
// ended and its pidfd says ESRCH.
func signalMembers(pids []int, sig unix.Signal, members func() ([]int, error)) error {
	pidfds := map[int]*os.File{}
	defer func() {
		for _, f := range pidfds {
			f.Close()
		}
	}()
	for _, pid := range pids {
		f, err := linux.PidfdOpen(pid)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return err
		}
		pidfds[pid] = f
	}
	still, err := members()
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range still {
		if f := pidfds[pid]; f != nil {
			if err := linux.PidfdSignal(f, sig); !errors.Is(err, unix.ESRCH) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// treePIDs lists the processes in and below name of dir. A cgroup that is gone
// has none.
func treePIDs(dir *os.File, name string) ([]int, error) {
	pids, err := readPIDs(dir, join(name, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	children, err := subdirectories(dir, join(name, "."))
	if err != nil {
		return nil, ignoreGone(err)
	}
	for _, c := range children {
		more, err := treePIDs(dir, join(name, c))
		if err != nil {
			return nil, err
		}
		pids = append(pids, more...)
	}
	return pids, nil
}

// killStrays kills the processes in and below a v1 directory.
func killStrays(dir *os.File) error {
	leaders := func() ([]int, error) { return strays(dir, ".") }
	pids, err := leaders()
	if err != nil || len(pids) == 0 {
		return err
	}
	return signalAll(pids, unix.SIGKILL, leaders)
}

// strays lists the processes whose first thread is in or below name. On v1
// cgroup.procs also names a process that has only some other thread there: a
// launcher that is just building the box. Its process id is not in tasks.
func strays(dir *os.File, name string) ([]int, error) {
	procs, err := readPIDs(dir, join(name, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	tasks, err := readPIDs(dir, join(name, "tasks"))
	if err != nil {
		return nil, err
	}
	pids := slices.DeleteFunc(procs, func(pid int) bool {
		return pid == os.Getpid() || !slices.Contains(tasks, pid)
	})
	children, err := subdirectories(dir, name)
	if err != nil {
		return nil, ignoreGone(err)
	}
	for _, c := range children {
		more, err := strays(dir, join(name, c))
		if err != nil {
			return nil, err
		}
		pids = append(pids, more...)
	}
	return pids, nil
}

// Processes returns the processes that are in a cgroup of the box on any hierarchy.
func (g *Group) Processes() (pids []int, err error) {
	for _, t := range g.trees() {
		if t.box == nil {
			continue
		}
		more, err := treePIDs(t.box, "")
		if err != nil {
			return nil, fmt.Errorf("processes of box %q: %w", g.ID, err)
		}
		pids = append(pids, more...)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Processes lists the processes in a cgroup2 directory, those below it not included. One
// that is gone has none.
func Processes(dir *os.File) ([]int, error) { return readPIDs(dir, "cgroup.procs") }

// readPIDs reads a list of process ids. A cgroup that is gone has none; 0 is a
// process of another pid namespace and is left out.
func readPIDs(dir *os.File, name string) ([]int, error) {
	f, err := linux.OpenAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, ignoreGone(err)
	}
	defer f.Close()
	text, err := readAll(f)
	if err != nil {
		return nil, ignoreGone(err)
	}
	var pids []int
	for field := range strings.FieldsSeq(text) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// gone says that err means "this cgroup was removed".
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}

func ignoreGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}
