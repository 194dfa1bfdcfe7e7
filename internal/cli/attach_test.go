package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/boxd/boxd/relay"
)

// fakeRelay is an attachment whose events the test sends.
type fakeRelay struct {
	hello  relay.Hello
	events chan relay.Event
	fail   error // after the last event

	signalErr error // returned by Signal

	mu   sync.Mutex
	in   strings.Builder
	log  []string
	done chan struct{} // closed by Close and by CloseStdin
	once sync.Once
}

func newFakeRelay(events ...relay.Event) *fakeRelay {
	f := &fakeRelay{events: make(chan relay.Event, 16), done: make(chan struct{})}
	for _, e := range events {
		f.events <- e
	}
	return f
}

func (f *fakeRelay) Hello() relay.Hello { return f.hello }
func (f *fakeRelay) Recv() (relay.Event, error) {
	select {
	case e := <-f.events:
		return e, nil
	default:
	}
	if f.fail != nil {
		return nil, f.fail
	}
	select {
	case e := <-f.events:
		return e, nil
	case <-f.done:
		return nil, errors.New("closed")
	}
}

func (f *fakeRelay) note(format string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
	return nil
}

func (f *fakeRelay) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.in.Write(p)
}

// CloseStdin makes the process end, as cat(1) does.
func (f *fakeRelay) CloseStdin() error {
	f.note("eof")
	f.events <- relay.Exited{Exit: relay.Exit{Code: 5}}
	return nil
}
func (f *fakeRelay) Resize(rows, cols uint16) error { return f.note("resize %d %d", rows, cols) }
func (f *fakeRelay) Signal(sig int) error {
	f.note("signal %d", sig)
	if f.signalErr != nil {
		return f.signalErr
	}
	f.events <- relay.Exited{Exit: relay.Exit{Code: -1, Signal: sig, Verdict: "signaled"}}
	return nil
}
func (f *fakeRelay) Close() error {
	f.once.Do(func() { close(f.done) })
	return nil
}

// attachTo runs boxd attach with conn.
func attachTo(v *invocation, f *attachFlags, conn attachment) error {
	signals := v.watchSignals()
	defer signals.Stop()
	return v.relayUntilEnd(f, conn, signals)
}

func statusIn(err error) int {
	var s *statusError
	if errors.As(err, &s) {
		return s.status
	}
	if err != nil {
		return statusFailed
	}
	return 0
}

func TestAttachPassesBytes(t *testing.T) {
	raw := "\x10\x11\x00\xff\r\n\x03\x04" // includes the detach keys and ^C, which mean nothing without a keyboard
	conn := newFakeRelay(relay.Data{Stream: relay.Stdout, Bytes: []byte(raw)}, relay.Data{Stream: relay.Stderr, Bytes: []byte("err")},
		relay.Gap{Stream: relay.Stdout, From: 8, To: 10}, relay.WriterChanged{Writer: true})
	v := newInvocation(t)
	v.Stdin = strings.NewReader(raw)
	err := attachTo(v, &attachFlags{detachKeys: []byte{0x10, 0x11}, sigProxy: true}, conn)
	if statusIn(err) != 5 || v.stdout.String() != raw || conn.in.String() != raw || strings.Join(conn.log, ",") != "eof" {
		t.Errorf("%v, stdout %q, stdin %q, %q", err, v.stdout.String(), conn.in.String(), conn.log)
	}
	if want := "errboxd: 2 bytes of stdout are gone\n"; v.stderr.String() != want {
		t.Errorf("stderr %q, want %q", v.stderr.String(), want)
	}
}

func TestAttachStatus(t *testing.T) {
	for _, c := range []struct {
		exit   relay.Exit
		status int
		stderr string
	}{
		{relay.Exit{}, 0, ""},
		{relay.Exit{Code: 3, Verdict: "exited"}, 3, ""},
		{relay.Exit{Code: -1, Signal: 9, Verdict: "signaled"}, 137, ""},
		{relay.Exit{Code: -1, Signal: 9, Verdict: "oom", Limit: "64 MiB"}, 137, "verdict: oom (limit 64 MiB)\n"},
		{relay.Exit{Code: -1, Verdict: relay.VerdictLost}, 137, "verdict: box-lost\n"},
	} {
		v := newInvocation(t)
		err := attachTo(v, &attachFlags{observe: true}, newFakeRelay(relay.Exited{Exit: c.exit}))
		if statusIn(err) != c.status || v.stderr.String() != c.stderr {
			t.Errorf("%+v: %v, %q", c.exit, err, v.stderr.String())
		}
	}
	v := newInvocation(t)
	conn := newFakeRelay()
	conn.fail = io.EOF
	if err := attachTo(v, &attachFlags{observe: true}, conn); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an end without an exit: %v", err)
	}
}

