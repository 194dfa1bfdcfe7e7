package cgroups

import (
	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// A slot serves several commands, one after the other, if the kernel shows that it is as good as
// a new one for each figure of a receipt:
//
//   - CPU time only grows, and is subtracted. The sum of user and system time is as exact as in a
//     new slot. The split comes from samples at clock ticks, which the kernel scales to the sum
//     over the whole life of the cgroup (cputime_adjust in kernel/sched/cputime.c). Earlier
//     commands shift it by at most what they used and one tick each, so a slot ends at
//     renewUsec and renewMost.
//   - The peak of memory can be reset. It then begins at what is still charged, of which up to
//     64 pages for each processor are charged ahead (MEMCG_CHARGE_BATCH in mm/memcontrol.c) and
//     nobody can tell them from others. A new slot charges ahead as well. So a receipt exceeds
//     what the command used by up to 64 pages for each processor, and in a renewed slot by up to
//     renewCharge more.
//   - The peak of processes and threads can be neither reset nor subtracted. But every command has
//     at least one, so a peak of one is right for the next command too.
//   - Kills for memory and refused forks must not have happened.
//
// What earlier commands left must not be charged to the slot while the next one runs. A process
// may have got their descriptors: events of inotify, for one, are charged to the cgroup that
// created the descriptor, and another command can make them. So a slot is renewed only after a
// moment at which the box had no process at all, see [SlotStats.Quiet]. (Descriptors in flight between
// sockets of dead processes are closed by a worker of the kernel some time later; events within
// that time would still be charged.) Pages that were swapped out come back to the slot when
// anybody uses them, so swap counts as charged.
//
// Slots with statistics of cgroup2 controllers are not renewed. The kernel charges writeback to the
// cgroup that wrote first to a file since its inode was cached, whoever writes later (inode_to_wb
// in include/linux/backing-dev.h), and does not show for which files that is so. memory.peak can be
// reset since Linux 6.12 only.
const (
	renewCharge = 512 << 10 // bytes
	renewUsec   = 10_000
	renewMost   = 10 // times
)

// renewing are the files without which a slot is not renewed, and others those with which it is not.
var (
	renewing = []int{StatEvents, StatCPU, StatMemoryPeak, StatMemoryEvents, StatPIDsPeak, StatPIDsEvents, StatCharge, StatBoxEvents}
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
	return is(u.PIDsPeak, 1) && is(u.OOMKills, 0) && is(u.PIDsRefused, 0) && spent <= renewUsec && s.renewals < renewMost
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
	s.renewals++
	s.earlierUser, s.earlierSystem = *user, *system
	s.countBox()
	return true
}

// RenewNever closes the files that only a renewal needs.
func (s *SlotStats) RenewNever() {
	for _, file := range []int{StatCharge, StatBoxEvents} {
		if s.files[file] != nil {
			s.files[file].Close()
			s.files[file] = nil
		}
	}
}

// Renewals returns how many commands the slot has served before.
func (s *SlotStats) Renewals() int { return s.renewals }

// Quiet reports whether no process is in any slot of the box now. Zombies do not count: they have
// no descriptors.
func (s *SlotStats) Quiet() bool {
	if s.files[StatBoxEvents] == nil {
		return false
	}
	populated, err := isPopulated(s.files[StatBoxEvents])
	return err == nil && !populated
}
