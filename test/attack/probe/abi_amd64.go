package main

import (
	"golang.org/x/sys/unix"
)

// int80 makes a system call of the 32-bit ABI.
//
//go:noescape
func int80(nr, a, b, c uint32) int32

const x32 = 0x40000000

// foreignCalls are calls by ABI. Each returns a result or a negative errno. The numbers are
// those of arch/x86/entry/syscalls/syscall_32.tbl and syscall_64.tbl.
var foreignCalls = map[string]map[string]func() int{
	"int80": {
		"getpid":         func() int { return int(int80(20, 0, 0, 0)) },
		"socket AF_ALG":  func() int { return int(int80(359, unix.AF_ALG, unix.SOCK_SEQPACKET, 0)) },
		"socketcall":     func() int { return int(int80(102, 1, 0, 0)) },
		"unshare user":   func() int { return int(int80(310, unix.CLONE_NEWUSER, 0, 0)) },
		"io_uring_setup": func() int { return int(int80(425, 1, 0, 0)) },
	},
	"x32": {
		"getpid":       func() int { return negative(x32|39, 0, 0, 0) },
		"socket":       func() int { return negative(x32|41, unix.AF_ALG, unix.SOCK_SEQPACKET, 0) },
		"unshare user": func() int { return negative(x32|272, unix.CLONE_NEWUSER, 0, 0) },
		"ptrace":       func() int { return negative(x32|521, unix.PTRACE_SEIZE, 1, 0) },
	},
}

func negative(nr, a, b, c uintptr) int {
	r, _, errno := unix.RawSyscall(nr, a, b, c)
	if errno != 0 {
		return -int(errno)
	}
	return int(r)
}
