package session

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"golang.org/x/time/rate"
)

// network asks for a network.
var network = policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Network: ptr(true)}}}

// openNet is a bench whose sessions with a network reach a server on this host, whose host:port it
// returns.
func openNet(t testing.TB) (*bench, string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://")
	b := newBench(t)
	allow := []string{at}
	b.policy.Profiles = map[string]policy.ProfileConfig{"default": {NetworkRules: policy.NetworkConfig{Allow: &allow, Public: ptr(false)}}}
	b.start()
	return b, at
}

// fetch asks the proxy of a box for http://at/ and returns the status, and the error of connecting.
func (b *bench) fetch(box, at string) (int, error) {
	b.t.Helper()
	c, err := b.host.Box(box).Connect(ctx, egress.Addresses()[0])
	if err != nil {
		return 0, err
	}
	defer c.Close()
	fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: %[1]s\r\nConnection: close\r\n\r\n", at)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// reaches checks whether a box has a network.
func (b *bench) reaches(box, at string, want bool) {
	b.t.Helper()
	status, err := b.fetch(box, at)
	if (status == http.StatusOK && err == nil) != want || !want && status != 0 {
		b.t.Errorf("status %d, %v; want a network: %t", status, err, want)
	}
}

// TestNetworkOpens: the proxy is there before the first command, leads where the profile says, and
// ends with the box.
func TestNetworkOpens(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, network)
	b.reaches(v.Box, at, true)
	if status, err := b.fetch(v.Box, "elsewhere.example:80"); status != http.StatusForbidden {
		t.Errorf("elsewhere: %d, %v", status, err)
	}
	b.exec(keyA, "true")
	if env := b.host.Box(v.Box).Last().Env; !slices.Contains(env, "https_proxy=http://127.0.0.1:3128") || !slices.Contains(env, "NO_PROXY=localhost,.localhost,127.0.0.1,::1,0.0.0.0,box") {
		t.Errorf("environment %q", env)
	}
	none := b.ensure(keyB, policy.Request{})
	b.exec(keyB, "true")
	if env := b.host.Box(none.Box).Last().Env; slices.ContainsFunc(env, isProxyVariable) {
		t.Errorf("without a network: %q", env)
	}
	if _, err := b.fetch(none.Box, at); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without a network: %v", err)
	}
	box := b.host.Box(v.Box)
	must(t, b.Remove(ctx, me, keyA))
	if c, err := box.Connect(ctx, egress.Addresses()[0]); err == nil {
		c.Close()
		t.Error("the proxy outlives its box")
	}
}

// TestNetworkEnvironment: variables of session and command win, those of an image do not.
func TestNetworkEnvironment(t *testing.T) {
	g := ground{Resolved: policy.Resolved{Settings: spec.Settings{Network: true}, Env: []string{"NO_PROXY=session"}}, image: &sessionImage{}}
	g.image.Env = []string{"HTTP_PROXY=image", "PATH=/bin"}
	got := g.environ([]string{"https_proxy=own"})
	for _, want := range []string{"HTTP_PROXY=http://127.0.0.1:3128", "NO_PROXY=session", "http_proxy=http://127.0.0.1:3128", "https_proxy=own", "PATH=/bin"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if slices.ContainsFunc(got, func(kv string) bool {
		return strings.HasPrefix(kv, "no_proxy=") || strings.HasPrefix(kv, "HTTPS_PROXY=")
	}) {
		t.Errorf("the other case of what is set: %q", got)
	}
	names := map[string]bool{}
	for _, kv := range got {
		name, _, _ := strings.Cut(kv, "=")
		if names[name] {
			t.Errorf("%s is twice in %q", name, got)
		}
		names[name] = true
	}
}

// TestNetworkEnds: each way to lose it for good ends it before the answer, and no later manager or
// box has it again.
func TestNetworkEnds(t *testing.T) {
	for name, off := range map[string]func(b *bench) error{
		"given up": func(b *bench) error {
			return second(b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Network: ptr(false)}}))
		},
		"sensitive": func(b *bench) error {
			return second(b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Sensitive: ptr(true)}}))
		},
		"copied to": func(b *bench) error {
			b.ensure(keyB, sensitive(true))
			done, err := b.Copying(me, keyB, keyA)
			if err == nil {
				done()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, at := openNet(t)
			v := b.ensure(keyA, network)
			b.reaches(v.Box, at, true)
			kept, err := b.host.Box(v.Box).Connect(ctx, egress.Addresses()[1])
			must(t, err)
			defer kept.Close()
			must(t, off(b))
			b.reaches(v.Box, at, false)
			if _, err := io.ReadAll(kept); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a connection from before: %v", err)
			}
			b.restart()
			b.reaches(v.Box, at, false)
			b.host.Kill(v.Box)
			b.reaches(b.ensure(keyA, policy.Request{}).Box, at, false)
		})
	}
}

