package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Usage is the resource usage of one command, its descendants included. A figure that
// this host does not provide, or not separately for each command, is nil.
type Usage struct {
	UserUsec, SystemUsec *int64 // CPU time in µs
	ThrottledUsec        *int64 // µs that it waited because of the CPU limit, summed over cores
	MemoryPeak           *int64 // bytes, page cache included
	PIDsPeak             *int64 // processes and threads at once
	OOMKills             *int64 // kills for memory: of the whole command on cgroup2, of one process on v1
	OOMs                 *int64 // how often the slot's own limit was the reason; cgroup2 only
	PIDsRefused          *int64 // forks that the pids limit refused
	// Bytes read from and written to block devices so far, without what is still in the
	// page cache.
	IORead, IOWrite *int64

	// Figures of the whole box since [OpenStats] or [SlotStats.Renew], for all commands. Nil if the kernel
	// provides them for each command.
	BoxThrottledUsec *int64
	BoxPIDsRefused   *int64
}

// Alone completes u for a command that was the only live command of the box since OpenStats:
// then the figures of the box are those of the command. Only the caller knows whether it was.
func (u Usage) Alone() Usage {
	if u.ThrottledUsec == nil {
		u.ThrottledUsec = u.BoxThrottledUsec
	}
	if u.PIDsRefused == nil {
		u.PIDsRefused = u.BoxPIDsRefused
	}
	return u
}

// SlotStats reads the usage of a command from the descriptors of its slot. It works in any
// process and without privilege. Only one goroutine may use it at a time.
type SlotStats struct {
	files []*os.File
	// The box's figures at OpenStats or Renew, nil if unknown.
	boxThrottled, boxRefused *int64
	// How many earlier commands the slot has served, and their CPU time: see Renew.
	earlierUser, earlierSystem int64 // µs
	renewals                   int
	texts                      []string // the files that Read has read so far
}

// OpenStats takes ownership of files, which are those of [Slot.Stats]; missing ones at the
// end count as nil. Call it before the command starts: the figures of the box count from
// then on.
func OpenStats(files []*os.File) *SlotStats {
	s := &SlotStats{files: make([]*os.File, NumStats)}
	for i, f := range files {
		if i < NumStats {
			s.files[i] = f
		} else if f != nil {
			f.Close()
		}
	}
	s.countBox()
	return s
}

// countBox makes the figures of the box count from now on.
func (s *SlotStats) countBox() {
	// After an error there is no base to count from. Read will report the error.
	s.boxThrottled, _ = s.throttled(StatBoxCPU)
	s.boxRefused, _ = s.number(StatBoxPIDs, "max")
}

// Read returns the current figures.
func (s *SlotStats) Read() (Usage, error) {
	var u Usage
	var box [2]*int64
	var errs [10]error
	s.texts = make([]string, NumStats) // several figures are in one file
	defer func() { s.texts = nil }()
	u.UserUsec, errs[0] = s.number(StatCPU, "user_usec")
	u.SystemUsec, errs[1] = s.number(StatCPU, "system_usec")
	u.UserUsec, u.SystemUsec = less(u.UserUsec, s.earlierUser), less(u.SystemUsec, s.earlierSystem)
	u.MemoryPeak, errs[2] = s.number(StatMemoryPeak, "")
	u.OOMKills, errs[3] = s.oomKills()
	u.OOMs, _ = s.number(StatMemoryEvents, "oom") // in the same file
	u.PIDsPeak, errs[4] = s.number(StatPIDsPeak, "")
	errs[5] = s.readIO(&u)
	u.ThrottledUsec, errs[6] = s.throttled(StatThrottled)
	box[0], errs[7] = s.throttled(StatBoxCPU)
	u.PIDsRefused, errs[8] = s.number(StatPIDsEvents, "max")
	box[1], errs[9] = s.number(StatBoxPIDs, "max")
	u.ThrottledUsec, u.BoxThrottledUsec = sinceOpen(u.ThrottledUsec, s.boxThrottled, box[0])
	u.PIDsRefused, u.BoxPIDsRefused = sinceOpen(u.PIDsRefused, s.boxRefused, box[1])
	if err := errors.Join(errs[:]...); err != nil {
		return u, fmt.Errorf("reading the usage of a command: %w", err)
	}
	return u, nil
}

// less returns *n less what was counted earlier.
func less(n *int64, earlier int64) *int64 {
	if n == nil {
		return nil
	}
	return new(*n - earlier)
}

// sinceOpen returns the growth of a box's figure since OpenStats, from base to now, and the
// command's own figure. If own is unknown and the box's has not grown, the command's is 0.
func sinceOpen(own, base, now *int64) (command, box *int64) {
	if base == nil || now == nil {
		return own, nil
	}
	box = new(*now - *base)
	if own == nil && *box == 0 {
		own = box
	}
	return own, box
}

