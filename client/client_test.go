package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

func TestOptions(t *testing.T) {
	for _, o := range []Options{{}, {Socket: "s", URL: "http://a"}, {URL: "a"}, {URL: "ftp://a"}, {URL: "http://"}, {URL: "http://a\x00"}} {
		if _, err := New(o); err == nil || !strings.HasPrefix(err.Error(), "client options: ") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// answer serves one answer and returns a client of it.
func answer(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := New(Options{URL: s.URL + "/", Token: "secret", Tenant: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestRequest(t *testing.T) {
	c := answer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI != "/v1/sessions/a%2Fb%20c" || r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("X-Boxd-Tenant") != "acme" {
			t.Errorf("%s %v", r.RequestURI, r.Header)
		}
		io.WriteString(w, `{"id":"a/b c","new_in_a_later_version":1}`)
	})
	if s, err := c.Session(t.Context(), "a/b c"); err != nil || s.ID != "a/b c" {
		t.Errorf("%+v, %v", s, err)
	}
	for _, id := range []string{"", ".", ".."} {
		if _, err := c.Session(t.Context(), id); err == nil || !strings.Contains(err.Error(), "must not be") {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, a := range []struct {
		status           int
		body, code, text string
	}{
		{404, `{"code":"session_not_found","status":404,"detail":"no a","instance":"r1"}`, "session_not_found", "no a"},
		{503, `{"code":"unavailable","status":503,"title":"T","instance":"r2"}`, "unavailable", "T (request r2)"},
		{502, "<html>a proxy</html>", "unexpected", "unexpected answer 502 Bad Gateway"},
		{500, `{"code":`, "unexpected", "unexpected answer 500 Internal Server Error"},
		{302, "", "unexpected", "unexpected answer 302 Found"},
	} {
		c := answer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(a.status); io.WriteString(w, a.body) })
		_, err := c.Status(t.Context())
		var e *Error
		if !errors.As(err, &e) || e.Code != a.code || e.Status != a.status || e.Error() != a.text || !IsCode(err, "x", a.code) || IsCode(err) {
			t.Errorf("%d %s: %v", a.status, a.body, err)
		}
	}
	if IsCode(errors.New("x"), "x") || IsCode(nil, "") {
		t.Error("other errors have a code")
	}
}

// Answers that are cut or no JSON are errors, not empty values.
func TestBrokenAnswers(t *testing.T) {
	for _, body := range []string{"", "{", "[]", "null x"} {
		c := answer(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
		if _, err := c.Status(t.Context()); err == nil {
			t.Errorf("%q is a status", body)
		}
	}
	for body, want := range map[string]string{
		"": "the stream ended before", `{"stream":"stdout","data":"x"}`: "the stream ended before", "{": "the stream ended before",
		`{"error":{"code":"box_lost","detail":"lost"}}`: "lost", "x": "invalid character",
	} {
		c := answer(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
		if r, err := c.ExecStream(t.Context(), "a", apitypes.ExecRequest{}, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v", body, r, err)
		}
	}
}

func TestEventStream(t *testing.T) {
	c := answer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("last_event_id") != "6" {
			t.Errorf("%s", r.URL)
		}
		io.WriteString(w, ": alive\n\nid: 7\nevent: created\ndata: {\"id\":7,\ndata: \"type\":\"created\"}\n\nid: 9\nevent: missed\ndata: {\"missed\":2}\n\nid:10\ndata:{}\n\nid: 11\ndata: {\n\nid: 12\ndata: cut")
	})
	e, err := c.Events(t.Context(), "6")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if ev, err := e.Next(); err != nil || ev.ID != 7 || ev.Type != "created" || e.LastID != "7" {
		t.Errorf("%+v, %v", ev, err)
	}
	var missed *MissedError
	if _, err := e.Next(); !errors.As(err, &missed) || missed.Missed != 2 || e.LastID != "9" {
		t.Errorf("%v", err)
	}
	if _, err := e.Next(); err != nil || e.LastID != "10" {
		t.Errorf("%v", err)
	}
	if _, err := e.Next(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("broken event: %v", err)
	}
	if _, err := e.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("end: %v", err)
	}
}

// One after the other, small requests use one connection.
func TestConnectionIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var conns atomic.Int32
	s := &http.Server{ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{}`) })}
	go s.Serve(l)
	defer s.Close()
	c, err := New(Options{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 20 {
		if _, err := c.Exec(t.Context(), "a", apitypes.ExecRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	s.Close()
	if _, err := c.Status(t.Context()); err == nil || strings.Contains(err.Error(), "http://boxd") || !strings.HasPrefix(err.Error(), "asking boxd: ") {
		t.Errorf("a daemon that is gone: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add("id: 1\nevent: created\ndata: {}\n\n")
	f.Add("event: missed\ndata: {\"missed\":1}\n\n: x\n\ndata\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		e := newEvents(io.NopCloser(strings.NewReader(text)), "")
		for range len(text) + 2 {
			if _, err := e.Next(); errors.Is(err, io.EOF) {
				return
			}
		}
		if _, err := e.Next(); err == nil {
			t.Errorf("%q has no end", text)
		}
	})
}
