package agent

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// key identifies a command by its id, which its client chose, and its connection. A key
// without a connection holds the number of a managed process, which outlives connections.
type key struct {
	conn *wire.Conn
	id   uint32
}

// reaper is the box's only waiter. It takes the status of every process that ends,
// including adopted orphans, and reports those of commands.
type reaper struct {
	born chan struct{} // signalled after every birth: there is a child to wait for
	// managed takes the status of a managed process. It must not wait.
	managed func(number uint32, status unix.WaitStatus)
	// left is called, under the lock, at the end of each command; nil: it is not.
	left func(key)
	// sandbox is the process without which the box is lost; 0 if there is none.
	sandbox int

	mu       sync.Mutex
	commands map[int]key // by pid
	births   map[*newborn]struct{}
}

// newborn is a process that birth is starting or that claim has claimed: a command that is not in
// reaper.commands yet.
type newborn struct {
	// pid is written by the kernel, before the process can run; 0 before. Read it atomically.
	pid int32
	// Of a claimed process: over is closed when it has been reaped, and end is called then, under
	// the reaper's lock.
	over chan struct{}
	end  func()

	// Under the reaper's lock.
	ended  bool
	status unix.WaitStatus
}

func newReaper(managed func(uint32, unix.WaitStatus)) *reaper {
	return &reaper{
		managed:  managed,
		born:     make(chan struct{}, 1),
		commands: map[int]key{},
		births:   map[*newborn]struct{}{},
	}
}

// run waits for children, and returns only after an error.
func (r *reaper) run() error {
	for {
		pid, err := linux.AwaitChild()
		switch err {
		case nil:
			if err := r.reap(pid); err != nil {
				return err
			}
		case unix.ECHILD:
			<-r.born
		default:
			return fmt.Errorf("waiting for children: %w", err)
		}
	}
}

// reap takes the status of a child that has ended. Until then the child is a zombie, so the kernel gives its
// number to no other process. reap looks the number up while it holds the lock, so it never gives a status
// to the wrong process.
func (r *reaper) reap(pid int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status unix.WaitStatus
	switch got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); {
	case err != nil:
		return fmt.Errorf("waiting for child %d: %w", pid, err)
	case got == 0: // it was stopped, and is not any more
		return nil
	case status.Stopped():
		// The child has asked to be traced by its parent (PTRACE_TRACEME), which is this
		// process, and has received a signal. Only the thread that started it could
		// continue it, and its client must not take a stop for an end.
		_ = unix.Kill(pid, unix.SIGKILL)
		return nil
	case pid == r.sandbox:
		return fmt.Errorf("the sandbox has ended: %v", describe(status))
	}
	if k, ok := r.commands[pid]; ok {
		delete(r.commands, pid)
		r.report(k, status)
		return nil
	}
	for b := range r.births {
		if !b.ended && atomic.LoadInt32(&b.pid) == int32(pid) {
			b.ended, b.status = true, status
			if b.end != nil {
				delete(r.births, b)
				close(b.over)
				b.end()
			}
			break
		}
	}
	return nil
}

// hangUp closes a connection once no report to it can be in progress, because its number
// may then be reused. The commands of the connection are killed with their process groups,
// since no client would learn of their end. The launcher, which knows their cgroups, kills
// the rest of their descendants.
func (r *reaper) hangUp(conn *wire.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid, k := range r.commands {
		if k.conn == conn {
			delete(r.commands, pid)
			_ = unix.Kill(-pid, unix.SIGKILL) // a command leads its session, and so a group
		}
	}
	conn.Discard()
}

// report tells the client of the end of a command, if the client is still there.
func (r *reaper) report(k key, status unix.WaitStatus) {
	if r.left != nil {
		r.left(k)
	}
	if k.conn == nil {
		r.managed(k.id, status)
		return
	}
	m := wire.ExitedMsg{Status: uint32(status)}
	_ = k.conn.Send(wire.TypeExited, k.id, m.Marshal())
}

// birth runs spawn, and passes the result to told before the end of the process can be
// reported. spawn has the kernel write the number of the new process to child.
func (r *reaper) birth(k key, spawn func(child *int32) (int, *wire.FailedMsg), told func(pid int, failed *wire.FailedMsg)) {
	b := new(newborn)
	r.mu.Lock()
	r.births[b] = struct{}{}
	r.mu.Unlock()
	pid, failed := spawn(&b.pid)
	told(pid, failed)
	r.mu.Lock()
	delete(r.births, b)
	if failed == nil && !b.ended {
		r.commands[pid] = k
	}
	r.mu.Unlock()
	if failed == nil && b.ended {
		r.report(k, b.status)
	}
	select {
	case r.born <- struct{}{}:
	default:
	}
}

// claim makes pid, an orphan that this process has adopted and that is nothing else yet, a newborn. end is
// called when it is reaped before settle or abandon, and must not wait.
func (r *reaper) claim(pid int, end func()) (*newborn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.commands[pid]
	for b := range r.births {
		known = known || atomic.LoadInt32(&b.pid) == int32(pid)
	}
	if known || pid <= 1 || pid == r.sandbox {
		return nil, fmt.Errorf("process %d is a command already", pid)
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		return nil, fmt.Errorf("process %d is no child: %w", pid, err)
	}
	b := &newborn{pid: int32(pid), over: make(chan struct{}), end: end}
	r.births[b] = struct{}{}
	return b, nil
}

// isOver reports whether a claimed process has been reaped.
func (b *newborn) isOver() bool {
	select {
	case <-b.over:
		return true
	default:
		return false
	}
}

// settle makes a claimed process the command k of c, says so to c with a frame of type typ, and has its end reported,
// also if it has come. If c has left, the process is killed instead. All that is one step for signal: otherwise one
// that c sends at once would find no command.
func (r *reaper) settle(b *newborn, k key, c *client, typ byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.births, b)
	c.send(typ, k.id, nil)
	switch {
	case c.hasLeft():
		r.killLocked(b)
	case b.ended:
		r.report(k, b.status)
	default:
		r.commands[int(b.pid)] = k
	}
}

// abandon kills a claimed process and reports its end to no client. The reaper closes over when it has reaped it.
func (r *reaper) abandon(b *newborn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killLocked(b)
}

func (r *reaper) killLocked(b *newborn) {
	if !b.ended {
		_ = unix.Kill(int(b.pid), unix.SIGKILL)
	}
}

// tell tells the client whether its command was started.
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
	for pid, other := range r.commands {
		if other == k {
			if sig == unix.SIGINT || sig == unix.SIGQUIT {
				pid = -pid // a command leads its session, and so a group
			}
			if r.sandbox != 0 {
				pid, sig = max(pid, -pid), firstOnly(sig)
			}
			_ = unix.Kill(pid, sig)
			return
		}
	}
}
