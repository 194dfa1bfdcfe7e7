// Package linux is the boundary to the kernel: one wrapper per system call that
// boxd needs and that the standard library does not offer in a usable form.
//
// Every wrapper retries on EINTR, sets close-on-exec, takes and returns *os.File
// where a descriptor is owned, and reports failures as *os.SyscallError or
// *os.PathError, so that errors.Is(err, unix.EBUSY) works in every caller.
//
// The package contains no policy: the packages above it decide what may be mounted,
// killed or limited.
package linux
