package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/internal/testutil"
)

// eventually waits until what is polled is true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testutil.Patience()); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", testutil.Patience(), what)
		}
	}
}

// open returns how many sockets the proxy has booked, to the network and from the box.
func (b *box) open() (sockets, clients int) {
	b.Proxy.mu.Lock()
	defer b.Proxy.mu.Unlock()
	return b.sockets, b.clients
}

// TestDetachedDials: requests that get a kept connection leave dials behind that nobody waits
// for. A box has only so many of them.
func TestDetachedDials(t *testing.T) {
	w := shop(t)
	r := allowing("shop.example")
	r.Limits.Connections = 2000
	b := w.box(Config{Rules: r})
	b.accepts.SetLimit(rate.Inf)
	b.dials.SetLimit(rate.Inf)
	var hang atomic.Bool
	var dials, most atomic.Int64
	release := make(chan bool)
	b.connect = func(ctx context.Context, d *net.Dialer, ap netip.AddrPort) (net.Conn, error) {
		if !hang.Load() {
			return w.connect(ctx, d, ap)
		}
		for n, m := dials.Add(1), most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		defer dials.Add(-1)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil, errors.New("nothing there")
	}
	request := "GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n"
	kept := b.dial()
	io.WriteString(kept, request)
	if _, err := http.ReadResponse(bufio.NewReader(kept), nil); err != nil {
		t.Fatal(err)
	}
	hang.Store(true)
	// Each of these dials, because the one kept connection is in use or none is there.
	for range maxDials + 200 {
		c := b.dial()
		io.WriteString(c, request)
	}
	eventually(t, "as many dials as there may be", func() bool { return dials.Load() >= maxDials-1 })
	if c := b.raw(request); !strings.Contains(c, "200 OK") && !strings.Contains(c, errBusy.Error()) {
		t.Errorf("%q", c)
	}
	if n := most.Load(); n > maxDials {
		t.Errorf("%d dials at once, at most %d", n, maxDials)
	}
	close(release)
	eventually(t, "every dial has ended", func() bool { sockets, _ := b.open(); return dials.Load() == 0 && sockets <= 16 })
}

// TestSharedSockets: a greedy box leaves a quarter to boxes with few sockets. When that is used up,
// each box is told so; what one closes, another one gets.
func TestSharedSockets(t *testing.T) {
	w := shop(t)
	shared := NewShared(32) // 28 sockets and 4 heads
	config := Config{Rules: allowing("shop.example:7", "shop.example"), Shared: shared}
	greedy, other, late := w.box(config), w.box(config), w.box(config)
	var held []*net.TCPConn
	for range 10 { // 20 sockets of 21
		c, r := greedy.tunnel("shop.example:7")
		if r.StatusCode != 200 {
			t.Fatal(r.Status)
		}
		held = append(held, c)
	}
	if _, r := greedy.tunnel("shop.example:7"); r.StatusCode != 503 {
		t.Fatalf("the greedy box: %s", r.Status)
	}
	eventually(t, "the refused one is gone", func() bool { return len(shared.sockets) == 20 })
	for range fewTokens / 2 {
		if _, r := other.tunnel("shop.example:7"); r.StatusCode != 200 {
			t.Errorf("a box with few sockets: %s", r.Status)
		}
	}
	for range 3 {
		for _, request := range []string{"CONNECT shop.example:7 HTTP/1.1\r\nHost: shop.example:7\r\n\r\n", "GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n"} {
			for _, b := range []*box{greedy, other} {
				if answer := b.raw(request); !strings.HasPrefix(answer, "HTTP/1.1 503") || !strings.Contains(answer, errFull.Error()) {
					t.Errorf("%q", answer)
				}
			}
		}
	}
	if d := other.Denials(); len(d) != 2 || d[0].Rule != errFull.rule || d[0].Count != 3 {
		t.Errorf("%+v", d)
	}
	// One socket is left: enough for the client, and not for its connection to the network.
	held[0].Close()
	eventually(t, "two sockets are free", func() bool { return len(shared.sockets) == 26 })
	shared.sockets <- struct{}{}
	if answer := late.raw("CONNECT shop.example:7 HTTP/1.1\r\nHost: shop.example:7\r\n\r\n"); !strings.Contains(answer, errFull.Error()) {
		t.Errorf("%q", answer)
	}
	<-shared.sockets
	eventually(t, "the refused one is gone", func() bool { return len(shared.sockets) == 26 })
	if _, r := late.tunnel("shop.example:7"); r.StatusCode != 200 {
		t.Errorf("after the first box closed a connection: %s", r.Status)
	}
	for _, b := range []*box{greedy, other, late} {
		b.Shut()
		b.Wait()
		if sockets, clients := b.open(); sockets+clients != 0 {
			t.Errorf("%d sockets and %d clients after the end", sockets, clients)
		}
	}
	if len(shared.sockets)+len(shared.heads)+len(shared.spare) != 0 {
		t.Errorf("%d sockets, %d heads are still booked", len(shared.sockets), len(shared.heads)+len(shared.spare))
	}
}

