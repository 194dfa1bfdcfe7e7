package outside

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Why not /proc/locks, which has all locks of the host: each read of a page of it goes
// through the list from its beginning again, during which no process of the host can take or
// release a lock (locks_start in fs/locks.c). With some 100,000 locks that is a second.

// CountLocks counts the file locks that processes hold through their descriptors, up to
// about enough. A process that ends meanwhile holds none.
func CountLocks(pids []int, enough int64) (int64, error) {
	c := lockCounter{enough: enough, seed: maphash.MakeSeed(), known: map[uint64][]descriptor{}}
	for _, pid := range pids {
		if err := c.addProcess(pid); err != nil {
			return c.locks, fmt.Errorf("counting file locks: %w", err)
		}
		if c.locks >= enough {
			break
		}
	}
	return c.locks, nil
}

// descriptor is one descriptor of a thread.
type descriptor struct{ tid, fd int }

type lockCounter struct {
	locks, enough int64
	seed          maphash.Seed
	// known are the descriptors that locks were counted of, by the text of the locks, in the
	// order of kcmp(2). A lock shows at each descriptor of its open file, also in
	// other processes.
	known map[uint64][]descriptor
	buf   []byte
}

// addProcess counts the locks of a process: of each table of descriptors that its threads
// have.
func (c *lockCounter) addProcess(pid int) error {
	tids, err := numbers(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	var tables []int // threads, each with a table of its own
	for _, tid := range tids {
		shared := slices.ContainsFunc(tables, func(other int) bool {
			order, err := linux.Kcmp(linux.KcmpFiles, tid, 0, other, 0)
			return err != nil || order == 0
		})
		if shared {
			continue
		}
		fds, err := numbers(fmt.Sprintf("/proc/%d/task/%d/fdinfo", pid, tid))
		if err != nil {
			return err
		}
		if len(fds) > 0 { // else it has none, or it has ended and the others have them still
			tables = append(tables, tid)
		}
		for _, fd := range fds {
			if c.addDescriptor(pid, descriptor{tid, fd}); c.locks >= c.enough {
				return nil
			}
		}
	}
	return nil
}

// addDescriptor counts the locks that a descriptor shows. One that cannot be looked at is
// closed by now.
func (c *lockCounter) addDescriptor(pid int, d descriptor) {
	path := fmt.Sprintf("/proc/%d/task/%d/fd", pid, d.tid)
	// Only files have locks. Some of what has not, such as an epoll(7) instance, has long texts.
	target, err := os.Readlink(fmt.Sprintf("%s/%d", path, d.fd))
	if err != nil || !strings.HasPrefix(target, "/") {
		return
	}
	text, err := c.read(fmt.Sprintf("%sinfo/%d", path, d.fd))
	if err != nil {
		return
	}
	locks, n := lockLines(text)
	if n == 0 || !c.isNew(maphash.Bytes(c.seed, locks), d) {
		return
	}
	c.locks += n
}

// isNew says whether d is the first descriptor of its open file, and keeps it.
func (c *lockCounter) isNew(key uint64, d descriptor) bool {
	var failed error
	at, found := slices.BinarySearchFunc(c.known[key], d, func(other, d descriptor) int {
		order, err := linux.Kcmp(linux.KcmpFile, other.tid, other.fd, d.tid, d.fd)
		failed = errors.Join(failed, err)
		return order
	})
	if found || failed != nil {
		return false // rather too few than too many
	}
	c.known[key] = slices.Insert(c.known[key], at, d)
	return true
}

// read returns the text of a file, valid until the next read.
func (c *lockCounter) read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := bytes.NewBuffer(c.buf[:0])
	_, err = b.ReadFrom(f)
	c.buf = b.Bytes()
	return c.buf, err
}

// lockLines returns the lines of an fdinfo file (proc_pid_fdinfo(5)) that are of locks, and
// how many there are. They come last.
func lockLines(fdinfo []byte) (lines []byte, n int64) {
	at := bytes.Index(fdinfo, []byte("\nlock:\t"))
	if at < 0 {
		return nil, 0
	}
	return fdinfo[at:], int64(bytes.Count(fdinfo[at:], []byte("\nlock:\t")))
}

// numbers lists the entries of a directory that are numbers. One that is gone has none.
func numbers(path string) ([]int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, goneIsNone(err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, goneIsNone(err)
	}
	var list []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			list = append(list, n)
		}
	}
	return list, nil
}

// goneIsNone drops the error that a process has ended.
func goneIsNone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
