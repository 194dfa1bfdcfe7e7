package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// Bounds of a frame. MaxBody holds the largest argument vector and environment
// that execve takes (2 MiB with an 8 MiB stack, execve(2)) with room to spare.
const (
	HeaderSize = 12
	MaxBody    = 4 << 20
	MaxFDs     = 128 // at most scmMaxFD
	// maxQueuedFDs bounds descriptors that arrived before their frame was
	// complete.
	maxQueuedFDs = 2 * MaxFDs
)

// Frame is one message with the descriptors that came with it.
type Frame struct {
	Type byte
	ID   uint32
	Body []byte
	FDs  []int // owned by the receiver of the frame
	// Truncated: the frame came with descriptors that this process could not receive,
	// most likely because of RLIMIT_NOFILE. FDs is then empty.
	Truncated bool
	foreign   bool // see Distrust
}

// Close closes the descriptors of a received frame.
func (f *Frame) Close() {
	closeFDs(f.FDs, f.foreign)
	f.FDs = nil
}

func closeFDs(fds []int, foreign bool) {
	if foreign {
		linux.CloseForeign(fds)
		return
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// Files turns the descriptors into files, which the caller then owns.
func (f *Frame) Files() []*os.File {
	files := make([]*os.File, len(f.FDs))
	for i, fd := range f.FDs {
		files[i] = os.NewFile(uintptr(fd), "received")
	}
	f.FDs = nil
	return files
}

// SendTimeout is how long a peer may accept no bytes. After that it counts as dead and the
// connection ends, so that a sender never hangs because the other side was stopped or
// subverted.
const SendTimeout = 30 * time.Second

// FrameTimeout is how long a frame may take from its first byte to its last.
const FrameTimeout = 30 * time.Second

// ErrProtocol is wrapped by every error about a peer that breaks the rules.
var ErrProtocol = errors.New("protocol violation")

// Conn sends and receives frames. Send may be called from several goroutines,
// Receive from one at a time.
type Conn struct {
	sock socket

	sendMu sync.Mutex
	out    []byte // reused frame buffer

	in    []byte // received bytes, of which in[start:end] are not parsed yet
	start int    //
	end   int    //
	fds   []int  // received, not yet given to a frame

	begun     time.Time // when the wait for the rest of a frame began; zero if there is none
	limited   bool      // reads have a deadline, see limitFrame
	refuse    bool      // see RefuseFDs
	foreign   bool      // see Distrust
	truncated bool      // descriptors of the next frame that has any were lost
}

// NewConn takes ownership of sock.
func NewConn(sock *net.UnixConn) *Conn { return newConn(&polled{sock, SendTimeout}) }

// SendWithin replaces SendTimeout for this connection. Call it before the first Send. It does
// nothing to a BlockingConn.
func (c *Conn) SendWithin(patience time.Duration) {
	if s, ok := c.sock.(*polled); ok {
		s.patience = patience
	}
}

func newConn(sock socket) *Conn {
	return &Conn{sock: sock}
}

// FileConn makes a Conn from a connected stream socket; it takes ownership of f.
func FileConn(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("wrapping socket: %w", err)
	}
	sock, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("wrapping socket: %T is not a Unix socket", c)
	}
	return NewConn(sock), nil
}

