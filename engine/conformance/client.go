package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
	"golang.org/x/sys/unix"
)

// clientsComeAndGo: the next client gets the box of the previous one, with its files and its PID 1, but
// without the commands that the previous client left running.
func (e *suite) clientsComeAndGo(t testing.TB) {
	s := e.private(t)
	_, m := boxtest.Workspace(t, 0, 0)
	b := s.create(t, engine.Spec{ID: "live-one", Labels: map[string]string{"for": "me"}})
	first := s.Init(t, b.ID())
	boxtest.WantOutput(t, b, "echo kept > /tmp/f", "")
	// The box cannot use the directory through which the launcher creates mount points.
	boxtest.WantOutput(t, b, "ls /dev/.host 2>/dev/null || touch /dev/.host/top/root/x 2>/dev/null || mv /dev/.host /dev/x 2>/dev/null || echo closed", "closed\n")
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}, Limits: &engine.Limits{PIDs: 77}}); err != nil {
		t.Fatal(err)
	}
	background := boxtest.Shell("sleep 1000 & echo")
	background.KeepBackground = true
	boxtest.Want(t, boxtest.Run(t, b, background), engine.Exited, 0)
	s.disconnect(t)
	s.connect(t)
	b = s.adopt(t, "live-one")
	if again := s.Init(t, b.ID()); len(first) != 1 || !slices.Equal(first, again) {
		t.Errorf("PID 1 was %v and is %v", first, again)
	}
	if n := len(s.Commands(t, b.ID())); n != 1 {
		t.Errorf("%d processes after adoption, not the one in the background", n)
	}
	boxtest.WantOutput(t, b, "cat /tmp/f", "kept\n")
	spec := b.Spec()
	if spec.Limits.PIDs != 77 || len(spec.Mounts) != 1 || spec.Mounts[0] != m || spec.Labels["for"] != "me" {
		t.Errorf("spec after adoption: %+v", spec)
	}
	if err := b.Update(t.Context(), engine.Change{Detach: []string{m.Target}}); err != nil {
		t.Error(err)
	}
	if _, err := s.client.Adopt(t.Context(), "none", engine.Spec{}); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("adopting what there is not: %v", err)
	}
}

// launcherKilled: boxes, and commands under way, notice nothing; the next
// launcher goes on with them.
func (e *suite) launcherKilled(t testing.TB) {
	s := e.private(t)
	for _, c := range []struct {
		name string
		spec engine.Spec
	}{{"read-only root", engine.Spec{}}, {"writable root", engine.Spec{WritableRoot: true}}} {
		sub(t, c.name, func(t testing.TB) {
			b, err := s.tryCreate(t.Context(), c.spec)
			if err != nil {
				if c.spec.WritableRoot {
					t.Skip(err) // the host's file system cannot be id-mapped
				}
				t.Fatal(err)
			}
			_, m := boxtest.Workspace(t, 0, 0)
			m.Target = "/made/for/this"
			p := boxtest.Begin(t, b, boxtest.Shell("read x; echo $x; exit 7"))
			s.KillLauncher(t)
			if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); err != nil {
				t.Fatal(err)
			}
			boxtest.WantOutput(t, b, "echo 1 > /made/for/this/f; cat /made/for/this/f", "1\n")
			s.KillLauncher(t)
			if err := b.Update(t.Context(), engine.Change{Detach: []string{m.Target}, Limits: &engine.Limits{Memory: 99 << 20}}); err != nil {
				t.Fatal(err)
			}
			tty := boxtest.Shell("test -t 0 && echo terminal")
			tty.TTY = &engine.WindowSize{Rows: 9, Cols: 9}
			if o := boxtest.Run(t, b, tty); !strings.Contains(o.Stdout, "terminal") {
				t.Errorf("no terminal: %q", o.Stdout)
			}
			if r := boxtest.Wait(t, p); r.ExitCode != 7 {
				t.Errorf("the command under way ended with %+v", r)
			}
			if err := b.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if ids, err := s.client.Boxes(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("boxes in the end: %v, %v", ids, err)
	}
}

// events: the kernel tells of limits, and the box of what listens in it.
func (e *suite) events(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{Memory: 64 << 20, PIDs: 8}})
	boxtest.Run(t, b, boxtest.Python("x = bytearray(200 << 20)"))
	boxtest.WantEvent(t, b, engine.EventOOM)
	boxtest.Run(t, b, boxtest.Shell("for i in 1 2 3 4 5 6 7 8 9; do sleep 0.1 & done; wait"))
	boxtest.WantEvent(t, b, engine.EventPIDs)
	u, err := b.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if boxtest.Figure(t, "memory", u.Memory) <= 0 || boxtest.Figure(t, "CPU", u.CPU) <= 0 || u.PIDs == nil {
		t.Errorf("usage: %+v", u)
	}
	const listen = `
import socket
s = socket.socket(); s.bind(("127.0.0.1", 8080)); s.listen()
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("127.0.0.1", 99))
import time; time.sleep(1000)`
	p := boxtest.Begin(t, b, boxtest.Python(listen))
	boxtest.WaitUntil(t, "two ports are there", func() bool {
		ports, err := b.Ports()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(ports) == "[{tcp 127.0.0.1 8080} {udp 127.0.0.1 99}]"
	})
	_ = p.Signal(unix.SIGKILL)
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := b.Ports(); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("ports of a box that is gone: %v", err)
	}
	for range b.Events() { // ends
	}
}

// initKilled: a box ends with its PID 1.
func (e *suite) initKilled(t testing.TB) {
	s := e.private(t)
	b := s.create(t, engine.Spec{ID: "live-one"})
	s.killInit(t, b)
	select {
	case <-b.Done():
	case <-time.After(boxtest.Patience):
		t.Fatal("the box goes on without PID 1")
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
