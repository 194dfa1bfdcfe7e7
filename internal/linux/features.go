//go:build amd64 || arm64

package linux

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Probes try a kernel feature and leave nothing behind. Nil means that it works.
// An error that matches errors.ErrUnsupported means that this kernel definitely
// lacks it. Any other error is inconclusive, most often EPERM for lack of
// privilege.

// unsupported marks err as a definite no.
func unsupported(what string, err error) error {
	return fmt.Errorf("%s: %w: %w", what, errors.ErrUnsupported, err)
}

// KernelRelease returns the release of the running kernel, such as "6.1.0-31-amd64",
// and its machine, such as "x86_64" (uname(2)).
func KernelRelease() (release, machine string, err error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", "", os.NewSyscallError("uname", err)
	}
	return unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]), nil
}

// ProbeMountAPI creates a detached tmpfs: fsopen, fsconfig, fsmount (Linux 5.2)
// and mount_setattr (Linux 5.12).
func ProbeMountAPI() error {
	m, err := NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return err
	}
	defer m.Close()
	return MountSetattr(m, false, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// ProbeFilesystem opens a file system type, which loads its module if that is
// allowed.
func ProbeFilesystem(fstype string) error {
	fd, err := retryFd(func() (int, error) { return unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC) })
	switch err {
	case nil:
		return unix.Close(fd)
	case unix.ENODEV:
		return unsupported("file system "+fstype, err)
	}
	return &os.PathError{Op: "fsopen", Path: fstype, Err: err}
}

