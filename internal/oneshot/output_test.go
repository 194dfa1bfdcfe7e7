package oneshot

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hold is a daemon that has accepted a run: it holds the command's stdout and stderr.
type hold struct {
	conn           *net.UnixConn
	stdout, stderr *os.File
}

// holding starts a run with a daemon that calls do once it has the descriptors. do must close them.
func holding(t *testing.T, stdout, stderr *counter, do func(h hold)) *Run {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[1]), "daemon")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer c.Close()
		h := hold{conn: c.(*net.UnixConn)}
		if err := h.receive(); err != nil {
			t.Error(err)
			return
		}
		do(h)
	}()
	t.Cleanup(func() { <-done })
	r := &Run{conn: os.NewFile(uintptr(fds[0]), "client"), cutDelay: 1}
	t.Cleanup(r.Close)
	if err := r.Start(nil, stdout, stderr, true); err != nil {
		t.Fatal(err)
	}
	return r
}

func (h *hold) receive() error {
	control := make([]byte, unix.CmsgSpace(2*4))
	_, n, _, _, err := h.conn.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("%d control messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 2 {
		return fmt.Errorf("descriptors %v, %v", fds, err)
	}
	h.stdout, h.stderr = os.NewFile(uintptr(fds[0]), "stdout"), os.NewFile(uintptr(fds[1]), "stderr")
	return nil
}

func (h *hold) close() { h.stdout.Close(); h.stderr.Close() }

// awaitCut waits until nobody reads stderr any more.
func (h *hold) awaitCut() error {
	fds := []unix.PollFd{{Fd: int32(h.stderr.Fd())}} // POLLERR need not be asked for
	for {
		if _, err := unix.Poll(fds, -1); err != unix.EINTR {
			return err
		}
	}
}

// gated passes on nothing before the gate is closed.
type gated struct {
	bytes.Buffer
	gate chan struct{}
}

func (g *gated) Write(b []byte) (int, error) {
	<-g.gate
	return g.Buffer.Write(b)
}

// TestOutputOfDeadDaemon: what the command wrote before the daemon died arrives, though others still hold its pipes.
func TestOutputOfDeadDaemon(t *testing.T) {
	want := strings.Repeat("written", 9000) // less than a pipe, more than one read
	out := &gated{gate: make(chan struct{})}
	r := holding(t, &counter{w: out}, &counter{w: new(bytes.Buffer)}, func(h hold) {
		defer h.close()
		defer close(out.gate)
		if _, err := h.stdout.WriteString(want); err != nil {
			t.Error(err)
		}
		h.conn.Close()
		if err := h.awaitCut(); err != nil { // stdout was cut before
			t.Error(err)
		}
	})
	if _, err := r.Wait(); err == nil || !strings.Contains(err.Error(), "how far the command got is unknown") {
		t.Errorf("error %v", err)
	}
	if out.String() != want {
		t.Errorf("%d bytes, want %d", out.Len(), len(want))
	}
}

// TestPipesHeld: who keeps the pipes of a command that has ended cannot keep its result from people, who learn that
// output may be missing.
func TestPipesHeld(t *testing.T) {
	for _, held := range []bool{false, true} {
		release := make(chan struct{})
		var out, errs bytes.Buffer
		r := holding(t, &counter{w: &out}, &counter{w: &errs}, func(h hold) {
			for f, text := range map[*os.File]string{h.stdout: "out", h.stderr: "err"} {
				if _, err := f.WriteString(text); err != nil {
					t.Error(err)
				}
			}
			if !held {
				h.close()
			}
			if _, err := h.conn.Write([]byte(`{"result":{"verdict":"exited","status":3}}` + "\n")); err != nil {
				t.Error(err)
			}
			<-release
			h.close()
		})
		result, err := r.Wait()
		close(release)
		if err != nil || result.Status != 3 || out.String() != "out" || errs.String() != "err" || *result.Receipt.StdoutBytes != 3 {
			t.Errorf("held: %v: %+v, %v, %q, %q", held, result, err, &out, &errs)
		}
		if got := r.Warning(); (got != "") != held || held && !strings.Contains(got, "output may be missing") {
			t.Errorf("held: %v: warning %q", held, got)
		}
	}
}
