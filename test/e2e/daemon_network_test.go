package e2e

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
)

// outside is an address of this host that no client leaves to NO_PROXY.
const outside = "127.0.0.2"

// listenOutside listens for what boxes may reach, until the test ends.
func listenOutside(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", outside+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// networkDaemon is a daemon whose profile "net" has a network that leads to allowed only.
func networkDaemon(t *testing.T, allowed ...string) *daemon {
	t.Helper()
	d := newDaemon(t)
	file := filepath.Join(filepath.Dir(d.dir), "config.yaml")
	text := fmt.Sprintf("profiles:\n  net:\n    isolation: %s\n    network: true\n    timeout: 60s\n    network_rules:\n      public: false\n      allow: [%q]\n", isolation, strings.Join(allowed, `", "`))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d.flags = append(d.flags, "--config", file)
	d.start()
	return d
}

// update changes a session.
func (d *daemon) update(session string, u apitypes.SessionUpdate) error {
	c, err := client.New(client.Options{Socket: d.socket()})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Update(d.t.Context(), session, u)
	return err
}

// TestNetwork: programs reach what the profile allows, and nothing else, with and without the
// variables; a new daemon serves the same box again.
func TestNetwork(t *testing.T) {
	l := listenOutside(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello %s\n", r.URL.Path) })}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	other := listenOutside(t) // open, and not allowed
	url := "http://" + l.Addr().String()
	d := networkDaemon(t, l.Addr().String())
	get := "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1]).read().decode(), end='')"
	d.says(0, "hello /a\n", "exec", "s", "--profile", "net", "--", "curl", "-sS", url+"/a")
	d.says(0, "hello /b\n", "exec", "s", "--", "curl", "-sS", "-x", "socks5h://127.0.0.1:1080", url+"/b")
	d.says(0, "hello /c\n", "exec", "s", "--", "wget", "-qO-", url+"/c")
	d.says(0, "hello /d\n", "exec", "s", "--", "python3", "-c", get, url+"/d")
	for _, c := range []struct{ url, says string }{
		{"http://" + other.Addr().String(), "is a loopback address"}, {"http://name.example/", "no rule allows it"}, {"http://127.0.0.3/", "127.0.0.3"},
		{"https://name.example/", "403"}, {"http://169.254.169.254/", "metadata"},
	} {
		if got := d.run("exec", "s", "--", "curl", "-sSi", c.url); !strings.Contains(got.stdout+got.stderr, c.says) || !strings.Contains(got.stdout+got.stderr, "403") {
			t.Errorf("%s: %v, want 403 and %q", c.url, got, c.says)
		}
	}
	if got := d.run("exec", "s", "--", "curl", "-sS", "--noproxy", "*", url); got.status == 0 {
		t.Errorf("without the proxy: %v", got)
	}
	d.wantRefused(125, d.run("exec", "x", "--profile", "execution", "--network", "--", "true"), "allow_network is false")
	if got := d.run("exec", "narrow", "--profile", "net", "--network", "--allow", "name.example", "--json", "--", "curl", "-sS", url); !strings.Contains(got.stdout, "session's own rules do not") || !strings.Contains(got.stdout, `"denied"`) {
		t.Errorf("narrowed: %v", got)
	}
	if got := d.run("net", "narrow"); got.status != 0 || !strings.Contains(got.stdout, "denied\t") || !strings.Contains(got.stdout, l.Addr().String()) {
		t.Errorf("boxd net: %v", got)
	}
	d.says(0, "", "exec", "none", "--", "sh", "-c", "env | grep -i proxy; true")
	d.kill()
	if got := d.run("exec", "s", "--", "true"); got.status == 0 {
		t.Errorf("without a daemon: %v", got)
	}
	d.start()
	d.says(0, "hello /e\n", "exec", "s", "--no-create", "--", "curl", "-sS", url+"/e")
}

// TestNetworkRatchet: a program sends at full speed while its network is given up: nothing that it
// writes after the answer arrives.
func TestNetworkRatchet(t *testing.T) {
	for name, off := range map[string]apitypes.SessionUpdate{
		"given up": {LiveWishes: spec.LiveWishes{Network: new(false)}}, "sensitive": {LiveWishes: spec.LiveWishes{Sensitive: new(true)}},
	} {
		t.Run(name, func(t *testing.T) {
			l := listenOutside(t)
			d := networkDaemon(t, l.Addr().String())
			d.says(0, "", "exec", "s", "--profile", "net", "--", "sh", "-c", "echo before > phase")
			d.says(0, "", "start", "s", "--id", "p", "--", "python3", "-c", sender, l.Addr().String())
			l.(*net.TCPListener).SetDeadline(time.Now().Add(patience / 6))
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			lines := bufio.NewReaderSize(c, 1<<20)
			for range 1000 {
				if _, err := lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			late, ended := make(chan int, 1), make(chan struct{})
			go func() {
				defer close(ended)
				n := 0
				for {
					line, err := lines.ReadString('\n')
					if strings.HasPrefix(line, "after") {
						n++
					}
					if err != nil {
						late <- n
						return
					}
				}
			}()
			if err := d.update("s", off); err != nil {
				t.Fatal(err)
			}
			d.says(0, "", "exec", "s", "--", "sh", "-c", "echo after > phase; sleep 0.3")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			select {
			case <-ended:
			case <-ctx.Done():
				t.Fatal("the connection stays open")
			}
			if n := <-late; n > 0 {
				t.Errorf("%d lines written after the answer arrived", n)
			}
			if got := d.run("exec", "s", "--", "sh", "-c", "env | grep -i proxy"); got.stdout != "" {
				t.Errorf("later commands have %q", got.stdout)
			}
			for _, again := range []func(){func() {}, func() { d.kill(); d.start() }} {
				again()
				if got := d.run("exec", "s", "--", "curl", "-sS", "-x", "http://127.0.0.1:3128", "http://"+l.Addr().String()); got.status != 7 { // nothing listens
					t.Errorf("the proxy is there: %v", got)
				}
			}
		})
	}
}

// sender writes lines that say what the file "phase" says (without one: x), through the proxy, as fast as it can.
const sender = `
import os, socket, sys
s = socket.create_connection(("127.0.0.1", 3128))
s.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\r\nHost: {sys.argv[1]}\r\n\r\n".encode())
assert b" 200 " in s.recv(4096)
while True:
    word = open("phase").read().strip() if os.path.exists("phase") else "x"
    s.sendall((word + "\n").encode() * 1000)
`

// TestNetworkFailsClosed: when the daemon is killed during a transfer, the transfer ends, although
// box and program live on.
func TestNetworkFailsClosed(t *testing.T) {
	l := listenOutside(t)
	d := networkDaemon(t, l.Addr().String())
	d.says(0, "", "exec", "s", "--profile", "net", "--", "sh", "-c", "echo before > phase")
	d.says(0, "", "start", "s", "--id", "p", "--", "python3", "-c", sender, l.Addr().String())
	l.(*net.TCPListener).SetDeadline(time.Now().Add(patience / 6))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.CopyN(io.Discard, c, 1<<20); err != nil {
		t.Fatal(err)
	}
	d.kill()
	c.SetReadDeadline(time.Now().Add(patience))
	if n, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
		t.Errorf("after %d more bytes: %v", n, err)
	}
	d.start()
}

// TestRunNetwork: boxd run serves the proxy of its box itself, and says what was refused.
func TestRunNetwork(t *testing.T) {
	c := newCLI(t)
	l := listenOutside(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	at := l.Addr().String()
	for _, r := range []struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		{[]string{"--network", "proxy", "--allow", at, "--explain", "--", "curl", "-sS", "http://" + at}, 0, "hello\n", ""},
		{[]string{"--network", "proxy", "--explain", "--", "curl", "-sSf", "http://" + at}, 22, "", "denied: network " + at + " (rule: address), 1 time"},
		{[]string{"--network", "proxy", "--allow", "pypi.org", "--explain", "--", "curl", "-sS", "https://name.example"}, 56, "", "denied: network name.example:443 (rule: default), 1 time"},
		{[]string{"--network", "proxy", "--allow", at, "--deny", outside, "--", "curl", "-sSf", "http://" + at}, 22, "", "403"},
		{[]string{"--", "sh", "-c", "env | grep -ic proxy"}, 1, "0\n", ""},
		{[]string{"--network", "proxy", "-e", "NO_PROXY=*", "--", "curl", "-sS", "http://" + at}, 7, "", ""},
		{[]string{"--network", "host", "--", "true"}, 125, "", "must be none or proxy"},
		{[]string{"--allow", at, "--", "true"}, 125, "", "need --network proxy"},
		{[]string{"--network", "proxy", "--allow", "*", "--", "true"}, 125, "", "--allow"},
	} {
		if got := c.run(append([]string{"run"}, r.args...)...); got.status != r.status || got.stdout != r.stdout || !strings.Contains(got.stderr, r.stderr) {
			t.Errorf("boxd run %q: %v, want status %d, stdout %q, and %q on stderr", r.args, got, r.status, r.stdout, r.stderr)
		}
	}
}

// upstreamProxy runs a proxy that asks for a login, until the test ends. To each request it answers
// itself, also in tunnels. It returns its URL and what it was asked for: METHOD HOST LOGIN, with the
// method SOCKS5 of a socks5 proxy.
func upstreamProxy(t *testing.T, scheme string) (url string, asked *sync.Map) {
	t.Helper()
	l := listenOutside(t)
	asked = &sync.Map{}
	tunnel := func(c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ntunnel\n")
		}
	}
	if scheme == "socks5" {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					c.SetDeadline(time.Now().Add(time.Minute))
					r := bufio.NewReader(c)
					if what, err := acceptSOCKS(c, r); err == nil {
						asked.Store(what, true)
						tunnel(c, r)
					}
				}()
			}
		}()
		return "socks5://" + l.Addr().String(), asked
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		login, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Proxy-Authorization"), "Basic "))
		asked.Store(r.Method+" "+r.Host+" "+string(login), true)
		if r.Method != http.MethodConnect {
			fmt.Fprintf(w, "hello %s\n", r.Host)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		tunnel(c, rw.Reader)
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return "http://" + l.Addr().String(), asked
}

