package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/agent/zygote"
	"golang.org/x/sys/unix"
)

// Bounds of waits for processes of the box, which any process of the same user can stop.
const (
	loadTime = 2 * time.Minute  // of an interpreter, for its start and its imports
	forkTime = 10 * time.Second // of a zygote, for a spare
	useTime  = 5 * time.Second  // of a spare, until it begins with its command
	dieTime  = 5 * time.Second  // of a killed spare, until it has been reaped
)

// nursery holds the zygotes and spares of the box. Each belongs to a client and ends when that
// leaves.
//
// What zygotes and spares say is not believed. The kernel says which process a spare is, the
// reaper that it is a child of PID 1 and nothing else yet, and PID 1 moves it into its slot. Each
// wait for one of them is on a goroutine of its own and bounded. User code in them may also send
// descriptors whose close takes hours, so their sockets are closed with zygote.Close.
//
// Lock order: the reaper's lock, mu, that of a client.
type nursery struct {
	reaper  *reaper
	useTime time.Duration

	mu      sync.Mutex
	zygotes map[key]*nurse
	waiting map[key]*spare
}

// nurse is a zygote: it makes spares.
type nurse struct {
	key      key
	c        *client
	m        *wire.ZygoteMsg
	control  int // owned by tend
	requests chan request
	gone     chan struct{} // closed when it has ended
}

// request asks a nurse for a spare.
type request struct {
	id   uint32
	slot []int // files of its slot, open for writing; owned
}

// spare is a process that waits for a command, or has just got one.
type spare struct {
	*zygote.Spare
	key  key
	c    *client
	of   *nurse
	born *newborn
}

func newNursery(r *reaper) *nursery {
	n := &nursery{reaper: r, useTime: useTime, zygotes: map[key]*nurse{}, waiting: map[key]*spare{}}
	r.left = n.left
	return n
}

// handleWarm carries out a frame about zygotes and spares. It returns false if the peer broke a
// rule. It must run on a thread that starts commands.
func (a *agent) handleWarm(c *client, frame *wire.Frame) bool {
	switch frame.Type {
	case wire.TypeZygote:
		m := new(wire.ZygoteMsg)
		if m.Unmarshal(frame.Body) != nil || len(frame.FDs) != wire.SpawnFDs+int(m.Spawn.Tasks) {
			return false
		}
		if failed := a.startZygote(c, frame.ID, m, frame.FDs); failed != nil {
			c.send(wire.TypeFailed, frame.ID, failed.Marshal())
		}
	case wire.TypeSpare:
		var m wire.SpareMsg
		if m.Unmarshal(frame.Body) != nil || len(frame.FDs) != m.SpareFDs() {
			return false
		}
		r := request{id: frame.ID, slot: frame.FDs}
		frame.FDs = nil
		if failed := a.nursery.ask(key{c.conn, m.Zygote}, r); failed != nil {
			closeFDs(r.slot)
			c.send(wire.TypeFailed, r.id, failed.Marshal())
		}
	case wire.TypeUse:
		var m wire.SpawnMsg
		if m.Unmarshal(frame.Body) != nil || len(frame.FDs) != wire.UseFDs || m.TTY || m.Self || m.Tasks != 0 {
			return false
		}
		s := a.nursery.take(key{c.conn, frame.ID})
		if s == nil {
			c.send(wire.TypeFailed, frame.ID, failed(wire.StepSpare, unix.ESRCH).Marshal())
			return true
		}
		stdio := frame.FDs
		frame.FDs = nil
		go a.nursery.use(s, &m, stdio)
	}
	return true
}

// startZygote starts a zygote with the descriptors of its frame.
func (a *agent) startZygote(c *client, id uint32, m *wire.ZygoteMsg, fds []int) *wire.FailedMsg {
	if a.sandbox != nil {
		return failed(wire.StepSpare, unix.EOPNOTSUPP)
	}
	z := &nurse{key: key{c.conn, id}, c: c, m: m, requests: make(chan request, wire.MaxWarm), gone: make(chan struct{})}
	n := a.nursery
	if !n.add(z) {
		return failed(wire.StepSpare, unix.EUSERS)
	}
	ours, theirs, err := zygote.Pair()
	if err != nil {
		n.left(z.key)
		return failed(wire.StepSpare, err)
	}
	defer unix.Close(theirs)
	z.control = ours
	n.reaper.birth(z.key, func(child *int32) (int, *wire.FailedMsg) {
		return a.spawnZygote(m, fds, theirs, child)
	}, func(_ int, failed *wire.FailedMsg) {
		tell(z.key, failed)
		if failed != nil {
			n.left(z.key)
			unix.Close(ours)
			return
		}
		go n.tend(z)
	})
	return nil
}

