package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThrowawayThread runs fn on a thread of its own that is destroyed afterwards,
// so that fn may change namespaces, credentials or cgroups without any other
// goroutine ever seeing it. The thread no longer shares its root, working
// directory and umask (CLONE_FS), as setns to a mount namespace requires.
func OnThrowawayThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the Go runtime ends the thread with the goroutine.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// Not so the main thread, which it would park for ever, in whatever
			// namespaces fn left it. While this goroutine holds it, another one
			// cannot land on it.
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

// Setns moves the calling thread into the namespace behind ns. nstype is a
// CLONE_NEW* flag that ns must be of. Call it only on a thread of
// OnThrowawayThread.
func Setns(ns *os.File, nstype int) error {
	err := Retry(func() error { return unix.Setns(int(ns.Fd()), nstype) })
	runtime.KeepAlive(ns)
	if err != nil {
		return &os.PathError{Op: "setns", Path: ns.Name(), Err: err}
	}
	return nil
}
