package api

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

// Several requests on one connection, in the ways that HTTP/1.1 allows.
func TestOneConnection(t *testing.T) {
	f := serve(t, nil)
	ensure(t, f.client(), "a")
	conn, err := net.Dial("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const head = "POST /v1/sessions/a/exec HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	const body = `{"argv":["true"]}`
	requests := []string{
		head + "Content-Length: 17\r\n\r\n" + body,
		head + "Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n11\r\n" + body + "\r\n0\r\nX-T: 1\r\n\r\n",
		head + "Content-Length: 17\r\nExpect: 100-continue\r\n\r\n" + body,
		"GET /v1/sessions/none HTTP/1.1\r\nHost: x\r\n\r\n",
		"HEAD /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	}
	for _, r := range requests { // all before the first answer is read
		io.WriteString(conn, r)
	}
	r := bufio.NewReader(conn)
	for i, want := range []int{200, 200, 100, 200, 404, 200, 200} {
		method := "GET"
		if i == 5 {
			method = "HEAD"
		}
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != want {
			t.Errorf("answer %d: %d, %v, want %d", i, resp.StatusCode, err, want)
		}
	}
	if n, err := io.Copy(io.Discard, r); n != 0 || err != nil {
		t.Errorf("%d bytes more, %v", n, err)
	}
}

// The body of a stop is optional; one that is there is read.
func TestStopWithoutBody(t *testing.T) {
	f := serve(t, nil)
	c := f.client()
	ensure(t, c, "a")
	for id, body := range map[string]string{"p": "", "q": "{}", "r": `{"grace":"1s"}`} {
		if _, err := c.Start(t.Context(), "a", apitypes.ProcessRequest{ID: id, Argv: []string{"sleep", "55"}}); err != nil {
			t.Fatal(err)
		}
		if resp, answer := f.raw("POST", "/v1/sessions/a/processes/"+id+"/stop", adminToken, body); resp.StatusCode != 200 {
			t.Errorf("stop with body %q: %d %s", body, resp.StatusCode, answer)
		}
	}
	if p := f.problem("POST", "/v1/sessions/a/processes/p/stop", adminToken, "{"); p.Code != apitypes.CodeMalformed {
		t.Errorf("%+v", p)
	}
	if p := f.problem("POST", "/v1/sessions/a/processes/p/signal", adminToken, ""); p.Code != apitypes.CodeMediaType {
		t.Errorf("signal without a body: %+v", p)
	}
}
