package egress

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/internal/testutil"
)

// received returns how many bytes the kernel has received on c, read or not (tcp(7),
// tcpi_bytes_received).
func received(t testing.TB, c *net.TCPConn) uint64 {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info [256]byte
	raw.Control(func(fd uintptr) {
		n := uint32(len(info))
		syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, syscall.IPPROTO_TCP, syscall.TCP_INFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&n)), 0)
	})
	return *(*uint64)(unsafe.Pointer(&info[128]))
}

// TestShut: streams at full speed in both directions, half-open connections, dials in
// progress and a response on its way. After Shut no byte moves, in the kernel's count.
func TestShut(t *testing.T) {
	w := shop(t)
	var servers sync.Map
	counted := make(chan bool)
	flood := func(c *net.TCPConn) {
		servers.Store(c, true)
		defer func() { <-counted }()
		go func() {
			b := make([]byte, 64<<10)
			for {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
		io.Copy(io.Discard, struct{ io.Reader }{c})
	}
	w.place(public1+":9", w.sink(flood))
	t.Cleanup(func() { close(counted) })
	w.name("hang.example", "93.184.216.35")
	w.name("slow.example", "93.184.216.36")
	w.place("93.184.216.36:80", w.server(func(rw http.ResponseWriter, r *http.Request) {
		rw.Write(make([]byte, 1000))
		rw.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	b := w.box(Config{Rules: allowing("shop.example:9", "hang.example:9", "slow.example")})
	hanging := make(chan bool, 1)
	b.connect = func(ctx context.Context, d *net.Dialer, ap netip.AddrPort) (net.Conn, error) {
		if ap == netip.MustParseAddrPort("93.184.216.35:9") {
			hanging <- true
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return w.connect(ctx, d, ap)
	}
	var streams []*net.TCPConn
	var got atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		c, r := b.tunnel("shop.example:9")
		if r.StatusCode != 200 {
			t.Fatal(r.Status)
		}
		streams = append(streams, c)
		wg.Go(func() {
			buf := make([]byte, 64<<10)
			for {
				n, err := c.Read(buf)
				if got.Add(int64(n)); err != nil {
					return
				}
			}
		})
		wg.Go(func() {
			buf := make([]byte, 64<<10)
			for {
				if _, err := c.Write(buf); err != nil {
					return
				}
			}
		})
	}
	idle := b.dial() // sent nothing
	half := b.dial()
	io.WriteString(half, "CONNECT shop.exa")
	dialling := b.dial()
	io.WriteString(dialling, "CONNECT hang.example:9 HTTP/1.1\r\nHost: hang.example:9\r\n\r\n")
	<-hanging
	response, err := b.client(t, nil).Get("http://slow.example/")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	for got.Load() < 50<<20 {
		if wait := b.Live(); len(wait) != 6 {
			t.Fatalf("live: %+v", wait)
		}
		time.Sleep(time.Millisecond) // the streams move on by themselves
	}
	start := time.Now()
	b.Shut()
	took := time.Since(start)
	var before []uint64
	var ends []*net.TCPConn
	servers.Range(func(c, _ any) bool { ends = append(ends, c.(*net.TCPConn)); return true })
	ends = append(ends, streams...)
	ends = append(ends, idle, half, dialling)
	for _, c := range ends {
		before = append(before, received(t, c))
	}
	_, err = io.ReadAll(response.Body)
	if err == nil {
		t.Error("a response looks whole after Shut")
	}
	wg.Wait()
	for i, c := range ends {
		if after := received(t, c); after != before[i] || i < len(streams) && after == 0 {
			t.Errorf("connection %d: %d bytes when Shut had returned, %d afterwards", i, before[i], after)
		}
	}
	if took > 100*time.Millisecond && testing.Short() == false {
		t.Logf("Shut took %v", took)
	}
	for _, c := range []net.Conn{idle, half, dialling} {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes from a connection after Shut", n)
		}
	}
	if c, err := net.Dial("tcp", b.addr); err == nil {
		c.Close()
		t.Error("the listener still accepts")
	}
	b.Shut()
	b.Wait()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Serve(l); !errors.Is(err, ErrShut) {
		t.Error(err)
	}
	if err := b.SetRules(rules.Rules{Public: true}); err != nil || len(b.Live()) != 0 {
		t.Errorf("%v, %v", err, b.Live())
	}
	ended := b.await(func(c Connection) bool { return c.Ended && c.Name == "shop.example" })
	if ended.Reason != "the network was turned off" || ended.In == 0 || ended.Out == 0 {
		t.Errorf("%+v", ended)
	}
}

// TestSetRules: connections whose rule is gone end; the others go on.
func TestSetRules(t *testing.T) {
	w := shop(t)
	b := w.box(Config{Rules: rules.Rules{Allow: []string{"shop.example:7", "other.example:7", public1 + ":7"}}})
	open := func(target string) *net.TCPConn {
		c, r := b.tunnel(target)
		if r.StatusCode != 200 {
			t.Fatalf("%s: %s", target, r.Status)
		}
		return c
	}
	works := func(c *net.TCPConn) bool {
		b := make([]byte, 4)
		_, werr := io.WriteString(c, "ping")
		_, err := io.ReadFull(c, b)
		return werr == nil && err == nil && string(b) == "ping"
	}
	shop, other, literal := open("shop.example:7"), open("other.example:7"), open(public1+":7")
	if !works(shop) || !works(other) || !works(literal) {
		t.Fatal("no connection works")
	}
	for _, bad := range []rules.Rules{{Allow: []string{"127.1"}}, {Limits: rules.Limits{Connections: -1}}} {
		if err := b.SetRules(bad); err == nil || !works(shop) {
			t.Errorf("rules that are not valid: %v", err)
		}
	}
	if err := b.SetRules(rules.Rules{Allow: []string{"*.example:1-10"}}); err != nil {
		t.Fatal(err)
	}
	if !works(shop) || !works(other) || works(literal) {
		t.Error("after the rule of the address is gone")
	}
	if err := b.SetRules(rules.Rules{Allow: []string{"*.example:1-10"}, Deny: []string{"other.example"}}); err != nil {
		t.Fatal(err)
	}
	if !works(shop) || works(other) {
		t.Error("after a name is denied")
	}
	if live := b.Live(); len(live) != 1 || live[0].Name != "shop.example" || live[0].Rule != `allow "*.example:1-10"` || live[0].In != 20 {
		t.Errorf("%+v", live)
	}
	// The address that was dialled is denied.
	if err := b.SetRules(rules.Rules{Allow: []string{"*.example:1-10"}, Deny: []string{"93.184.216.0/24"}}); err != nil {
		t.Fatal(err)
	}
	if works(shop) {
		t.Error("after the address is denied")
	}
	if _, r := b.tunnel("shop.example:7"); r.StatusCode != 403 || r.Header.Get("X-Boxd-Denied") != `boxd: shop.example:7 is not allowed: it leads to an address that a rule forbids` {
		t.Errorf("%s", r.Status)
	}
	if c := b.await(func(c Connection) bool { return c.Ended && c.Name == "other.example" }); !strings.HasPrefix(c.Reason, "the rules changed: the rule deny") {
		t.Errorf("%+v", c)
	}
}

// TestSetRulesJudgesAsNew: after SetRules a connection goes on if it is what a new one to the same place
// would be, and ends if a new one would be refused or would be sent another way.
func TestSetRulesJudgesAsNew(t *testing.T) {
	w := shop(t)
	// Raw bytes come back; requests get the beginning of an answer.
	server := w.sink(func(c *net.TCPConn) {
		first := make([]byte, 1<<10)
		n, _ := c.Read(first)
		if strings.HasPrefix(string(first[:n]), "GET") {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nby http")
		} else {
			c.Write(first[:n])
		}
		io.Copy(io.Discard, struct{ io.Reader }{c})
	})
	w.place(public1+":80", server)
	w.place(public1+":443", server)
	w.name("api.example", "93.184.216.40")
	w.place("93.184.216.40:80", server)
	w.place("93.184.216.40:443", w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		io.WriteString(rw, "by https")
		rw.(http.Flusher).Flush()
		<-r.Context().Done()
	}), "api.example"))
	t.Setenv("BOXD_TEST_KEY", "key")
	added := []rules.Inject{{Host: "api.example", Header: "X-Key", ValueFrom: rules.Source{Env: "BOXD_TEST_KEY"}}}
	connect := func(target, first string) string {
		return "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n\r\n" + first
	}
	get := func(host string) string { return "GET http://" + host + "/ HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	hello := string(record(serverName(0, "evil.example")))
	hidden := string(record(append([]byte{0xfe, 0x0d}, make([]byte, 50)...), serverName(0, "shop.example")))
	public := rules.Rules{Public: true}
	for name, c := range map[string]struct {
		before, after rules.Rules
		request       string
		want          string // in the answer before
		again         string // in that of a new connection; "" if it is refused
		stays         bool
	}{
		"route, name":         {rules.Rules{Public: true, Allow: []string{public1 + ":7"}}, public, connect("shop.example:7", "ping"), "ping", "", false},
		"route, address":      {rules.Rules{Public: true, Allow: []string{public1 + ":7"}}, public, connect(public1+":7", "ping"), "ping", "", false},
		"route, still named":  {rules.Rules{Public: true, Allow: []string{public1 + ":7"}}, rules.Rules{Public: true, Allow: []string{public1 + ":1-10"}}, connect("shop.example:7", "ping"), "ping", "ping", true},
		"server name":         {allowing(public1), rules.Rules{Allow: []string{public1}, Deny: []string{"evil.example"}}, connect(public1+":443", hello), "evil.example", "", false},
		"server name, any":    {allowing(public1), rules.Rules{Allow: []string{public1 + ":443"}, Deny: []string{"evil.example"}}, connect(public1+":443", hello), "evil.example", "evil.example", true},
		"hidden name":         {rules.Rules{Public: true, Allow: []string{public1}}, allowing("shop.example", public1), connect("shop.example:443", hidden), "shop.example", "", false},
		"hidden name, any":    {rules.Rules{Public: true, Allow: []string{public1}}, allowing("shop.example:443", public1), connect("shop.example:443", hidden), "shop.example", "shop.example", true},
		"HTTP at port 443":    {allowing("shop.example:443", public1), allowing("shop.example", public1), get("shop.example:443"), "by http", "", false},
		"HTTP at port 80":     {allowing("shop.example:80", public1), allowing("shop.example", public1), get("shop.example"), "by http", "by http", true},
		"header added":        {allowing("api.example"), rules.Rules{Allow: []string{"api.example"}, Inject: added}, get("api.example"), "by http", "by https", false},
		"header added, raw":   {allowing("api.example:80", "api.example:443"), rules.Rules{Allow: []string{"api.example:80", "api.example:443"}, Inject: added}, connect("api.example:80", "GET / HTTP/1.1\r\nHost: api.example\r\n\r\n"), "by http", "by https", false},
		"header no more":      {rules.Rules{Allow: []string{"api.example"}, Inject: added}, allowing("api.example"), get("api.example"), "by https", "by http", false},
		"header as before":    {rules.Rules{Allow: []string{"api.example"}, Inject: added}, rules.Rules{Allow: []string{"*.example"}, Inject: added}, get("api.example"), "by https", "by https", true},
		"TLS beside a header": {allowing("shop.example", public1), rules.Rules{Allow: []string{"shop.example", public1}, Inject: []rules.Inject{{Host: "shop.example", Header: "X-Key", ValueFrom: added[0].ValueFrom}}}, connect("shop.example:443", string(record(serverName(0, "shop.example")))), "shop.example", "shop.example", true},
	} {
		b := w.box(Config{Rules: c.before, Roots: w.roots()})
		b.routed = func(addr netip.Addr) (bool, error) { return addr == netip.MustParseAddr(public1), nil }
		// begin returns a connection, and the answer to the request as far as until, or whole.
		begin := func(until string) (net.Conn, string) {
			conn := b.dial()
			io.WriteString(conn, c.request)
			answer, chunk := "", make([]byte, 1<<10)
			for {
				n, err := conn.Read(chunk)
				if answer += string(chunk[:n]); err != nil || strings.Contains(answer, until) && !strings.HasPrefix(answer, "HTTP/1.1 403") {
					return conn, answer
				}
			}
		}
		conn, answer := begin(c.want)
		if !strings.Contains(answer, c.want) {
			t.Errorf("%s: before: %q", name, answer)
			continue
		}
		if err := b.SetRules(c.after); err != nil {
			t.Fatal(err)
		}
		if live := b.Live(); (len(live) == 1) != c.stays {
			t.Errorf("%s: live: %+v", name, live)
		} else if !c.stays {
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the connection is open", name)
			}
		}
		until := c.again
		if until == "" {
			until = c.want
		}
		if _, answer := begin(until); strings.Contains(answer, until) != (c.again != "") {
			t.Errorf("%s: a new connection: %q", name, answer)
		}
	}
}

// TestRouteOfLiveConnection: if the route of an address cannot be read, a change of the rules closes the
// connections to it.
func TestRouteOfLiveConnection(t *testing.T) {
	w := shop(t)
	b := w.box(Config{Rules: allowing("shop.example:7")})
	var trouble atomic.Bool
	b.routed = func(netip.Addr) (bool, error) {
		if trouble.Load() {
			return false, syscall.EMFILE
		}
		return false, nil
	}
	c, r := b.tunnel("shop.example:7")
	if r.StatusCode != 200 {
		t.Fatal(r.Status)
	}
	trouble.Store(true)
	if err := b.SetRules(allowing("*.example:7")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
	b.await(func(c Connection) bool {
		return c.Ended && c.Reason == "the rules changed: boxd cannot read the routes of its host"
	})
}

// TestSetRulesDuringDial: a rule that goes while its connection is being made.
func TestSetRulesDuringDial(t *testing.T) {
	w := shop(t)
	b := w.box(Config{Rules: allowing("shop.example:7")})
	b.connect = func(ctx context.Context, d *net.Dialer, ap netip.AddrPort) (net.Conn, error) {
		c, err := w.connect(context.Background(), d, ap)
		b.SetRules(allowing("other.example"))
		return c, err
	}
	if c := b.raw("CONNECT shop.example:7 HTTP/1.1\r\nHost: shop.example:7\r\n\r\nping"); strings.Contains(c, "200") || strings.Contains(c, "ping") {
		t.Errorf("%q", c)
	}
}

// TestAddressDeniedDuringDial: the address is denied after it was dialled.
func TestAddressDeniedDuringDial(t *testing.T) {
	w := shop(t)
	b := w.box(Config{Rules: allowing("shop.example:7")})
	b.connect = func(ctx context.Context, d *net.Dialer, ap netip.AddrPort) (net.Conn, error) {
		c, err := w.connect(ctx, d, ap)
		b.SetRules(rules.Rules{Allow: []string{"shop.example:7"}, Deny: []string{public1}})
		return c, err
	}
	if answer := b.raw("CONNECT shop.example:7 HTTP/1.1\r\nHost: shop.example:7\r\n\r\nping"); !strings.HasPrefix(answer, "HTTP/1.1 403") || strings.Contains(answer, "ping") {
		t.Errorf("%q", answer)
	}
}

// TestPortNoLongerNamed: raw bytes on port 443 end with the rule that allowed them, though
// TLS there stays allowed.
func TestPortNoLongerNamed(t *testing.T) {
	w := shop(t)
	w.place(public1+":443", w.sink(echo))
	b := w.box(Config{Rules: allowing("shop.example:443")})
	c, r := b.tunnel("shop.example:443")
	io.WriteString(c, "ping")
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil || r.StatusCode != 200 {
		t.Fatal(r.Status, err)
	}
	if err := b.SetRules(allowing("shop.example")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

// TestShutDropsWhatIsUnsent: a program that has not read yet gets nothing after Shut, not
// even what waited in the kernel on the proxy's side.
func TestShutDropsWhatIsUnsent(t *testing.T) {
	w := shop(t)
	full := make(chan bool)
	w.place(public1+":9", w.sink(func(c *net.TCPConn) {
		for range 100 {
			c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
			if _, err := c.Write(make([]byte, 1<<20)); err != nil {
				break // everything between here and the program is full
			}
		}
		close(full)
		c.SetReadDeadline(time.Now().Add(testutil.Patience()))
		c.Read(make([]byte, 1))
	}))
	b := w.box(Config{Rules: allowing("shop.example:9")})
	c, _ := b.tunnel("shop.example:9")
	<-full
	b.Shut()
	before := received(t, c)
	io.Copy(io.Discard, struct{ io.Reader }{c})
	if after := received(t, c); after != before || before == 0 {
		t.Errorf("%d bytes when Shut had returned, %d after the program read", before, after)
	}
}

// TestLimits: as many connections and bytes as the rules say, counted.
func TestLimits(t *testing.T) {
	w := shop(t)
	r := allowing("shop.example:7", "shop.example")
	r.Limits.Connections = 3
	b := w.box(Config{Rules: r})
	var held []*net.TCPConn
	for range 3 {
		c, r := b.tunnel("shop.example:7")
		if r.StatusCode != 200 {
			t.Fatal(r.Status)
		}
		held = append(held, c)
	}
	if _, r := b.tunnel("shop.example:7"); r.StatusCode != 503 {
		t.Errorf("the fourth: %s", r.Status)
	}
	if answer := b.raw("GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n"); !strings.Contains(answer, "boxd: shop.example:80 cannot be reached: this box has as many connections as it may have") {
		t.Errorf("%q", answer)
	}
	held[0].Close()
	b.await(func(c Connection) bool { return c.Ended && c.Allowed })
	for deadline := time.Now().Add(testutil.Patience()); ; { // the slot is given back after the report
		_, r := b.tunnel("shop.example:7")
		if r.StatusCode == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(r.Status)
		}
	}

	r.Limits = rules.Limits{Bytes: 100_000}
	b = w.box(Config{Rules: r})
	var wg sync.WaitGroup
	var in atomic.Int64
	for range 4 {
		c, _ := b.tunnel("shop.example:7")
		wg.Go(func() {
			for {
				if _, err := c.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		})
		wg.Go(func() { n, _ := io.Copy(io.Discard, c); in.Add(n) })
	}
	wg.Wait()
	total := int64(0)
	b.await(func(c Connection) bool { return strings.HasSuffix(c.Reason, errSpent.Error()) })
	if answer := b.raw("GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n"); !strings.HasPrefix(answer, "HTTP/1.1 503") || !strings.Contains(answer, errSpent.Error()) {
		t.Errorf("%q", answer)
	}
	b.Shut()
	b.Wait()
	for _, c := range b.seen {
		if c.Ended {
			total += c.In + c.Out
		}
	}
	if total != 100_000 {
		t.Errorf("%d bytes moved, %d to the box", total, in.Load())
	}
	if answer := b.raw2("GET http://shop.example/ HTTP/1.1\r\n\r\n"); answer != "" {
		t.Errorf("%q", answer)
	}
}

// raw2 is raw for a proxy that may be shut.
func (b *box) raw2(request string) string {
	c, err := net.Dial("tcp", b.addr)
	if err != nil {
		return ""
	}
	defer c.Close()
	io.WriteString(c, request)
	answer, _ := io.ReadAll(c)
	return string(answer)
}

// TestBandwidth: in no time do more bytes arrive than the bucket had.
func TestBandwidth(t *testing.T) {
	w := shop(t)
	w.place(public1+":9", w.sink(func(c *net.TCPConn) {
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}))
	const rate = 4 << 20
	r := allowing("shop.example:9")
	r.Limits.Bandwidth = rate
	b := w.box(Config{Rules: r})
	start := time.Now()
	var in atomic.Int64
	var wg sync.WaitGroup
	var all []*net.TCPConn
	for range 3 {
		c, _ := b.tunnel("shop.example:9")
		all = append(all, c)
		wg.Go(func() {
			buf := make([]byte, 32<<10)
			for in.Load() < 2<<20 {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				if total, most := in.Add(int64(n)), int64(rate/10+rate*time.Since(start).Seconds()+1); total > most {
					t.Errorf("%d bytes after %v, at most %d", total, time.Since(start), most)
					return
				}
			}
		})
	}
	wg.Wait()
	// Without a limit the same connections run free.
	r.Limits.Bandwidth = 0
	if err := b.SetRules(r); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, all[0], 64<<20); err != nil {
		t.Error(err)
	}
}

// TestIdle: a connection that moves nothing ends; one that moves in one direction stays.
func TestIdle(t *testing.T) {
	w := shop(t)
	stop := make(chan bool)
	w.place(public1+":9", w.sink(func(c *net.TCPConn) {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				c.Write([]byte("x"))
			}
		}
	}))
	b := w.box(Config{Rules: allowing("shop.example:7", "shop.example:9")})
	b.now.Load().set.Limits.Idle = 200e6 // shorter than the rules allow
	quiet, _ := b.tunnel("shop.example:7")
	busy, _ := b.tunnel("shop.example:9")
	if n, err := quiet.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes", n)
	}
	if c := b.await(func(c Connection) bool { return c.Ended && c.Port == 7 }); c.Reason != errIdle.Error() {
		t.Errorf("%+v", c)
	}
	if _, err := io.CopyN(io.Discard, busy, 60); err != nil {
		t.Errorf("a connection in use: %v", err)
	}
	close(stop)
}

