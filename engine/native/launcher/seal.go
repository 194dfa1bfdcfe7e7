package launcher

// #include "seal.h"
import "C"

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// forbidUserNS forbids user namespaces within ns, the user namespace of a box, see
// ConfineStage. It is for boxes whose stage is another program than boxd-init.
func forbidUserNS(ns *os.File) error {
	errno := unix.Errno(C.forbid_userns(C.int(ns.Fd())))
	runtime.KeepAlive(ns)
	if errno != 0 {
		return fmt.Errorf("forbidding user namespaces: %w", errno)
	}
	return nil
}