// TestHalfOpenOfManyBoxes: connections without a request in a few boxes leave heads to others, which
// do not wait for their end.
func TestHalfOpenOfManyBoxes(t *testing.T) {
	w := shop(t)
	shared := NewShared(1024) // 96 heads, and 32 for boxes with few
	config := Config{Rules: allowing("shop.example:7"), Shared: shared}
	greedy, silent := w.box(config), []*net.TCPConn(nil)
	for range 3 {
		for range maxHeads + 10 {
			c := greedy.dial()
			io.WriteString(c, "CONNECT ")
			silent = append(silent, c)
		}
		greedy = w.box(config)
	}
	eventually(t, "every head that one box may have is taken", func() bool { return len(shared.heads) == cap(shared.heads) })
	other := w.box(config)
	c := other.dial()
	io.WriteString(c, "CONNECT shop.example:7 HTTP/1.1\r\nHost: shop.example:7\r\n\r\n")
	if answer, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(answer, "200") {
		t.Errorf("%q, %v", answer, err)
	}
	for _, c := range silent {
		c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a silent connection has ended before the other box was served: %v", err)
		}
	}
}

// TestRate: a box that makes connections faster than its limit waits, and is refused nothing; a change of
// the rules changes the limit at once.
func TestRate(t *testing.T) {
	w := shop(t)
	w.place(public1+":8080", w.server(func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set("Connection", "close") }))
	limited := allowing("shop.example:7", "shop.example:8080")
	b := w.box(Config{Rules: limited})
	for _, l := range []*rate.Limiter{b.accepts, b.dials} {
		if l.Limit() != 500 || l.Burst() != 5000 || l.Tokens() < 4990 {
			t.Errorf("%v per second, %d at once, %v now", l.Limit(), l.Burst(), l.Tokens())
		}
	}
	limited.Limits.ConnectionRate = 10
	if err := b.SetRules(limited); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*rate.Limiter{b.accepts, b.dials} {
		l.SetBurst(1)
	}
	kept := b.dial()
	br := bufio.NewReader(kept)
	waits := func(what string, one func() int) {
		t.Helper()
		var status []int
		begin := time.Now()
		for range 4 {
			status = append(status, one())
		}
		if took := time.Since(begin); fmt.Sprint(status) != "[200 200 200 200]" || took < 200*time.Millisecond {
			t.Errorf("%s: %v in %v", what, status, took)
		}
	}
	waits("connections to the network, over one from the box", func() int {
		io.WriteString(kept, "GET http://shop.example:8080/ HTTP/1.1\r\nHost: shop.example:8080\r\n\r\n")
		r, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, r.Body)
		return r.StatusCode
	})
	waits("connections from the box", func() int {
		_, r := b.tunnel("shop.example:7")
		return r.StatusCode
	})
}

