package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// turn changes the network of session keyA.
func (b *bench) turn(on bool) error {
	return second(b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Network: &on}}))
}

// TestNetworkTurnsOn: a session that never had a network gets one while it lives, in the same box, for
// commands that start later; once it has given it up, it gets none again, in no box and no session of
// its workspace.
func TestNetworkTurnsOn(t *testing.T) {
	b, at := openNet(t)
	r := policy.Request{Wishes: spec.Wishes{LiveWishes: spec.LiveWishes{Retain: ptr("7d"), MaxLifetime: ptr(spec.Duration(0))}}}
	v := b.ensure(keyA, r)
	b.exec(keyA, "true")
	if env := b.host.Box(v.Box).Last().Env; slices.ContainsFunc(env, isProxy) {
		t.Errorf("off: %q", env)
	}
	if _, err := b.fetch(v.Box, at); err == nil {
		t.Error("off: the proxy is there")
	}
	must(t, b.turn(true))
	must(t, b.turn(true)) // again changes nothing
	if now := b.get(keyA); now.Box != v.Box || !now.Resolved.Network || now.Sensitive != nil {
		t.Errorf("%+v", now)
	}
	b.reaches(v.Box, at, true)
	b.exec(keyA, "true")
	if env := b.host.Box(v.Box).Last().Env; !slices.Contains(env, "https_proxy=http://127.0.0.1:3128") {
		t.Errorf("on: %q", env)
	}
	b.crash()
	b.start()
	b.reaches(v.Box, at, true)
	b.host.Kill(v.Box)
	b.eventually("the box is lost", func() bool { return b.get(keyA).State == Failed })
	again := b.ensure(keyA, policy.Request{})
	b.reaches(again.Box, at, true)

	visiting, release, err := b.Visit(ctx, me, keyA, Visit{Action: "preview", Port: 80})
	must(t, err)
	must(t, b.turn(false))
	b.reaches(again.Box, at, false)
	if visiting.Err() == nil {
		t.Error("a preview goes on")
	}
	release()
	for _, later := range []func(){func() {}, func() { b.crash(); b.start() }, func() { b.host.Kill(b.get(keyA).Box); b.exec(keyA, "true") }} {
		later()
		if err := b.turn(true); !errors.Is(err, policy.ErrDenied) || !strings.Contains(err.Error(), "given up") {
			t.Errorf("on again: %v", err)
		}
		b.reaches(b.get(keyA).Box, at, false)
		if _, _, err := b.Visit(ctx, me, keyA, Visit{Action: "preview", Port: 80}); !errors.Is(err, policy.ErrDenied) {
			t.Errorf("a preview of an operator's: %v", err)
		}
		_, leave, err := b.Visit(ctx, me, keyA, Visit{Action: "preview", Port: 80, Trusted: true})
		must(t, err)
		leave()
	}
	if b.audit.count("update", audit.Deny) == 0 {
		t.Error("the refusals are not audited")
	}
}

func isProxy(kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	return strings.HasSuffix(strings.ToLower(name), "_proxy")
}

// TestNetworkTurnsOnRefused: who may not have a network does not get one live either.
func TestNetworkTurnsOnRefused(t *testing.T) {
	for name, c := range map[string]struct {
		profile policy.ProfileConfig
		none    bool // the daemon has no network for boxes
		ask     spec.Update
		want    string
	}{
		"profile":       {policy.ProfileConfig{AllowNetwork: ptr(false)}, false, spec.Update{}, "allow_network is false"},
		"locked off":    {policy.ProfileConfig{Locked: &[]string{"network"}}, false, spec.Update{}, "locked its network off"},
		"daemon":        {policy.ProfileConfig{}, true, spec.Update{}, "gives no box a network"},
		"and sensitive": {policy.ProfileConfig{}, false, spec.Update{LiveWishes: spec.LiveWishes{Sensitive: ptr(true)}}, "one of the two"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.policy.Profiles = map[string]policy.ProfileConfig{"default": c.profile}
			b.policy.NetworkAvailable = !c.none
			b.start()
			v := b.ensure(keyA, policy.Request{})
			c.ask.Network = ptr(true)
			if _, err := b.Update(ctx, me, keyA, c.ask); !errors.Is(err, policy.ErrDenied) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if now := b.get(keyA); now.Resolved.Network || now.Sensitive != nil {
				t.Errorf("%+v", now)
			}
			if s, err := b.Network(keyA); err != nil || s.On {
				t.Errorf("%+v, %v", s, err)
			}
			if _, err := b.fetch(v.Box, "a.example"); err == nil {
				t.Error("the proxy is there")
			}
		})
	}
}

