package agent

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/agent/zygote"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// nurseryTest is a nursery with a reaper of its own, and a client that the test plays.
type nurseryTest struct {
	*nursery
	t    *testing.T
	c    *client
	peer peer
	null int
}

func newNurseryTest(t *testing.T) *nurseryTest {
	t.Helper()
	c, p := newTestClient(t)
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := newReaper(func(uint32, unix.WaitStatus) {})
	n := &nurseryTest{nursery: newNursery(r), t: t, c: c, peer: p, null: null}
	n.useTime = time.Minute
	r.sandbox = n.child("exec sleep 1000", -1) // with whose end that of the reaper comes
	stopped := make(chan error)
	go func() { stopped <- r.run() }()
	t.Cleanup(func() {
		if err := unix.Kill(r.sandbox, unix.SIGKILL); err != nil {
			t.Error(err)
		}
		<-stopped
		// A spare that was killed may end later than the reaper.
		for _, err := unix.Wait4(-1, nil, 0, nil); err != unix.ECHILD; {
			_, err = unix.Wait4(-1, nil, 0, nil)
		}
		unix.Close(null)
	})
	return n
}

// child starts a script whose descriptor 4 is a copy of fd, unless fd is -1.
func (n *nurseryTest) child(script string, fd int) int {
	n.t.Helper()
	b := birth{place: 1} // PLACE_OUTSIDE of spawn.h, which tests cannot include
	if fd >= 0 {
		extra, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 10)
		if err != nil {
			n.t.Fatal(err)
		}
		defer unix.Close(extra)
		b.extra = []int{extra}
	}
	pid, failed := start(&wire.SpawnMsg{Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}, []int{n.null, n.null, n.null, -1}, b)
	if failed != nil {
		n.t.Fatal(failed)
	}
	return pid
}

// zygote makes a zygote of the test's user, which makes spares with begin.
func (n *nurseryTest) zygote(begin func(fd int)) *nurse {
	n.t.Helper()
	ours, theirs, err := zygote.Pair()
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { unix.Close(ours); unix.Close(theirs) })
	m := &wire.ZygoteMsg{Spawn: wire.SpawnMsg{Args: []string{"python3"}, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}}
	z := &nurse{key: key{n.c.conn, 1}, c: n.c, m: m, control: ours, requests: make(chan request, wire.MaxWarm), gone: make(chan struct{})}
	go func() {
		for {
			data, oob := make([]byte, 64), make([]byte, unix.CmsgSpace(4))
			size, oobn, _, _, err := unix.Recvmsg(theirs, data, oob, unix.MSG_CMSG_CLOEXEC)
			if err != nil || size <= 0 {
				return
			}
			messages, err := unix.ParseSocketControlMessage(oob[:oobn])
			if err != nil || len(messages) != 1 {
				n.t.Errorf("a request with %d control messages, %v", len(messages), err)
				return
			}
			fds, err := unix.ParseUnixRights(&messages[0])
			if err != nil {
				n.t.Error(err)
				return
			}
			begin(fds[0])
			unix.Close(fds[0])
			if _, err := unix.Write(theirs, []byte("forked")); err != nil {
				return
			}
		}
	}()
	return z
}

// shell is a zygote whose spares are scripts; a script gets its socket as descriptor 4.
func (n *nurseryTest) shell(script string) *nurse {
	return n.zygote(func(fd int) { n.child(script, fd) })
}

// raise makes spare id, and returns what was written to its slot.
func (n *nurseryTest) raise(z *nurse, id uint32) (string, error) {
	n.t.Helper()
	slot, err := os.CreateTemp(n.t.TempDir(), "")
	if err != nil {
		n.t.Fatal(err)
	}
	defer slot.Close()
	err = n.nursery.raise(z, request{id: id, slot: []int{int(slot.Fd())}})
	text, rerr := os.ReadFile(slot.Name())
	if rerr != nil {
		n.t.Fatal(rerr)
	}
	return string(text), err
}

// want waits for a frame about id.
func (n *nurseryTest) want(typ byte, id uint32) *wire.Frame {
	n.t.Helper()
	f, err := n.peer.Receive()
	if err != nil || f.Type != typ || f.ID != id {
		n.t.Fatalf("%+v, %v; want a frame of type %d about %d", f, err, typ, id)
	}
	return f
}

func (n *nurseryTest) wantFailed(id uint32, step string, errno unix.Errno) {
	n.t.Helper()
	var m wire.FailedMsg
	if err := m.Unmarshal(n.want(wire.TypeFailed, id).Body); err != nil || m.Step != step || m.Errno != errno {
		n.t.Errorf("%+v, %v; want %q, %v", m, err, step, errno)
	}
}