func (n *nursery) add(z *nurse) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.zygotes)+len(n.waiting) >= wire.MaxWarm {
		return false
	}
	n.zygotes[z.key] = z
	return true
}

// left notes the end of a command, which may be a zygote.
func (n *nursery) left(k key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if z := n.zygotes[k]; z != nil {
		delete(n.zygotes, k)
		close(z.gone)
	}
}

// tend serves a zygote until its end.
func (n *nursery) tend(z *nurse) {
	defer zygote.Close(z.control)
	var warm wire.WarmMsg
	broken := zygote.Load(z.control, z.m.Spawn.Args, z.m.Preload, loadTime)
	if broken != nil {
		warm.Why = broken.Error()
	}
	z.c.send(wire.TypeWarm, z.key.id, warm.Marshal())
	for {
		if broken != nil { // its next answer might be the late one to an earlier request
			n.reaper.signal(z.key, unix.SIGKILL)
		}
		select {
		case r := <-z.requests:
			if broken == nil {
				broken = n.raise(z, r)
			}
			closeFDs(r.slot)
			if broken != nil {
				why := wire.FailedMsg{Step: broken.Error(), Errno: unix.EIO}
				z.c.send(wire.TypeFailed, r.id, why.Marshal())
			}
		case <-z.gone:
			for {
				select {
				case r := <-z.requests:
					closeFDs(r.slot)
					z.c.send(wire.TypeFailed, r.id, failed(wire.StepSpare, unix.ESRCH).Marshal())
				default:
					return
				}
			}
		}
	}
}

// ask queues a request, of which it then takes ownership.
func (n *nursery) ask(k key, r request) *wire.FailedMsg {
	n.mu.Lock()
	defer n.mu.Unlock()
	z := n.zygotes[k]
	if z == nil {
		return failed(wire.StepSpare, unix.ESRCH)
	}
	if len(n.zygotes)+len(n.waiting)+len(z.requests) >= wire.MaxWarm {
		return failed(wire.StepSpare, unix.EUSERS)
	}
	z.requests <- r // has room for MaxWarm, and is filled under the lock only
	return nil
}

// raise makes a spare and moves it into its slot.
func (n *nursery) raise(z *nurse, r request) error {
	forked, err := zygote.Fork(z.control, forkTime)
	if err != nil {
		return err
	}
	s := &spare{Spare: forked, key: key{z.c.conn, r.id}, c: z.c, of: z}
	if s.UID != z.m.Spawn.UID || s.GID != z.m.Spawn.GID {
		zygote.Close(s.FD)
		return fmt.Errorf("a process of user %d:%d says that it is a spare", s.UID, s.GID)
	}
	if s.born, err = n.reaper.claim(s.PID, func() { n.ended(s) }); err != nil {
		zygote.Close(s.FD)
		return err
	}
	err = place(r.slot, s.PID)
	if err == nil && len(r.slot) > 1 {
		err = onlyThread(s.PID)
	}
	if err == nil {
		if n.keep(s) {
			return nil
		}
		err = errors.New("a spare has ended")
	}
	n.reaper.abandon(s.born)
	zygote.Close(s.FD)
	return err
}

// place moves a child into a slot. The kernel looks pid up in the PID namespace of this
// process. The child is not reaped, so the number belongs to no other process. A write that
// succeeds has moved all its threads, or on v1 only its first, see onlyThread.
func place(slot []int, pid int) error {
	for _, fd := range slot {
		if _, err := write(fd, strconv.AppendInt(nil, int64(pid), 10)); err != nil {
			return os.NewSyscallError("moving a spare into its cgroup", err)
		}
	}
	return nil
}

