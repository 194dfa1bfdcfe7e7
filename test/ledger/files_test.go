package ledger

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
)

// fileKinds are files, objects attached to them, and their watchers.
var fileKinds = []kind{
	{name: "POSIX access control lists", take: accessLists, held: meminfo("SUnreclaim"), limit: inMemory,
		why: "a default list is cloned into every new directory, at 128 KiB each, and charged to nobody"},
	{name: "extended attributes", take: attributes, held: claimed, limit: inMemory, why: "counted as inodes of the tmpfs"},
	{name: "data in tmpfs", take: tmpfsData, held: claimed, limit: inMemory, why: "charged"},
	{name: "inodes of tmpfs", take: tmpfsInodes, held: slab("shmem_inode_cache"), limit: inMemory, why: "charged, and 16384 a mount"},
	{name: "names of symbolic links", take: symlinks, held: claimed, limit: inMemory, why: "16384 a mount"},
	{name: "names that do not exist", take: missingNames, held: charge, limit: inMemory, bareless: "only a box has a charge", why: "charged, and given back"},
	{name: "open files", workers: 8, take: openFiles, held: number("fs/file-nr"),
		// The limits of a process times those of the box.
		limit: func() bound { return share(spec.DefaultOpenFiles * spec.DefaultPIDs) }, why: "file-max is one pool of the host"},
	{name: "memory of open files", workers: 8, take: openFiles, held: slab("filp"), limit: inMemory, why: "charged"},
	{name: "files of /proc that are being read", workers: 4, take: procReaders, held: claimed, limit: inMemory, why: "charged"},
	{name: "pipes", take: pipes, held: claimed, limit: inMemory, why: "charged, and limited for each user"},
	{name: "notification pipes", take: notificationPipes, held: made, limit: func() bound { return share(0) }, why: "their pages are not charged"},
	{name: "FIFOs", take: fifos, held: claimed, limit: inMemory, why: "charged"},
	{name: "pages given to pipes", take: givenPages, held: claimed, limit: inMemory, why: "charged until the pipe is gone"},
	{name: "terminals", take: terminals, held: number("kernel/pty/nr"), limit: func() bound { return share(16) },
		why: "the host has 4096 terminals"},
	{name: "inotify instances", take: inotifyInstances, held: made, limit: func() bound { return share(128) },
		why: "limited for each user, and a box is a user of its own"},
	{name: "inotify watches", take: inotifyWatches, held: slab("inotify_inode_mark"), limit: inMemory, why: "charged"},
	{name: "inotify events", take: inotifyEvents, held: claimed, limit: inMemory, why: "charged, 16384 an instance"},
	{name: "epoll instances", workers: 8, take: descriptors(256, func() (int, error) { return unix.EpollCreate1(unix.EPOLL_CLOEXEC) }), held: kmallocs, limit: inMemory, why: "256 bytes a descriptor are not charged"},
	{name: "epoll items", take: epollItems, held: slab("eventpoll_epi"), limit: inMemory, why: "charged, and limited for each user"},
	{name: "event descriptors", workers: 8, take: descriptors(64, func() (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC) }), held: kmallocs, limit: inMemory, why: "64 bytes a descriptor are not charged"},
	{name: "timer descriptors", workers: 8, take: descriptors(256, func() (int, error) { return unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC) }), held: kmallocs, limit: inMemory, why: "256 bytes a descriptor are not charged"},
	{name: "pressure triggers", workers: 8, take: descriptors(192, pressureTrigger), held: made, limit: func() bound { return share(0) }, bareless: "its end takes minutes",
		why: "each holds up the end of its process by a grace period: they are refused"},
	{name: "asynchronous I/O contexts", take: aioContexts, held: number("fs/aio-nr"), limit: func() bound { return share(0) },
		why: "aio-max-nr is one pool of the host: io_setup is refused"},
}

// lockKinds are file locks: no cgroup is charged for file_lock_cache.
var lockKinds = []kind{
	{name: "POSIX byte-range locks", slow: true, workers: 3, take: rangeLocks(unix.F_SETLK), held: slab("file_lock_cache"), limit: inMemory, watched: true,
		why: "only a watcher bounds them"},
	{name: "byte-range locks of open files", take: rangeLocks(unix.F_OFD_SETLK), held: made, limit: func() bound { return share(0) },
		why: "no process shows them, so that a watcher could miss them"},
	{name: "flock", workers: 4, take: wholeLocks, held: slab("file_lock_cache"), limit: inMemory, why: "one a file"},
	{name: "leases", workers: 4, take: leases, held: slab("file_lock_cache", "file_lease_cache"), limit: inMemory, why: "one a file"},
}

// descriptors opens something until no more is given.
func descriptors(size int, open func() (int, error)) func(*hoard) error {
	return func(h *hoard) error {
		for {
			if _, err := open(); err != nil {
				return err
			}
			if !h.took(size) {
				return nil
			}
		}
	}
}

