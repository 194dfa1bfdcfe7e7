package agent

import (
	"os"
	"runtime"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// maxBirths bounds the births that wait for a thread; more are refused.
const maxBirths = 1024

// birth is a Spawn that was accepted; it owns the frame's descriptors.
type birth struct {
	conn  *wire.Conn
	id    uint32
	msg   *wire.SpawnMsg
	frame *wire.Frame
}

// spawners are the threads from which commands are born: a birth blocks its
// thread until the program is loaded. On hosts with cgroup v1
// controllers they live in the box's cgroups for commands, apart from the rest
// of the agent: the child of a thread is born in the thread's cgroups.
type spawners struct {
	reaper *reaper
	home   []*os.File // v1 tasks files, entered once per thread
	queue  chan birth
}

func newSpawners(r *reaper, home []*os.File, threads int) *spawners {
	s := &spawners{reaper: r, home: home, queue: make(chan birth, maxBirths)}
	for range threads {
		go s.thread()
	}
	return s
}

func (s *spawners) start(b birth) {
	select {
	case s.queue <- b:
	default:
		b.frame.Close()
		failed := wire.FailedMsg{Step: wire.StepBusy, Errno: unix.EAGAIN}
		_ = b.conn.Send(wire.TypeFailed, b.id, failed.Marshal())
	}
}

func (s *spawners) thread() {
	runtime.LockOSThread()
	if err := enter(s.home); err != nil {
		os.Exit(1) // commands must not run outside the limits
	}
	for b := range s.queue {
		s.reaper.birth(key{b.conn, b.id}, func() (int, *wire.FailedMsg) {
			defer b.frame.Close()
			return spawn(b.msg, b.frame.Files)
		})
	}
}

// enter moves the calling thread into the cgroups behind tasks files.
func enter(tasks []*os.File) error {
	for _, f := range tasks {
		for {
			_, err := unix.Write(int(f.Fd()), []byte("0"))
			if err == nil {
				break
			}
			if err != unix.EINTR {
				return err
			}
		}
	}
	return nil
}