// TestHalfOpen: more half-open connections than there may be heads do not keep others out
// for longer than headTime, hold no slot, and cost no goroutine beyond maxHeads.
func TestHalfOpen(t *testing.T) {
	w := shop(t)
	r := allowing("shop.example:7")
	r.Limits.Connections = 1
	b := w.box(Config{Rules: r})
	other := w.box(Config{Rules: r})
	var half []*net.TCPConn
	for range 3 * maxHeads {
		c := b.dial()
		io.WriteString(c, "CONNECT ")
		half = append(half, c)
	}
	for deadline := time.Now().Add(testutil.Patience()); len(b.heads) < maxHeads; {
		if time.Now().After(deadline) {
			t.Fatalf("%d heads", len(b.heads))
		}
		time.Sleep(time.Millisecond)
	}
	b.Proxy.mu.Lock()
	open := len(b.conns)
	b.Proxy.mu.Unlock()
	if open > maxHeads {
		t.Errorf("%d connections are held, at most %d", open, maxHeads)
	}
	if _, r := other.tunnel("shop.example:7"); r.StatusCode != 200 {
		t.Errorf("another box: %s", r.Status)
	}
	for _, c := range half {
		c.Close()
	}
	if _, r := b.tunnel("shop.example:7"); r.StatusCode != 200 {
		t.Errorf("afterwards: %s", r.Status)
	}
}

