package network

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// Addresses of the world. Those of goodRange and evilRange are public to the rules.
const (
	hostAddr4, hostAddr6 = "93.184.1.2", "2606:4700:1::2" // of the host that runs boxd
	gateway4, gateway6   = "93.184.1.1", "2606:4700:1::1"
	resolver             = "9.9.9.9"
	goodAddr             = "45.33.0.1"
	goodAddr6            = "2600:3c00::1"
	evilAddr             = "45.66.0.1"
	evilAddr6            = "2600:dead::1"
	privateAddr          = "10.0.0.5"
	hostPort             = "9000" // of a service of the host, at all of its addresses
	hostWebPort          = "9001" // of another one, which speaks HTTP
	rawPort              = "7000"
)

// goodRanges are the addresses that an allowed name leads to.
var goodRanges = []netip.Prefix{netip.MustParsePrefix("45.33.0.0/16"), netip.MustParsePrefix("2600:3c00::/32"), netip.MustParsePrefix("64:ff9b::2d21:0/112")}

// zone has the addresses of names below "example". A name that is not here leads to
// evilAddr, so a name that slips through the rules is seen to arrive.
var zone = map[string][]string{
	"good":        {goodAddr, goodAddr6},
	"other":       {goodAddr, goodAddr6}, // a second site at the same addresses
	"open.wild":   {"45.33.0.2"},
	"six":         {"2600:3c00::6"},
	"inject":      {"45.33.0.3"},
	"raw":         {"45.33.0.4"},
	"private":     {privateAddr},
	"metadata":    {"169.254.169.254"},
	"loop":        {"127.0.0.1"},
	"loop6":       {"::1"},
	"zero":        {"0.0.0.0"},
	"own":         {hostAddr4},
	"routed":      {"93.184.77.5"},
	"own6":        {hostAddr6},
	"mapped":      {"::ffff:10.0.0.5"},
	"nat64":       {"64:ff9b::10.0.0.5"},
	"nat64good":   {"64:ff9b::45.33.0.1"},
	"nat64own":    {"64:ff9b::" + hostAddr4},
	"nat64routed": {"64:ff9b::93.184.77.5"},
	"nat64local":  {"64:ff9b:1::10.0.0.5"},
	"sixtofour":   {"2002:a00:5::1"},
	"teredo":      {"2001::a00:5"},
	"compatible":  {"::10.0.0.5"},
	"ula":         {"fd00::5"},
	"linklocal":   {"fe80::5"},
	"cgnat":       {"100.64.0.5"},
	"multicast":   {"224.0.0.1"},
	"mixed":       {privateAddr, goodAddr}, // the second one is fine
	"many":        manyAddrs("10.7."),
	"manygood":    manyAddrs("45.33."),
}

func manyAddrs(prefix string) (list []string) {
	for i := range 1000 {
		list = append(list, fmt.Sprintf("%s%d.%d", prefix, i/250, 1+i%250))
	}
	return list
}

// aliases are names that stand for another one.
var aliases = map[string]string{"alias": "good", "aliasprivate": "private", "aliasevil": "evil"}

// hit is something that reached a server.
type hit struct {
	at   netip.AddrPort // the server's address
	what string         // "tcp", "udp", "sni NAME" or "http HOST PATH"
}

func (h hit) String() string { return h.at.String() + " " + h.what }

// internet is the network of the tests.
type internet struct {
	dir    string // everybody may read it
	ca     string // file with the certificate authority of all servers
	ns     int    // the namespace that plays the internet
	resolv string

	caCert *x509.Certificate
	caKey  *ecdsa.PrivateKey

	mu      sync.Mutex
	certs   map[string]*tls.Certificate
	hits    []hit
	asked   []string // names that the resolver was asked for
	raw     func(net.Conn)
	handler map[string]http.HandlerFunc // by path
	turn    atomic.Int64                // of the rebinding name
}

var world internet

// make builds the namespaces and starts the servers. The process has its own network
// namespace, and a mount namespace of its own, already.
func (w *internet) make() (err error) {
	w.dir = os.Getenv(insideEnv)
	if err := os.Chmod(w.dir, 0o755); err != nil {
		return err
	}
	w.certs, w.handler = map[string]*tls.Certificate{}, map[string]http.HandlerFunc{}
	if err := w.makeCA(); err != nil {
		return err
	}
	w.resolv = filepath.Join(w.dir, "resolv.conf")
	if err := os.WriteFile(w.resolv, []byte("nameserver "+resolver+"\noptions timeout:2 attempts:2\n"), 0o644); err != nil {
		return err
	}
	if err := unix.Mount(w.resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		return os.NewSyscallError("mount resolv.conf", err)
	}
	// Daemons inherit it.
	os.Setenv("SSL_CERT_FILE", w.ca)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		failed <- func() (err error) {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if w.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
				return err
			}
			return ip("link set lo up")
		}()
	}()
	if err := <-failed; err != nil {
		return err
	}
	self := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), w.ns)
	if err := ip("link set lo up", "link add up0 type veth peer name down0 netns "+self,
		"addr add "+hostAddr4+"/24 dev up0", "addr add "+hostAddr6+"/64 dev up0 nodad", "link set up0 up"); err != nil {
		return err
	}
	if err := w.inside(func() error {
		return ip("addr add "+gateway4+"/24 dev down0", "addr add "+gateway6+"/64 dev down0 nodad", "link set down0 up",
			// It answers at every address.
			"route add local 0.0.0.0/0 dev lo table main", "-6 route add local ::/0 dev lo table main")
	}); err != nil {
		return err
	}
	if err := ip("route add default via "+gateway4, "-6 route add default via "+gateway6,
		// Addresses that lead to the host although no interface has them, as load balancers of clouds use them.
		"route add local 93.184.77.0/24 dev lo", "-6 route add local 2606:4700:77::/48 dev lo"); err != nil {
		return err
	}
	return w.serve()
}

