package native

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// account holds everything about one command that comes from the kernel and the launcher,
// independently of its agent.
type account struct {
	box  *box
	slot *slot
	// alone says that no other command overlapped with this one; guarded by box.mu.
	alone bool
	// most are the highest memory and pids limits while the command ran; guarded by
	// box.mu.
	most engine.Limits

	outside  rpc.OutsideHeld // what the box held outside its charge, if a process was killed
	hitOwn   bool            // the kernel killed a process for the memory limit of the slot
	fileSize int64           // the command's file size limit in bytes; none if not above 0
	began    time.Time
	levels   []level // of the volumes before the command ran

	result engine.Result
	err    error
}

// note records an internal failure.
func (a *account) note(err error) { a.err = errors.Join(a.err, err) }

// readUse reads what the command used.
func (a *account) readUse() {
	u, err := a.slot.read()
	if errors.Is(err, unix.ENODEV) {
		return // the cgroup was removed with its box by another process
	}
	if err != nil {
		a.note(err)
		return
	}
	r := &a.result.Receipt
	if a.box.behindGVisor() {
		// The slot has a helper of ours. What the command uses, its kernel uses for it, and for
		// others at the same time. But if the helper is killed for memory, so is the command.
		if positive(u.OOMKills) {
			r.OOMKills = u.OOMKills
		}
		return
	}
	if a.box.wasAlone(a) {
		u = u.Alone()
	}
	r.User, r.System, r.Throttled = usec(u.UserUsec), usec(u.SystemUsec), usec(u.ThrottledUsec)
	a.hitOwn = u.HitOwn(a.slot.memory)
	r.MemoryPeak, r.PIDsPeak = a.box.peaks(a, u.MemoryPeak, u.PIDsPeak)
	r.IOReadBytes, r.IOWriteBytes = u.IORead, u.IOWrite
	r.OOMKills, r.PIDsLimitReached = u.OOMKills, u.PIDsRefused
}

func usec(v *int64) *time.Duration {
	if v == nil {
		return nil
	}
	d := time.Duration(*v) * time.Microsecond
	return &d
}

// ending describes how a command ended, apart from the kernel's counts.
type ending struct {
	reason     engine.Verdict // boxd's own, "" if it ended by itself
	limit      string         // behind reason
	status     unix.WaitStatus
	exited     bool // status is valid
	background bool // it left processes behind
}

// conclude determines why the command ended. boxd's own reasons come first, then the
// limits that the kernel counted, then the command's own doing. A command that coped with
// a limit and exited 0 has simply exited, unless it left processes behind that still run
// into the limit. A status that is not an end is a lie of PID 1.
func (a *account) conclude(e ending) {
	r := &a.result
	r.ExitCode = -1
	if e.exited && e.status.Exited() {
		r.ExitCode = e.status.ExitStatus()
	}
	if e.exited && e.status.Signaled() {
		r.Signal = e.status.Signal()
	}
	if e.exited && !isEnd(e.status) {
		e.reason = engine.BoxLost
	}
	if a.box.behindGVisor() && r.Signal != unix.SIGKILL {
		r.Receipt.OOMKills = nil // of a helper that had only started the command
	}
	failed := r.ExitCode != 0
	limits := a.box.currentLimits()
	switch {
	case e.reason != "":
		r.Verdict, r.Limit = e.reason, e.limit
	case failed && positive(r.Receipt.OOMKills):
		r.Verdict, r.Limit = engine.OOM, spec.FormatSize(a.memoryLimit(limits))+a.heldOutside()
	case (failed || e.background) && positive(r.Receipt.PIDsLimitReached):
		r.Verdict, r.Limit = engine.PIDsLimit, fmt.Sprint(limits.PIDs)
	case r.Signal == unix.SIGXFSZ && a.fileSize > 0:
		r.Verdict, r.Limit = engine.DiskQuota, "file size "+spec.FormatSize(a.fileSize)
	case failed && a.filled() != "":
		r.Verdict, r.Limit = engine.DiskQuota, a.filled()
	case r.Signal != 0:
		r.Verdict = engine.Signaled
	default:
		r.Verdict = engine.Exited
	}
}

// memoryLimit returns the limit that caused the kill: the slot's or the box's.
func (a *account) memoryLimit(box engine.Limits) int64 {
	if own := a.slot.memory; own > 0 && !a.outside.Killed && (a.hitOwn || box.Memory == engine.Unlimited) {
		return own
	}
	return box.Memory
}

// askOutside asks the launcher what the box held outside its charge, if a process was killed,
// possibly for memory.
func (a *account) askOutside(status unix.WaitStatus) {
	r := &a.result.Receipt
	if killed := status.Signaled() && status.Signal() == unix.SIGKILL; !killed && !positive(r.OOMKills) {
		return
	}
	// Without an answer the verdict follows from the kernel's counts alone.
	ctx, cancel := context.WithTimeout(context.Background(), outsideDeadline)
	defer cancel()
	ask := rpc.Outside{ID: a.box.id, Slot: a.slot.name, Age: time.Since(a.began)}
	if a.slot.renewed() {
		ask.Began = linux.Monotonic() - ask.Age
	}
	_, _ = a.box.slots.link.call(ctx, rpc.TypeOutside, ask, &a.outside)
	if a.outside.Killed {
		kills := int64(1)
		if r.OOMKills != nil {
			kills += *r.OOMKills
		}
		r.OOMKills = &kills
	}
}

// lostToMemory reports whether a gVisor box was lost because its kernel, which holds the memory of all
// commands, was killed at the memory limit. It asks the launcher once, and must do so before the box is removed.
func (b *box) lostToMemory() bool {
	b.askFate.Do(func() {
		if !b.behindGVisor() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), outsideDeadline)
		defer cancel()
		var answer rpc.OutsideHeld
		_, err := b.slots.link.call(ctx, rpc.TypeOutside, rpc.Outside{ID: b.id}, &answer)
		b.memoryFate = err == nil && answer.OOM // a box that is gone was removed
	})
	return b.memoryFate
}

// whyLost returns the verdict about a command whose box was lost, and the limit behind it.
func (a *account) whyLost() (engine.Verdict, string) {
	if a.box.lostToMemory() {
		return engine.OOM, spec.FormatSize(a.box.currentLimits().Memory)
	}
	return engine.BoxLost, ""
}

// outsideDeadline bounds the wait for an answer that takes a launcher microseconds.
const outsideDeadline = 2 * time.Second

// heldOutside returns an addition to a memory limit: how much of it was held outside the
// charge.
func (a *account) heldOutside() string {
	h := a.outside
	if h.Locks+h.Sockets == 0 || a.hitOwn && !h.Killed {
		return ""
	}
	by := "file locks and sockets"
	switch {
	case h.Sockets == 0:
		by = "file locks"
	case h.Locks == 0:
		by = "sockets"
	}
	return fmt.Sprintf(", of which %s held by %s outside its charge", spec.FormatSize(h.Locks+h.Sockets), by)
}

// isEnd reports whether s is the status of a process that has ended.
func isEnd(s unix.WaitStatus) bool { return s.Exited() || s.Signaled() }

func positive(v *int64) bool { return v != nil && *v > 0 }

// filled names the volumes that became full while the command ran.
func (a *account) filled() string {
	var names []string
	for _, before := range a.levels {
		if v := before.of; v.filled(before, v.level()) {
			names = append(names, v.describe())
		}
	}
	return strings.Join(names, ", ")
}
