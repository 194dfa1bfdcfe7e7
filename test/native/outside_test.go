package native

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// takeLocks takes argv[1] POSIX locks of a byte each, 1,000 a file, says so, and holds them.
const takeLocks = `
import fcntl, os, struct, sys
want, files = int(sys.argv[1]), []
for i in range(want):
    if i % 1000 == 0: files.append(os.open("/tmp/%d" % (i // 1000), os.O_RDWR | os.O_CREAT))
    fcntl.fcntl(files[-1], fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, i % 1000 * 2, 1, 0))
print("taken", flush=True)
sys.stdin.read()
`

// cork begins argv[1] datagrams of 60 KB and sends none.
const cork = `
import socket, sys
held = []
for i in range(int(sys.argv[1])):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("127.0.0.1", 9))
    try: s.send(bytes(60000), socket.MSG_MORE)
    except OSError as e: print("refused", e); sys.exit(3)
    held.append(s)
print("taken", flush=True)
sys.stdin.read()
`

// resetClients connects to listeners that never accept, sends argv[1] bytes and resets the connection
// with connect(AF_UNSPEC): argv[2] listeners with argv[3] connections each. It stops when
// the TCP sockets of the host hold 300 MB.
const resetClients = `
import ctypes, re, socket, sys
size, listeners, each = map(int, sys.argv[1:])
libc, client, held = ctypes.CDLL(None, use_errno=True), socket.socket(), []
for i in range(listeners):
    server = socket.create_server(("127.0.0.1", 0), backlog=each)
    held.append(server)
    for j in range(each):
        client.connect(server.getsockname())
        client.send(bytes(size), socket.MSG_DONTWAIT)
        if libc.connect(client.fileno(), bytes(16), 16): sys.exit(ctypes.get_errno())
    if int(re.search("TCP:.* mem ([0-9]+)", open("/proc/self/net/sockstat").read())[1]) * 4096 > 300e6: break
print("taken", flush=True)
sys.stdin.read()
`

// corkAndDisconnect begins argv[1] datagrams of 60 KB in each of two processes, and
// disconnects their sockets.
const corkAndDisconnect = `
import ctypes, os, socket, sys
libc, held = ctypes.CDLL(None, use_errno=True), []
os.fork()
for i in range(int(sys.argv[1])):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("127.0.0.1", 9))
    s.send(bytes(60000), socket.MSG_MORE)
    if libc.connect(s.fileno(), bytes(16), 16): sys.exit(ctypes.get_errno())
    held.append(s)
print("taken", flush=True)
sys.stdin.read()
`

// fileLocks returns how many file locks the host has, and the size of one in the kernel: see
// slabinfo(5). The kernel merges caches of one size, so that this one may stand under the
// name of another: then it is found in /sys/kernel/slab.
func fileLocks(t *testing.T) (n, size int64) {
	t.Helper()
	const cache = "file_lock_cache"
	text, err := os.ReadFile("/proc/slabinfo")
	if err != nil {
		t.Fatal(err)
	}
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == cache {
			return number(f[1]), number(f[3])
		}
	}
	attribute := func(name string) int64 { // "84 N0=84" is the sum, and then each node
		text, err := os.ReadFile(filepath.Join("/sys/kernel/slab", cache, name))
		if err != nil {
			t.Fatalf("the kernel lists no cache of file locks: %v", err)
		}
		sum, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		return number(sum)
	}
	return attribute("objects"), attribute("slab_size")
}

