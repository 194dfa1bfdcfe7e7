// Package oneshot has the daemon run one command in a box of its own, for boxd run: the client's half of what
// api/run.go describes. It is linked into the part of boxd that has to start fast, so it does without
// net/http.
package oneshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/drained"
	"github.com/boxd/boxd/internal/fdkind"
	"golang.org/x/sys/unix"
)

// DefaultSocket is where a daemon listens by default.
const DefaultSocket = "/run/boxd/boxd.sock"

// Unused says why a daemon does not run the command. Nothing has run, and nothing will.
type Unused struct {
	Reason  string
	Problem *apitypes.Problem // of the daemon's answer; nil: it has not answered
	Absent  bool              // there is no daemon, or none is wanted
	Final   bool              // input for the command may be lost, so nobody else can run it
}

func (e *Unused) Error() string { return e.Reason }

// Status returns the exit status of boxd run if nobody else runs the command.
func (e *Unused) Status() int {
	if e.Problem == nil {
		return StatusFailed
	}
	status, _ := FailureStatus(e.Problem.Code)
	return status
}

// Settled reports whether nobody else is to run the command: input for it may be lost, or it would fail there too.
func (e *Unused) Settled() bool {
	if e.Final || e.Problem == nil {
		return e.Final
	}
	_, anywhere := FailureStatus(e.Problem.Code)
	return anywhere
}

func unused(format string, args ...any) error { return &Unused{Reason: fmt.Sprintf(format, args...)} }

// patience is how long a daemon may take to decide about a run. It makes nothing before.
const patience = 5 * time.Second

// cutDelay is how long the pipes of a command that has ended may take to end by themselves, as in the engine. They end
// at once, unless a process outside the command holds the other end, such as a hostile agent.
const cutDelay = 2 * time.Second

// maxAnswer bounds an answer of the daemon in bytes.
const maxAnswer = 1 << 20

// Run is a command that the daemon has accepted, and that it runs once [Run.Start] is called.
type Run struct {
	conn     *os.File
	cutDelay time.Duration // shorter in tests
	answer   []byte        // read beyond what was looked for
	writing  sync.Mutex

	copies sync.WaitGroup
	ends   []*os.File // of pipes that are copied
	counts [2]*counter
	fed    bool // stdin is copied

	mu         sync.Mutex
	err        error // of a copy
	incomplete bool  // somebody else still held a pipe when its copy was cut
}

// Ask asks the daemon at socket for a run. With checked, the daemon must be root's or the caller's, or one that root
// has put there: see [Trusted]. All errors are of type *[Unused]. The caller calls Close.
func Ask(socket string, checked bool, request *apitypes.RunRequest) (*Run, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, unused("%v", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, unused("socket: %v", err)
	}
	// A connection to a Unix socket is there at once, or not at all: EAGAIN if too many wait for the daemon.
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		unix.Close(fd)
		absent := err == unix.ENOENT || err == unix.ECONNREFUSED
		return nil, &Unused{Reason: fmt.Sprintf("connecting to %s: %v", socket, err), Absent: absent}
	}
	if checked {
		peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			err = Trusted(socket, int(peer.Uid))
		}
		if err != nil {
			unix.Close(fd)
			return nil, unused("%v", err)
		}
	}
	r := &Run{conn: os.NewFile(uintptr(fd), socket), cutDelay: cutDelay}
	if err := r.ask(socket, body); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Run) ask(socket string, body []byte) error {
	if err := r.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return unused("%v", err)
	}
	head := "POST /v1/run HTTP/1.1\r\nHost: boxd\r\nConnection: Upgrade\r\nUpgrade: " + apitypes.RunProtocol + "\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	if err := r.write(append([]byte(head), body...), nil); err != nil {
		return unused("asking the daemon at %s: %v", socket, err)
	}
	header, err := r.readUntil("\r\n\r\n")
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return unused("the daemon at %s does not answer within %s", socket, patience)
	}
	if err != nil {
		return unused("asking the daemon at %s: %v", socket, err)
	}
	status, fields, _ := strings.Cut(header, "\r\n")
	if strings.HasPrefix(status, "HTTP/1.1 101 ") {
		if err := r.conn.SetDeadline(time.Time{}); err != nil {
			return unused("%v", err)
		}
		return nil
	}
	var p apitypes.Problem
	if text, err := r.readBody(fields); err != nil || json.Unmarshal(text, &p) != nil || p.Detail == "" {
		return unused("the daemon at %s answers %q", socket, status)
	}
	return &Unused{Reason: p.Detail, Problem: &p}
}

