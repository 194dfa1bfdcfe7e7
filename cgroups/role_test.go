package cgroups

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary plays the commands of a box. Its first descriptors after stdio
// are the v1 tasks files of the slot, as many as CGROUPS_TEST_TASKS says. It moves
// itself there, as a child of the agent does between clone and exec, and then executes
// itself again to play its role.

// play runs a role and returns the exit status.
func play(role string, args []string) int {
	if n, _ := strconv.Atoi(os.Getenv("CGROUPS_TEST_TASKS")); n > 0 {
		return enterAndExec(n)
	}
	switch role {
	case "sleep":
		fmt.Println("ready")
		unix.Pause()
	case "agent":
		return agent()
	case "true":
	case "hog":
		return hog(args[0])
	case "sockets":
		return sockets(args[0])
	case "burn":
		return burn(args[0])
	case "forks":
		return forks(args[0])
	case "daemon":
		return daemonize(args)
	default:
		fmt.Fprintln(os.Stderr, "unknown role", role)
		return 99
	}
	return 0
}

// enterAndExec moves this thread with its n tasks files. Only a single thread can move
// itself cheaply. The Go runtime has several threads, but the exec that follows leaves
// only the one that has moved.
func enterAndExec(n int) int {
	runtime.LockOSThread()
	for fd := 3; fd < 3+n; fd++ {
		if _, err := unix.Write(fd, []byte("0")); err != nil {
			fmt.Fprintln(os.Stderr, "entering slot:", err)
			return 98
		}
		unix.CloseOnExec(fd)
	}
	os.Setenv("CGROUPS_TEST_TASKS", "0")
	err := syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	fmt.Fprintln(os.Stderr, "exec:", err)
	return 97
}

// hog touches size bytes of memory, prints a line, and waits to be killed.
func hog(size string) int {
	n, _ := strconv.Atoi(size)
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mmap:", err)
		return 1
	}
	for i := 0; i < n; i += os.Getpagesize() {
		mem[i] = 1
	}
	fmt.Println("full")
	unix.Pause()
	return 0
}

// burn uses one core for some wall-clock time.
func burn(d string) int {
	t, _ := time.ParseDuration(d)
	for end := time.Now().Add(t); time.Now().Before(end); {
	}
	return 0
}

// forks starts up to n processes that wait, prints how many it could start, and waits.
// It forks by system call, because os/exec would start threads too.
func forks(count string) int {
	n, _ := strconv.Atoi(count)
	got, refused := 0, 0
	for range n {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == unix.EAGAIN {
			refused++
			continue
		}
		if pid == 0 {
			for {
				unix.RawSyscall(unix.SYS_PAUSE, 0, 0, 0)
			}
		}
		got++
	}
	fmt.Println(got, refused)
	unix.Pause()
	return 0
}

// daemonize leaves a grandchild that has its own session and ignores SIGTERM.
func daemonize(args []string) int {
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout = os.Stdout
	if len(args) == 0 {
		cmd.Args = append(cmd.Args, "again")
	} else {
		cmd.Env = append(os.Environ(), "CGROUPS_TEST_ROLE=sleep")
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// child is a role that runs in a slot.
type child struct {
	cmd       *exec.Cmd
	in        *os.File // the child's stdin
	out       *bufio.Reader
	childEnds []*os.File
}

// newChild prepares a role in a slot, or outside of any slot if it is nil. The child is
// killed and reaped when the test ends.
func newChild(t testing.TB, s *Slot, role string, args ...string) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "CGROUPS_TEST_ROLE="+role, "GOMAXPROCS=1",
		"GORACE=atexit_sleep_ms=0") // a race build else sleeps a second before it ends
	if s != nil {
		cmd.Env = append(cmd.Env, fmt.Sprintf("CGROUPS_TEST_TASKS=%d", len(s.Tasks)))
		cmd.ExtraFiles = s.Tasks
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(s.Dir.Fd())}
	}
	inR, inW, err := os.Pipe()
	check(t, err)
	outR, outW, err := os.Pipe()
	check(t, err)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, os.Stderr
	t.Cleanup(func() {
		inW.Close()
		if cmd.Process != nil && cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
		outR.Close()
	})
	return &child{cmd: cmd, in: inW, out: bufio.NewReader(outR), childEnds: []*os.File{inR, outW}}
}

// started closes the files that only the child needs.
func (c *child) started() {
	for _, f := range c.childEnds {
		f.Close()
	}
}

// line reads the next line that the child prints.
func (c *child) line(t testing.TB) string {
	t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("output of %q: %v", c.cmd.Args, err)
	}
	return s[:len(s)-1]
}

// wait reaps the child and returns the signal that ended it, 0 for none.
func (c *child) wait(t testing.TB) syscall.Signal {
	t.Helper()
	c.cmd.Wait()
	ws := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return ws.Signal()
	}
	return 0
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
