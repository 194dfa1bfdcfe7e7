package seccomp

import (
	"fmt"
	"os"
	"runtime"
	"slices"
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

// measure is a role. Each installation is on a thread of its own that ends
// afterwards, as a command does.
func measure() {
	policy, err := Compile()
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// Before the filter is in: it refuses others.
	fmt.Printf("policy: %d instructions, installed in %v\n", Instructions(policy), installTime(policy, 20))
	bare := perCall()
	install()
	filtered := perCall()
	for i, name := range []string{"getppid", "ioctl"} {
		fmt.Printf("%s: %v without, %v with the filter\n", name, bare[i], filtered[i])
	}
}

// installTime is the median of n.
func installTime(program []byte, n int) time.Duration {
	var times []time.Duration
	for range n {
		err := onNewThread(func() error {
			start := time.Now()
			_, err := installOne(program, 0)
			times = append(times, time.Since(start))
			return err
		})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	slices.Sort(times)
	return times[n/2]
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
