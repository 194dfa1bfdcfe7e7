package seccomp

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if _, err := Compile(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCosts reports what the filter costs, with -v. It asserts nothing.
func TestCosts(t *testing.T) {
	if !testing.Verbose() {
		t.Skip("prints only, with -v")
	}
	out, err := as(t, "costs").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("\n%s", out)
}

// measure is a role.
func measure() {
	policy, err := Compile()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	bare := perCall()
	start := time.Now()
	install()
	fmt.Printf("policy: %d instructions, installed in %v\n", Instructions(policy), time.Since(start))
	filtered := perCall()
	for i, name := range []string{"getppid", "ioctl"} {
		fmt.Printf("%s: %v without, %v with the filter\n", name, bare[i], filtered[i])
	}
}

// perCall is the time of a call that is always allowed, which the kernel
// remembers (5.11), and of one whose arguments are checked each time.
func perCall() [2]time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const n = 200_000
	var best [2]time.Duration
	for i, call := range []func(){
		func() { unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0) },
		func() { unix.RawSyscall(unix.SYS_IOCTL, none, unix.TCGETS, 0) },
	} {
		for range 5 {
			start := time.Now()
			for range n {
				call()
			}
			if d := time.Since(start) / n; best[i] == 0 || d < best[i] {
				best[i] = d
			}
		}
	}
	return best
}
