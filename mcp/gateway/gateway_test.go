package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/budget"
	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

// What readers of JSON understand differently does not get past the rules for tools, in either direction.
func TestAmbiguous(t *testing.T) {
	g := &Gateway{}
	a := held()
	p := &process{s: &Server{Name: "x", Tools: Tools{Allow: []string{"good"}}}, in: newQueue(a), account: a, pending: map[int64]*exchange{}}
	for _, params := range []string{`{"name":"bad","name":"good"}`, `{"name":"good","Name":"bad"}`, `{"name":"good","NAME":"bad"}`, `{"name":"good","argument\u017f":1}`, `{"name":"bad"}`, `["good"]`, `null`} {
		m, err := parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`))
		if err != nil {
			t.Fatal(err)
		}
		x, _, err := g.begin(t.Context(), p, nil, m, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer, _ := x.out.pop(); !strings.Contains(string(answer), "-32602") || len(p.pending) != 0 {
			t.Errorf("%s: %s", params, answer)
		}
	}
	for _, result := range []string{
		`{"tools":[{"name":"bad","name":"good"}]}`, `{"tools":[{"name":"good","Name":"bad"}]}`, `{"tools":[{"name":"good","inputSchema":{"x":[{"y":1,"y":2}]}}]}`,
		`{"tools":[],"tool\u017f":[{"name":"bad"}]}`, `{"tools":[{"name":"bad"}],"tools":[]}`,
	} {
		m, err := parse([]byte(`{"jsonrpc":"2.0","id":1,"result":` + result + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if answer := p.filterTools(m); answer.members["error"] == nil {
			t.Errorf("%s: %s", result, answer.encode())
		}
	}
	m, _ := parse([]byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"bad"},{"name":"good","inputSchema":{"properties":{"a":1,"A":2}}}]}}`))
	if answer := string(p.filterTools(m).encode()); !strings.Contains(answer, `"good"`) || strings.Contains(answer, "bad") || !strings.Contains(answer, `"result"`) {
		t.Error(answer)
	}
	if call, _ := parse([]byte(`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"bad"}}`)); notifies(call) {
		t.Error("a call without an ID passes as a notification")
	}
}

// Whatever is accepted is one line, and means the same.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":"p"},"n":1e400,"s":"\u2028<\ud800"}}`))
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\n\"id\":\"\xff\",\"result\":{}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		m.members["params"], _ = replace(m.members["params"], json.RawMessage("7"), "_meta", "progressToken")
		if m.members["params"] == nil {
			delete(m.members, "params")
		}
		line := m.encode()
		again, err := parse(line)
		if err != nil || bytes.ContainsAny(line, "\n\r") || again.method != m.method || len(again.members) != len(m.members) {
			t.Errorf("%q became %q: %v", b, line, err)
		}
	})
}

func TestReplace(t *testing.T) {
	for _, c := range []struct{ raw, want, old string }{
		{`{"_meta":{"progressToken":"p","x":1},"y":2}`, `{"_meta":{"progressToken":7,"x":1},"y":2}`, `"p"`},
		{`{"_meta":{"x":1}}`, `{"_meta":{"x":1}}`, ``},
		{`{"_meta":null}`, `{"_meta":null}`, ``},
		{`[1]`, `[1]`, ``},
		{``, ``, ``},
	} {
		got, old := replace(json.RawMessage(c.raw), json.RawMessage("7"), "_meta", "progressToken")
		if string(got) != c.want || string(old) != c.old {
			t.Errorf("%s: %s, old %s", c.raw, got, old)
		}
	}
}

// held returns an account that nobody else uses.
func held() account { return account{budget.New(maxHeld, maxHeldEach), "a"} }

