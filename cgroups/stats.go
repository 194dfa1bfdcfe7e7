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

// Usage is what one command used, its descendants included. A figure that this
// host does not offer, or that cannot be told apart from other commands of the
// box, is nil.
type Usage struct {
	UserUsec, SystemUsec *int64 // CPU time in µs
	ThrottledUsec        *int64 // time the CPU limit made it wait in µs, summed over cores
	MemoryPeak           *int64 // bytes, page cache included
	PIDsPeak             *int64 // processes and threads at once
	OOMKills             *int64 // kills for memory: of the whole command on cgroup2, of one process on v1
	OOMs                 *int64 // how often a limit of the slot's own was the reason; cgroup2 only
	PIDsRefused          *int64 // forks that the pids limit refused
	// Bytes read from and written to block devices until now. What is still in
	// the page cache is not in it.
	IORead, IOWrite *int64

	// What the whole box has seen since [OpenStats], whichever command it was. Nil
	// where the kernel tells it for each command.
	BoxThrottledUsec *int64
	BoxPIDsRefused   *int64
}

// Alone completes u for a command during which no other command of the box was
// alive, from OpenStats on: what the box has seen was then its doing. Only the
// caller knows that.
func (u Usage) Alone() Usage {
	if u.ThrottledUsec == nil {
		u.ThrottledUsec = u.BoxThrottledUsec
	}
	if u.PIDsRefused == nil {
		u.PIDsRefused = u.BoxPIDsRefused
	}
	return u
}

// SlotStats reads what a command uses from the descriptors of its slot, in any
// process and without any privilege. One goroutine uses it at a time.
type SlotStats struct {
	files []*os.File
	// What the box had seen before, nil where it is not told.
	boxThrottled, boxRefused *int64
	texts                    []string // what Read has read so far
}

// OpenStats takes ownership of files, those of [Slot.Stats]: missing ones at the
// end count as nil. Call it before the command starts: what the box has seen is
// counted from here on.
func OpenStats(files []*os.File) *SlotStats {
	s := &SlotStats{files: make([]*os.File, NumStats)}
	for i, f := range files {
		if i < NumStats {
			s.files[i] = f
		} else if f != nil {
			f.Close()
		}
	}
	// An error shows again in Read; until then there is no base to count from.
	s.boxThrottled, _ = s.throttled(StatBoxCPU)
	s.boxRefused, _ = s.number(StatBoxPIDs, "max")
	return s
}

// Read returns the figures of this moment.
func (s *SlotStats) Read() (Usage, error) {
	var u Usage
	var errs [8]error
	s.texts = make([]string, NumStats) // several figures are in one file
	defer func() { s.texts = nil }()
	u.UserUsec, errs[0] = s.number(StatCPU, "user_usec")
	u.SystemUsec, errs[1] = s.number(StatCPU, "system_usec")
	u.MemoryPeak, errs[2] = s.number(StatMemoryPeak, "")
	u.OOMKills, errs[3] = s.oomKills()
	u.OOMs, _ = s.number(StatMemoryEvents, "oom") // of the same file
	u.PIDsPeak, errs[4] = s.number(StatPIDsPeak, "")
	errs[5] = s.readIO(&u)
	errs[6] = s.readThrottled(&u)
	errs[7] = s.readRefused(&u)
	if err := errors.Join(errs[:]...); err != nil {
		return u, fmt.Errorf("reading the use of a command: %w", err)
	}
	return u, nil
}

// oomKills counts kills, not processes, where the kernel takes whole commands
// (memory.oom.group): its count of processes, oom_kill, then has the first victim
// twice (as the victim and as a member, oom_kill_process in mm/oom_kill.c), and
// everyone again if a second kill meets those that are still dying.
// oom_group_kill is there since Linux 5.17.
func (s *SlotStats) oomKills() (*int64, error) {
	processes, err := s.number(StatMemoryEvents, "oom_kill")
	commands, err2 := s.number(StatMemoryEvents, "oom_group_kill")
	if err := errors.Join(err, err2); err != nil || value(processes) == 0 || value(commands) == 0 {
		return processes, err
	}
	return commands, nil
}

func (s *SlotStats) readThrottled(u *Usage) error {
	own, err := s.throttled(StatThrottled)
	box, err2 := s.throttled(StatBoxCPU)
	u.ThrottledUsec, u.BoxThrottledUsec = own, growth(s.boxThrottled, box)
	if own == nil && isZero(u.BoxThrottledUsec) {
		u.ThrottledUsec = u.BoxThrottledUsec // nobody was throttled, so it was not
	}
	return errors.Join(err, err2)
}

func (s *SlotStats) readRefused(u *Usage) error {
	own, err := s.number(StatPIDsEvents, "max")
	box, err2 := s.number(StatBoxPIDs, "max")
	u.PIDsRefused, u.BoxPIDsRefused = own, growth(s.boxRefused, box)
	if own == nil && isZero(u.BoxPIDsRefused) {
		u.PIDsRefused = u.BoxPIDsRefused
	}
	return errors.Join(err, err2)
}

func (s *SlotStats) readIO(u *Usage) error {
	text, err := s.read(StatIO)
	if s.files[StatIO] == nil || err != nil {
		return err
	}
	// Without any line nothing was read or written.
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

// number reads the value of key in a file of "key value" lines, or, with an empty
// key, the only number of the file. It is nil if there is no such file or key.
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

// findNumber returns the value of key in lines of "key value", or, with an empty key,
// the only number. It is nil if there is no such key.
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

// read returns the content of a file, "" if there is none.
func (s *SlotStats) read(file int) (string, error) {
	f := s.files[file]
	if f == nil {
		return "", nil
	}
	if s.texts != nil && s.texts[file] != "" {
		return s.texts[file], nil
	}
	var page [maxFile]byte
	text, err := readWhole(f, page[:])
	if err == nil && s.texts != nil {
		s.texts[file] = text
	}
	return text, err
}

// maxStat bounds a statistics file. The longest is io.stat, with about 100 bytes
// for each block device.
const maxStat = 1 << 20

// readWhole reads f with one call into buf, or, if it does not fit, into larger
// ones. Not ReadAt, which asks once more to see the end: a read that leaves room
// has it all. And not in pieces: the kernel would make up the text anew for each.
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

// Populated says whether a process is in the slot. Zombies do not count; a slot
// that is gone is empty.
func (s *SlotStats) Populated() (bool, error) {
	if s.files[StatEvents] == nil {
		return false, errors.New("reading whether a slot is empty: no cgroup.events")
	}
	return isPopulated(s.files[StatEvents])
}

// WaitEmpty returns when no process is in the slot.
func (s *SlotStats) WaitEmpty(ctx context.Context) error {
	if s.files[StatEvents] == nil {
		return errors.New("waiting for an empty slot: no cgroup.events")
	}
	return waitEmpty(ctx, s.files[StatEvents])
}

// Close closes the files. Closing twice is no error.
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

// growth is now minus base, nil if either is not known.
func growth(base, now *int64) *int64 {
	if base == nil || now == nil {
		return nil
	}
	n := *now - *base
	return &n
}

func isZero(n *int64) bool { return n != nil && *n == 0 }

// value is n, or 0 if it is not known.
func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