// pressureTrigger has the kernel watch the memory pressure of the whole host, which 6.1 and 6.18
// let every user do for windows of 2 s (Documentation/accounting/psi.rst).
func pressureTrigger() (int, error) {
	fd, err := unix.Open("/proc/pressure/memory", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("open", err)
	}
	if _, err := unix.Write(fd, []byte("some 2000000 2000000\x00")); err != nil {
		return fd, os.NewSyscallError("write", err)
	}
	return fd, nil
}

func openFiles(h *hoard) error {
	return descriptors(232, func() (int, error) { return unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) })(h)
}

func accessLists(h *hoard) error {
	const users = 8187 // an attribute is 64 KiB at most
	var list []byte
	entry := func(tag, permissions uint16, id uint32) {
		list = binary.LittleEndian.AppendUint16(list, tag)
		list = binary.LittleEndian.AppendUint16(list, permissions)
		list = binary.LittleEndian.AppendUint32(list, id)
	}
	list = binary.LittleEndian.AppendUint32(list, 2) // POSIX_ACL_XATTR_VERSION
	entry(0x01, 7, ^uint32(0))
	for id := range uint32(users) {
		entry(0x02, 7, id+1)
	}
	entry(0x04, 5, ^uint32(0))
	entry(0x10, 7, ^uint32(0))
	entry(0x20, 5, ^uint32(0))
	for _, mount := range []string{"/tmp", "/home/box", "/dev/shm"} {
		dir := mount + "/lists"
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Setxattr(dir, "system.posix_acl_default", list, 0); err != nil {
			return os.NewSyscallError("setxattr", err)
		}
		for i := 0; ; i++ {
			if err := os.Mkdir(fmt.Sprint(dir, "/", i), 0o755); err != nil {
				break // this mount is full
			}
			if !h.took(2 * 8 * users) { // the default of its children and its own
				return nil
			}
		}
	}
	return errEnough
}

func attributes(h *hoard) error {
	value := make([]byte, 60_000)
	for i := 0; ; i++ {
		name := fmt.Sprint("/tmp/", i)
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Setxattr(name, "user.box", value, 0); err != nil {
			return os.NewSyscallError("setxattr", err)
		}
		if !h.took(len(value)) {
			return nil
		}
	}
}

func tmpfsData(h *hoard) error {
	chunk := make([]byte, 1<<20)
	for _, dir := range []string{"/tmp", "/home/box", "/dev/shm"} {
		f, err := os.Create(dir + "/data")
		if err != nil {
			return err
		}
		for {
			n, err := f.Write(chunk)
			if !h.tookMany(0, n) {
				return nil
			}
			if err != nil {
				break // this one is full
			}
		}
	}
	return errEnough
}

func tmpfsInodes(h *hoard) error {
	for _, dir := range []string{"/tmp", "/home/box", "/dev/shm"} {
		for i := 0; ; i++ {
			if err := unix.Mkdir(fmt.Sprint(dir, "/", i), 0o700); err != nil {
				break
			}
			if !h.took(1 << 10) {
				return nil
			}
		}
	}
	return errEnough
}

func symlinks(h *hoard) error {
	to := strings.Repeat("x", 127) // longer ones have a page
	for _, dir := range []string{"/tmp", "/home/box", "/dev/shm"} {
		for i := 0; ; i++ {
			if err := unix.Symlink(to, fmt.Sprint(dir, "/", i)); err != nil {
				break
			}
			if !h.took(len(to)) {
				return nil
			}
		}
	}
	return errEnough
}

func missingNames(h *hoard) error {
	for i := 0; ; i++ {
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprint("/usr/", i), &st); err != unix.ENOENT {
			return os.NewSyscallError("stat", err)
		}
		if !h.took(192) {
			return nil
		}
	}
}

func procReaders(h *hoard) error {
	for {
		fd, err := unix.Open("/proc/self/smaps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("open", err)
		}
		if _, err := unix.Read(fd, make([]byte, 1)); err != nil {
			return os.NewSyscallError("read", err)
		}
		if !h.took(4096) {
			return nil
		}
	}
}

// fillPipe makes a pipe as large as it may be, and full.
func fillPipe(h *hoard, fd int) (more bool, err error) {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, 1<<20) // refused beyond a user's share
	return h.fill(fd, make([]byte, 64<<10))
}

func pipes(h *hoard) error {
	for {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
			return os.NewSyscallError("pipe2", err)
		}
		if more, err := fillPipe(h, ends[1]); err != nil || !more {
			return err
		}
	}
}

// notificationPipes makes pipes whose pages the kernel allocates in advance.
func notificationPipes(h *hoard) error {
	const setSize, notes = 0x5760, 512 // IOC_WATCH_QUEUE_SET_SIZE, and the most it takes
	for {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_EXCL|unix.O_CLOEXEC); err != nil { // O_NOTIFICATION_PIPE
			return os.NewSyscallError("pipe2", err)
		}
		if err := unix.IoctlSetInt(pipe[0], setSize, notes); err != nil {
			return os.NewSyscallError("ioctl", err)
		}
		unix.Close(pipe[1])
		if !h.took(notes * 128) {
			return nil
		}
	}
}

