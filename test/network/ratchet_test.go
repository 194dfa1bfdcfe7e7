package network

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

const streaming = `
  streams:
    network: true
    network_rules:
      public: false
      allow: [good.example, "good.example:7000", "open.wild.example:7000", "six.example:7000"]
`

// everyWay is a stream of each kind, in each direction.
var everyWay = func() (list []string) {
	for _, way := range []string{"connect", "socks", "http"} {
		for _, direction := range []string{"up", "down"} {
			list = append(list, way+"/"+direction+"/good.example")
		}
	}
	return list
}()

const ports = `import socket
for port in (3128, 1080):
    print(socket.socket().connect_ex(("127.0.0.1", port)), end=" ")`

// offFor checks that nothing listens in the box, and that variables lead nowhere.
func offFor(t *testing.T, c *client.Client, id, when string) {
	t.Helper()
	if got := execute(t, c, id, apitypes.ExecRequest{Argv: []string{"python3", "-c", ports}}); got.Stdout != "111 111 " {
		t.Errorf("%s: connecting to the ports of the proxy gives %q, %q", when, got.Stdout, got.Stderr)
	}
	if got := execute(t, c, id, apitypes.ExecRequest{Shell: "env | grep -i proxy; true"}); got.Stdout != "" {
		t.Errorf("%s: commands have %q", when, got.Stdout)
	}
}

