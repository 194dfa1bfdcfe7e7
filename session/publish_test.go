package session

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// freePorts returns n ports in a row that were free a moment ago. They are below those that the kernel
// gives to connections.
func freePorts(t *testing.T, n int) policy.PortPool {
	t.Helper()
	for range 1000 {
		from := 10000 + rand.IntN(20000)
		free := true
		for port := from; free && port < from+n; port++ {
			l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
			if free = err == nil; free {
				defer l.Close()
			}
		}
		if free {
			return policy.PortPool{First: from, Last: from + n - 1, Address: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
		}
	}
	t.Fatal("no ports in a row are free")
	return policy.PortPool{}
}

// openPublishing opens a manager whose sessions can publish n ports.
func openPublishing(t *testing.T, n int) *bench {
	b := newBench(t)
	b.policy.Publish = freePorts(t, n)
	b.start()
	return b
}

func wantPorts(list ...spec.PublishWish) policy.Request {
	return policy.Request{Wishes: spec.Wishes{Publish: list}}
}

// serveEcho lets the box of key echo what it gets on a port.
func (b *bench) serveEcho(key Key, port uint16) {
	b.t.Helper()
	box, err := b.Peek(key)
	must(b.t, err)
	list, err := box.(engine.Networked).Listen(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port))
	must(b.t, err)
	l := list[0]
	b.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // splice(2) would keep a pipe
				c.Close()
			}()
		}
	}()
}

func dialHost(t *testing.T, port int) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	t.Cleanup(func() { c.Close() })
	return c
}

// echo sends a word and expects it back.
func echo(c net.Conn, word string) error {
	if _, err := io.WriteString(c, word); err != nil {
		return err
	}
	got := make([]byte, len(word))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != word {
		return fmt.Errorf("%q came back", got)
	}
	return nil
}

// mustBeFree fails unless this process can listen on a port at once.
func mustBeFree(t *testing.T, port int) {
	t.Helper()
	l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Errorf("the port is not free: %v", err)
		return
	}
	l.Close()
}

// TestPublish: a published port leads to the box, two sessions never have the same, an exhausted pool
// is one line, and a removal frees the port.
func TestPublish(t *testing.T) {
	b := openPublishing(t, 2)
	a := b.ensure(keyA, wantPorts(spec.PublishWish{Port: 8000}))
	host := a.Published[0].Host
	if p := a.Published; len(p) != 1 || p[0].Port != 8000 || p[0].Reason != "" || p[0].Address != "127.0.0.1" || !b.policy.Publish.Contains(host) {
		t.Fatalf("%+v", p)
	}
	c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", host))
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		c.Close()
	}
	if err == nil || errors.Is(err, io.EOF) {
		t.Errorf("nothing listens: %v, want a reset", err)
	}
	b.serveEcho(keyA, 8000)
	c = dialHost(t, host)
	must(t, echo(c, "hello"))
	if v := must1(b.Get(keyA)); v.Published[0].Connections != 1 {
		t.Errorf("%+v", v.Published)
	}
	c.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Errorf("the end of the stream: %q, %v", rest, err)
	}
	again := b.ensure(keyA, wantPorts(spec.PublishWish{Port: 8000}))
	if again.Published[0].Host != host || again.Created {
		t.Errorf("%+v", again.Published)
	}
	if _, err := b.Ensure(ctx, me, keyA, wantPorts(spec.PublishWish{Port: 8001})); !errors.Is(err, ErrConflict) {
		t.Errorf("another port: %v", err)
	}

	taken := wantPorts(spec.PublishWish{Port: 80, Host: spec.HostPort(host)})
	if _, err := b.Ensure(ctx, me, keyB, taken); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("a port of another session: %v", err)
	}
	two := b.ensure(keyB, wantPorts(spec.PublishWish{Port: 80}))
	if two.Published[0].Host == host {
		t.Error("two sessions have one port")
	}
	keyC := Key{"t", "c"}
	_, err = b.Ensure(ctx, me, keyC, wantPorts(spec.PublishWish{Port: 80}))
	if !errors.Is(err, policy.ErrQuota) || !strings.Contains(err.Error(), "publish.ports") || strings.Contains(err.Error(), "\n") {
		t.Errorf("the pool is exhausted: %v", err)
	}
	if _, err := b.Get(keyC); !errors.Is(err, ErrNotFound) {
		t.Errorf("the session exists: %v", err)
	}
	must(t, b.Remove(ctx, me, keyA))
	mustBeFree(t, host)
	b.ensure(keyC, taken)
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestPublishFixedFirst: a port that is asked for by number is never given to the same session as a free one.
func TestPublishFixedFirst(t *testing.T) {
	b := openPublishing(t, 2)
	for range 10 {
		v := b.ensure(keyA, wantPorts(spec.PublishWish{Port: 1}, spec.PublishWish{Port: 2, Host: spec.HostPort(b.policy.Publish.First)}))
		if v.Published[0].Port != 1 || v.Published[0].Host != b.policy.Publish.Last {
			t.Errorf("%+v", v.Published)
		}
		must(t, b.Remove(ctx, me, keyA))
	}
}

