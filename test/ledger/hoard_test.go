package ledger

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The environment of the test binary when it plays the command in a box.
const (
	roleKind   = "BOXD_TEST_KIND"   // name of the kind to make
	roleWorker = "BOXD_TEST_WORKER" // number of this process
	roleTime   = "BOXD_TEST_TIME"   // how long to go on
	roleBare   = "BOXD_TEST_BARE"   // set: there is no box, see TestCountersCanTell
)

// mostBytes is where each process stops by itself, whatever the kernel allows. All of a
// box's processes together stop there: each has its part of it.
const mostBytes = 300 << 20

// hoard counts what one process has made the kernel hold. The process keeps all of it
// until its standard input is closed.
type hoard struct {
	worker         int
	deadline       time.Time
	most           int64 // bytes that this process may claim
	mostObjects    int64
	objects, bytes int64 // claimed, as far as system calls told
	told           time.Time
	toldBytes      int64
}

// took counts one object of about n bytes and reports whether to go on.
func (h *hoard) took(n int) bool { return h.tookMany(1, n) }

// tookMany counts objects that have n bytes together. A process that runs out of memory cannot report at its
// end, so it reports as it goes.
func (h *hoard) tookMany(objects, n int) bool {
	h.objects += int64(objects)
	h.bytes += int64(n)
	now := time.Now()
	if h.bytes-h.toldBytes >= 1<<20 || now.Sub(h.told) > 20*time.Millisecond {
		h.told, h.toldBytes = now, h.bytes
		h.tell("holds", nil)
	}
	return h.bytes < h.most && h.objects < h.mostObjects && now.Before(h.deadline)
}

// tell prints one line for the test, see report.
func (h *hoard) tell(word string, why error) {
	if why == nil {
		why = errEnough
	}
	// One write: the processes of a box share the pipe.
	os.Stdout.WriteString(fmt.Sprintln(h.worker, h.objects, h.bytes, word, why))
}

// report is a line that tell printed. The line of a process that has ended claims nothing.
type report struct {
	worker         int
	objects, bytes int64
	done, ended    bool
	reason         string
}

func parseReport(line string) (r report, err error) {
	var word string
	if _, err := fmt.Sscan(line, &r.worker, &r.objects, &r.bytes, &word); err != nil {
		return r, fmt.Errorf("line %q of a command: %w", line, err)
	}
	r.done, r.ended = word == "done", word == "ended"
	_, r.reason, _ = strings.Cut(line, " "+word+" ")
	return r, nil
}

// errEnough is the reason where nothing was refused.
var errEnough = errors.New("as much as it wanted")

// playHoarder makes objects of a kind and holds them until standard input ends. The first
// process starts the others, so that a box has more descriptors than one process may have.
func playHoarder(name string) error {
	k, ok := findKind(name)
	if !ok {
		return fmt.Errorf("no kind is called %q", name)
	}
	worker, err := strconv.Atoi(os.Getenv(roleWorker))
	if err != nil {
		return err
	}
	lasting, err := time.ParseDuration(os.Getenv(roleTime))
	if err != nil {
		return err
	}
	workers := max(1, k.workers)
	h := &hoard{worker: worker, most: mostBytes / int64(workers), mostObjects: math.MaxInt64}
	if os.Getenv(roleBare) != "" {
		if err := leaveHost(); err != nil {
			return err
		}
		workers, h.most, h.mostObjects = 1, bareBytes, bareObjects
		if k.limit().unit != "bytes" {
			h.mostObjects = bareOfPool
		}
	}
	var ended sync.WaitGroup
	for i := 1; worker == 0 && i < workers; i++ {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", roleWorker, i))
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			return fmt.Errorf("starting process %d: %w", i, err)
		}
		ended.Go(func() {
			c.Wait() // killed, or at the end
			fmt.Println(i, 0, 0, "ended")
		})
	}
	runtime.LockOSThread()
	h.deadline = time.Now().Add(lasting)
	h.tell("done", k.take(h))
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	ended.Wait()
	return nil
}

// fill writes to a descriptor that does not block until nothing more is taken.
func (h *hoard) fill(fd int, chunk []byte) (more bool, err error) {
	for {
		n, err := unix.Write(fd, chunk)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN || err == unix.ENOBUFS {
			return true, nil
		}
		if err != nil {
			return false, os.NewSyscallError("write", err)
		}
		if !h.tookMany(0, n) {
			return false, nil
		}
	}
}
