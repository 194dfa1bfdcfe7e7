package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// New makes a network namespace with loopback up and the settings of [Sysctls],
// and returns a descriptor of it, owned by the caller. It belongs to the user
// namespace of the calling process, so nobody in a box has power over it, and it
// ends with the last process in it once the descriptor is closed.
func New() (ns *os.File, err error) {
	err = linux.OnThrowawayThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare(CLONE_NEWNET)", err)
		}
		if ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		return setUp()
	})
	if err != nil {
		ns.Close() // a nil file is fine
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	return ns, nil
}

// Loopback brings up the interface "lo" of the network namespace ns, which gives
// it 127.0.0.1/8 and, where the host has IPv6, ::1; and applies [Sysctls]. ns is
// a descriptor of the namespace or the pidfd of a process in it (Linux 5.8).
func Loopback(ns *os.File) error {
	if err := in(ns, setUp); err != nil {
		return fmt.Errorf("bringing up loopback: %w", err)
	}
	return nil
}

// in runs fn on a thread of its own in the network namespace ns.
func in(ns *os.File, fn func() error) error {
	return linux.OnThrowawayThread(func() error {
		if err := linux.Setns(ns, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return fn()
	})
}

// setUp works on the network namespace of the calling thread.
func setUp() error {
	// IPv6 must be on before lo is up: the address comes with the interface.
	if err := writeSysctls(); err != nil {
		return err
	}
	return linux.SetLinkUp("lo")
}

// A Sysctl is a setting of a network namespace.
type Sysctl struct {
	Path  string // below /proc/sys/net
	Value string
	// Optional: a kernel without it, or without IPv6, does without.
	Optional bool
}

// Sysctls are set in the network namespace of every box.
var Sysctls = []Sysctl{
	// A command without capabilities may listen on port 80.
	{"ipv4/ip_unprivileged_port_start", "0", false},
	// ping works without capabilities or raw sockets. The value is in the ids of
	// whoever writes it, here the host's.
	{"ipv4/ping_group_range", "0 2147483647", true},
	// Where the host has IPv6 in its kernel but off, a box still has ::1.
	{"ipv6/conf/lo/disable_ipv6", "0", true},
}

// writeSysctls writes Sysctls. What /proc/sys/net shows depends on the thread
// that opens it.
func writeSysctls() error {
	dir, err := openSysNet()
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, s := range Sysctls {
		err := writeSysctl(dir, s)
		if s.Optional && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
			continue
		}
		if err != nil {
			return fmt.Errorf("setting net/%s to %q: %w", s.Path, s.Value, err)
		}
	}
	return nil
}

// openSysNet opens /proc/sys/net and makes sure that it is on a procfs: a fake
// one would swallow what is written (CVE-2019-19921).
func openSysNet() (*os.File, error) {
	dir, err := linux.Openat2(nil, "/proc/sys/net", unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return nil, err
	}
	st, err := linux.Fstatfs(dir)
	if err == nil && st.Type != unix.PROC_SUPER_MAGIC {
		err = &os.PathError{Op: "checking", Path: "/proc/sys/net", Err: errors.New("not on a procfs")}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func writeSysctl(dir *os.File, s Sysctl) error {
	file, err := linux.Openat2(dir, s.Path, unix.OpenHow{
		Flags:   unix.O_WRONLY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	_, err = file.WriteString(s.Value)
	return errors.Join(err, file.Close())
}