// oomKills counts kills instead of processes if the kernel kills whole commands
// (memory.oom.group). Its count of processes, oom_kill, then counts the first victim twice
// (as the victim and as a member, oom_kill_process in mm/oom_kill.c), and all processes
// again if a second kill finds them still dying. oom_group_kill exists since Linux 5.17.
func (s *SlotStats) oomKills() (*int64, error) {
	processes, err := s.number(StatMemoryEvents, "oom_kill")
	commands, err2 := s.number(StatMemoryEvents, "oom_group_kill")
	if err := errors.Join(err, err2); err != nil || value(processes) == 0 || value(commands) == 0 {
		return processes, err
	}
	return commands, nil
}

func (s *SlotStats) readIO(u *Usage) error {
	text, err := s.read(StatIO)
	if s.files[StatIO] == nil || err != nil {
		return err
	}
	// An empty file means that nothing was read or written.
	var r, w int64
	for field := range strings.FieldsSeq(text) {
		if key, value, ok := strings.Cut(field, "="); ok {
			n, _ := strconv.ParseInt(value, 10, 64)
			switch key {
			case "rbytes":
				r += n
			case "wbytes":
				w += n
			}
		}
	}
	u.IORead, u.IOWrite = &r, &w
	return nil
}

// throttled reads a throttled time: µs on cgroup2, ns on v1.
func (s *SlotStats) throttled(file int) (*int64, error) {
	if n, err := s.number(file, "throttled_usec"); n != nil || err != nil {
		return n, err
	}
	n, err := s.number(file, "throttled_time")
	if n != nil {
		*n /= 1000
	}
	return n, err
}

// number returns the value of key in a file of "key value" lines or, for an empty key, the
// only number in the file. It is nil if there is no such file or key.
func (s *SlotStats) number(file int, key string) (*int64, error) {
	text, err := s.read(file)
	if err != nil {
		return nil, err
	}
	n, err := findNumber(text, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.files[file].Name(), err)
	}
	return n, nil
}

// findNumber returns the value of key in lines of "key value" or, for an empty key, the only
// number. It is nil if there is no such key.
func findNumber(text, key string) (*int64, error) {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if key == "" {
			name, value, ok = "", name, true
		}
		if !ok || name != key {
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, err
		}
		return &n, nil
	}
	return nil, nil
}

// read returns the content of a file, "" if this host does not have it.
func (s *SlotStats) read(file int) (string, error) {
	f := s.files[file]
	if f == nil {
		return "", nil
	}
	if s.texts != nil && s.texts[file] != "" {
		return s.texts[file], nil
	}
	var page [4096]byte
	text, err := readWhole(f, page[:])
	if err == nil && s.texts != nil {
		s.texts[file] = text
	}
	return text, err
}

// maxStat bounds a statistics file. The longest is io.stat, with about 100 bytes per block
// device.
const maxStat = 1 << 20

// readWhole reads f with one call into buf or, if it does not fit, into larger buffers.
// ReadAt would make another call to find the end, but a read that leaves room has read
// everything. Reading in pieces would make the kernel generate the text again for each.
func readWhole(f *os.File, buf []byte) (string, error) {
	for {
		var n int
		err := linux.Retry(func() (err error) {
			n, err = unix.Pread(int(f.Fd()), buf, 0)
			return err
		})
		switch {
		case err != nil:
			return "", &os.PathError{Op: "pread", Path: f.Name(), Err: err}
		case n < len(buf):
			return string(buf[:n]), nil
		case len(buf) >= maxStat:
			return "", &os.PathError{Op: "pread", Path: f.Name(), Err: unix.EFBIG}
		}
		buf = make([]byte, 4*len(buf))
	}
}

// Populated reports whether a process is in the slot. Zombies do not count. A slot that is
// gone is empty.
func (s *SlotStats) Populated() (bool, error) {
	if s.files[StatEvents] == nil {
		return false, errors.New("reading whether a slot is empty: no cgroup.events")
	}
	return isPopulated(s.files[StatEvents])
}

// WaitEmpty waits until no process is in the slot.
func (s *SlotStats) WaitEmpty(ctx context.Context) error {
	if s.files[StatEvents] == nil {
		return errors.New("waiting for an empty slot: no cgroup.events")
	}
	return waitEmpty(ctx, s.files[StatEvents])
}

// Close closes the files. It may be called more than once.
func (s *SlotStats) Close() error {
	var errs []error
	for i, f := range s.files {
		if f != nil {
			errs = append(errs, f.Close())
			s.files[i] = nil
		}
	}
	return errors.Join(errs...)
}

// value is *n, or 0 if it is unknown.
func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
