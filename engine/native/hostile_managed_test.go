package native

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// withManagedImpostor is withImpostor in which the test also plays the agent on the second
// connection, which is for managed processes.
func withManagedImpostor(t *testing.T) (*box, *impostor) {
	t.Helper()
	b, first := withImpostor(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	client, err := wire.FileConn(os.NewFile(uintptr(fds[0]), "client"))
	if err != nil {
		t.Fatal(err)
	}
	sock := os.NewFile(uintptr(fds[1]), "impostor")
	conn, err := wire.FileConn(dup(t, sock))
	if err != nil {
		t.Fatal(err)
	}
	b.managed = newManagedLink(b, client)
	i := &impostor{t: t, sock: sock, conn: conn}
	t.Cleanup(func() {
		i.hangUp()
		i.acts.Wait()
		first.conn.Close()
	})
	return b, i
}

// testRing is an output ring as an agent would make it.
type testRing struct {
	*os.File
	t *testing.T
}

const ringSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func newTestRing(t *testing.T, size int64, seals int) testRing {
	t.Helper()
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	r := testRing{os.NewFile(uintptr(fd), "ring"), t}
	t.Cleanup(func() { r.Close() })
	if err := r.Truncate(wire.RingHeader + size); err != nil {
		t.Fatal(err)
	}
	r.set(0, 0)
	if _, err := unix.FcntlInt(r.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return r
}

// set publishes the bytes from floor to head.
func (r testRing) set(floor, head uint64) {
	var b []byte
	for range 2 {
		b = binary.LittleEndian.AppendUint64(b, floor)
		b = binary.LittleEndian.AppendUint64(b, head)
		b = binary.LittleEndian.AppendUint64(b, wire.RingCheck(floor, head))
		b = binary.LittleEndian.AppendUint64(b, 0)
	}
	if _, err := r.WriteAt(b, 0); err != nil {
		r.t.Error(err)
	}
}

// marshaler is a message.
type marshaler interface{ Marshal() []byte }

func frame(typ byte, id uint32, m marshaler, files ...*os.File) wire.Frame {
	f := wire.Frame{Type: typ, ID: id, Body: m.Marshal()}
	for _, file := range files {
		f.FDs = append(f.FDs, int(file.Fd()))
	}
	return f
}

// describe answers the launch of key "k" as process 7.
func describe(change func(m *wire.ManagedMsg)) *wire.ManagedMsg {
	m := &wire.ManagedMsg{Number: 7, Key: "k", PID: 3, Ring: wire.MinRing}
	if change != nil {
		change(m)
	}
	return m
}

// TestHostileAgentLaunch: the client checks the rings that an agent sends before it uses
// them. Every lie ends the box.
func TestHostileAgentLaunch(t *testing.T) {
	testutil.Long(t)
	ring := func(t *testing.T) *os.File { return newTestRing(t, wire.MinRing, ringSeals).File }
	same := func(f *os.File) []*os.File { return []*os.File{f, f} }
	for name, c := range map[string]struct {
		change func(m *wire.ManagedMsg)
		files  func(t *testing.T) []*os.File
	}{
		"no rings":    {nil, func(t *testing.T) []*os.File { return nil }},
		"one ring":    {nil, func(t *testing.T) []*os.File { return same(ring(t))[:1] }},
		"three rings": {nil, func(t *testing.T) []*os.File { return append(same(ring(t)), ring(t)) }},
		"not sealed":  {nil, func(t *testing.T) []*os.File { return same(newTestRing(t, wire.MinRing, 0).File) }},
		"may shrink": {nil, func(t *testing.T) []*os.File {
			return same(newTestRing(t, wire.MinRing, unix.F_SEAL_GROW|unix.F_SEAL_SEAL).File)
		}},
		"too short":     {nil, func(t *testing.T) []*os.File { return same(newTestRing(t, wire.MinRing-1, ringSeals).File) }},
		"too long":      {nil, func(t *testing.T) []*os.File { return same(newTestRing(t, 2*wire.MinRing, ringSeals).File) }},
		"another ring":  {func(m *wire.ManagedMsg) { m.Ring *= 2 }, func(t *testing.T) []*os.File { return same(newTestRing(t, 2*wire.MinRing, ringSeals).File) }},
		"another key":   {func(m *wire.ManagedMsg) { m.Key = "l" }, func(t *testing.T) []*os.File { return same(ring(t)) }},
		"a terminal":    {func(m *wire.ManagedMsg) { m.TTY = true }, func(t *testing.T) []*os.File { return same(ring(t))[:1] }},
		"ended already": {func(m *wire.ManagedMsg) { m.Ended = true }, func(t *testing.T) []*os.File { return same(ring(t)) }},
		"released at the start": {func(m *wire.ManagedMsg) { m.Released[1] = 1 }, func(t *testing.T) []*os.File {
			r := newTestRing(t, wire.MinRing, ringSeals)
			r.set(0, 5)
			return same(r.File)
		}},
		"queue backward": {func(m *wire.ManagedMsg) { m.Accepted = 5 }, func(t *testing.T) []*os.File { return same(ring(t)) }},
		"a pipe": {nil, func(t *testing.T) []*os.File {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close(); w.Close() })
			return same(r)
		}},
		"a file on disk": {nil, func(t *testing.T) []*os.File {
			f, err := os.CreateTemp(t.TempDir(), "ring")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			if err := f.Truncate(wire.RingHeader + wire.MinRing); err != nil {
				t.Fatal(err)
			}
			return same(f)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b, i := withManagedImpostor(t)
			files := c.files(t)
			i.acts.Go(func() {
				f, err := i.conn.Receive()
				if err != nil {
					return
				}
				f.Close()
				i.say(frame(wire.TypeManaged, f.ID, describe(c.change), files...))
			})
			within(t, "launching", func() {
				_, err := b.Launch(t.Context(), engine.Managed{Key: "k", Args: []string{"x"}, History: engine.MinHistory})
				if !errors.Is(err, engine.ErrBoxLost) || !errors.Is(err, engine.ErrMayHaveRun) {
					t.Errorf("Launch: %v, want ErrBoxLost and ErrMayHaveRun", err)
				}
				<-b.Done()
				i.acts.Wait() // before the rings are closed
			})
		})
	}
}

