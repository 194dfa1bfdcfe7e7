package native

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// output is one output of a managed process: a ring that its agent fills. It reads the ring
// with pread(2) and never maps it: a mapped memfd raises SIGBUS if its owner punches holes
// into it or has no memory left for it.
type output struct {
	link   *managedLink
	number uint32
	stream uint32
	file   *os.File
	size   int64

	mu       sync.Mutex
	floor    int64
	head     int64
	final    bool          // floor and head do not change any more
	err      error         // why nothing can be read any more
	holders  int           // readers that close waits for, if the stream has ended
	closing  bool          // the last holder closes the file
	watching int64         // the offset that the agent watches, or -1
	changed  chan struct{} // closed at the next change

	released int64       // the offset up to which the reader has released the output
	sent     int64       // the released offset that the agent knows
	told     time.Time   // when it was sent
	telling  *time.Timer // sends a later offset after a delay; nil before the first
	pending  bool        // telling is set
	closed   bool        // telling must not be set again
	tellers  sync.WaitGroup
}

// ringTries is how often reading the bounds of a ring may collide with the agent's writing.
const ringTries = 1000

func newOutput(l *managedLink, m *wire.ManagedMsg, stream int, file *os.File) *output {
	return &output{
		link: l, number: m.Number, stream: uint32(stream), file: file, size: int64(m.RingOf(uint32(stream))),
		watching: -1, changed: make(chan struct{}),
		released: int64(m.Released[stream]), sent: int64(m.Released[stream]),
	}
}

// checkRing verifies that a file from the agent is sealed memory of the right size, which
// no process can truncate.
func checkRing(file *os.File, size int64) error {
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	// Files on disk and special files have no seals: fcntl(2).
	has, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || has&seals != seals || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != wire.RingHeader+size && st.Size != wire.RingHeader+size+wire.RingMarksSize {
		return fmt.Errorf("ring of mode %#o, size %d, seals %#x: %w", st.Mode, st.Size, has, wire.ErrProtocol)
	}
	return nil
}

// Bounds implements engine.Output.
func (o *output) Bounds() (oldest, end int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refreshLocked()
	return o.floor, o.head
}

// refreshLocked reads the bounds of the ring. If the agent has written invalid bounds, its
// connection ends, and the stream ends at the last valid ones.
func (o *output) refreshLocked() {
	if o.final {
		return
	}
	floor, head, err := o.readBounds()
	if err != nil {
		o.final = true
		o.changedLocked()
		o.link.conn.Close()
		return
	}
	o.floor, o.head = int64(floor), int64(head)
}

// readBounds reads the bounds, again if the agent was just writing them.
func (o *output) readBounds() (floor, head uint64, err error) {
	var words [wire.RingRecords]byte
	err = wire.ErrProtocol
	for try := 0; err != nil && try < ringTries; try++ {
		if _, err := o.file.ReadAt(words[:], 0); err != nil {
			return 0, 0, err
		}
		floor, head, err = wire.RingBounds(words[:])
	}
	if err == nil {
		err = wire.CheckRing(uint64(o.size), uint64(o.floor), uint64(o.head), floor, head)
	}
	return floor, head, err
}

func (o *output) changedLocked() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// grown handles the agent's message that the stream has reached, or has ended at, head.
func (o *output) grown(head uint64, ended bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refreshLocked()
	if uint64(o.head) < head || ended && uint64(o.head) != head {
		return fmt.Errorf("output that is said to reach %d reaches %d: %w", head, o.head, wire.ErrProtocol)
	}
	o.final = o.final || ended
	o.watching = -1
	o.changedLocked()
	return nil
}

// stop ends the stream after the bytes that are in the ring now. With an error, reading
// fails from now on.
func (o *output) stop(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refreshLocked()
	o.final, o.err = true, err
	o.changedLocked()
}

// ReadAt implements engine.Output.
func (o *output) ReadAt(ctx context.Context, p []byte, off int64) (n int, at int64, err error) {
	if off < 0 {
		return 0, off, fmt.Errorf("reading output at offset %d: %w", off, os.ErrInvalid)
	}
	for {
		n, at, changed, err := o.tryRead(p, off)
		if n > 0 || err != nil || len(p) == 0 {
			return n, at, err
		}
		if changed == nil && ctx.Err() == nil {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, off, context.Cause(ctx)
		}
	}
}

// tryRead reads without waiting. If there is nothing to read, it returns a channel that is
// closed when there may be something. The channel is nil if all bytes were overwritten while
// they were read; a hostile agent can cause that as often as it likes.
func (o *output) tryRead(p []byte, off int64) (n int, at int64, changed <-chan struct{}, err error) {
	o.mu.Lock()
	o.refreshLocked()
	head, err := o.head, o.err
	if at = max(off, o.floor); head <= at || err != nil {
		changed, watch, err := o.waitLocked()
		o.mu.Unlock()
		o.tell(watch)
		return 0, off, changed, err
	}
	o.mu.Unlock()
	if n, err = o.copyOut(p[:min(int64(len(p)), head-at)], at); err != nil || n == 0 {
		return 0, at, nil, err
	}
	gone := o.overtaken(at)
	if gone >= int64(n) {
		return 0, at, nil, nil
	}
	return copy(p, p[gone:n]), at + gone, nil, nil
}

// waitLocked returns a channel to wait for and, unless the agent already watches for it, the
// frame to send once o is unlocked. It returns an error if there will be no more bytes.
func (o *output) waitLocked() (<-chan struct{}, *wire.WatchMsg, error) {
	switch {
	case o.err != nil:
		return nil, nil, o.err
	case o.final:
		return nil, nil, io.EOF
	case o.watching == o.head:
		return o.changed, nil, nil
	}
	o.watching = o.head
	return o.changed, &wire.WatchMsg{Stream: o.stream, Offset: uint64(o.head)}, nil
}

// tell sends a Watch. The caller must not hold o's lock, because the reader of the agent's
// frames takes it, and an agent whose frames are not read may not read either. If a Watch
// overtakes another one, it is answered at once and sent again.
func (o *output) tell(m *wire.WatchMsg) {
	if m != nil {
		o.link.tell(wire.TypeWatch, o.number, m.Marshal())
	}
}

// copyOut reads the bytes at offset at from the ring.
func (o *output) copyOut(p []byte, at int64) (int, error) {
	start := at % o.size
	first := p[:min(int64(len(p)), o.size-start)]
	n, err := o.file.ReadAt(first, wire.RingHeader+start)
	if err != nil || n == len(p) {
		return n, err
	}
	m, err := o.file.ReadAt(p[n:], wire.RingHeader)
	return n + m, err
}

// overtaken returns how many bytes from offset at on may have been overwritten.
func (o *output) overtaken(at int64) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refreshLocked()
	return max(o.floor-at, 0)
}

// close closes the ring. The rest of an ended stream stays readable until the last holder
// releases it.
func (o *output) close() {
	o.stopTelling()
	o.mu.Lock()
	o.closing = true
	held := o.holders > 0 && o.final && o.err == nil
	o.mu.Unlock()
	if !held {
		o.closeFile()
	}
}

func (o *output) closeFile() {
	o.stop(os.ErrClosed)
	o.file.Close()
}

// hold keeps close from closing the file of an ended stream until unhold.
func (o *output) hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holders++
}

func (o *output) unhold() {
	o.mu.Lock()
	o.holders--
	last := o.holders == 0 && o.closing && o.err == nil
	o.mu.Unlock()
	if last {
		o.closeFile()
	}
}
