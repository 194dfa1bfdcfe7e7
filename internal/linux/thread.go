package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThrowawayThread runs fn on a separate thread and destroys the thread afterwards,
// so that fn may change namespaces, credentials or cgroups without affecting any other
// goroutine. The thread does not share its root, working directory and umask
// (CLONE_FS), as setns to a mount namespace requires. It is never the main thread.
func OnThrowawayThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the Go runtime destroys the thread when the goroutine ends.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The runtime cannot destroy the main thread. It would park it forever, in
			// whatever namespaces fn left it. So hold it, which keeps the next goroutine
			// off it, and run fn on another thread.
			done <- OnThrowawayThread(fn)
			runtime.UnlockOSThread()
			return
		}
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			done <- os.NewSyscallError("unshare(CLONE_FS)", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// Fchdir changes the working directory of the calling thread, which must be one of
// OnThrowawayThread.
func Fchdir(dir *os.File) error {
	err := Retry(func() error { return unix.Fchdir(int(dir.Fd())) })
	return pathError("fchdir", dir, "", err)
}

// Setns moves the calling thread into the namespace behind ns, which must be of type
// nstype, a CLONE_NEW* flag. Call it only on a thread of OnThrowawayThread.
func Setns(ns *os.File, nstype int) error {
	err := Retry(func() error { return unix.Setns(int(ns.Fd()), nstype) })
	return pathError("setns", ns, "", err)
}