// TestBuffers: the kernel's queues for a connection are bounded, on both sides.
func TestBuffers(t *testing.T) {
	w := newWorld(t)
	b := w.box(Config{Rules: rules.Rules{Allow: []string{"127.0.0.1:1-65535"}}})
	b.connect = func(ctx context.Context, d *net.Dialer, ap netip.AddrPort) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", ap.String())
	}
	if _, r := b.tunnel(w.sink(echo)); r.StatusCode != 200 {
		t.Fatal(r.Status)
	}
	b.Proxy.mu.Lock()
	defer b.Proxy.mu.Unlock()
	if len(b.conns) != 2 {
		t.Fatalf("%d connections", len(b.conns))
	}
	for c, remote := range b.conns {
		raw, _ := c.SyscallConn()
		raw.Control(func(fd uintptr) {
			in, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
			out, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
			if want := map[bool]int{true: receiveBuffer, false: sendBuffer}[remote]; in != 2*want || out != 2*sendBuffer {
				t.Errorf("remote %t: %d bytes in, %d out", remote, in, out)
			}
		})
	}
}

// ended makes a tunnel both of whose directions have ended while the kernel still has data
// for a server that does not read.
func ended(t *testing.T, b *box, w *world) (server *net.TCPConn, read func() int64) {
	t.Helper()
	accepted := make(chan *net.TCPConn, 1)
	done := make(chan bool)
	target := w.sink(func(c *net.TCPConn) {
		c.CloseWrite()
		accepted <- c
		<-done
	})
	t.Cleanup(func() { close(done) })
	w.place(public1+":9", target)
	c, r := b.tunnel("shop.example:9")
	if r.StatusCode != 200 {
		t.Fatal(r.Status)
	}
	server = <-accepted
	// More than the server's queue takes: the rest is in the queues of the proxy.
	c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	for chunk := make([]byte, 64<<10); ; {
		if _, err := c.Write(chunk); err != nil {
			break
		}
	}
	// Read until the proxy has written all of it, and leave the rest with the kernel.
	c.CloseWrite()
	eventually(t, "the proxy has sent everything", func() bool {
		b.Proxy.mu.Lock()
		defer b.Proxy.mu.Unlock()
		for c, remote := range b.conns {
			raw, _ := c.SyscallConn()
			last := false
			raw.Control(func(fd uintptr) {
				info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
				last = err == nil && info.State == unix.BPF_TCP_LAST_ACK
			})
			if remote && last {
				return true
			}
		}
		server.SetReadDeadline(time.Now().Add(time.Millisecond))
		server.Read(make([]byte, 16<<10))
		return false
	})
	return server, func() int64 {
		server.SetReadDeadline(time.Time{})
		n, _ := io.Copy(io.Discard, struct{ io.Reader }{server})
		return n
	}
}

// TestShutDropsWhatEndedConnectionsLeft: both directions of a tunnel have ended, and the kernel
// still sends. It counts as a connection until then, and Shut ends it.
func TestShutDropsWhatEndedConnectionsLeft(t *testing.T) {
	w := shop(t)
	r := allowing("shop.example:9", "shop.example:7")
	r.Limits.Connections = 1
	b := w.box(Config{Rules: r})
	server, rest := ended(t, b, w)
	eventually(t, "the tunnel waits for the kernel, or has ended", func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		sockets, clients := b.open()
		return bytes.Contains(stacks, []byte("egress.(*Proxy).drain(")) || sockets+clients == 0
	})
	if _, r := b.tunnel("shop.example:7"); r.StatusCode != 503 {
		t.Errorf("a second connection while the kernel sends for the first: %s", r.Status)
	}
	b.Shut()
	before := received(t, server)
	rest()
	if after := received(t, server); after != before || before == 0 {
		t.Errorf("%d bytes when Shut had returned, %d after the server read", before, after)
	}
}