// Pair returns one end of a new socket as a Conn and the other as a file for a
// child. The caller owns both.
func Pair() (*Conn, *os.File, error) {
	ours, theirs, err := linux.SocketPair()
	if err != nil {
		return nil, nil, err
	}
	conn, err := FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// RefuseFDs makes every descriptor that arrives a protocol violation. Otherwise a peer
// could send its own end of the connection with a frame that it never completes: this
// process would keep that end alive, and never notice the peer's end. RefuseFDs includes
// Distrust. Call it before the first Receive.
func (c *Conn) RefuseFDs() {
	c.refuse = true
	c.Distrust()
}

// Distrust is for a peer that may send descriptors only to make this process wait: the last
// close of one can take hours. With Distrust, nothing waits for such a close, not even for
// descriptors that were sent but never received. Call it before the first Receive.
func (c *Conn) Distrust() { c.foreign = true }

// scmMaxFD is SCM_MAX_FD of the kernel, the most that one message can carry.
const scmMaxFD = 253

// Close closes the connection; a blocked Receive returns net.ErrClosed.
func (c *Conn) Close() error {
	if s, ok := c.sock.(*polled); ok && c.foreign {
		s.empty()
	}
	return c.sock.Close()
}

func (c *Conn) abort() {
	if c.foreign {
		_ = c.Close()
	} else {
		c.sock.abort()
	}
}

// Discard closes the connection, and descriptors that were received but not returned by
// Receive. Only the goroutine that calls Receive may call it.
func (c *Conn) Discard() {
	_ = c.Close()
	c.dropFDs()
}

// Send writes one frame. The caller still owns and closes files, of which the kernel sends
// copies.
func (c *Conn) Send(typ byte, id uint32, body []byte, files ...*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	err := c.SendFDs(typ, id, body, fds...)
	runtime.KeepAlive(files)
	return err
}

// SendFDs is Send for plain descriptors.
func (c *Conn) SendFDs(typ byte, id uint32, body []byte, fds ...int) error {
	if len(body) > MaxBody || len(fds) > MaxFDs {
		return fmt.Errorf("sending frame of %d bytes and %d descriptors: %w", len(body), len(fds), ErrProtocol)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	c.out = appendHeader(c.out[:0], typ, id, len(body), len(fds))
	c.out = append(c.out, body...)
	err := c.write(c.out, rights)
	if cap(c.out) > 64<<10 {
		c.out = nil
	}
	return err
}

func appendHeader(b []byte, typ byte, id uint32, length, nfds int) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(length))
	b = append(b, typ, byte(nfds), 0, 0)
	return binary.LittleEndian.AppendUint32(b, id)
}

func (c *Conn) write(b, rights []byte) error {
	sent := 0
	for sent < len(b) {
		n, err := c.sock.send(b[sent:], rights)
		sent += max(n, 0)
		if err != nil {
			// After half a frame, the peer could not parse the next one.
			if sent > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				c.abort()
			}
			return fmt.Errorf("sending frame: %w", err)
		}
		rights = nil
	}
	return nil
}

// Receive returns the next frame; the caller owns its descriptors and its body.
// io.EOF means the peer closed between two frames.
func (c *Conn) Receive() (*Frame, error) {
	for {
		f, err := c.parse()
		if f != nil || err != nil {
			return f, err
		}
		if err := c.fill(); err != nil {
			c.dropFDs()
			return nil, err
		}
	}
}

// parse takes one complete frame out of the buffer, or returns nil.
func (c *Conn) parse() (*Frame, error) {
	b := c.in[c.start:c.end]
	if len(b) < HeaderSize {
		return nil, nil
	}
	length, nfds := int(binary.LittleEndian.Uint32(b)), int(b[5])
	if length > MaxBody || nfds > MaxFDs || b[6] != 0 || b[7] != 0 {
		c.dropFDs()
		return nil, fmt.Errorf("receiving header % x: %w", b[:HeaderSize], ErrProtocol)
	}
	if len(b) < HeaderSize+length {
		c.reserve(HeaderSize + length)
		return nil, nil
	}
	truncated := nfds > 0 && c.truncated
	if truncated {
		c.dropFDs()
		c.truncated, nfds = false, 0
	}
	if nfds > len(c.fds) {
		have := len(c.fds)
		c.dropFDs()
		return nil, fmt.Errorf("receiving frame with %d of %d descriptors: %w", have, nfds, ErrProtocol)
	}
	f := &Frame{Type: b[4], ID: binary.LittleEndian.Uint32(b[8:]), Truncated: truncated, foreign: c.foreign}
	f.Body = append([]byte(nil), b[HeaderSize:HeaderSize+length]...)
	f.FDs = append(f.FDs, c.fds[:nfds]...)
	c.fds = append(c.fds[:0], c.fds[nfds:]...)
	c.begun = time.Time{}
	c.start += HeaderSize + length
	if c.start == c.end {
		c.start, c.end = 0, 0
		if len(c.in) > 64<<10 {
			c.in = nil
		}
	}
	return f, nil
}

