package linux

import (
	"encoding/binary"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mntIDReq is struct mnt_id_req of statmount(2), MNT_ID_REQ_SIZE_VER0.
type mntIDReq struct {
	size, spare uint32
	id, param   uint64
}

// Constants of struct statmount: its size without strings, the offset of mnt_id_old, and
// the mask that requests this field.
const (
	statmountSize  = 512
	statmountOldID = 56
	statmountBasic = 0x2 // STATMOUNT_MNT_BASIC
)

// OldMountID returns the mountinfo ID of the mount with the unique ID
// (STATX_MNT_ID_UNIQUE), which must be in the mount namespace of the calling thread.
// ENOENT means that there is no such mount. Both IDs need Linux 6.8.
func OldMountID(unique uint64) (uint64, error) {
	req := &mntIDReq{size: uint32(unsafe.Sizeof(mntIDReq{})), id: unique, param: statmountBasic}
	buf := make([]byte, statmountSize)
	err := Retry(func() error {
		_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(req)),
			uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), 0, 0, 0)
		return errnoError(errno)
	})
	runtime.KeepAlive(req)
	if err != nil {
		return 0, os.NewSyscallError("statmount", err)
	}
	return uint64(binary.NativeEndian.Uint32(buf[statmountOldID:])), nil
}
