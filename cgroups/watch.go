package cgroups

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Limit names a limit that a box has hit.
type Limit string

// The limits whose hits the kernel reports.
const (
	MemoryLimit Limit = "memory" // something was killed for memory
	PIDsLimit   Limit = "pids"   // a fork was refused
)

// Watcher learns from the kernel when boxes hit their limits. It uses one thread for any
// number of boxes, which sleeps until something happens.
//
// On cgroup2, the Watcher watches the files with the counters by inotify, which kernfs
// supports (cgroup-v2.rst, "memory.events"). They count since the box was created. Before
// Linux 6.11, and on v1, the kernel counts a refused fork in the slot. There the Watcher
// watches the file of each slot as well, and adds up the counts for as long as it lives.
//
// On v1, the only notification for memory is that a cgroup is out of memory, on an eventfd
// (memory.rst, "OOM Control"). The Watcher counts these notifications for as long as it
// lives; a slot with its own memory limit has an eventfd as well. Neither poll nor inotify
// works for v1's pids.events (tried on Linux 6.18: cgroup_file_notify is for a file that v1
// does not have). Only there, the Watcher reads the files of all slots once a second while
// there are any, and when a slot is removed.
type Watcher struct {
	tell    func(box string, l Limit, count int64)
	inotify *os.File
	epoll   *os.File
	wake    *os.File // an eventfd that wakes run
	done    chan struct{}

	mu     sync.Mutex
	closed bool
	files  map[int32]*watched // by inotify watch
	memory map[int32]*watched // by eventfd
	silent map[*watched]bool  // files without notifications
	boxes  map[*Group]*boxCounts
}

// watched is one source of events.
type watched struct {
	group *Group
	limit Limit
	slot  string   // the slot of the file, "" for work
	dir   *os.File // the box's directory, borrowed from the group
	name  string   // the file beneath dir
	key   string   // the line with the counter
	event *os.File // v1 memory: the eventfd, of work or of a slot
	// boxes, for the eventfd of a slot, is the count of work's eventfd at the last read of
	// this one.
	boxes int64
	id    int32
	seen  int64
}

// boxCounts are the sources and the counts of a box.
type boxCounts struct {
	sources []*watched
	memory  *watched        // the eventfd of work, if there is one
	total   map[Limit]int64 // added up from slots and eventfds
}

// NewWatcher starts a Watcher. The Watcher calls tell with the number of times that a box
// has hit a limit, never concurrently; tell must not call the Watcher. The caller closes the
// Watcher.
func NewWatcher(tell func(box string, l Limit, count int64)) (*Watcher, error) {
	w := &Watcher{
		tell: tell, done: make(chan struct{}),
		files: map[int32]*watched{}, memory: map[int32]*watched{}, silent: map[*watched]bool{}, boxes: map[*Group]*boxCounts{},
	}
	if err := w.open(); err != nil {
		w.closeFiles()
		return nil, fmt.Errorf("watching limits: %w", err)
	}
	go w.run()
	return w, nil
}

func (w *Watcher) open() error {
	in, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	w.inotify = os.NewFile(uintptr(in), "inotify")
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	w.epoll = os.NewFile(uintptr(ep), "epoll")
	if w.wake, err = newEventfd(); err != nil {
		return err
	}
	return errors.Join(w.poll(in), w.poll(int(w.wake.Fd())))
}

func newEventfd() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return os.NewFile(uintptr(fd), "eventfd"), nil
}

