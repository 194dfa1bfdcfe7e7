package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// portBox is a box in which something listens on the ports of the map, each an address of this host.
type portBox struct {
	engine.Box
	ports map[int]string
}

func (b portBox) Listen(context.Context, ...netip.AddrPort) ([]net.Listener, error) {
	panic("not used")
}

func (b portBox) Dial(ctx context.Context, port int) (net.Conn, error) {
	if b.ports[port] == "" {
		return nil, syscall.ECONNREFUSED
	}
	return new(net.Dialer).DialContext(ctx, "tcp", b.ports[port])
}

// TestRunPublish: clients reach the port of the box that a line names, the end of a stream is passed on,
// and the answer of a command that has ended arrives; without a listener they are reset.
func TestRunPublish(t *testing.T) {
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	v := newInvocation(t)
	shut, err := v.publish(t.Context(), portBox{ports: map[int]string{8000: server.Addr().String()}}, []spec.PublishWish{{Port: 8000}, {Port: 9000}})
	if err != nil {
		t.Fatal(err)
	}
	defer shut() // again
	var at, none string
	if _, err := fmt.Sscanf(v.stderr.String(), "boxd: %s leads to port 8000 of the box\nboxd: %s leads to port 9000 of the box\n", &at, &none); err != nil {
		t.Fatalf("%q: %v", v.stderr.String(), err)
	}
	dial := func(address string) *net.TCPConn {
		t.Helper()
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
	accept := func() net.Conn {
		t.Helper()
		c, err := server.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	refused, err := net.Dial("tcp", none)
	if err == nil {
		defer refused.Close()
		_, err = refused.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("nothing listens: %v", err)
	}
	idle := dial(at)
	accept()
	client := dial(at)
	inBox := accept()
	io.WriteString(client, "question")
	client.CloseWrite()
	if got, err := io.ReadAll(inBox); err != nil || string(got) != "question" {
		t.Errorf("%q, %v", got, err)
	}
	answer := strings.Repeat("answer", 100_000)
	go func() {
		io.WriteString(inBox, answer)
		inBox.Close()
	}()
	got := make(chan string)
	go func() {
		all, _ := io.ReadAll(client)
		got <- string(all)
	}()
	shut()
	if all := <-got; all != answer {
		t.Errorf("%d bytes of the answer arrived, want %d", len(all), len(answer))
	}
	if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("afterwards: %v", err)
	}
	if c, err := net.Dial("tcp", at); err == nil {
		c.Close()
		t.Error("the port is still open")
	}
}

func TestRunPublishRefusals(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	v := newInvocation(t)
	wish := spec.PublishWish{Port: 8000, Host: spec.HostPort(taken.Addr().(*net.TCPAddr).Port)}
	if _, err := v.publish(t.Context(), portBox{}, []spec.PublishWish{{Port: 80}, wish}); err == nil || !strings.Contains(err.Error(), `--publish "`+wish.String()+`": the port of the host is in use`) {
		t.Errorf("%v", err)
	}
	if v.stderr.Len() > 0 {
		t.Errorf("a port is named that is closed: %q", v.stderr.String())
	}
	for flags, says := range map[string]string{
		"--publish x":                           `--publish "x": must be [HOST:]PORT`,
		"--publish 127.0.0.1:80:80":             `--publish "127.0.0.1:80:80": must be [HOST:]PORT`,
		"--publish 8000 --publish 20000:8000":   "--publish 8000: is there twice: publish each port of the box once",
		"--publish 20000:80 --publish 20000:81": "--publish 20000: is there twice: each port of the host leads to one port of the box",
		"--publish 20000:3128":                  "--publish 3128: must not be 3128 or 1080",
		strings.Repeat("--publish 8000 ", 17):   "must be at most 16",
	} {
		v := newInvocation(t)
		if status := v.Main(append(append([]string{"run"}, strings.Fields(flags)...), "--", "true")); status != 125 || !strings.Contains(v.stderr.String(), says) {
			t.Errorf("%s: status %d, %q", flags, status, v.stderr.String())
		}
	}
	v = newInvocation(t)
	if status := v.Main([]string{"run", "--publish", "8000", "--", "true"}); status != 125 || !strings.Contains(v.stderr.String(), "--publish: this engine") {
		t.Errorf("status %d, %q", status, v.stderr.String())
	}
}
