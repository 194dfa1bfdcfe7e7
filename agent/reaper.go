package agent

import (
	"fmt"
	"sync"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// key names a command: ids are the client's, so they count per connection. One
// without a connection is the number of a managed process, which outlives those.
type key struct {
	conn *wire.Conn
	id   uint32
}

// reaper is the one waiter of the box. It takes the status of every process that
// ends, the adopted orphans included, and reports those that are commands.
type reaper struct {
	born chan struct{} // signalled after every birth: there is a child to wait for
	// managed takes the status of a managed process. It must not wait.
	managed func(number uint32, status unix.WaitStatus)

	mu       sync.Mutex
	commands map[int]key // by pid
	pids     map[key]int
	births   int                     // under way: their pid is not known yet
	early    map[int]unix.WaitStatus // ended while births > 0, nobody's so far
}

func newReaper(managed func(uint32, unix.WaitStatus)) *reaper {
	return &reaper{
		managed:  managed,
		born:     make(chan struct{}, 1),
		commands: map[int]key{},
		pids:     map[key]int{},
		early:    map[int]unix.WaitStatus{},
	}
}

// run waits for children for ever.
func (r *reaper) run() error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == nil && status.Stopped():
			// It has asked to be traced by its parent (PTRACE_TRACEME), which this process is
			// by birth or adoption, and has met a signal. Only the thread that gave birth to it
			// could let it go on; and a stop is no end, as its client would hear.
			_ = unix.Kill(pid, unix.SIGKILL)
		case err == nil:
			r.ended(pid, status)
		case err == unix.EINTR:
		case err == unix.ECHILD:
			<-r.born
		default:
			return fmt.Errorf("waiting for children: %w", err)
		}
	}
}

func (r *reaper) ended(pid int, status unix.WaitStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, ok := r.commands[pid]
	if ok {
		delete(r.commands, pid)
		delete(r.pids, k)
		r.report(k, status)
	} else if r.births > 0 {
		r.early[pid] = status
	}
}

// hangUp closes a connection once no report can be on its way to it: its number
// may belong to another one then. What runs on its behalf is killed, with its
// process group: nobody will ever hear of its end. The rest of its descendants is
// left to the launcher, who knows their cgroup.
func (r *reaper) hangUp(conn *wire.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid, k := range r.commands {
		if k.conn == conn {
			delete(r.commands, pid)
			delete(r.pids, k)
			_ = unix.Kill(-pid, unix.SIGKILL) // a command leads its session, and so a group
		}
	}
	conn.Discard()
}

// report tells the client. A client that is gone has no use for it.
func (r *reaper) report(k key, status unix.WaitStatus) {
	if k.conn == nil {
		r.managed(k.id, status)
		return
	}
	m := wire.ExitedMsg{Status: uint32(status)}
	_ = k.conn.Send(wire.TypeExited, k.id, m.Marshal())
}

// birth runs spawn and has told hear what came of it before anything can be heard
// of its end.
func (r *reaper) birth(k key, spawn func() (int, *wire.FailedMsg), told func(pid int, failed *wire.FailedMsg)) {
	r.mu.Lock()
	r.births++
	r.mu.Unlock()
	pid, failed := spawn()
	told(pid, failed)
	r.mu.Lock()
	status, ended := r.early[pid]
	if failed == nil && !ended {
		r.commands[pid] = k
		r.pids[k] = pid
	}
	delete(r.early, pid)
	if r.births--; r.births == 0 {
		clear(r.early)
	}
	r.mu.Unlock()
	if failed == nil && ended {
		r.report(k, status)
	}
	select {
	case r.born <- struct{}{}:
	default:
	}
}

// tell tells the client of a command what came of its birth.
func tell(k key, failed *wire.FailedMsg) {
	if failed != nil {
		_ = k.conn.Send(wire.TypeFailed, k.id, failed.Marshal())
		return
	}
	_ = k.conn.Send(wire.TypeStarted, k.id, nil)
}

// signal sends sig to a command that still runs: SIGINT and SIGQUIT to its process
// group, as a terminal would, others to its first process. The lock keeps the pid
// from being reaped, and so from being reused, meanwhile.
func (r *reaper) signal(k key, sig unix.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pid, ok := r.pids[k]; ok {
		if sig == unix.SIGINT || sig == unix.SIGQUIT {
			pid = -pid // a command leads its session, and so a group
		}
		_ = unix.Kill(pid, sig)
	}
}