// TestNetworkComesBack: a box that lives on without its manager has no network until the next one
// takes it over, and a box that dies takes its network with it.
func TestNetworkComesBack(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, network)
	b.crash()
	b.reaches(v.Box, at, false)
	b.start()
	b.reaches(v.Box, at, true)
	b.host.Kill(v.Box)
	b.eventually("the session knows that its box is lost", func() bool { return b.get(keyA).State == Failed })
	b.reaches(v.Box, at, false)
	b.reaches(b.ensure(keyA, policy.Request{}).Box, at, true)
	// A profile that has none any more: neither does the box.
	b.Close(ctx, false)
	box := b.get(keyA).Box
	b.policy.Profiles["default"] = policy.ProfileConfig{AllowNetwork: ptr(false)}
	b.start()
	b.reaches(box, at, false)
}

// TestNetworkFails: a session whose network cannot be opened is not created. One that was taken
// over goes on without, until its network can be opened again.
func TestNetworkFails(t *testing.T) {
	b, at := openNet(t)
	gone := errors.New("the launcher is gone")
	var mu sync.Mutex
	fails := map[string]bool{"listen": true}
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		if fails[op] {
			return gone
		}
		return nil
	})
	set := func(op string, on bool) {
		mu.Lock()
		defer mu.Unlock()
		fails[op] = on
	}
	for _, op := range []string{"listen", "listening"} {
		set("listen", false)
		set(op, true)
		if _, err := b.Ensure(ctx, me, keyA, network); !errors.Is(err, gone) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", op, err)
		}
		if _, err := b.Get(keyA); !errors.Is(err, ErrNotFound) || len(b.host.IDs()) > 0 {
			t.Errorf("%s: %v, boxes %q", op, err, b.host.IDs())
		}
		set(op, false)
	}
	v := b.ensure(keyA, network)
	set("listen", true)
	b.restart()
	b.exec(keyA, "true")
	b.reaches(v.Box, at, false)
	set("listen", false)
	b.eventually("the network is open again", func() bool {
		status, err := b.fetch(v.Box, at)
		return status == http.StatusOK && err == nil
	})
}

// TestNetworkRace: a session that becomes sensitive while its network is being opened has none.
func TestNetworkRace(t *testing.T) {
	b, at := openNet(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "listening" {
			close(entered)
			<-leave
		}
		return nil
	})
	created := make(chan View)
	go func() {
		v, _ := b.Ensure(ctx, me, keyA, network)
		created <- v
	}()
	<-entered
	s, err := b.find(keyA)
	must(t, err)
	must(t, b.ratchet(me, func(r *ratchet) { r.session(s, "now") }))
	close(leave)
	v := <-created
	b.reaches(v.Box, at, false)
}