// ip runs ip(8) in the namespace of the calling thread.
func ip(lines ...string) error {
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// inside calls f on a thread in the namespace that plays the internet.
func (w *internet) inside(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(w.ns, unix.CLONE_NEWNET); err != nil {
			result <- os.NewSyscallError("setns", err)
			return
		}
		result <- f()
	}()
	return <-result
}

func (w *internet) makeCA() (err error) {
	if w.caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "boxd tests"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, w.caKey.Public(), w.caKey)
	if err != nil {
		return err
	}
	if w.caCert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	w.ca = filepath.Join(w.dir, "ca.pem")
	return os.WriteFile(w.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

// certificate makes a certificate for the name that a client asks for.
func (w *internet) certificate(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	at := h.Conn.LocalAddr().(*net.TCPAddr).AddrPort()
	w.hit(at, "sni "+h.ServerName)
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.certs[h.ServerName]; c != nil {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(240 * time.Hour)}
	if h.ServerName != "" {
		template.DNSNames = []string{h.ServerName}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, w.caCert, key.Public(), w.caKey)
	if err != nil {
		return nil, err
	}
	w.certs[h.ServerName] = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return w.certs[h.ServerName], nil
}

func (w *internet) hit(at netip.AddrPort, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hits = append(w.hits, hit{netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), what})
}

// take returns what reached the servers, and what the resolver was asked, since the last call.
func (w *internet) take() (hits []hit, asked []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hits, asked = w.hits, w.asked
	w.hits, w.asked = nil, nil
	return hits, asked
}

// seen reports every connection that l accepts.
type seen struct {
	net.Listener
	w *internet
}

func (s seen) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err == nil {
		s.w.hit(c.LocalAddr().(*net.TCPAddr).AddrPort(), "tcp")
	}
	return c, err
}

// tcpPorts are where the internet serves something other than HTTP: a line, and what raw says.
var tcpPorts = []string{"22", "25", "465", "587", "853", "1080", "3128", rawPort, "8443", hostPort}

func (w *internet) serve() error {
	quiet := log.New(io.Discard, "", 0)
	web := &http.Server{Handler: http.HandlerFunc(w.answer), ErrorLog: quiet, IdleTimeout: 5 * time.Second,
		TLSConfig: &tls.Config{GetCertificate: w.certificate, NextProtos: []string{"h2", "http/1.1"}}}
	listen := func(port string) (net.Listener, error) {
		l, err := net.Listen("tcp", ":"+port)
		return seen{l, w}, err
	}
	err := w.inside(func() error {
		for _, port := range []string{"80", "8080"} {
			l, err := listen(port)
			if err != nil {
				return err
			}
			go web.Serve(l)
		}
		l, err := listen("443")
		if err != nil {
			return err
		}
		go web.ServeTLS(l, "", "")
		for _, port := range tcpPorts {
			l, err := listen(port)
			if err != nil {
				return err
			}
			go w.serveRaw(l)
		}
		if l, err = listen("53"); err != nil {
			return err
		}
		go w.serveNamesTCP(l)
		// Answers must come from the address that was asked.
		names, err := net.ListenPacket("udp4", resolver+":53")
		if err != nil {
			return err
		}
		go w.serveNames(names)
		for _, port := range []string{"443", "123", "5353"} {
			p, err := net.ListenPacket("udp", ":"+port)
			if err != nil {
				return err
			}
			go w.servePackets(p)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Services of the host itself, and an abstract socket in its network namespace.
	l, err := listen(hostPort)
	if err != nil {
		return err
	}
	go w.serveRaw(l)
	if l, err = listen(hostWebPort); err != nil {
		return err
	}
	go web.Serve(l)
	abstract, err := net.Listen("unix", "@"+abstractName)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := abstract.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "REACHED the host's abstract socket\n")
			c.Close()
		}
	}()
	return nil
}

const abstractName = "boxd-test-network"

// answer serves HTTP. Whoever reads REACHED has reached the server that is named behind it.
func (w *internet) answer(out http.ResponseWriter, r *http.Request) {
	at := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).AddrPort()
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	w.hit(at, scheme+" "+r.Host+" "+r.URL.Path)
	w.mu.Lock()
	handler := w.handler[r.URL.Path]
	w.mu.Unlock()
	if handler != nil {
		handler(out, r)
		return
	}
	if to := r.URL.Query().Get("to"); r.URL.Path == "/redirect" {
		http.Redirect(out, r, to, http.StatusFound)
		return
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	fmt.Fprintf(out, "REACHED %s %s://%s%s %s, %d bytes\n", at, scheme, r.Host, r.URL.Path, r.Proto, len(body))
}

