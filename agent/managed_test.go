package agent

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// peer is the client's end of a connection. The test plays the client.
type peer struct {
	*wire.Conn
	t *testing.T
}

func newTestClient(t *testing.T) (*client, peer) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(wire.BlockingConn(fds[0]))
	conn, err := wire.FileConn(os.NewFile(uintptr(fds[1]), "peer"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		c.leave()
		c.conn.Close()
	})
	return c, peer{conn, t}
}

// unmarshaler is a message.
type unmarshaler interface{ Unmarshal([]byte) error }

func (p peer) next(typ byte, m unmarshaler) {
	p.t.Helper()
	f, err := p.Receive()
	if err != nil || f.Type != typ {
		p.t.Fatalf("%+v, %v; want a frame of type %d", f, err, typ)
	}
	if err := m.Unmarshal(f.Body); err != nil {
		p.t.Fatal(err)
	}
}

// newTestOutput returns an output, and the other end, to which the test writes.
func newTestOutput(t *testing.T, size uint64, drop bool) (*output, *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	w := os.NewFile(uintptr(fds[1]), "writer")
	capacity := resize(fds[0], int(size/2))
	src, err := nonblocking(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	o, err := newOutput(wire.Stdout, &wire.LaunchMsg{Ring: size, DropOldest: drop}, src, capacity)
	if err != nil {
		t.Fatal(err)
	}
	go o.pump()
	t.Cleanup(func() {
		w.Close()
		o.force()
		<-o.done
		src.Close()
		o.ring.close()
	})
	return o, w
}

// bounds reads what clients see of a ring.
func (o *output) bounds(t *testing.T) (floor, head uint64) {
	t.Helper()
	b := make([]byte, wire.RingRecords)
	if _, err := unix.Pread(o.ring.fd, b, 0); err != nil {
		t.Fatal(err)
	}
	floor, head, err := wire.RingBounds(b)
	if err != nil {
		t.Fatal(err)
	}
	return floor, head
}

func (o *output) content(t *testing.T, from, to uint64) string {
	t.Helper()
	b := make([]byte, o.ring.size)
	if _, err := unix.Pread(o.ring.fd, b, wire.RingHeader); err != nil {
		t.Fatal(err)
	}
	at := from % o.ring.size
	return string(append(b[at:], b[:at]...)[:to-from])
}

// A full ring stops the reading until a Release, and nothing that was not released is
// overwritten.
func TestOutputWaits(t *testing.T) {
	const size = 16 << 10
	o, w := newTestOutput(t, size, false)
	c, p := newTestClient(t)
	written := make(chan struct{})
	text := strings.Repeat("0123456789abcdef", 3*size/16)
	go func() {
		defer close(written)
		_, _ = w.WriteString(text)
		w.Close()
	}()
	var at uint64
	for at < uint64(len(text)) {
		o.watch(c, at)
		var m wire.HeadMsg
		p.next(wire.TypeHead, &m)
		floor, head := o.bounds(t)
		if m.Head <= at || m.Head > head || floor > at || head-at > size {
			t.Fatalf("head %d after %d; ring %d to %d", m.Head, at, floor, head)
		}
		if got := o.content(t, at, m.Head); got != text[at:m.Head] {
			t.Fatalf("bytes %d to %d are wrong", at, m.Head)
		}
		at = m.Head
		o.release(at)
	}
	<-written
	<-o.done
	o.watch(c, at)
	var m wire.HeadMsg
	if p.next(wire.TypeHead, &m); !m.Ended || m.Head != uint64(len(text)) {
		t.Errorf("%+v", m)
	}
}

// Output that was never released stays, however late its reader comes.
func TestOutputKeeps(t *testing.T) {
	const size = 8 << 10
	o, w := newTestOutput(t, size, false)
	o.release(1 << 40) // beyond what there is: counts for what there is
	if _, err := w.WriteString(strings.Repeat("x", size/2)); err != nil {
		t.Fatal(err)
	}
	c, p := newTestClient(t)
	o.watch(c, size/2-1)
	p.next(wire.TypeHead, new(wire.HeadMsg))
	if _, err := w.WriteString(strings.Repeat("y", size/2)); err != nil {
		t.Fatal(err)
	}
	// The rest of the output stays in the pipe until the writer is gone. Then there is room for it.
	w.Close()
	if !o.hungUp() {
		t.Error("the pipe has no writer and is not hung up")
	}
	o.cut()
	<-o.done
	if floor, head := o.bounds(t); floor != 0 || head != size {
		t.Errorf("ring %d to %d", floor, head)
	}
	if got := o.content(t, 0, size); got != strings.Repeat("x", size/2)+strings.Repeat("y", size/2) {
		t.Error("the content is wrong")
	}
}

func TestOutputDropsOldest(t *testing.T) {
	const size = 8 << 10
	o, w := newTestOutput(t, size, true)
	text := strings.Repeat("0123456789abcdef", 5*size/16) + "the end"
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	w.Close()
	<-o.done
	floor, head := o.bounds(t)
	if head != uint64(len(text)) || head-floor > size || head-floor < size/2 {
		t.Fatalf("ring %d to %d", floor, head)
	}
	if got := o.content(t, floor, head); got != text[floor:] {
		t.Error("the content is wrong")
	}
}

// A cut ends a stream that another process still holds, after the bytes written before it.
func TestOutputCut(t *testing.T) {
	o, w := newTestOutput(t, 8<<10, false)
	if _, err := w.WriteString("before"); err != nil {
		t.Fatal(err)
	}
	if o.hungUp() {
		t.Error("the pipe has a writer")
	}
	o.cut()
	<-o.done
	if _, head := o.bounds(t); head != 6 {
		t.Errorf("head %d", head)
	}
}

// A new watch replaces the old one, and a client that is gone does no harm.
func TestOutputWatch(t *testing.T) {
	o, w := newTestOutput(t, 8<<10, false)
	gone, _ := newTestClient(t)
	gone.leave()
	c, p := newTestClient(t)
	o.watch(gone, 0)
	o.watch(c, 3)
	if _, err := w.WriteString("abcd"); err != nil {
		t.Fatal(err)
	}
	var m wire.HeadMsg
	if p.next(wire.TypeHead, &m); m.Head != 4 || m.Ended {
		t.Errorf("%+v", m)
	}
}

// newTestInput returns an input whose pipe has room for a page.
func newTestInput(t *testing.T) (*input, *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	resize(fds[0], os.Getpagesize())
	r := os.NewFile(uintptr(fds[0]), "reader")
	file, err := nonblocking(fds[1])
	if err != nil {
		t.Fatal(err)
	}
	in, err := newInput(file, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.abandon()
		r.Close()
	})
	return in, r
}

