package linux

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Project quota: ioctl_xfs_fsgetxattr(2), quotactl(2). Every file belongs to one
// project, by default 0. The kernel counts and limits the bytes and inodes of a project
// like those of a user or group.

// ProjectInherit makes new files in a directory belong to its project, and forbids
// linking or renaming files of other projects into it (EXDEV).
const ProjectInherit = 0x200 // FS_XFLAG_PROJINHERIT

// FileAttr is struct fsxattr.
type FileAttr struct {
	Flags      uint32 // FS_XFLAG_*
	ExtentSize uint32
	Extents    uint32
	Project    uint32
	CowExtent  uint32
	_          [8]byte
}

// GetFileAttr returns the attributes of the file or directory f, which must not be O_PATH.
// ENOTTY means that the file system has no such attributes.
func GetFileAttr(f *os.File) (FileAttr, error) {
	const request = 0x801c581f // FS_IOC_FSGETXATTR, _IOR('X', 31, struct fsxattr)
	var a FileAttr
	err := ioctl(f, "FS_IOC_FSGETXATTR", request, unsafe.Pointer(&a))
	return a, err
}

// SetFileAttr sets the attributes of f to a: the result of GetFileAttr with the caller's
// changes.
func SetFileAttr(f *os.File, a FileAttr) error {
	const request = 0x401c5820 // FS_IOC_FSSETXATTR, _IOW('X', 32, struct fsxattr)
	return ioctl(f, "FS_IOC_FSSETXATTR", request, unsafe.Pointer(&a))
}

// ProjectQuota holds the limits and the usage of one project (struct if_dqblk). A limit of
// 0 means unlimited.
type ProjectQuota struct {
	Bytes, Inodes         uint64 // hard limits; bytes in units of 1 KiB, rounded up
	UsedBytes, UsedInodes uint64
}

// ifDqblk is struct if_dqblk. The kernel expresses block limits in KiB.
type ifDqblk struct {
	bhard, bsoft, curspace  uint64
	ihard, isoft, curinodes uint64
	btime, itime            uint64
	valid                   uint32
	_                       uint32
}

const (
	projectQuota   = 2 // PRJQUOTA
	qGetQuota      = 0x800007
	qSetQuota      = 0x800008
	qXGetQStat     = 'X'<<8 + 5
	qifLimits      = 5      // QIF_BLIMITS | QIF_ILIMITS
	projectEnforce = 1 << 5 // FS_QUOTA_PDQ_ENFD
)

// ProjectQuotaOn reports whether the file system that f is on enforces project quota.
// If it does not, err may be the kernel's reason: ENOSYS or ESRCH.
func ProjectQuotaOn(f *os.File) (bool, error) {
	var stat struct {
		version int8
		flags   uint16
		_       [160]byte // the rest of struct fs_quota_stat, which is smaller
	}
	err := quotactl(f, "Q_XGETQSTAT", qXGetQStat, 0, unsafe.Pointer(&stat))
	return err == nil && stat.flags&projectEnforce != 0, err
}

// GetProjectQuota returns the limits and the usage of a project on the file system that f
// is on. All are 0 for a project that was never used.
func GetProjectQuota(f *os.File, project uint32) (ProjectQuota, error) {
	var q ifDqblk
	err := quotactl(f, "Q_GETQUOTA", qGetQuota, project, unsafe.Pointer(&q))
	if e, ok := err.(*os.PathError); ok && (e.Err == unix.ENOENT || e.Err == unix.ESRCH) {
		// XFS has no record of this ID. ESRCH can also mean that quota is off, but then
		// setting a limit fails.
		return ProjectQuota{}, nil
	}
	return ProjectQuota{Bytes: q.bhard << 10, Inodes: q.ihard, UsedBytes: q.curspace, UsedInodes: q.curinodes}, err
}

// SetProjectQuota sets the hard limits of a project on the file system that f is on.
func SetProjectQuota(f *os.File, project uint32, bytes, inodes uint64) error {
	q := ifDqblk{bhard: (bytes + 1023) >> 10, ihard: inodes, valid: qifLimits}
	return quotactl(f, "Q_SETQUOTA", qSetQuota, project, unsafe.Pointer(&q))
}

// quotactl calls quotactl_fd(2), Linux 5.14, and before that quotactl(2) with the
// block device of the file system.
func quotactl(f *os.File, op string, cmd uint32, id uint32, arg unsafe.Pointer) error {
	request := uintptr(cmd<<8 | projectQuota)
	err := Retry(func() error {
		_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), request, uintptr(id), uintptr(arg), 0, 0)
		return errnoError(errno)
	})
	if err == unix.ENOSYS && !hasQuotactlFd() {
		return quotactlDevice(f, op, request, id, arg)
	}
	return pathError(op, f, "", err)
}

// hasQuotactlFd reports whether the kernel has quotactl_fd(2). ENOSYS can also mean that a
// file system has no quota, so the call is made without a valid descriptor.
func hasQuotactlFd() bool {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, ^uintptr(0), 0, 0, 0, 0, 0)
	return errno != unix.ENOSYS
}

func quotactlDevice(f *os.File, op string, request uintptr, id uint32, arg unsafe.Pointer) error {
	device, err := blockDevice(f)
	if err != nil {
		return err
	}
	path, err := unix.BytePtrFromString(device)
	if err != nil {
		return pathError(op, f, "", err)
	}
	err = Retry(func() error {
		_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL, request, uintptr(unsafe.Pointer(path)), uintptr(id), uintptr(arg), 0, 0)
		return errnoError(errno)
	})
	return pathError(op+" "+device, f, "", err)
}

// blockDevice returns the device node, as named by udev, of the file system that f is on.
func blockDevice(f *os.File) (string, error) {
	st, err := Fstat(f)
	if err != nil {
		return "", err
	}
	path := fmt.Sprintf("/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	var node unix.Stat_t
	if err := Retry(func() error { return unix.Stat(path, &node) }); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if node.Mode&unix.S_IFMT != unix.S_IFBLK || node.Rdev != st.Dev {
		return "", &os.PathError{Op: "stat", Path: path, Err: unix.ENOTBLK}
	}
	return path, nil
}
