package rootfs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// publicLower returns the root of a read-only overlay of t that shows the host's files as
// if the box owned them, but does not let the box read more than everybody on the host may:
// although they look like its own, the box's root can read neither a file of mode 0600 nor
// the content of a directory of mode 0700.
//
// An overlay checks each access twice: the credentials of the caller against the owner and
// mode that it shows, and the credentials of its mounter against the file in the layer
// (overlayfs.rst, "Permission model"). This overlay exists for the second check. Its mounter
// owns nothing in the layer, because all IDs there are mapped to the box, and has no
// capability to override permissions. The box's own overlay on top cannot do this as well,
// because its mounter must have power over the upper directory.
//
// A program that may be executed but not read cannot be executed through this overlay.
func (b *builder) publicLower(t tree) (*os.File, error) {
	lower, err := b.lower(t)
	if err != nil {
		return nil, err
	}
	defer lower.Close()
	// An overlay without an upper directory needs two lower ones.
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

// keepOnly drops all capabilities but one, whose number is below 32, from the calling
// thread, which must be one of linux.OnThrowawayThread.
func keepOnly(capability uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // the first one for 0 to 31
	data[0].Effective = 1 << capability
	data[0].Permitted = 1 << capability
	return os.NewSyscallError("capset", unix.Capset(&header, &data[0]))
}