// TestNetworkTurnsOnFails: a network that cannot be opened changes nothing, and can be asked for
// again. The same holds if the change cannot be recorded.
func TestNetworkTurnsOnFails(t *testing.T) {
	b, at := openNet(t)
	gone := errors.New("the launcher is gone")
	v := b.ensure(keyA, policy.Request{})
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "listen" {
			return gone
		}
		return nil
	})
	if err := b.turn(true); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	if now := b.get(keyA); now.Resolved.Network || now.Sensitive != nil {
		t.Errorf("%+v", now)
	}
	b.exec(keyA, "true")
	if env := b.host.Box(v.Box).Last().Env; slices.ContainsFunc(env, isProxy) {
		t.Errorf("environment %q", env)
	}
	b.host.SetHook(nil)
	must(t, b.turn(true))
	b.reaches(v.Box, at, true)
}

// TestNetworkTurnsOnRace: a session that becomes sensitive while its network is being turned on has
// none, and says so.
func TestNetworkTurnsOnRace(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, policy.Request{})
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "listening" {
			s, err := b.find(keyA)
			must(t, err)
			must(t, b.ratchet(me, func(r *ratchet) { r.session(s, "now") }))
		}
		return nil
	})
	now, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{Network: ptr(true)}})
	if err == nil && (now.Resolved.Network || now.Sensitive == nil) {
		t.Errorf("%+v", now)
	}
	b.reaches(v.Box, at, false)
	b.restart()
	b.reaches(v.Box, at, false)
}

// TestNetworkRecovers: a proxy that was lost comes back with the next update about the network, and
// with the next manager.
func TestNetworkRecovers(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, network)
	for name, again := range map[string]func() error{
		"network true": func() error { return b.turn(true) },
		"rules": func() error {
			return second(b.Update(ctx, me, keyA, spec.Update{NetworkRules: &spec.NetworkRules{Allow: []string{at}}}))
		},
		"restart": func() error { b.restart(); return nil },
	} {
		s, err := b.find(keyA)
		must(t, err)
		s.mu.Lock()
		proxy := s.proxy
		s.mu.Unlock()
		proxy.Shut() // as when its listeners fail
		b.eventually("the session knows", func() bool { n, _ := b.Network(keyA); return !n.On })
		b.reaches(v.Box, at, false)
		must(t, second(b.Update(ctx, me, keyA, spec.Update{Name: ptr("x")}))) // not about the network
		must(t, again())
		b.reaches(v.Box, at, true)
		if n, err := b.Network(keyA); err != nil || !n.On {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
	}
}

// TestNetworkNotRetried: what the policy refuses is reported once, not retried for ever.
func TestNetworkNotRetried(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, network)
	b.Close(ctx, false)
	tries := make(chan struct{}, 100)
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "listen" {
			tries <- struct{}{}
			return errors.New("the launcher is gone")
		}
		return nil
	})
	b.start()
	<-tries
	s, err := b.find(keyA)
	must(t, err)
	s.mu.Lock()
	s.record.Resolved.Profile = "gone"
	s.mu.Unlock()
	b.eventually("it is reported", func() bool { return b.reported("does not exist any more") == 1 })
	b.host.SetHook(nil)
	s.mu.Lock()
	s.record.Resolved.Profile = "default"
	s.mu.Unlock()
	b.Close(ctx, false) // joins what retries
	b.reaches(v.Box, at, false)
	if n := b.reported("does not exist any more"); n != 1 {
		t.Errorf("reported %d times", n)
	}
}

// reported counts the errors that contain text.
func (b *bench) reported(text string) (n int) {
	for _, e := range b.Errors() {
		if strings.Contains(e.Message, text) {
			n++
		}
	}
	return n
}

