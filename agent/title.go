package agent

import (
	"os"
	"unsafe"
)

// title is what ps shows of PID 1, on the host and in the box: "boxd-agent box=ID". The arguments with which a runtime
// executes PID 1 would show a number in /proc/self/fd instead of a program.
//
// It is the memory of the arguments: the kernel reads them from there (proc_pid_cmdline(5)), and takes them for one
// text, up to the first null byte, if the last byte is none (get_mm_cmdline, fs/proc/base.c).
type title struct {
	program string
	memory  []byte // nil if the arguments are not where the kernel puts them
}

// newTitle returns the title of a program that the kernel has executed with os.Args. These change with it.
func newTitle(program string) title {
	size := 0
	first := unsafe.StringData(os.Args[0])
	for _, arg := range os.Args {
		if unsafe.StringData(arg) != (*byte)(unsafe.Add(unsafe.Pointer(first), size)) {
			return title{}
		}
		size += len(arg) + 1
	}
	return title{program, unsafe.Slice(first, size)}
}

// show shows the ID of the box. It does nothing if there is no room.
func (t title) show(id string) {
	text := t.program + " box=" + id + "\x00"
	if len(text) >= len(t.memory) {
		return
	}
	t.memory[len(t.memory)-1] = '.'
	copy(t.memory, text)
}
