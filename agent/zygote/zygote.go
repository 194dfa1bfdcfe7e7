package zygote

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/internal/linux"
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

// ErrCold says that a spare cannot become a command, because its arguments or its environment
// are unusual.
var ErrCold = errors.New("the command is to be started cold")

// ErrBegun says that a spare has begun to execute the program of its command. Whether the program runs is not known.
var ErrBegun = errors.New("it has begun to execute the program")

var steps = []string{"mkdir", "chdir", "cwd", "exec"}

// SetupError says which step of a command's start a spare could not do. No code of the command has
// run, and the spare ends.
type SetupError struct {
	Step  string // mkdir, chdir, cwd (the directory is not in the box), or exec
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

// Pair makes a control socket: one end to keep, which is closed with Close, and one for the zygote. Both
// are close-on-exec, and the caller owns them.
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
	c := newConn(control, within)
	if err := c.send(python, nil); err != nil {
		return fmt.Errorf("zygote: sending the program: %w", err)
	}
	config := appendStrings(nil, strconv.Itoa(len(command)))
	config = appendStrings(appendStrings(config, command...), preload...)
	if err := c.send(config, nil); err != nil {
		return fmt.Errorf("zygote: sending the configuration: %w", err)
	}
	line, err := c.receiveLine()
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
	// FD is the socket of the spare, close-on-exec. The caller owns it, and closes it with Close.
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
		Close(fds[0])
		return nil, err
	}
	return spare, nil
}

// Close closes a control socket or that of a spare without waiting. The other end may have sent
// descriptors whose last close takes hours (see linux.CloseForeign), and closing the socket would
// close those that nobody has received.
func Close(fd int) {
	go func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // from now on the other end can send nothing
		data, oob := make([]byte, 64<<10), make([]byte, oobSize)
		for {
			n, oobn, _, _, err := unix.Recvmsg(fd, data, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			_, closed := readControl(oob[:max(oobn, 0)])
			if err != nil || n == 0 && closed == 0 {
				break
			}
		}
		linux.CloseForeign([]int{fd})
	}()
}