// TestNetworkRules: a session narrows what its profile allows, when it is created and live, and a
// live change ends what it forbids. A new manager follows the profile.
func TestNetworkRules(t *testing.T) {
	b, at := openNet(t)
	narrow := func(allow, deny string) *spec.NetworkRules {
		n := &spec.NetworkRules{}
		if allow != "" {
			n.Allow = []string{allow}
		}
		if deny != "" {
			n.Deny = []string{deny}
		}
		return n
	}
	r := network
	r.NetworkRules = narrow("other.example", "")
	v := b.ensure(keyA, r)
	forbidden := func(now string) {
		t.Helper()
		if status, err := b.fetch(v.Box, at); status != http.StatusForbidden {
			t.Errorf("%s: %d, %v", now, status, err)
		}
	}
	forbidden("created with another name")
	change := func(n *spec.NetworkRules) {
		t.Helper()
		must(t, second(b.Update(ctx, me, keyA, spec.Update{NetworkRules: n})))
	}
	change(narrow("", ""))
	b.reaches(v.Box, at, true)
	kept, err := b.host.Box(v.Box).Connect(ctx, egress.Addresses()[0])
	must(t, err)
	defer kept.Close()
	fmt.Fprintf(kept, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", at)
	if _, err := io.ReadFull(kept, make([]byte, len("HTTP/1.1 200"))); err != nil {
		t.Fatal(err)
	}
	change(narrow("", at))
	forbidden("denied")
	if _, err := io.Copy(io.Discard, kept); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection from before: %v", err)
	}
	b.restart()
	forbidden("denied, after a restart")
	if got := b.get(keyA).Resolved.NetworkRules; !got.Equal(narrow("", at)) {
		t.Errorf("rules %+v", got)
	}
	change(narrow(at, ""))
	b.reaches(v.Box, at, true)
	b.Close(ctx, false)
	none := []string{}
	b.policy.Profiles["default"] = policy.ProfileConfig{NetworkRules: policy.NetworkConfig{Allow: &none, Public: ptr(false)}}
	b.start()
	forbidden("by its profile")

	for _, bad := range []spec.Update{{NetworkRules: narrow("*", "")}, {NetworkRules: narrow("", "x y")}, {NetworkRules: narrow(at, ""), LiveWishes: spec.LiveWishes{Network: ptr(false)}}} {
		if _, err := b.Update(ctx, me, keyA, bad); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "network_rules") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := b.Ensure(ctx, me, keyB, policy.Request{Wishes: spec.Wishes{NetworkRules: narrow(at, "")}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("rules without a network: %v", err)
	}
	r.NetworkRules = narrow("third.example", "")
	if _, err := b.Ensure(ctx, me, keyA, r); !errors.Is(err, ErrConflict) {
		t.Errorf("other rules: %v", err)
	}
}

// TestNetworkSeen: each connection is an event, a line of the audit log and a figure, and what was
// refused during a command is in its result.
func TestNetworkSeen(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, network)
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	b.reaches(v.Box, at, true)
	res, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}, Started: func(engine.Process) {
		for range 3 {
			if status, err := b.fetch(v.Box, "bad.example:80"); status != http.StatusForbidden {
				t.Errorf("%d, %v", status, err)
			}
		}
	}})
	if err != nil || len(res.Denied) != 1 || res.Denied[0] != (Denial{Kind: "network", What: "bad.example:80", Rule: "default", Count: 3}) {
		t.Errorf("denied %+v, %v", res.Denied, err)
	}
	if res := b.exec(keyA, "true"); len(res.Denied) != 0 {
		t.Errorf("later: %+v", res.Denied)
	}
	var seen []string
	for e := range sub.C {
		if e.Type == EventConnection {
			seen = append(seen, fmt.Sprintf("%v:%v %v %t", cmp.Or(e.Details["name"], e.Details["address"]), e.Details["port"], e.Details["state"], e.Box == v.Box))
		}
		if len(seen) == 5 {
			break
		}
	}
	if slices.Index(seen, at+" open true") != 0 || !slices.Contains(seen, at+" ended true") || !slices.Contains(seen, "bad.example:80 denied true") {
		t.Errorf("events %q", seen)
	}
	b.eventually("all is in the audit log", func() bool {
		return b.audit.count("connect", audit.Allow) == 1 && b.audit.count("connect", audit.Done) == 1 && b.audit.count("connect", audit.Deny) == 3
	})
	n, err := b.Network(keyA)
	if err != nil || !n.On || len(n.Live) != 0 || len(n.Recent) != 4 || n.Recent[0].Name != "bad.example" && n.Recent[1].Name != "bad.example" || len(n.Denied) != 1 { // the allowed one may end last
		t.Errorf("%+v, %v", n, err)
	}
	if st := b.Stats().Network; st.Allowed != 1 || st.Denied != 3 || st.In == 0 || st.Open != 0 {
		t.Errorf("%+v", st)
	}
	must(t, second(b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Network: ptr(false)}})))
	if n, err := b.Network(keyA); err != nil || n.On || len(n.Recent) != 4 {
		t.Errorf("off: %+v, %v", n, err)
	}
}

