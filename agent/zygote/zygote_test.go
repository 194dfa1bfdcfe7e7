package zygote

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// peer returns a spare that the test plays, and its end of the socket.
func peer(t *testing.T) (*Spare, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Close(fds[0])
		unix.Close(fds[1])
	})
	return &Spare{FD: fds[0]}, fds[1]
}

func TestPayload(t *testing.T) {
	got, err := Payload(Command{Args: []string{"a", ""}, Env: []string{"X=\xff"}, Dir: "/d", MakeDir: true})
	if want := "2\x001\x001\x00/d\x00a\x00\x00X=\xff\x00"; err != nil || string(got[4:]) != want || int(binary.LittleEndian.Uint32(got)) != len(want) {
		t.Errorf("%q, %v", got, err)
	}
	for _, command := range []Command{{Args: []string{"a\x00b"}}, {Env: []string{"\x00"}}, {Dir: "a\x00"}} {
		if _, err := Payload(command); err == nil {
			t.Errorf("%+v is accepted", command)
		}
	}
}

// Whatever a spare says, it does not decide more than whether the command has been started.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		says string
		warm bool
		want string // of the error
	}{
		{"0", true, ""},
		{"1", false, ""}, // and the end
		{"1exec 2\n", false, "exec: no such file or directory"},
		{"chdir 13\n", false, "chdir: permission denied"},
		{"mkdir 28\n", false, "mkdir: no space left on device"},
		{"cwd 1\n", false, "cwd: operation not permitted"},
		{"cold 0\n", false, ErrCold.Error()},
		{"1cold 0\n", false, "zygote: executing a command: " + ErrBegun.Error()},
		{"1x", false, "zygote: executing a command: " + ErrBegun.Error()},
		{"", false, "zygote: starting a command: " + ErrEnded.Error()},
		{"chdir 0\n", false, "zygote: a spare answered"},
		{"chdir 99999\n", false, "zygote: a spare answered"},
		{"chdir -1\n", false, "zygote: a spare answered"},
		{"setuid 1\n", false, "zygote: a spare answered"},
		{"00", false, "zygote: a spare answered"},
		{"\xff\x00", false, "zygote: a spare answered"},
		{strings.Repeat("0", 100000), false, "zygote: a spare answered"},
	} {
		spare, fd := peer(t)
		go func() {
			unix.Write(fd, []byte(c.says))
			unix.Shutdown(fd, unix.SHUT_WR)
		}()
		warm, err := spare.Run(Command{Args: []string{"x"}, Dir: "/"}, patience)
		if warm != c.warm || (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%.40q: warm %v, %v", c.says, warm, err)
		}
	}
}

// A spare that reads or says nothing, or a byte now and then, has until the deadline.
func TestSilence(t *testing.T) {
	const within = 50 * time.Millisecond
	big := Command{Args: []string{strings.Repeat("x", 8<<20)}, Dir: "/"}
	t.Run("says nothing", func(t *testing.T) {
		spare, _ := peer(t)
		if _, err := spare.Run(Command{Dir: "/"}, within); !errors.Is(err, unix.ETIMEDOUT) {
			t.Error(err)
		}
	})
	t.Run("says nothing after it has begun", func(t *testing.T) {
		spare, fd := peer(t)
		if _, err := unix.Write(fd, []byte("1")); err != nil {
			t.Fatal(err)
		}
		if _, err := spare.Run(Command{Dir: "/"}, within); !errors.Is(err, ErrBegun) || errors.Is(err, unix.ETIMEDOUT) {
			t.Error(err)
		}
	})
	t.Run("reads nothing", func(t *testing.T) {
		spare, _ := peer(t)
		if _, err := spare.Run(big, within); !errors.Is(err, unix.ETIMEDOUT) {
			t.Error(err)
		}
	})
	t.Run("reads slowly", func(t *testing.T) {
		spare, fd := peer(t)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for ticker := time.NewTicker(time.Millisecond); ; {
				select {
				case <-stop:
					return
				case <-ticker.C:
					unix.Read(fd, make([]byte, 4096))
				}
			}
		}()
		if _, err := spare.Run(big, within); !errors.Is(err, unix.ETIMEDOUT) {
			t.Error(err)
		}
		close(stop)
		<-stopped
	})
	t.Run("zygote says nothing", func(t *testing.T) {
		ours, theirs, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(ours)
		defer unix.Close(theirs)
		if err := Load(ours, []string{"x"}, nil, within); !errors.Is(err, unix.ETIMEDOUT) {
			t.Error(err)
		}
		if _, err := Fork(ours, within); !errors.Is(err, unix.ETIMEDOUT) {
			t.Error(err)
		}
	})
}

// Descriptors that a spare sends are closed, and nothing waits for that.
func TestDescriptorsAreDropped(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	spare, fd := &Spare{FD: fds[0]}, fds[1]
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(spare.FD, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		t.Fatal(err)
	}
	var lingering [4]int
	for i := range lingering {
		var stop func()
		var err error
		if lingering[i], stop, err = testutil.LingeringSocket(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
	}
	before := descriptors(t)
	// Each is sent as the last copy.
	send := func(text string, i, others int) {
		if err := unix.Sendmsg(fd, []byte(text), unix.UnixRights(append(make([]int, others), lingering[i])...), nil, 0); err != nil {
			t.Error(err)
		}
		unix.Close(lingering[i])
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		const most = 252 // and one more
		send("0", 0, most)
		if warm, err := spare.Run(Command{Dir: "/"}, patience); !warm || err != nil {
			t.Error(warm, err)
		}
		send("h", 1, most)
		if got, err := receiveHello(newConn(spare.FD, patience)); err != nil || got.PID != os.Getpid() {
			t.Error(got, err)
		}
		if spare.Peek() {
			t.Error("something is said")
		}
		send("x", 2, most)
		if !spare.Peek() {
			t.Error("nothing is said")
		}
		send("y", 3, 0)
		Close(spare.FD)
	}()
	late := time.After(10 * time.Second)
	select {
	case <-done:
	case <-late:
		t.Fatal("it waits for a descriptor")
	}
	for want := before - len(lingering) - 1; descriptors(t) != want; runtime.Gosched() {
		select {
		case <-late:
			t.Fatalf("%d descriptors, want %d", descriptors(t), want)
		default:
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// The program goes to the zygote in one packet, and lines of Python 2 can say that it is not supported.
func TestProgram(t *testing.T) {
	if len(python) > 100_000 || !bytes.Contains(python, []byte("is not supported")) || bytes.IndexFunc(python, func(r rune) bool { return r > 126 }) >= 0 {
		t.Errorf("%d bytes", len(python))
	}
}

func FuzzAnswer(f *testing.F) {
	for _, line := range []string{"0", "1", "chdir 2\n", "exec 13\n", "cold 0\n", "cwd", " "} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		err := answer(line)
		if err == nil {
			t.Errorf("%q has started a command", line)
		}
		var setup *SetupError
		if errors.As(err, &setup) && (setup.Errno == 0 || setup.Errno > 4095) {
			t.Errorf("%q: %v", line, setup)
		}
	})
}