// TestPublishRefused: every refusal is one line that says what to do, and opens nothing.
func TestPublishRefused(t *testing.T) {
	b := openPublishing(t, 2)
	one := []spec.PublishWish{{Port: 8000}}
	for name, c := range map[string]struct {
		r    spec.Wishes
		says string
	}{
		"sensitive":         {spec.Wishes{Publish: one, LiveWishes: spec.LiveWishes{Sensitive: ptr(true)}}, "sensitive"},
		"profile":           {spec.Wishes{Publish: one, Profile: "langbot"}, "allow_publish"},
		"sensitive profile": {spec.Wishes{Publish: one, Profile: "offline_readonly"}, "sensitive"},
		"outside":           {spec.Wishes{Publish: []spec.PublishWish{{Port: 8000, Host: 80}}}, "of the pool"},
		"no port":           {spec.Wishes{Publish: []spec.PublishWish{{}}}, "1 to 65535"},
		"proxy":             {spec.Wishes{Publish: []spec.PublishWish{{Port: 8000}, {Port: 3128}}}, "publish[1].port 3128: must not be"},
		"proxy for SOCKS":   {spec.Wishes{Publish: []spec.PublishWish{{Port: 1080}}}, "publish[0].port 1080: must not be"},
		"twice":             {spec.Wishes{Publish: []spec.PublishWish{{Port: 80}, {Port: 80}}}, "once"},
		"too many":          {spec.Wishes{Publish: make([]spec.PublishWish, spec.MaxPublish+1)}, "at most 16"},
	} {
		_, err := b.Ensure(ctx, me, keyA, policy.Request{Wishes: c.r})
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	none := open(t)
	if _, err := none.Ensure(ctx, me, keyA, wantPorts(one...)); !errors.Is(err, policy.ErrDenied) || !strings.Contains(err.Error(), "publish.ports") {
		t.Errorf("without a pool: %v", err)
	}
	b2 := newBench(t)
	b2.policy.Publish = freePorts(t, 4)
	b2.policy.TenantDefaults.Ports = 2
	b2.start()
	b2.ensure(keyA, wantPorts(spec.PublishWish{Port: 1}, spec.PublishWish{Port: 2}))
	if _, err := b2.Ensure(ctx, me, keyB, wantPorts(one...)); !errors.Is(err, policy.ErrQuota) || !strings.Contains(err.Error(), "quotas.ports") {
		t.Errorf("above the quota: %v", err)
	}
}

// TestPublishRatchet: when a session becomes sensitive or gives up its network, its ports are closed and
// its connections reset before the answer, for good.
func TestPublishRatchet(t *testing.T) {
	for name, off := range map[string]spec.LiveWishes{"sensitive": {Sensitive: ptr(true)}, "network given up": {Network: ptr(false)}} {
		t.Run(name, func(t *testing.T) {
			b := openPublishing(t, 2)
			r := wantPorts(spec.PublishWish{Port: 8000})
			r.Network = ptr(off.Network != nil)
			a := b.ensure(keyA, r)
			host := a.Published[0].Host
			b.serveEcho(keyA, 8000)
			c := dialHost(t, host)
			must(t, echo(c, "before"))
			v := must1(b.Update(ctx, me, keyA, spec.Update{LiveWishes: off}))
			if len(v.Published) > 0 || len(v.Resolved.Publish) > 0 {
				t.Errorf("%+v", v)
			}
			mustBeFree(t, host)
			if err := echo(c, "after"); err == nil {
				t.Error("the connection lives on")
			}
			b.restart()
			if v := must1(b.Get(keyA)); len(v.Published) > 0 {
				t.Errorf("after a restart: %+v", v.Published)
			}
			mustBeFree(t, host)
			if _, err := b.Ensure(ctx, me, keyA, wantPorts(spec.PublishWish{Port: 8000})); !errors.Is(err, ErrConflict) && !errors.Is(err, policy.ErrDenied) {
				t.Errorf("asked for again: %v", err)
			}
		})
	}
}

// TestPublishRestart: a successor opens the same ports; one that another program has meanwhile is
// retried, and the session goes on.
func TestPublishRestart(t *testing.T) {
	b := openPublishing(t, 2)
	a := b.ensure(keyA, wantPorts(spec.PublishWish{Port: 8000}, spec.PublishWish{Port: 9000}))
	b.crash()
	stolen, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(a.Published[1].Host))
	must(t, err)
	b.start()
	v := must1(b.Get(keyA))
	if p := v.Published; len(p) != 2 || p[0].Host != a.Published[0].Host || p[0].Reason != "" || p[1].Host != a.Published[1].Host || !strings.Contains(p[1].Reason, "in use") {
		t.Errorf("%+v, before %+v", v.Published, a.Published)
	}
	b.serveEcho(keyA, 8000)
	must(t, echo(dialHost(t, v.Published[0].Host), "again"))
	if _, err := b.Ensure(ctx, me, keyB, wantPorts(spec.PublishWish{Port: 1})); !errors.Is(err, policy.ErrQuota) {
		t.Errorf("another session gets a port that is waited for: %v", err)
	}
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	stolen.Close()
	for e := range sub.C {
		if e.Type == EventPortPublished {
			break
		}
	}
	if v = must1(b.Get(keyA)); v.Published[1].Reason != "" {
		t.Errorf("%+v", v.Published)
	}
	must(t, b.Remove(ctx, me, keyA))
	mustBeFree(t, v.Published[0].Host)
	mustBeFree(t, v.Published[1].Host)

	// A configuration without the pool closes them, and the next one with it opens the same again.
	a = b.ensure(keyA, wantPorts(spec.PublishWish{Port: 8000}))
	pool := b.policy.Publish
	b.crash()
	b.policy.Publish = policy.PortPool{}
	b.start()
	if v = must1(b.Get(keyA)); len(v.Published) != 1 || v.Published[0].Address != "" || !strings.Contains(v.Published[0].Reason, "publish.ports") {
		t.Errorf("without a pool: %+v", v.Published)
	}
	mustBeFree(t, a.Published[0].Host)
	b.crash()
	b.policy.Publish = pool
	b.start()
	if v = must1(b.Get(keyA)); len(v.Published) != 1 || v.Published[0].Host != a.Published[0].Host || v.Published[0].Reason != "" {
		t.Errorf("with the pool again: %+v", v.Published)
	}
}

