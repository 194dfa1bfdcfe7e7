package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"golang.org/x/sys/unix"
)

func TestRun(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	r, err := c.Run(ctx, apitypes.RunRequest{Shell: "cat; echo err >&2; exit 3", Stdin: "in", Box: apitypes.SessionSpec{Hostname: "h"}})
	if err != nil || *r.ExitCode != 3 || r.Stdout != "in" || r.Stderr != "err\n" {
		t.Errorf("%+v, %v", r, err)
	}
	var out bytes.Buffer
	if r, err := c.RunStream(ctx, apitypes.RunRequest{Argv: []string{"echo", "x"}}, &out, nil); err != nil || r.Status != 0 || out.String() != "x\n" {
		t.Errorf("%+v, %v, %q", r, err, out.String())
	}
	for field, q := range map[string]apitypes.RunRequest{
		"box.workspace_mode": {Argv: []string{"x"}, Box: apitypes.SessionSpec{WorkspaceMode: ptr("rw")}},
		"box.network":        {Argv: []string{"x"}, Box: apitypes.SessionSpec{LiveWishes: spec.LiveWishes{Network: ptr(true)}}},
		"cwd":                {Argv: []string{"x"}, Cwd: "relative"},
		"shell":              {Argv: []string{"x"}, Shell: "y"},
	} {
		_, err := c.Run(ctx, q)
		if e, ok := err.(*client.Error); !ok || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for field, q := range map[string]apitypes.RunRequest{
		"box.env":    {Argv: []string{"x"}, Box: apitypes.SessionSpec{Env: map[string]string{"": "x"}}},
		"env":        {Argv: []string{"x"}, Env: map[string]string{"=": "x"}},
		"box.memory": {Argv: []string{"x"}, Box: apitypes.SessionSpec{LiveWishes: spec.LiveWishes{Memory: ptr(apitypes.Size(1 << 40))}}},
		"box.pids":   {Argv: []string{"x"}, Box: apitypes.SessionSpec{Profile: "execution"}}, // which gives another value
		"timeout":    {Argv: []string{"x"}, Box: apitypes.SessionSpec{Profile: "default"}},
	} {
		_, err := c.Run(ctx, q)
		e, ok := err.(*client.Error)
		if name, _, _ := strings.Cut(fmt.Sprint(err), "["); !ok || e.Field != field && !strings.HasPrefix(e.Field, field+"[") {
			t.Errorf("%s: %v, %q, field %q", field, err, name, e.Field)
		}
	}
	if _, err := c.Run(ctx, apitypes.RunRequest{Argv: []string{"no-such-program"}}); !client.IsCode(err, apitypes.CodeProgramNotFound) {
		t.Errorf("missing program: %v", err)
	}
	if _, err := c.Run(ctx, apitypes.RunRequest{Argv: []string{"x"}, Box: apitypes.SessionSpec{LiveWishes: spec.LiveWishes{Memory: ptr(apitypes.Size(1 << 40))}}}); !client.IsCode(err, apitypes.CodeInvalid) {
		t.Errorf("above a cap: %v", err)
	}
}

// upgrade asks for a run with descriptors, and returns the first line of the answer. The fixture's socket knows the
// user of the tests.
func (f *fixture) upgrade(body string) (conn *net.UnixConn, status string) {
	f.t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.socket, Net: "unix"})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: Upgrade\r\nUpgrade: boxd-run\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	var answer []byte
	for !bytes.Contains(answer, []byte("\r\n\r\n")) {
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil {
			f.t.Fatalf("%q, %v", answer, err)
		}
		answer = append(answer, buf[:n]...)
	}
	status, _, _ = strings.Cut(string(answer), "\r\n")
	return conn, status
}

func pass(t *testing.T, conn *net.UnixConn, data string, files ...*os.File) {
	t.Helper()
	var fds []int
	for _, file := range files {
		fds = append(fds, int(file.Fd()))
	}
	if _, _, err := conn.WriteMsgUnix([]byte(data), unix.UnixRights(fds...), nil); err != nil {
		t.Fatal(err)
	}
}

func runEnd(t *testing.T, conn *net.UnixConn) (e apitypes.RunEnd) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	b, err := io.ReadAll(conn)
	if err != nil || json.Unmarshal(b, &e) != nil || bytes.Count(b, []byte("\n")) != 1 {
		t.Errorf("answer %q, %v", b, err)
	}
	return e
}