// TestRatchet: streams of every kind run at full speed while the network goes off. When the
// answer is there, no socket is left that could move a byte, in the box or outside. It is for
// good.
func TestRatchet(t *testing.T) {
	root := testutil.ReachableDir(t, "")
	d, c := startDaemon(t, streaming+"allowed_mount_roots: ["+root+"]\n")
	yes := apitypes.SessionUpdate{}
	yes.Network = new(true)
	for name, off := range map[string]spec.LiveWishes{"given-up": {Network: new(false)}, "sensitive": {Sensitive: new(true)}} {
		t.Run(name, func(t *testing.T) {
			work := filepath.Join(root, name)
			if err := os.Mkdir(work, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(work, 0o777); err != nil {
				t.Fatal(err)
			}
			s := newStreams(t, 0)
			wish := session("streams")
			wish.Workspace = work
			// The control: a session without network has none of this, one with it has it all.
			if got := execute(t, c, name, apitypes.ExecRequest{Argv: []string{"python3", "-c", ports}, Session: wish}); got.Stdout != "0 0 " {
				t.Fatalf("before: %+v", got)
			}
			pid := startStreams(t, c, name, "p", nil, everyWay...)
			box := fmt.Sprintf("/proc/%d", pid)
			s.flowing(t, everyWay...)
			if l, open := sockets(t, box, 3128, 1080); l != 2 || open < 2*len(everyWay) {
				t.Fatalf("before: %d listeners and %d open sockets in the box", l, open)
			}
			if _, open := sockets(t, "/proc/self", 7000, 80); open != len(everyWay) {
				t.Fatalf("before: %d open sockets of the daemon", open)
			}
			began := time.Now()
			if _, err := c.Update(t.Context(), name, apitypes.SessionUpdate{LiveWishes: off}); err != nil {
				t.Fatal(err)
			}
			answered := time.Now()
			if l, open := sockets(t, box, 3128, 1080); l+open > 0 {
				t.Errorf("after the answer: %d listeners and %d open sockets in the box", l, open)
			}
			if _, open := sockets(t, "/proc/self", 7000, 80); open > 0 {
				t.Errorf("after the answer: %d open sockets of the daemon", open)
			}
			world.check(t, "after the answer")
			s.ended(t, everyWay...)
			t.Logf("answered after %v; the last byte was read %v after the request", answered.Sub(began), s.last.Sub(began))
			offFor(t, c, name, "after the answer")
			// Every way back on is refused.
			if _, err := c.Update(t.Context(), name, yes); err == nil {
				t.Error("PATCH turned the network on")
			}
			again := session("streams")
			again.Network, again.Workspace = new(true), work
			if _, err := c.Ensure(t.Context(), apitypes.SessionRequest{ID: name, SessionSpec: *again}); err == nil {
				t.Error("a request for the session with a network was granted")
			}
			offFor(t, c, name, "after the attempts")
			if err := d.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := d.Start(); err != nil {
				t.Fatal(err)
			}
			offFor(t, c, name, "with the next daemon")
			if _, err := c.Update(t.Context(), name, yes); err == nil {
				t.Error("PATCH turned the network on, after a restart")
			}
			killBox(t, pid)
			again = session("streams")
			again.Workspace = work
			await(t, "a new box", func() string { // the daemon has to notice
				got := execute(t, c, name, apitypes.ExecRequest{Argv: []string{"python3", "-c", ports}})
				if got.Verdict != "box-lost" && got.Stdout != "111 111 " {
					t.Errorf("in a new box: %+v", got)
				}
				if !got.Recreated {
					return fmt.Sprintf("%+v", got)
				}
				return ""
			})
			if err := c.Remove(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{name, "other-" + name} { // the workspace is marked, whatever session has it
				if got, err := c.Exec(t.Context(), id, apitypes.ExecRequest{Argv: []string{"python3", "-c", ports}, Session: again}); err == nil && got.Stdout != "111 111 " {
					t.Errorf("session %s on the same workspace: %+v", id, got)
				}
				explicit := *again
				explicit.Network = new(true)
				if got, err := c.Exec(t.Context(), id+"-explicit", apitypes.ExecRequest{Argv: []string{"python3", "-c", ports}, Session: &explicit}); err == nil && got.Stdout != "111 111 " {
					t.Errorf("session %s on the same workspace, asked for a network: %+v", id, got)
				}
			}
			if got := execute(t, c, "control-"+name, apitypes.ExecRequest{Argv: []string{"python3", "-c", ports}, Session: session("streams")}); got.Stdout != "0 0 " {
				t.Errorf("a session that was not ratcheted: %+v", got)
			}
		})
	}
}

// check fails the test if a server of the internet has an open connection from the host.
func (w *internet) check(t *testing.T, when string) {
	t.Helper()
	if err := w.inside(func() error {
		if _, open := sockets(t, "/proc/thread-self", 7000, 80, 443); open > 0 {
			return fmt.Errorf("%d open sockets of servers", open)
		}
		return nil
	}); err != nil {
		t.Errorf("%s: %v", when, err)
	}
}

// killBox kills process 1 of the box that has process pid.
func killBox(t *testing.T, pid int) {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		t.Fatal(err)
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range all {
		status, err := os.ReadFile(filepath.Join(proc, "status"))
		if other, lerr := os.Readlink(filepath.Join(proc, "ns/pid")); err != nil || lerr != nil || other != ns {
			continue
		}
		for line := range strings.Lines(string(status)) {
			fields := strings.Fields(line)
			if fields[0] == "NSpid:" && fields[len(fields)-1] == "1" {
				one, _ := strconv.Atoi(filepath.Base(proc))
				if err := syscall.Kill(one, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
	}
	t.Fatal("process 1 of the box was not found")
}

// TestRules: a change of the rules ends what they do not allow any more before the answer, and
// nothing else.
func TestRules(t *testing.T) {
	_, c := startDaemon(t, streaming)
	s := newStreams(t, 0)
	gone := []string{"connect/up/open.wild.example", "socks/down/open.wild.example", "http/up/good.example", "http/down/good.example"}
	kept := []string{"connect/up/good.example", "connect/down/good.example", "socks/up/good.example", "socks/down/good.example", "connect/up/six.example"}
	pid := startStreams(t, c, "s", "p", session("streams"), append(gone, kept...)...)
	s.flowing(t, append(gone, kept...)...)
	change := func(allow, deny []string) {
		t.Helper()
		if _, err := c.Update(t.Context(), "s", apitypes.SessionUpdate{NetworkRules: &spec.NetworkRules{Allow: allow, Deny: deny}}); err != nil {
			t.Fatal(err)
		}
	}
	change([]string{"good.example:7000", "six.example:7000"}, nil)
	if _, open := sockets(t, "/proc/self", 80, 7000); open != len(kept) {
		t.Errorf("%d open sockets of the daemon after the answer, want %d", open, len(kept))
	}
	if _, open := sockets(t, fmt.Sprintf("/proc/%d", pid), 3128, 1080); open != 2*len(kept) {
		t.Errorf("%d open sockets in the box after the answer, want %d", open, 2*len(kept))
	}
	s.ended(t, gone...)
	s.flowing(t, kept...)
	// Addresses count as well: the rules deny what the names have led to.
	change(nil, []string{"2600:3c00::6", "45.33.0.1", "2600:3c00::1"})
	if _, open := sockets(t, "/proc/self", 80, 7000); open != 0 {
		t.Errorf("%d open sockets of the daemon after the addresses were denied", open)
	}
	s.ended(t, kept...)
	get := `curl -sS -o /dev/null -w '%{http_code}' http://good.example/`
	if got := execute(t, c, "s", apitypes.ExecRequest{Shell: get}); got.Stdout != "403" {
		t.Errorf("a new request: %+v", got)
	}
	change(nil, nil)
	if got := execute(t, c, "s", apitypes.ExecRequest{Shell: get}); got.Stdout != "200" {
		t.Errorf("after the rules of the session were taken back: %+v", got)
	}
}
