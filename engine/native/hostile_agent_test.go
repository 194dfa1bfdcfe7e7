package native

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// hangs is how long a test waits for an operation that must not hang.
const hangs = 2 * time.Minute

// impostor is the other end of a box's connection to its agent.
type impostor struct {
	t    *testing.T
	sock *os.File
	conn *wire.Conn
	acts sync.WaitGroup
}

// withImpostor returns a box whose launcher and cgroups are real and whose agent
// is played by the test.
func withImpostor(t *testing.T) (*box, *impostor) {
	t.Helper()
	e := hostileEngine(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	sock := os.NewFile(uintptr(fds[1]), "impostor")
	conn, err := wire.FileConn(dup(t, sock))
	if err != nil {
		t.Fatal(err)
	}
	spec := engine.Spec{}.WithDefaults()
	var created rpc.Created
	files, err := e.link.call(t.Context(), rpc.TypeCreate, rpc.Create{Spec: spec}, &created)
	if err != nil {
		t.Fatal(err)
	}
	files[0].Close()
	files[0] = os.NewFile(uintptr(fds[0]), "client")
	b, err := newBox(&e.core, spec, created, files)
	if err != nil {
		t.Fatal(err)
	}
	i := &impostor{t: t, sock: sock, conn: conn}
	t.Cleanup(func() {
		i.conn.Close()
		within(t, "removing the box", func() {
			if err := b.Remove(context.Background()); err != nil {
				t.Error(err)
			}
			i.acts.Wait()
		})
		i.sock.Close()
	})
	return b, i
}

func hostileEngine(t *testing.T) *Engine {
	t.Helper()
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	dir, err := os.MkdirTemp("/run", "boxd-hostile-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	e, err := Start(t.Context(), Options{InitPath: initPath, StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

func (i *impostor) hangUp() {
	i.conn.Close()
	i.sock.Close()
}

// spawn receives a request to start a command. The test owns its descriptors.
func (i *impostor) spawn() *wire.Frame {
	i.t.Helper()
	f, err := i.conn.Receive()
	if err != nil || f.Type != wire.TypeSpawn {
		i.t.Errorf("instead of a spawn: %+v, %v", f, err)
		return &wire.Frame{}
	}
	return f
}

// say sends frames, as many as the client takes.
func (i *impostor) say(frames ...wire.Frame) {
	for _, f := range frames {
		if i.conn.SendFDs(f.Type, f.ID, f.Body, f.FDs...) != nil {
			return
		}
	}
}

// within fails the test if fn hangs.
func within(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(hangs):
		t.Fatalf("%s: hangs", what)
	}
}

func started(id uint32) wire.Frame { return wire.Frame{Type: wire.TypeStarted, ID: id} }

func exited(id, status uint32) wire.Frame {
	m := wire.ExitedMsg{Status: status}
	return wire.Frame{Type: wire.TypeExited, ID: id, Body: m.Marshal()}
}

func failed(id uint32) wire.Frame {
	m := wire.FailedMsg{Step: "acting", Errno: unix.EPERM}
	return wire.Frame{Type: wire.TypeFailed, ID: id, Body: m.Marshal()}
}

// TestHostileAgentSays: whatever an agent sends, the command concerned ends with an error
// or a verdict, and no descriptor or goroutine is left (testutil.Main checks that).
func TestHostileAgentSays(t *testing.T) {
	testutil.Long(t)
	for name, c := range map[string]struct {
		says    func(i *impostor, id uint32)
		verdict engine.Verdict // "" is an error of Start
		code    int
	}{
		"exit before start": {func(i *impostor, id uint32) {
			i.say(exited(id, 0), started(id), exited(id, 3<<8))
		}, engine.Exited, 3},
		"everything twice": {func(i *impostor, id uint32) {
			i.say(started(id), started(id), failed(id), exited(id, 5<<8), exited(id, 0), started(id))
		}, engine.Exited, 5},
		"failed, then exited": {func(i *impostor, id uint32) {
			i.say(failed(id), exited(id, 0), started(id))
		}, "", 0},
		"unknown ids": {func(i *impostor, id uint32) {
			i.say(started(id+1), exited(id+1, 0), started(0), exited(^uint32(0), 0), started(id), exited(id+7, 0), exited(id, 6<<8))
		}, engine.Exited, 6},
		"unknown types": {func(i *impostor, id uint32) {
			for typ := range 256 {
				if !slices.Contains([]int{wire.TypeStarted, wire.TypeFailed, wire.TypeExited}, typ) {
					i.say(wire.Frame{Type: byte(typ), ID: id, Body: []byte("x")})
				}
			}
			i.say(started(id), exited(id, 1<<8))
		}, engine.Exited, 1},
		"bodies of the wrong size": {func(i *impostor, id uint32) {
			i.say(started(id), wire.Frame{Type: wire.TypeExited, ID: id}, wire.Frame{Type: wire.TypeExited, ID: id, Body: make([]byte, 5)}, exited(id, 2<<8))
		}, engine.Exited, 2},
		"thousands of frames": {func(i *impostor, id uint32) {
			for n := range uint32(20_000) {
				i.say(exited(n+1000, 0))
			}
			i.say(started(id), exited(id, 9<<8))
		}, engine.Exited, 9},
		"huge frames": {func(i *impostor, id uint32) {
			for range 8 {
				i.say(wire.Frame{Type: wire.TypeExited, ID: id, Body: make([]byte, wire.MaxBody)})
			}
			i.say(started(id), exited(id, 9<<8))
		}, engine.Exited, 9},
		"a status that is none": {func(i *impostor, id uint32) {
			i.say(started(id), exited(id, 0xffffffff))
		}, engine.BoxLost, -1},
		"descriptors": {func(i *impostor, id uint32) {
			i.say(started(id), wire.Frame{Type: wire.TypeExited, ID: id, Body: exited(id, 0).Body, FDs: []int{int(i.sock.Fd())}}, exited(id, 0))
		}, engine.BoxLost, -1},
		"descriptors of no frame": {func(i *impostor, id uint32) {
			i.say(started(id))
			for range 4 {
				i.raw(make([]byte, 1), 100)
			}
		}, engine.BoxLost, -1},
		"too many descriptors at once": {func(i *impostor, id uint32) {
			i.say(started(id))
			i.raw(make([]byte, 1), 250)
		}, engine.BoxLost, -1},
		"a length that is none": {func(i *impostor, id uint32) {
			i.say(started(id))
			i.raw(bytes.Repeat([]byte{0xff}, wire.HeaderSize), 0)
		}, engine.BoxLost, -1},
		"half a frame": {func(i *impostor, id uint32) {
			i.say(started(id))
			i.raw([]byte{200, 0, 0, 0, wire.TypeExited, 3}, 2)
			i.hangUp()
		}, engine.BoxLost, -1},
		"nothing": {func(i *impostor, id uint32) { i.hangUp() }, "", 0},
		"noise": {func(i *impostor, id uint32) {
			i.raw([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 100)), 0)
		}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			b, i := withImpostor(t)
			i.acts.Go(func() {
				f := i.spawn()
				f.Close()
				c.says(i, f.ID)
			})
			within(t, "running a command", func() {
				p, err := b.Start(t.Context(), engine.Command{Args: []string{"x"}, Stdout: io.Discard, Stderr: io.Discard})
				// A violation can arrive together with the frames before it.
				early := c.verdict == engine.BoxLost && errors.Is(err, engine.ErrBoxLost)
				if (err != nil) != (c.verdict == "") && !early {
					t.Errorf("Start: %v", err)
				}
				if err != nil {
					if errors.Is(err, engine.ErrBoxLost) && !errors.Is(err, engine.ErrMayHaveRun) {
						t.Errorf("Start: %v, want ErrMayHaveRun", err)
					}
					return
				}
				r, err := p.Wait()
				if err != nil || r.Verdict != c.verdict || r.ExitCode != c.code {
					t.Errorf("%+v, %v; want %s, %d", r, err, c.verdict, c.code)
				}
			})
		})
	}
}

