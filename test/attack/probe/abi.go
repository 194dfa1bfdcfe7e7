package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

var abiProbes = []probe{
	{"int80", "32-bit calls have other numbers and socketcall (Docker's first fix of Copy Fail)", foreign("int80"), false},
	{"x32", "x32 calls have the architecture of 64-bit ones and other numbers", foreign("x32"), false},
}

// foreign makes calls of another ABI in a child, which the filter kills.
func foreign(name string) func(bait) outcome {
	return func(bait) outcome {
		if foreignCalls[name] == nil {
			return untried("this processor has no such ABI")
		}
		// Unlike os.Executable, this works even if the program has no path.
		out, err := exec.Command("/proc/self/exe", "child:"+name).CombinedOutput()
		if exit, ok := err.(*exec.ExitError); ok {
			if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
				return blocked("%v", ws.Signal())
			}
		}
		return escaped("%s (%v)", out, err)
	}
}

// playChild runs in the child that foreign starts.
func playChild(name string) {
	for what, fn := range foreignCalls[name] {
		if r := fn(); r >= 0 {
			fmt.Printf("%s returned %d", what, r)
			os.Exit(0)
		} else {
			fmt.Printf("%s: %v ", what, unix.Errno(-r))
		}
	}
	os.Exit(0)
}