// TestNetworkLines: the lines of the audit log and the events about connections have name, address, port,
// bytes, verdict and rule.
func TestNetworkLines(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, network)
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	b.reaches(v.Box, at, true)
	if status, err := b.fetch(v.Box, "bad.example:8080"); status != http.StatusForbidden {
		t.Errorf("%d, %v", status, err)
	}
	reached := netip.MustParseAddrPort(at)
	address := reached.Addr().String()
	rule := fmt.Sprintf("allow %q", at)
	want := map[string]map[string]any{ // by state
		"open":   {"address": address, "port": reached.Port(), "protocol": "http", "allowed": true, "rule": rule},
		"ended":  {"address": address, "port": reached.Port(), "protocol": "http", "allowed": true, "rule": rule},
		"denied": {"name": "bad.example", "port": uint16(8080), "protocol": "http", "allowed": false, "rule": "default", "in": int64(0), "out": int64(0)},
	}
	decisions := map[string]string{"open": audit.Allow, "ended": audit.Done, "denied": audit.Deny}
	check := func(where string, got map[string]any) {
		t.Helper()
		state, _ := got["state"].(string)
		for k, value := range want[state] {
			if got[k] != value {
				t.Errorf("%s, %s: %s is %#v, want %#v", where, state, k, got[k], value)
			}
		}
		if state != "ended" {
			return
		}
		in, _ := got["in"].(int64)
		out, _ := got["out"].(int64)
		if in == 0 || out == 0 {
			t.Errorf("%s: %v bytes in, %v out", where, got["in"], got["out"])
		}
	}
	states := map[any]bool{}
	for e := range sub.C {
		if e.Type != EventConnection {
			continue
		}
		check("event", e.Details)
		if states[e.Details["state"]] = true; len(states) == len(want) {
			break
		}
	}
	b.audit.mu.Lock()
	defer b.audit.mu.Unlock()
	lines := map[any]bool{}
	for _, e := range b.audit.list {
		if e.Action != "connect" {
			continue
		}
		state, _ := e.Details["state"].(string)
		lines[state] = true
		check("audit log", e.Details)
		if e.Decision != decisions[state] || e.Box != v.Box || e.Session != keyA.ID || e.Tenant != keyA.Tenant {
			t.Errorf("%s: %+v", state, e)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("the audit log has %v", lines)
	}
}

// TestNetworkSeenLive: a connection is in the audit log, an event and a figure while it is open.
func TestNetworkSeenLive(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, network)
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	c, err := b.host.Box(v.Box).Connect(ctx, egress.Addresses()[0])
	must(t, err)
	defer c.Close()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", at)
	if _, err := io.ReadFull(c, make([]byte, len("HTTP/1.1 200"))); err != nil {
		t.Fatal(err)
	}
	for e := range sub.C {
		if e.Type == EventConnection {
			if e.Details["state"] != "open" || e.Details["connection"] == 0 {
				t.Errorf("event %v", e.Details)
			}
			break
		}
	}
	if b.audit.count("connect", audit.Allow) != 1 || b.audit.count("connect", audit.Done) != 0 || b.Stats().Network.Open != 1 {
		t.Errorf("audit log %+v, %+v", b.audit.list, b.Stats().Network)
	}
	must(t, second(b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Network: ptr(false)}})))
	b.eventually("its end is in the audit log", func() bool { return b.audit.count("connect", audit.Done) == 1 })
	if open := b.Stats().Network.Open; open != 0 {
		t.Errorf("%d open", open)
	}
}

