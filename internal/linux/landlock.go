package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access rights that can be granted (landlock(7)). None of them allows executing anything,
// or creating a device, FIFO or socket.
const (
	landlockRead  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landlockWrite = landlockRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
	landlockMake = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE
	// landlockFile are the rights that can be granted on anything but a directory.
	landlockFile = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
)

// LandlockPath is a file, or a directory with everything below it, that a process may use.
type LandlockPath struct {
	Path string
	Use  LandlockUse
}

// LandlockUse says how a process may use a file or directory.
type LandlockUse int

// The uses of a path.
const (
	LandlockRead  LandlockUse = iota
	LandlockWrite             // write, and read
	LandlockMake              // create, write and remove files, but read none
)

// ErrNoLandlock means that this kernel cannot confine a process to paths.
var ErrNoLandlock = errors.New("the kernel has no usable Landlock")

// LandlockABI returns the kernel's Landlock version, 0 without Landlock.
func LandlockABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// ProbeLandlock checks for a version that LandlockAllThreads can use.
func ProbeLandlock() error {
	if abi := LandlockABI(); abi < 2 {
		return unsupported(fmt.Sprintf("Landlock version %d", abi), ErrNoLandlock)
	}
	return nil
}

// LandlockAllThreads permanently confines all threads of this process to paths. It skips
// paths that are missing or cannot be reached. It needs Landlock version 2 (Linux 5.19),
// because version 1 forbids all renames between directories. The process must have
// no_new_privs set and be built without cgo.
func LandlockAllThreads(paths []LandlockPath) error {
	if err := ProbeLandlock(); err != nil {
		return err
	}
	handled := uint64(landlockWrite | unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR |
		unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK)
	if LandlockABI() < 3 {
		handled &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: handled}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	if errno != 0 {
		return os.NewSyscallError("landlock_create_ruleset", errno)
	}
	ruleset := os.NewFile(fd, "landlock")
	defer ruleset.Close()
	for _, p := range paths {
		if err := addLandlockPath(ruleset, p, handled); err != nil {
			return err
		}
	}
	_, _, errno = syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset.Fd(), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("landlock_restrict_self", errno)
	}
	return nil
}

func addLandlockPath(ruleset *os.File, p LandlockPath, handled uint64) error {
	f, err := os.OpenFile(p.Path, unix.O_PATH, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := Fstat(f)
	if err != nil {
		return err
	}
	access := map[LandlockUse]uint64{LandlockRead: landlockRead, LandlockWrite: landlockWrite, LandlockMake: landlockMake}[p.Use]
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= landlockFile
	}
	// The struct is packed in C: eight bytes, then four.
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access & handled, Parent_fd: int32(f.Fd())}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, ruleset.Fd(), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	runtime.KeepAlive(f)
	if errno != 0 {
		return &os.PathError{Op: "landlock_add_rule", Path: p.Path, Err: errno}
	}
	return nil
}
