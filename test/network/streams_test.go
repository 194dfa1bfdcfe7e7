package network

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
)

//go:embed testdata/streams.py
var streamsProgram string

// streams are what the servers of the internet have received from, or sent to, boxes.
type streams struct {
	mu      sync.Mutex
	changed *sync.Cond
	bytes   map[string]int64
	open    map[string]bool
	last    time.Time // when the last byte was read from a box
}

// newStreams serves streams at rawPort, at /sink and at /source until the test ends. bound
// limits what a server sends in one stream; 0: no limit.
func newStreams(t *testing.T, bound int64) *streams {
	s := &streams{bytes: map[string]int64{}, open: map[string]bool{}}
	s.changed = sync.NewCond(&s.mu)
	world.onRaw(t, func(c net.Conn) {
		defer c.Close()
		r := bufio.NewReader(c)
		name, err := r.ReadString('\n')
		if err != nil {
			return
		}
		s.serve(strings.TrimSuffix(name, "\n"), r, c, bound)
	})
	world.at(t, "/sink", func(w http.ResponseWriter, r *http.Request) { s.serve(r.URL.RawQuery, r.Body, w, bound) })
	world.at(t, "/source", func(w http.ResponseWriter, r *http.Request) { s.serve(r.URL.RawQuery, r.Body, w, bound) })
	return s
}

func (s *streams) serve(name string, r io.Reader, w io.Writer, bound int64) {
	s.count(name, 0, true)
	defer s.count(name, 0, false)
	b := make([]byte, 64<<10)
	for sent := int64(0); ; {
		var n int
		var err error
		if strings.Contains(name, "/up/") {
			n, err = r.Read(b)
		} else {
			if bound > 0 && sent == bound {
				return
			}
			n = len(b)
			if bound > 0 {
				n = int(min(int64(n), bound-sent))
			}
			n, err = w.Write(b[:n])
			sent += int64(n)
		}
		s.count(name, n, true)
		if err != nil {
			return
		}
	}
}

func (s *streams) count(name string, n int, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes[name] += int64(n)
	s.open[name] = open
	if n > 0 && strings.Contains(name, "/up/") {
		s.last = time.Now()
	}
	s.changed.Broadcast()
}

// await waits until good, which is called with s.mu held.
func (s *streams) await(t *testing.T, what string, good func() bool) {
	t.Helper()
	late := false
	timer := time.AfterFunc(patience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.changed.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !good() {
		if late {
			t.Fatalf("%s: waited for too long: %v, open %v", what, s.bytes, s.open)
		}
		s.changed.Wait()
	}
}

// flowing waits until each of names has moved 1 MiB more.
func (s *streams) flowing(t *testing.T, names ...string) {
	t.Helper()
	s.mu.Lock()
	from := map[string]int64{}
	for _, name := range names {
		from[name] = s.bytes[name]
	}
	s.mu.Unlock()
	s.await(t, "flowing", func() bool {
		return !slices.ContainsFunc(names, func(name string) bool { return s.bytes[name] < from[name]+1<<20 })
	})
}

// ended waits until the streams have ended, and returns the bytes of each.
func (s *streams) ended(t *testing.T, names ...string) map[string]int64 {
	t.Helper()
	s.await(t, "ending", func() bool {
		return !slices.ContainsFunc(names, func(name string) bool { return s.open[name] })
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	list := map[string]int64{}
	for _, name := range names {
		list[name] = s.bytes[name]
	}
	return list
}

// startStreams starts the streams in a session, and returns a process of the box, by its
// number on this host.
func startStreams(t *testing.T, c *client.Client, id, process string, spec *apitypes.SessionSpec, names ...string) int {
	t.Helper()
	mark := fmt.Sprintf("mark-%s-%s-%d", id, process, time.Now().UnixNano())
	_, err := c.Start(t.Context(), id, apitypes.ProcessRequest{ID: process, Argv: append([]string{"python3", "-c", "'" + mark + "'\n" + streamsProgram}, names...), Session: spec})
	if err != nil {
		t.Fatal(err)
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		if b, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(b), "python3\x00-c\x00'"+mark) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return pid
		}
	}
	t.Fatalf("no process with %s", mark)
	return 0
}

// sockets counts the TCP sockets of the namespace of a /proc/PID that listen, and those that
// can still move a byte. With port, only those that have it at one end.
func sockets(t *testing.T, proc string, ports ...int) (listening, open int) {
	t.Helper()
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(proc, "net", name))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range slices.Collect(strings.Lines(string(text))) {
			fields := strings.Fields(line)
			if i == 0 || len(fields) < 4 {
				continue
			}
			has := func(end string) bool {
				_, hex, _ := strings.Cut(end, ":")
				port, err := strconv.ParseInt(hex, 16, 32)
				return err == nil && slices.Contains(ports, int(port))
			}
			if !has(fields[1]) && !has(fields[2]) {
				continue
			}
			switch fields[3] {
			case "0A":
				listening++
			case "06", "07": // TIME_WAIT, CLOSE
			default:
				open++
			}
		}
	}
	return listening, open
}

// execute runs a line of shell in a session, and returns its output.
func execute(t *testing.T, c *client.Client, id string, r apitypes.ExecRequest) *apitypes.ExecResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	result, err := c.Exec(ctx, id, r)
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	return result
}