// Trusted refuses the socket of a daemon whose user is uid, unless that is root or the caller, or root has made
// the directory of the socket for that user. No other user may be able to put a socket there.
func Trusted(socket string, uid int) error {
	dir := path.Dir(socket)
	for owner := uid; ; dir, owner = path.Dir(dir), 0 {
		var st unix.Stat_t // a symlink can be written by all, and is refused as such
		if err := unix.Lstat(dir, &st); err != nil {
			return unused("%s: %v", dir, err)
		}
		if st.Uid != 0 && int(st.Uid) != owner && int(st.Uid) != os.Geteuid() {
			return unused("%s: %s belongs to user %d, who is neither root, nor you, nor the daemon's user %d", socket, dir, st.Uid, uid)
		}
		if st.Mode&0o022 != 0 {
			return unused("%s: others may write to %s, so anybody may have put the socket there", socket, dir)
		}
		if dir == "/" {
			return nil
		}
	}
}

// write sends data. With descriptors it is one byte.
func (r *Run) write(data []byte, fds []int) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	if len(fds) == 0 {
		_, err := r.conn.Write(data)
		return err
	}
	raw, err := r.conn.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		_, sent = unix.SendmsgN(int(fd), data, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return sent != unix.EAGAIN && sent != unix.EINTR
	})
	return errors.Join(err, sent)
}

// read reads more of the answer.
func (r *Run) read() error {
	if len(r.answer) >= maxAnswer {
		return errors.New("the answer is too long")
	}
	buf := make([]byte, 8<<10)
	n, err := r.conn.Read(buf)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		r.answer = append(r.answer, buf[:n]...)
	}
	return err
}

// readUntil returns the answer up to and without mark.
func (r *Run) readUntil(mark string) (string, error) {
	for {
		if before, after, ok := bytes.Cut(r.answer, []byte(mark)); ok {
			r.answer = after
			return string(before), nil
		}
		if err := r.read(); err != nil {
			return "", err
		}
	}
}

// readBody returns the body of an answer with these header fields, as far as it comes.
func (r *Run) readBody(fields string) ([]byte, error) {
	size := maxAnswer
	for line := range strings.SplitSeq(fields, "\r\n") {
		if name, value, _ := strings.Cut(line, ":"); strings.EqualFold(name, "Content-Length") {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil || n < 0 || n > maxAnswer {
				return nil, fmt.Errorf("Content-Length %q", value)
			}
			size = n
		}
	}
	for len(r.answer) < size {
		if err := r.read(); err != nil {
			return nil, err
		}
	}
	return r.answer[:size], nil
}

// Start has the command begin. It gets the files of stdin, stdout and stderr itself if they are of the kinds that
// engine.Command passes on, and counted is false; otherwise their data is copied. A nil stdin is /dev/null. Afterwards
// the command may run, whatever the error is.
func (r *Run) Start(stdin io.Reader, stdout, stderr io.Writer, counted bool) error {
	var fds []int
	var mine []*os.File // that the daemon gets copies of
	defer func() {
		for _, f := range mine {
			f.Close()
		}
	}()
	pipe := func(n int) (read, write *os.File, err error) {
		if read, write, err = os.Pipe(); err != nil {
			return nil, nil, err
		}
		theirs, ours := write, read
		if n == 0 {
			theirs, ours = read, write
		}
		mine, r.ends = append(mine, theirs), append(r.ends, ours)
		fds = append(fds, int(theirs.Fd()))
		// The user of the command may open it through /dev/stdin, /dev/stdout and /dev/stderr.
		return read, write, theirs.Chmod(0o666)
	}
	if stdin != nil {
		if f, ok := stdin.(*os.File); ok && fdkind.IsPassable(f, 0) {
			fds = append(fds, int(f.Fd()))
		} else {
			_, write, err := pipe(0)
			if err != nil {
				return err
			}
			r.fed = true
			go func() { // nothing waits for it: a Read cannot be interrupted
				_, _ = io.Copy(write, stdin) // it is no failure if the command does not read everything
				write.Close()
			}()
		}
	}
	one := sameFile(stdout, stderr) && !counted
	for i, w := range []io.Writer{stdout, stderr} {
		f, ok := w.(*os.File)
		switch {
		case ok && !counted && fdkind.IsPassable(f, i+1):
			fds = append(fds, int(f.Fd()))
		case i == 1 && one:
			fds = append(fds, fds[len(fds)-1])
		default:
			read, _, err := pipe(i + 1)
			if err != nil {
				return err
			}
			count := &counter{w: w}
			r.counts[i] = count
			r.copies.Go(func() {
				src := &drained.Reader{File: read}
				_, err := io.Copy(count, src)
				r.mu.Lock()
				r.err = errors.Join(r.err, err)
				r.incomplete = r.incomplete || src.Incomplete()
				r.mu.Unlock()
				read.Close() // the command gets SIGPIPE after a failure
			})
		}
	}
	return r.write([]byte{0}, fds)
}