// TestDenialsAreBounded: a box that makes up names fills no memory.
func TestDenialsAreBounded(t *testing.T) {
	p, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Shut()
	for i := range 5000 {
		p.denied(fmt.Sprintf("n%d.example:443", i), "default")
	}
	list := p.Denials()
	if len(list) != maxDenials+1 || list[0].What != "…" || list[0].Count != 5000-maxDenials {
		t.Errorf("%d denials, first %+v", len(list), list[0])
	}
}

// TestUpstream: through an HTTP proxy and a SOCKS5 proxy with a login that is read again. A request that
// gets a secret goes through a tunnel of it, in TLS.
func TestUpstream(t *testing.T) {
	login := t.TempDir() + "/login"
	for _, scheme := range []string{"http", "socks5"} {
		t.Run(scheme, func(t *testing.T) {
			w := shop(t)
			var asked atomic.Pointer[string]
			var accept atomic.Bool
			accept.Store(true)
			// The upstream is another proxy of ours, behind a door that checks the login.
			inner := w.box(Config{Rules: allowing("shop.example", "shop.example:7", "inner.example:7", "93.184.216.34:7", "api.example")})
			door := w.sink(func(c *net.TCPConn) {
				br := bufio.NewReader(c)
				u, err := net.Dial("tcp", inner.addr)
				if err != nil {
					return
				}
				defer u.Close()
				var who string
				if scheme == "http" {
					r, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					b, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Proxy-Authorization"), "Basic "))
					who = string(b)
					if r.Method == "CONNECT" {
						fmt.Fprintf(u, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", r.Host)
					} else {
						r.Header.Del("Proxy-Authorization")
						r.WriteProxy(u)
					}
				} else {
					var b [512]byte
					n, _ := br.Read(b[:])
					c.Write([]byte{5, 2})
					m, err := br.Read(b[n:])
					if err != nil {
						return
					}
					auth := b[n : n+m]
					who = string(auth[2:2+auth[1]]) + ":" + string(auth[3+auth[1]:])
					c.Write([]byte{1, 0})
					u.Write([]byte{5, 1, 0})
					io.ReadFull(u, b[:2])
				}
				asked.Store(&who)
				if !accept.Load() {
					return
				}
				go func() { io.Copy(struct{ io.Writer }{u}, br); u.(*net.TCPConn).CloseWrite() }()
				io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{u})
			})
			w.place("10.20.30.40:3128", door)
			w.name("proxy.corp", "10.20.30.40")
			w.name("api.example", "93.184.216.77")
			w.place("93.184.216.77:443", w.tlsServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(rw, "key %q, login %q", r.Header.Get("X-Key"), r.Header.Get("Proxy-Authorization"))
			}), "api.example"))
			t.Setenv("BOXD_TEST_KEY", "from the operator")
			r := rules.Rules{Public: true, Upstream: scheme + "://proxy.corp:3128", UpstreamLogin: &rules.Source{File: login},
				Inject: []rules.Inject{{Host: "api.example", Header: "X-Key", ValueFrom: rules.Source{Env: "BOXD_TEST_KEY"}}}}
			b := w.box(Config{Rules: r, Roots: w.roots()})
			for _, who := range []string{"me:first", "me:second"} {
				if err := os.WriteFile(login, []byte(who+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				c, r := b.tunnel("shop.example:7")
				if r.StatusCode != 200 {
					t.Fatalf("%s", r.Status)
				}
				io.WriteString(c, "ping")
				var buf [4]byte
				if _, err := io.ReadFull(c, buf[:]); err != nil || string(buf[:]) != "ping" || *asked.Load() != who {
					t.Errorf("%q %v, as %q", buf, err, *asked.Load())
				}
			}
			if answer := b.raw("GET http://shop.example/x HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"); !strings.Contains(answer, "hello from shop.example/x") {
				t.Errorf("%q", answer)
			}
			answer := b.raw("GET http://api.example/ HTTP/1.1\r\nHost: api.example\r\nX-Key: of the box\r\nConnection: close\r\n\r\n")
			if want := `key "from the operator", login ""`; !strings.Contains(answer, want) || *asked.Load() != "me:second" {
				t.Errorf("a request with a secret: %q, want %q; the upstream was asked as %q", answer, want, *asked.Load())
			}
			inner.await(func(c Connection) bool { return c.Name == "api.example" && c.Port == 443 && c.Protocol != "inject" })
			// The upstream proxy is at an address that the session's viewers do not learn.
			if live := b.Live(); len(live) == 0 || live[0].Address.IsValid() {
				t.Errorf("%+v", live)
			}
			for _, target := range []string{"127.0.0.1:7", "10.0.0.1:7", "169.254.169.254:7", "[::1]:7", "localhost:7", "printer.local:7"} {
				if _, r := b.tunnel(target); r.StatusCode != 403 {
					t.Errorf("%s: %s", target, r.Status)
				}
			}
			accept.Store(false)
			if _, r := b.tunnel("shop.example:7"); r.StatusCode != 502 {
				t.Errorf("%s", r.Status)
			}
			// Another way out closes what goes through this one.
			accept.Store(true)
			c, _ := b.tunnel("shop.example:7")
			if err := b.SetRules(allowing("shop.example:7")); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a connection through the old upstream goes on")
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if all := fmt.Sprintf("%+v", b.seen); strings.Contains(all, "second") {
				t.Errorf("observed: %s", all)
			}
		})
	}
}

