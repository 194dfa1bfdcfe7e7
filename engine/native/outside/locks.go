package outside

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// This package does not use /proc/locks, which lists all locks of the host. Each read of a
// page of it walks the list from the beginning, and meanwhile no process of the host can take
// or release a lock (locks_start in fs/locks.c). With some 100,000 locks that takes a second.

// Locks are the file locks of a set of processes.
type Locks struct {
	Of  map[int]int64 // by process
	Sum int64
	Cut bool // time ran out: the next call continues
}

// LockCounter counts the file locks of a box. Its zero value is ready.
type LockCounter struct {
	Locks
	// Still to be inspected: descriptors of a table, threads of a process, processes of the box.
	fds, tids, pids []int
	pid, tid        int

	inTable openFiles // of the table of tid
	tables  []int     // one thread for each descriptor table seen so far, in the order of kcmp(2)
	ofFiles openFiles // whose flock(2) locks were counted: these locks show in each table
	text    *bufio.Reader
}

// Count counts the file locks that processes hold through their descriptors, up to about
// enough locks, and until a moment. If the last call ran out of time, this one continues there
// and adds to its result, so that some calls find all locks, however a box spreads them. A
// process that ends meanwhile holds none.
func (c *LockCounter) Count(pids []int, enough int64, until time.Time) (Locks, error) {
	if !c.Cut {
		*c = LockCounter{Locks: Locks{Of: map[int]int64{}}, pids: slices.Clone(pids), ofFiles: openFiles{}, text: bufio.NewReaderSize(nil, 64<<10)}
	}
	c.Cut = false
	for c.Sum < enough {
		if time.Now().After(until) {
			c.Cut = true
			break
		}
		var err error
		switch {
		case len(c.fds) > 0:
			c.addDescriptor(c.pid, descriptor{c.tid, pop(&c.fds)}, enough)
		case len(c.tids) > 0:
			c.tid = pop(&c.tids)
			err = c.enterTable()
		case len(c.pids) > 0:
			c.pid = pop(&c.pids)
			c.tids, err = numbers(fmt.Sprintf("/proc/%d/task", c.pid))
		default:
			return c.Locks, nil
		}
		if err != nil {
			return c.Locks, fmt.Errorf("counting file locks: %w", err)
		}
	}
	return c.Locks, nil
}

func pop(list *[]int) int {
	last := len(*list) - 1
	n := (*list)[last]
	*list = (*list)[:last]
	return n
}

// enterTable begins with the thread's descriptor table, unless it was seen before.
func (c *LockCounter) enterTable() (err error) {
	at, found := c.findTable(c.tid)
	if found {
		return nil
	}
	c.fds, err = numbers(fmt.Sprintf("/proc/%d/task/%d/fd", c.pid, c.tid))
	if len(c.fds) > 0 { // otherwise it has none, or it has ended while other threads share the table
		c.tables, c.inTable = slices.Insert(c.tables, at, c.tid), openFiles{}
	}
	return err
}

// findTable looks for the table of a thread among those seen before, and drops threads that
// have ended.
func (c *LockCounter) findTable(tid int) (at int, found bool) {
	for {
		gone := -1
		at, found = slices.BinarySearchFunc(c.tables, tid, func(other, tid int) int {
			order, err := linux.Kcmp(linux.KcmpFiles, other, 0, tid, 0)
			if err != nil && gone < 0 {
				gone = slices.Index(c.tables, other)
			}
			return order
		})
		if gone < 0 {
			return at, found
		}
		if _, err := linux.Kcmp(linux.KcmpFiles, tid, 0, tid, 0); err != nil {
			return 0, true // the thread itself has ended
		}
		c.tables = slices.Delete(c.tables, gone, gone+1)
	}
}

// addDescriptor counts the locks that a descriptor shows. A descriptor that cannot be inspected
// has been closed.
//
// The kernel takes long to write a text of many locks, so duplicates are found before the text
// is read. A POSIX lock belongs to a table, and shows at each descriptor of its open file in
// that table. The same open file can show other locks in another table.
func (c *LockCounter) addDescriptor(pid int, d descriptor, enough int64) {
	path := fmt.Sprintf("/proc/%d/task/%d/fd", pid, d.tid)
	// Only files have locks. Some other descriptors, such as those of epoll(7), have long texts.
	link := fmt.Sprintf("%s/%d", path, d.fd)
	target, err := os.Readlink(link)
	if err != nil || !strings.HasPrefix(target, "/") {
		return
	}
	st, err := linux.StatxCached(link, unix.STATX_INO)
	if err != nil {
		return
	}
	key := inode{st.Dev_major, st.Dev_minor, st.Ino}
	if !c.inTable.isNew(key, d) {
		return
	}
	posix, ofFile, err := c.countLines(fmt.Sprintf("%sinfo/%d", path, d.fd), enough)
	if err != nil {
		return
	}
	if ofFile > 0 && c.ofFiles.isNew(key, d) {
		posix += ofFile
	}
	if posix > 0 {
		c.Of[pid] += posix
		c.Sum += posix
	}
}

// countLines counts the locks in an fdinfo file (proc_pid_fdinfo(5)): POSIX locks, which belong
// to a table, and those that belong to the open file.
func (c *LockCounter) countLines(path string, enough int64) (posix, ofFile int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	c.text.Reset(f)
	for c.Sum+posix < enough {
		line, err := c.text.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return 0, 0, err
		}
		switch {
		case !bytes.HasPrefix(line, []byte("lock:\t")):
		case bytes.Contains(line, []byte(": POSIX ")):
			posix++
		default:
			ofFile++
		}
	}
	return posix, ofFile, nil
}

// descriptor is one descriptor of a thread.
type descriptor struct{ tid, fd int }

// inode is the device and the number of a file.
type inode struct {
	major, minor uint32
	number       uint64
}

// openFiles holds one descriptor of each open file, by inode, in the order of kcmp(2).
type openFiles map[inode][]descriptor

// isNew reports whether d is the first descriptor of its open file, and keeps it.
func (o openFiles) isNew(key inode, d descriptor) bool {
	var failed error
	at, found := slices.BinarySearchFunc(o[key], d, func(other, d descriptor) int {
		order, err := linux.Kcmp(linux.KcmpFile, other.tid, other.fd, d.tid, d.fd)
		failed = errors.Join(failed, err)
		return order
	})
	if found || failed != nil {
		// An error counts too few rather than too many. It hides no POSIX locks: closing any
		// descriptor of a file releases all of them that the process has on the file.
		return false
	}
	o[key] = slices.Insert(o[key], at, d)
	return true
}

// numbers lists the entries of a directory that are numbers, none if the directory is gone.
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

// goneIsNone drops the error of a process that has ended.
func goneIsNone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