// raw sends bytes that are no frame, with n descriptors.
func (i *impostor) raw(b []byte, n int) {
	fds := slices.Repeat([]int{int(i.sock.Fd())}, n)
	var rights []byte
	if n > 0 {
		rights = unix.UnixRights(fds...)
	}
	_ = unix.Sendmsg(int(i.sock.Fd()), b, rights, nil, 0)
}

// TestHostileAgentKeepsStdio: Wait returns even if the agent keeps the command's end of a
// pipe, and no output that was written is lost.
func TestHostileAgentKeepsStdio(t *testing.T) {
	testutil.Long(t)
	for _, ending := range []string{"exited", "box lost"} {
		t.Run(ending, func(t *testing.T) {
			t.Parallel()
			b, i := withImpostor(t)
			var out strings.Builder
			const text = "the last words\n"
			kept := make(chan *wire.Frame, 1)
			i.acts.Go(func() {
				f := i.spawn()
				kept <- f
				i.say(started(f.ID))
				_, _ = unix.Write(f.FDs[1], []byte(text))
				if ending == "exited" {
					i.say(exited(f.ID, 0))
				} else {
					i.hangUp()
				}
			})
			within(t, "waiting for a command", func() {
				if r, err := engine.Run(t.Context(), b, engine.Command{Args: []string{"x"}, Stdout: &out}); err != nil {
					t.Errorf("%+v, %v", r, err)
				}
			})
			(<-kept).Close()
			if out.String() != text {
				t.Errorf("output %q, want %q", out.String(), text)
			}
		})
	}
}

