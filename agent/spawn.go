package agent

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror
#include <stdlib.h>
#include "spawn.h"
*/
import "C"

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/agent/zygote"
	"golang.org/x/sys/unix"
)

// stepNames describes the steps of spawn.c, as the start of an error message. Those that
// clients map to errors of their own are constants in package wire.
var stepNames = map[C.int]string{
	C.STEP_CLONE:        wire.StepClone,
	C.STEP_CGROUPS:      "entering cgroups",
	C.STEP_SETSID:       "setsid",
	C.STEP_CTTY:         "setting controlling terminal",
	C.STEP_RLIMIT:       "setting rlimit",
	C.STEP_STDIO:        "setting stdio",
	C.STEP_CLOSE_RANGE:  "closing descriptors",
	C.STEP_GID:          "setting gid",
	C.STEP_UID:          "setting uid",
	C.STEP_CAPABILITIES: "dropping capabilities",
	C.STEP_MKDIR:        wire.StepMkdir,
	C.STEP_CHDIR:        wire.StepChdir,
	C.STEP_CWD_INSIDE:   wire.StepCwd,
	C.STEP_SIGMASK:      "restoring signal mask",
	C.STEP_EXEC:         wire.StepExec,
}

// spawn starts the command of m with the descriptors of a Spawn frame. It must run on a
// thread that is in the box's v1 cgroups, and blocks until the program runs. The caller keeps
// the descriptors. child is as in reaper.birth.
func (a *agent) spawn(m *wire.SpawnMsg, fds []int, child *int32) (int, *wire.FailedMsg) {
	if a.sandbox != nil {
		return a.sandbox.spawn(m, fds, child)
	}
	return start(m, fds, birth{self: a.self, unpacks: a.unpacks, place: C.PLACE_BOX, child: child})
}

// spawnZygote starts a zygote, which gets control as zygote.ControlFD. It is otherwise like spawn.
func (a *agent) spawnZygote(m *wire.ZygoteMsg, fds []int, control int, child *int32) (int, *wire.FailedMsg) {
	extra, err := unix.FcntlInt(uintptr(control), unix.F_DUPFD_CLOEXEC, C.FIRST_EXTRA+2)
	if err != nil {
		return 0, failed(wire.StepSpare, err)
	}
	defer unix.Close(extra)
	spawn := m.Spawn
	spawn.Args = zygote.Args(spawn.Args)
	return start(&spawn, fds, birth{self: a.self, place: C.PLACE_BOX, extra: []int{extra}, guarded: true, child: child})
}

// birth says how start starts a program, beside what its client asks for.
type birth struct {
	self    *os.File // this binary
	unpacks bool     // user 0 has capabilities over files
	place   C.int    // one of enum boxd_place
	extra   []int    // more descriptors, each above FIRST_EXTRA + len(extra)
	guarded bool     // no command can get into it, see spawn.h
	child   *int32   // if not nil, gets the pid before the process runs
}

// start starts the program of m and returns when it runs.
func start(m *wire.SpawnMsg, fds []int, b birth) (int, *wire.FailedMsg) {
	var mem cMemory
	defer mem.free()
	s := (*C.struct_boxd_spawn)(mem.alloc(C.sizeof_struct_boxd_spawn))
	s.self = -1
	if m.Self {
		s.self = C.int(b.self.Fd())
	} else {
		s.paths = mem.strings(searchPaths(m.Args[0], m.Env))
	}
	s.argv = mem.strings(m.Args)
	s.envp = mem.strings(m.Env)
	s.dir = mem.string(m.Dir)
	s.make_dir = cBool(m.MakeDir)
	s.tty = cBool(m.TTY)
	for i := range s.fds {
		s.fds[i] = C.int(fds[i])
	}
	s.cgroup = C.int(fds[3])
	s.tasks, s.ntasks = mem.ints(fds[wire.SpawnFDs:])
	s.uid, s.gid = C.uint32_t(m.UID), C.uint32_t(m.GID)
	s.unpacks = cBool(b.unpacks)
	s.guarded = cBool(b.guarded)
	s.place = b.place
	s.extra, s.nextra = mem.ints(b.extra)
	if n := len(m.Rlimits); n > 0 {
		p := mem.alloc(C.size_t(n) * C.sizeof_struct_boxd_rlimit)
		s.rlimits, s.nrlimits = (*C.struct_boxd_rlimit)(p), C.uint32_t(n)
		for i, r := range unsafe.Slice(s.rlimits, n) {
			r.resource = C.uint32_t(m.Rlimits[i].Resource)
			r.soft, r.hard = C.uint64_t(m.Rlimits[i].Soft), C.uint64_t(m.Rlimits[i].Hard)
			unsafe.Slice(s.rlimits, n)[i] = r
		}
	}
	if b.child != nil {
		var pin runtime.Pinner
		defer pin.Unpin()
		pin.Pin(b.child)
		s.child = (*C.int32_t)(unsafe.Pointer(b.child))
	}
	pid := C.boxd_spawn(s)
	if pid < 0 {
		return 0, &wire.FailedMsg{Step: stepNames[s.step], Errno: syscall.Errno(s.err)}
	}
	return int(pid), nil
}

// searchPaths lists the paths to try for program, as execvp(3) does: the program itself if
// it contains a slash, otherwise program in each directory of PATH.
func searchPaths(program string, env []string) []string {
	if program == "" || strings.Contains(program, "/") {
		return []string{program}
	}
	path := ""
	for _, v := range env {
		if rest, ok := strings.CutPrefix(v, "PATH="); ok {
			path = rest
		}
	}
	var paths []string
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			dir = "."
		}
		paths = append(paths, dir+"/"+program)
	}
	return paths
}

func cBool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// cMemory is memory for one call of spawn, which the Go runtime does not move or scan.
type cMemory struct{ parts []unsafe.Pointer }

func (m *cMemory) alloc(n C.size_t) unsafe.Pointer {
	p := C.calloc(1, n)
	m.parts = append(m.parts, p)
	return p
}

func (m *cMemory) string(s string) *C.char {
	p := C.CString(s)
	m.parts = append(m.parts, unsafe.Pointer(p))
	return p
}

// ints returns descriptors as an array.
func (m *cMemory) ints(fds []int) (*C.int, C.uint32_t) {
	p := (*C.int)(m.alloc(C.size_t(len(fds)+1) * C.sizeof_int))
	for i, fd := range fds {
		unsafe.Slice(p, len(fds))[i] = C.int(fd)
	}
	return p, C.uint32_t(len(fds))
}

// strings returns a NULL-terminated array.
func (m *cMemory) strings(v []string) **C.char {
	p := m.alloc(C.size_t(len(v)+1) * C.size_t(unsafe.Sizeof(uintptr(0))))
	array := unsafe.Slice((**C.char)(p), len(v)+1)
	for i, s := range v {
		array[i] = m.string(s)
	}
	return (**C.char)(p)
}

func (m *cMemory) free() {
	for _, p := range m.parts {
		C.free(p)
	}
}
