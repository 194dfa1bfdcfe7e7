package linux

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

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
