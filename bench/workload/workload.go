// Package workload is what boxd-bench runs in a box and on the host alike, to find out what a box
// costs the programs in it: system calls, files, memory and loopback. Each prints one figure.
package workload

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Workload is one of them.
type Workload struct {
	Name  string
	What  string
	Rate  bool // the figure is bytes per second; otherwise ns per operation
	Files bool // it works in a directory, its second argument
	run   func(dir string) (float64, error)
}

// All are the workloads in the order of their rows.
var All = []Workload{
	{"getpid", "getpid", false, false, each(200_000, func() error { unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0); return nil })},
	{"stat", "stat of /usr", false, false, each(50_000, stat)},
	{"open", "open and close /dev/null", false, false, each(50_000, openClose)},
	{"pipe", "one byte to another thread and back through pipes", false, false, pingPong},
	{"mmap", "mmap of 64 KiB, touched, and munmap", false, false, each(10_000, mapTouch)},
	{"fork", "fork, exit, wait", false, false, each(300, fork)},
	{"thread", "a thread's start and end", false, false, each(2_000, thread)},
	{"memory", "copying memory", true, false, memory},
	{"loopback", "TCP over loopback", true, false, loopback},
	{"create", "create, write 4 KiB, unlink", false, true, createUnlink},
	{"write", "writing a file of 32 MiB", true, true, func(dir string) (float64, error) { w, _, err := file(dir); return w, err }},
	{"read", "reading it from the page cache", true, true, func(dir string) (float64, error) { _, r, err := file(dir); return r, err }},
}

// Run runs the workload args[0], in the directory args[1] if it needs one, and prints its figure.
func Run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("inside: which workload?")
	}
	for _, w := range All {
		if w.Name != args[0] {
			continue
		}
		dir := ""
		if w.Files {
			if len(args) != 2 {
				return fmt.Errorf("inside %s: in which directory?", w.Name)
			}
			dir = args[1]
		}
		runtime.LockOSThread()
		v, err := w.run(dir)
		if err == nil {
			_, err = fmt.Fprintln(out, v)
		}
		return err
	}
	return fmt.Errorf("inside: no workload %q", args[0])
}

// parts is into how many parts each divides its calls. The figure is the median of theirs, so that what
// else runs on the host must disturb half of them to change it.
const parts = 11

// each returns a workload that calls f n times, after a hundredth of that to warm up.
func each(n int, f func() error) func(string) (float64, error) {
	return func(string) (float64, error) {
		for range n / 100 {
			if err := f(); err != nil {
				return 0, err
			}
		}
		var took [parts]float64
		for i := range took {
			began := time.Now()
			for range n / parts {
				if err := f(); err != nil {
					return 0, err
				}
			}
			took[i] = float64(time.Since(began)) / float64(n/parts)
		}
		slices.Sort(took[:])
		return took[parts/2], nil
	}
}

func stat() error {
	var st unix.Stat_t
	return unix.Stat("/usr", &st)
}

func openClose() error {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func pingPong(string) (float64, error) {
	const n = 20_000
	var to, from [2]int
	if err := errors.Join(unix.Pipe2(to[:], unix.O_CLOEXEC), unix.Pipe2(from[:], unix.O_CLOEXEC)); err != nil {
		return 0, err
	}
	go func() {
		runtime.LockOSThread()
		var one [1]byte
		for {
			if k, err := unix.Read(to[0], one[:]); err != nil || k == 0 {
				return
			}
			if _, err := unix.Write(from[1], one[:]); err != nil {
				return
			}
		}
	}()
	return each(n, func() error {
		one := [1]byte{1}
		_, werr := unix.Write(to[1], one[:])
		_, rerr := unix.Read(from[0], one[:])
		return errors.Join(werr, rerr)
	})("")
}

func mapTouch() error {
	const size = 64 << 10
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	for i := 0; i < size; i += 4096 {
		m[i] = 1
	}
	return unix.Munmap(m)
}

// fork makes a child that ends at once. The child is a copy of this thread alone: it may do nothing
// but a system call.
func fork() error {
	pid, errno := forkExit()
	if errno != 0 {
		return os.NewSyscallError("clone", errno)
	}
	_, err := unix.Wait4(int(pid), nil, 0, nil)
	return os.NewSyscallError("wait4", err)
}

//go:nosplit
func forkExit() (pid uintptr, errno unix.Errno) {
	pid, _, errno = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return pid, errno
}

// thread starts a thread that ends with its goroutine, which never unlocks it.
func thread() error {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(done)
	}()
	<-done
	return nil
}

func memory(string) (float64, error) {
	const size, times = 64 << 20, 8
	from, to := make([]byte, size), make([]byte, size)
	for i := range from {
		from[i] = byte(i)
	}
	copy(to, from)
	began := time.Now()
	for range times {
		copy(to, from)
	}
	return size * times / time.Since(began).Seconds(), nil
}

func loopback(string) (float64, error) {
	const size = 256 << 20
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	sent := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			buffer := make([]byte, 256<<10)
			for n := 0; n < size && err == nil; n += len(buffer) {
				_, err = c.Write(buffer)
			}
			c.Close()
		}
		sent <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	began := time.Now()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
	took := time.Since(began)
	return float64(n) / took.Seconds(), errors.Join(err, <-sent)
}

func createUnlink(dir string) (float64, error) {
	name := filepath.Join(dir, "boxd-bench-file")
	content := make([]byte, 4096)
	return each(1_000, func() error { return errors.Join(os.WriteFile(name, content, 0o600), os.Remove(name)) })("")
}

// file writes a file of 32 MiB and reads it, and returns both rates in bytes per second.
func file(dir string) (write, read float64, err error) {
	const size = 32 << 20
	name := filepath.Join(dir, "boxd-bench-large")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(name)) }()
	buffer := make([]byte, 64<<10)
	began := time.Now()
	for n := 0; n < size; n += len(buffer) {
		if _, err := f.Write(buffer); err != nil {
			return 0, 0, err
		}
	}
	write = size / time.Since(began).Seconds()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, 0, err
	}
	began = time.Now()
	for n := 0; n < size; n += len(buffer) {
		if _, err := io.ReadFull(f, buffer); err != nil {
			return 0, 0, err
		}
	}
	return write, size / time.Since(began).Seconds(), nil
}