// acceptSOCKS plays the server of RFC 1928, with a login (RFC 1929), until the tunnel is open. It
// accepts names only.
func acceptSOCKS(c io.Writer, r *bufio.Reader) (asked string, err error) {
	field := func() string { // a length of one byte, and as many bytes
		n, _ := r.ReadByte()
		b := make([]byte, n)
		_, readErr := io.ReadFull(r, b)
		err = errors.Join(err, readErr)
		return string(b)
	}
	r.Discard(1) // the version
	if !strings.Contains(field(), "\x02") {
		return "", errors.New("the client has no login")
	}
	c.Write([]byte{5, 2})
	r.Discard(1)
	user, password := field(), field()
	c.Write([]byte{1, 0})
	if head, err := r.Peek(4); err != nil || string(head) != "\x05\x01\x00\x03" {
		return "", fmt.Errorf("the request %q is not for a name: %w", head, err)
	}
	r.Discard(4)
	name, port := field(), make([]byte, 2)
	_, readErr := io.ReadFull(r, port)
	c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	return fmt.Sprintf("SOCKS5 %s:%d %s:%s", name, binary.BigEndian.Uint16(port), user, password), errors.Join(err, readErr)
}

// wasAsked fails the test unless a proxy of upstreamProxy was asked for what.
func wasAsked(t *testing.T, asked *sync.Map, what string) {
	t.Helper()
	if _, ok := asked.Load(what); !ok {
		asked.Range(func(k, _ any) bool { t.Logf("the upstream proxy got %q", k); return true })
		t.Errorf("the upstream proxy did not get %q", what)
	}
}

