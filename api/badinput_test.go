package api

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/policy"
)

func TestBadBodies(t *testing.T) {
	f := serve(t, nil)
	const exec, sessions = "/v1/sessions/a/exec", "/v1/sessions"
	for _, c := range []struct{ path, body, code, field string }{
		{exec, "{", apitypes.CodeMalformed, ""},
		{exec, "{}x", apitypes.CodeMalformed, ""},
		{exec, "{}{}", apitypes.CodeMalformed, ""},
		{exec, "[]", apitypes.CodeMalformed, ""},
		{exec, "null", apitypes.CodeMalformed, ""},
		{exec, `"x"`, apitypes.CodeMalformed, ""},
		{exec, " ", apitypes.CodeMalformed, ""},
		{exec, "{\"argv\":[\"\xff\"]}", apitypes.CodeMalformed, ""},
		{exec, "{\"argv\":[\"a\nb\"]}", apitypes.CodeMalformed, ""},
		{exec, strings.Repeat(`{"session":`, 20000), apitypes.CodeMalformed, ""},
		{exec, `{"argv":["true"],"nope":1}`, apitypes.CodeUnknownField, "nope"},
		{exec, `{"argv":["true"],"session":{"nope":1}}`, apitypes.CodeUnknownField, "nope"},
		{exec, `{"argv":"true"}`, apitypes.CodeWrongType, "argv"},
		{exec, `{"argv":[1]}`, apitypes.CodeWrongType, "argv"},
		{exec, `{"argv":["a"],"mkdir":"yes"}`, apitypes.CodeWrongType, "mkdir"},
		{exec, `{"argv":["a"],"user":{"uid":"root"}}`, apitypes.CodeWrongType, "user.uid"},
		{exec, `{"argv":["a"],"user":{"uid":1e400}}`, apitypes.CodeWrongType, "user.uid"},
		{exec, `{"argv":["a"],"stdin_base64":"%"}`, apitypes.CodeWrongType, ""},
		{exec, `{"argv":["a"],"timeout":"soon"}`, apitypes.CodeInvalid, "timeout"},
		{exec, `{"argv":["a"],"timeout":-2}`, apitypes.CodeInvalid, "timeout"},
		{exec, `{"argv":["a"],"timeout":-1}`, apitypes.CodeInvalid, "timeout"},
		{exec, `{"argv":["a"],"timeout":1e300}`, apitypes.CodeInvalid, "timeout"},
		{exec, `{"argv":["a"],"timeout":{}}`, apitypes.CodeInvalid, "timeout"},
		{exec, `{"argv":["a"],"output_limit":"much"}`, apitypes.CodeInvalid, "output_limit"},
		{exec, `{"argv":["a"],"output_limit":1.5}`, apitypes.CodeInvalid, "output_limit"},
		{exec, `{"argv":["a"],"output_limit":-1}`, apitypes.CodeInvalid, "output_limit"},
		{exec, `{}`, apitypes.CodeSessionNotFound, ""}, // it may have an image with a command
		{exec, `{"session":{}}`, apitypes.CodeInvalid, "argv"},
		{exec, `{"argv":[""],"session":{}}`, apitypes.CodeInvalid, "argv"},
		{exec, `{"session":{"image":"a b"}}`, apitypes.CodeInvalid, "image"},
		{exec, `{"argv":["a"],"session":{"image":"python:3"}}`, apitypes.CodeImageNotPresent, ""},
		{sessions, `{"id":"a","image":"A"}`, apitypes.CodeInvalid, "image"},
		{sessions, `{"id":"a","image":1}`, apitypes.CodeWrongType, "image"},
		{exec, `{"argv":["a"],"shell":"b"}`, apitypes.CodeInvalid, "shell"},
		{exec, `{"argv":["a"],"stdin":"b","stdin_base64":"Yg=="}`, apitypes.CodeInvalid, "stdin_base64"},
		{exec, `{"argv":["a"],"env":{"A=B":"c"}}`, apitypes.CodeInvalid, "env"},
		{exec, `{"argv":["a"],"env":{"":"c"}}`, apitypes.CodeInvalid, "env"},
		{exec, `{"argv":["true"]}`, apitypes.CodeSessionNotFound, ""},
		{sessions, `{}`, apitypes.CodeInvalid, "id"},
		{sessions, `{"id":"a","scope":"b"}`, apitypes.CodeInvalid, "id"},
		{sessions, `{"id":"a","profile":"no-such"}`, apitypes.CodeInvalid, "profile"},
		{sessions, `{"id":"a","memory":"0"}`, "", ""},
		{sessions, `{"id":"a","memory":"lots"}`, apitypes.CodeInvalid, "memory"},
		{exec, `{"argv":["a"],"session":{"idle_ttl":true}}`, apitypes.CodeInvalid, "session.idle_ttl"},
		{exec, `{"argv":["a"],"timeout":null,"output_limit":null}`, apitypes.CodeSessionNotFound, ""},
		{sessions, `{"id":"a","mounts":[{"source":"/etc","target":"/x"}]}`, "", ""},
		{sessions, `{"id":"a","cpus":"many"}`, apitypes.CodeWrongType, "cpus"},
	} {
		p := f.problem("POST", c.path, adminToken, c.body)
		if c.code != "" && p.Code != c.code || c.code == "" && p.Status/100 != 4 {
			t.Errorf("%.60s: %d %s: %s, want %s", c.body, p.Status, p.Code, p.Detail, c.code)
		}
		if c.field != "" && p.Field != c.field {
			t.Errorf("%.60s: field %q, want %q", c.body, p.Field, c.field)
		}
	}
}

