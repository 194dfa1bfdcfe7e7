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

// Data that the sockets of a box queue is kernel memory. cgroup2 charges it to the cgroup
// that created the socket. v1 has a separate account for it, apart from that of the memory
// limit. In each cgroup, this account is off until the cgroup itself gets a limit: a limit
// of the box alone silently has no effect. So each slot turns the account on before a
// command can create a socket in it, the box has the bound, and each Host proves once, with
// sockets, that this works. The account includes the receive queues of UDP
// (mem_cgroup_sk_alloc and memcg1_charge_skmem in mm/memcontrol.c).
const (
	socketLimit = "memory.kmem.tcp.limit_in_bytes"
	socketUsage = "memory.kmem.tcp.usage_in_bytes"
)

// SocketShare divides the memory limit of a box: on v1, its sockets may hold 1/SocketShare of
// the limit in addition to it.
const SocketShare = 4

// kernelMemory is what a Host knows about the accounting of kernel memory.
type kernelMemory struct {
	mu    sync.Mutex
	known bool // err is the answer
	err   error
	// hold is a socket in the cgroup of the proof. It keeps the cgroup's account alive:
	// enabling the very first account patches the kernel's code on all processors (130 µs),
	// and boxes should not have to wait for that.
	hold   *os.File
	closed bool
	proven bool // see TrustKernelMemory
}

// errUncounted means that the kernel failed the proof. After any other failure the answer
// is still unknown, and the proof is repeated.
var errUncounted = errors.New("the kernel does not count the memory of sockets")

// CheckKernelMemory returns nil if this host charges a box for the kernel memory that its
// sockets hold, or else an [UnenforceableError]. The Host remembers the answer. Finding out
// takes some 0.5 ms, unless TrustKernelMemory was called before; a call ahead of time saves the first box this
// wait. id names a temporary cgroup; a leftover of that name, from a process that was killed here, is removed first.
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
	case on.v1 && !(k.proven && exists(on.dir, socketLimit)):
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

// TrustKernelMemory tells h that a Host has passed the proof of CheckKernelMemory with the kernel that is running.
// CheckKernelMemory then leaves out the proof, and checks only what it can read.
func (h *Host) TrustKernelMemory() {
	h.kernel.mu.Lock()
	defer h.kernel.mu.Unlock()
	h.kernel.proven = true
}

// bootWords returns the values of the kernel parameter cgroup.memory=
// (Documentation/admin-guide/kernel-parameters.txt).
func bootWords() (words []string) {
	line, _ := os.ReadFile("/proc/cmdline") // without procfs, boxes fail anyway
	for field := range strings.FieldsSeq(string(line)) {
		if list, ok := strings.CutPrefix(field, "cgroup.memory="); ok {
			words = append(words, strings.Split(list, ",")...)
		}
	}
	return words
}

// proveSockets makes a TCP connection hold data in a temporary cgroup, set up like a box with
// one slot, and checks that the box's account shows the data.
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

// holdData calls fn while a TCP connection holds unread data. The connection is a single
// socket, connected to itself, so nobody else can connect to it.
func holdData(fn func() error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// Make close reset the connection, so that nothing lingers.
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

// close releases the socket of the proof, and prevents further proofs.
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

// boundSockets bounds what the sockets of the box may hold in addition to its memory limit
// on v1. On cgroup2 no separate bound is needed.
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

// countSockets turns on the socket account of a slot. It takes some 10 µs when a slot is
// created, which happens ahead of the command.
func (s *Slot) countSockets() error {
	t := s.group.v1Tree("memory")
	if t == nil {
		return nil
	}
	// The box has the bound. CheckKernelMemory reports a kernel without the account.
	return ignoreGone(linux.WriteFileAt(t.box, s.path()+"/"+socketLimit, "-1"))
}