func TestAttachSignals(t *testing.T) {
	for _, c := range []struct {
		flags  attachFlags
		sig    syscall.Signal
		status int
		log    string
	}{
		{attachFlags{sigProxy: true, noStdin: true}, syscall.SIGINT, 130, "signal 2"},
		{attachFlags{sigProxy: true, noStdin: true}, syscall.SIGTERM, 143, "signal 15"},
		{attachFlags{sigProxy: true, noStdin: true}, syscall.SIGHUP, 129, ""},
		{attachFlags{noStdin: true}, syscall.SIGTERM, 143, ""},
		{attachFlags{sigProxy: true, observe: true}, syscall.SIGINT, 130, ""},
	} {
		v := newInvocation(t)
		conn := newFakeRelay()
		signals := make(chan os.Signal)
		v.Signals = signals
		w := v.watchSignals()
		w.Start()
		signals <- c.sig
		go func() { // as the context of the attachment does
			<-w.Context.Done()
			conn.Close()
		}()
		err := v.relayUntilEnd(&c.flags, conn, w)
		w.Stop()
		if statusIn(err) != c.status || strings.Join(conn.log, ",") != c.log {
			t.Errorf("%v: %v, %q, want %d, %q", c.sig, err, conn.log, c.status, c.log)
		}
	}
}

// TestAttachSignalWithoutConnection: a signal that cannot be sent ends boxd attach.
func TestAttachSignalWithoutConnection(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		v := newInvocation(t)
		conn := newFakeRelay()
		conn.signalErr = net.ErrClosed
		signals := make(chan os.Signal, 1)
		v.Signals = signals
		w := v.watchSignals()
		context.AfterFunc(w.Context, func() { conn.Close() }) // as the context of the attachment does
		signals <- sig
		err := v.relayUntilEnd(&attachFlags{sigProxy: true, noStdin: true}, conn, w)
		w.Stop()
		if statusIn(err) != 128+int(sig) || !strings.Contains(err.Error(), "the process keeps running") {
			t.Errorf("%v: %v", sig, err)
		}
	}
}

// attachWithoutDaemon runs boxd attach without a daemon, and returns when it has said so on stderr.
func attachWithoutDaemon(t *testing.T, args ...string) (v *invocation, socket string, said string, rest func() string, status chan int) {
	t.Helper()
	d := &fakeDaemon{t: t, socket: filepath.Join(t.TempDir(), "s")}
	v = newInvocation(t)
	stderr, w := io.Pipe()
	v.Stderr = w
	status = make(chan int, 1)
	go func() {
		s := d.callWith(v, append([]string{"attach", "--wait", "--no-stdin", "lab", "server"}, args...)...)
		w.Close()
		status <- s
	}()
	lines := bufio.NewReader(stderr)
	said, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return v, d.socket, said, func() string { text, _ := io.ReadAll(lines); return string(text) }, status
}

// TestAttachRefused: attach does not wait for a daemon that it was never connected to, unless it is asked to.
func TestAttachRefused(t *testing.T) {
	d := &fakeDaemon{t: t, socket: filepath.Join(t.TempDir(), "s")}
	for _, flags := range [][]string{nil, {"--give-up", "1h"}} {
		v := newInvocation(t)
		if status := d.callWith(v, append([]string{"attach", "--no-stdin", "lab", "server"}, flags...)...); status != 125 || !strings.Contains(v.stderr.String(), d.socket) || strings.Count(v.stderr.String(), "\n") != 1 {
			t.Errorf("%q: status %d, %q", flags, status, v.stderr.String())
		}
	}
}

func TestAttachAwaitsDaemon(t *testing.T) {
	v, socket, said, rest, status := attachWithoutDaemon(t)
	if !strings.Contains(said, socket) || !strings.Contains(said, "trying again until the daemon answers") {
		t.Errorf("said %q", said)
	}
	process := &exitedProcess{done: make(chan struct{})}
	hub := relay.NewHub(relay.Source{Stdout: process, Done: process.done, Exit: func() relay.Exit { return relay.Exit{Code: 7} }}, relay.Options{})
	defer hub.Close()
	close(process.done)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { hub.Serve(w, r, relay.Grant{Write: true}) })}
	defer server.Close()
	go server.Serve(l)
	if more := rest(); more != "" {
		t.Errorf("stderr %q", more)
	}
	if got := <-status; got != 7 || v.stdout.String() != "" {
		t.Errorf("status %d, stdout %q", got, v.stdout.String())
	}
}