func (w *Watcher) poll(fd int) error {
	err := unix.EpollCtl(int(w.epoll.Fd()), unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	return os.NewSyscallError("epoll_ctl", err)
}

// readLocked reads a source, and reports its growth.
func (w *Watcher) readLocked(s *watched) {
	b := w.boxes[s.group]
	if b == nil {
		return
	}
	var now int64
	if s.event != nil {
		now = s.seen + w.announcedLocked(b, s)
	} else {
		now = s.count()
	}
	grown := now - s.seen
	s.seen = now
	if grown <= 0 {
		return
	}
	b.total[s.limit] += grown
	total := b.total[s.limit]
	if s.event == nil && s.slot == "" {
		total = max(total, now) // the kernel's own count, since the box was created
	}
	w.tell(s.group.ID, s.limit, total)
}

// Count records that the caller, instead of the kernel, has killed something for a limit.
// On a nil Watcher it does nothing.
func (w *Watcher) Count(g *Group, l Limit) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if b := w.boxes[g]; b != nil {
		b.total[l]++
		w.tell(g.ID, l, b.total[l])
	}
}

// announcedLocked returns how often an eventfd was notified about its own cgroup since its
// last read. When the box is out of memory, the kernel notifies work and then everything
// below it (mem_cgroup_oom_notify); that counts only once.
func (w *Watcher) announcedLocked(b *boxCounts, s *watched) int64 {
	if s.slot != "" && b.memory != nil {
		w.readLocked(b.memory)
	}
	var buf [8]byte
	if n, err := unix.Read(int(s.event.Fd()), buf[:]); err != nil || n != len(buf) {
		return 0
	}
	n := int64(binary.NativeEndian.Uint64(buf[:]))
	if s.slot != "" && b.memory != nil {
		n -= b.memory.seen - s.boxes
		s.boxes = b.memory.seen
	}
	return max(n, 0)
}

// lookEvery is the interval between reads of silent files, in milliseconds.
const lookEvery = 1000

// run waits for events until Close.
func (w *Watcher) run() {
	defer close(w.done)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(int(w.epoll.Fd()), events, w.look())
		if err != nil && err != unix.EINTR {
			return
		}
		for _, e := range events[:max(n, 0)] {
			if !w.handle(e.Fd) {
				return
			}
		}
	}
}

// look reads the silent files. It returns the time until the next read, -1 for never.
func (w *Watcher) look() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.silent) == 0 {
		return -1
	}
	for s := range w.silent {
		w.readLocked(s)
	}
	return lookEvery
}

// handle handles an event of descriptor fd. It returns false when the Watcher is closed.
func (w *Watcher) handle(fd int32) bool {
	if fd == int32(w.inotify.Fd()) {
		w.readInotify()
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if fd == int32(w.wake.Fd()) {
		var buf [8]byte
		_, _ = unix.Read(int(fd), buf[:])
		return !w.closed
	}
	if s := w.memory[fd]; s != nil {
		w.readLocked(s)
	}
	return true
}

// awake makes run notice a change of closed or silent.
func (w *Watcher) awake() {
	_, _ = unix.Write(int(w.wake.Fd()), binary.NativeEndian.AppendUint64(nil, 1)) // cannot fail
}

// readInotify reads all pending events, and each file once.
func (w *Watcher) readInotify() {
	var buf [16 << 10]byte
	n, err := unix.Read(int(w.inotify.Fd()), buf[:])
	if err != nil || n <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[int32]bool{}
	for at := 0; at+unix.SizeofInotifyEvent <= n; {
		id := int32(binary.NativeEndian.Uint32(buf[at:]))
		mask := binary.NativeEndian.Uint32(buf[at+4:])
		at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[at+12:]))
		if mask&unix.IN_Q_OVERFLOW != 0 {
			for _, s := range w.files {
				w.readLocked(s)
			}
			return
		}
		if s := w.files[id]; s != nil && !seen[id] {
			seen[id] = true
			w.readLocked(s)
		}
	}
}

// Close ends the Watcher and waits for its goroutine.
func (w *Watcher) Close() error {
	w.mu.Lock()
	for g := range w.boxes {
		w.removeLocked(g)
	}
	w.closed = true
	w.mu.Unlock()
	w.awake()
	<-w.done
	w.closeFiles()
	return nil
}

func (w *Watcher) closeFiles() {
	w.inotify.Close() // nil files are fine
	w.epoll.Close()
	w.wake.Close()
}