// TestOutsideOfCharge: what a box holds and no cgroup is charged for counts against its
// memory limit, and the verdict says so. Each attacker stops by itself at some 300 MB.
func TestOutsideOfCharge(t *testing.T) {
	limit := int64(64 * mib)
	if testing.Short() {
		limit = 24 * mib
	}
	for _, c := range []struct {
		name, script, by string
		args             []string
	}{
		{"file locks", takeLocks, "file locks", []string{"1000000"}},
		{"datagrams that nobody sends", cork, "sockets", []string{"1000"}},
		{"connections that their clients reset", resetClients, "sockets", []string{"131072", "20", "128"}},
		{"corked sockets that are disconnected", corkAndDisconnect, "sockets", []string{"750"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, size := fileLocks(t)
			b := newBox(t, engine.Spec{Limits: engine.Limits{Memory: limit}})
			cmd := python(c.script, c.args...)
			cmd.Stdin, _ = neverRead(t) // who is not ended stays
			cmd.Timeout = patience / 4
			o := run(t, b, cmd)
			want(t, o, engine.OOM, 137)
			if !strings.HasPrefix(o.Limit, spec.FormatSize(limit)+", of which ") || !strings.HasSuffix(o.Limit, " held by "+c.by+" outside its charge") {
				t.Errorf("limit %q does not name %s", o.Limit, c.by)
			}
			if o.Receipt.OOMKills == nil || *o.Receipt.OOMKills < 1 {
				t.Error("the receipt counts no kill")
			}
			if c.by == "file locks" {
				waitUntil(t, "the locks are gone", func() bool {
					n, _ := fileLocks(t)
					return (n-before)*size < 8*mib
				})
			}
			// The limit rises again with the next looks.
			waitUntil(t, "all of the memory is there again", func() bool {
				o, err := tryRun(t, b, python("x = bytearray(12 << 20); print('ok')"))
				return err == nil && o.Stdout == "ok\n"
			})
		})
	}
}

// TestResetClientsOfHonestServer: connections that were reset before the server accepts them
// end nothing.
func TestResetClientsOfHonestServer(t *testing.T) {
	testutil.Long(t)
	b := newBox(t, engine.Spec{Limits: engine.Limits{Memory: 64 * mib}})
	p, in := beginHolding(t, b, python(resetClients, "1000", "1", "100"), "taken\n")
	// The launcher looks after this lot again only with the next box that is ended.
	greedy := python(takeLocks, "1000000")
	greedy.Stdin, _ = neverRead(t)
	want(t, run(t, newBox(t, engine.Spec{Limits: engine.Limits{Memory: 24 * mib}}), greedy), engine.OOM, 137)
	if got := limitInForce(t, b.ID()); got < 50*mib { // all 100 at the estimate are 12.7 MiB
		t.Errorf("the limit of the server is %d", got)
	}
	in.Close()
	if r := wait(t, p); r.Verdict != engine.Exited || r.ExitCode != 0 {
		t.Errorf("the server: %s, %d, limit %q", r.Verdict, r.ExitCode, r.Limit)
	}
}

// spreadLocks takes 4,000 locks in each of 60 files, and shows them at 1,000 descriptors,
// which 30 more processes inherit.
const spreadLocks = `
import fcntl, os, struct, sys
files = [os.open("/tmp/%d" % i, os.O_RDWR | os.O_CREAT) for i in range(60)]
for f in files:
    for i in range(4000): fcntl.fcntl(f, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 2 * i, 1, 0))
for i in range(900): os.dup(files[i % 60])
for i in range(30):
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
print("taken", flush=True)
sys.stdin.read()
`

// TestSpreadLocks: a box whose locks take long to count does not keep the launcher from
// finding those of another.
func TestSpreadLocks(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	slow := create(t, e, engine.Spec{Limits: engine.Limits{Memory: 512 * mib}})
	greedy := create(t, e, engine.Spec{Limits: engine.Limits{Memory: 24 * mib}})
	beginHolding(t, slow, python(spreadLocks), "taken\n")
	waitUntil(t, "the limit is lowered", func() bool { return limitInForce(t, slow.ID()) < 500*mib })
	cmd := python(takeLocks, "1000000")
	cmd.Stdin, _ = neverRead(t)
	cmd.Timeout = patience / 2
	want(t, run(t, greedy, cmd), engine.OOM, 137)
}

