package reach

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

const hookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver is a server of webhooks that does not always take them.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	ends     map[string]map[string]bool // IDs of the messages about each end, as "session" or "session/process"
	messages []apitypes.Webhook         // that were taken, each ID once
	log      bytes.Buffer               // of everything that was taken, for verify.mjs
	taken    int
	refused  int
	tried    map[string]int // by ID
	arrived  chan struct{}
}

func newReceiver(t *testing.T, unreliable bool) *receiver {
	r := &receiver{ends: map[string]map[string]bool{}, tried: map[string]int{}, arrived: make(chan struct{}, 1)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the daemon was killed
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		id := req.Header.Get("webhook-id")
		again := r.tried[id] > 0 // then it is taken, so that the test does not take long
		r.tried[id]++
		if unreliable && !again && rand.N(4) == 0 {
			r.refused++
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if unreliable && !again && rand.N(4) == 0 {
			r.refused++
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}
			return
		}
		var m apitypes.Webhook
		if err := json.Unmarshal(body, &m); err != nil {
			t.Errorf("%v: %s", err, body)
			return
		}
		headers := map[string]string{}
		for name := range req.Header {
			headers[strings.ToLower(name)] = req.Header.Get(name)
		}
		line, _ := json.Marshal(map[string]any{"headers": headers, "body": string(body)})
		r.log.Write(append(line, '\n'))
		end := m.Data.Session
		if m.Data.Process != nil {
			end += "/" + m.Data.Process.ID
		}
		if r.ends[end] == nil {
			r.ends[end] = map[string]bool{}
		}
		if !r.ends[end][id] {
			r.messages = append(r.messages, m)
		}
		r.ends[end][id] = true
		r.taken++
		select {
		case r.arrived <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// await waits until there is a message about each of ends.
func (r *receiver) await(t *testing.T, ends ...string) {
	t.Helper()
	deadline := time.After(testutil.Patience())
	for {
		var missing []string
		r.mu.Lock()
		for _, e := range ends {
			if len(r.ends[e]) == 0 {
				missing = append(missing, e)
			}
		}
		r.mu.Unlock()
		if len(missing) == 0 {
			return
		}
		select {
		case <-r.arrived:
		case <-deadline:
			t.Fatalf("nobody told of %q", missing)
		}
	}
}

// verify has the library of Standard Webhooks check all that was taken.
func (r *receiver) verify(t *testing.T) {
	t.Helper()
	node := testutil.RequireProgram(t, "node")
	modules, err := filepath.Abs("node_modules/standardwebhooks/package.json")
	if err != nil {
		t.Fatal(err)
	}
	testutil.RequireFile(t, modules)
	cmd := exec.CommandContext(t.Context(), node, "verify.mjs", hookSecret)
	r.mu.Lock()
	defer r.mu.Unlock()
	cmd.Stdin = &r.log
	if got, want := output(t, cmd), fmt.Sprintln(r.taken); got != want {
		t.Errorf("verified are %q, want %q", got, want)
	}
}

func hooked(t *testing.T, config string) (*daemon.Daemon, *client.Client) {
	testutil.RequireRoot(t)
	dir := testutil.ReachableDir(t, "")
	write(t, dir, map[string]string{"boxd.yaml": config})
	return daemon.ForTest(t, daemon.Config{Dir: dir, Args: []string{"--config", filepath.Join(dir, "boxd.yaml")}, Env: []string{"HOOK_SECRET=" + hookSecret}})
}

// A receiver learns what has ended in the tenants and of the kinds that it asked for, and status and
// metrics say how it goes.
func TestWebhooks(t *testing.T) {
	all, few := newReceiver(t, false), newReceiver(t, false)
	d, c := hooked(t, fmt.Sprintf(`webhooks:
  all: {url: "%s", secret: {env: HOOK_SECRET}}
  few: {url: "%s", secret: {env: HOOK_SECRET}, events: [removed], tenants: [alice]}
  dead: {url: "http://127.0.0.1:1/", secret: {env: HOOK_SECRET}}
`, all.URL, few.URL))
	alice, err := client.New(client.Options{Socket: d.Socket(), Tenant: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	defer alice.Close()
	spec := &apitypes.SessionSpec{Labels: apitypes.Labels{"team": "blue"}}
	if _, err := c.Start(t.Context(), "s", apitypes.ProcessRequest{ID: "p", Argv: []string{"sh", "-c", "exit 3"}, Session: spec}); err != nil {
		t.Fatal(err)
	}
	all.await(t, "s/p")
	m := all.messages[0]
	if p := m.Data.Process; m.Type != "process-exited" || m.Data.Tenant != "default" || m.Data.Labels["team"] != "blue" || p.State != "exited" || *p.ExitCode != 3 ||
		p.Verdict != "exited" || len(p.Argv) != 3 || p.EndedAt == nil || !p.EndedAt.Equal(m.Timestamp) || m.Data.Box == "" {
		t.Errorf("%+v, %+v", m, p)
	}
	for _, one := range []*client.Client{c, alice} {
		if _, err := one.Exec(t.Context(), "r", apitypes.ExecRequest{Argv: []string{"true"}, Session: &apitypes.SessionSpec{}}); err != nil {
			t.Fatal(err)
		}
		if err := one.Remove(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
	}
	few.await(t, "r")
	all.await(t, "r", "s/p")
	few.mu.Lock()
	if m := few.messages[0]; len(few.messages) != 1 || m.Type != "removed" || m.Data.Tenant != "alice" || m.Data.Process != nil || m.Data.Details["reason"] != "removed by request" {
		t.Errorf("%+v", few.messages)
	}
	few.mu.Unlock()
	all.verify(t)

	// A receiver that is dead is in the status, and costs nobody anything.
	var states []apitypes.WebhookState
	for deadline := time.Now().Add(testutil.Patience()); ; {
		s, err := c.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if states = s.Webhooks; len(states) == 3 && states[1].Failed > 0 && states[0].Delivered == 3 || time.Now().After(deadline) {
			break
		}
		time.Sleep(10 * time.Millisecond) // nothing tells of attempts
	}
	if dead := states[1]; dead.Name != "dead" || dead.Pending != 3 || dead.Oldest == nil || !strings.Contains(dead.Error, "connection refused") {
		t.Errorf("%+v", dead)
	}
	if s, err := alice.Status(t.Context()); err != nil || s.Webhooks == nil { // the socket's administrator sees them on every tenant
		t.Errorf("%+v, %v", s.Webhooks, err)
	}
	metrics := output(t, exec.Command("curl", "-s", "--unix-socket", d.Socket(), "http://boxd/metrics"))
	for _, line := range []string{`boxd_webhook_delivered_total{webhook="all"} 3`, `boxd_webhook_pending{webhook="dead"} 3`, `boxd_webhook_dropped_total{webhook="few"} 0`} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("no metric %s", line)
		}
	}
}

// The daemon is killed at random moments while processes and sessions end, and the receiver does not always take
// messages: each end arrives, with one ID.
func TestWebhooksSurviveKill(t *testing.T) {
	rounds := 3
	if testutil.Full() {
		rounds = 100
	}
	r := newReceiver(t, true)
	d, c := hooked(t, fmt.Sprintf("webhooks: {r: {url: %q, secret: {env: HOOK_SECRET}, rate: 1000}}\n", r.URL))
	var ends []string
	for round := range rounds {
		s := fmt.Sprintf("s%d", round)
		for i := range 4 {
			id := fmt.Sprintf("p%d", i)
			script := fmt.Sprintf("sleep 0.%02d; exit %d", rand.N(20), i)
			if _, err := c.Start(t.Context(), s, apitypes.ProcessRequest{ID: id, Argv: []string{"sh", "-c", script}, Session: &apitypes.SessionSpec{}}); err != nil {
				t.Fatal(err)
			}
			ends = append(ends, s+"/"+id)
		}
		var removing sync.WaitGroup
		if round%2 == 1 {
			removing.Go(func() { _ = c.Remove(t.Context(), s) }) // the daemon dies meanwhile
		}
		time.Sleep(rand.N(150 * time.Millisecond)) // at a random moment
		if err := d.Kill(); err != nil {
			t.Fatal(err)
		}
		removing.Wait()
		if err := d.Start(); err != nil {
			t.Fatal(err)
		}
	}
	r.await(t, ends...)
	for round := range rounds {
		s := fmt.Sprintf("s%d", round)
		refusal, _ := errors.AsType[*client.Error](c.Remove(t.Context(), s))
		if refusal != nil && refusal.Code != apitypes.CodeSessionNotFound {
			t.Error(refusal)
		}
		ends = append(ends, s)
	}
	r.await(t, ends...)
	r.mu.Lock()
	for end, ids := range r.ends {
		if len(ids) != 1 {
			t.Errorf("%s was told with %d IDs", end, len(ids))
		}
	}
	if len(r.ends) != len(ends) {
		t.Errorf("%d ends were told, there were %d", len(r.ends), len(ends))
	}
	t.Logf("%d ends, %d messages taken, %d refused", len(ends), r.taken, r.refused)
	r.mu.Unlock()
	r.verify(t)
}