// ProbeIDMap tries an id-mapped mount of dir (Linux 5.12). The file system of dir
// must support it as well.
func ProbeIDMap(dir string) error {
	ns, err := NewUserNS("0 65534 1\n", "0 65534 1\n")
	if err != nil {
		return fmt.Errorf("making user namespace: %w", err)
	}
	defer ns.Close()
	tree, err := OpenTree(nil, dir, unix.OPEN_TREE_CLONE|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return err
	}
	defer tree.Close()
	err = MountSetattr(tree, false, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	runtime.KeepAlive(ns)
	// mount_setattr(2): EINVAL if the file system cannot be id-mapped. No other
	// cause applies to this call.
	if errors.Is(err, unix.EINVAL) {
		return unsupported("id-mapped mount of "+dir, err)
	}
	return err
}

// ProbeUserNS creates a user namespace that maps one ID.
func ProbeUserNS() error {
	ns, err := NewUserNS("0 65534 1\n", "0 65534 1\n")
	if err != nil {
		return err
	}
	return ns.Close()
}

// cloneArgsCgroup is struct clone_args of clone3(2) up to cgroup, Linux 5.7
// (CLONE_ARGS_SIZE_VER2).
type cloneArgsCgroup struct {
	cloneArgs
	setTID, setTIDSize, cgroup uint64
}

// ProbeCloneIntoCgroup calls clone3 with a cgroup descriptor that cannot exist:
// 2^31-1 is above the maximum of fs.nr_open. A kernel that has CLONE_INTO_CGROUP
// (Linux 5.7) returns EBADF. No kernel forks.
func ProbeCloneIntoCgroup() error {
	args := cloneArgsCgroup{cloneArgs: cloneArgs{flags: unix.CLONE_INTO_CGROUP, exitSignal: uint64(unix.SIGCHLD)}, cgroup: 1<<31 - 1}
	_, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	switch errno {
	case unix.EBADF:
		return nil
	case unix.E2BIG, unix.EINVAL, unix.ENOSYS: // unknown size; unknown flag; no clone3
		return unsupported("clone3 into a cgroup", errno)
	}
	return os.NewSyscallError("clone3", errno)
}

// ProbePidfd opens a pidfd of this process and sends it signal 0 (Linux 5.3).
func ProbePidfd() error {
	f, err := PidfdOpen(os.Getpid())
	if err != nil {
		return err
	}
	defer f.Close()
	return PidfdSignal(f, 0)
}

// ProbeOpenat2 resolves a path beneath a directory (Linux 5.6).
func ProbeOpenat2() error {
	f, err := Openat2(nil, ".", unix.OpenHow{Flags: unix.O_PATH, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return err
	}
	return f.Close()
}

// ProbeSeccomp asks whether filters can return an error (SECCOMP_GET_ACTION_AVAIL in
// seccomp(2), Linux 4.14), which needs CONFIG_SECCOMP_FILTER.
func ProbeSeccomp() error {
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	switch errno {
	case 0:
		return nil
	case unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP:
		return unsupported("seccomp filter", errno)
	}
	return os.NewSyscallError("seccomp", errno)
}

// ProbeLayers tries an overlay of a read-only, id-mapped clone of dir (Linux 5.19), as images have it. byName
// says that overlayfs takes such a clone only by the name of the directory that it is attached to, as before
// Linux 6.15, and not by descriptor. The file system of dir must support mapped ids as well.
func ProbeLayers(dir string) (byName bool, err error) {
	ns, err := NewUserNS("0 65534 1\n", "0 65534 1\n")
	if err != nil {
		return false, fmt.Errorf("making user namespace: %w", err)
	}
	defer ns.Close()
	layer, err := OpenTree(nil, dir, unix.OPEN_TREE_CLONE|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return false, err
	}
	defer layer.Close()
	err = MountSetattr(layer, false, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	runtime.KeepAlive(ns)
	if errors.Is(err, unix.EINVAL) {
		return false, unsupported("id-mapped mount of "+dir, err)
	}
	if err != nil {
		return false, err
	}
	below, err := NewMount("tmpfs", unix.MOUNT_ATTR_NODEV) // without an upper directory, overlayfs wants two
	if err != nil {
		return false, err
	}
	defer below.Close()
	m, err := NewMount("overlay", unix.MOUNT_ATTR_RDONLY, Option{Key: "lowerdir+", File: layer}, Option{Key: "lowerdir+", File: below})
	if err == nil {
		return false, m.Close()
	}
	// Before Linux 6.5 overlayfs does not know lowerdir+.
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
		return false, err
	}
	return true, probeLayersByName(layer, below)
}

// probeLayersByName mounts an overlay in a mount namespace that ends with its thread.
func probeLayersByName(layer, below *os.File) error {
	return OnThrowawayThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return os.NewSyscallError("mount", err)
		}
		names, err := NewMount("tmpfs", unix.MOUNT_ATTR_NODEV)
		if err != nil {
			return err
		}
		defer names.Close()
		for _, name := range []string{"0", "1", "all"} {
			if err := MkdirAt(names, name, 0o700); err != nil {
				return err
			}
		}
		if err := errors.Join(MoveMount(names, nil, "/proc"), MoveMount(layer, names, "0"), MoveMount(below, names, "1")); err != nil {
			return err
		}
		err = unix.Mount("overlay", "/proc/all", "overlay", unix.MS_RDONLY, "lowerdir=/proc/0:/proc/1")
		if err == unix.EINVAL {
			return unsupported("overlay of id-mapped layers", err)
		}
		return os.NewSyscallError("mount", err)
	})
}

// ProbeVerity asks whether the file system of dir can have files with fs-verity (Linux 5.4). The file that it
// asks about has no name.
func ProbeVerity(dir string) error {
	f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	digest := struct {
		algorithm, size uint16
		bytes           [64]byte
	}{size: 64}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.FS_IOC_MEASURE_VERITY, uintptr(unsafe.Pointer(&digest)))
	runtime.KeepAlive(f)
	switch errno {
	case 0, unix.ENODATA: // this file has none
		return nil
	case unix.ENOTTY, unix.EOPNOTSUPP:
		return unsupported("fs-verity on the file system of "+dir, errno)
	}
	return &os.PathError{Op: "ioctl(FS_IOC_MEASURE_VERITY)", Path: dir, Err: errno}
}
