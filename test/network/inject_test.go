package network

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/boxes"
)

// injector is a box with a proxy that adds a secret to requests for inject.example.
type injector struct {
	t     *testing.T
	box   engine.Box
	proxy *egress.Proxy
	file  string // of the secret

	mu   sync.Mutex
	seen []egress.Connection
}

func newInjector(t *testing.T, roots *x509.CertPool) *injector {
	t.Helper()
	testutil.RequireRoot(t)
	e := boxes.Start(t)
	b, remove := boxes.Create(t, e, engine.Spec{})
	t.Cleanup(remove)
	i := &injector{t: t, box: b, file: filepath.Join(t.TempDir(), "key")}
	var err error
	i.proxy, err = egress.New(egress.Config{
		Rules: rules.Rules{Allow: []string{"inject.example", "good.example"}, Inject: []rules.Inject{{Host: "inject.example", Header: "Authorization", ValueFrom: rules.Source{File: i.file}}}},
		Roots: roots,
		Observe: func(c egress.Connection) {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.seen = append(i.seen, c)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	listeners, err := b.(engine.Networked).Listen(t.Context(), egress.Addresses()...)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, l := range listeners {
		wg.Go(func() { i.proxy.Serve(l.(*net.TCPListener)) })
	}
	t.Cleanup(func() {
		i.proxy.Shut()
		wg.Wait()
		i.proxy.Wait()
	})
	return i
}

func (i *injector) set(value string) {
	i.t.Helper()
	if err := os.WriteFile(i.file, []byte(value+"\n"), 0o600); err != nil {
		i.t.Fatal(err)
	}
}

// run runs a command in the box, with the variables of the proxy, and returns all that it says.
func (i *injector) run(args ...string) string {
	i.t.Helper()
	var out strings.Builder
	if _, err := engine.Run(context.Background(), i.box, engine.Command{Args: args, Env: egress.Environ(nil, spec.DefaultHostname), Stdout: &out, Stderr: &out}); err != nil {
		i.t.Fatal(err)
	}
	return out.String()
}

const raw = `
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.settimeout(8)
s.sendall(sys.argv[2].encode())
if len(sys.argv) > 3:
    s.recv(4096)
    s.sendall(sys.argv[3].encode())
data = b""
while more := s.recv(65536):
    data += more
print(data.decode())
`

// TestInject: the server sees the secret, over https, and the box, which spoke http, never does.
func TestInject(t *testing.T) {
	i := newInjector(t, nil) // SSL_CERT_FILE has the authority
	type request struct {
		scheme string
		header http.Header
	}
	got := make(chan request, 16)
	world.at(t, "/secret", func(w http.ResponseWriter, r *http.Request) {
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		got <- request{scheme, r.Header.Clone()}
		value := r.Header.Get("Authorization")
		token := strings.TrimPrefix(value, "Bearer ")
		for name, values := range map[string][]string{"X-Echo": {value}, "X-Token": {"<" + token + ">", token}, "X-" + token: {"1"}, "Location": {"http://good.example/" + token}, "Set-Cookie": {"t=" + token}, "Link": {"<" + value + ">"}, "Trailer": {"X-Late"}} {
			w.Header()[http.CanonicalHeaderKey(name)] = values
		}
		w.WriteHeader(103)
		fmt.Fprintln(w, "welcome")
		w.Header().Set("X-Late", token)
	})
	world.take()
	for _, value := range []string{"Bearer TopSecret-first", "Bearer TopSecret-second"} { // it rotates
		i.set(value)
		for name, args := range map[string][]string{
			"curl":            {"curl", "-sSi", "http://inject.example/secret"},
			"own header":      {"curl", "-sSi", "-H", "Authorization: mine", "-H", "authorization: mine too", "http://inject.example/secret"},
			"other case":      {"curl", "-sSi", "http://INJECT.example.:80/secret"},
			"tunnel":          {"curl", "-sSip", "http://inject.example/secret"},
			"SOCKS":           {"curl", "-sSi", "-x", "socks5h://127.0.0.1:1080", "http://inject.example/secret"},
			"its port":        {"curl", "-sSi", "http://inject.example:443/secret"},
			"named as hop":    {"python3", "-c", raw, "3128", "GET http://inject.example/secret HTTP/1.1\r\nHost: inject.example\r\nConnection: close, Authorization\r\nAuthorization: mine\r\n\r\n"},
			"HTTP/1.0":        {"python3", "-c", raw, "3128", "GET http://inject.example/secret HTTP/1.0\r\n\r\n"},
			"tunnel by hand":  {"python3", "-c", raw, "3128", "CONNECT inject.example:80 HTTP/1.1\r\nHost: inject.example:80\r\n\r\n", "GET /secret HTTP/1.1\r\nHost: inject.example\r\nConnection: close\r\n\r\n"},
			"Authorization 2": {"python3", "-c", raw, "3128", "GET http://inject.example/secret HTTP/1.1\r\nHost: inject.example\r\nConnection: close\r\nAuthorization: a\r\nAUTHORIZATION: b\r\nAuthorization_: c\r\n\r\n"},
		} {
			said := i.run(args...)
			select {
			case r := <-got:
				if all := r.header["Authorization"]; r.scheme != "https" || !slices.Equal(all, []string{value}) {
					t.Errorf("%s: the server saw %s and %q", name, r.scheme, all)
				}
			default:
				t.Errorf("%s: the server was not asked: %s", name, said)
			}
			if strings.Contains(strings.ToLower(said), "topsecret") || !strings.Contains(said, "welcome") {
				t.Errorf("%s: the box was told %q", name, said)
			}
		}
	}
	// The answer to TRACE repeats the request, in its body, with the header that was added.
	said := i.run("python3", "-c", raw, "3128", "TRACE http://inject.example/secret HTTP/1.1\r\nHost: inject.example\r\nMax-Forwards: 0\r\nConnection: close\r\n\r\n")
	if len(got) > 0 || !strings.HasPrefix(said, "HTTP/1.1 405 ") {
		t.Errorf("TRACE: %d requests, the box was told %q", len(got), said)
	}
	hits, _ := world.take()
	for _, h := range hits {
		if h.at.Port() != 443 && h.at.Port() != 53 || strings.HasPrefix(h.what, "http ") {
			t.Errorf("injected requests reached %v", h)
		}
	}
	// A host without a rule gets nothing, also if the client is led to it.
	for name, args := range map[string][]string{
		"another host": {"curl", "-sSi", "http://good.example/secret"}, "redirect": {"curl", "-sSiL", "http://inject.example/redirect?to=http://good.example/secret"},
		"another port": {"curl", "-sSi", "http://inject.example:8080/secret"}, "TLS": {"curl", "-sSik", "https://inject.example/secret"},
		"forwarded host": {"curl", "-sSi", "-H", "X-Forwarded-Host: inject.example", "http://good.example/secret"},
	} {
		said := i.run(args...)
		select {
		case r := <-got:
			if all := r.header["Authorization"]; len(all) > 0 || name == "another port" {
				t.Errorf("%s: the server saw %s and %q", name, r.scheme, all)
			}
		default:
			if name != "another port" {
				t.Errorf("%s: the server was not asked: %s", name, said)
			}
		}
	}
	// Nothing in the box has it.
	if said := i.run("sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c 'TopSecret-[a-z]'"); strings.TrimSpace(said) != "0" {
		t.Errorf("in /proc of the box: %s", said)
	}
	if said := i.run("cat", i.file); !strings.Contains(said, "No such file") {
		t.Errorf("the file in the box: %q", said)
	}
	i.quiet()
}

// quiet checks that nothing that is logged or shown has the secret, or the path to it.
func (i *injector) quiet() {
	i.t.Helper()
	i.mu.Lock()
	all, err := json.Marshal([]any{i.seen, i.proxy.Denials(), i.proxy.Live()})
	i.mu.Unlock()
	if err != nil {
		i.t.Fatal(err)
	}
	if strings.Contains(string(all), "TopSecret") {
		i.t.Errorf("logged: %s", all)
	}
}

// TestInjectFails: errors tell the box that there is something wrong, and not what.
func TestInjectFails(t *testing.T) {
	for name, c := range map[string]struct {
		value  string
		remove bool
		answer func(net.Conn, *http.Request)
		roots  *x509.CertPool
	}{
		"no file": {value: "x", remove: true}, "empty file": {}, "two lines": {value: "TopSecret\r\nX: TopSecret"},
		"authority not known": {value: "TopSecret", roots: x509.NewCertPool()},
		"garbage":             {value: "TopSecret", answer: func(c net.Conn, r *http.Request) { io.WriteString(c, r.Header.Get("Authorization")+"\r\n\r\n") }},
		"bad header": {value: "TopSecret", answer: func(c net.Conn, r *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n"+r.Header.Get("Authorization")+"\r\n\r\n")
		}},
		"bad status": {value: "TopSecret", answer: func(c net.Conn, r *http.Request) {
			io.WriteString(c, "HTTP/1.1 "+r.Header.Get("Authorization")+"\r\n\r\n")
		}},
		"bad length": {value: "TopSecret", answer: func(c net.Conn, r *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: "+r.Header.Get("Authorization")+"\r\n\r\n")
		}},
		"bad coding": {value: "TopSecret", answer: func(c net.Conn, r *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: "+r.Header.Get("Authorization")+"\r\n\r\n")
		}},
		"another protocol": {value: "TopSecret", answer: func(c net.Conn, r *http.Request) {
			io.WriteString(c, "HTTP/1.1 101 "+r.Header.Get("Authorization")+"\r\nUpgrade: "+r.Header.Get("Authorization")+"\r\nConnection: Upgrade\r\n\r\n")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInjector(t, c.roots)
			world.at(t, "/secret", func(w http.ResponseWriter, r *http.Request) {
				if c.answer == nil {
					t.Error("the server was asked")
					return
				}
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				c.answer(conn, r)
			})
			i.set(c.value)
			if c.remove {
				os.Remove(i.file)
			}
			said := i.run("curl", "-sSi", "http://inject.example/secret")
			if !strings.Contains(said, "HTTP/1.1 502") || strings.Contains(strings.ToLower(said), "topsecret") || strings.Contains(said, filepath.Dir(i.file)) {
				t.Errorf("the box was told %q", said)
			}
			i.quiet()
		})
	}
}
