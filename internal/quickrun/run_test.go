package quickrun

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/oneshot"
	"github.com/boxd/boxd/internal/sigwatch"
)

// daemon accepts one run at a new socket and answers with end once the descriptors have come. Whatever came after the
// request is sent on got.
func daemon(t *testing.T, end string) (socket string, got <-chan string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "boxd-quickrun-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan string, 1)
	go func() {
		defer close(came)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		in := bufio.NewReader(c)
		q, err := http.ReadRequest(in)
		if err == nil {
			_, err = io.Copy(io.Discard, q.Body)
		}
		if err != nil {
			t.Errorf("request: %v", err)
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n") // on an error, ReadByte fails too
		if _, err := in.ReadByte(); err != nil {
			return
		}
		came <- "descriptors"
		_, _ = io.WriteString(c, end) // on an error, the client says so
	}()
	t.Cleanup(func() {
		l.Close()
		for range came {
		}
	})
	return socket, came
}

// TestStatus: a refusal of the daemon has the exit status that the command has without a daemon, and is left to package
// cli only if somebody else may succeed.
func TestStatus(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket, other := os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket")
	defer socket.Close()
	other.Close() // the end of the input
	stdin, stderr := os.Stdin, os.Stderr
	defer func() { os.Stdin, os.Stderr = stdin, stderr }()
	os.Stdin = socket
	for _, c := range []struct {
		code, flags string
		status      int
		ok          bool
	}{
		{apitypes.CodeProgramNotFound, "", 127, true}, {apitypes.CodeProgramNotFound, "-i", 127, true},
		{apitypes.CodeProgramNotExecutable, "", 126, true}, {apitypes.CodeProgramNotExecutable, "-i", 126, true},
		{apitypes.CodeNoDirectory, "", 125, true}, {apitypes.CodeNoDirectory, "-i", 125, true},
		{apitypes.CodeQuota, "", 0, false}, {apitypes.CodeQuota, "-i", 125, true}, // its input is lost
	} {
		at, _ := daemon(t, `{"error":{"code":"`+c.code+`","detail":"no\u001b[2J\u009b\nway"}}`+"\n")
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		os.Stderr = write
		status, ok := run(append(strings.Fields(c.flags), "--socket", at, "--", "x"))
		os.Stderr = stderr
		write.Close()
		said, err := io.ReadAll(read)
		if err != nil {
			t.Fatal(err)
		}
		read.Close()
		want := ""
		if c.ok {
			want = "boxd: no?[2J?; way\n"
		}
		if status != c.status || ok != c.ok || string(said) != want {
			t.Errorf("%+v: %d, %v, %q", c, status, ok, said)
		}
	}
}

// TestSignalBeforeStart: a command is not started after a signal.
func TestSignalBeforeStart(t *testing.T) {
	at, got := daemon(t, "")
	r, err := oneshot.Ask(at, false, &apitypes.RunRequest{Argv: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	in := make(chan os.Signal, 1)
	signals := sigwatch.New(in)
	defer signals.Stop()
	in <- syscall.SIGINT
	<-signals.Context.Done()
	if _, err := converse(r, signals, nil, false); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
	r.Close()
	if came, ok := <-got; ok {
		t.Errorf("the daemon got %s", came)
	}
}