// TestEndedConnectionsArrive: a server that reads late gets everything; one that does not read at
// all loses its connection, and the box gets its slot back.
func TestEndedConnectionsArrive(t *testing.T) {
	w := shop(t)
	r := allowing("shop.example:9", "shop.example:7")
	r.Limits.Connections = 1
	b := w.box(Config{Rules: r})
	_, rest := ended(t, b, w)
	if n := rest(); n == 0 {
		t.Error("nothing was left for the server")
	}
	if c := b.await(func(c Connection) bool { return c.Ended }); c.Reason != "" {
		t.Errorf("%+v", c)
	}
	b = w.box(Config{Rules: r})
	b.patience = 20 * time.Millisecond
	ended(t, b, w)
	eventually(t, "the slot is free", func() bool { sockets, clients := b.open(); return sockets+clients == 0 })
	if _, r := b.tunnel("shop.example:7"); r.StatusCode != 200 {
		t.Error(r.Status)
	}
}

// TestStreamIsWhole: what goes through pipes arrives as it was, is counted to the byte, and a
// stream that pauses holds no pipe.
func TestStreamIsWhole(t *testing.T) {
	w := shop(t)
	w.place(public1+":9", w.sink(func(c *net.TCPConn) {
		io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		c.CloseWrite()
	}))
	b := w.box(Config{Rules: allowing("shop.example:9")})
	c, _ := b.tunnel("shop.example:9")
	const size = 32 << 20
	sent, got := sha256.New(), sha256.New()
	half := make(chan bool)
	go func() {
		chunk := make([]byte, 1<<20)
		random := rand.NewChaCha8([32]byte{})
		for i := range size / len(chunk) {
			if i == 16 {
				<-half
			}
			random.Read(chunk)
			sent.Write(chunk)
			if _, err := c.Write(chunk); err != nil {
				t.Error(err)
			}
		}
		c.CloseWrite()
	}()
	if _, err := io.CopyN(got, c, size/2); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no pipe is held", func() bool { return len(pipeSlots) == 0 })
	close(half)
	n, err := io.Copy(got, c)
	if err != nil || n != size/2 || string(got.Sum(nil)) != string(sent.Sum(nil)) {
		t.Errorf("%d bytes of the second half, %v", n, err)
	}
	if c := b.await(func(c Connection) bool { return c.Ended }); c.In != size || c.Out != size {
		t.Errorf("%+v", c)
	}
}

// TestStreamIsBounded: the bytes of a stream that goes through pipes are bounded to the byte.
func TestStreamIsBounded(t *testing.T) {
	w := shop(t)
	w.place(public1+":9", w.sink(func(c *net.TCPConn) {
		for {
			if _, err := c.Write(flood); err != nil {
				return
			}
		}
	}))
	r := allowing("shop.example:9")
	const limit = 20<<20 + 12345
	r.Limits.Bytes = limit
	b := w.box(Config{Rules: r})
	c, _ := b.tunnel("shop.example:9")
	n, _ := io.Copy(io.Discard, struct{ io.Reader }{c})
	if end := b.await(func(c Connection) bool { return c.Ended }); end.In != limit || end.Reason != errSpent.Error() || n > limit {
		t.Errorf("%d bytes arrived, %+v", n, end)
	}
	eventually(t, "no pipe is held", func() bool { return len(pipeSlots) == 0 })
}

