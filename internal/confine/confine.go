// Package confine gives up, for this process, access that it no longer needs: Landlock
// restricts files and a seccomp filter restricts system calls. The caller chooses the files.
// The package is not for boxes, which the launcher confines from outside.
package confine

import (
	"errors"

	"github.com/boxd/boxd/engine/native/seccomp"
	"github.com/boxd/boxd/internal/linux"
)

// Daemon confines all threads of this process to paths and to the system calls that boxd
// serve makes. This cannot be undone, and no path can be added later. The process must have
// no_new_privs set and be built without cgo.
//
// abi is the Landlock version in force. It is 0 if the kernel has no usable Landlock; then
// only the seccomp filter applies.
func Daemon(paths []linux.LandlockPath) (abi int, err error) {
	abi = linux.LandlockABI() // the seccomp filter forbids this call
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