// TestNetworkUnlogged: a connection that cannot be logged is not made, and the caller learns of it.
func TestNetworkUnlogged(t *testing.T) {
	var reached atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer server.Close()
	b, _ := openNet(t)
	b.Close(ctx, false)
	at := strings.TrimPrefix(server.URL, "http://")
	b.policy.Profiles = map[string]policy.ProfileConfig{"default": {NetworkRules: policy.NetworkConfig{Allow: &[]string{at}, Public: ptr(false)}}}
	b.start()
	v := b.ensure(keyA, network)
	full := func(err error) {
		b.audit.mu.Lock()
		defer b.audit.mu.Unlock()
		b.audit.err = err
	}
	full(errors.New("disk full"))
	if status, err := b.fetch(v.Box, at); status != http.StatusServiceUnavailable || err != nil || reached.Load() != 0 {
		t.Errorf("%d, %v, %d requests", status, err, reached.Load())
	}
	n, err := b.Network(keyA)
	if want := (Denial{Kind: "network", What: at, Rule: "audit log", Count: 1}); err != nil || len(n.Denied) != 1 || n.Denied[0] != want || b.Stats().Network.Open != 0 {
		t.Errorf("%+v, %v, %+v", n, err, b.Stats().Network)
	}
	full(nil)
	b.reaches(v.Box, at, true)
}

// TestNetworkProcess: what was refused while a process ran is in its view and in the event of its end.
func TestNetworkProcess(t *testing.T) {
	b, _ := openNet(t)
	v := b.ensure(keyA, network)
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	refuse := func(name string) {
		t.Helper()
		if status, err := b.fetch(v.Box, name+":80"); status != http.StatusForbidden {
			t.Errorf("%d, %v", status, err)
		}
	}
	refuse("before.example")
	_, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"true"}})
	must(t, err)
	refuse("during.example")
	p, err := b.Process(keyA, "p")
	must(t, err)
	want := []Denial{{Kind: "network", What: "during.example:80", Rule: "default", Count: 1}}
	if got := p.View().Denied; !slices.Equal(got, want) {
		t.Errorf("while it runs: %+v", got)
	}
	must(t, p.Stop(ctx, me, StopOptions{}))
	<-p.Done()
	refuse("after.example")
	for e := range sub.C {
		if e.Process == "p" && e.Details["state"] != nil {
			if got := e.Details["denied"]; !reflect.DeepEqual(got, want) {
				t.Errorf("event: %+v", got)
			}
			break
		}
	}
	b.restart()
	if p, err = b.Process(keyA, "p"); err != nil || !slices.Equal(p.View().Denied, want) {
		t.Errorf("afterwards: %+v, %v", p.View().Denied, err)
	}
}

// thin lets n refused connections of the box of key become lines, and all others be counted.
func (b *bench) thin(key Key, n int) {
	s := b.session(key)
	s.mu.Lock()
	seen := s.seen
	s.mu.Unlock()
	seen.mu.Lock()
	seen.refused.limit = rate.NewLimiter(0, n)
	seen.mu.Unlock()
}

// told returns how many refused connections are lines of the audit log, and how many such lines count.
func (b *bench) told() (lines, counted int) {
	b.audit.mu.Lock()
	defer b.audit.mu.Unlock()
	for _, e := range b.audit.list {
		if e.Action == "connect" && e.Decision == audit.Deny {
			if e.Details["name"] != nil {
				lines++
			}
			n, _ := e.Details["unreported"].(int)
			counted += n
		}
	}
	return lines, counted
}

