package mcp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// disconnect lets clients use the server at an URL at once, and vanish as often as times says together: while
// they initialize, during a call, with an open stream, or without a word after a session. It returns how
// many calls in between were answered.
func disconnect(t *testing.T, url, token string, clients, times int) int64 {
	t.Helper()
	var left, answered atomic.Int64
	left.Store(int64(times))
	var refused atomic.Pointer[string]
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			transport := &http.Transport{DisableKeepAlives: true}
			defer transport.CloseIdleConnections()
			// send returns the header of the answer, whose body is read unless vanish says when to cut the connection.
			send := func(method, body, id string, vanish time.Duration) (http.Header, string) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if vanish > 0 {
					defer time.AfterFunc(vanish, cancel).Stop()
				}
				r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
				if err != nil {
					panic(err)
				}
				for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + token, "Mcp-Session-Id": id} {
					if v != "" {
						r.Header.Set(k, v)
					}
				}
				resp, err := transport.RoundTrip(r)
				if err != nil {
					return http.Header{}, err.Error()
				}
				defer resp.Body.Close()
				if vanish > 0 {
					_, _ = io.Copy(io.Discard, resp.Body)
					return resp.Header, ""
				}
				// The first event is the answer: some servers leave the stream open.
				var answer bytes.Buffer
				buf := make([]byte, 4096)
				for {
					n, err := resp.Body.Read(buf)
					answer.Write(buf[:n])
					if err != nil || strings.Contains(answer.String(), `"result"`) || strings.Contains(answer.String(), `"error"`) {
						return resp.Header, answer.String()
					}
				}
			}
			for {
				n := left.Add(-1)
				if n < 0 {
					return
				}
				cut := time.Duration(1+n%20) * time.Millisecond
				if n%4 == 0 {
					send("POST", initialize(1), "", cut)
					continue
				}
				header, answer := send("POST", initialize(1), "", 0)
				id := header.Get("Mcp-Session-Id")
				if id == "" {
					refused.CompareAndSwap(nil, &answer)
					continue // supergateway may not bear so many at once
				}
				send("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, id, 10*time.Second)
				switch n % 4 {
				case 1:
					send("POST", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"wait","arguments":{}}}`, id, cut)
				case 2:
					send("GET", "", id, cut)
				case 3:
					if _, answer := send("POST", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"n":1}}}`, id, 0); strings.Contains(answer, `"result"`) {
						answered.Add(1)
					} else {
						refused.CompareAndSwap(nil, &answer)
					}
				}
			}
		})
	}
	all.Wait()
	if text := refused.Load(); text != nil {
		t.Logf("the first call that was not answered got: %.300s", *text)
	}
	return answered.Load()
}

// running counts the processes on this host whose command line has tag.
func running(t *testing.T, tag string) (n int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte(tag)) && bytes.Contains(b, []byte("fixture.py")) {
			n++
		}
	}
	return n
}

// awaitNone waits until no process with tag runs, and returns how long that took.
func awaitNone(t *testing.T, tag string, patience time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	for n := running(t, tag); n > 0; n = running(t, tag) {
		if time.Since(began) > patience {
			t.Errorf("%d processes are left after %v", n, patience)
			break
		}
		time.Sleep(100 * time.Millisecond) // nothing tells of the end of other people's processes
	}
	return time.Since(began)
}

// Clients that vanish leave no process.
func TestServedDisconnects(t *testing.T) {
	s := served(t, `
  one: {command: [FIXTURE, tag-one], TESTDATA, mode: shared, idle: 1s, max_sessions: 1024}
  own: {command: [FIXTURE, tag-own], TESTDATA, mode: session, idle: 1s, max_sessions: 1024}
`)
	clients, shared, own := 20, 288, 12
	if testutil.Full() {
		clients, shared, own = 200, 8000, 2000
	}
	for _, c := range []struct {
		name  string
		times int
	}{{"one", shared}, {"own", own}} {
		began := time.Now()
		answered := disconnect(t, s.at(c.name).endpoint(), tokenA, clients, c.times)
		took := time.Since(began)
		if want := int64(c.times / 4); answered < want {
			t.Errorf("%s: %d calls were answered, want %d", c.name, answered, want)
		}
		t.Logf("%s: %d clients vanished %d times in %.1f s; %d calls in between were answered; no process after %.1f s",
			c.name, clients, c.times, took.Seconds(), answered, awaitNone(t, "tag-"+c.name, testutil.Patience()).Seconds())
	}
	// The boxes go as well; that of the shared server stays until its idle TTL ends.
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		got := s.sessions(t, "a")
		if len(got) == 0 || len(got) == 1 && got[0] == "mcp-one" {
			break
		}
		if time.Since(began) > testutil.Patience() {
			t.Fatalf("sessions stay: %q", got)
		}
	}
}

// The same with supergateway, for comparison: docs/mcp.md has the figures.
func TestSupergateway(t *testing.T) {
	if !testutil.Full() {
		t.Skip("only with make full: it is a comparison")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	testdata, err := filepath.Abs("testdata/fixture.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := node(t, "node_modules/supergateway/dist/index.js", "--stdio", "python3 "+testdata+" tag-super", "--outputTransport", "streamableHttp", "--stateful", "--sessionTimeout", "2000",
		"--port", fmt.Sprint(port), "--logLevel", "none")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it leaves, too
		_ = cmd.Wait()
	}()
	url := fmt.Sprintf("http://127.0.0.1:%d/mcp", port)
	for deadline := time.Now().Add(testutil.Patience()); ; time.Sleep(50 * time.Millisecond) {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	began := time.Now()
	answered := disconnect(t, url, "", 20, 300)
	took := time.Since(began)
	time.Sleep(10 * time.Second) // five times its timeout
	t.Logf("20 clients vanished 300 times in %.1f s; %d calls in between were answered; %d processes are left 10 s later", took.Seconds(), answered, running(t, "tag-super"))
}
