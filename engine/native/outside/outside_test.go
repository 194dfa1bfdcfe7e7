package outside

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestHost(t *testing.T) {
	const meminfo = `MemTotal:       24684092 kB
MemFree:        22757440 kB
MemAvailable:   24069300 kB
Buffers:            8132 kB
Cached:          1474100 kB
SwapCached:            0 kB
AnonPages:         39472 kB
KReclaimable:     114028 kB
Slab:             144720 kB
SUnreclaim:        30692 kB
HugePages_Total:       0
`
	if got := KernelMemory(meminfo); got != 290920<<10 {
		t.Errorf("kernel memory %d KiB, want 290920", got>>10)
	}
	const slabinfo = `slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>
file_lock_ctx         73     73     56   73    1 : tunables    0    0    0 : slabdata      1      1      0
file_lock_cache    40003  40005    192   21    1 : tunables    0    0    0 : slabdata   1905   1905      0
`
	if locks, size := LockCache(slabinfo); locks != 40003 || size != 192 {
		t.Errorf("%d locks of %d bytes, want 40003 of 192", locks, size)
	}
	if locks, size := LockCache("slabinfo - version: 2.1\n"); locks != -1 || size != 192 {
		t.Errorf("%d locks of %d bytes without the cache", locks, size)
	}
}

// The files are as Linux 6.18 writes them.
const (
	tcp = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode                                                     
   0: 0100007F:C79F 00000000:0000 0A 00000000:00000002 00:00000000 00000000     0        0 186430 3 00000000fe261061 100 0 0 10 0                    
   1: 0100007F:C79F 0100007F:8C1C 01 00000010:000003E8 00:00000000 00000000     0        0 186434 1 000000003d464d55 20 4 32 10 -1                   
   2: 0100007F:8C1C 0100007F:C79F 06 00000000:00000000 03:00001720 00000000     0        0 0 3 000000005e791efe                                      
   3: 0100007F:C79F 0100007F:8C2A 01 00000000:000003E8 00:00000000 00000000     0        0 0 1 0000000061192ca7 20 4 32 10 -1                        
   4: 0100007F:C79F 0100007F:8C38 08 00000000:00000001 00:00000000 00000000     0        0 0 1 0000000074941014 20 4 32 10 -1                        
   5: 0100007F:C7AF 0100007F:8C38 04 00000005:00000000 00:00000000 00000000     0        0 0 1 0000000074941014 20 4 32 10 -1                        
   6: 0100007F:C7B1 0100007F:8C38 02 48E7F432:00000000 00:00000000 00000000     0        0 186451 1 0000000074941014 20 4 32 10 -1                   
   7: 0100007F:C7B2 0100007F:8C38 01 FFFF0000:00000000 00:00000000 00000000     0        0 186452 1 0000000074941014 20 4 32 10 -1                   
`
	udp = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops             
 4505: 0100007F:C8B5 0100007F:0009 01 00005160:00000900 00:00000000 00000000     0        0 186435 2 000000003eb9af16 0        
`
	netlink = `sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
000000007619198e 0   0          00000000 0        0        0     2        0        185696  
00000000818a52aa 0   18456      00000000 768      256      0     2        0        186436  
`
	protocols = `protocol  size sockets  memory press maxhdr  slab module     cl co di ac io in de sh ss gs se re bi br ha uh gp em
PINGv6    1344      0      -1   NI       0   yes  kernel      y  y  y  n  n  y  n  n  y  y  y  y  y  y  n  y  y  n
TCP       2304      7     160   no     192   yes  kernel      y  y  y  y  y  y  y  y  y  y  y  y  n  y  y  y  y  y
`
)

func TestSocketTables(t *testing.T) {
	for _, c := range []struct {
		name, text string
		add        func(*Sockets, []string, int64)
		want       Sockets
	}{
		// Two connections wait to be accepted, with 1,001 bytes; an accepted one holds 1,016
		// bytes, and a closed one 5. Those of the last two lines were read while they changed.
		{"tcp", tcp, (*Sockets).addTCP, Sockets{Never: 2*2304 + 1001, Maybe: 1021, backlog: 2, waiting: 2, tcpQueues: 2022}},
		{"udp", udp, (*Sockets).addUDP, Sockets{Never: 0x5160, Maybe: 0x900}},
		{"icmp", udp, (*Sockets).addPing, Sockets{Never: 0x5160 + 0x900}},
		{"netlink", netlink, (*Sockets).addNetlink, Sockets{Never: 1024}},
		{"garbage", "a\nb c\n0: 1 2 3\n" + strings.Repeat("x ", 12), (*Sockets).addTCP, Sockets{}},
		{"nothing", "", (*Sockets).addUDP, Sockets{}},
	} {
		var s Sockets
		if err := s.addTable(strings.NewReader(c.text), table{add: c.add}, 2304, 1<<20); err != nil || s != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, s, err, c.want)
		}
	}
	if k := parseProtocols(protocols); k["TCP"] != (kind{2304, 7}) || k["PINGv6"] != (kind{1344, 0}) {
		t.Errorf("protocols: %v", k)
	}
	// Reading stops when enough is found.
	var s Sockets
	if err := s.addTable(strings.NewReader(tcp), table{add: (*Sockets).addTCP}, 2304, 100); err != nil || s.Never != 2304+1000 {
		t.Errorf("enough is %+v, %v", s, err)
	}
}