// TestDescriptorsAreLeft: boxes take all that they may have, in a process with few
// descriptors. Each is told so, and the process can open files and accept clients of its own.
func TestDescriptorsAreLeft(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fewFilesEnv+"=1")
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addrs := strings.Fields(line) // of the API and of the boxes
	w := newWorld(t)
	target := w.sink(func(c *net.TCPConn) { io.Copy(io.Discard, struct{ io.Reader }{c}) })
	api := func() string {
		c, err := net.Dial("tcp", addrs[0])
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(testutil.Patience()))
		answer, err := io.ReadAll(c)
		return fmt.Sprint(string(answer), err)
	}
	var allowed, full atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for _, addr := range addrs[1:] {
		for range 4 {
			wg.Go(func() {
				for range 60 {
					c, err := net.Dial("tcp", addr)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					held = append(held, c)
					mu.Unlock()
					c.SetDeadline(time.Now().Add(testutil.Patience()))
					fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target)
					switch answer, err := bufio.NewReader(c).ReadString('\n'); {
					case strings.Contains(answer, "200"):
						allowed.Add(1)
					case strings.Contains(answer, "503"):
						full.Add(1)
						c.Close()
					default:
						t.Errorf("%q, %v", answer, err)
					}
				}
			})
		}
	}
	wg.Wait()
	if answer := api(); answer != "fine<nil>" {
		t.Errorf("the API answers %q", answer)
	}
	if allowed.Load() == 0 || full.Load() == 0 {
		t.Errorf("%d connections were allowed, %d refused", allowed.Load(), full.Load())
	}
}

// fewFilesEnv makes the test binary a process with 256 descriptors, four boxes, and an "API" that
// opens ten files for each client.
const fewFilesEnv = "BOXD_EGRESS_TEST_FEW_FILES"

func serveFewFiles() {
	limit := syscall.Rlimit{Cur: 256, Max: 256}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		panic(err)
	}
	listen := func() *net.TCPListener {
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			panic(err)
		}
		return l
	}
	api := listen()
	addrs := []any{api.Addr()}
	shared := halfOfFiles()
	for range 4 {
		p, err := New(Config{Rules: rules.Rules{Allow: []string{"127.0.0.1:1-65535"}}, Shared: shared})
		if err != nil {
			panic(err)
		}
		l := listen()
		addrs = append(addrs, l.Addr())
		go p.Serve(l)
	}
	go func() {
		for {
			c, err := api.Accept()
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				continue
			}
			answer := "fine"
			var files []*os.File
			for range 10 {
				f, err := os.Open("/dev/null")
				if err != nil {
					answer = err.Error()
				}
				files = append(files, f)
			}
			for _, f := range files {
				f.Close()
			}
			io.WriteString(c, answer)
			c.Close()
		}
	}()
	fmt.Println(addrs...)
	io.Copy(io.Discard, os.Stdin)
}

// TestHostAddresses: a list that cannot be read is nil, and one that cannot be read again is
// used for a while.
func TestHostAddresses(t *testing.T) {
	now := time.Unix(1000, 0)
	fails := errors.New("netlink is broken")
	err := fails
	own := hostAddresses(func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(8, 32)}}, err
	}, func() time.Time { return now })
	steps := []struct {
		err   error
		after time.Duration
		known bool
	}{{fails, 0, false}, {nil, 0, true}, {fails, 30 * time.Second, true}, {fails, 31 * time.Second, false}, {nil, 0, true}}
	for i, s := range steps {
		err = s.err
		now = now.Add(s.after)
		if list := own(); (list != nil) != s.known || s.known && list[0] != netip.MustParseAddr("10.0.0.1") {
			t.Errorf("step %d: %v", i, list)
		}
	}
	if HostAddresses()() == nil {
		t.Error("this host's addresses cannot be read")
	}
	// Without them nothing is reached, by name or by address.
	w := shop(t)
	b := w.box(Config{Rules: rules.Rules{Public: true, Allow: []string{public1}}, Host: rules.Surroundings{Own: func() []netip.Addr { return nil }}})
	for _, target := range []string{"shop.example:7", public1 + ":80"} {
		if _, r := b.tunnel(target); r.StatusCode != 403 {
			t.Errorf("%s: %s", target, r.Status)
		}
	}
	if w.visited() != 0 {
		t.Errorf("dialled: %v", w.dialled)
	}
}