// Input that is sent twice arrives once, complete and in order, however the process reads it.
// Its end comes after it.
func TestInputOnce(t *testing.T) {
	in, r := newTestInput(t)
	c, p := newTestClient(t)
	var accepted struct {
		sync.Mutex
		wire.AcceptedMsg
	}
	told := make(chan struct{}, 1)
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			f, err := p.Receive()
			if err != nil {
				return
			}
			var m wire.AcceptedMsg
			if err := m.Unmarshal(f.Body); err != nil {
				t.Error(err)
			}
			accepted.Lock()
			accepted.Offset, accepted.State = max(accepted.Offset, m.Offset), max(accepted.State, m.State)
			accepted.Unlock()
			select {
			case told <- struct{}{}:
			default:
			}
		}
	})
	state := func() wire.AcceptedMsg {
		accepted.Lock()
		defer accepted.Unlock()
		return accepted.AcceptedMsg
	}
	var got bytes.Buffer
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = got.ReadFrom(r) })
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	for sent := 0; sent < len(data); {
		for uint64(sent)-state().Offset > wire.InputWindow-(10<<10) {
			<-told
		}
		n := min(10<<10, len(data)-sent)
		again := max(0, sent-5000)
		if !in.add(c, uint64(again), data[again:sent+n]) {
			t.Fatal("refused")
		}
		sent += n
	}
	if !in.end(c, uint64(len(data))) {
		t.Error("the end was refused")
	}
	reading.Wait()
	if !bytes.Equal(got.Bytes(), data) {
		t.Errorf("%d bytes of %d", got.Len(), len(data))
	}
	for state().State != wire.InputClosed {
		<-told
	}
	p.Close()
	listening.Wait()
}

