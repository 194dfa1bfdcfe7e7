package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// start runs a proxy in a process of its own and returns its address and process, and what
// shuts it down and returns how long Shut took, and how much processor time.
func start(t testing.TB) (addr string, pid int, shut func() (took, cpu time.Duration)) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	read := func() string {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(line)
	}
	shut = sync.OnceValues(func() (took, cpu time.Duration) {
		in.Close()
		wall, used, _ := strings.Cut(read(), " ")
		took, err := time.ParseDuration(wall)
		if err == nil {
			cpu, err = time.ParseDuration(used)
		}
		if err != nil {
			t.Error(err)
		}
		cmd.Wait()
		return took, cpu
	})
	t.Cleanup(func() { shut() })
	return read(), cmd.Process.Pid, shut
}

// through opens a tunnel to target; an empty proxy means directly.
func through(t testing.TB, proxy, target string) net.Conn {
	if proxy == "" {
		proxy = target
		c, err := net.Dial("tcp", target)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target)
	var b [128]byte
	n, err := c.Read(b[:])
	if err != nil || !strings.HasPrefix(string(b[:n]), "HTTP/1.1 200") {
		t.Fatalf("%q %v", b[:n], err)
	}
	return c
}

var flood = make([]byte, 256<<10)

// BenchmarkBulk compares a stream through the proxy with a direct one; each iteration is
// 1 MiB.
func BenchmarkBulk(b *testing.B) {
	w := newWorld(b)
	target := w.sink(func(c *net.TCPConn) {
		for {
			if _, err := c.Write(flood); err != nil {
				return
			}
		}
	})
	addr, _, _ := start(b)
	for name, proxy := range map[string]string{"direct": "", "proxy": addr} {
		b.Run(name, func(b *testing.B) {
			c := through(b, proxy, target)
			defer c.Close()
			buf := make([]byte, 256<<10)
			b.SetBytes(1 << 20)
			for b.Loop() {
				for range 4 {
					if _, err := io.ReadFull(c, buf); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkFirstByte measures, in turns, from the beginning of a connection to its first
// byte; "round" is one byte there and back on an open connection.
func BenchmarkFirstByte(b *testing.B) {
	w := newWorld(b)
	target := w.sink(echo)
	addr, _, _ := start(b)
	var times, rounds [2][]time.Duration
	ping := func(c net.Conn) {
		var one [1]byte
		c.Write(one[:])
		if _, err := io.ReadFull(c, one[:]); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		for i, proxy := range []string{"", addr} {
			begin := time.Now()
			c := through(b, proxy, target)
			ping(c)
			times[i] = append(times[i], time.Since(begin))
			begin = time.Now()
			ping(c)
			rounds[i] = append(rounds[i], time.Since(begin))
			c.Close()
		}
	}
	p50 := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2].Microseconds()) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(p50(times[0]), "direct-µs")
	b.ReportMetric(p50(times[1]), "proxy-µs")
	b.ReportMetric(p50(rounds[0]), "direct-round-µs")
	b.ReportMetric(p50(rounds[1]), "proxy-round-µs")
}

// BenchmarkOpenConnections reports the memory of the proxy's process per open tunnel that
// has carried a few bytes and now waits.
func BenchmarkOpenConnections(b *testing.B) {
	limit := syscall.Rlimit{Cur: 30_000, Max: 30_000}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	}
	n := min(10_000, (int(limit.Cur)-200)/2)
	var held []net.Conn
	var mu sync.Mutex
	w := newWorld(b)
	done := make(chan bool)
	target := w.sink(func(c *net.TCPConn) {
		var one [1]byte
		io.ReadFull(c, one[:])
		c.Write(one[:])
		<-done
	})
	b.Cleanup(func() { close(done) })
	addr, pid, _ := start(b)
	empty := rss(b, pid)
	for b.Loop() {
		if held != nil {
			continue
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range n / 8 {
					c := through(b, addr, target)
					var one [1]byte
					c.Write(one[:])
					io.ReadFull(c, one[:])
					mu.Lock()
					held = append(held, c)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	}
	full := rss(b, pid)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(held)), "connections")
	b.ReportMetric(float64(full-empty)/float64(len(held)), "B/connection")
	b.ReportMetric(float64(full)/1e6, "MB")
	for _, c := range held {
		c.Close()
	}
}

// BenchmarkShut reports how long it takes to turn off a network with 4,000 idle tunnels.
func BenchmarkShut(b *testing.B) {
	w := newWorld(b)
	target := w.sink(func(c *net.TCPConn) { io.Copy(io.Discard, struct{ io.Reader }{c}) })
	var times, cpus []float64
	for b.Loop() {
		addr, _, shut := start(b)
		held := make([]net.Conn, 4000)
		for i := range held {
			held[i] = through(b, addr, target)
		}
		took, cpu := shut()
		times = append(times, took.Seconds()*1e3)
		cpus = append(cpus, cpu.Seconds()*1e6/float64(len(held)))
		for _, c := range held {
			c.Close()
		}
	}
	slices.Sort(times)
	slices.Sort(cpus)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(cpus[len(cpus)/2], "cpu-µs/connection")
	b.ReportMetric(times[len(times)/2], "p50-ms")
	b.ReportMetric(times[len(times)-1], "max-ms")
}

// rss returns the resident memory of a process in bytes.
func rss(t testing.TB, pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	fmt.Sscan(string(text), &size, &resident)
	return resident * int64(os.Getpagesize())
}