// ordinary is what a program may well do: 200 connections with data under way, a database, and
// some locks.
const ordinary = `
import fcntl, os, socket, sqlite3, struct, sys
server = socket.create_server(("127.0.0.1", 0), backlog=100)
held = []
for i in range(200):
    a = socket.create_connection(server.getsockname())
    b, _ = server.accept()
    a.send(bytes(2000))
    held += [a, b]
for i in range(50): held.append(socket.create_connection(server.getsockname()))
db = sqlite3.connect("/tmp/db")
db.execute("create table x (n)")
for i in range(20): db.execute("insert into x values (?)", (i,))
f = os.open("/tmp/f", os.O_RDWR | os.O_CREAT)
for i in range(1000): fcntl.fcntl(f, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 2 * i, 1, 0))
print("ready", flush=True)
sys.stdin.read()
db.commit()
`

// TestOrdinaryBoxIsLeftAlone while the box beside it is ended.
func TestOrdinaryBoxIsLeftAlone(t *testing.T) {
	testutil.Long(t)
	e := start(t)
	limits := engine.Limits{Memory: 64 * mib}
	quiet, greedy := create(t, e, engine.Spec{Limits: limits}), create(t, e, engine.Spec{Limits: limits})
	p, in := beginHolding(t, quiet, python(ordinary), "ready\n")
	cmd := python(takeLocks, "1000000")
	cmd.Stdin, _ = neverRead(t)
	want(t, run(t, greedy, cmd), engine.OOM, 137)
	if got := limitInForce(t, quiet.ID()); got != 64*mib {
		t.Errorf("the limit of the other box is %d", got)
	}
	in.Close()
	if r := wait(t, p); r.Verdict != engine.Exited || r.ExitCode != 0 {
		t.Errorf("the ordinary command: %s, %d, limit %q", r.Verdict, r.ExitCode, r.Limit)
	}
}

// TestLimitAfterLauncherDied: a limit that was lowered when the launcher died rises again,
// and one that was changed meanwhile is the changed one.
func TestLimitAfterLauncherDied(t *testing.T) {
	s, dir := newService(t)
	b := createLive(t, s, engine.Spec{Limits: engine.Limits{Memory: 64 * mib}})
	_, size := fileLocks(t) // 192 bytes, but kernels differ
	p, in := beginHolding(t, b, python(takeLocks, fmt.Sprint(11*mib/size)), "taken\n")
	waitUntil(t, "the limit is lowered", func() bool { return limitInForce(t, b.ID()) < 54*mib })
	update(t, b, engine.Limits{Memory: 80 * mib})
	if got := limitInForce(t, b.ID()); got > 70*mib || got < 66*mib {
		t.Errorf("raised by 16 MiB the limit is %d, want some 69 MiB", got)
	}
	killLauncher(t, dir)
	in.Close()
	if r := wait(t, p); r.ExitCode != 0 {
		t.Errorf("the command: %s, %d", r.Verdict, r.ExitCode)
	}
	waitUntil(t, "the limit is what was asked for", func() bool { return limitInForce(t, b.ID()) == 80*mib })
}

// beginHolding starts a command that prints line and then holds its resources until its stdin is closed.
func beginHolding(t *testing.T, b engine.Box, c engine.Command, line string) (engine.Process, *os.File) {
	t.Helper()
	stdin, in := neverRead(t)
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	defer stdout.Close()
	c.Stdin, c.Stdout, c.Stderr = stdin, stdout, os.Stderr
	p := begin(t, b, c)
	stdout.Close()
	said := make([]byte, len(line))
	if _, err := io.ReadFull(out, said); err != nil || string(said) != line {
		t.Fatalf("it said %q, %v, want %q", said, err, line)
	}
	return p, in
}

// neverRead is a stdin that does not end before the test, unless its other end is closed.
func neverRead(t *testing.T) (stdin, in *os.File) {
	t.Helper()
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); in.Close() })
	return stdin, in
}

// limitInForce is the memory limit of the commands of a box, as the kernel has it.
func limitInForce(t *testing.T, id string) int64 {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/boxd/*." + id + "/work/memory.max", "/sys/fs/cgroup/memory/boxd/*." + id + "/work/memory.limit_in_bytes"} {
		if files, _ := filepath.Glob(pattern); len(files) == 1 {
			text, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("box %s has no memory limit", id)
	return 0
}