// at serves a path of every web server until the test ends.
func (w *internet) at(t *testing.T, path string, h http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handler[path] = h
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.handler, path)
	})
}

// onRaw serves connections to rawPort until the test ends. f closes them.
func (w *internet) onRaw(t *testing.T, f func(net.Conn)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.raw = f
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.raw = nil
	})
}

func (w *internet) serveRaw(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		f := w.raw
		w.mu.Unlock()
		at := c.LocalAddr().(*net.TCPAddr)
		if f == nil || fmt.Sprint(at.Port) != rawPort {
			f = func(c net.Conn) {
				defer c.Close()
				fmt.Fprintf(c, "REACHED %s\r\n", at)
				c.(*net.TCPConn).CloseWrite()
				c.SetReadDeadline(time.Now().Add(time.Second))
				io.Copy(io.Discard, c) // closing with unread bytes would take the line back
			}
		}
		go f(c)
	}
}

func (w *internet) servePackets(p net.PacketConn) {
	b := make([]byte, 2048)
	for {
		_, from, err := p.ReadFrom(b)
		if err != nil {
			return
		}
		w.hit(netip.MustParseAddrPort(p.LocalAddr().String()), "udp")
		p.WriteTo([]byte("REACHED udp"), from)
	}
}

func (w *internet) serveNames(p net.PacketConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := p.ReadFrom(b)
		if err != nil {
			return
		}
		if answer := w.name(b[:n]); answer != nil {
			if len(answer) > 512 { // cut off: come back by TCP
				answer = slices.Clone(answer[:12])
				answer[2] |= 2
				answer[4], answer[5], answer[6], answer[7] = 0, 0, 0, 0
				var q dnsmessage.Message
				if q.Unpack(b[:n]) == nil {
					q.Header.Response, q.Header.Truncated, q.Additionals = true, true, nil
					answer, _ = q.Pack()
				}
			}
			p.WriteTo(answer, from)
		}
	}
}

func (w *internet) serveNamesTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			r := bufio.NewReader(c)
			for {
				var size [2]byte
				if _, err := io.ReadFull(r, size[:]); err != nil {
					return
				}
				b := make([]byte, int(size[0])<<8|int(size[1]))
				if _, err := io.ReadFull(r, b); err != nil {
					return
				}
				answer := w.name(b)
				if answer == nil {
					return
				}
				c.Write(append([]byte{byte(len(answer) >> 8), byte(len(answer))}, answer...))
			}
		}()
	}
}

// name answers a question.
func (w *internet) name(question []byte) []byte {
	var q dnsmessage.Message
	if err := q.Unpack(question); err != nil || len(q.Questions) != 1 {
		return nil
	}
	asked := q.Questions[0]
	name := strings.TrimSuffix(strings.ToLower(asked.Name.String()), ".")
	w.mu.Lock()
	w.asked = append(w.asked, name)
	w.mu.Unlock()
	answer := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true, RecursionDesired: q.RecursionDesired}, Questions: q.Questions}
	label := strings.TrimSuffix(name, ".example")
	owner := asked.Name
	if to, ok := aliases[label]; ok {
		target := dnsmessage.MustNewName(to + ".example.")
		answer.Answers = append(answer.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET, TTL: 60}, Body: &dnsmessage.CNAMEResource{CNAME: target}})
		label, owner = to, target
	}
	addrs, known := zone[label]
	switch {
	case label == "rebind":
		// Every question has the next answer: a public address, then one that is not.
		turns := []string{goodAddr, "127.0.0.1", goodAddr, privateAddr, goodAddr, hostAddr4, goodAddr, "169.254.169.254"}
		if asked.Type == dnsmessage.TypeA {
			addrs, known = turns[int(w.turn.Add(1)-1)%len(turns):][:1], true
		} else {
			addrs, known = nil, true
		}
	case !known:
		addrs = []string{evilAddr, evilAddr6}
	}
	for _, text := range addrs {
		a := netip.MustParseAddr(text)
		h := dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET, TTL: 0}
		switch {
		case a.Is4() && asked.Type == dnsmessage.TypeA:
			answer.Answers = append(answer.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && asked.Type == dnsmessage.TypeAAAA:
			answer.Answers = append(answer.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	b, err := answer.Pack()
	if err != nil {
		return nil
	}
	return b
}

// TestWorld: the internet of these tests answers as the rows of the other tests believe.
func TestWorld(t *testing.T) {
	testutil.RequireRoot(t)
	for _, url := range []string{"http://good.example/", "http://six.example/", "http://alias.example/", "http://private.example/", "http://metadata.example/", "http://unknown.name.example/", "http://manygood.example/",
		"https://good.example/", "https://other.example/"} {
		r, err := http.Get(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if !strings.HasPrefix(string(body), "REACHED ") {
			t.Errorf("%s: %q", url, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	world.take()
}
