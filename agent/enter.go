package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// Descriptors of Enter, beside the command's stdio.
const (
	enterRunsc  = 4
	enterAnswer = 5
	enterSpawn  = 6 // a file: the wire.SpawnMsg
)

// Enter stands for a command of a sandbox outside of it, see sandbox. args are those of runsc. It
// does not return: it ends as the command ends, by the same exit status or the same signal.
func Enter(args []string) {
	for _, fd := range []int{enterRunsc, enterAnswer, enterSpawn} {
		unix.CloseOnExec(fd)
	}
	// Before anything else: a signal that comes meanwhile is for the command.
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)
	answer := os.NewFile(enterAnswer, "answer")
	e, err := enterSandbox(args)
	if err == nil {
		err = e.awaitStart(answer)
	}
	if err != nil {
		m := wire.FailedMsg{Step: "entering the sandbox: " + err.Error(), Errno: unix.EIO}
		if failed, ok := errors.AsType[*wire.FailedMsg](err); ok {
			m = *failed
		}
		_ = send(answer, reportFailed, m.Marshal())
		os.Exit(125) // the agent does not report this status
	}
	status, err := e.awaitEnd(signals)
	if err != nil {
		_ = send(answer, reportLost, nil)
		select {} // the agent ends the box
	}
	endLike(status)
}

// entered is what Enter has of its helper in the guest.
type entered struct {
	orders, reports *os.File
	heard           chan report // closed with the last one
	client          *exec.Cmd   // runsc exec
	complaint       *os.File
}

type report struct {
	kind byte
	body []byte
}

// enterSandbox has runsc start the helper with the stdio of this process, and lets go of the stdio.
func enterSandbox(args []string) (*entered, error) {
	spawn, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", enterSpawn))
	if err != nil {
		return nil, err
	}
	e := &entered{heard: make(chan report, 4)}
	ordersEnd, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ordersEnd.Close()
	reports, reportsEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reportsEnd.Close()
	complaint, complaintEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer complaintEnd.Close()
	e.orders, e.reports, e.complaint = orders, reports, complaint
	stdio, nulls := make([]*os.File, 3), byte(0)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	for i := range stdio {
		if isNull(i) {
			nulls |= 1 << i
		}
		fd, err := unix.FcntlInt(uintptr(i), unix.F_DUPFD_CLOEXEC, 10)
		if err != nil {
			return nil, os.NewSyscallError("fcntl", err)
		}
		stdio[i] = os.NewFile(uintptr(fd), "stdio")
		defer stdio[i].Close()
		if err := unix.Dup3(int(null.Fd()), i, 0); err != nil {
			return nil, os.NewSyscallError("dup3", err)
		}
	}
	runsc, err := high(os.NewFile(enterRunsc, "runsc")) // above the descriptors that the child gets
	if err != nil {
		return nil, err
	}
	defer unix.Close(runsc)
	e.client = &exec.Cmd{
		Path:       fmt.Sprintf("/proc/self/fd/%d", runsc),
		Args:       append([]string{"runsc"}, args...),
		Env:        os.Environ(),
		Stderr:     complaintEnd,
		ExtraFiles: []*os.File{ordersEnd, reportsEnd, stdio[0], stdio[1], stdio[2]}, // wire.ExecOrders …
	}
	if err := e.client.Start(); err != nil {
		return nil, err
	}
	go func() { // the message may be larger than the pipe
		_ = send(orders, orderSpawn, append([]byte{nulls}, spawn...))
	}()
	go func() {
		defer close(e.heard)
		for {
			kind, body, err := receive(reports)
			if err != nil {
				return
			}
			e.heard <- report{kind, body}
		}
	}()
	return e, nil
}

// awaitStart waits until the command runs, and tells the agent.
func (e *entered) awaitStart(answer *os.File) error {
	r, ok := <-e.heard
	if !ok {
		err := e.client.Wait()
		return fmt.Errorf("runsc: %v: %s", err, complained(e.complaint))
	}
	// It would only wait for the end, and hold the stdio and much memory until then.
	_ = e.client.Process.Kill()
	_ = e.client.Wait()
	switch r.kind {
	case reportStarted:
		return send(answer, reportStarted, nil)
	case reportFailed:
		failed := new(wire.FailedMsg)
		return errors.Join(failed.Unmarshal(r.body), failed)
	}
	return fmt.Errorf("report of kind %q: %w", r.kind, wire.ErrProtocol)
}

// awaitEnd passes signals on until the command has ended. If it has left processes behind, another
// process stands for them in the cgroup of the command.
func (e *entered) awaitEnd(signals <-chan os.Signal) (unix.WaitStatus, error) {
	for {
		select {
		case s := <-signals:
			sig := s.(syscall.Signal)
			switch sig {
			case unix.SIGURG, unix.SIGCHLD, unix.SIGPIPE: // of the Go runtime and of our own doing
				continue
			}
			if first := passed(sig); first != 0 {
				_ = send(e.orders, orderSignal, []byte{byte(first)})
			} else {
				_ = send(e.orders, orderTree, []byte{byte(sig)})
			}
		case r, ok := <-e.heard:
			var m wire.ExitedMsg
			if !ok || r.kind != reportExited || len(r.body) == 0 || m.Unmarshal(r.body[1:]) != nil {
				return 0, wire.ErrProtocol
			}
			if r.body[0] != 0 {
				if err := e.leave(); err != nil {
					return 0, err
				}
			}
			return unix.WaitStatus(m.Status), nil
		}
	}
}

// leave starts Hold, in the cgroup of this process.
func (e *entered) leave() error {
	hold := exec.Command("/proc/self/exe", "hold")
	hold.Env = os.Environ()
	hold.ExtraFiles = []*os.File{e.orders, e.reports}
	return hold.Start()
}

// Hold lives as long as the processes that a command of a sandbox has left behind, and they end
// with it: its first descriptor beside stdio is the pipe that Guest waits for, and the second one
// ends with Guest.
func Hold() {
	reports := os.NewFile(4, "reports")
	for {
		if _, _, err := receive(reports); err != nil {
			os.Exit(0)
		}
	}
}

// endLike ends this process with the status of another.
func endLike(status unix.WaitStatus) {
	if !status.Signaled() {
		os.Exit(status.ExitStatus())
	}
	runtime.LockOSThread()
	sig := status.Signal()
	// Go's runtime has a handler for almost every signal, and os/signal does not remove it.
	var fallback [4]uint64 // the kernel's struct sigaction: SIG_DFL
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&fallback)), 0, 8, 0, 0)
	var mask unix.Sigset_t
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &mask, nil)
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), sig)
	time.Sleep(time.Second)
	_ = unix.Kill(unix.Getpid(), unix.SIGKILL) // a signal that does not end a process ended none
	select {}
}