// What queues hold counts until it was read: an exchange whose answer does not fit ends with an error, and
// nothing stays counted once readers have left.
func TestHeld(t *testing.T) {
	a := account{budget.New(100, 100), "a"}
	p := &process{s: &Server{Name: "x"}, in: newQueue(a), account: a, pending: map[int64]*exchange{}, done: make(chan struct{})}
	ask := func() *exchange {
		x := &exchange{}
		m, _ := parse([]byte(`{"jsonrpc":"2.0","id":"i","method":"x"}`))
		if _, err := p.ask(m, x); err != nil {
			t.Fatal(err)
		}
		if _, ok := p.in.next(nil); !ok {
			t.Fatal("no request")
		}
		p.in.pop()
		return x
	}
	answer := func(n int64, size int) {
		p.line(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"result":"%s"}`, n, strings.Repeat("r", size)))
	}
	slow, refused := ask(), ask()
	answer(0, 10)
	answer(1, 50)
	if b, last := refused.out.pop(); !last || !strings.Contains(string(b), "have not read yet") || !strings.Contains(string(b), `"id":"i"`) {
		t.Errorf("the answer that does not fit: %s", b)
	}
	if b, last := slow.out.pop(); !last || !strings.Contains(string(b), "rrrr") {
		t.Errorf("the answer that fits: %s", b)
	}
	if a.budget.Held() == 0 {
		t.Error("a message that is being written does not count")
	}
	slow.out.drop()
	listener := &session{s: &Server{Mode: ModeShared}, out: backlog(a)}
	listener.unasked(request(nil, "notifications/x", nil), true)
	q, stop := listener.listen()
	if b, _ := q.pop(); !strings.Contains(string(b), "notifications/x") {
		t.Errorf("%s in the backlog", b)
	}
	listener.unasked(request(nil, "notifications/x", nil), true)
	stop()
	listener.unasked(request(nil, "notifications/x", nil), true)
	(&Gateway{}).endSession(listener)
	listener.unasked(request(nil, "notifications/x", nil), true)
	if n := a.budget.Held(); n != 0 {
		t.Errorf("%d bytes stay counted", n)
	}
}

func TestQueue(t *testing.T) {
	q := newQueue(held())
	for i := range maxQueued {
		if !q.push([]byte{byte(i)}) {
			t.Fatalf("message %d is refused", i)
		}
	}
	if q.push(nil) || q.push([]byte("x")) {
		t.Error("a full queue takes more")
	}
	q.end([]byte("end"))
	q.end([]byte("again"))
	n := 0
	for b, ok := q.next(nil); ok; b, ok = q.next(nil) {
		if n++; n == maxQueued+1 && string(b) != "end" {
			t.Errorf("the last message is %q", b)
		}
	}
	if n != maxQueued+1 {
		t.Errorf("%d messages", n)
	}
	q = newQueue(held())
	if q.push(make([]byte, maxQueuedBytes+1)) {
		t.Error("a message that is too long is taken")
	}
	done := make(chan struct{})
	close(done)
	if _, ok := q.next(done); ok {
		t.Error("a message from an empty queue")
	}
}

func TestTail(t *testing.T) {
	var s tail
	for _, part := range []string{"on", "e\ntwo", "\n", "\n\nthree\xff\n", strings.Repeat("z", 2*maxTailLine)} {
		s.add("", []byte(part))
	}
	s.add("stdout: ", []byte("garbage\x1b[31m"))
	s.add("", []byte("after\n"))
	want := []string{"one", "two", "three\uFFFD", strings.Repeat("z", maxTailLine), "stdout: garbage\x1b[31m", "after"}
	if got := s.last(); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q", got)
	}
	for i := range 100 {
		s.add("", fmt.Appendf(nil, "line %d\n", i))
	}
	if got := s.last(); len(got) != maxTail || got[maxTail-1] != "line 99" {
		t.Errorf("%q", got)
	}
}

// The digest of tools depends on what they are, and on nothing else.
func TestToolsDigest(t *testing.T) {
	of := func(tools ...string) string {
		known := map[string]string{}
		for _, tool := range tools {
			known[text(object(json.RawMessage(tool))["name"])] = toolDigest(json.RawMessage(tool))
		}
		return toolsDigest(known)
	}
	a, b := `{"name":"a","description":"x","inputSchema":{"n":1.50,"type":"object"}}`, `{"name":"b"}`
	if of(a, b) != of(b, `{ "inputSchema": {"type":"object", "n":1.50}, "description":"x", "name":"a"}`) {
		t.Error("order or white space changes the digest")
	}
	for _, other := range []string{strings.Replace(a, `"x"`, `"y"`, 1), strings.Replace(a, "1.50", "1.51", 1), `{"name":"c"}`} {
		if of(a, b) == of(other, b) {
			t.Errorf("%s has the same digest", other)
		}
	}
}

// Requests of a server get an answer: a ping of a shared one, and what no client can be asked. Requests that
// no client answers do not take the places of others for good.
func TestAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := held()
		told := func(p *process) string {
			b, _ := p.in.pop()
			return string(b)
		}
		p := &process{s: &Server{Name: "x"}, in: newQueue(a), account: a}
		p.line([]byte(`{"jsonrpc":"2.0","id":"p","method":"ping"}`))
		if got := told(p); got != `{"id":"p","jsonrpc":"2.0","result":{}}` {
			t.Errorf("ping: %s", got)
		}
		p.line([]byte(`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`))
		if got := told(p); !strings.Contains(got, "-32601") {
			t.Errorf("a request of a shared server: %s", got)
		}
		client := &session{out: backlog(a)}
		p = &process{s: &Server{Name: "x"}, in: newQueue(a), account: a, single: true, unasked: client.unasked,
			pending: map[int64]*exchange{}, asked: map[string]time.Time{}}
		m, _ := parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`))
		if _, err := p.ask(m, &exchange{plain: true}); err != nil {
			t.Fatal(err)
		}
		told(p)
		p.line([]byte(`{"jsonrpc":"2.0","id":2,"method":"roots/list"}`))
		if got := told(p); !strings.Contains(got, "no stream of events") || len(p.asked) != 0 {
			t.Errorf("a client that accepts JSON only: %s, %v", got, p.asked)
		}
		q, stop := client.listen()
		p.line([]byte(`{"jsonrpc":"2.0","id":2,"method":"roots/list"}`))
		if b, _ := q.pop(); !strings.Contains(string(b), "roots/list") || told(p) != "" {
			t.Errorf("its open stream gets %s", b)
		}
		for i := range maxPending + 1 {
			p.line(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"roots/list"}`, i))
			q.pop()
		}
		if got := told(p); !strings.Contains(got, "too many") || len(p.asked) != maxPending {
			t.Errorf("%d requests: the next one gets %s", len(p.asked), got)
		}
		time.Sleep(askedAge + time.Second)
		p.line([]byte(`{"jsonrpc":"2.0","id":"new","method":"roots/list"}`))
		if got := told(p); got != "" || len(p.asked) != 1 {
			t.Errorf("much later: %s, %d in progress", got, len(p.asked))
		}
		stop()
	})
}

// Of the memory that is booked for a body of unknown size a call keeps what the body needs.
func TestBodyBooking(t *testing.T) {
	var g *Gateway
	var during int64
	g = New(Options{Servers: []Server{{Name: "x"}}, Caller: func(*http.Request) (Caller, error) {
		return Caller{Tenant: "a", Client: func() (*client.Client, error) {
			during = g.bodies.Held()
			return nil, errors.New("no API")
		}}, nil
	}})
	defer g.Close()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	r := httptest.NewRequest("POST", "/x", io.NopCloser(strings.NewReader(body)))
	r.ContentLength = -1
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Mcp-Protocol-Version", statelessSince)
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	if !strings.Contains(w.Body.String(), "no API") || during != int64(len(body)) || g.bodies.Held() != 0 {
		t.Errorf("%d bytes booked during the call, %d after it: %s", during, g.bodies.Held(), w.Body)
	}
}

// A response is JSON if it is all there is, and events otherwise.
func TestStream(t *testing.T) {
	for _, c := range []struct {
		accept   string
		messages []string
		want     string
	}{
		{"application/json, text/event-stream", []string{`{"r":1}`}, `{"r":1}`},
		{"application/json, text/event-stream", []string{`{"n":1}`, `{"r":1}`}, "event: message\ndata: {\"n\":1}\n\nevent: message\ndata: {\"r\":1}\n\n"},
		{"application/json", []string{`{"n":1}`, `{"r":1}`}, `{"r":1}`},
		{"", nil, ""},
	} {
		r := httptest.NewRequest("POST", "/", nil)
		if c.accept != "" {
			r.Header.Set("Accept", c.accept)
		}
		w := httptest.NewRecorder()
		q := newQueue(held())
		for i, m := range c.messages {
			q.put([]byte(m), i == len(c.messages)-1, true)
		}
		q.end(nil)
		newStream(w, r).copy(t.Context(), q)
		if w.Body.String() != c.want || len(c.messages) == 0 && w.Code != 202 {
			t.Errorf("%s %q: %d %q", c.accept, c.messages, w.Code, w.Body)
		}
	}
}
