package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/internal/testutil"
)

// TestBypasses: a program in the box tries to reach what is not allowed, while public
// addresses and one private service are.
func TestBypasses(t *testing.T) {
	w := shop(t)
	secret := w.server(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "SECRET") })
	for _, a := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.0.1", "100.64.0.1", "0.0.0.0", "[::1]", "[fd00::1]", "[fe80::1]", "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b::a00:1]", "[64:ff9b::a09:909]", "[64:ff9b::5db8:d863]", "[64:ff9b::5db8:d862]", "[64:ff9b:1::5db8:d822]", "[2002:7f00:1::]", "[2002:5db8:d822::]", "127.1.2.3", "10.9.9.9", "93.184.216.99"} {
		w.place(a+":80", secret)
		w.place(a+":443", secret)
		w.place(a+":25", secret)
	}
	w.place(public1+":25", secret)
	w.name("evil.example", public1)
	w.name("rebind.example", "127.0.0.1")
	w.name("meta.example", "169.254.169.254")
	w.name("v6.example", "::ffff:10.0.0.1")
	w.name("nat64.example", "64:ff9b::7f00:1")
	w.name("nat64own.example", "64:ff9b::5db8:d863")
	w.name("all.example", "127.0.0.1", "10.0.0.1", "::1", "fd00::1")
	w.name("own.example", "93.184.216.99")
	w.name("localhost", "127.0.0.1")
	b := w.box(Config{Rules: rules.Rules{Public: true, Deny: []string{"evil.example", "*.evil.example", "93.184.216.98"}, Allow: []string{"10.9.9.9:5432"}},
		Host: rules.Surroundings{Own: func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("93.184.216.99")} }}})

	get := func(url, host string) string { return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", url, host) }
	both := func(host string) string { return get("http://"+host+"/", host) }
	connect := func(target string) string {
		return fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\nGET / HTTP/1.0\r\n\r\n", target)
	}
	if answer := b.raw("GET http://shop.example/ HTTP/1.0\r\n\r\n"); !strings.Contains(answer, "hello from shop.example/") {
		t.Fatalf("what is allowed does not work: %q", answer)
	}
	for name, request := range map[string]string{
		"a denied name":               both("evil.example"),
		"in capitals":                 both("EVIL.Example"),
		"with a trailing dot":         both("evil.example."),
		"with two trailing dots":      both("evil.example.."),
		"below a denied name":         both("x.evil.example"),
		"user information":            get("http://shop.example@evil.example/", "evil.example"),
		"user information, reversed":  get("http://evil.example@shop.example/", "shop.example"),
		"a backslash":                 get("http://shop.example\\@evil.example/", "shop.example"),
		"an escaped name":             get("http://evil%2eexample/", "evil%2eexample"),
		"a fragment":                  get("http://shop.example#@evil.example/", "shop.example"),
		"Host is another":             get("http://shop.example/", "evil.example"),
		"Host has another port":       get("http://shop.example/", "shop.example:8080"),
		"two Hosts":                   "GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nHost: evil.example\r\n\r\n",
		"the same Host twice":         "GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nHost: shop.example\r\n\r\n",
		"no Host":                     "GET http://shop.example/ HTTP/1.1\r\n\r\n",
		"Host is folded":              "GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n evil.example\r\n\r\n",
		"origin form":                 get("/", "evil.example"),
		"asterisk form":               "OPTIONS * HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"https in absolute form":      get("https://shop.example/", "shop.example"),
		"ftp":                         get("ftp://shop.example/", "shop.example"),
		"file":                        get("file:///etc/passwd", "shop.example"),
		"HTTP/0.9":                    "GET http://evil.example/\r\n\r\n",
		"HTTP/2":                      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"HTTP/1.2":                    "GET http://shop.example/ HTTP/1.2\r\nHost: shop.example\r\n\r\n",
		"a tab in the first line":     "GET\thttp://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n",
		"LF only":                     "GET http://shop.example/ HTTP/1.1\nHost: shop.example\n\n",
		"a CR in a header":            "GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nX: a\rb\r\n\r\n",
		"a NUL":                       "GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\x00\r\n\r\n",
		"a space before the colon":    "GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nContent-Length : 4\r\n\r\nabcd",
		"lengths of both kinds":       "POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths":                 "POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
		"a list of lengths":           "POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 4, 4\r\n\r\nabcd",
		"a signed length":             "POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nContent-Length: +4\r\n\r\nabcd",
		"two codings":                 "POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"an unknown coding":           "POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"two coding headers":          "POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a coding in HTTP/1.0":        "POST http://shop.example/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a head of 40 KB":             get("http://shop.example/", "shop.example\r\nX: "+strings.Repeat("a", 40<<10)),
		"200 headers":                 get("http://shop.example/", "shop.example"+strings.Repeat("\r\nX: a", 200)),
		"loopback":                    both("127.0.0.1"),
		"loopback, short":             both("127.1"),
		"loopback, decimal":           both("2130706433"),
		"loopback, hexadecimal":       both("0x7f000001"),
		"loopback, hexadecimal parts": both("0x7f.0x0.0x0.0x1"),
		"loopback, octal":             both("0177.0.0.1"),
		"loopback, trailing dot":      both("127.0.0.1."),
		"loopback, other":             both("127.1.2.3"),
		"loopback, full width":        both("１２７.0.0.1"),
		"loopback, IPv6":              both("[::1]"),
		"loopback, mapped":            both("[::ffff:127.0.0.1]"),
		"loopback, mapped, hex":       both("[::ffff:7f00:1]"),
		"loopback, NAT64":             both("[64:ff9b::7f00:1]"),
		"loopback, 6to4":              both("[2002:7f00:1::]"),
		"metadata, NAT64":             both("[64:ff9b::a9fe:a9fe]"),
		"a private address, NAT64":    both("[64:ff9b::10.0.0.1]"),
		"a private port, NAT64":       both("[64:ff9b::a09:909]"),
		"the host, NAT64":             both("[64:ff9b::5db8:d863]"),
		"name of the host, NAT64":     both("nat64own.example"),
		"a denied address, NAT64":     both("[64:ff9b::5db8:d862]"),
		"a public one, local NAT64":   both("[64:ff9b:1::5db8:d822]"),
		"a public one, 6to4":          both("[2002:5db8:d822::]"),
		"IPv6 with a zone":            both("[fe80::1%25eth0]"),
		"IPv6 without brackets":       both("::1"),
		"any address":                 both("0.0.0.0"),
		"the metadata service":        both("169.254.169.254"),
		"a private address":           both("10.0.0.1"),
		"a private address, port":     both("10.9.9.9"),
		"CGNAT":                       both("100.64.0.1"),
		"a unique local address":      both("[fd00::1]"),
		"the host's own address":      both("93.184.216.99"),
		"name of loopback":            both("rebind.example"),
		"name of metadata":            both("meta.example"),
		"name of a mapped address":    both("v6.example"),
		"name of NAT64":               both("nat64.example"),
		"name of many":                both("all.example"),
		"name of the host":            both("own.example"),
		"localhost":                   both("localhost"),
		"SMTP":                        both("shop.example:25"),
		"SMTP by address":             connect(public1 + ":25"),
		"CONNECT, denied":             connect("evil.example:443"),
		"CONNECT, denied, port 80":    connect("evil.example:80"),
		"CONNECT, loopback":           connect("127.0.0.1:80"),
		"CONNECT, name of loopback":   connect("rebind.example:443"),
		"CONNECT, mapped":             connect("[::ffff:10.0.0.1]:443"),
		"CONNECT, a path":             connect("shop.example:443/x"),
		"CONNECT, a URL":              connect("http://shop.example:443"),
		"CONNECT, user information":   connect("x@evil.example:443"),
		"CONNECT, no port":            connect("shop.example"),
		"CONNECT, port 0":             connect("shop.example:0"),
		"CONNECT, big port":           connect("shop.example:65979"),
		"CONNECT, a space":            connect("shop.example :443"),
		"CONNECT, other Host":         "CONNECT shop.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
		"CONNECT, a body":             "CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\nContent-Length: 4\r\n\r\nabcd",
		"CONNECT 80, other Host":      "CONNECT shop.example:80 HTTP/1.1\r\nHost: shop.example:80\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"CONNECT 80, absolute":        "CONNECT shop.example:80 HTTP/1.1\r\nHost: shop.example:80\r\n\r\nGET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"CONNECT 80, CONNECT":         "CONNECT shop.example:80 HTTP/1.1\r\nHost: shop.example:80\r\n\r\nCONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
		"CONNECT 80, not HTTP":        "CONNECT shop.example:80 HTTP/1.1\r\nHost: shop.example:80\r\n\r\nSSH-2.0-x\r\n\r\n",
		"CONNECT 443, not TLS":        "CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"http on port 443":            both("shop.example:443"),
		"SOCKS4":                      "\x04\x01\x00\x50\x7f\x00\x00\x01\x00",
		"SOCKS5, loopback":            "\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50",
		"SOCKS5, IPv6":                "\x05\x01\x00\x05\x01\x00\x04" + strings.Repeat("\x00", 15) + "\x01\x00\x50",
		"SOCKS5, literal as a name":   "\x05\x01\x00\x05\x01\x00\x03\x09127.0.0.1\x00\x50",
		"SOCKS5, decimal as a name":   "\x05\x01\x00\x05\x01\x00\x03\x0a2130706433\x00\x50",
		"SOCKS5, denied name":         "\x05\x01\x00\x05\x01\x00\x03\x0cevil.example\x01\xbb",
		"SOCKS5, name of metadata":    "\x05\x01\x00\x05\x01\x00\x03\x0cmeta.example\x01\xbb",
		"SOCKS5, BIND":                "\x05\x01\x00\x05\x02\x00\x03\x0cshop.example\x01\xbb",
		"SOCKS5, UDP":                 "\x05\x01\x00\x05\x03\x00\x03\x0cshop.example\x01\xbb",
		"SOCKS5, password":            "\x05\x01\x02\x01\x01a\x01b\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50",
	} {
		t.Run(name, func(t *testing.T) {
			answer := b.raw(request)
			refused := strings.HasPrefix(answer, "HTTP/1.1 4") || answer == "\x05\xff" || answer == "" && request[0] == 4 || strings.HasPrefix(answer, "\x05\x00\x05") && answer[3] != 0 ||
				strings.HasPrefix(answer, "HTTP/1.1 200 Connection established\r\n\r\n") && (strings.HasSuffix(answer, "\r\n\r\n") || strings.Contains(answer[9:], "HTTP/1.1 4"))
			if !refused || strings.Contains(answer, "SECRET") || strings.Contains(answer, "hello") {
				t.Errorf("%q", answer)
			}
		})
	}
	if len(w.dialled) == 0 || slices.ContainsFunc(w.dialled, func(ap netip.AddrPort) bool { return ap.Addr() != netip.MustParseAddr(public1) || ap.Port() == 25 }) {
		t.Errorf("dialled: %v", w.dialled)
	}
	if answer := b.raw("GET http://shop.example:443/ HTTP/1.0\r\n\r\n"); !strings.HasPrefix(answer, "HTTP/1.1 403") {
		t.Errorf("http on port 443: %q", answer)
	}
	if answer := b.raw("GET http://shop.example/ HTTP/1.0\r\n\r\n"); !strings.Contains(answer, "hello from shop.example/") {
		t.Errorf("afterwards what is allowed does not work: %q", answer)
	}
}

