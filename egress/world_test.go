package egress

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/internal/testutil"
)

// world is an internet behind the check of addresses: its names, and which local server
// answers for an address.
type world struct {
	t  testing.TB
	ca *tls.Certificate

	mu      sync.Mutex
	names   map[string]func() []netip.Addr
	places  map[netip.AddrPort]string
	dialled []netip.AddrPort
}

func newWorld(t testing.TB) *world {
	return &world{t: t, names: map[string]func() []netip.Addr{}, places: map[netip.AddrPort]string{}}
}

func (w *world) name(name string, addrs ...string) {
	var list []netip.Addr
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name] = func() []netip.Addr { return list }
}

// place lets the server at real answer for ap.
func (w *world) place(ap, real string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.places[netip.MustParseAddrPort(ap)] = strings.TrimPrefix(strings.TrimPrefix(real, "http://"), "https://")
}

// visited returns how often addresses were dialled that passed the check.
func (w *world) visited() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.dialled)
}

func (w *world) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	w.mu.Lock()
	find, ok := w.names[strings.TrimSuffix(name, ".")]
	w.mu.Unlock()
	if !ok || !strings.HasSuffix(name, ".") {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return find(), nil
}

// noSocket stands for the socket of an address behind which another one is dialled.
type noSocket struct{ syscall.RawConn }

func (noSocket) Control(func(uintptr)) error { return nil }

func (w *world) connect(ctx context.Context, d *net.Dialer, ap netip.AddrPort) (net.Conn, error) {
	if err := d.Control("tcp", ap.String(), noSocket{}); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	w.mu.Lock()
	real, ok := w.places[ap]
	w.dialled = append(w.dialled, ap)
	w.mu.Unlock()
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("nothing there")}
	}
	return (&net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error { return boundBuffers(raw) }}).DialContext(ctx, "tcp", real)
}

// box is a proxy with what its observer saw.
type box struct {
	*Proxy
	t    testing.TB
	addr string // of its listener

	mu    sync.Mutex
	seen  []Connection
	moved chan struct{}
}

func (w *world) box(c Config) *box {
	b := &box{t: w.t, moved: make(chan struct{}, 1)}
	c.Resolve = w.resolve
	see := func(c Connection) {
		b.mu.Lock()
		b.seen = append(b.seen, c)
		b.mu.Unlock()
		select {
		case b.moved <- struct{}{}:
		default:
		}
	}
	c.Observe = see
	if c.Admit == nil {
		c.Admit = func(_ context.Context, c Connection) error { see(c); return nil }
	}
	p, err := New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	p.connect = w.connect
	b.Proxy = p
	b.addr = b.listen()
	w.t.Cleanup(func() { p.Shut(); p.Wait() })
	return b
}

func (b *box) listen() string {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.t.Fatal(err)
	}
	go b.Serve(l)
	return l.Addr().String()
}

// await waits for an observed connection that fits.
func (b *box) await(fits func(Connection) bool) Connection {
	b.t.Helper()
	timeout := time.After(testutil.Patience())
	for {
		b.mu.Lock()
		i := slices.IndexFunc(b.seen, fits)
		var c Connection
		if i >= 0 {
			c = b.seen[i]
		}
		b.mu.Unlock()
		if i >= 0 {
			return c
		}
		select {
		case <-b.moved:
		case <-timeout:
			b.t.Fatalf("no such connection was observed: %+v", b.seen)
		}
	}
}

func (b *box) dial() *net.TCPConn {
	b.t.Helper()
	c, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testutil.Patience()))
	return c.(*net.TCPConn)
}

// raw sends bytes and returns all that comes back until the proxy closes.
func (b *box) raw(request string) string {
	c := b.dial()
	io.WriteString(c, request)
	answer, _ := io.ReadAll(c)
	return string(answer)
}

// connect asks for a tunnel and returns the status and headers of the answer.
func (b *box) tunnel(target string) (*net.TCPConn, *http.Response) {
	b.t.Helper()
	c := b.dial()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target)
	r, err := http.ReadResponse(bufio.NewReaderSize(&oneByte{c}, 16), &http.Request{Method: "CONNECT"})
	if err != nil {
		b.t.Fatal(err)
	}
	return c, r
}

// oneByte keeps a bufio.Reader from reading past a head.
type oneByte struct{ net.Conn }

func (o *oneByte) Read(p []byte) (int, error) { return o.Conn.Read(p[:min(1, len(p))]) }

func (b *box) client(t testing.TB, c *tls.Config) *http.Client {
	tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: b.addr}), TLSClientConfig: c}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: testutil.Patience(), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// certificate makes one for names, signed by the world's own authority.
func (w *world) certificate(names ...string) tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: names}
	parent, signer := tmpl, key
	if w.ca == nil {
		tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.KeyUsage = true, true, x509.KeyUsageCertSign
	} else {
		parent, signer = w.ca.Leaf, w.ca.PrivateKey.(*ecdsa.PrivateKey)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		w.t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	c := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	if w.ca == nil {
		w.ca = &c
		return w.certificate(names...)
	}
	return c
}

// roots is the world's authority; certificate was called before.
func (w *world) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(w.ca.Leaf)
	return pool
}

// tlsServer serves several names at one address.
func (w *world) tlsServer(h http.Handler, names ...string) string {
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{}
	for _, name := range names {
		s.TLS.Certificates = append(s.TLS.Certificates, w.certificate(name))
	}
	s.Config.ErrorLog = quiet
	s.StartTLS()
	w.t.Cleanup(s.Close)
	return s.URL
}

func (w *world) server(h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	w.t.Cleanup(s.Close)
	return s.URL
}

// sink is a TCP server; each connection is given to f and closed afterwards.
func (w *world) sink(f func(*net.TCPConn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); f(c.(*net.TCPConn)) })
		}
	})
	w.t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// echo does not use splice(2), for which the runtime keeps pipes.
func echo(c *net.TCPConn) { io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }

func allowing(entries ...string) rules.Rules { return rules.Rules{Allow: entries} }