// TestNetworkSwitchedOff: a daemon that gives boxes no network any more gives none to those that it
// takes over either, and the next one that does gives it back.
func TestNetworkSwitchedOff(t *testing.T) {
	b, at := openNet(t)
	v := b.ensure(keyA, network)
	kept, err := b.host.Box(v.Box).Connect(ctx, egress.Addresses()[0])
	must(t, err)
	defer kept.Close()
	b.crash()
	b.policy.NetworkAvailable = false
	b.start()
	b.exec(keyA, "true")
	b.reaches(v.Box, at, false)
	if v := b.get(keyA); !v.Resolved.Network || !strings.Contains(v.NetworkOff, "gives no box a network") {
		t.Errorf("network %v, off: %q", v.Resolved.Network, v.NetworkOff)
	}
	if env := b.host.Box(v.Box).Last().Env; slices.ContainsFunc(env, isProxyVariable) {
		t.Errorf("the variables lead to no proxy: %q", env)
	}
	if _, err := io.ReadAll(kept); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("%v", err)
	}
	if err := second(b.Update(ctx, me, keyA, spec.Update{NetworkRules: &spec.NetworkRules{Allow: []string{at}}})); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("%v", err)
	}
	b.Close(ctx, false)
	b.policy.NetworkAvailable = true
	b.start()
	b.reaches(v.Box, at, true)
	b.exec(keyA, "true")
	if env := b.host.Box(v.Box).Last().Env; b.get(keyA).NetworkOff != "" || !slices.ContainsFunc(env, isProxyVariable) {
		t.Errorf("off: %q, environment %q", b.get(keyA).NetworkOff, env)
	}
}

func isProxyVariable(kv string) bool { return strings.Contains(strings.ToLower(kv), "proxy") }

// TestNetworkTakenFromLost: a session whose box is lost gets another one, without the network that it may
// not have any more, and can be updated. A new session is refused.
func TestNetworkTakenFromLost(t *testing.T) {
	for name, take := range map[string]func(*policy.Config){
		"daemon": func(c *policy.Config) { c.NetworkAvailable = false },
		"profile": func(c *policy.Config) {
			c.Profiles = map[string]policy.ProfileConfig{"default": {AllowNetwork: ptr(false)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, at := openNet(t)
			v := b.ensure(keyA, network)
			lose := func() {
				t.Helper()
				b.host.Kill(b.get(keyA).Box)
				b.eventually("the box is lost", func() bool { return b.get(keyA).State == Failed })
			}
			b.reaches(v.Box, at, true)
			b.crash()
			take(&b.policy)
			b.start()
			lose()
			again := b.ensure(keyA, policy.Request{})
			b.reaches(again.Box, at, false)
			if b.reported("its network stays off: ") == 0 {
				t.Errorf("the operator is not told: %+v", b.Errors())
			}
			lose()
			must(t, b.turn(false))
			lose()
			b.exec(keyA, "true")
			if _, err := b.Ensure(ctx, me, keyB, network); !errors.Is(err, policy.ErrDenied) {
				t.Errorf("a new session: %v", err)
			}
		})
	}
}

// TestNetworkRulesLocked: a live session cannot change rules that its profile locks, and follows the lock
// without a conflict.
func TestNetworkRulesLocked(t *testing.T) {
	b := newBench(t)
	b.policy.Profiles = map[string]policy.ProfileConfig{"default": {Locked: &[]string{"network_rules"}}}
	b.start()
	r := network
	r.NetworkRules = &spec.NetworkRules{Deny: []string{"a.example"}}
	if v := b.ensure(keyA, r); !v.Resolved.NetworkRules.Equal(nil) || !slices.Contains(v.Resolved.Overridden, "network_rules") {
		t.Errorf("%+v", v.Resolved)
	}
	b.ensure(keyA, r)
	if _, err := b.Update(ctx, me, keyA, spec.Update{NetworkRules: r.NetworkRules}); !errors.Is(err, policy.ErrDenied) || !strings.Contains(err.Error(), "locked by profile") {
		t.Errorf("%v", err)
	}
	must(t, second(b.Update(ctx, me, keyA, spec.Update{Name: ptr("x")})))
}

// TestNetworkLimitsChange: a live session lowers and raises its limits below those of its profile.
func TestNetworkLimitsChange(t *testing.T) {
	b, at := openNet(t)
	r := network
	r.NetworkRules = &spec.NetworkRules{Limits: spec.NetworkLimits{Bytes: 1}}
	v := b.ensure(keyA, r)
	if status, _ := b.fetch(v.Box, at); status == 200 {
		t.Error("one byte is enough")
	}
	must(t, second(b.Update(ctx, me, keyA, spec.Update{NetworkRules: &spec.NetworkRules{Limits: spec.NetworkLimits{Bytes: 1 << 20}}})))
	b.reaches(v.Box, at, true)
	if _, err := b.Update(ctx, me, keyA, spec.Update{NetworkRules: &spec.NetworkRules{Limits: spec.NetworkLimits{Bytes: 1 << 50}}}); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "network_rules.limits.bytes") {
		t.Errorf("%v", err)
	}
	b.restart()
	if got := b.get(keyA).Resolved.NetworkRules; got == nil || got.Limits.Bytes != 1<<20 {
		t.Errorf("%+v", got)
	}
}

