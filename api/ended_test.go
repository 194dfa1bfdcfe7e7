package api

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/policy"
)

// stream is an endless answer. ended gets how it ended: the close code of a WebSocket, otherwise 0.
type stream struct {
	name  string
	ended chan int
}

// openStreams opens one of each kind with the credentials in header, or in the sub-protocols of a WebSocket.
func (f *fixture) openStreams(who, port string, header http.Header, protocols ...string) (list []stream) {
	f.t.Helper()
	for _, path := range []string{"/v1/events", "/v1/sessions/a/processes/p/logs?follow=1"} {
		req, err := http.NewRequestWithContext(f.t.Context(), "GET", f.base+path, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		req.Header = header
		resp, err := f.http.Do(req)
		if err != nil || resp.StatusCode != 200 {
			f.t.Fatalf("%s %s: %v, %v", who, path, resp, err)
		}
		one := stream{who + " " + path, make(chan int, 1)}
		go func() {
			io.Copy(io.Discard, bufio.NewReader(resp.Body))
			resp.Body.Close()
			one.ended <- 0
		}()
		list = append(list, one)
	}
	paths := []string{"/v1/sessions/a/processes/p/relay?mode=observe&since=oldest"}
	if port != "" {
		paths = append(paths, "/v1/sessions/a/tunnels/"+port)
	}
	for _, path := range paths {
		d := websocket.Dialer{Subprotocols: protocols}
		ws, resp, err := d.Dial(strings.Replace(f.base, "http", "ws", 1)+path, header)
		if err != nil {
			f.t.Fatalf("%s %s: %v, %v", who, path, err, resp)
		}
		one := stream{who + " " + path, make(chan int, 1)}
		go func() {
			defer ws.Close()
			for {
				if _, _, err := ws.ReadMessage(); err != nil {
					code := -1
					if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
						code = closed.Code
					}
					one.ended <- code
					return
				}
			}
		}()
		list = append(list, one)
	}
	return list
}

func (f *fixture) awaitEnds(list []stream) {
	f.t.Helper()
	late := time.After(5 * time.Second)
	for _, s := range list {
		select {
		case code := <-s.ended:
			if strings.Contains(s.name, "/relay") && code != 3000 {
				f.t.Errorf("%s: ended with %d", s.name, code)
			}
		case <-late:
			f.t.Errorf("%s: goes on", s.name)
		}
	}
}

func (f *fixture) stillOpen(list []stream) {
	f.t.Helper()
	for _, s := range list {
		select {
		case code := <-s.ended:
			f.t.Errorf("%s: ended with %d", s.name, code)
		default:
		}
	}
}

// Signing out ends the streams of that login, and removing a token, or giving it another role, those of all of its
// logins and programs. Streams of others go on.
func TestStreamsEndWithCredentials(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(tokenFile)
	var tokens *Tokens
	f := serve(t, func(o *Options, _ *policy.Config) {
		var err error
		if tokens, err = LoadTokens(path); err != nil {
			t.Fatal(err)
		}
		o.Auth.Tokens = tokens
	})
	c := f.as(operatorToken, "")
	ensure(t, c, "a")
	if _, err := c.Start(t.Context(), "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"sleep", "55"}}); err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	port := listening(t, func(http.ResponseWriter, *http.Request) { <-hold })
	defer close(hold)
	login := func(name, token string) ([]stream, []string) {
		cookie, secret := f.signIn(token)
		pair := []string{"Cookie", cookie.Name + "=" + cookie.Value, PageHeader, secret}
		return f.openStreams(name, "", http.Header{"Cookie": {pair[1]}, PageHeader: {secret}}), pair
	}
	first, page := login("first login", operatorToken)
	second, _ := login("second login", operatorToken)
	program := f.openStreams("program", port, http.Header{"Authorization": {"Bearer " + operatorToken}})
	viewer := f.openStreams("viewer", "", http.Header{"Authorization": {"Bearer " + viewerToken}})
	if resp, body := f.raw("DELETE", loginPath, "", "", page...); resp.StatusCode != 204 {
		t.Fatalf("sign out: %d %s", resp.StatusCode, body)
	}
	f.awaitEnds(first)
	f.stillOpen(append(append(second, program...), viewer...))
	write("# edited\n" + tokenFile) // nothing has changed for anybody
	if err := tokens.Reload(path); err != nil {
		t.Fatal(err)
	}
	write(strings.Replace(tokenFile, operatorToken+" ", "#", 1))
	if err := tokens.Reload(path); err != nil {
		t.Fatal(err)
	}
	f.awaitEnds(append(second, program...))
	f.stillOpen(viewer)
	if resp, _ := f.raw("GET", "/v1/sessions", operatorToken, ""); resp.StatusCode != 401 {
		t.Errorf("the token counts: %d", resp.StatusCode)
	}
	write(strings.Replace(tokenFile, viewerToken+" acme viewer", viewerToken+" other viewer", 1))
	if err := tokens.Reload(path); err != nil {
		t.Fatal(err)
	}
	f.awaitEnds(viewer)
}