// TestHostileAgentManaged: whatever an agent reports about a running process, the process
// ends with a verdict, and readers get the valid output and an end.
func TestHostileAgentManaged(t *testing.T) {
	testutil.Long(t)
	ended := func(status uint32, out uint64) *wire.EndedMsg {
		return &wire.EndedMsg{Status: status, Heads: [2]uint64{out, 0}}
	}
	const id, anyOutput = 7, -1
	for name, c := range map[string]struct {
		says    func(i *impostor, out testRing)
		verdict engine.Verdict
		code    int
		output  int
	}{
		"the truth": {func(i *impostor, out testRing) {
			out.set(0, 5)
			i.say(frame(wire.TypeHead, id, &wire.HeadMsg{Head: 5}), frame(wire.TypeEnded, id, ended(3<<8, 5)))
		}, engine.Exited, 3, 5},
		"two ends": {func(i *impostor, out testRing) {
			i.say(frame(wire.TypeEnded, id, ended(3<<8, 0)), frame(wire.TypeEnded, id, ended(0, 0)))
		}, engine.Exited, 3, 0},
		"a status that is none": {func(i *impostor, out testRing) {
			i.say(frame(wire.TypeEnded, id, ended(0xffffffff, 0)))
		}, engine.BoxLost, -1, 0},
		"other processes": {func(i *impostor, out testRing) {
			i.say(frame(wire.TypeEnded, 8, ended(0, 0)), frame(wire.TypeHead, 0, &wire.HeadMsg{Head: 9}), frame(wire.TypeEnded, id, ended(4<<8, 0)))
		}, engine.Exited, 4, 0},
		"an end before the last byte": {func(i *impostor, out testRing) {
			out.set(0, 5)
			i.say(frame(wire.TypeEnded, id, ended(0, 3)))
		}, engine.BoxLost, -1, 5},
		"an end behind the last byte": {func(i *impostor, out testRing) {
			out.set(0, 5)
			i.say(frame(wire.TypeEnded, id, ended(0, 9)))
		}, engine.BoxLost, -1, 5},
		"a head that is not there": {func(i *impostor, out testRing) {
			i.say(frame(wire.TypeHead, id, &wire.HeadMsg{Head: 5}))
		}, engine.BoxLost, -1, 0},
		"bounds that go back": {func(i *impostor, out testRing) {
			out.set(0, 5)
			i.say(frame(wire.TypeHead, id, &wire.HeadMsg{Head: 5}))
			i.watched()
			out.set(0, 4)
			i.say(frame(wire.TypeHead, id, &wire.HeadMsg{Head: 4}))
		}, engine.BoxLost, -1, 5},
		"more than a ring": {func(i *impostor, out testRing) {
			out.set(0, wire.MinRing+1)
			i.say(frame(wire.TypeHead, id, &wire.HeadMsg{Head: wire.MinRing + 1}))
		}, engine.BoxLost, -1, 0},
		"bounds that are never whole": {func(i *impostor, out testRing) {
			_, _ = out.WriteAt(make([]byte, wire.RingRecords), 0)
			i.say(frame(wire.TypeHead, id, &wire.HeadMsg{Head: 0}))
		}, engine.BoxLost, -1, 0},
		"an early end of one stream": {func(i *impostor, out testRing) {
			out.set(0, 5)
			i.say(frame(wire.TypeHead, id, &wire.HeadMsg{Head: 5, Ended: true}), frame(wire.TypeEnded, id, ended(0, 5)))
		}, engine.Exited, 0, 5},
		"more after the end of a stream": {func(i *impostor, out testRing) {
			out.set(0, 5)
			i.say(frame(wire.TypeHead, id, &wire.HeadMsg{Head: 5, Ended: true}))
			out.set(0, 6)
			i.say(frame(wire.TypeEnded, id, ended(0, 6)))
		}, engine.BoxLost, -1, anyOutput},
		"descriptors": {func(i *impostor, out testRing) {
			i.say(frame(wire.TypeHead, id, &wire.HeadMsg{}, out.File))
		}, engine.BoxLost, -1, 0},
		"a process that nobody asked for": {func(i *impostor, out testRing) {
			i.say(frame(wire.TypeManaged, 99, describe(nil), out.File, out.File))
		}, engine.BoxLost, -1, 0},
		"an answer to nothing": {func(i *impostor, out testRing) {
			i.say(frame(wire.TypeFailed, 99, &wire.FailedMsg{Step: "x", Errno: 1}))
		}, engine.BoxLost, -1, 0},
		"unknown types": {func(i *impostor, out testRing) {
			i.say(wire.Frame{Type: 200, ID: id})
		}, engine.BoxLost, -1, 0},
		"requests": {func(i *impostor, out testRing) {
			i.say(frame(wire.TypeWatch, id, &wire.WatchMsg{}))
		}, engine.BoxLost, -1, 0},
		"wrong size": {func(i *impostor, out testRing) {
			i.say(wire.Frame{Type: wire.TypeEnded, ID: id, Body: []byte("x")})
		}, engine.BoxLost, -1, 0},
		"input that nobody sent": {func(i *impostor, out testRing) {
			i.say(frame(wire.TypeAccepted, id, &wire.AcceptedMsg{Offset: 1 << 40}), frame(wire.TypeEnded, id, ended(0, 0)))
		}, engine.Exited, 0, 0},
		"noise":   {func(i *impostor, out testRing) { i.raw(make([]byte, 1000), 0); i.raw([]byte("GET / HTTP/1.1\r\n"), 2) }, engine.BoxLost, -1, 0},
		"nothing": {func(i *impostor, out testRing) { i.hangUp() }, engine.BoxLost, -1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b, i := withManagedImpostor(t)
			out, errs := newTestRing(t, wire.MinRing, ringSeals), newTestRing(t, wire.MinRing, ringSeals)
			i.acts.Go(func() {
				f, err := i.conn.Receive()
				if err != nil {
					return
				}
				f.Close()
				i.say(frame(wire.TypeManaged, f.ID, describe(nil), out.File, errs.File))
				i.watched()
				c.says(i, out)
			})
			within(t, "a managed process", func() {
				p, err := b.Launch(t.Context(), engine.Managed{Key: "k", Args: []string{"x"}, History: engine.MinHistory})
				if err != nil {
					t.Error(err)
					return
				}
				n, err := readToEnd(t.Context(), p.Stdio().Stdout)
				if n != c.output && c.output != anyOutput || err != io.EOF {
					t.Errorf("read %d bytes, %v; want %d", n, err, c.output)
				}
				<-p.Done()
				if r := p.Result(); r.Verdict != c.verdict || r.ExitCode != c.code {
					t.Errorf("%+v; want %s, %d", r, c.verdict, c.code)
				}
				i.acts.Wait() // before the rings are closed
			})
		})
	}
}