// TestNetworkPush: refused connections do not push allowed ones out of the audit log.
func TestNetworkPush(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, network)
	b.thin(keyA, 20)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				if _, err := b.fetch(v.Box, "bad.example:80"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	const allowed = 50
	for range allowed {
		b.reaches(v.Box, at, true)
	}
	wg.Wait()
	must(t, b.Remove(ctx, me, keyA))
	b.Close(ctx, false)
	if opened, ended := b.audit.count("connect", audit.Allow), b.audit.count("connect", audit.Done); opened != allowed || ended != allowed {
		t.Errorf("%d opened and %d ended are in the audit log, of %d", opened, ended, allowed)
	}
	if lines, counted := b.told(); lines != 20 || counted != 60 {
		t.Errorf("of 80 refused connections %d are lines and %d are counted", lines, counted)
	}
}

// TestNetworkFlood: a box that asks without end fills neither the audit log nor memory.
func TestNetworkFlood(t *testing.T) {
	b, _ := openNet(t)
	v := b.ensure(keyA, network)
	const asks = networkRecent + 20
	b.thin(keyA, 20)
	for range asks {
		if _, err := b.fetch(v.Box, "bad.example:80"); err != nil {
			t.Fatal(err)
		}
	}
	n, err := b.Network(keyA)
	if err != nil || len(n.Recent) != networkRecent || n.Denied[0].Count != asks {
		t.Errorf("%d, %+v, %v", len(n.Recent), n.Denied, err)
	}
	must(t, b.Remove(ctx, me, keyA))
	b.Close(ctx, false)
	if lines := b.audit.count("connect", audit.Deny); lines != 20+1 {
		t.Errorf("%d lines", lines)
	}
}

// TestNetworkFloodOfTenant: all boxes of a tenant together fill the audit log no faster than one may, and
// those of another tenant are not affected.
func TestNetworkFloodOfTenant(t *testing.T) {
	b, at := openNet(t)
	b.lines.mu.Lock()
	b.lines.tenants = map[string]tenantLimits{keyA.Tenant: {rate.NewLimiter(0, 4*linesPerAllowed), rate.NewLimiter(0, 5)}}
	b.lines.mu.Unlock()
	other := Key{"elsewhere", "x"}
	var boxes []string
	for _, key := range []Key{keyA, keyB, other} {
		boxes = append(boxes, b.ensure(key, network).Box)
	}
	for range 4 {
		for _, box := range boxes {
			if status, err := b.fetch(box, "bad.example:80"); status != http.StatusForbidden {
				t.Errorf("%d, %v", status, err)
			}
		}
	}
	if lines, _ := b.told(); lines != 5+4 {
		t.Errorf("%d refused connections are lines, want 5 of one tenant and 4 of the other", lines)
	}
	for range 2 {
		for _, box := range boxes {
			b.reaches(box, at, true)
		}
	}
	patience, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	for _, key := range []Key{keyA, keyB} { // the limit of this test is never full again
		s := b.session(key)
		if err := s.seen.admit(patience, egress.Connection{}); err == nil || !strings.Contains(err.Error(), "deadline") {
			t.Errorf("one too many: %v", err)
		}
	}
	b.reaches(boxes[2], at, true)
	b.Close(ctx, true)
	if lines, counted := b.told(); lines != 5+4 || counted != 3 {
		t.Errorf("%d are lines and %d are counted", lines, counted)
	}
}

// TestNetworkSums: a box whose tenant has used up its lines goes on to reach, without waiting, what the audit
// log has; the log says how often, and how many bytes. Another destination waits for a line of its own.
func TestNetworkSums(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, network)
	b.reaches(v.Box, at, true)
	b.lines.mu.Lock()
	used := rate.NewLimiter(0, linesPerAllowed)
	used.AllowN(time.Now(), linesPerAllowed)
	b.lines.tenants = map[string]tenantLimits{keyA.Tenant: {used, rate.NewLimiter(0, 5)}}
	b.lines.mu.Unlock()
	const summed = 700 // above what a box may connect at once before: a crawler
	for range summed {
		b.reaches(v.Box, at, true)
	}
	patience, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	if err := b.session(keyA).seen.admit(patience, egress.Connection{Name: "new.example", Port: 80}); err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("a destination that the log does not have: %v", err)
	}
	must(t, b.Remove(ctx, me, keyA))
	b.Close(ctx, false)
	if opened, done := b.audit.count("connect", audit.Allow), b.audit.count("connect", audit.Done); opened != 1 || done != 2 {
		t.Errorf("%d and %d lines, want those of one connection and a sum", opened, done)
	}
	b.audit.mu.Lock()
	defer b.audit.mu.Unlock()
	for _, e := range b.audit.list {
		if e.Details["state"] == "sum" {
			if d := e.Details; d["opened"] != int64(summed) || d["ended"] != int64(summed) || d["failed"] != int64(0) || d["in"].(int64) < summed || d["port"] == 0 || e.Box != v.Box {
				t.Errorf("%+v", e)
			}
		}
	}
}

