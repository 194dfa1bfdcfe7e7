package linux

import (
	"os"

	"golang.org/x/sys/unix"
)

// Resources that [Kcmp] can compare: enum kcmp_type in <linux/kcmp.h>.
const (
	KcmpFile  = 0 // open file descriptions; the indexes are descriptors
	KcmpFiles = 2 // descriptor tables
)

// Kcmp compares one resource of two threads (kcmp(2)). The result is 0 if they share it.
// Otherwise it is -1 or 1, an order by which resources can be sorted, or 2.
func Kcmp(kind, tid1, index1, tid2, index2 int) (int, error) {
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(tid1), uintptr(tid2), uintptr(kind), uintptr(index1), uintptr(index2), 0)
	switch {
	case errno != 0:
		return 0, os.NewSyscallError("kcmp", errno)
	case order == 1:
		return -1, nil
	case order == 2:
		return 1, nil
	}
	return int(order), nil
}
