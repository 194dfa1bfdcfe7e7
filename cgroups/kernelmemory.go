package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
)

// What the sockets of a box queue is kernel memory. cgroup2 charges it to the cgroup
// that made the socket. v1 has an account of its own for it, beside that of the memory
// limit, and it is off for every cgroup without a limit of its own: writing
// one to the box alone changes nothing, and nothing says so. So each slot switches the
// account on before a command can make a socket there, the box has the bound, and the
// arrangement is proved on sockets once for each Host. It has the receive queues of UDP
// as well (mem_cgroup_sk_alloc and memcg1_charge_skmem in mm/memcontrol.c).
const (
	socketLimit = "memory.kmem.tcp.limit_in_bytes"
	socketUsage = "memory.kmem.tcp.usage_in_bytes"
)

// SocketShare says how much the sockets of a box may hold beside its memory limit on v1:
// one part of the limit in so many.
const SocketShare = 4

// kernelMemory is what a Host found out about the accounting of kernel memory.
type kernelMemory struct {
	mu    sync.Mutex
	known bool // err is the answer
	err   error
	// hold is a socket of the proof. While it exists the kernel keeps the account of its
	// cgroup, which is gone otherwise: the first account of all patches the kernel's code
	// on all processors (130 µs), which a box need not wait for.
	hold   *os.File
	closed bool
}

// errUncounted is a proof that came out against the kernel. Other failures say nothing
// about it, and it is tried again.
var errUncounted = errors.New("the kernel does not count what sockets hold")

// CheckKernelMemory finds out whether this host charges a box for the kernel memory that
// its sockets hold: nil, or an [UnenforceableError]. The answer is kept. Finding it takes
// some 0.5 ms; a call ahead of time saves the first box of the Host this wait. id names a
// throw-away cgroup; a leftover of that name, of a process that was killed here, is taken
// away first.
func (h *Host) CheckKernelMemory(id string) error {
	k := &h.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known || k.closed {
		return k.err
	}
	on := h.of("memory")
	words := bootWords()
	u := &UnenforceableError{Limit: "kernel memory"}
	switch {
	case on == nil:
		u.Reason, u.Mend = "no hierarchy has the memory controller", mends["memory"]
	case slices.Contains(words, "nokmem") || !on.v1 && slices.Contains(words, "nosocket"):
		u.Reason = "the kernel was booted with cgroup.memory=" + strings.Join(words, ",")
		u.Mend = "boot without cgroup.memory=nokmem and nosocket"
	case on.v1:
		if err := h.proveSockets(on, id); err != nil {
			u.Reason = "proving that sockets are counted: " + oneline.Error(err)
			u.Mend = "boot with systemd.unified_cgroup_hierarchy=1, or use a kernel with " + socketLimit
			if !errors.Is(err, errUncounted) && !errors.Is(err, os.ErrNotExist) {
				return u
			}
		}
	}
	if u.Reason != "" {
		k.err = u
	}
	k.known = true
	return k.err
}

// bootWords are what the kernel's parameter cgroup.memory= has
// (Documentation/admin-guide/kernel-parameters.txt).
func bootWords() (words []string) {
	line, _ := os.ReadFile("/proc/cmdline") // without procfs boxes fail elsewhere
	for field := range strings.FieldsSeq(string(line)) {
		if list, ok := strings.CutPrefix(field, "cgroup.memory="); ok {
			words = append(words, strings.Split(list, ",")...)
		}
	}
	return words
}

// proveSockets has a TCP connection hold data in a throw-away cgroup that is made as a
// box with one slot, and looks whether the box's account shows it.
func (h *Host) proveSockets(on *hierarchy, id string) (err error) {
	g := &Group{ID: id, host: h}
	if err := g.removeFrom(context.Background(), &tree{on: on}); err != nil {
		return err
	}
	defer func() {
		for _, t := range g.v1 {
			err = errors.Join(err, g.removeFrom(context.Background(), t), t.box.Close())
			_ = linux.RmdirAt(on.dir, baseName) // as Remove does
		}
	}()
	if err := g.makeV1(on); err != nil {
		return err
	}
	box := g.v1[0].box
	if err := (&knob{dir: box, file: socketLimit}).set(1 << 20); err != nil {
		return err
	}
	if err := linux.WriteFileAt(box, "work/"+socketLimit, "-1"); err != nil {
		return err
	}
	return linux.OnThrowawayThread(func() error {
		if err := linux.WriteFileAt(box, "work/tasks", "0"); err != nil {
			return err
		}
		err := holdData(func() error {
			n, err := readNumber(box, socketUsage)
			if err == nil && n <= 0 {
				err = fmt.Errorf("%w: %s is %d while a connection holds data", errUncounted, socketUsage, n)
			}
			return err
		})
		if h.kernel.hold == nil {
			if fd, serr := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); serr == nil {
				h.kernel.hold = os.NewFile(uintptr(fd), "socket of a cgroup")
			}
		}
		return errors.Join(err, g.LeaveThread())
	})
}

// holdData calls fn while a TCP connection has data that nobody has read. It is one
// socket, connected to itself: so nobody else can connect to it meanwhile.
func holdData(fn func() error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// Closing resets the connection and leaves nothing waiting.
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	self, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	if err := unix.Connect(fd, self); err != nil && err != unix.EINPROGRESS {
		return os.NewSyscallError("connect to loopback", err)
	}
	connected := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if err := linux.Retry(func() error { _, err := unix.Poll(connected, 1000); return err }); err != nil {
		return os.NewSyscallError("poll", err)
	}
	if _, err := unix.Write(fd, make([]byte, 16<<10)); err != nil {
		return os.NewSyscallError("write to loopback", err)
	}
	return fn()
}

// close releases what the proof holds, and lets no further one begin.
func (k *kernelMemory) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	if k.hold == nil {
		return nil
	}
	err := k.hold.Close()
	k.hold = nil
	return err
}

// boundSockets bounds what the sockets of the box may have beside its memory limit, on
// v1. It needs no bound of its own on cgroup2.
func (g *Group) boundSockets(memory int64) error {
	if memory > 0 {
		if err := g.host.CheckKernelMemory(g.ID + "-sockets"); err != nil {
			return err
		}
	}
	t := g.v1Tree("memory")
	if t == nil || !exists(t.box, "work/"+socketLimit) {
		return nil
	}
	bound := int64(Unlimited)
	if memory > 0 {
		bound = memory / SocketShare
		bound -= bound % int64(os.Getpagesize())
	}
	err := apply([]*knob{{dir: t.box, file: "work/" + socketLimit, value: bound}})
	if errors.Is(err, unix.EBUSY) {
		used, _ := readNumber(t.box, "work/"+socketUsage)
		return &InUseError{Want: memory, Sockets: used, Err: err}
	}
	return err
}

// countSockets switches the account of a slot on. It costs some 10 µs where slots are
// made, which is ahead of the command.
func (s *Slot) countSockets() error {
	t := s.group.v1Tree("memory")
	if t == nil {
		return nil
	}
	// The bound is the box's. A kernel without the account is named by
	// CheckKernelMemory.
	return ignoreGone(linux.WriteFileAt(t.box, s.path()+"/"+socketLimit, "-1"))
}
