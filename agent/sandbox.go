package agent

/*
#include "spawn.h"
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// sandbox is gVisor's kernel, in which the commands of the box run. In such a box this process
// is outside, with root's rights in the user namespace of the box, and no command can reach it.
//
// A command is three processes. Enter, outside and in the command's cgroup, is the one that the
// rest of this package takes for the command: it ends with the command's status, and whoever ends
// it ends the command. Guest, inside, starts the command and waits for it. Between them, only for
// the start, is "runsc exec", which hands the descriptors of Enter to Guest.
type sandbox struct {
	self  *os.File
	runsc *os.File
	exec  []string // arguments of runsc
	pid   int      // of the process that is the kernel
}

// startSandbox starts the sandbox. files are those of the message, which the sandbox then owns.
func startSandbox(m *wire.SandboxMsg, self *os.File, files []*os.File) (*sandbox, error) {
	s := &sandbox{self: self, runsc: files[0], exec: m.Exec}
	defer linux.CloseAll(files[1:])
	if err := makeSandboxDir(m, files[1]); err != nil {
		return nil, err
	}
	complaint, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer complaint.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return nil, err
	}
	defer null.Close()
	fds := []int{int(null.Fd()), int(null.Fd()), int(w.Fd())}
	for _, f := range files[2:] { // its cgroup and tasks files
		fds = append(fds, int(f.Fd()))
	}
	run := &wire.SpawnMsg{Args: append([]string{"runsc"}, m.Run...), Env: helperEnv, Dir: "/", Self: true}
	pid, failed := start(run, fds, birth{self: s.runsc, place: C.PLACE_OUTSIDE})
	w.Close()
	if failed != nil {
		return nil, fmt.Errorf("starting runsc: %w", failed)
	}
	var status unix.WaitStatus
	err = linux.Retry(func() error { _, err := unix.Wait4(pid, &status, 0, nil); return err })
	if err != nil {
		return nil, os.NewSyscallError("wait4", err)
	}
	if status != 0 {
		return nil, fmt.Errorf("runsc: %v: %s", describe(status), complained(complaint))
	}
	text, err := os.ReadFile(wire.SandboxPID)
	if err == nil {
		s.pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil {
		return nil, fmt.Errorf("finding the sandbox: %w", err)
	}
	// If the box is out of memory, the kernel should take the whole of it: without its kernel, no
	// part of the box works.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", s.pid), []byte("1000"), 0)
	return s, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// makeSandboxDir copies the root of the box, with its mounts, into a new file system at
// wire.SandboxDir. The copy shows the directory below it, so nothing of the sandbox. init is a
// mount: the directory with the program of our helpers.
func makeSandboxDir(m *wire.SandboxMsg, init *os.File) error {
	root, err := linux.OpenTree(nil, "/", unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	defer root.Close()
	dir, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		linux.Option{Key: "size", Value: "8m"}, linux.Option{Key: "mode", Value: "0700"})
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := linux.MoveMount(dir, nil, wire.SandboxDir); err != nil {
		return err
	}
	for _, name := range []string{wire.SandboxRoot, wire.SandboxInit, wire.SandboxState, wire.SandboxBundle} {
		if err := os.Mkdir(name, 0o711); err != nil {
			return err
		}
	}
	if err := errors.Join(linux.MoveMount(root, nil, wire.SandboxRoot), linux.MoveMount(init, nil, wire.SandboxInit)); err != nil {
		return err
	}
	// gVisor's own sysfs hides it from commands. Until then, runsc makes the mount point of the
	// helpers in it, where the root may be read-only.
	points, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, linux.Option{Key: "size", Value: "64k"})
	if err != nil {
		return err
	}
	defer points.Close()
	return errors.Join(linux.MoveMount(points, nil, wire.SandboxRoot+wire.SandboxDir),
		os.WriteFile(filepath.Join(wire.SandboxBundle, "config.json"), m.Config, 0o600),
		os.WriteFile(wire.SandboxProcess, m.Process, 0o600))
}

// helperEnv keeps our own Go programs, and runsc when it is not the kernel, to few threads: each
// counts against the limits of the box.
var helperEnv = []string{"GOMAXPROCS=2", "GOGC=off", "GOMEMLIMIT=64MiB", "PATH=/usr/bin:/bin"}

// spawn implements agent.spawn.
func (s *sandbox) spawn(m *wire.SpawnMsg, fds []int) (int, *wire.FailedMsg) {
	if m.TTY {
		return 0, failed("giving a command of gVisor a terminal", unix.ENOTTY)
	}
	orders, err := memoryFile(m.Marshal())
	if err != nil {
		return 0, failed(wire.StepClone, err)
	}
	defer orders.Close()
	answer, w, err := os.Pipe()
	if err != nil {
		return 0, failed(wire.StepClone, err)
	}
	var extra []int
	for _, f := range []*os.File{s.runsc, w, orders} {
		fd, herr := high(f)
		if herr != nil {
			err = errors.Join(err, herr)
			continue
		}
		extra = append(extra, fd)
	}
	defer func() { closeFDs(extra) }()
	w.Close()
	if err != nil {
		answer.Close()
		return 0, failed(wire.StepClone, err)
	}
	enter := &wire.SpawnMsg{Args: append([]string{"boxd-agent", "enter"}, s.exec...), Env: helperEnv, Dir: "/", Self: true}
	pid, fail := start(enter, fds, birth{self: s.self, place: C.PLACE_OUTSIDE, extra: extra})
	if fail != nil {
		answer.Close()
		return 0, fail
	}
	closeFDs(extra[1:2]) // of the pipe, so that the answer ends with Enter
	extra[1] = -1
	kind, body, err := receive(answer)
	switch {
	case err == nil && kind == reportStarted:
	case err == nil && kind == reportFailed:
		answer.Close()
		fail = new(wire.FailedMsg)
		if fail.Unmarshal(body) != nil {
			fail = failed(wire.StepClone, unix.EBADMSG)
		}
		return 0, fail
	default: // it was killed: its status says so
		answer.Close()
		return pid, nil
	}
	go func() {
		defer answer.Close()
		if kind, _, err := receive(answer); err == nil && kind == reportLost {
			fmt.Fprintln(os.Stderr, "boxd-agent: a helper in the sandbox has ended without a status")
			os.Exit(1)
		}
	}()
	return pid, nil
}

// high duplicates f above all numbers that a child gives to its descriptors.
func high(f *os.File) (int, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 64)
	return fd, os.NewSyscallError("fcntl", err)
}

// memoryFile returns a file in memory with the given content, at its beginning.
func memoryFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("orders", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "orders")
	if _, err := f.WriteAt(content, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// complained returns what a program that has ended wrote to a pipe, as one line.
func complained(pipe *os.File) string {
	b := make([]byte, 1024)
	_ = pipe.SetReadDeadline(time.Now().Add(time.Second)) // the sandbox may hold the other end
	n, _ := io.ReadAtLeast(pipe, b, 1)
	text := strings.Join(strings.Fields(string(bytes.ToValidUTF8(b[:max(n, 0)], nil))), " ")
	if text == "" {
		return "it gave no reason"
	}
	return text
}

func describe(s unix.WaitStatus) string {
	if s.Signaled() {
		return "killed by " + unix.SignalName(s.Signal())
	}
	return "exit status " + strconv.Itoa(s.ExitStatus())
}

// What the three processes of a command tell one another: a kind, the length of a body in four
// bytes, and the body.
const (
	orderSpawn    = 'c' // to Guest: a byte whose bits say which of stdio is /dev/null, and a wire.SpawnMsg
	orderSignal   = 's' // to Guest: one byte, for the command as in reaper.signal
	orderTree     = 't' // to Guest: one byte, for everything that the command has started as well
	reportStarted = 'S' // to Enter, and from there to the agent
	reportFailed  = 'F' // likewise: a wire.FailedMsg
	reportExited  = 'X' // to Enter: a wire.ExitedMsg, and a byte that says whether processes are left
	reportLost    = 'L' // from Enter to the agent: Guest has ended without reportExited
)

// firstOnly returns the signal by which the agent passes sig, 1 to 31, to Enter: one of 35 to 64. Enter
// takes others for what the launcher sends to every process in the slot of the command. Go's runtime has
// no handler for 34, which belongs to the C library. So SIGHUP takes the place of SIGSTKFLT, which no
// kernel sends (signal(7)), and which cannot be passed.
func firstOnly(sig unix.Signal) unix.Signal {
	switch {
	case sig == unix.SIGHUP:
		return unix.SIGSTKFLT + firstOnlyBase
	case sig < 1 || sig > 31 || sig == unix.SIGSTKFLT:
		return 0
	}
	return sig + firstOnlyBase
}

// passed is the inverse of firstOnly. It returns 0 for signals that firstOnly does not return.
func passed(sig unix.Signal) unix.Signal {
	switch {
	case sig <= firstOnlyBase+1:
		return 0
	case sig == unix.SIGSTKFLT+firstOnlyBase:
		return unix.SIGHUP
	}
	return sig - firstOnlyBase
}

const firstOnlyBase = 33

func send(to *os.File, kind byte, body []byte) error {
	n := len(body)
	head := []byte{kind, byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}
	_, err := to.Write(slices.Concat(head, body))
	return err
}

func receive(from *os.File) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(head[1]) | int(head[2])<<8 | int(head[3])<<16 | int(head[4])<<24
	if n > wire.MaxBody {
		return 0, nil, fmt.Errorf("message of %d bytes: %w", n, wire.ErrProtocol)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(from, body)
	return head[0], body, err
}
