package cgroups

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// A slot may serve several commands, one after the other, if the kernel shows that it is as
// good as a new one for each figure of a receipt:
//
//   - CPU time grows, and is subtracted. Its sum is exact. Its split into user and system time
//     comes from samples at clock ticks, which the kernel scales to the sum over the whole life
//     of the cgroup (cputime_adjust in kernel/sched/cputime.c). So what commands used before
//     can shift the split, by about as much as they used: a slot ends at renewUsec.
//   - The peak of memory can be reset, and then is what is still charged. Each processor may
//     hold up to 64 pages ahead for a cgroup (MEMCG_CHARGE_BATCH), in a new slot as well. So a
//     receipt may exceed what the command used by 64 pages for each processor, and by
//     renewCharge.
//   - The peak of processes and threads can be neither reset nor subtracted. But no command has
//     less than one, so a peak of one says nothing that is not true of the next command too.
//   - The counts of kills and of refused forks must be zero.
//
// Nothing may be charged to a slot for what its earlier commands left. Processes may hold
// descriptors of them, such as those of inotify, which charges its events to the cgroup that has
// created it. [Quiet] tells when there is no such process. Pages that were swapped out return to
// the slot when they are used again, by anybody: so they count as charged.
//
// On cgroup2, slots are not renewed: the kernel charges writes to the cgroup that has first
// written to a file since it was cached, whoever writes to it later (inode_to_wb), and nothing
// shows of which files that is true. Memory.peak can be reset since Linux 6.12, per descriptor.
const (
	renewCharge = 512 << 10
	renewUsec   = 20_000
)

// renewing are the files without which a slot cannot be renewed, and others the files with
// figures that could not be.
var (
	renewing = []int{StatEvents, StatCPU, StatMemoryPeak, StatMemoryEvents, StatPIDsPeak, StatPIDsEvents, StatCharge}
	others   = []int{StatThrottled, StatIO}
)

// Renewable reports whether the slot may serve another command after one that has used u.
func (s *SlotStats) Renewable(u Usage) bool {
	for _, file := range renewing {
		if s.files[file] == nil {
			return false
		}
	}
	for _, file := range others {
		if s.files[file] != nil {
			return false
		}
	}
	is := func(n *int64, want int64) bool { return n != nil && *n == want }
	spent := s.earlierUser + s.earlierSystem + value(u.UserUsec) + value(u.SystemUsec)
	return is(u.PIDsPeak, 1) && is(u.OOMKills, 0) && is(u.PIDsRefused, 0) && spent <= renewUsec
}

// Renew makes s count for another command in the slot from now on. It returns false if too much
// is charged to the slot, or if the kernel does not do what it should; the slot is of no use then.
// The caller has found the slot renewable, and a quiet moment since its last command.
func (s *SlotStats) Renew() bool {
	// Whatever is written resets it. pwrite(2) does not work on files of v1.
	if err := linux.Retry(func() error { _, err := unix.Write(int(s.files[StatMemoryPeak].Fd()), []byte("0")); return err }); err != nil {
		return false
	}
	for _, file := range []int{StatMemoryPeak, StatCharge} {
		if n, err := s.number(file, ""); err != nil || n == nil || *n > renewCharge {
			return false
		}
	}
	text, err := s.read(StatCPU)
	if err != nil {
		return false
	}
	user, err := findNumber(text, "user_usec")
	system, err2 := findNumber(text, "system_usec")
	if err != nil || err2 != nil || user == nil || system == nil {
		return false
	}
	s.earlierUser, s.earlierSystem = *user, *system
	s.countBox()
	return true
}

// Quiet tells whether no process is in any slot of a box. Only one goroutine may use it at a time.
type Quiet struct{ events *os.File }

// OpenQuiet returns the Quiet of the box of a slot, whose [Slot.Dir] it gets. The caller closes it.
func OpenQuiet(dir *os.File) (*Quiet, error) {
	f, err := linux.OpenAt(dir, "../cgroup.events", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return &Quiet{f}, nil
}

// Now reports whether there is no process now. Zombies do not count: they have no descriptors.
func (q *Quiet) Now() bool {
	populated, err := isPopulated(q.events)
	return err == nil && !populated
}

// Close closes the file.
func (q *Quiet) Close() error { return q.events.Close() }