// TestHiddenSockets: sockets that no table lists count with an estimate.
func TestHiddenSockets(t *testing.T) {
	// Five listeners, each with 128 connections that were reset, as Linux 6.18 shows them; the
	// client's socket is the 646th. Then as many corked UDP sockets, disconnected.
	const (
		listener  = "   0: 0100007F:8661 00000000:0000 0A 00000000:%08X 00:00000000 00000000     0        0 9007154 129 00000000ab70a654 100 0 0 10 0                 \n"
		sockstat  = "sockets: used %d\nTCP: inuse 5 orphan 0 tw 0 alloc 647 mem %d\nUDP: inuse 0 mem 0\nUDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n"
		protocols = "protocol  size sockets  memory press maxhdr  slab module     cl co di ac io in de sh ss gs se re bi br ha uh gp em\n" +
			"UDP       1152    %d       0   NI       0   yes  kernel      y  y  y  n  y  y  y  n  y  y  y  y  y  n  n  y  y  y\n" +
			"TCP       2304    %d   18877   no     192   yes  kernel      y  y  y  y  y  y  y  y  y  y  y  y  n  y  y  y  y  y\n"
		each = 2304 + 128<<10
	)
	for _, c := range []struct {
		name                         string
		backlog, used, udp, tcp, mem int64
		inQueues, accepted, want     int64
	}{
		{name: "five listeners full of dead connections", backlog: 640, used: 646, tcp: 5, mem: 1 << 20, want: 640 * each},
		{name: "no more than the TCP memory of the host", backlog: 640, used: 646, tcp: 5, mem: 18877, want: 18877 * 4096},
		{name: "nor than what the listed sockets leave of it", backlog: 640, used: 646, tcp: 5, mem: 18877, inQueues: 1 << 20, want: 18877*4096 - 1<<20},
		{name: "all of it is listed", backlog: 640, used: 646, tcp: 5, mem: 10, inQueues: 1 << 20},
		{name: "an honest server on a quiet host", backlog: 100, used: 101, tcp: 1, mem: 100, want: 100 * 4096},
		{name: "a few reset clients on a busy host", backlog: 64, used: 65, tcp: 1, mem: 1 << 20},
		{name: "connections accepted while the table was read", backlog: 640, used: 1290, tcp: 1285, mem: 1 << 20},
		{name: "living connections in the queue", backlog: 640, used: 1286, tcp: 1285, accepted: 640, mem: 1 << 20},
		{name: "disconnected UDP sockets", used: 1500, mem: 300, want: (1500 - 256) * 64 << 10},
		{name: "some sockets without an address", used: 256, mem: 300},
		{name: "UDP sockets with an address", used: 1500, udp: 1500, mem: 300},
		{name: "both attacks", backlog: 640, used: 5 + 640 + 300, tcp: 5, mem: 1 << 20, want: 640*each + 44*64<<10},
	} {
		s := Sockets{waiting: c.accepted, tcpQueues: c.inQueues}
		text := "header\n"
		for left := c.backlog; left > 0; left -= 128 {
			text += fmt.Sprintf(listener, min(left, 128))
		}
		if err := s.addTable(strings.NewReader(text), table{add: (*Sockets).addTCP}, 2304, 1<<40); err != nil {
			t.Fatal(err)
		}
		used, memory := parseSockstat(fmt.Sprintf(sockstat, c.used, c.mem))
		kinds := parseProtocols(fmt.Sprintf(protocols, c.udp, c.tcp))
		if s.addHidden(used-listed(kinds), kinds["TCP"].size, memory); s.Never != c.want {
			t.Errorf("%s: charged %d, want %d", c.name, s.Never, c.want)
		}
	}
	if used, memory := parseSockstat("sockets: used\nTCP: mem x\n\n"); used != 0 || memory != 0 {
		t.Errorf("garbage: %d, %d", used, memory)
	}
}

// TestUncharged: memory that is charged is not counted again.
func TestUncharged(t *testing.T) {
	s := Sockets{Never: 10, Maybe: 100}
	for charge, want := range map[int64]int64{0: 110, 60: 50, 100: 10, 1000: 10} {
		if got := s.Uncharged(charge); got != want {
			t.Errorf("with a charge of %d: %d, want %d", charge, got, want)
		}
	}
}

func count(t *testing.T) int64 {
	t.Helper()
	return countOf(t, 1<<30, os.Getpid())
}