func fifos(h *hoard) error {
	for i := 0; ; i++ {
		name := fmt.Sprint("/tmp/", i)
		if err := unix.Mkfifo(name, 0o600); err != nil {
			return os.NewSyscallError("mkfifo", err)
		}
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("open", err)
		}
		if more, err := fillPipe(h, fd); err != nil || !more {
			return err
		}
	}
}

// givenPages puts pages into pipes and forgets them.
func givenPages(h *hoard) error {
	for {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
			return os.NewSyscallError("pipe2", err)
		}
		pages, err := mapTouched(64 << 10)
		if err != nil {
			return err
		}
		vector := []unix.Iovec{{Base: &pages[0], Len: uint64(len(pages))}}
		n, err := unix.Vmsplice(ends[1], vector, unix.SPLICE_F_NONBLOCK)
		if err != nil {
			return os.NewSyscallError("vmsplice", err)
		}
		if err := unix.Munmap(pages); err != nil {
			return os.NewSyscallError("munmap", err)
		}
		if !h.took(n) {
			return nil
		}
	}
}

func terminals(h *hoard) error {
	return descriptors(1<<10, func() (int, error) {
		return unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})(h)
}

func inotifyInstances(h *hoard) error {
	return descriptors(256, func() (int, error) { return unix.InotifyInit1(unix.IN_CLOEXEC) })(h)
}

func inotifyWatches(h *hoard) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	for _, dir := range []string{"/tmp", "/home/box", "/dev/shm"} {
		for i := 0; ; i++ {
			name := fmt.Sprint(dir, "/", i)
			if err := unix.Mkdir(name, 0o700); err != nil {
				break
			}
			if _, err := unix.InotifyAddWatch(fd, name, unix.IN_ALL_EVENTS); err != nil {
				return os.NewSyscallError("inotify_add_watch", err)
			}
			if !h.took(72) {
				return nil
			}
		}
	}
	return errEnough
}

func inotifyEvents(h *hoard) error {
	for i := 0; ; i++ {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("inotify_init1", err)
		}
		dir := fmt.Sprint("/tmp/", i)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_DELETE); err != nil {
			return os.NewSyscallError("inotify_add_watch", err)
		}
		for j := range 8192 { // two events each
			name := dir + "/" + strings.Repeat("x", 240) + fmt.Sprint(j)
			if err := unix.Mkdir(name, 0o700); err != nil {
				return os.NewSyscallError("mkdir", err)
			}
			if err := unix.Rmdir(name); err != nil {
				return os.NewSyscallError("rmdir", err)
			}
			if !h.tookMany(2, 2*300) {
				return nil
			}
		}
	}
}

// epollItems has many instances watch many descriptors.
func epollItems(h *hoard) error {
	var watched []int
	for range 400 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("eventfd", err)
		}
		watched = append(watched, fd)
	}
	for {
		instance, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("epoll_create1", err)
		}
		for _, fd := range watched {
			if err := unix.EpollCtl(instance, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
				return os.NewSyscallError("epoll_ctl", err)
			}
			if !h.took(200) {
				return nil
			}
		}
	}
}

// aioContexts takes at most an eighth of the pool: the host needs the others.
func aioContexts(h *hoard) error {
	for h.objects < 8192/64 {
		var context uintptr
		if _, _, err := unix.Syscall(unix.SYS_IO_SETUP, 64, pointer(&context), 0); err != 0 {
			return os.NewSyscallError("io_setup", err)
		}
		if !h.took(4096) {
			return nil
		}
	}
	return errEnough
}

func rangeLocks(command int) func(*hoard) error {
	return func(h *hoard) error {
		for i := 0; ; i++ {
			name := fmt.Sprint("/tmp/", h.worker, "-", i)
			fd, err := unix.Open(name, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return os.NewSyscallError("open", err)
			}
			// From the end: the kernel walks a sorted list. Neighbours would become one.
			for at := int64(1000); at > 0; at-- {
				lock := &unix.Flock_t{Type: unix.F_WRLCK, Start: 2 * at, Len: 1}
				if err := unix.FcntlFlock(uintptr(fd), command, lock); err != nil {
					return os.NewSyscallError("fcntl", err)
				}
				if !h.took(192) {
					return nil
				}
			}
		}
	}
}

// onFiles opens a new file again and again, for reading only.
func onFiles(h *hoard, do func(fd int) error) error {
	for i := 0; ; i++ {
		name := fmt.Sprint("/tmp/", h.worker, "-", i)
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_RDONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return os.NewSyscallError("open", err)
		}
		if err := do(fd); err != nil {
			return err
		}
		if !h.took(192) {
			return nil
		}
	}
}

func wholeLocks(h *hoard) error {
	return onFiles(h, func(fd int) error { return os.NewSyscallError("flock", unix.Flock(fd, unix.LOCK_EX)) })
}

func leases(h *hoard) error {
	return onFiles(h, func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
		return os.NewSyscallError("fcntl", err)
	})
}