func pipes(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestRunWithDescriptors(t *testing.T) {
	f := serve(t, nil)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	const ok = "HTTP/1.1 101 Switching Protocols"
	for _, limit := range []string{"", `,"output_limit":"1M"`} {
		inRead, inWrite := pipes(t)
		outRead, outWrite := pipes(t)
		conn, status := f.upgrade(`{"shell":"cat; exit 3"` + limit + `}`)
		if status != ok {
			t.Fatal(status)
		}
		pass(t, conn, "\x00", inRead, outWrite, null)
		outWrite.Close()
		io.WriteString(inWrite, "bytes \xff\x00")
		inWrite.Close()
		got, err := io.ReadAll(outRead)
		if e := runEnd(t, conn); err != nil || string(got) != "bytes \xff\x00" || e.Result == nil || e.Result.Status != 3 || e.Result.Stdout != "" {
			t.Errorf("%s: %q, %v, %+v", limit, got, err, e)
		}
	}

	// Signals, also those that come before the program runs.
	conn, _ := f.upgrade(`{"argv":["sleep","71"]}`)
	pass(t, conn, "\x00", null, null)
	io.WriteString(conn, `{"signal":15}`+"\n")
	if e := runEnd(t, conn); e.Result == nil || e.Result.Signal != "SIGTERM" {
		t.Errorf("after a signal: %+v", e)
	}

	// What does not fit is refused before anything runs.
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for what, files := range map[string][]*os.File{"one": {null}, "a file to write": {null, file}, "a directory": {dir, null, null}, "four": {null, null, null, null}} {
		conn, _ := f.upgrade(`{"argv":["echo","x"]}`)
		pass(t, conn, "\x00", files...)
		if e := runEnd(t, conn); e.Error == nil || e.Started || e.Error.Code != apitypes.CodeInvalid {
			t.Errorf("%s: %+v", what, e)
		}
	}
	conn, _ = f.upgrade(`{"argv":["echo","x"]}`)
	io.WriteString(conn, "\x00") // none
	if e := runEnd(t, conn); e.Error == nil || e.Started {
		t.Errorf("no descriptors: %+v", e)
	}
	conn, _ = f.upgrade(`{"argv":["no-such-program"]}`)
	pass(t, conn, "\x00", null, null)
	if e := runEnd(t, conn); e.Error == nil || e.Started || e.Error.Code != apitypes.CodeProgramNotFound {
		t.Errorf("missing program: %+v", e)
	}
	for _, body := range []string{`{"argv":["x"],"stdin":"y"}`, `{"argv":["x"],"box":{"memory":"1T"}}`, `{}`, `{"argv":["x"],"session":{}}`} {
		if _, status := f.upgrade(body); !strings.HasPrefix(status, "HTTP/1.1 4") {
			t.Errorf("%s: %s", body, status)
		}
	}
	// Garbage, and a client that goes, end the command.
	for _, last := range []string{"garbage\n", strings.Repeat("x", 2*maxRunSignal), ""} {
		conn, _ := f.upgrade(`{"argv":["sleep","72"]}`)
		pass(t, conn, "\x00", null, null)
		if io.WriteString(conn, last); last == "" {
			conn.Close()
		}
		<-f.engine.killed
	}
	// TCP passes no descriptors.
	req, err := http.NewRequest("POST", f.base+"/v1/run", strings.NewReader(`{"argv":["x"]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + operatorToken}, "Content-Type": {"application/json"}, "Connection": {"Upgrade"}, "Upgrade": {apitypes.RunProtocol}}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("over TCP: %s", resp.Status)
	}
}

// TestRunOutputLimit: the daemon counts the bytes through a description of its own. The client's stays as it is, and a
// client that reads nothing holds its command only until somebody ends it.
func TestRunOutputLimit(t *testing.T) {
	f := serve(t, nil)
	f.engine.waits.Store(true)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	conn, _ := f.upgrade(`{"shell":"echo x; exit 3","output_limit":"1M"}`)
	pass(t, conn, "\x00", null, null)
	if e := runEnd(t, conn); e.Result == nil || e.Result.Status != 3 {
		t.Errorf("/dev/null: %+v", e)
	}

	for what, end := range map[string]func(conn *net.UnixConn){
		"removal": func(*net.UnixConn) {
			list, err := f.client().Sessions(t.Context())
			if err != nil || len(list) != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			if err := f.client().Remove(t.Context(), list[0].ID); err != nil {
				t.Error(err)
			}
		},
		"cancel": func(conn *net.UnixConn) { io.WriteString(conn, `{"cancel":true}`+"\n") },
	} {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil { // its descriptions block
			t.Fatal(err)
		}
		read, write := os.NewFile(uintptr(ends[0]), "read"), os.NewFile(uintptr(ends[1]), "write")
		defer read.Close()
		defer write.Close()
		conn, _ := f.upgrade(`{"shell":"echo begun; head -c 1000000 /dev/zero; sleep 73","output_limit":"1M"}`)
		pass(t, conn, "\x00", write, null)
		if _, err := io.ReadFull(read, make([]byte, len("begun\n"))); err != nil {
			t.Fatal(err)
		}
		for room := []unix.PollFd{{Fd: int32(ends[1]), Events: unix.POLLOUT}}; ; { // until the pipe is full
			if n, err := unix.Poll(room, 0); err == nil && n == 0 {
				break
			}
		}
		if flags, err := unix.FcntlInt(uintptr(ends[1]), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
			t.Errorf("%s: the client's description has flags %#x, %v", what, flags, err)
		}
		end(conn)
		if e := runEnd(t, conn); (e.Error == nil) != (what == "cancel") {
			t.Errorf("%s: %+v", what, e)
		}
	}

	// The daemon writes only where the client could write.
	fifo := t.TempDir() + "/fifo"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	named, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	read, _ := pipes(t)
	for what, file := range map[string]*os.File{"a named pipe": named, "the end to read": read} {
		conn, _ := f.upgrade(`{"argv":["echo","x"],"output_limit":"1M"}`)
		pass(t, conn, "\x00", null, file)
		if e := runEnd(t, conn); e.Error == nil || e.Started || e.Error.Field != "output_limit" {
			t.Errorf("%s: %+v", what, e)
		}
	}
}

// TestRunRefusals: a run with descriptors that is over a quota or a rate is refused before the descriptors come if that
// is known by then, and counted like any other. The rate counts it once.
func TestRunRefusals(t *testing.T) {
	f := serve(t, func(_ *Options, c *policy.Config) { c.TenantDefaults.Sessions = 1 })
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	late, _ := f.upgrade(`{"argv":["true"]}`)
	ensure(t, f.client(), "a")
	pass(t, late, "\x00", null, null)
	if e := runEnd(t, late); e.Error == nil || e.Started || e.Error.Code != apitypes.CodeQuota {
		t.Errorf("over the quota since: %+v", e)
	}
	if _, status := f.upgrade(`{"argv":["true"]}`); !strings.HasPrefix(status, "HTTP/1.1 429 ") {
		t.Errorf("over the quota: %s", status)
	}
	const line = `boxd_quota_refusals_total{quota="sessions",scope="tenant"} 2`
	if _, body := f.raw("GET", "/metrics", scraperToken, ""); !strings.Contains(string(body), line) {
		t.Errorf("the metrics lack %s", line)
	}

	if err := f.client().Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	var waiting []*net.UnixConn
	for range f.accepts.most {
		conn, _ := f.upgrade(`{"argv":["true"]}`)
		waiting = append(waiting, conn)
	}
	if _, status := f.upgrade(`{"argv":["true"]}`); !strings.HasPrefix(status, "HTTP/1.1 429 ") {
		t.Errorf("one more than may be accepted at once: %s", status)
	}
	for _, conn := range waiting {
		conn.Close()
	}
}

// TestDrainRuns: a run that does not end, whatever is done to it, does not keep the daemon from ending.
func TestDrainRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, cancel := context.WithCancel(t.Context())
		s := &Server{runConns: map[net.Conn]struct{}{}, streams: base, base: base, cancel: cancel}
		conn, client := net.Pipe()
		if !s.beginRun() {
			t.Fatal("no run may begin")
		}
		forget := s.keepRun(conn)
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := s.drainRuns(ctx); err == nil || !strings.HasPrefix(err.Error(), "1 runs") || base.Err() == nil {
			t.Errorf("%v", err)
		}
		if _, err := client.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("its connection: %v", err)
		}
		forget()
		s.runs.Done()
		if err := s.drainRuns(ctx); err != nil {
			t.Errorf("once it has ended: %v", err)
		}
	})
}