// TestPublishBounds: connections beyond the bound of a session are reset, and the others continue.
func TestPublishBounds(t *testing.T) {
	b := openPublishing(t, 1)
	a := b.ensure(keyA, wantPorts(spec.PublishWish{Port: 8000}))
	b.serveEcho(keyA, 8000)
	var list []net.Conn
	for range maxCallers {
		c := dialHost(t, a.Published[0].Host)
		must(t, echo(c, "x"))
		list = append(list, c)
	}
	another := func() error { // a reset may come before its connect returns
		c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", a.Published[0].Host))
		if err != nil {
			return err
		}
		defer c.Close()
		return echo(c, "x")
	}
	if another() == nil {
		t.Error("one more is served")
	}
	must(t, echo(list[0], "x"))
	list[0].Close()
	for { // its slot is free soon
		if another() == nil {
			return
		}
	}
}

// TestPublishRetained: a session that stays for its workspace gives up its ports, and gets them again.
func TestPublishRetained(t *testing.T) {
	b := openPublishing(t, 1)
	r := wantPorts(spec.PublishWish{Port: 8000})
	r.Retain = ptr("1h")
	a := b.ensure(keyA, r)
	s := must1(b.find(keyA))
	s.mu.Lock()
	s.record.Retained = s.retainLocked()
	s.markRemovalLocked("test")
	s.mu.Unlock()
	s.teardown(removal{caller: system, reason: "test", expired: true})
	mustBeFree(t, a.Published[0].Host)
	b.exec(keyA, "true")
	if v := must1(b.Get(keyA)); len(v.Published) != 1 || v.Published[0].Host != a.Published[0].Host || v.Published[0].Reason != "" {
		t.Errorf("%+v, before %+v", v.Published, a.Published)
	}
}

// TestPublishStaleRetry: an attempt to open a port that was given up does not give up the same port of
// the session's next box.
func TestPublishStaleRetry(t *testing.T) {
	b := openPublishing(t, 1)
	b.ensure(keyA, wantPorts(spec.PublishWish{Port: 8000}))
	s := must1(b.find(keyA))
	s.mu.Lock()
	stale := &publishedPort{publishedRecord: s.published[0].publishedRecord}
	s.mu.Unlock()
	reserved := func() bool {
		b.publishing.mu.Lock()
		defer b.publishing.mu.Unlock()
		return b.publishing.taken[stale.Host] == s
	}
	s.leavePort(stale)
	if !reserved() {
		t.Error("another session can get the port")
	}
	s.unpublishPorts("test")
	if !b.takePort(s, stale.Host) { // as the attempt did while the port was wanted
		t.Fatal("the port is not free")
	}
	s.leavePort(stale)
	b.ensure(keyB, wantPorts(spec.PublishWish{Port: 1}))
}

// TestPublishRecordedProxy: a daemon that finds a port of the proxy in the record of a session, made
// before such ports were refused, leaves it closed and does not try again.
func TestPublishRecordedProxy(t *testing.T) {
	b := openPublishing(t, 1)
	b.ensure(keyA, wantPorts(spec.PublishWish{Port: 8000}))
	s := must1(b.find(keyA))
	s.mu.Lock()
	s.record.Resolved.Publish = []spec.PublishWish{{Port: spec.ProxyPort}}
	s.record.Published[0].Port = spec.ProxyPort
	write := b.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	must(t, write.wait())
	b.crash()
	b.start()
	v := must1(b.Get(keyA))
	if len(v.Published) != 1 || !strings.Contains(v.Published[0].Reason, "proxy of the box") {
		t.Fatalf("%+v", v.Published)
	}
	if b.takePort(must1(b.find(keyA)), v.Published[0].Host) {
		mustBeFree(t, v.Published[0].Host)
	} else {
		t.Error("the port is waited for")
	}
}
