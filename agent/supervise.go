package agent

/*
#include "supervise.h"
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// supervisor holds the arguments of supervise.c.
type supervisor struct {
	proc      *os.File // /proc, which shows the threads' system calls
	protocols *os.File // /proc/self/net/protocols and sockstat count the sockets of the box
	sockstat  *os.File
	bounds    wire.Sockets
}

func newSupervisor(bounds wire.Sockets) (*supervisor, error) {
	s := &supervisor{bounds: bounds}
	for _, f := range []struct {
		to    **os.File
		path  string
		flags int
	}{
		{&s.proc, "/proc", unix.O_PATH | unix.O_DIRECTORY},
		{&s.protocols, "/proc/self/net/protocols", 0},
		{&s.sockstat, "/proc/self/net/sockstat", 0},
	} {
		var err error
		if *f.to, err = os.OpenFile(f.path, f.flags, 0); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// run answers the calls that listener reports, on a thread of its own. If it cannot
// continue, it ends the process, because calls would wait forever.
func (s *supervisor) run(listener int) {
	runtime.LockOSThread()
	bounds := C.struct_boxd_bounds{netlink: C.uint32_t(s.bounds.Netlink), inet: C.uint32_t(s.bounds.Inet)}
	files := C.struct_boxd_files{proc: C.int(s.proc.Fd()), protocols: C.int(s.protocols.Fd()), sockstat: C.int(s.sockstat.Fd())}
	errno := C.boxd_supervise(C.int(listener), files, bounds)
	runtime.KeepAlive(s) // its files: the numbers alone do not keep them open
	fmt.Fprintf(os.Stderr, "boxd-agent: supervising sockets: %v\n", unix.Errno(errno))
	os.Exit(1)
}
