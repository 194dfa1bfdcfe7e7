package linux

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Project quota: ioctl_xfs_fsgetxattr(2), quotactl(2). Every file belongs to one
// project, 0 unless it was given another; the kernel counts and limits a project's
// bytes and inodes as those of users and groups.

// ProjectInherit makes what is created in a directory belong to its project, and
// keeps files of others from being linked or renamed into it (EXDEV).
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
// ENOTTY: its file system has none.
func GetFileAttr(f *os.File) (FileAttr, error) {
	const request = 0x801c581f // FS_IOC_FSGETXATTR, _IOR('X', 31, struct fsxattr)
	var a FileAttr
	err := ioctl(f, "FS_IOC_FSGETXATTR", request, unsafe.Pointer(&a))
	return a, err
}

// SetFileAttr sets the attributes of f to a, which GetFileAttr has returned and
// the caller has changed.
func SetFileAttr(f *os.File, a FileAttr) error {
	const request = 0x401c5820 // FS_IOC_FSSETXATTR, _IOW('X', 32, struct fsxattr)
	return ioctl(f, "FS_IOC_FSSETXATTR", request, unsafe.Pointer(&a))
}

// ProjectQuota is what one project may use and does: struct if_dqblk. 0 as a limit
// is none.
type ProjectQuota struct {
	Bytes, Inodes         uint64 // hard limits; bytes in units of 1 KiB, rounded up
	UsedBytes, UsedInodes uint64
}

// ifDqblk is the kernel's layout; the kernel counts block limits in KiB.
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

// ProjectQuotaOn says whether the file system that f is on enforces project quota.
// The error says why not where the kernel has a reason: ENOSYS, ESRCH.
func ProjectQuotaOn(f *os.File) (bool, error) {
	var stat struct {
		version int8
		flags   uint16
		_       [160]byte // the rest of struct fs_quota_stat, which is smaller
	}
	err := quotactl(f, "Q_XGETQSTAT", qXGetQStat, 0, unsafe.Pointer(&stat))
	return err == nil && stat.flags&projectEnforce != 0, err
}

// GetProjectQuota returns limits and use of a project on the file system that f is
// on. One that was never used has none.
func GetProjectQuota(f *os.File, project uint32) (ProjectQuota, error) {
	var q ifDqblk
	err := quotactl(f, "Q_GETQUOTA", qGetQuota, project, unsafe.Pointer(&q))
	if e, ok := err.(*os.PathError); ok && (e.Err == unix.ENOENT || e.Err == unix.ESRCH) {
		// XFS: no record of this id. ESRCH is also "quota is off", which makes any limit
		// fail when it is set.
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
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err == unix.ENOSYS && !hasQuotactlFd(f) {
		return quotactlDevice(f, op, request, id, arg)
	}
	return pathError(op, f, "", err)
}

// hasQuotactlFd tells a kernel without the call, which knows no descriptor, from a
// file system without quota: both say ENOSYS.
func hasQuotactlFd(f *os.File) bool {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, ^uintptr(0), 0, 0, 0, 0, 0)
	runtime.KeepAlive(f)
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
		if errno != 0 {
			return errno
		}
		return nil
	})
	return pathError(op+" "+device, f, "", err)
}

// blockDevice is the device node of the file system that f is on, as udev names it.
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