// TestRebinding: a name leads to a public address first and to loopback afterwards, and
// the other way round.
func TestRebinding(t *testing.T) {
	w := shop(t)
	turn := 0
	w.names["turn.example"] = func() []netip.Addr {
		turn++
		return []netip.Addr{netip.MustParseAddr([]string{public1, "127.0.0.1"}[(turn-1)%2])}
	}
	b := w.box(Config{Rules: allowing("turn.example")})
	for i := range 4 {
		answer := b.raw("GET http://turn.example/ HTTP/1.0\r\nConnection: close\r\n\r\n")
		b.now.Load().transport.CloseIdleConnections()
		if want := []string{"hello", "turn.example:80 is not allowed: it leads to an address that is not public"}[i%2]; !strings.Contains(answer, want) {
			t.Errorf("%d: %q", i, answer)
		}
	}
}

// TestListenersBehindRoutes: an address that only a route leads here is one of this host: no entry opens
// a listener of boxd there, and an entry of exactly that address opens the others.
func TestListenersBehindRoutes(t *testing.T) {
	w := shop(t)
	loopback := netip.MustParseAddr("127.0.0.1")
	b := w.box(Config{Rules: allowing(public1+":7", public1+":80", "shop.example:80"), Host: rules.Surroundings{
		Own:   func() []netip.Addr { return []netip.Addr{loopback} },
		Never: func(to netip.AddrPort) bool { return to.Addr() == loopback && to.Port() == 80 },
	}})
	b.routed = func(addr netip.Addr) (bool, error) { return addr == netip.MustParseAddr(public1), nil }
	for target, status := range map[string]int{public1 + ":7": 200, public1 + ":80": 403, "shop.example:80": 403} {
		if _, r := b.tunnel(target); r.StatusCode != status {
			t.Errorf("%s: %s", target, r.Status)
		}
	}
}