// reserve makes room for n bytes from start on.
func (c *Conn) reserve(n int) {
	if len(c.in)-c.start >= n {
		return
	}
	buf := c.in
	if len(buf) < n {
		buf = make([]byte, n+HeaderSize)
	}
	c.end = copy(buf, c.in[c.start:c.end])
	c.start = 0
	c.in = buf
}

// Buffers of reads, shared by all connections.
var (
	dataBuffers   = sync.Pool{New: func() any { b := make([]byte, dataSize); return &b }}
	rightsBuffers = sync.Pool{New: func() any { b := make([]byte, unix.CmsgSpace(4*scmMaxFD)); return &b }}
)

// dataSize is the size of a buffer for data. Only longer frames have another one.
const dataSize = 8 << 10

// fill reads the bytes and descriptors that have arrived.
func (c *Conn) fill() error {
	if err := c.limitFrame(); err != nil {
		return err
	}
	// A daemon has a connection for each box, and most boxes are idle: they wait without a buffer, and on little
	// stack.
	if s, ok := c.sock.(*polled); ok && c.start == c.end {
		if len(c.in) == dataSize {
			whole := c.in
			dataBuffers.Put(&whole)
		}
		c.in = nil
		if err := s.await(); err != nil {
			return err
		}
	}
	return c.receive()
}

func (c *Conn) receive() error {
	if c.in == nil {
		c.in = *dataBuffers.Get().(*[]byte)
	} else if c.end == len(c.in) {
		c.reserve(c.end - c.start + HeaderSize + 1)
	}
	buf := rightsBuffers.Get().(*[]byte)
	defer rightsBuffers.Put(buf)
	oob := *buf // recvmsg(2) itself closes descriptors that do not fit, and waits for that
	if !c.foreign {
		oob = oob[:unix.CmsgSpace(4*MaxFDs)]
	}
	n, oobn, flags, _, err := c.sock.ReadMsgUnix(c.in[c.end:], oob)
	if oobn > 0 {
		fds, err := parseRights(oob[:oobn])
		if c.fds = append(c.fds, fds...); err != nil {
			return err
		}
	}
	if errors.Is(err, io.EOF) {
		if c.end > c.start {
			return io.ErrUnexpectedEOF
		}
		return io.EOF
	}
	if err != nil {
		return err
	}
	if c.refuse && (len(c.fds) > 0 || flags&unix.MSG_CTRUNC != 0) {
		return fmt.Errorf("receiving descriptors: there should be none: %w", ErrProtocol)
	}
	if len(c.fds) > maxQueuedFDs {
		return fmt.Errorf("receiving descriptors: too many at once: %w", ErrProtocol)
	}
	if flags&unix.MSG_CTRUNC != 0 {
		// There are more descriptors than a frame can have or than this process may open.
		// The kernel has closed the rest (unix(7)). The connection itself is intact, and
		// those in the queue belong to the same frame: a read ends after descriptors.
		c.dropFDs()
		c.truncated = true
	}
	c.end += n
	return nil
}

// limitFrame bounds the wait for the rest of a frame, and lifts the bound between
// two frames.
func (c *Conn) limitFrame() error {
	pending := c.end > c.start
	switch {
	case !pending && !c.limited:
		return nil
	case !pending:
		c.limited = false
		return c.sock.limitRead(time.Time{})
	case c.begun.IsZero():
		c.begun = time.Now()
	}
	c.limited = true
	return c.sock.limitRead(c.begun.Add(FrameTimeout))
}

func parseRights(oob []byte) (fds []int, err error) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("receiving control message: %w: %w", ErrProtocol, err)
	}
	for i := range msgs {
		if some, err := syscall.ParseUnixRights(&msgs[i]); err == nil { // credentials and the like are ignored
			fds = append(fds, some...)
		}
	}
	return fds, nil
}

func (c *Conn) dropFDs() {
	closeFDs(c.fds, c.foreign)
	c.fds = nil
}
