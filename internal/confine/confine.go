// Package confine takes from a process of this program what it does not need any more:
// files by Landlock, system calls by a seccomp filter. It knows how; which files is the
// caller's to say. It is not for boxes, whose confinement is made from outside.
package confine

import (
	"errors"

	"github.com/boxd/boxd/engine/native/seccomp"
	"github.com/boxd/boxd/internal/linux"
)

// Daemon confines this process, all of its threads, to paths and to the system calls of
// boxd serve. There is no way back, and no way to a file that is named later. It needs
// no_new_privs, and a program without cgo.
//
// abi is the version of Landlock that holds, 0 where the kernel has none: then the filter
// alone does.
func Daemon(paths []linux.LandlockPath) (abi int, err error) {
	abi = linux.LandlockABI() // which cannot be asked for afterwards
	err = linux.LandlockAllThreads(paths)
	if errors.Is(err, linux.ErrNoLandlock) {
		abi, err = 0, nil
	}
	if err != nil {
		return 0, err
	}
	program, err := seccomp.CompileDaemon()
	if err != nil {
		return 0, err
	}
	return abi, linux.SeccompAllThreads(program)
}
