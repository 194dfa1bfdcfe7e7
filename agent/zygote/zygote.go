package zygote

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ControlFD is the descriptor at which a zygote expects its end of the control socket.
const ControlFD = 4

const (
	// loader is the program that the zygote is started with. It receives the real one, so that
	// it is not part of each command's line in the list of processes.
	loader = `import os;exec(compile(os.read(4,1<<20),"<frozen importlib._bootstrap: zygote>","exec"))`

	maxLine = 512 // bytes of what a zygote says in one line
)

//go:embed python.py
var python []byte

// ErrEnded says that the process at the other end of the socket has closed it, and with it ended,
// or started to run a command.
var ErrEnded = errors.New("it has ended")

// SetupError says which step of a command's start a spare could not do. No code of the command has
// run, and the spare ends.
type SetupError struct {
	Step  string // mkdir, chdir, or cwd: the directory is not in the box
	Errno unix.Errno
}

func (e *SetupError) Error() string { return e.Step + ": " + e.Errno.Error() }

func (e *SetupError) Unwrap() error { return e.Errno }

// Args returns the arguments of a process that is to be the zygote for commands whose arguments begin
// with command. The process gets the control socket as ControlFD, and /dev/null as stdin,
// stdout and stderr.
func Args(command []string) []string {
	return append(append([]string(nil), command...), "-c", loader)
}

// Pair makes a control socket: one end to keep, and one for the zygote. Both are close-on-exec, and
// the caller owns them.
func Pair() (ours, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("zygote: control socket: %w", err)
	}
	return fds[0], fds[1], nil
}

// Load makes the process at the other end of control the zygote for command, imports preload, and
// returns when it is ready. The error is what the zygote says in one line, such as which
// module it could not import, ErrEnded, or unix.ETIMEDOUT after within. The zygote is of no
// use then.
func Load(control int, command, preload []string, within time.Duration) error {
	if err := setTimeouts(control, within); err != nil {
		return err
	}
	if err := send(control, python); err != nil {
		return fmt.Errorf("zygote: sending the program: %w", err)
	}
	config := appendStrings(nil, strconv.Itoa(len(command)))
	config = appendStrings(appendStrings(config, command...), preload...)
	if err := send(control, config); err != nil {
		return fmt.Errorf("zygote: sending the configuration: %w", err)
	}
	line, err := receiveLine(control)
	if err != nil {
		return fmt.Errorf("zygote: starting: %w", err)
	}
	if line != "ready" {
		return fmt.Errorf("zygote: %s", line)
	}
	return nil
}

// A Spare is a process that waits for a command.
type Spare struct {
	// FD is the socket of the spare, close-on-exec. The caller owns it.
	FD int
	// PID is the process, in the caller's PID namespace, and UID and GID are its effective ids, in
	// the caller's user namespace. The kernel has checked that a process with them has
	// answered; the caller checks that it is its child and has the zygote's user.
	PID      int
	UID, GID uint32
}

// Fork has the zygote at the other end of control make a spare, whose parent is the reaper of the
// zygote's orphans, and returns it when it waits for its command. The error is what the
// zygote says in one line, ErrEnded, or unix.ETIMEDOUT after within. A zygote says "stale: " and
// ends when what it would load now is not what it has loaded.
//
// One call at a time: the caller serializes calls with the same control.
func Fork(control int, within time.Duration) (*Spare, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("zygote: a spare's socket: %w", err)
	}
	spare, err := fork(control, fds[0], fds[1], within)
	if err != nil {
		unix.Close(fds[0])
		return nil, err
	}
	return spare, nil
}

