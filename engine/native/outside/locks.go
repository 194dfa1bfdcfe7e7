package outside

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Why not /proc/locks, which has all locks of the host: each read of a page of it goes
// through the list from its beginning again, during which no process of the host can take or
// release a lock (locks_start in fs/locks.c). With some 100,000 locks that is a second.

// Locks are the file locks of a set of processes.
type Locks struct {
	Of  map[int]int64 // by process
	Sum int64
	Cut bool // time ran out: there may be more
}

// CountLocks counts the file locks that processes hold through their descriptors, up to
// about enough, and until a moment. It looks at the descriptors in random order: where time runs
// out again and again, no process can know that its locks are never reached. A process that
// ends meanwhile holds none.
func CountLocks(pids []int, enough int64, until time.Time) (Locks, error) {
	c := lockCounter{Locks: Locks{Of: map[int]int64{}}, enough: enough, until: until, ofFiles: openFiles{}, text: bufio.NewReaderSize(nil, 64<<10)}
	for _, i := range rand.Perm(len(pids)) {
		if err := c.addProcess(pids[i]); err != nil {
			return c.Locks, fmt.Errorf("counting file locks: %w", err)
		}
		if c.ended() {
			break
		}
	}
	return c.Locks, nil
}

type lockCounter struct {
	Locks
	enough  int64
	until   time.Time
	tables  []int     // threads with the tables of descriptors seen so far, in the order of kcmp(2)
	ofFiles openFiles // that flock(2) locks were counted of: they show in each table
	text    *bufio.Reader
}

// ended says whether what was counted is enough, or time has run out.
func (c *lockCounter) ended() bool {
	c.Cut = c.Cut || time.Now().After(c.until)
	return c.Cut || c.Sum >= c.enough
}

// addProcess counts the locks of a process: of each table of descriptors that its threads
// have.
func (c *lockCounter) addProcess(pid int) error {
	tids, err := numbers(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, tid := range tids {
		if c.ended() {
			return nil
		}
		at, found := c.findTable(tid)
		if found {
			continue
		}
		fds, err := numbers(fmt.Sprintf("/proc/%d/task/%d/fd", pid, tid))
		if err != nil {
			return err
		}
		if len(fds) == 0 {
			continue // or it has ended, and the others have them still
		}
		c.tables = slices.Insert(c.tables, at, tid)
		inTable := openFiles{}
		rand.Shuffle(len(fds), func(i, j int) { fds[i], fds[j] = fds[j], fds[i] })
		for _, fd := range fds {
			if c.ended() {
				return nil
			}
			c.addDescriptor(pid, descriptor{tid, fd}, inTable)
		}
	}
	return nil
}

// findTable looks for the table of a thread among those seen, and drops threads that have
// ended.
func (c *lockCounter) findTable(tid int) (at int, found bool) {
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
			return 0, true // it has ended itself
		}
		c.tables = slices.Delete(c.tables, gone, gone+1)
	}
}

// addDescriptor counts the locks that a descriptor shows. One that cannot be looked at is
// closed by now.
//
// A text of many locks takes the kernel long, so duplicates are found before it is read. A POSIX
// lock belongs to a table and shows at each descriptor of its open file there; the
// same open file can show other locks in another table.
func (c *lockCounter) addDescriptor(pid int, d descriptor, inTable openFiles) {
	path := fmt.Sprintf("/proc/%d/task/%d/fd", pid, d.tid)
	// Only files have locks. Some of what has not, such as an epoll(7) instance, has long texts.
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
	if !inTable.isNew(key, d) {
		return
	}
	posix, ofFile, err := c.countLines(fmt.Sprintf("%sinfo/%d", path, d.fd))
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

// countLines counts the locks in an fdinfo file (proc_pid_fdinfo(5)): those of a table, and
// those of the open file.
func (c *lockCounter) countLines(path string) (posix, ofFile int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	c.text.Reset(f)
	for c.Sum+posix < c.enough {
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

// openFiles has one descriptor of each open file, by inode, in the order of kcmp(2).
type openFiles map[inode][]descriptor

// isNew says whether d is the first descriptor of its open file, and keeps it.
func (o openFiles) isNew(key inode, d descriptor) bool {
	var failed error
	at, found := slices.BinarySearchFunc(o[key], d, func(other, d descriptor) int {
		order, err := linux.Kcmp(linux.KcmpFile, other.tid, other.fd, d.tid, d.fd)
		failed = errors.Join(failed, err)
		return order
	})
	if found || failed != nil {
		// Rather too few than too many. To close a descriptor of a file releases all POSIX locks
		// of its process on the file, so closing one in between hides none.
		return false
	}
	o[key] = slices.Insert(o[key], at, d)
	return true
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
