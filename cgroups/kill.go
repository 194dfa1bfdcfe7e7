package cgroups

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Kill sends SIGKILL to every process of the box, PID 1 included, without waiting for them
// to exit. It is not an error if the box is gone.
func (g *Group) Kill() error {
	var errs []error
	if g.v2.box != nil {
		errs = append(errs, killTree(g.v2.box))
	}
	for _, t := range g.v1 {
		// A process whose start failed between v1 and cgroup2 is only on v1.
		pids, err := treePIDs(t.box, "", leaders)
		if err == nil && len(pids) > 0 {
			err = signalAll(pids, unix.SIGKILL, func() ([]int, error) { return treePIDs(t.box, "", leaders) })
		}
		errs = append(errs, err)
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

// freezeAndKill stands in for cgroup.kill on kernels before 5.14: a frozen tree cannot
// fork, and frozen processes of cgroup2 can be killed.
func freezeAndKill(dir *os.File) error {
	if err := linux.WriteFileAt(dir, "cgroup.freeze", "1"); err != nil && !gone(err) {
		return err
	}
	err := signalTree(dir, unix.SIGKILL)
	// Freezing is asynchronous: signalTree kills processes that were forked meanwhile in
	// further rounds, and thawing lets the last ones die.
	return errors.Join(err, ignoreGone(linux.WriteFileAt(dir, "cgroup.freeze", "0")))
}

// signalRounds bounds how often signalTree looks for new processes.
const signalRounds = 64

// signalTree sends sig once to every process in and below dir, and repeats this for new
// processes until it finds none.
func signalTree(dir *os.File, sig unix.Signal) error {
	seen := map[int]bool{}
	for range signalRounds {
		pids, err := treePIDs(dir, "", members)
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
		err = signalAll(fresh, sig, func() ([]int, error) { return treePIDs(dir, "", members) })
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("signalling %s: new processes appear faster than they get signal %d", dir.Name(), sig)
}

// maxPidfds is how many pidfds signalAll holds at a time: a box may have more processes
// than the launcher may have descriptors.
const maxPidfds = 128

// signalAll is signalSome for any number of processes.
func signalAll(pids []int, sig unix.Signal, list func() ([]int, error)) error {
	for some := range slices.Chunk(pids, maxPidfds) {
		if err := signalSome(some, sig, list); err != nil {
			return err
		}
	}
	return nil
}

// signalSome sends sig to those of pids that list still returns after a pidfd of each was
// opened. So it never signals a stranger that was given one of the PIDs in between: either
// list does not return the stranger's PID, or the pidfd is of the process that has exited
// and gives ESRCH.
func signalSome(pids []int, sig unix.Signal, list func() ([]int, error)) error {
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
	still, err := list()
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

// treePIDs lists the processes in and below name of dir, where list is members or leaders. A
// cgroup that is gone has none.
func treePIDs(dir *os.File, name string, list func(dir *os.File, name string) ([]int, error)) ([]int, error) {
	pids, err := list(dir, name)
	if err != nil {
		return nil, err
	}
	children, err := subdirectories(dir, join(name, "."))
	if err != nil {
		return nil, ignoreGone(err)
	}
	for _, c := range children {
		more, err := treePIDs(dir, join(name, c), list)
		if err != nil {
			return nil, err
		}
		pids = append(pids, more...)
	}
	return pids, nil
}

// members lists the processes that have a thread in name.
func members(dir *os.File, name string) ([]int, error) {
	return readPIDs(dir, join(name, "cgroup.procs"))
}

// leaders lists the other processes whose main thread is in name. On v1, cgroup.procs also
// names processes with only another thread there, such as a launcher that is building the
// box. Their PIDs are not in tasks.
func leaders(dir *os.File, name string) ([]int, error) {
	procs, err := members(dir, name)
	if err != nil {
		return nil, err
	}
	tasks, err := readPIDs(dir, join(name, "tasks"))
	return slices.DeleteFunc(procs, func(pid int) bool {
		return pid == os.Getpid() || !slices.Contains(tasks, pid)
	}), err
}

// Processes returns the processes in any cgroup of the box, on any hierarchy.
func (g *Group) Processes() (pids []int, err error) {
	for _, t := range g.trees() {
		if t.box == nil {
			continue
		}
		more, err := treePIDs(t.box, "", members)
		if err != nil {
			return nil, fmt.Errorf("processes of box %q: %w", g.ID, err)
		}
		pids = append(pids, more...)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Processes lists the processes in a cgroup2 directory, without those in its children. A
// cgroup that is gone has none.
func Processes(dir *os.File) ([]int, error) { return members(dir, "") }

// readPIDs reads a list of PIDs. A cgroup that is gone has none. readPIDs omits 0, which
// stands for a process of another PID namespace.
func readPIDs(dir *os.File, name string) ([]int, error) {
	f, err := linux.OpenAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, ignoreGone(err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, ignoreGone(err)
	}
	var pids []int
	for field := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// gone reports whether err means that the cgroup was removed.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}

func ignoreGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}