// TestNAT64: on a host with DNS64, names of IPv4 only are reached through the translator, and so is a
// private service that an IPv4 entry opens. Routes and listeners are asked about the address inside.
func TestNAT64(t *testing.T) {
	w := shop(t)
	site := w.server(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "translated") })
	for _, ap := range []string{"[64:ff9b::5db8:d822]:80", "[64:ff9b::a09:909]:80", "[64:ff9b::5db8:d823]:80", "[64:ff9b::5db8:d824]:80", "[64:ff9b::5db8:d824]:81"} {
		w.place(ap, site)
	}
	w.name("four.example", "64:ff9b::5db8:d822")
	w.name("inside.example", "64:ff9b::a09:909")
	w.name("routed.example", "64:ff9b::5db8:d823")
	b := w.box(Config{Rules: rules.Rules{Public: true, Allow: []string{"10.9.9.9:80", "93.184.216.36:80-81"}}, Host: rules.Surroundings{
		Own:   func() []netip.Addr { return []netip.Addr{} },
		Never: func(to netip.AddrPort) bool { return to == netip.MustParseAddrPort("127.0.0.1:81") },
	}})
	b.routed = func(addr netip.Addr) (bool, error) {
		return addr == netip.MustParseAddr("93.184.216.35") || addr == netip.MustParseAddr("93.184.216.36"), nil
	}
	for host, reached := range map[string]bool{
		"four.example": true, "[64:ff9b::5db8:d822]": true, "[64:ff9b::93.184.216.34]": true, "inside.example": true, "[64:ff9b::a09:909]": true,
		"routed.example": false, "[64:ff9b::5db8:d823]": false, // a route leads 93.184.216.35 here
		"[64:ff9b::5db8:d824]": true, "[64:ff9b::5db8:d824]:81": false, // an entry opens 93.184.216.36 of this host, but no listener of boxd
	} {
		answer := b.raw("GET http://" + host + "/ HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")
		if strings.Contains(answer, "translated") != reached || strings.Contains(answer, " 403 ") == reached {
			t.Errorf("%s: %q", host, answer)
		}
	}
}

