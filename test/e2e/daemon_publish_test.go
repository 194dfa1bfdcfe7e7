package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// freePorts returns the first of n ports in a row that were free a moment ago.
func freePorts(n int) (first int) {
	for free := false; !free; {
		first = 10000 + rand.IntN(20000) // below the ports that the kernel gives to connections
		var list []net.Listener
		for port := first; port < first+n; port++ {
			l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
			if free = err == nil; !free {
				break
			}
			list = append(list, l)
		}
		for _, l := range list {
			l.Close()
		}
	}
	return first
}

// publishDaemon is a daemon with a pool of n ports.
func publishDaemon(t *testing.T, n int) (d *daemon, first int) {
	t.Helper()
	first = freePorts(n)
	d = newDaemon(t)
	file := filepath.Join(filepath.Dir(d.dir), "config.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "publish: {ports: %d-%d}\nprofiles: {default: {isolation: %s}}\n", first, first+n-1, isolation), 0o644); err != nil {
		t.Fatal(err)
	}
	d.flags = append(d.flags, "--config", file)
	d.start()
	return d, first
}

// published returns the ports that boxd ports shows.
func (d *daemon) published(session string) []apitypes.Published {
	d.t.Helper()
	var l apitypes.PortList
	if r := d.run("ports", session, "--json"); r.status != 0 || json.Unmarshal([]byte(r.stdout), &l) != nil {
		d.t.Fatalf("boxd ports: %v", r)
	}
	return l.Published
}

func bindable(t *testing.T, port int) {
	t.Helper()
	l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Errorf("port %d is not free: %v", port, err)
		return
	}
	l.Close()
}

// TestRunPublish: boxd run connects a port of the host to its box, which has no network, and gets the
// last answer of a command that ends to its client.
func TestRunPublish(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	c := newCLI(t)
	server := `import socket
l = socket.create_server(("127.0.0.1", 8000))
print("up", flush=True)
s, _ = l.accept()
s.sendall(s.recv(100).upper() * 100000)
`
	port := freePorts(1)
	for _, publish := range []string{"8000", fmt.Sprintf("%d:8000", port)} {
		cmd, cancel := c.command("run", "--publish", publish, "--", "python3", "-c", server)
		defer cancel()
		stdout, err := cmd.StdoutPipe()
		must(t, err)
		stderr, err := cmd.StderrPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewReader(stderr)
		at := fmt.Sprintf("127.0.0.1:%d", port)
		if publish == "8000" {
			line, _ := lines.ReadString('\n')
			if _, err := fmt.Sscanf(line, "boxd: %s leads to port 8000 of the box\n", &at); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
		if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "up\n" {
			t.Fatalf("stdout %q", line)
		}
		conn, err := net.Dial("tcp", at)
		must(t, err)
		io.WriteString(conn, "hello")
		if got, err := io.ReadAll(conn); err != nil || string(got) != strings.Repeat("HELLO", 100000) {
			t.Errorf("--publish %s: %d bytes, %v", publish, len(got), err)
		}
		conn.Close()
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil || len(rest) > 0 {
			t.Errorf("--publish %s: %v, %q", publish, err, rest)
		}
		c.wantNothingLeft()
	}
	taken, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	must(t, err)
	defer taken.Close()
	c.wantRefused(125, c.run("run", "--publish", fmt.Sprintf("%d:8000", port), "--", "true"), "--publish", "is in use")
}

// TestPublishedPorts: a large file comes through a published port whole, before and after the daemon is
// killed; the pool is shared, and a removal frees its ports.
func TestPublishedPorts(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	d, first := publishDaemon(t, 2)
	const size = 64 << 20
	serve := fmt.Sprintf("head -c %d /dev/urandom > big; sha256sum big | cut -d' ' -f1 > sum; exec python3 -m http.server 8000 --bind 127.0.0.1", size)
	if r := d.run("start", "lab", "--publish", "8000", "--publish", fmt.Sprintf("%d:9000", first+1), "--id", "web", "--ready-port", "8000", "--wait", "--", "sh", "-c", serve); r.status != 0 || r.stderr != fmt.Sprintf("boxd: 127.0.0.1:%d leads to port 8000 of the box\n", first) {
		t.Fatal(r)
	}
	ports := d.published("lab")
	if len(ports) != 2 || ports[0].Host != first || ports[1].Host != first+1 || ports[0].Address != "127.0.0.1" || ports[0].Reason != "" {
		t.Fatalf("%+v", ports)
	}
	if r := d.run("sessions", "show", "lab"); !strings.Contains(r.stdout, fmt.Sprintf("127.0.0.1:%d leads to port 8000", first)) {
		t.Errorf("boxd sessions show: %v", r)
	}
	// The session has no network to give up; its ports go on.
	if r := d.run("sessions", "set", "lab", "--network", "none"); r.status != 0 || !strings.Contains(r.stdout, "its published ports stay open") {
		t.Errorf("boxd sessions set: %v", r)
	}
	fetch := func() {
		t.Helper()
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/sum", first))
		if err != nil {
			t.Fatal(err)
		}
		want, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp, err = http.Get(fmt.Sprintf("http://127.0.0.1:%d/big", first)); err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		hash := sha256.New()
		n, err := io.Copy(hash, resp.Body)
		if got := fmt.Sprintf("%x\n", hash.Sum(nil)); n != size || err != nil || got != string(want) {
			t.Errorf("%d bytes, %v, hash %s, want %s", n, err, got, want)
		}
	}
	fetch()
	if c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", first+1)); err == nil { // nothing listens on 9000
		if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("a port on which nothing listens: %v, want a reset", err)
		}
		c.Close()
	}

	d.wantRefused(125, d.run("exec", "other", "--publish", "8000", "--", "true"), "publish.ports")
	d.wantRefused(125, d.run("exec", "other", "--publish", fmt.Sprintf("%d:8000", first), "--", "true"), "is in use")
	d.wantRefused(125, d.run("exec", "other", "--publish", "80:8000", "--", "true"), "of the pool")
	d.wantRefused(125, d.run("exec", "other", "--publish", "8000", "--sensitive", "--", "true"), "sensitive")
	d.says(125, "", "exec", "other", "--no-create", "--", "true") // none of these has left a session

	d.kill()
	bindable(t, first)
	d.start()
	if again := d.published("lab"); len(again) != 2 || again[0].Host != first || again[1].Host != first+1 || again[0].Reason != "" {
		t.Errorf("after a kill: %+v", again)
	}
	fetch()
	d.says(0, "", "sessions", "rm", "lab")
	bindable(t, first)
	bindable(t, first+1)
	d.says(0, "", "exec", "other", "--publish", fmt.Sprintf("%d:8000", first), "--", "true")
}