// TestNetworkBytesContinue: what a box has moved counts after a restart of the daemon, also a hard one once
// it was recorded, and not for the next box.
func TestNetworkBytesContinue(t *testing.T) {
	b, at := openNet(t)
	spent := func() int64 {
		s := b.session(keyA)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.proxy == nil {
			return -1
		}
		return s.proxy.Spent()
	}
	limit := func(bytes int64) {
		must(t, second(b.Update(ctx, me, keyA, spec.Update{NetworkRules: &spec.NetworkRules{Limits: spec.NetworkLimits{Bytes: spec.Size(bytes)}}})))
	}
	is := func(when string, want int64) {
		t.Helper()
		if got := spent(); got != want || want <= 0 {
			t.Errorf("%s: %d bytes, want %d", when, got, want)
		}
	}
	v := b.ensure(keyA, network)
	b.reaches(v.Box, at, true)
	used := spent()
	b.Close(ctx, false)
	b.start()
	is("after a restart", used)
	b.reaches(v.Box, at, true)
	is("after a request", 2*used)
	b.crash()
	b.start()
	is("after a crash that nothing was recorded before", used)
	b.reaches(v.Box, at, true)
	b.noteNetworks()
	must(t, b.written())
	b.crash()
	b.start()
	is("after a crash", 2*used)
	limit(2 * used)
	if status, err := b.fetch(v.Box, at); status != http.StatusServiceUnavailable {
		t.Errorf("beyond the limit: %d, %v", status, err)
	}
	b.restart()
	if status, err := b.fetch(v.Box, at); status != http.StatusServiceUnavailable {
		t.Errorf("beyond the limit, after a restart: %d, %v", status, err)
	}
	b.host.Kill(v.Box)
	b.eventually("the session knows that its box is lost", func() bool { return b.get(keyA).State == Failed })
	b.reaches(b.ensure(keyA, policy.Request{}).Box, at, true)
	is("in the next box", used)
	b.Close(ctx, false)
	b.start()
	is("in the next box, after a restart", used)
}

// TestNetworkSecretUnreadable: the tenant learns that a secret is missing, administrators which.
func TestNetworkSecretUnreadable(t *testing.T) {
	b := newBench(t)
	missing := t.TempDir() + "/missing"
	b.policy.Profiles = map[string]policy.ProfileConfig{"default": {NetworkRules: policy.NetworkConfig{
		Allow: &[]string{"api.example"}, Public: ptr(false), Inject: &[]rules.Inject{{Host: "api.example", Header: "X-Key", ValueFrom: rules.Source{File: missing}}}}}}
	b.start()
	v := b.ensure(keyA, network)
	for range 3 {
		if status, err := b.fetch(v.Box, "api.example"); status != 502 {
			t.Errorf("%d, %v", status, err)
		}
	}
	told := 0
	for _, e := range b.Errors() {
		if strings.Contains(e.Message, missing) {
			if told++; e.Tenant != "" || !strings.Contains(e.Message, keyA.ID) {
				t.Errorf("%+v", e)
			}
		}
	}
	n, err := b.Network(keyA)
	must(t, err)
	if all := fmt.Sprintf("%+v", n); told != 1 || strings.Contains(all, missing) {
		t.Errorf("told %d times; the tenant sees %s", told, all)
	}
}