// Peek reports, without waiting, whether the spare has said more than Run has read.
func (s *Spare) Peek() bool {
	n, _, err := unix.Recvfrom(s.FD, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == nil && n > 0
}

// fork takes theirs.
func fork(control, ours, theirs int, within time.Duration) (*Spare, error) {
	c := newConn(control, within)
	err := unix.SetsockoptInt(ours, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	if err == nil {
		err = c.send([]byte("spare"), unix.UnixRights(theirs))
	}
	unix.Close(theirs)
	if err != nil {
		return nil, fmt.Errorf("zygote: asking for a spare: %w", err)
	}
	line, err := c.receiveLine()
	if err != nil {
		return nil, fmt.Errorf("zygote: asking for a spare: %w", err)
	}
	if line != "forked" {
		return nil, fmt.Errorf("zygote: %s", line)
	}
	return receiveHello(&conn{ours, c.deadline})
}

// receiveHello reads the first byte that a spare says, and who said it.
func receiveHello(c *conn) (*Spare, error) {
	_, who, err := c.receive(make([]byte, 1))
	if err != nil {
		return nil, fmt.Errorf("zygote: waiting for a spare: %w", err)
	}
	if who == nil {
		return nil, errors.New("zygote: a spare said nothing of who it is")
	}
	return &Spare{FD: c.fd, PID: int(who.Pid), UID: who.Uid, GID: who.Gid}, nil
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

// Run sends command to the spare and returns when the spare has started it: warm, or by
// executing the program. No code of the command has run before, and from then on only the
// exit status tells how it goes. A *SetupError says which step failed, ErrCold that the spare cannot
// become this command; in both cases it does not, and ends. After ErrBegun code of the command may have run. After
// any other error, such as ErrEnded or unix.ETIMEDOUT after within, the command may start a moment
// later, unless the caller kills the process. FD is of no use afterwards.
func (s *Spare) Run(command Command, within time.Duration) (warm bool, err error) {
	payload, err := Payload(command)
	if err != nil {
		return false, err
	}
	c := newConn(s.FD, within)
	if err := c.send(payload, unix.UnixRights(command.Stdio[:]...)); err != nil {
		return false, fmt.Errorf("zygote: sending a command: %w", err)
	}
	line, err := c.receiveLine()
	if err != nil {
		return false, fmt.Errorf("zygote: starting a command: %w", err)
	}
	if line == "0" {
		return true, nil
	}
	if rest, executes := strings.CutPrefix(line, "1"); executes {
		// The kernel closes the socket if the program is executed.
		if line = rest; line == "" {
			line, err = c.receiveLine()
		}
		if errors.Is(err, ErrEnded) {
			return false, nil
		}
		if err == nil {
			err = answer(line)
		}
		if setup, failed := errors.AsType[*SetupError](err); failed {
			return false, setup
		}
		return false, fmt.Errorf("zygote: executing a command: %w: %v", ErrBegun, err)
	}
	return false, answer(line)
}

// answer reads why a command was not started.
func answer(line string) error {
	if line == "cold 0\n" {
		return ErrCold
	}
	step, number, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	errno, err := strconv.ParseUint(number, 10, 12)
	if err != nil || errno == 0 || !slices.Contains(steps, step) {
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

// A conn is a socket with a deadline for all that is done with it: a peer that reads or
// writes a byte at a time does not get more.
type conn struct {
	fd       int
	deadline time.Time
}

func newConn(fd int, within time.Duration) *conn {
	return &conn{fd, time.Now().Add(within)}
}

// retry makes call, which does not wait, until the socket is ready for it.
func (c *conn) retry(event int16, call func() error) error {
	for {
		err := call()
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if !errors.Is(err, unix.EAGAIN) {
			return ended(err)
		}
		left := time.Until(c.deadline)
		if left <= 0 {
			return unix.ETIMEDOUT
		}
		fds := []unix.PollFd{{Fd: int32(c.fd), Events: event}}
		if _, err := unix.Poll(fds, int(left/time.Millisecond)+1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
	}
}

// send sends b, and rights with its first byte. On a control socket b is one packet.
func (c *conn) send(b, rights []byte) error {
	for len(b) > 0 {
		var n int
		err := c.retry(unix.POLLOUT, func() (err error) {
			n, err = unix.SendmsgN(c.fd, b, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			return err
		})
		if err != nil {
			return err
		}
		b, rights = b[n:], nil
	}
	return nil
}

// receive reads one packet, or what a stream has, and who sent it, if the socket tells (SO_PASSCRED).
// Descriptors that came with it are closed, but not by the kernel, which would wait for that.
func (c *conn) receive(b []byte) (n int, who *unix.Ucred, err error) {
	oob, oobn := make([]byte, oobSize), 0
	err = c.retry(unix.POLLIN, func() (err error) {
		n, oobn, _, _, err = unix.Recvmsg(c.fd, b, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	who, _ = readControl(oob[:oobn])
	if n == 0 {
		return 0, nil, ErrEnded
	}
	return n, who, nil
}

// oobSize is the size of the control messages with which one message can come: SCM_MAX_FD of the kernel
// descriptors, and credentials.
var oobSize = unix.CmsgSpace(4*253) + unix.CmsgSpace(unix.SizeofUcred)

// readControl returns the credentials in the control messages oob, or nil, and how many descriptors it has closed.
func readControl(oob []byte) (who *unix.Ucred, closed int) {
	messages, _ := unix.ParseSocketControlMessage(oob) // the kernel has written them
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			linux.CloseForeign(fds)
			closed += len(fds)
		} else if from, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			who = from
		}
	}
	return who, closed
}

// receiveLine reads a packet of text.
func (c *conn) receiveLine() (string, error) {
	b := make([]byte, maxLine)
	n, _, err := c.receive(b)
	return strings.ToValidUTF8(string(b[:n]), "?"), err
}

// ended gives the errors of a socket whose peer has gone their meaning.
func ended(err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return ErrEnded
	}
	return err
}