func (n *nurseryTest) wantExited(id uint32, is func(unix.WaitStatus) bool) {
	n.t.Helper()
	var m wire.ExitedMsg
	if err := m.Unmarshal(n.want(wire.TypeExited, id).Body); err != nil || !is(unix.WaitStatus(m.Status)) {
		n.t.Errorf("status %#x, %v", m.Status, err)
	}
}

// command has spare id become a command, as a Use frame does.
func (n *nurseryTest) command(id uint32) {
	n.t.Helper()
	null, err := unix.FcntlInt(uintptr(n.null), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	more := [2]int{}
	for i := range more {
		if more[i], err = unix.FcntlInt(uintptr(n.null), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			n.t.Fatal(err)
		}
	}
	m := wire.SpawnMsg{Args: []string{"python3", "-c", "pass"}, Dir: "/", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	a := &agent{nursery: n.nursery, reaper: n.reaper}
	frame := &wire.Frame{Type: wire.TypeUse, ID: id, Body: m.Marshal(), FDs: []int{null, more[0], more[1]}}
	if !a.handleWarm(n.c, frame) {
		n.t.Error("a frame that breaks a rule")
	}
	frame.Close()
}

func killed(s unix.WaitStatus) bool { return s.Signaled() && s.Signal() == unix.SIGKILL }

// TestSpare: a spare is moved to its slot, becomes a command, and its end is reported once.
func TestSpare(t *testing.T) {
	n := newNurseryTest(t)
	for id, answer := range map[uint32]string{2: "0", 3: "1"} {
		z := n.shell(fmt.Sprintf(`printf h >&4; head -c 4 <&4 >/dev/null; printf %s >&4; exec 4>&-; exit 5`, answer))
		text, err := n.raise(z, id)
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Sscan(text, &pid); err != nil || pid <= 1 {
			t.Errorf("%q was written to the slot", text)
		}
		n.want(wire.TypeWaiting, id)
		n.command(id)
		if answer == "0" {
			n.want(wire.TypeTaken, id)
		} else {
			n.want(wire.TypeStarted, id)
		}
		n.wantExited(id, func(s unix.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 5 })
	}
	n.command(2)
	n.wantFailed(2, wire.StepSpare, unix.ESRCH)
}

// TestSignalAtOnce: a client that hears that its command has started can signal it. So the reaper's lock is held while it
// is told.
func TestSignalAtOnce(t *testing.T) {
	n := newNurseryTest(t)
	if _, err := n.raise(n.shell(`printf h >&4; head -c 4 <&4 >/dev/null; printf 0 >&4; exec 4>&-; exec sleep 1000`), 2); err != nil {
		t.Fatal(err)
	}
	n.want(wire.TypeWaiting, 2)
	n.c.mu.Lock() // nothing is told
	n.command(2)
	for held, late := 0, time.Now().Add(10*time.Second); held < 20; held++ { // the reaper holds it for a moment
		if n.reaper.mu.TryLock() {
			n.reaper.mu.Unlock()
			held = 0
		}
		if time.Now().After(late) {
			n.c.mu.Unlock()
			t.Fatal("a signal could come before the command is there")
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	n.c.mu.Unlock()
	n.want(wire.TypeTaken, 2)
	n.reaper.signal(key{n.c.conn, 2}, unix.SIGKILL)
	n.wantExited(2, unix.WaitStatus.Signaled) // by another signal, since the reaper has a sandbox
}

// TestSpareDies: a spare that dies while it waits is gone, and its client hears of it.
func TestSpareDies(t *testing.T) {
	n := newNurseryTest(t)
	text, err := n.raise(n.shell("printf h >&4; exec sleep 1000"), 2)
	if err != nil {
		t.Fatal(err)
	}
	n.want(wire.TypeWaiting, 2)
	var pid int
	if _, err := fmt.Sscan(text, &pid); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.wantExited(2, killed)
	n.command(2)
	n.wantFailed(2, wire.StepSpare, unix.ESRCH)
}

// TestLingeringSpare: what user code sends from a spare, such as a socket whose close takes an hour, delays neither the
// reaper nor a command nor the end of a client.
func TestLingeringSpare(t *testing.T) {
	n := newNurseryTest(t)
	theirs := make(chan int, 1)
	z := n.zygote(func(fd int) {
		n.child("printf h >&4; head -c 4 <&4 >/dev/null; exec 4>&-; exec sleep 1000", fd)
		other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
		}
		theirs <- other
	})
	// raise makes a spare that sends text and the last copy of such a socket.
	raise := func(id uint32, text string) (pid int) {
		t.Helper()
		slot, err := n.raise(z, id)
		if err != nil {
			t.Fatal(err)
		}
		n.want(wire.TypeWaiting, id)
		if _, err := fmt.Sscan(slot, &pid); err != nil {
			t.Fatal(err)
		}
		lingering, stop, err := testutil.LingeringSocket()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
		fd := <-theirs
		if err := unix.Sendmsg(fd, []byte(text), unix.UnixRights(lingering), nil, 0); err != nil {
			t.Fatal(err)
		}
		unix.Close(lingering)
		unix.Close(fd)
		return pid
	}
	kill := func(pid int) {
		t.Helper()
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	late := time.AfterFunc(20*time.Second, func() { panic("a spare's descriptor delays the agent") })
	defer late.Stop()

	kill(raise(2, "x"))
	n.wantExited(2, killed)

	pid := raise(3, "0")
	n.command(3)
	n.want(wire.TypeTaken, 3)
	kill(pid)
	n.wantExited(3, killed)

	raise(4, "x")
	n.command(4)
	n.wantFailed(4, wire.StepUnsure, unix.EIO)

	raise(5, "x")
	n.c.leave()
	n.hangUp(n.c)
}

// TestSpareFails: a spare that does not take its command over is dead before the client hears of it. It says
// whether code of the command may have run.
func TestSpareFails(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		step   string
		errno  unix.Errno
	}{
		"stopped":         {"kill -STOP $$", wire.StepSpare, unix.ETIMEDOUT},
		"deaf":            {"exec sleep 1000", wire.StepSpare, unix.ETIMEDOUT},
		"dead":            {"head -c 4 <&4; exit 0", wire.StepSpare, unix.EPIPE},
		"cold":            {`head -c 4 <&4; printf 'cold 0\n' >&4; exec sleep 1000`, wire.StepSpare, unix.ENOEXEC},
		"no directory":    {`head -c 4 <&4; printf 'chdir 2\n' >&4; exec sleep 1000`, wire.StepChdir, unix.ENOENT},
		"mkdir":           {`head -c 4 <&4; printf 'mkdir 30\n' >&4; exec sleep 1000`, wire.StepMkdir, unix.EROFS},
		"out of it":       {`head -c 4 <&4; printf 'cwd 1\n' >&4; exec sleep 1000`, wire.StepCwd, unix.EPERM},
		"no program":      {`head -c 4 <&4; printf 1 >&4; printf 'exec 2\n' >&4; exec sleep 1000`, wire.StepExec, unix.ENOENT},
		"begun":           {`head -c 4 <&4; printf 1 >&4; exec sleep 1000`, wire.StepUnsure, unix.EIO},
		"cold too late":   {`head -c 4 <&4; printf '1cold 0\n' >&4; exec sleep 1000`, wire.StepUnsure, unix.EIO},
		"out of its mind": {`head -c 4 <&4; printf 'x' >&4; exec sleep 1000`, wire.StepUnsure, unix.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNurseryTest(t)
			if c.errno == unix.ETIMEDOUT {
				n.useTime = 100 * time.Millisecond
			} else if name == "begun" {
				n.useTime = time.Second // in which it says so
			}
			text, err := n.raise(n.shell("printf h >&4; "+c.script), 2)
			if err != nil {
				t.Fatal(err)
			}
			n.want(wire.TypeWaiting, 2)
			n.command(2)
			n.wantFailed(2, c.step, c.errno)
			var pid int
			if _, err := fmt.Sscan(text, &pid); err != nil {
				t.Fatal(err)
			}
			for unix.Kill(pid, 0) == nil { // only the reaper knows when
				unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
			}
			n.reaper.mu.Lock()
			defer n.reaper.mu.Unlock()
			if len(n.reaper.commands)+len(n.reaper.births) != 0 {
				t.Errorf("commands %v, births %v", n.reaper.commands, n.reaper.births)
			}
		})
	}
}

// TestLateStart: a spare that says that it begins in the moment in which it is given up may have run its command.
func TestLateStart(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	over := make(chan struct{})
	close(over)
	s := &spare{Spare: &zygote.Spare{FD: fds[0]}, born: &newborn{over: over}}
	if failed := s.whyNot(unix.ETIMEDOUT); failed.Step != wire.StepSpare || failed.Errno != unix.ETIMEDOUT {
		t.Errorf("without a word: %v", failed)
	}
	if _, err := unix.Write(fds[1], []byte("0")); err != nil {
		t.Fatal(err)
	}
	if failed := s.whyNot(unix.ETIMEDOUT); failed.Step != wire.StepUnsure {
		t.Errorf("after a late word: %v", failed)
	}
}

// TestForgedSpare: only a child that is nothing else yet, of the zygote's user, is a spare.
func TestForgedSpare(t *testing.T) {
	n := newNurseryTest(t)
	hello := func(fd int) {
		if _, err := unix.Write(fd, []byte("h")); err != nil {
			t.Error(err)
		}
	}
	if _, err := n.raise(n.zygote(hello), 2); err == nil || !strings.Contains(err.Error(), "no child") {
		t.Errorf("a process that is no child: %v", err)
	}
	z := n.zygote(hello)
	z.m.Spawn.UID++
	if _, err := n.raise(z, 2); err == nil || !strings.Contains(err.Error(), "says that it is a spare") {
		t.Errorf("a process of another user: %v", err)
	}
	for what, add := range map[string]func(pid int){
		"a command":             func(pid int) { n.reaper.commands[pid] = key{n.c.conn, 9} },
		"a command that begins": func(pid int) { n.reaper.births[&newborn{pid: int32(pid)}] = struct{}{} },
	} {
		z = n.zygote(func(fd int) {
			n.reaper.mu.Lock()
			add(n.child("printf h >&4; exec sleep 1000", fd))
			n.reaper.mu.Unlock()
		})
		if _, err := n.raise(z, 2); err == nil || !strings.Contains(err.Error(), "is a command already") {
			t.Errorf("%s: %v", what, err)
		}
	}
	n.reaper.mu.Lock()
	for pid := range n.reaper.commands {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for b := range n.reaper.births {
		_ = unix.Kill(int(b.pid), unix.SIGKILL)
		delete(n.reaper.births, b)
	}
	clear(n.reaper.commands)
	n.reaper.mu.Unlock()
}

// TestSpareWithThreads: on v1 one thread is moved to the slot, so a spare may have no other.
func TestSpareWithThreads(t *testing.T) {
	n := newNurseryTest(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	z := n.shell("exec " + python + ` -c '
import os, threading, time
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
os.write(4, b"h")
time.sleep(1000)'`)
	slot, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer slot.Close()
	fd := int(slot.Fd())
	if err := n.nursery.raise(z, request{id: 2, slot: []int{fd, fd}}); err == nil || !strings.Contains(err.Error(), "several threads") {
		t.Errorf("%v", err)
	}
	if err := n.nursery.raise(n.shell("printf h >&4; exec sleep 1000"), request{id: 3, slot: []int{fd, fd}}); err != nil {
		t.Error(err)
	}
	n.want(wire.TypeWaiting, 3)
	n.c.leave()
	n.hangUp(n.c)
}

// TestNurseryHangUp: with a client its spares end, and nothing is said to it any more.
func TestNurseryHangUp(t *testing.T) {
	n := newNurseryTest(t)
	z := n.shell("printf h >&4; exec sleep 1000")
	if !n.add(z) {
		t.Fatal("no room for a zygote")
	}
	text, err := n.raise(z, 2)
	if err != nil {
		t.Fatal(err)
	}
	n.want(wire.TypeWaiting, 2)
	n.c.leave()
	n.hangUp(n.c)
	<-z.gone
	var pid int
	if _, err := fmt.Sscan(text, &pid); err != nil {
		t.Fatal(err)
	}
	for unix.Kill(pid, 0) == nil {
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	if _, err := n.raise(z, 3); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a spare for a client that has left: %v", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.zygotes)+len(n.waiting) != 0 {
		t.Errorf("%v, %v are left", n.zygotes, n.waiting)
	}
}

// TestNurseryFull: a client has at most MaxWarm zygotes and spares.
func TestNurseryFull(t *testing.T) {
	n := newNurseryTest(t)
	for i := range wire.MaxWarm {
		z := &nurse{key: key{n.c.conn, uint32(i)}, c: n.c, requests: make(chan request, wire.MaxWarm), gone: make(chan struct{})}
		if !n.add(z) {
			t.Fatalf("no room for zygote %d", i)
		}
	}
	if n.add(&nurse{key: key{n.c.conn, 1000}}) {
		t.Error("one too many is accepted")
	}
	if failed := n.ask(key{n.c.conn, 1}, request{id: 9}); failed == nil || failed.Errno != unix.EUSERS {
		t.Errorf("a spare too many: %v", failed)
	}
	if failed := n.ask(key{n.c.conn, 2000}, request{id: 9}); failed == nil || failed.Errno != unix.ESRCH {
		t.Errorf("a spare of no zygote: %v", failed)
	}
}