func TestAttachWithoutDaemonIsStopped(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		v, _, _, rest, status := attachWithoutDaemon(t)
		v.signals <- sig
		if more := rest(); more != "boxd: stopped by "+signalName(sig)+"\n" {
			t.Errorf("%v: stderr %q", sig, more)
		}
		if got := <-status; got != 128+int(sig) {
			t.Errorf("%v: status %d", sig, got)
		}
	}
	_, _, said, rest, status := attachWithoutDaemon(t, "--give-up", "1ms") // the first attempt may take that long
	if more := said + rest(); !strings.Contains(more, "giving up after 1ms") || !strings.Contains(more, "is the daemon running?") {
		t.Errorf("stderr %q", more)
	}
	if got := <-status; got != statusFailed {
		t.Errorf("status %d", got)
	}
}

// exitedProcess is the output of a process that wrote nothing.
type exitedProcess struct{ done chan struct{} }

func (*exitedProcess) Bounds() (oldest, end int64) { return 0, 0 }
func (*exitedProcess) Release(int64)               {}
func (*exitedProcess) ReadAt(context.Context, []byte, int64) (int, int64, error) {
	return 0, 0, io.EOF
}

func TestDetachKeys(t *testing.T) {
	for _, c := range []struct {
		keys, in, out string
		leave         bool
	}{
		{"", "\x10\x11", "\x10\x11", false},
		{"\x10\x11", "abc", "abc", false},
		{"\x10\x11", "ab\x10\x11cd", "ab", true},
		{"\x10\x11", "\x10a\x10\x10\x11", "\x10a\x10", true},
		{"\x10\x11", "a\x10", "a", false},
		{"aab", "aaab", "a", true},
		{"aab", "aacaab", "aac", true},
		{"abab", "ababab", "", true},
		{"abac", "ababac", "ab", true},
	} {
		for _, step := range []int{1, 2, len(c.in)} { // in pieces, too
			d := &detacher{keys: []byte(c.keys)}
			var out []byte
			leave := false
			for i := 0; i < len(c.in) && !leave; i += step {
				var part []byte
				part, leave = d.filter([]byte(c.in[i:min(i+step, len(c.in))]))
				out = append(out, part...)
			}
			if string(out) != c.out || leave != c.leave {
				t.Errorf("%q in %q by %d: %q, %v, want %q, %v", c.keys, c.in, step, out, leave, c.out, c.leave)
			}
		}
	}
}

func TestParseKeys(t *testing.T) {
	for s, want := range map[string]string{"ctrl-p,ctrl-q": "\x10\x11", "ctrl-a,d": "\x01d", "": "", "ctrl-@": "\x00", "~,.": "~.", "ctrl-[": "\x1b"} {
		var got []byte
		if err := keysValue(&got).Set(s); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v, want %q", s, got, err, want)
		}
	}
	for _, s := range []string{",", "ctrl-", "ctrl-ab", "ab", "ctrl-1", " ", "é"} {
		var got []byte
		if err := keysValue(&got).Set(s); err == nil {
			t.Errorf("%q: %q, want an error", s, got)
		}
	}
}

// Detach keys are found however the input is split, and no input is lost.
func FuzzDetacher(f *testing.F) {
	f.Add([]byte("\x10\x11"), []byte("a\x10\x10\x11b"), uint8(1))
	f.Add([]byte("aab"), []byte("aaaab"), uint8(2))
	f.Fuzz(func(t *testing.T, keys, in []byte, step uint8) {
		if len(keys) == 0 || step == 0 {
			return
		}
		d := &detacher{keys: keys}
		var out []byte
		leave := false
		for rest := in; len(rest) > 0 && !leave; {
			n := min(int(step), len(rest))
			var part []byte
			part, leave = d.filter(rest[:n])
			out, rest = append(out, part...), rest[n:]
		}
		at := bytes.Index(in, keys)
		if leave != (at >= 0) {
			t.Fatalf("%q in %q by %d: left is %v", keys, in, step, leave)
		}
		want := in
		if leave {
			want = in[:at]
		} else {
			out = append(out, keys[:d.seen]...) // held back
		}
		if !bytes.Equal(out, want) {
			t.Errorf("%q in %q by %d: %q, want %q", keys, in, step, out, want)
		}
	})
}
