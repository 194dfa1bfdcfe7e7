package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/relay"
)

// fakeAPI answers requests of the API, "METHOD /path", by answer, and records them.
type fakeAPI struct {
	mu     sync.Mutex
	asked  []string
	answer func(request string) (status int, body string)
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/v1/sessions")
	f.mu.Lock()
	f.asked = append(f.asked, request)
	f.mu.Unlock()
	status, body := f.answer(request)
	w.WriteHeader(status)
	fmt.Fprint(w, body)
}

// requests returns what was asked since the last call.
func (f *fakeAPI) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

func (f *fakeAPI) caller(t *testing.T) Caller {
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return Caller{Tenant: "a", Client: func() (*client.Client, error) { return client.New(client.Options{URL: s.URL}) }}
}

const notThere = `{"code":"process_not_found","status":404,"detail":"no such process"}`

// A process whose start or whose connection fails is removed, and those that a killed gateway has left are, once.
func TestNothingIsLeft(t *testing.T) {
	startFails := true
	f := &fakeAPI{answer: func(request string) (int, string) {
		switch {
		case request == "GET /mcp-x/processes":
			return 200, `{"processes":[{"id":"mcp-old"},{"id":"mcp-older"}]}`
		case request == "POST /mcp-x/processes" && startFails:
			return 502, "a proxy lost the answer"
		case strings.HasPrefix(request, "POST "):
			return 200, "{}"
		}
		return 404, notThere
	}}
	g := New(Options{})
	defer g.Close()
	s := Server{Name: "x", Mode: ModeRequest}.WithDefaults()
	who := f.caller(t)
	once := func() []string {
		if err := g.once(t.Context(), &s, who, nil); err == nil {
			t.Error("a process that does not run is used")
		}
		return f.requests()
	}
	forget := func() { clear(g.starts) } // instead of waiting
	first := once()
	forget()
	if len(first) < 3 || !slices.Equal(first[:3], []string{"GET /mcp-x/processes", "DELETE /mcp-x/processes/mcp-old", "DELETE /mcp-x/processes/mcp-older"}) {
		t.Errorf("the first request asks for %q", first)
	}
	second := once()
	forget()
	startFails = false
	for _, asked := range [][]string{first, second, once()} {
		if last := asked[len(asked)-1]; !strings.HasPrefix(last, "DELETE /mcp-x/processes/mcp-") || strings.Contains(last, "old") {
			t.Errorf("the last of %q removes no process", asked)
		}
	}
	if slices.ContainsFunc(second, func(r string) bool { return strings.Contains(r, "old") }) {
		t.Errorf("the second request asks for %q", second)
	}
}