func countOf(t *testing.T, enough int64, pids ...int) int64 {
	t.Helper()
	l, err := new(LockCounter).Count(pids, enough, time.Now().Add(time.Hour))
	if err != nil || l.Cut {
		t.Fatal(l, err)
	}
	sum := int64(0)
	for _, n := range l.Of {
		sum += n
	}
	if sum != l.Sum {
		t.Errorf("%+v: the processes have %d", l, sum)
	}
	return l.Sum
}

func lock(t *testing.T, f *os.File, cmd int, at int64) {
	t.Helper()
	if err := unix.FcntlFlock(f.Fd(), cmd, &unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1}); err != nil {
		t.Fatal(err)
	}
}

// TestCountLocks: each lock counts once, in whichever descriptors, tables or processes it
// shows.
func TestCountLocks(t *testing.T) {
	if n := count(t); n != 0 {
		t.Fatalf("%d locks already", n)
	}
	path := filepath.Join(t.TempDir(), "x")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := open(), open()
	for i := range int64(100) {
		lock(t, a, unix.F_SETLK, 2*i)
	}
	if n := count(t); n != 100 {
		t.Errorf("%d POSIX locks, want 100", n)
	}
	if dup, err := unix.Dup(int(a.Fd())); err != nil {
		t.Fatal(err)
	} else {
		defer unix.Close(dup)
	}
	if n := count(t); n != 100 {
		t.Errorf("%d locks with a duplicate, want 100", n)
	}
	// Two open files with the same locks, which show the same text.
	for i := range int64(10) {
		lock(t, a, unix.F_OFD_SETLK, 1000+2*i)
		lock(t, b, unix.F_OFD_SETLK, 1000+2*i)
	}
	if n := count(t); n != 120 {
		t.Errorf("%d locks with those of open files, want 120", n)
	}
	if err := unix.Flock(int(b.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if n := count(t); n != 121 {
		t.Errorf("%d locks with a flock, want 121", n)
	}
	if n := countOf(t, 1<<30, os.Getpid(), os.Getpid()); n != 121 {
		t.Errorf("%d locks of a process that is listed twice", n)
	}
	if n := countOf(t, 50, os.Getpid()); n < 50 || n > 121 {
		t.Errorf("%d locks where 50 are enough", n)
	}
	// Without time for more, it continues where it stopped.
	var c LockCounter
	l, err := c.Count([]int{os.Getpid()}, 1<<30, time.Now())
	if !l.Cut || err != nil {
		t.Fatalf("without time: %+v, %v", l, err)
	}
	for range 10_000_000 {
		if l, err = c.Count(nil, 1<<30, time.Now().Add(time.Microsecond)); !l.Cut || err != nil {
			break
		}
	}
	if l.Cut || l.Sum != 121 || err != nil {
		t.Errorf("in pieces: %+v, %v, want 121 locks", l, err)
	}
}

// TestCountLocksOfForks: processes that share open files have separate POSIX locks, but share
// locks of flock(2).
func TestCountLocksOfForks(t *testing.T) {
	const script = `
import fcntl, os, struct, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(f, fcntl.LOCK_SH)
for i in range(20): os.dup(f)
for i in range(2): os.fork()
for i in range(50): fcntl.fcntl(f, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 2 * i, 1, 0))
os.write(1, b"%d\n" % os.getpid())
sys.stdin.read()
`
	cmd := exec.Command("python3", "-c", script, filepath.Join(t.TempDir(), "x"))
	stdout := testutil.StartChild(t, cmd)
	var pids []int
	for lines := bufio.NewScanner(stdout); len(pids) < 4 && lines.Scan(); {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	l, err := new(LockCounter).Count(pids, 1<<30, time.Now().Add(time.Hour))
	if err != nil || l.Sum != 4*50+1 {
		t.Errorf("%+v, %v, want 201 locks", l, err)
	}
	for _, pid := range pids {
		if n := l.Of[pid]; n != 50 && n != 51 {
			t.Errorf("%d locks of process %d", n, pid)
		}
	}
}

// TestCountLocksOfThread: a thread can have a separate descriptor table, which the process
// does not show.
func TestCountLocksOfThread(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	taken, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // and never unlock it: the thread is of no further use
		taken <- func() error {
			if err := unix.Unshare(unix.CLONE_FILES); err != nil {
				return err
			}
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT, 0o600)
			if err != nil {
				return err
			}
			for i := range int64(10) {
				if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 2 * i, Len: 1}); err != nil {
					return fmt.Errorf("locking: %w", err)
				}
			}
			return nil
		}()
		<-done
	}()
	defer close(done)
	if err := <-taken; err != nil {
		t.Fatal(err)
	}
	if n := count(t); n != 10 {
		t.Errorf("%d locks of a thread, want 10", n)
	}
}

// TestCountLocksOfNobody: processes end.
func TestCountLocksOfNobody(t *testing.T) {
	if n := countOf(t, 10, 1<<30); n != 0 {
		t.Errorf("%d locks", n)
	}
}