// TestServerNames: two names at one address, of which one is allowed.
func TestServerNames(t *testing.T) {
	w := shop(t)
	w.place(public1+":8443", w.places[netip.MustParseAddrPort(public1+":443")])
	b := w.box(Config{Rules: rules.Rules{Allow: []string{"shop.example", "shop.example:8443", public1}, Deny: []string{"evil.example"}}})
	for _, c := range []struct {
		target, sni string
		works       bool
	}{
		{"shop.example:443", "shop.example", true}, {"SHOP.example.:443", "shop.example", true}, {"shop.example:443", "SHOP.EXAMPLE", true},
		{"shop.example:443", "other.example", false}, {"shop.example:443", "evil.example", false}, {"shop.example:443", "", false}, {"shop.example:443", "xshop.example", false},
		{"shop.example:8443", "other.example", true}, // the rule names the port
		{public1 + ":443", "", true}, {public1 + ":443", "other.example", true}, {public1 + ":443", "evil.example", false},
	} {
		conn, r := b.tunnel(c.target)
		if r.StatusCode != 200 {
			t.Errorf("%s: %s", c.target, r.Status)
			continue
		}
		err := tls.Client(conn, &tls.Config{ServerName: c.sni, InsecureSkipVerify: true}).Handshake()
		if (err == nil) != c.works || !c.works && !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s with server name %q: %v", c.target, c.sni, err)
		}
	}
	if c := b.await(func(c Connection) bool {
		return c.Rule == "tls" && c.Reason == "its TLS server name is other.example" && c.Ended
	}); c.Allowed || c.Out != 0 || c.In != 0 {
		t.Errorf("%+v", c)
	}
}

// TestFragments: a ClientHello in many records and in many packets.
func TestFragments(t *testing.T) {
	for _, sni := range []string{"shop.example", "other.example"} {
		raw := clientHello(t, sni, nil)
		for size := 1; size < 200; size += 7 {
			if size*(maxHelloRecords-1) < len(raw) {
				continue
			}
			var split []byte
			for body := raw[5:]; len(body) > 0; {
				n := min(size, len(body))
				split = append(append(split, 22, 3, 1, byte(n>>8), byte(n)), body[:n]...)
				body = body[n:]
			}
			got, h, err := readHello(&oneByteReader{split})
			if err != nil || h.name != sni || !bytes.Equal(got, split) {
				t.Fatalf("records of %d bytes: %+v, %v", size, h, err)
			}
		}
	}
}

