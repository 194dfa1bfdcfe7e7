package faults

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"golang.org/x/sys/unix"
)

// startEngine starts an engine in this process.
func startEngine(t testing.TB, state string) *native.Engine {
	t.Helper()
	e := startEngineUnchecked(t, state)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// startEngineUnchecked starts one that the caller closes.
func startEngineUnchecked(t testing.TB, state string) *native.Engine {
	t.Helper()
	_, boxdInit := binaries(t)
	e, err := native.Start(t.Context(), native.Options{InitPath: boxdInit, StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// wantUsable runs a command in the box.
func wantUsable(t testing.TB, b engine.Box) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out strings.Builder
	r, err := engine.Run(ctx, b, engine.Command{Args: []string{"sh", "-c", "echo alive; exit 7"}, Stdout: &out})
	if err != nil || r.Verdict != engine.Exited || r.ExitCode != ownStatus || out.String() != "alive\n" {
		t.Errorf("box: %+v, %v, output %q", r, err, out.String())
	}
}

// visitor is a further connection to the agent of a box, which root can open.
type visitor struct {
	t  *testing.T
	fd int
}

func visit(t *testing.T, socket string) *visitor {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		t.Fatalf("connecting to %q: %v", socket, err)
	}
	// An agent that no longer reads must not stop the test.
	timeout := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	return &visitor{t, fd}
}

func (v *visitor) leave() { unix.Close(v.fd) }

// send writes bytes with descriptors; that the agent hangs up is its right.
func (v *visitor) send(b []byte, fds ...int) {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for len(b) > 0 {
		n, err := unix.SendmsgN(v.fd, b, rights, nil, unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			v.t.Errorf("the agent takes nothing any more")
			return
		case err != nil:
			return
		}
		b, rights = b[n:], nil
	}
}

// frame is a header with a body.
func frame(typ byte, fds int, id uint32, body []byte) []byte {
	n := uint32(len(body))
	header := []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), typ, byte(fds), 0, 0, byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)}
	return append(header, body...)
}

// spawnBody asks for a command that would be seen if it ran.
func spawnBody(edit func(m *wire.SpawnMsg)) []byte {
	m := &wire.SpawnMsg{Args: []string{"/bin/sleep", "1000"}, Dir: "/"}
	if edit != nil {
		edit(m)
	}
	return m.Marshal()
}

// TestAgentSocketGarbage: PID 1 is fed garbage on further connections, which only
// root can open; the one that counts goes on.
func TestAgentSocketGarbage(t *testing.T) {
	binaries(t)
	state := newState(t)
	b, err := startEngine(t, state).Create(t.Context(), engine.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	sockets, _ := filepath.Glob(filepath.Join(state, "run-*/boxes/*/agent.sock"))
	if len(sockets) != 1 {
		t.Fatalf("sockets: %q", sockets)
	}
	rng := rand.New(rand.NewPCG(seed(t), 0))
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n := int(null.Fd())
	many := make([]int, 200)
	for i := range many {
		many[i] = n
	}
	for _, c := range []struct {
		name string
		do   func(v *visitor)
	}{
		{"nothing", func(*visitor) {}},
		{"noise", func(v *visitor) { v.send(noise(rng, 1<<16)) }},
		{"text", func(v *visitor) { v.send([]byte("GET / HTTP/1.1\r\n\r\n")) }},
		{"half a header", func(v *visitor) { v.send(frame(wire.TypeSpawn, 0, 1, nil)[:7]) }},
		{"half a body", func(v *visitor) { v.send(frame(wire.TypeSpawn, 0, 1, spawnBody(nil))[:30]) }},
		{"half a body with descriptors", func(v *visitor) { v.send(frame(wire.TypeSpawn, 4, 1, spawnBody(nil))[:30], n, n, n, n) }},
		{"a huge length", func(v *visitor) { v.send(bytes.Repeat([]byte{0xff}, wire.HeaderSize)) }},
		{"the longest body", func(v *visitor) { v.send(frame(wire.TypeSpawn, 0, 1, make([]byte, wire.MaxBody))) }},
		{"the init frame", func(v *visitor) { v.send(frame(wire.TypeInit, 1, 1, (&wire.InitMsg{}).Marshal()), n) }},
		{"all types", func(v *visitor) { v.send(frame(byte(rng.IntN(256)), 0, 1, noise(rng, 100))) }},
		{"signals for nobody", func(v *visitor) {
			for id := range uint32(1000) {
				v.send(frame(wire.TypeSignal, 0, id, (&wire.SignalMsg{Signal: uint32(rng.Uint32())}).Marshal()))
			}
		}},
		{"spawn without descriptors", func(v *visitor) { v.send(frame(wire.TypeSpawn, 0, 1, spawnBody(nil))) }},
		{"spawn with descriptors that did not come", func(v *visitor) { v.send(frame(wire.TypeSpawn, 4, 1, spawnBody(nil)), n) }},
		{"spawn with descriptors of the wrong kind", func(v *visitor) { v.send(frame(wire.TypeSpawn, 4, 1, spawnBody(nil)), n, n, n, n) }},
		{"spawn with too many tasks", func(v *visitor) {
			v.send(frame(wire.TypeSpawn, 4, 1, spawnBody(func(m *wire.SpawnMsg) { m.Tasks = 1 << 30 })), n, n, n, n)
		}},
		{"spawn without a program", func(v *visitor) {
			v.send(frame(wire.TypeSpawn, 4, 1, spawnBody(func(m *wire.SpawnMsg) { m.Args = nil })), n, n, n, n)
		}},
		{"descriptors without a frame", func(v *visitor) {
			for range 10 {
				v.send([]byte{0}, many...)
			}
		}},
		{"noise with descriptors", func(v *visitor) { v.send(noise(rng, 100), many[:50]...) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 5 {
				v := visit(t, sockets[0])
				v.t = t
				c.do(v)
				wantUsable(t, b) // while the visitor is still there
				v.leave()
			}
			wantUsable(t, b)
		})
	}
	t.Run("a crowd", func(t *testing.T) {
		var crowd []*visitor
		for range 200 {
			crowd = append(crowd, visit(t, sockets[0]))
		}
		wantUsable(t, b)
		for _, v := range crowd {
			v.leave()
		}
		wantUsable(t, b)
	})
	wantOnlyAgent(t)
	if err := b.Remove(context.Background()); err != nil {
		t.Error(err)
	}
}

func noise(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// wantOnlyAgent waits until no process of the one box is left but its PID 1: none
// of the garbage started anything.
func wantOnlyAgent(t *testing.T) {
	t.Helper()
	var left []proc
	for began := time.Now(); time.Since(began) < patience; time.Sleep(10 * time.Millisecond) {
		left = left[:0]
		for _, p := range descendants(os.Getpid()) {
			if !p.isInit() && !p.isLauncher() && !p.isZombie() {
				left = append(left, p)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("started by garbage: %v", left)
}