// onlyThread checks that a process, which was moved on v1, has one thread. Another one, which user code may have started
// before, would go on in the zygote's cgroups: outside the limits and the figures of its command.
func onlyThread(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	if !bytes.Contains(text, []byte("\nThreads:\t1\n")) {
		return errors.New("a spare has several threads")
	}
	return nil
}

// keep has s wait for its command. It returns false if s has ended or its client has left.
func (n *nursery) keep(s *spare) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.born.isOver() || s.c.hasLeft() {
		return false
	}
	n.waiting[s.key] = s
	s.c.send(wire.TypeWaiting, s.key.id, nil) // under the lock: nothing about s comes earlier
	return true
}

// ended takes the end of a process that was claimed. The reaper calls it. If it was waiting, its
// client hears of it.
func (n *nursery) ended(s *spare) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting[s.key] == s {
		delete(n.waiting, s.key)
		zygote.Close(s.FD)
		m := wire.ExitedMsg{Status: uint32(s.born.status)}
		s.c.send(wire.TypeExited, s.key.id, m.Marshal())
	}
}

// take returns a waiting spare, or nil. From then on use reports its end.
func (n *nursery) take(k key) *spare {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.waiting[k]
	delete(n.waiting, k)
	return s
}

// use gives s a command. It takes ownership of s and stdio.
func (n *nursery) use(s *spare, m *wire.SpawnMsg, stdio []int) {
	warm, err := false, error(unix.EINVAL)
	of := s.of.m.Spawn
	switch {
	case m.UID != of.UID || m.GID != of.GID || !slices.Equal(m.Rlimits, of.Rlimits):
	case unchanged(s.PID, m.Rlimits) != nil:
		err = unix.EPERM
	default:
		warm, err = s.Run(zygote.Command{Args: m.Args, Env: m.Env, Dir: m.Dir, MakeDir: m.MakeDir, Stdio: [3]int(stdio)}, n.useTime)
	}
	closeFDs(stdio)
	if err == nil {
		zygote.Close(s.FD)
		typ := byte(wire.TypeStarted)
		if warm {
			typ = wire.TypeTaken
		}
		n.reaper.settle(s.born, s.key, s.c, typ)
		return
	}
	n.reaper.abandon(s.born)
	why := s.whyNot(err)
	zygote.Close(s.FD)
	s.c.send(wire.TypeFailed, s.key.id, why.Marshal())
}

// setupSteps are the steps of zygote.SetupError.
var setupSteps = map[string]string{"mkdir": wire.StepMkdir, "chdir": wire.StepChdir, "cwd": wire.StepCwd, "exec": wire.StepExec}

// whyNot says why s, which was killed, did not run its command. No code of the command has run if
// s has not said that it begins, since it says that first; Run answers ErrBegun once it has read that. So s
// has to be dead before the last look at what it said.
func (s *spare) whyNot(err error) *wire.FailedMsg {
	if setup, ok := errors.AsType[*zygote.SetupError](err); ok {
		return &wire.FailedMsg{Step: setupSteps[setup.Step], Errno: setup.Errno}
	}
	if errors.Is(err, zygote.ErrCold) {
		return failed(wire.StepSpare, unix.ENOEXEC)
	}
	errno, silent := errors.AsType[syscall.Errno](err)
	if errors.Is(err, zygote.ErrEnded) {
		errno, silent = unix.EPIPE, true
	}
	select {
	case <-s.born.over:
	case <-time.After(dieTime):
		silent = false
	}
	if !silent || s.Peek() {
		return failed(wire.StepUnsure, unix.EIO)
	}
	return failed(wire.StepSpare, errno)
}

// hangUp ends everything of a client that has left.
func (n *nursery) hangUp(c *client) {
	n.mu.Lock()
	var spares []*spare
	for k, s := range n.waiting {
		if s.c == c {
			spares = append(spares, s)
			delete(n.waiting, k)
		}
	}
	for k, z := range n.zygotes { // which the reaper kills
		if z.c == c {
			delete(n.zygotes, k)
			close(z.gone)
		}
	}
	n.mu.Unlock()
	for _, s := range spares {
		n.reaper.abandon(s.born)
		zygote.Close(s.FD)
	}
}
