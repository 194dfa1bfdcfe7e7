package rootfs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// publicLower returns the root of a read-only overlay of t that shows the host's
// files as if the box owned them, and lets nobody read more of them than everybody
// on the host may: the box's root may read neither a file of mode 0600 nor
// what is in a directory of mode 0700, although both look like its own.
//
// An overlay checks each access twice: with the credentials of who asks against
// the owner and mode that it shows, and with those of its mounter against the
// file below (overlayfs.rst, "Permission model"). The second check is what this
// overlay is for. Its mounter owns nothing below, since all ids there are mapped
// to the box, and it may not override permissions. The box's own overlay on top
// cannot do both: its mounter must have power over the upper directory.
//
// A program that may be executed but not read cannot be executed through it.
func (b *builder) publicLower(t tree) (*os.File, error) {
	lower, err := b.lower(t)
	if err != nil {
		return nil, err
	}
	defer lower.Close()
	// Without an upper directory there must be two lower ones.
	empty, err := b.layer("empty", t)
	if err != nil {
		return nil, err
	}
	defer empty.Close()
	var m *os.File
	err = linux.OnThrowawayThread(func() error {
		if err := keepOnly(unix.CAP_SYS_ADMIN); err != nil {
			return err
		}
		m, err = linux.NewMount("overlay", attrReadOnly,
			linux.Option{Key: "lowerdir", Value: linux.FdPath(lower) + ":" + linux.FdPath(empty)})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("leaving out private files: %w", err)
	}
	return b.beside("public", t, m)
}

// keepOnly drops all capabilities but one, a number below 32, from the calling
// thread, which belongs to linux.OnThrowawayThread.
func keepOnly(capability uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // the first one for 0 to 31
	data[0].Effective = 1 << capability
	data[0].Permitted = 1 << capability
	return os.NewSyscallError("capset", unix.Capset(&header, &data[0]))
}