// TestKeptConnectionHasOneOwner: a request that is over, but whose program still holds its connection,
// has lost its connection to the upstream proxy to another request, which goes on when the first one's
// host is denied.
func TestKeptConnectionHasOneOwner(t *testing.T) {
	w := newWorld(t)
	arrived, release := make(chan bool), make(chan bool)
	w.place("10.20.30.40:3128", w.server(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Host == "b.example" {
			arrived <- true
			<-release
		}
		fmt.Fprintf(rw, "%s from %s", r.URL.Host, r.RemoteAddr)
	}))
	r := rules.Rules{Allow: []string{"a.example", "b.example"}, Upstream: "http://10.20.30.40:3128"}
	b := w.box(Config{Rules: r})
	answer := func(c net.Conn) string {
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err.Error()
		}
		body, _ := io.ReadAll(r.Body)
		return string(body)
	}
	first, second := b.dial(), b.dial()
	io.WriteString(first, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
	_, from, _ := strings.Cut(answer(first), " from ")
	io.WriteString(second, "POST http://b.example/ HTTP/1.1\r\nHost: b.example\r\nContent-Length: 1\r\n\r\nx")
	<-arrived
	r.Allow = []string{"b.example"}
	if err := b.SetRules(r); err != nil {
		t.Fatal(err)
	}
	close(release)
	if got, want := answer(second), "b.example from "+from; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReasonsKeepAddresses: why a connection failed is told without addresses of the operator's
// network; the whole error is for the operator.
func TestReasonsKeepAddresses(t *testing.T) {
	w := shop(t)
	w.places[netip.MustParseAddrPort("10.20.30.40:3128")] = "127.0.0.1:1" // where nothing listens
	b := w.box(Config{Rules: rules.Rules{Public: true, Upstream: "socks5://10.20.30.40:3128"}})
	resolver := &net.DNSError{Err: "server misbehaving", Name: "shop.example", Server: "10.20.30.53:53"}
	direct := w.box(Config{Rules: allowing("shop.example:7")})
	direct.cfg.Resolve = func(context.Context, string) ([]netip.Addr, error) { return nil, resolver }
	for _, c := range []struct {
		b            *box
		reason, full string
	}{{b, "connection refused", "127.0.0.1:1"}, {direct, "the name cannot be resolved", "10.20.30.53:53"}} {
		if _, r := c.b.tunnel("shop.example:7"); r.StatusCode != 502 {
			t.Errorf("%s", r.Status)
		}
		seen := c.b.await(func(c Connection) bool { return c.Ended })
		shown, err := json.Marshal(seen)
		if err != nil || seen.Reason != c.reason || strings.Contains(string(shown), c.full) || !strings.Contains(seen.Error, c.full) {
			t.Errorf("%+v is shown as %s, %v", seen, shown, err)
		}
	}
	// A refusal of the upstream proxy itself does not name it.
	b = w.box(Config{Rules: rules.Rules{Public: true, Upstream: "socks5://10.20.30.40:3128"},
		Host: rules.Surroundings{Own: func() []netip.Addr { return []netip.Addr{} }, Never: func(ap netip.AddrPort) bool { return ap.Port() == 3128 }}})
	if _, r := b.tunnel("shop.example:7"); r.StatusCode != 403 || strings.Contains(r.Header.Get("X-Boxd-Denied"), "10.20") {
		t.Errorf("%s, %v", r.Status, r.Header)
	}
}

func FuzzHead(f *testing.F) {
	for _, s := range []string{"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT a:1 HTTP/1.0\r\n\r\n", "POST http://[::1]:5/?x HTTP/1.1\r\nHost: [::1]:5\r\nTransfer-Encoding: chunked\r\nConnection: x\r\n\r\n",
		"CONNECT A.example.:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n", "CONNECT [::ffff:1.2.3.4]:1 HTTP/1.1\r\nHost: 1.2.3.4:1\r\n\r\n", "GET /x?y HTTP/1.1\r\nHost: a.example\r\n\r\n"} {
		f.Add(s)
	}
	fixed := rules.Target{Name: "a.example", Port: 80} // of a tunnel
	f.Fuzz(func(t *testing.T, s string) {
		h, err := readHead(bufio.NewReader(strings.NewReader(s)))
		if err != nil {
			return
		}
		// What passes is what net/http reads, too.
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(s)))
		if err != nil {
			if _, _, terr := h.httpTarget(nil); terr == nil && !strings.Contains(err.Error(), "invalid") && !strings.Contains(err.Error(), "malformed") {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if r.Method != h.method || r.ContentLength != h.length {
			t.Fatalf("%q: %s %d, net/http reads %s %d", s, h.method, h.length, r.Method, r.ContentLength)
		}
		if target, _, err := h.httpTarget(nil); err == nil {
			other, err := rules.ParseAuthority(r.URL.Host, 80)
			if err != nil || other != target {
				t.Fatalf("%q: %v, net/http reads %v", s, target, r.URL.Host)
			}
		}
		if target, err := h.connectTarget(); err == nil && h.method == http.MethodConnect {
			if other, err := rules.ParseAuthority(r.URL.Host, 0); err != nil || other != target || r.ContentLength != 0 {
				t.Fatalf("%q: a tunnel to %v, net/http reads %v and %d bytes", s, target, r.URL.Host, r.ContentLength)
			}
		}
		if target, _, err := h.httpTarget(&fixed); err == nil {
			if other, err := rules.ParseAuthority(r.Host, 80); err != nil || other != fixed || target != fixed {
				t.Fatalf("%q: %v in a tunnel to %v, net/http reads %v", s, target, fixed, r.Host)
			}
		}
		for name, values := range h.header {
			if rules.IsFraming(name) || strings.ContainsAny(strings.Join(values, ""), "\r\n\x00") {
				t.Fatalf("%q: header %q", s, name)
			}
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add(clientHello(f, "a.example", nil))
	f.Add([]byte{22, 3, 1, 0, 4, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		raw, h, err := readHello(&oneByteReader{b})
		if len(raw) > len(b) || string(raw) != string(b[:len(raw)]) {
			t.Fatal("the bytes are not those that came")
		}
		if err == nil && h.name != "" {
			if name, err := rules.Name(h.name); err != nil || name != h.name {
				t.Fatalf("server name %q", h.name)
			}
		}
	})
}

func FuzzSOCKS(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x01a\x00\x50"))
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x04" + strings.Repeat("\x00", 15) + "\x01\x00\x50"))
	f.Fuzz(func(t *testing.T, b []byte) {
		k := &client{c: &net.TCPConn{}, br: bufio.NewReader(strings.NewReader(string(b)))}
		target, _, err := k.readSOCKS()
		if err == nil && (target.Port == 0 || (target.Name == "") == !target.Addr.IsValid() || target.Addr.Is4In6()) {
			t.Fatalf("%q: %+v", b, target)
		}
	})
}
