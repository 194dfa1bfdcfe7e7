package linux

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSealWaits: seal waits if a memfd cannot be sealed yet. A shared mapping causes EBUSY, like
// pages that the kernel still holds.
func TestSealWaits(t *testing.T) {
	fd, err := execMemfd("test")
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != unix.EBUSY {
		t.Errorf("sealing with a mapping: %v, want EBUSY", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { _ = unix.Munmap(mem) })
	if err := seal(f, unix.F_SEAL_WRITE); err != nil {
		t.Error(err)
	}
}

// TestProgramPath: a child finds its program, whichever numbers the descriptors have that it is passed.
func TestProgramPath(t *testing.T) {
	program, err := os.Open("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	const passed = 300 // the child moves it, and its own pipe, to the numbers after that
	move := func(f *os.File, to int) *os.File {
		t.Helper()
		if err := unix.Dup3(int(f.Fd()), to, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		moved := os.NewFile(uintptr(to), f.Name())
		t.Cleanup(func() { moved.Close() })
		return moved
	}
	first := move(program, passed)
	for at := passed + 1; at < passed+8; at++ {
		path, err := ProgramPath(move(program, at))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Cmd{Path: path, Args: []string{"true"}, ExtraFiles: []*os.File{first}}
		if err := cmd.Run(); err != nil {
			t.Errorf("program at %d: %v", at, err)
		}
	}
}