func TestInputRules(t *testing.T) {
	in, r := newTestInput(t)
	c, _ := newTestClient(t)
	if in.add(c, 1, []byte("x")) {
		t.Error("a gap was taken")
	}
	if in.end(c, 1) {
		t.Error("an end behind a gap was taken")
	}
	window := make([]byte, wire.InputWindow)
	if !in.add(c, 0, window) {
		t.Error("a window was refused")
	}
	// The pipe took a page of it, which makes room for another one.
	page := uint64(os.Getpagesize())
	if in.add(c, wire.InputWindow, make([]byte, page+1)) {
		t.Error("more than a window was taken")
	}
	if !in.end(c, wire.InputWindow) || in.add(c, wire.InputWindow, []byte("x")) {
		t.Error("something was taken behind the end")
	}
	r.Close() // the process does not read any more
	for deadline := time.Now().Add(testutil.Patience()); ; time.Sleep(time.Millisecond) {
		var m wire.ManagedMsg
		if in.progress(&m); m.Input == wire.InputBroken {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%+v", m)
		}
	}
	if !in.add(c, 1<<40, []byte("x")) {
		t.Error("input for nobody breaks a rule")
	}
}

// A table is bounded, and accepts each key only once.
func TestTable(t *testing.T) {
	tab := new(table)
	launch := func(key string, ring uint64) (*managed, *wire.FailedMsg) {
		p, child, err := newManaged(&wire.LaunchMsg{Key: key, Ring: ring}, nil)
		if err != nil {
			t.Fatal(err)
		}
		closeFDs(child[:])
		failed := tab.add(p)
		if failed != nil {
			p.close()
		}
		return p, failed
	}
	var all []*managed
	for i := range wire.MaxManaged {
		p, failed := launch(strings.Repeat("a", i+1), wire.MinRing)
		if failed != nil {
			t.Fatal(failed)
		}
		all = append(all, p)
	}
	if _, failed := launch("b", wire.MinRing); failed == nil || failed.Step != wire.StepTable {
		t.Errorf("%v", failed)
	}
	if _, failed := launch("a", wire.MinRing); failed == nil || failed.Step != wire.StepKey {
		t.Errorf("%v", failed)
	}
	if failed := tab.forget(all[0].number); failed == nil || failed.Errno != unix.EBUSY {
		t.Errorf("forgetting a running process: %v", failed)
	}
	c, _ := newTestClient(t)
	for _, p := range all {
		tab.born(c, p, 2)
		tab.ended(p, 0, 0)
		if failed := tab.forget(p.number); failed != nil {
			t.Error(failed)
		}
	}
	if failed := tab.forget(all[0].number); failed == nil || failed.Errno != unix.ESRCH {
		t.Errorf("forgetting twice: %v", failed)
	}
	if _, failed := launch("a", wire.MinRing); failed == nil || failed.Step != wire.StepKey {
		t.Errorf("a key that was forgotten: %v", failed)
	}
	p, failed := launch("large", wire.MaxRing) // twice that, for two streams
	if failed != nil {
		t.Error(failed)
	}
	q, failed := launch("half", (wire.MaxRings-2*wire.MaxRing)/2)
	if failed != nil {
		t.Error(failed)
	}
	if _, failed := launch("larger", wire.MinRing); failed == nil || failed.Step != wire.StepRing {
		t.Errorf("%v", failed)
	}
	tab.remove(p)
	tab.remove(q)
	p.close()
	q.close()
}

// A frame of a client may be read after the next client has come. It is carried out, but the
// later client stays the one to notify.
func TestLateFrames(t *testing.T) {
	old, _ := newTestClient(t)
	c, p := newTestClient(t)
	o, w := newTestOutput(t, 8<<10, false)
	o.watch(c, 0)
	o.watch(old, 3)
	if _, err := w.WriteString("a"); err != nil {
		t.Fatal(err)
	}
	p.next(wire.TypeHead, new(wire.HeadMsg))

	in, _ := newTestInput(t)
	if !in.add(c, 0, []byte("abc")) || !in.add(old, 0, []byte("abcdef")) {
		t.Fatal("refused")
	}
	for _, offset := range []uint64{3, 6} {
		var m wire.AcceptedMsg
		if p.next(wire.TypeAccepted, &m); m.Offset != offset {
			t.Errorf("%+v, want %d", m, offset)
		}
	}
	tab := &table{client: c}
	q, child, err := newManaged(&wire.LaunchMsg{Key: "k", Ring: wire.MinRing}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer q.close()
	closeFDs(child[:])
	if tab.born(old, q, 2); tab.client != c {
		t.Error("a late launch takes away who is told of ends")
	}
}
