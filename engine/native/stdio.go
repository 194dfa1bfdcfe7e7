package native

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/boxd/boxd/internal/drained"
	"github.com/boxd/boxd/internal/fdkind"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// stdio holds both sides of a command's descriptors 0, 1 and 2.
type stdio struct {
	null   *os.File    // the engine's /dev/null
	child  [3]*os.File // the command's ends, of which the agent gets copies
	owned  []*os.File  // child ends that are closed once the command has started
	ours   []*os.File  // our ends, closed when the command has ended
	copies sync.WaitGroup

	stdout, stderr *stream // nil if the bytes do not pass through boxd

	mu  sync.Mutex
	err error // first failure of a caller's writer
}

// stream is one direction of output that boxd carries.
type stream struct {
	dst     io.Writer
	limit   int64 // in bytes, 0 for none
	bytes   atomic.Int64
	onLimit func() // called once when the limit is exceeded
}

// input sets up descriptor 0.
func (s *stdio) input(r io.Reader) error {
	if r == nil {
		s.child[0] = s.null
		return nil
	}
	if f, ok := r.(*os.File); ok && fdkind.IsPassable(f, 0) {
		s.child[0] = f
		return nil
	}
	read, write, err := pipe(false)
	if err != nil {
		return fmt.Errorf("making stdin: %w", err)
	}
	s.child[0] = read
	s.owned = append(s.owned, read)
	s.ours = append(s.ours, write)
	s.feed(write, r, nil)
	return nil
}

// feed copies a caller's reader to the command, then calls end, or closes dst.
// Nothing waits for it, because the caller's Read cannot be interrupted. It ends with its
// next write after the end of the command, which fails.
func (s *stdio) feed(dst *os.File, r io.Reader, end func()) {
	go func() {
		_, _ = io.Copy(dst, r) // it is no failure if the command does not read everything
		if end != nil {
			end()
			return
		}
		dst.Close()
	}()
}

// output sets up descriptor n (1 or 2) for a caller's writer. It returns nil if the bytes do
// not pass through boxd.
func (s *stdio) output(n int, w io.Writer, limit int64, onLimit func()) (*stream, error) {
	if f, ok := w.(*os.File); ok && limit == 0 && fdkind.IsPassable(f, n) {
		s.child[n] = f
		return nil, nil
	}
	if w == nil && limit == 0 {
		s.child[n] = s.null
		return nil, nil
	}
	read, write, err := pipe(true)
	if err != nil {
		return nil, fmt.Errorf("making output pipe: %w", err)
	}
	s.child[n] = write
	s.owned = append(s.owned, write)
	s.ours = append(s.ours, read)
	if w == nil {
		w = io.Discard
	}
	st := &stream{dst: w, limit: limit, onLimit: onLimit}
	s.carry(st, read)
	return st, nil
}

// carry copies the command's output to the caller until its end or the limit. After the limit
// it continues to read and discards the bytes, so that a full pipe does not block the command
// before it is killed.
func (s *stdio) carry(st *stream, src *os.File) {
	s.copies.Go(func() {
		if err := st.copy(src); err != nil {
			s.mu.Lock()
			s.err = errors.Join(s.err, err)
			s.mu.Unlock()
			src.Close() // the command gets SIGPIPE, as after any reader has closed its end
		}
	})
}

func (st *stream) copy(file *os.File) error {
	src := &drained.Reader{File: file, TTYBuffer: linux.TTYBuffer}
	if st.limit == 0 {
		n, err := io.Copy(st.dst, src)
		st.bytes.Add(n)
		return copyError(err)
	}
	n, err := drained.Copy(st.dst, io.LimitReader(src, st.limit))
	st.bytes.Add(n)
	if err != nil || n < st.limit {
		return copyError(err)
	}
	var one [1]byte
	if _, err := io.ReadFull(src, one[:]); err != nil {
		return nil // output of exactly limit bytes is allowed
	}
	st.onLimit()
	_, err = io.Copy(io.Discard, src)
	return copyError(err)
}

// copyError drops errors that are the normal end of a stream: EIO from a terminal that no
// process has open any more, and a read that our own close ended.
func copyError(err error) error {
	if errors.Is(err, syscall.EIO) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// cut ends the streams after the bytes written so far. They would end by themselves if the
// command held the only other end; but background processes that are kept may hold it, and
// so may a hostile agent, which has seen it.
func (s *stdio) cut() {
	for _, f := range s.ours {
		_ = f.SetReadDeadline(time.Unix(1, 0))
	}
}

// closeChild closes the command's ends once it has its own.
func (s *stdio) closeChild() {
	for _, f := range s.owned {
		f.Close()
	}
	s.owned = nil
}

// close ends all copies and closes our ends.
func (s *stdio) close() {
	s.closeChild()
	for _, f := range s.ours {
		f.Close()
	}
}

// pipe creates a pipe, of which the command gets the blocking end. The pipe belongs to this
// process's user, who may be unable to change its owner to the command's user. So its mode
// lets every user open it through /dev/stdin, /dev/stdout and /dev/stderr.
func pipe(childWrites bool) (read, write *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	ours := fds[1]
	if childWrites {
		ours = fds[0]
	}
	err = errors.Join(unix.SetNonblock(ours, true), unix.Fchmod(ours, 0o666))
	read, write = os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe")
	if err != nil {
		read.Close()
		write.Close()
		return nil, nil, err
	}
	return read, write, nil
}