// What a killed gateway has left ends: at once if nobody can come back to it, else when nobody has within the idle time. What this
// gateway has started stays.
func TestEndLeft(t *testing.T) {
	boxes := map[string]string{"mcp-each": "mcp-1", "mcp-gone": "mcp", "mcp-one": "mcp", "mcp-used": "mcp", "mcp-own-lost": "mcp", "mcp-own-kept": "mcp"}
	f := &fakeAPI{answer: func(request string) (int, string) {
		if request == "GET " {
			var list []string
			for box := range boxes {
				list = append(list, fmt.Sprintf(`{"id":%q,"tenant":"a"}`, box))
			}
			return 200, `{"sessions":[` + strings.Join(list, ",") + `]}`
		}
		box, rest, _ := strings.Cut(strings.TrimPrefix(request, "GET /"), "/")
		if rest != "processes" {
			return 200, "{}"
		}
		server, owner, _ := strings.Cut(strings.TrimPrefix(box, "mcp-"), "-")
		labels := fmt.Sprintf(`"labels":{%q:%q,%q:%q}`, labelServer, server, labelOwner, owner)
		return 200, fmt.Sprintf(`{"processes":[{"id":%q,"started_at":"2000-01-01T00:00:00Z",%s},{"id":"mcp-mine","started_at":"2100-01-01T00:00:00Z",%s}]}`, boxes[box], labels, labels)
	}}
	const idle = 3 * time.Second // in which the two that end at once are asked for, also on a slow machine
	g := New(Options{Servers: []Server{{Name: "each", Mode: ModeRequest, Idle: time.Hour}, {Name: "one", Idle: idle}, {Name: "used", Idle: idle}, {Name: "own", Mode: ModeSession, Idle: idle}}})
	who := f.caller(t)
	used := g.sharedHost(g.servers["used"], "a")
	used.p = &process{}
	g.mu.Lock()
	g.sessions["kept"] = &session{s: g.servers["own"], active: 1}
	g.mu.Unlock()
	began := time.Now()
	g.EndLeft(func(string) Caller { return who })
	got := map[string]time.Duration{}
	for time.Since(began) < testutil.Patience() && len(got) < 4 {
		for _, request := range f.requests() {
			if strings.HasPrefix(request, "DELETE ") {
				got[request] = time.Since(began)
			}
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // for what must not happen
	for _, request := range f.requests() {
		if strings.HasPrefix(request, "DELETE ") {
			t.Errorf("also %s", request)
		}
	}
	for request, late := range map[string]bool{"DELETE /mcp-each/processes/mcp-1": false, "DELETE /mcp-gone/processes/mcp": false, "DELETE /mcp-one/processes/mcp": true, "DELETE /mcp-own-lost": true} {
		if after, ok := got[request]; !ok || (after >= idle) != late {
			t.Errorf("%s after %v (%v)", request, after, ok)
		}
	}
	used.lock <- struct{}{}
	used.p = nil
	<-used.lock
	g.mu.Lock()
	clear(g.sessions)
	g.mu.Unlock()
	g.Close()
}

// A volume that was removed is filled again by the install step.
func TestInstallAgain(t *testing.T) {
	f := &fakeAPI{answer: func(request string) (int, string) {
		if strings.HasPrefix(request, "POST ") {
			return 422, `{"code":"invalid_spec","status":422,"detail":"no such volume","field":"volumes[0].name"}`
		}
		return 404, notThere
	}}
	g := New(Options{})
	defer g.Close()
	s := Server{Name: "x", Install: "true"}.WithDefaults()
	g.installed.Store(installKey("a", &s), true)
	_, err := g.open(t.Context(), &s, f.caller(t), place{box: boxOf(&s, ""), process: processID})
	if failure, ok := err.(*Failure); !ok || failure.Phase != PhaseInstall {
		t.Errorf("%v, %q: want the install step again", err, f.requests())
	}
}

// A process that a killed gateway had written half of a line to gets a line first whose loss does no harm.
func TestAdoptedInput(t *testing.T) {
	in := make(chan string, 10)
	hub := relay.NewHub(relay.Source{Stdin: &stdin{got: in}, Stdout: silent{}, Done: make(chan struct{})}, relay.Options{})
	defer hub.Close()
	s := Server{Name: "x", Mode: ModeSession}.WithDefaults()
	running := fmt.Sprintf(`{"id":"mcp","state":"running","labels":{%q:%q,%q:"o"}}`, labelCommand, s.command(), labelOwner)
	f := &fakeAPI{answer: func(request string) (int, string) { return 200, running }}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/relay") {
			hub.Serve(w, r, relay.Grant{Write: true, TakeOver: true})
			return
		}
		f.ServeHTTP(w, r)
	}))
	defer api.Close()
	g := New(Options{})
	defer g.Close()
	who := Caller{Client: func() (*client.Client, error) { return client.New(client.Options{URL: api.URL}) }}
	p, err := g.open(t.Context(), &s, who, place{box: "mcp-x-1", process: processID, owner: "o", adopt: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.detach()
	if err := p.send(request(nil, "notifications/x", nil)); err != nil {
		t.Fatal(err)
	}
	got := ""
	want := string(request(encode(p.next-1), "ping", nil).encode()) + "\n" + string(request(nil, "notifications/x", nil).encode()) + "\n"
	for got != want {
		select {
		case part := <-in:
			got += part
		case <-time.After(10 * time.Second):
			t.Fatalf("the process got %q, want %q", got, want)
		}
	}
}

// stdin passes on what is written to it.
type stdin struct {
	got chan string
	off atomic.Int64
}

func (s *stdin) Write(_ context.Context, off int64, p []byte) error {
	p = p[min(max(s.off.Load()-off, 0), int64(len(p))):]
	s.off.Add(int64(len(p)))
	s.got <- string(p)
	return nil
}

func (s *stdin) Accepted() int64 { return s.off.Load() }

func (s *stdin) Close(context.Context) error { return nil }

// silent is an output to which nothing is written.
type silent struct{}

func (silent) Bounds() (oldest, end int64) { return 0, 0 }

func (silent) ReadAt(ctx context.Context, _ []byte, off int64) (int, int64, error) {
	<-ctx.Done()
	return 0, off, ctx.Err()
}

func (silent) Release(int64) {}