// publishStream is a daemon whose session publishes a server that sends all it can, and a connection to it.
func publishStream(t *testing.T) (d *daemon, port int, c net.Conn) {
	t.Helper()
	d, port = publishDaemon(t, 1)
	if r := d.run("start", "lab", "--publish", "8000", "--id", "web", "--ready-port", "8000", "--wait", "--", "python3", "-c", firehose); r.status != 0 {
		t.Fatal(r)
	}
	c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience / 6))
	return d, port, c
}

// TestPublishedRatchet: a stream at full speed through a published port ends before the answer that the
// session is sensitive; the port is closed, also after a kill.
func TestPublishedRatchet(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	d, first, c := publishStream(t)
	lines := bufio.NewReaderSize(c, 1<<20)
	for range 1000 {
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	late := make(chan int, 1)
	go func() {
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
	if err := d.update("lab", apitypes.SessionUpdate{LiveWishes: spec.LiveWishes{Sensitive: new(true)}}); err != nil {
		t.Fatal(err)
	}
	bindable(t, first)
	d.says(0, "", "exec", "lab", "--", "sh", "-c", "echo after > phase; sleep 0.3")
	if n := <-late; n > 0 {
		t.Errorf("%d lines written after the answer arrived", n)
	}
	if got := d.published("lab"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	d.kill()
	d.start()
	if got := d.published("lab"); len(got) != 0 {
		t.Errorf("after a kill: %+v", got)
	}
	bindable(t, first)
}

// TestPortEvents: what begins to listen in a box is an event, and what ends as well.
func TestPortEvents(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	d := startDaemon(t)
	d.says(0, "", "exec", "lab", "--", "true")
	cmd := exec.CommandContext(t.Context(), d.boxd, "events", "--json", "--since", "0")
	cmd.Env = d.env
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	events := json.NewDecoder(out)
	await := func(kind string) {
		t.Helper()
		for {
			var e apitypes.Event
			if err := events.Decode(&e); err != nil {
				t.Fatal(err)
			}
			if e.Type == kind {
				if e.Session != "lab" || fmt.Sprintf("%v %v", e.Details["port"], e.Details["address"]) != "8123 127.0.0.1" {
					t.Errorf("%+v", e)
				}
				return
			}
		}
	}
	if r := d.run("start", "lab", "--id", "web", "--", "sh", "-c", "sleep 1; exec python3 -m http.server 8123 --bind 127.0.0.1"); r.status != 0 {
		t.Fatal(r)
	}
	await("port-opened")
	if r := d.run("ports", "lab"); r.status != 0 || !strings.Contains(r.stdout, "8123") {
		t.Errorf("boxd ports: %v", r)
	}
	if r := d.run("stop", "lab", "web"); r.status != 0 {
		t.Fatal(r)
	}
	await("port-closed")
}

// TestPublishedKill: a client of a daemon that is killed does not take the end of its connection for the
// end of the data.
func TestPublishedKill(t *testing.T) {
	testutil.RequireProgram(t, "python3")
	d, _, c := publishStream(t)
	if _, err := io.CopyN(io.Discard, struct{ io.Reader }{c}, 1<<20); err != nil {
		t.Fatal(err)
	}
	d.kill()
	if n, err := io.Copy(io.Discard, struct{ io.Reader }{c}); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after %d bytes: %v, want a reset", n, err)
	}
	d.start()
}

// firehose writes lines that say what the file "phase" says (without one: x) to each connection.
const firehose = `
import os, socket
l = socket.create_server(("127.0.0.1", 8000))
while True:
    s = l.accept()[0]
    try:
        while True:
            word = open("phase").read().strip() if os.path.exists("phase") else "x"
            s.sendall((word + "\n").encode() * 1000)
    except OSError:
        pass
`