// fork takes theirs.
func fork(control, ours, theirs int, within time.Duration) (*Spare, error) {
	err := errors.Join(setTimeouts(control, within), setTimeouts(ours, within),
		unix.SetsockoptInt(ours, unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
	if err == nil {
		err = retry(func() error {
			return unix.Sendmsg(control, []byte("spare"), unix.UnixRights(theirs), nil, unix.MSG_NOSIGNAL)
		})
	}
	unix.Close(theirs)
	if err != nil {
		return nil, fmt.Errorf("zygote: asking for a spare: %w", ended(err))
	}
	line, err := receiveLine(control)
	if err != nil {
		return nil, fmt.Errorf("zygote: asking for a spare: %w", err)
	}
	if line != "forked" {
		return nil, fmt.Errorf("zygote: %s", line)
	}
	return receiveHello(ours)
}

// receiveHello reads the first byte that a spare says, and who said it.
func receiveHello(fd int) (*Spare, error) {
	var hello [1]byte
	// Descriptors that come with the byte do not fit, and so the kernel drops them.
	control := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	var n, oobn int
	err := retry(func() (err error) {
		n, oobn, _, _, err = unix.Recvmsg(fd, hello[:], control, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err == nil && n == 0 {
		err = ErrEnded
	}
	if err != nil {
		return nil, fmt.Errorf("zygote: waiting for a spare: %w", ended(err))
	}
	messages, err := unix.ParseSocketControlMessage(control[:oobn])
	if err != nil {
		return nil, fmt.Errorf("zygote: a spare's credentials: %w", err)
	}
	for i := range messages {
		if who, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			return &Spare{FD: fd, PID: int(who.Pid), UID: who.Uid, GID: who.Gid}, nil
		}
	}
	return nil, errors.New("zygote: a spare said nothing of who it is")
}

// Command is what a spare becomes.
type Command struct {
	Args []string // all arguments, the program's name first; it may be any program
	Env  []string // the whole environment
	Dir  string   // absolute
	// MakeDir has the spare make Dir and its missing parents, mode 0755.
	MakeDir bool
	Stdio   [3]int // lent
}

// Run sends command to the spare and returns when the spare starts to run it: no code of the
// command has run before, and from then on only the exit status tells how it goes. A
// *SetupError says which step failed. After any other error, such as ErrEnded or
// unix.ETIMEDOUT after within, the command may start a moment later, unless the caller
// kills the process. FD is of no use afterwards.
func (s *Spare) Run(command Command, within time.Duration) error {
	payload, err := Payload(command)
	if err != nil {
		return err
	}
	if err := setTimeouts(s.FD, within); err != nil {
		return err
	}
	if err := sendAll(s.FD, payload, unix.UnixRights(command.Stdio[:]...)); err != nil {
		return fmt.Errorf("zygote: sending a command: %w", err)
	}
	line, err := receiveLine(s.FD)
	if err != nil {
		return fmt.Errorf("zygote: starting a command: %w", err)
	}
	return answer(line)
}

// answer reads what a spare said about a start.
func answer(line string) error {
	if line == "0" {
		return nil
	}
	step, number, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	errno, err := strconv.ParseUint(number, 10, 12)
	if err != nil || errno == 0 || step != "mkdir" && step != "chdir" && step != "cwd" {
		return fmt.Errorf("zygote: a spare answered %q", line)
	}
	return &SetupError{step, unix.Errno(errno)}
}

// Payload returns the bytes that carry command, without Stdio. No string may have a NUL in it.
func Payload(command Command) ([]byte, error) {
	make := "0"
	if command.MakeDir {
		make = "1"
	}
	b := appendStrings([]byte{0, 0, 0, 0},
		strconv.Itoa(len(command.Args)), strconv.Itoa(len(command.Env)), make, command.Dir)
	b = appendStrings(appendStrings(b, command.Args...), command.Env...)
	if strings.Count(string(b[4:]), "\x00") != 4+len(command.Args)+len(command.Env) {
		return nil, errors.New("zygote: a command's argument, variable or directory has a NUL byte")
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b, nil
}

func appendStrings(b []byte, strings ...string) []byte {
	for _, s := range strings {
		b = append(append(b, s...), 0)
	}
	return b
}

// setTimeouts bounds each send and receive. Zero is no bound.
func setTimeouts(fd int, within time.Duration) error {
	tv := unix.NsecToTimeval(within.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &tv); err != nil {
			return fmt.Errorf("zygote: setting a time limit: %w", err)
		}
	}
	return nil
}

// send sends b as one packet.
func send(fd int, b []byte) error {
	return ended(retry(func() error { return unix.Sendmsg(fd, b, nil, nil, unix.MSG_NOSIGNAL) }))
}

// sendAll sends b on a stream, and control with its first byte.
func sendAll(fd int, b, control []byte) error {
	for len(b) > 0 {
		var n int
		err := retry(func() (err error) {
			n, err = unix.SendmsgN(fd, b, control, nil, unix.MSG_NOSIGNAL)
			return err
		})
		if err != nil {
			return ended(err)
		}
		b, control = b[n:], nil
	}
	return nil
}

// receiveLine reads one packet, or what a stream has.
func receiveLine(fd int) (string, error) {
	b := make([]byte, maxLine)
	var n, flags int
	err := retry(func() (err error) {
		// Room for no descriptors: the kernel drops what comes.
		n, _, flags, _, err = unix.Recvmsg(fd, b, nil, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return "", ended(err)
	}
	if n == 0 {
		return "", ErrEnded
	}
	if flags&unix.MSG_TRUNC != 0 {
		return "", fmt.Errorf("more than %d bytes in a line", maxLine)
	}
	return strings.ToValidUTF8(string(b[:n]), "?"), nil
}

// ended gives the errors of a socket their meaning.
func ended(err error) error {
	switch {
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.ECONNREFUSED):
		return ErrEnded
	case errors.Is(err, unix.EAGAIN):
		return unix.ETIMEDOUT
	}
	return err
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