func TestHugeBodies(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) { o.MaxBody, o.MaxFile = 1000, 2000 })
	huge := `{"argv":["` + strings.Repeat("x", 2000) + `"]}`
	if p := f.problem("POST", "/v1/sessions/a/exec", adminToken, huge); p.Code != apitypes.CodeBodyTooLarge {
		t.Errorf("exec: %+v", p)
	}
	// Without a length that was said beforehand.
	req, _ := http.NewRequest("POST", f.base+"/v1/sessions", io.MultiReader(strings.NewReader(huge)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := f.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if p := checkProblem(t, resp, body); p.Code != apitypes.CodeBodyTooLarge {
		t.Errorf("chunked: %+v", p)
	}
	if p := f.problem("PUT", "/v1/sessions/a/files/content?path=x", adminToken, strings.Repeat("x", 3000)); p.Code != apitypes.CodeBodyTooLarge {
		t.Errorf("file: %+v", p)
	}
}

func TestBadIDs(t *testing.T) {
	f := serve(t, nil)
	for _, id := range []string{"a%2Fb", "%2F", "..%2F..", "a%00b", "%00", "%C3%A9", "%E2%80%AE", strings.Repeat("a", 300), "%2e%2e", "..", ".", "%2e", "a..b", "a%20b", "a%0ab", "-", "%FF", "*"} {
		for _, path := range []string{"/v1/sessions/%s", "/v1/sessions/%s/exec", "/v1/sessions/x/processes/%s", "/v1/sessions/%s/files/stat?path=x"} {
			method := "GET"
			if strings.HasSuffix(path, "exec") {
				method = "POST"
			}
			resp, body := f.raw(method, fmt.Sprintf(path, id), adminToken, strings.Repeat(`{"argv":["true"]}`, map[string]int{"POST": 1}[method]))
			p := checkProblem(t, resp, body)
			if p.Status/100 != 4 {
				t.Errorf("%s %s: %+v", method, fmt.Sprintf(path, id), p)
			}
		}
	}
	for _, id := range []string{"a/b", "..", "a\\u0000b", "é", strings.Repeat("a", 300), "", "."} {
		if p := f.problem("POST", "/v1/sessions", adminToken, `{"id":"`+id+`"}`); p.Code != apitypes.CodeInvalid {
			t.Errorf("%q: %+v", id, p)
		}
	}
}

func TestBadRoutes(t *testing.T) {
	f := serve(t, nil)
	for _, c := range []struct {
		method, path, code string
		status             int
	}{
		{"GET", "/", apitypes.CodeNoRoute, 404},
		{"GET", "/v1", apitypes.CodeNoRoute, 404},
		{"GET", "/v1/", apitypes.CodeBadPath, 400},
		{"GET", "/v2/sessions", apitypes.CodeNoRoute, 404},
		{"GET", "/v1/sessions/a/b/c/d", apitypes.CodeNoRoute, 404},
		{"GET", "//v1/sessions", apitypes.CodeBadPath, 400},
		{"GET", "/v1/sessions/", apitypes.CodeBadPath, 400},
		{"GET", "/v1/sessions/../sessions", apitypes.CodeBadPath, 400},
		{"GET", "/v1/%2e%2e/v1/sessions", apitypes.CodeBadPath, 400},
		{"DELETE", "/v1/sessions", apitypes.CodeMethod, 405},
		{"PUT", "/v1/sessions/a/exec", apitypes.CodeMethod, 405},
		{"TRACE", "/v1/status", apitypes.CodeMethod, 405},
		{"GET", "/v1/sessions?nope=1", apitypes.CodeUnknownField, 400},
		{"GET", "/v1/sessions?%zz", apitypes.CodeBadPath, 400},
		{"GET", "/v1/sessions/a/files?path=x&limit=-1", apitypes.CodeInvalid, 422},
		{"GET", "/v1/sessions/a/files?path=x&limit=99999", apitypes.CodeInvalid, 422},
		{"GET", "/v1/events?last_event_id=x", apitypes.CodeInvalid, 422},
		{"GET", "/v1/sessions/a/processes/p/logs?limit=x&offset=y&follow=maybe", apitypes.CodeSessionNotFound, 404},
	} {
		p := f.problem(c.method, c.path, adminToken, "")
		if p.Code != c.code || p.Status != c.status {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, p.Status, p.Code, c.status, c.code)
		}
	}
	resp, _ := f.raw("PUT", "/v1/sessions", adminToken, "")
	if allow := resp.Header.Get("Allow"); allow != "GET, POST" {
		t.Errorf("Allow: %q", allow)
	}
	if p := f.problem("POST", "/v1/sessions", adminToken, "id=a", "Content-Type", "application/x-www-form-urlencoded"); p.Code != apitypes.CodeMediaType {
		t.Errorf("form: %+v", p)
	}
}

// A header that net/http refuses by itself must not take the service down either.
func TestBrokenHTTP(t *testing.T) {
	f := serve(t, nil)
	for _, request := range []string{
		"GET /v1/status HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 100<<10) + "\r\n\r\n",
		"GET  HTTP/9\r\n\r\n", "\x00\x00\x00\x00\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST /v1/sessions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
		"POST /v1/sessions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		conn, err := net.Dial("unix", f.socket)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, request)
		conn.(*net.UnixConn).CloseWrite()
		answer, _ := io.ReadAll(conn)
		conn.Close()
		if !strings.HasPrefix(string(answer), "HTTP/1.1 4") && !strings.HasPrefix(string(answer), "HTTP/1.1 5") && len(answer) > 0 {
			t.Errorf("%.30q: %.60q", request, answer)
		}
	}
	if resp, _ := f.raw("GET", "/healthz", "", ""); resp.StatusCode != 200 {
		t.Errorf("healthz: %d", resp.StatusCode)
	}
}
