package door

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/langbot/protocol"
)

// wrapped is a ResponseWriter like those of other servers.
type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestBelowAnotherServer mounts a door as the native API does.
func TestBelowAnotherServer(t *testing.T) {
	b := newBackend(nil)
	d := New(b, Options{PerConnection: true})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.StripPrefix("/langbot", d).ServeHTTP(wrapped{w}, r)
	}))
	defer s.Close()
	addr := s.Listener.Addr().String()
	c := dialRaw(t, addr, "/langbot/rpc/ws", upgradeHeaders...)
	c.write(fragments(message(5000), 4096, 0))
	if first, _ := c.read(); first != 0x81 {
		t.Fatalf("got frame %#x", first)
	}
	c.write(fragments(message(5000), 4097, 0)) // frames are counted here, too
	c.wantClose(1009, "too many fragments")
	<-b.over
	last := dialRaw(t, addr, "/langbot/rpc/ws", upgradeHeaders...)
	go d.Shutdown(t.Context())
	last.wantClose(1001, "Box runtime shutting down")
	<-b.over
}

func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestTLS(t *testing.T) {
	cert, pool := certificate(t)
	b := newBackend(nil)
	d := New(b, Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Serve(l, &tls.Config{Certificates: []tls.Certificate{cert}}) }()
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: pool}, EnableCompression: true}
	ws, _, err := dialer.Dial("wss://"+l.Addr().String()+"/rpc/ws", headers(instanceHeader, "i"))
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	send(t, ws, string(message(300_000)))
	if a := recv(t, ws); a.Code != 0 {
		t.Errorf("got %+v", a)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- d.Shutdown(t.Context()) }()
	if code, _ := closing(t, ws); code != 1001 {
		t.Errorf("got %d", code)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if err := d.Serve(l, nil); err != nil { // too late
		t.Errorf("Serve after Shutdown: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is not closed: %v", err)
	}
}

func TestServeFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := New(newBackend(nil), Options{}).Serve(l, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// TestShutdownInTime: an action that does not end does not delay the end of the daemon
// forever.
func TestShutdownInTime(t *testing.T) {
	release, begun := make(chan struct{}), make(chan struct{})
	b := newBackend(func(context.Context, *Conn, protocol.Request) (any, error) {
		close(begun)
		<-release
		return nil, nil
	})
	d, addr := serve(t, b, Options{})
	ws := dial(t, addr, false)
	send(t, ws, request(1, "x"))
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		closing(t, ws)
		ws.Close()
		cancel()
	}()
	if err := d.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if len(b.over) > 0 {
		t.Error("Closed came before the action had ended")
	}
	close(release)
	<-b.over
}
