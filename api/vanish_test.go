package api

import (
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/testutil"
)

// A client that has sent more than its request is missed as well when it is gone.
func TestVanishedClientThatSentMore(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	if _, err := c.Start(ctx, "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"sleep", "44"}}); err != nil {
		t.Fatal(err)
	}
	requests := []string{
		"POST /v1/sessions/a/exec HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 23\r\n\r\n" + `{"argv":["sleep","78"]}`,
		"POST /v1/sessions/a/exec HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAccept: application/x-ndjson\r\nContent-Length: 23\r\n\r\n" + `{"argv":["sleep","78"]}`,
		"GET /v1/sessions/a/processes/p/logs?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n",
	}
	ended := func() int { return strings.Count(f.log.String(), "msg=request ") }
	before := ended()
	var conns []net.Conn
	for _, request := range requests {
		unix, err := net.Dial("unix", f.socket)
		if err != nil {
			t.Fatal(err)
		}
		tcp, err := net.Dial("tcp", strings.TrimPrefix(f.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(unix, request)
		io.WriteString(tcp, strings.Replace(request, "Host: x", "Host: x\r\nAuthorization: Bearer "+adminToken+"\r\n"+TenantHeader+": default", 1))
		conns = append(conns, unix, tcp)
	}
	time.Sleep(50 * time.Millisecond) // so that what follows is a read of its own
	for _, conn := range conns {
		io.WriteString(conn, "G")
	}
	time.Sleep(peerInterval + 100*time.Millisecond)
	if n := ended() - before; n != 0 {
		t.Errorf("%d requests ended before their clients were gone", n)
	}
	for _, conn := range conns {
		conn.Close()
	}
	for deadline := time.Now().Add(testutil.Patience()); ended() < before+len(conns); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d requests go on without their clients", before+len(conns)-ended(), len(conns))
		}
	}
	for range 4 {
		if args := <-f.engine.killed; args != "sleep 78" {
			t.Errorf("killed %q", args)
		}
	}
}

// So it is during an operation on files that takes long.
func TestVanishedClientOfFiles(t *testing.T) {
	f := serve(t, nil)
	ensure(t, f.client(), "a")
	f.engine.stalls.Store(true)
	body := `{"path":"/x","from":"/y"}`
	want := map[string]string{
		"GET /v1/sessions/a/files/tar?path=/x HTTP/1.1\r\nHost: x\r\n\r\n":                                                                                       "pack /x",
		"GET /v1/sessions/a/files/content?path=/x HTTP/1.1\r\nHost: x\r\n\r\n":                                                                                   "read /x",
		"PUT /v1/sessions/a/files/tar?path=/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx":                                                                 "unpack /x",
		"PUT /v1/sessions/a/files/content?path=/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx":                                                             "write /x",
		"POST /v1/sessions/a/files/copy HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body: "stat /y",
	}
	var conns []net.Conn
	for request := range want {
		conn, err := net.Dial("unix", f.socket)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, request)
		conns = append(conns, conn)
	}
	for deadline := time.Now().Add(testutil.Patience()); f.engine.started.Load() < int32(len(want)); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they do not begin")
		}
	}
	for _, conn := range conns {
		io.WriteString(conn, "G")
		conn.Close()
	}
	var killed []string
	for range want {
		select {
		case args := <-f.engine.killed:
			killed = append(killed, args)
		case <-time.After(testutil.Patience()):
			t.Fatalf("only %q end with their clients", killed)
		}
	}
	for _, verb := range want {
		if !slices.ContainsFunc(killed, func(args string) bool { return strings.HasPrefix(args, verb) }) {
			t.Errorf("%s goes on: %q", verb, killed)
		}
	}
}

// A request that should have no body is not served while one is awaited: a disconnected
// client would go unnoticed.
func TestBodyWhereNoneBelongs(t *testing.T) {
	f := serve(t, nil)
	for _, path := range []string{"/v1/status", "/v1/events", "/v1/sessions/a/processes/p/logs?follow=1"} {
		if p := f.problem("GET", path, adminToken, "{}"); p.Code != apitypes.CodeBodyTooLarge {
			t.Errorf("GET %s: %+v", path, p)
		}
	}
	if p := f.problem("DELETE", "/v1/sessions/a", adminToken, "{}"); p.Code != apitypes.CodeBodyTooLarge {
		t.Errorf("DELETE: %+v", p)
	}
}

// With HTTP/1.0 the end of the connection is the end of the answer: a part of a file
// would look like the whole of it.
func TestContentNeedsHTTP11(t *testing.T) {
	f := serve(t, nil)
	ensure(t, f.client(), "a")
	for path, want := range map[string]string{
		"/v1/sessions/a/files/content?path=/etc/passwd": "505 ", "/v1/sessions/a/files/tar?path=/etc": "505 ", "/v1/sessions/a/processes/p/logs": "505 ", "/healthz": "200 ", "/v1/status": "200 ",
	} {
		conn, err := net.Dial("unix", f.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET "+path+" HTTP/1.0\r\n\r\n")
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer[min(len(answer), 9):]), want) {
			t.Errorf("%s: %.40q, %v, want %s", path, answer, err, want)
		}
	}
}
