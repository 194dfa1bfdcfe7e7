// Package linux is the boundary to the kernel: one wrapper per system call that
// boxd needs and that the standard library does not offer in a usable form.
//
// Every wrapper retries EINTR, sets close-on-exec, takes and returns *os.File
// where a descriptor is owned, and reports failures as *os.SyscallError or
// *os.PathError so that errors.Is(err, unix.EBUSY) works at the top.
//
// It holds no policy: what may be mounted, killed or limited is decided by the
// packages above it.
package linux