// TestNetworkUpstream: the confined daemon reads the login of an upstream proxy for each connection,
// from a file outside of its own directories that is replaced meanwhile.
func TestNetworkUpstream(t *testing.T) {
	web, webAsked := upstreamProxy(t, "http")
	socks, socksAsked := upstreamProxy(t, "socks5")
	d := newDaemon(t)
	dir := t.TempDir()
	for _, at := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	login := filepath.Join(dir, "login")
	replace := func(text string) {
		_, gid := servingUser(t)
		if err := errors.Join(os.WriteFile(login+".new", []byte(text+"\n"), 0o640), os.Chown(login+".new", 0, gid), os.Rename(login+".new", login)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(filepath.Dir(d.dir), "config.yaml")
	text := "network: proxy\nprofiles:\n"
	for profile, url := range map[string]string{"web": web, "socks": socks} {
		text += fmt.Sprintf("  %s:\n    network: true\n    timeout: 60s\n    network_rules: {upstream: %q, upstream_login: %s}\n", profile, url, login)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d.flags = append(d.flags, "--config", file)
	replace("me:first")
	d.start()
	for _, who := range []string{"me:first", "me:second"} {
		replace(who)
		d.says(0, "hello page.example\n", "exec", "web", "--profile", "web", "--", "curl", "-sS", "http://page.example/")
		d.says(0, "tunnel\n", "exec", "web", "--", "curl", "-sS", "-p", "http://page.example:8080/")
		wasAsked(t, webAsked, "GET page.example "+who)
		wasAsked(t, webAsked, "CONNECT page.example:8080 "+who)
		d.says(0, "tunnel\n", "exec", "socks", "--profile", "socks", "--", "curl", "-sS", "http://page.example/")
		d.says(0, "tunnel\n", "exec", "socks", "--", "curl", "-sS", "-p", "http://page.example:8080/")
		wasAsked(t, socksAsked, "SOCKS5 page.example:80 "+who)
		wasAsked(t, socksAsked, "SOCKS5 page.example:8080 "+who)
	}
	if err := os.Remove(login); err != nil {
		t.Fatal(err)
	}
	for _, session := range []string{"web", "socks"} {
		if got := d.run("exec", session, "--", "curl", "-sSi", "http://page.example:8080/"); !strings.Contains(got.stdout, "a secret of the operator cannot be read") || strings.Contains(got.stdout, dir) {
			t.Errorf("%s, without the file: %v", session, got)
		}
		if got := d.run("net", session); strings.Contains(got.stdout, outside) || !strings.Contains(got.stdout, "page.example") {
			t.Errorf("boxd net %s: %v", session, got)
		}
	}
}

// TestRunUpstream: boxd run sends the connections of its box through an upstream proxy, too, which the
// box cannot choose.
func TestRunUpstream(t *testing.T) {
	c := newCLI(t)
	login := filepath.Join(t.TempDir(), "login")
	if err := os.WriteFile(login, []byte("me:first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for scheme, want := range map[string]string{"http": "CONNECT page.example:8080 me:first", "socks5": "SOCKS5 page.example:8080 me:first"} {
		url, asked := upstreamProxy(t, scheme)
		got := c.run("run", "--network", "proxy", "--upstream", url, "--upstream-login", login, "--", "sh", "-c", "env; curl -sS -p http://page.example:8080/")
		if got.status != 0 || !strings.HasSuffix(got.stdout, "tunnel\n") || strings.Contains(got.stdout, outside) {
			t.Errorf("%s: %v", scheme, got)
		}
		wasAsked(t, asked, want)
		got = c.run("run", "--network", "proxy", "--upstream", url, "--upstream-login", login, "--allow", "page.example", "--explain", "--", "curl", "-sS", "-p", "http://other.example:8080/")
		if got.status != 56 || !strings.Contains(got.stderr, "denied: network other.example:8080 (rule: default), 1 time") {
			t.Errorf("%s, a name that the rules do not allow: %v", scheme, got)
		}
	}
}
