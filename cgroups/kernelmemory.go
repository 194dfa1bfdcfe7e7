package cgroups

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// What the sockets of a box queue is kernel memory. cgroup2 charges it to the cgroup
// that made the socket. v1 has an account of its own for it, beside that of the memory
// limit, and it is off for every cgroup to which nobody has written a limit: writing
// one to the box alone changes nothing, and nothing says so. So each slot switches the
// account on before a command can make a socket there, the box has the bound, and the
// arrangement is proved on sockets once for each Host. It has the receive queues of UDP
// as well (mem_cgroup_sk_alloc and memcg1_charge_skmem in mm/memcontrol.c).
const (
	socketLimit = "memory.kmem.tcp.limit_in_bytes"
	socketUsage = "memory.kmem.tcp.usage_in_bytes"
)

// socketShare is the part of a memory limit that the sockets of a box may have beside
// it on v1: 1/4.
const socketShare = 4

// kernelMemory is what a Host found out about the accounting of kernel memory.
type kernelMemory struct {
	once sync.Once
	err  *UnenforceableError
	// hold is a socket of the proof. While it exists the kernel keeps the account of its
	// cgroup, which is gone otherwise: the first account of all patches the kernel's code
	// on all processors (130 µs), which a box need not wait for.
	hold *os.File
}

// CheckKernelMemory finds out whether this host charges a box for the kernel memory
// that it makes its sockets hold: nil, or an [UnenforceableError]. The first call takes
// some 0.3 ms; who calls it ahead of time saves the first box of the Host this wait.
func (h *Host) CheckKernelMemory() error {
	k := &h.kernel
	k.once.Do(func() {
		reason, mend := h.uncharged()
		if reason != "" {
			k.err = &UnenforceableError{Limit: "kernel memory", Reason: reason, Mend: mend}
		}
	})
	if k.err == nil {
		return nil
	}
	return k.err
}

// uncharged says why kernel memory is not charged, and what to do.
func (h *Host) uncharged() (reason, mend string) {
	on := h.of("memory")
	if on == nil {
		return "no hierarchy has the memory controller", mends["memory"]
	}
	if words := bootWords(); slices.Contains(words, "nokmem") || !on.v1 && slices.Contains(words, "nosocket") {
		return "the kernel was booted with cgroup.memory=" + strings.Join(words, ","), "boot without cgroup.memory=nokmem and nosocket"
	}
	if !on.v1 {
		return "", ""
	}
	if err := h.proveSockets(on); err != nil {
		return "the memory of sockets is not counted: " + strings.ReplaceAll(err.Error(), "\n", "; "),
			"boot with systemd.unified_cgroup_hierarchy=1, or use a kernel with " + socketLimit
	}
	return "", ""
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
func (h *Host) proveSockets(on *hierarchy) (err error) {
	h.sweepProofs(on)
	g := &Group{ID: fmt.Sprintf("%s%d-%s", proofPrefix, os.Getpid(), strings.ToLower(rand.Text())), host: h}
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
				err = fmt.Errorf("%s/%s is %d while a connection holds data", box.Name(), socketUsage, n)
			}
			return err
		})
		if fd, serr := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); serr == nil {
			h.kernel.hold = os.NewFile(uintptr(fd), "socket of a cgroup")
		}
		return errors.Join(err, g.LeaveThread())
	})
}

// proofPrefix begins the name of a cgroup of a proof; the pid of its process follows.
const proofPrefix = "sockets-"

// sweepProofs removes what processes left that were killed during their proof.
func (h *Host) sweepProofs(on *hierarchy) {
	names, _ := subdirectories(on.dir, baseName) // none: nothing is left
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, proofPrefix)
		pid, _, _ := strings.Cut(rest, "-")
		if n, err := strconv.Atoi(pid); !ok || err != nil || unix.Kill(n, 0) != unix.ESRCH {
			continue
		}
		_ = linux.RmdirAt(on.dir, baseName+"/"+name+"/work") // what cannot be removed is tried again
		_ = linux.RmdirAt(on.dir, baseName+"/"+name)
	}
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

// close releases what the proof holds.
func (k *kernelMemory) close() error {
	k.once.Do(func() {}) // waits for one under way
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
		if err := g.host.CheckKernelMemory(); err != nil {
			return err
		}
	}
	t := g.v1Tree("memory")
	if t == nil || !exists(t.box, "work/"+socketLimit) {
		return nil
	}
	bound := int64(Unlimited)
	if memory > 0 {
		bound = memory / socketShare
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
