package netns

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// New creates a network namespace with loopback up and the settings of [Sysctls],
// and returns a descriptor of it, which the caller owns. The namespace belongs to the user
// namespace of the calling process, so no process of a box has power over it. Once the
// descriptor is closed, the namespace ends with the last process in it.
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

// in runs fn on a separate thread in the network namespace ns.
func in(ns *os.File, fn func() error) error {
	return linux.OnThrowawayThread(func() error {
		if err := linux.Setns(ns, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return fn()
	})
}

// DiagSocket opens a socket of sock_diag(7) in the network namespace behind ns, which may be a pidfd
// of a process in it. The caller owns the socket.
func DiagSocket(ns *os.File) (diag *os.File, err error) {
	err = in(ns, func() error {
		diag, err = linux.DiagSocket()
		return err
	})
	return diag, err
}

// setUp configures the network namespace of the calling thread.
func setUp() error {
	// IPv6 must be on before lo is up: lo gets its addresses when it comes up.
	if err := writeSysctls(); err != nil {
		return err
	}
	return linux.SetLinkUp("lo")
}