// watched waits until the client watches its output.
func (i *impostor) watched() {
	for {
		f, err := i.conn.Receive()
		if err != nil || f.Type == wire.TypeWatch {
			return
		}
	}
}

func readToEnd(ctx context.Context, out engine.Output) (int, error) {
	total, off, buf := 0, int64(0), make([]byte, 100)
	for {
		n, at, err := out.ReadAt(ctx, buf, off)
		if err != nil {
			return total, err
		}
		total, off = total+n, at+int64(n)
	}
}

// TestOvertaken: bytes that were overwritten while they were read are not delivered.
func TestOvertaken(t *testing.T) {
	ring := newTestRing(t, wire.MinRing, ringSeals)
	ring.set(100, 200)
	o := &output{file: ring.File, size: wire.MinRing, changed: make(chan struct{})}
	if n, at, err := o.ReadAt(t.Context(), make([]byte, 1000), 0); n != 100 || at != 100 || err != nil {
		t.Errorf("%d at %d, %v", n, at, err)
	}
	ring.set(150, 200) // as if it happened between the bytes and the bounds
	if gone := o.overtaken(100); gone != 50 {
		t.Errorf("%d are gone", gone)
	}
	if n, at, err := o.ReadAt(t.Context(), make([]byte, 20), 0); n != 20 || at != 150 || err != nil {
		t.Errorf("%d at %d, %v", n, at, err)
	}
}

// TestDeafAgentManaged: an agent that does not answer is lost with its box.
func TestDeafAgentManaged(t *testing.T) {
	b, _ := withManagedImpostor(t)
	b.managed.wait = 500 * time.Millisecond
	within(t, "launching", func() {
		began := time.Now()
		_, err := b.Launch(t.Context(), engine.Managed{Key: "k", Args: []string{"x"}})
		if !errors.Is(err, engine.ErrBoxLost) || time.Since(began) < b.managed.wait {
			t.Errorf("Launch: %v after %v", err, time.Since(began))
		}
	})
}