type oneByteReader struct{ b []byte }

func (o *oneByteReader) Read(p []byte) (int, error) {
	if len(o.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:1], o.b)
	o.b = o.b[n:]
	return n, nil
}

// clientHello returns the first record that a TLS client sends.
func clientHello(t testing.TB, sni string, ech []byte) []byte {
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		c := tls.Client(near, &tls.Config{ServerName: sni, InsecureSkipVerify: true, EncryptedClientHelloConfigList: ech})
		c.Handshake()
		near.Close()
	}()
	raw, _, err := readHello(far)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestEarlyBytes: a program that does not wait for the answer to CONNECT.
func TestEarlyBytes(t *testing.T) {
	w := shop(t)
	b := w.box(Config{Rules: allowing("shop.example:7")})
	c := b.dial()
	io.WriteString(c, "CONNECT shop.example:7 HTTP/1.1\r\nHost: shop.example:7\r\n\r\nearly")
	c.CloseWrite()
	if answer, _ := io.ReadAll(c); !strings.HasSuffix(string(answer), "established\r\n\r\nearly") {
		t.Errorf("%q", answer)
	}
	end := b.await(func(c Connection) bool { return c.Ended })
	if end.In != 5 || end.Out != 5 || end.Name != "shop.example" || end.Port != 7 || end.Address.String() != public1+":7" || end.Protocol != "connect" || end.Rule != `allow "shop.example:7"` || end.Reason != "" {
		t.Errorf("%+v", end)
	}
}

func TestSOCKS(t *testing.T) {
	w := shop(t)
	w.name("lost.example", "93.184.216.35")
	b := w.box(Config{Rules: allowing("shop.example:7", public1+":7", "lost.example:7", "none.example:7", "shop.example")})
	ask := func(request string) []byte {
		c := b.dial()
		io.WriteString(c, "\x05\x02\x02\x00"+request+"ping")
		c.CloseWrite()
		answer, _ := io.ReadAll(c)
		return answer
	}
	ok := "\x05\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
	for request, want := range map[string]string{
		"\x05\x01\x00\x03\x0cshop.example\x00\x07": ok + "ping",
		"\x05\x01\x00\x03\x0cSHOP.example\x00\x07": ok + "ping",
		"\x05\x01\x00\x01\x5d\xb8\xd8\x22\x00\x07": ok + "ping",
		"\x05\x01\x00\x03\x0cevil.example\x00\x07": "\x05\x00\x05\x02",
		"\x05\x01\x00\x03\x0cnone.example\x00\x07": "\x05\x00\x05\x04",
		"\x05\x01\x00\x03\x0clost.example\x00\x07": "\x05\x00\x05\x01",
		"\x05\x02\x00\x03\x0cshop.example\x00\x07": "\x05\x00\x05\x07",
		"\x05\x01\x00\x09\x0cshop.example\x00\x07": "\x05\x00\x05\x08",
	} {
		if answer := ask(request); !strings.HasPrefix(string(answer), want) || want[3] == 0 && len(want) != len(answer) {
			t.Errorf("%q: %q, want %q", request, answer, want)
		}
	}
	// Port 80 without a rule of its own carries requests, for this name only.
	c := b.dial()
	io.WriteString(c, "\x05\x01\x00\x05\x01\x00\x03\x0cshop.example\x00\x50GET /x HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
	if answer, _ := io.ReadAll(c); !strings.Contains(string(answer), "hello from shop.example/x") {
		t.Errorf("%q", answer)
	}
}

// TestHappyEyeballs: the first address hangs, the second answers.
func TestHappyEyeballs(t *testing.T) {
	w := shop(t)
	w.name("slow.example", "2606:2800:220:1::9", public1)
	b := w.box(Config{Rules: allowing("slow.example:7")})
	gone := make(chan error, 1)
	b.connect = func(ctx context.Context, d *net.Dialer, ap netip.AddrPort) (net.Conn, error) {
		if ap.Addr().Is6() {
			<-ctx.Done()
			gone <- ctx.Err()
			return nil, ctx.Err()
		}
		return w.connect(ctx, d, ap)
	}
	_, r := b.tunnel("slow.example:7")
	if r.StatusCode != 200 {
		t.Error(r.Status)
	}
	select {
	case <-gone:
	case <-time.After(testutil.Patience()):
		t.Error("the dial that hangs was not ended")
	}
}