// TestTenantLines: a tenant waits for its own lines only, and the limits of one that is quiet are dropped.
func TestTenantLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all tenantLines
		for range tenantBurst / linesPerAllowed {
			must(t, all.of("a").allowed.WaitN(ctx, linesPerAllowed))
		}
		if all.of("a").allowed.Allow() || !all.of("a").refused.Allow() || !all.of("b").allowed.Allow() {
			t.Error("the limits are not those of each tenant and kind")
		}
		time.Sleep(2 * time.Second)
		all.of("c")
		if _, ok := all.tenants["a"]; !ok || len(all.tenants) != 2 {
			t.Errorf("after 2 s: %v", all.tenants)
		}
		if got := all.of("a").allowed.Tokens(); got != 2*tenantRate {
			t.Errorf("%g lines after 2 s", got)
		}
		time.Sleep(tenantBurst / tenantRate * time.Second)
		all.of("d")
		if len(all.tenants) != 1 {
			t.Errorf("after a pause: %v", all.tenants)
		}
	})
}

// TestNetworkKeepsAddresses: which private address a name leads to, and which resolver failed, is in the
// audit log, and neither in events nor in the view of the session.
func TestNetworkKeepsAddresses(t *testing.T) {
	const secret = "10.98.76.54"
	b := newBench(t)
	b.alter = func(o *Options) {
		o.Egress.Resolve = func(_ context.Context, name string) ([]netip.Addr, error) {
			if name == "broken.example." {
				return nil, &net.DNSError{Err: "server misbehaving", Name: name, Server: secret + ":53"}
			}
			return []netip.Addr{netip.MustParseAddr(secret)}, nil
		}
	}
	b.start()
	v := b.ensure(keyA, network)
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	if status, err := b.fetch(v.Box, "db.corp.example"); status != http.StatusForbidden {
		t.Errorf("%d, %v", status, err)
	}
	if status, err := b.fetch(v.Box, "broken.example"); status != http.StatusBadGateway {
		t.Errorf("%d, %v", status, err)
	}
	var reasons []string
	for e := range sub.C {
		if e.Type == EventConnection && e.Details["state"] != "open" {
			reasons = append(reasons, fmt.Sprint(e.Details["reason"]))
			if text := fmt.Sprint(e); strings.Contains(text, secret) {
				t.Errorf("event: %s", text)
			}
			if len(reasons) == 2 {
				break
			}
		}
	}
	slices.Sort(reasons)
	if want := []string{"it leads to an address that is not public", "the name cannot be resolved"}; !slices.Equal(reasons, want) {
		t.Errorf("reasons %q, want %q", reasons, want)
	}
	b.eventually("both are in the audit log", func() bool {
		b.audit.mu.Lock()
		defer b.audit.mu.Unlock()
		return slices.ContainsFunc(b.audit.list, func(e audit.Entry) bool { return e.Details["leads_to"] == secret }) &&
			slices.ContainsFunc(b.audit.list, func(e audit.Entry) bool {
				return strings.Contains(fmt.Sprint(e.Details["error"]), secret+":53")
			})
	})
	n, err := b.Network(keyA)
	if err != nil || len(n.Recent) != 2 {
		t.Fatalf("%+v, %v", n, err)
	}
	if shown, err := json.Marshal(n.Recent); err != nil || strings.Contains(string(shown), secret) {
		t.Errorf("%s, %v", shown, err)
	}
}
