package native

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
)

// hoard has many processes open sockets at the same time, counts how many they
// have when each was refused, lets go, and opens one more.
const hoard = `
import errno, os, resource, socket, sys
family, processes = int(sys.argv[1]), int(sys.argv[2])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
go, let_go = os.pipe(), os.pipe()
def child(report):
    os.close(go[1]); os.close(let_go[1])
    have = []
    os.read(go[0], 1)
    try:
        while True: have.append(socket.socket(family, socket.SOCK_DGRAM))
    except OSError as e: why = e.errno
    os.write(report, b"%d %d\n" % (len(have), why))
    os.read(let_go[0], 1)
    os._exit(0)
read, report = os.pipe()
for _ in range(processes):
    if os.fork() == 0: child(report)
os.close(go[1])
lines, r = [], os.fdopen(read)
for _ in range(processes): lines.append(r.readline().split())
print(sum(int(n) for n, _ in lines), {errno.errorcode[int(e)] for _, e in lines})
os.close(let_go[1])
for _ in range(processes): os.wait()
print(len([socket.socket(family, socket.SOCK_DGRAM) for _ in range(8)]))
`

// TestSocketBounds: processes that race for the last places get exactly as many
// sockets as a box may have, and each refusal is ENOBUFS.
func TestSocketBounds(t *testing.T) {
	b := newBox(t, engine.Spec{})
	for _, c := range []struct {
		name                     string
		family, processes, bound int
	}{
		{"netlink", unix.AF_NETLINK, 60, 32},
		{"inet", unix.AF_INET, 12, 2048},
		{"inet6", unix.AF_INET6, 12, 2048},
	} {
		t.Run(c.name, func(t *testing.T) {
			rounds := 3
			if testing.Short() {
				rounds = 1
			}
			for range rounds {
				o := run(t, b, python(hoard, fmt.Sprint(c.family), fmt.Sprint(c.processes)))
				want(t, o, engine.Exited, 0)
				if o.Stdout != fmt.Sprintf("%d {'ENOBUFS'}\n8\n", c.bound) {
					t.Errorf("%q, want %d sockets; %q", o.Stdout, c.bound, tail(o.Stderr))
				}
			}
		})
	}
}

// TestSocketBoundsOfABusyBox: the supervisor goes on when the runtime of PID 1 has collected
// its garbage, which 100 births with large environments make it do.
func TestSocketBoundsOfABusyBox(t *testing.T) {
	b := newBox(t, engine.Spec{})
	c := shell("true")
	c.Env = []string{"LARGE=" + strings.Repeat("x", 100<<10)}
	for range 100 {
		want(t, run(t, b, c), engine.Exited, 0)
	}
	for range 3 { // a count that cannot be read would refuse what comes after the first
		o := run(t, b, python(hoard, fmt.Sprint(unix.AF_NETLINK), "40"))
		if want(t, o, engine.Exited, 0); o.Stdout != "32 {'ENOBUFS'}\n8\n" {
			t.Errorf("%q; %q", o.Stdout, tail(o.Stderr))
		}
	}
}

// TestSocketBoundIgnoresUnix: Unix sockets are under the memory limit.
func TestSocketBoundIgnoresUnix(t *testing.T) {
	b := newBox(t, engine.Spec{})
	wantOutput(t, b, `python3 -c '
import socket
netlink = [socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) for _ in range(32)]
print(len([socket.socketpair() for _ in range(200)]))
'`, "200\n")
}

// TestSocketBoundOfFlyingSockets: a socket without a descriptor, in flight over a
// Unix socket, keeps its place.
func TestSocketBoundOfFlyingSockets(t *testing.T) {
	b := newBox(t, engine.Spec{})
	o := run(t, b, python(`
import array, socket
a, b = socket.socketpair()
def put_away(s):
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
    s.close()
for _ in range(32): put_away(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW); print("one more")
except OSError as e: print(e.strerror)
a.close(); b.close()
print(len([socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) for _ in range(32)]))
`))
	want(t, o, engine.Exited, 0)
	if o.Stdout != "No buffer space available\n32\n" {
		t.Errorf("%q, %q", o.Stdout, tail(o.Stderr))
	}
}

// TestSupervisorIsOfTheBox: what a flood of supervised calls costs is charged to the
// box, because every thread of PID 1 is in cgroups of the box wherever processor
// time or memory is controlled.
func TestSupervisorIsOfTheBox(t *testing.T) {
	s, _ := newService(t)
	b := createLive(t, s, engine.Spec{})
	defer remove(t, b)
	threads, err := filepath.Glob("/proc/" + initPIDs(t, b)[0] + "/task/*/cgroup")
	if err != nil || len(threads) < 3 {
		t.Fatalf("threads of PID 1: %v, %v", threads, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(text)) {
			_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
			controllers, dir, _ := strings.Cut(rest, ":")
			controlled := controllers == "" || strings.Contains(","+controllers+",", ",memory,") ||
				strings.Contains(","+controllers+",", ",cpu,") || strings.Contains(","+controllers+",", ",pids,")
			if controlled && !strings.HasPrefix(dir, "/boxd/") {
				t.Errorf("%s: %q is in %q", path, controllers, dir)
			}
		}
	}
}

// TestSupervisorOutlivesLauncher: sockets can be made, and are bounded, while there
// is no launcher and after the next one has taken over.
func TestSupervisorOutlivesLauncher(t *testing.T) {
	s, dir := newService(t)
	b := createLive(t, s, engine.Spec{})
	defer remove(t, b)
	in, out := io.Pipe()
	answers, stdout := io.Pipe()
	c := python(`
import socket, sys
for line in sys.stdin:
    have = []
    try:
        while True: have.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
    except OSError: print(len(have), len(socket.getaddrinfo("localhost", 80)) > 0, flush=True)
    for s in have: s.close()
`)
	c.Stdin, c.Stdout = in, stdout
	p := begin(t, b, c)
	lines := bufio.NewReader(answers)
	ask := func(when string) {
		t.Helper()
		fmt.Fprintln(out)
		if line, err := lines.ReadString('\n'); line != "32 True\n" {
			t.Errorf("%s: %q, %v", when, line, err)
		}
	}
	ask("in the beginning")
	killLauncher(t, dir)
	ask("without a launcher")
	wantOutput(t, b, "echo adopted", "adopted\n")
	ask("with the next launcher")
	out.Close()
	if r := wait(t, p); r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
}

// TestFreezeDuringSupervisedCalls: a command that waits for the supervisor cannot be
// frozen, so the supervisor may not be frozen before it.
func TestFreezeDuringSupervisedCalls(t *testing.T) {
	b := newBox(t, engine.Spec{})
	host, err := cgroups.Detect()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	p := begin(t, b, python(`
import os, socket
for _ in range(20):
    if os.fork() == 0:
        while True:
            try: socket.socket().close()
            except OSError: pass
os.wait()
`))
	waitUntil(t, "there is a flood", func() bool { return len(commands(t, b)) > 20 })
	group, err := host.OpenGroup(filepath.Base(filepath.Dir(filepath.Dir(workDirs(t, b)[0]))))
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := group.Freeze(ctx)
		cancel()
		if err := errors.Join(err, group.Thaw()); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	wait(t, p)
}