// TestCancelWhileStarting: a command whose start is under way when its context ends is started if it has
// a grace, so that its end is the same as later. An agent that never answers does not delay the end
// for longer than the grace.
func TestCancelWhileStarting(t *testing.T) {
	for _, c := range []struct {
		name    string
		grace   time.Duration
		answers bool
	}{
		{"in time", hangs, true},
		{"never", 50 * time.Millisecond, false},
		{"without grace", 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, i := withImpostor(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			i.acts.Go(func() {
				f := i.spawn()
				f.Close()
				cancel()
				if c.answers {
					i.say(started(f.ID), exited(f.ID, uint32(unix.SIGTERM)))
				}
			})
			within(t, "running a command", func() {
				p, err := b.Start(ctx, engine.Command{Args: []string{"x"}, CancelGrace: c.grace})
				if !c.answers {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("Start: %v, want that its context has ended", err)
					}
					return
				}
				if err != nil {
					t.Errorf("Start: %v", err)
					return
				}
				if r, err := p.Wait(); err != nil || r.Signal != unix.SIGTERM {
					t.Errorf("%+v, %v", r, err)
				}
			})
		})
	}
}

// TestGraceOfYoung: the grace of a command that is cancelled during its start begins then, not with the
// SIGTERM after the start.
func TestGraceOfYoung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p := &process{
			account: account{box: &box{slots: &slots{closed: true}}}, cmd: engine.Command{CancelGrace: time.Minute},
			reports: &reports{started: make(chan *wire.FailedMsg)}, lost: make(chan struct{}),
		}
		go func() {
			time.Sleep(10 * time.Second)
			p.started <- nil
		}()
		if err := p.awaitStart(ctx); err != nil {
			t.Error(err)
		}
		if left := p.cancelGrace(); left != 50*time.Second {
			t.Errorf("%v are left of a minute that began 10 s ago", left)
		}
	})
}

// TestDeafAgent: an agent that reads no requests does not block its client forever.
func TestDeafAgent(t *testing.T) {
	b, _ := withImpostor(t)
	b.agent.SendWithin(500 * time.Millisecond)
	large := strings.Repeat("x", 100<<10)
	within(t, "starting a command", func() {
		_, err := b.Start(t.Context(), engine.Command{Args: []string{"x", large, large, large, large, large, large}})
		if !errors.Is(err, engine.ErrBoxLost) {
			t.Errorf("Start: %v, want ErrBoxLost", err)
		}
	})
	within(t, "starting a command in a lost box", func() {
		if _, err := b.Start(t.Context(), engine.Command{Args: []string{"x"}}); !errors.Is(err, engine.ErrBoxLost) {
			t.Errorf("Start: %v, want ErrBoxLost", err)
		}
	})
}