// sameFile reports whether two writers are one file, as after "2>&1".
func sameFile(a, b io.Writer) bool {
	f, ok := a.(*os.File)
	g, also := b.(*os.File)
	return ok && also && (f == g || fdkind.AreSame(f, g))
}

// counter counts the bytes that w accepts.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// Signal sends a signal to the command.
func (r *Run) Signal(sig syscall.Signal) error { return r.say(apitypes.RunSignal{Signal: int(sig)}) }

// Cancel ends the command. Wait returns its result.
func (r *Run) Cancel() { _ = r.say(apitypes.RunSignal{Cancel: true}) } // on an error, Wait fails too

func (r *Run) say(s apitypes.RunSignal) error {
	line, err := json.Marshal(&s)
	if err != nil {
		return err
	}
	return r.write(append(line, '\n'), nil)
}

// Wait waits for the end of the command, and until the output that it wrote before has been written. An error of type *[Unused] means that
// nothing has run.
func (r *Run) Wait() (*apitypes.ExecResult, error) {
	line, err := r.readUntil("\n")
	if err != nil {
		r.cut() // a box that is about to be removed may hold the other ends
		r.copies.Wait()
		return nil, fmt.Errorf("the daemon has ended, and the command with it; how far the command got is unknown: %w", err)
	}
	late := time.AfterFunc(r.cutDelay, r.cut)
	r.copies.Wait()
	late.Stop()
	var end apitypes.RunEnd
	if err := json.Unmarshal([]byte(line), &end); err != nil {
		return nil, fmt.Errorf("answer of the daemon: %w", err)
	}
	switch {
	case end.Error != nil && !end.Started:
		return nil, &Unused{Reason: end.Error.Detail, Problem: end.Error, Final: r.fed}
	case end.Error != nil:
		return nil, errors.New(end.Error.Detail)
	case end.Result == nil:
		return nil, errors.New("answer of the daemon: no result")
	case r.err != nil:
		return nil, fmt.Errorf("copying the command's output: %w", r.err)
	}
	r.count(&end.Result.Receipt)
	return end.Result, nil
}

// cut ends the copies of output after the bytes written so far.
func (r *Run) cut() {
	for _, f := range r.ends {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // on an error, its copy has ended
	}
}

// Warning returns a line for people about a result of Wait; empty if there is nothing to say.
func (r *Run) Warning() string {
	if !r.incomplete {
		return ""
	}
	return fmt.Sprintf("boxd: output may be missing: something still held the command's stdout or stderr %s after its end", r.cutDelay)
}

// count adds what was counted here to the receipt, as an engine of this process would have.
func (r *Run) count(receipt *apitypes.Receipt) {
	for i, bytes := range []**int64{&receipt.StdoutBytes, &receipt.StderrBytes} {
		if c := r.counts[i]; c != nil && *bytes == nil {
			*bytes = &c.n
		}
	}
}

// Close ends the conversation. A command that still runs ends with it.
func (r *Run) Close() { r.conn.Close() }
