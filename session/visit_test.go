package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

func TestVisits(t *testing.T) {
	b := open(t)
	key := Key{Tenant: "t", ID: "a"}
	if _, _, err := b.Visit(ctx, Caller{}, key, Visit{Action: "preview", Port: 80}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	if _, err := b.Dial(ctx, key, 80); !errors.Is(err, ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	b.ensure(key, policy.Request{})
	visiting, release, err := b.Visit(ctx, Caller{}, key, Visit{Action: "preview", Port: 80})
	if err != nil || !b.audit.has("preview", audit.Allow) {
		t.Fatal(err)
	}
	trusted, leave, err := b.Visit(ctx, Caller{}, key, Visit{Action: "forward", Port: 80, Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	context.AfterFunc(visiting, release)
	b.ensure(key, sensitive(true))
	if visiting.Err() == nil || trusted.Err() != nil {
		t.Errorf("after the session became sensitive: %v, of a trusted caller %v", visiting.Err(), trusted.Err())
	}
	release()
	if _, _, err := b.Visit(ctx, Caller{}, key, Visit{Action: "preview", Port: 80}); !errors.Is(err, policy.ErrDenied) || !b.audit.has("preview", audit.Deny) {
		t.Errorf("a sensitive session: %v", err)
	}
	if err := b.Remove(ctx, Caller{}, key); err != nil {
		t.Fatal(err)
	}
	if <-trusted.Done(); trusted.Err() == nil {
		t.Error("a visit outlived its session")
	}
	leave()
}

// Dial looks at the box that a session has, and builds none.
func TestDialNeedsABox(t *testing.T) {
	b := open(t)
	key := Key{Tenant: "t", ID: "a"}
	b.ensure(key, policy.Request{})
	box := b.boxOf(key)
	if _, err := b.Dial(ctx, key, 80); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port on which nothing listens: %v", err)
	}
	ended := make(chan Key, 1)
	b.WhenBoxEnds(func(k Key) { ended <- k })
	box.Die()
	if k := <-ended; k != key {
		t.Errorf("the box of %s has ended", k)
	}
	if _, err := b.Dial(ctx, key, 80); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("a lost box: %v", err)
	}
}

// boxPort is the port of a server in a fake box.
const boxPort = 9000

// connections starts a server on boxPort of a box. It reports how each connection ends.
func (b *bench) connections(key Key) (ends <-chan error) {
	listeners, err := b.session(key).box.(engine.Networked).Listen(ctx, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), boxPort))
	if err != nil {
		b.t.Fatal(err)
	}
	l, list := listeners[0], make(chan error, 16)
	b.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, err := c.Read(make([]byte, 1))
				list <- err
			}()
		}
	}()
	return list
}

// When a session becomes sensitive, connections of visitors are reset before the answer, also those
// that outlive their visit or have none; those of trusted visitors stay. The answer waits for the
// visits to end.
func TestRatchetResetsConnections(t *testing.T) {
	b := open(t)
	key := Key{Tenant: "t", ID: "a"}
	b.ensure(key, policy.Request{})
	const port = boxPort
	ends := b.connections(key)
	dial := func(ctx context.Context) net.Conn {
		c, err := b.Dial(ctx, key, port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	visit := func(v Visit) (context.Context, func()) {
		ctx, release, err := b.Visit(ctx, Caller{}, key, v)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		return ctx, release
	}
	visiting, release := visit(Visit{Action: "preview", Port: port})
	past, leave := visit(Visit{Action: "preview", Port: port})
	mine, kept, none := dial(visiting), dial(past), dial(ctx)
	leave()
	trusted, _ := visit(Visit{Action: "forward", Port: port, Trusted: true})
	theirs := dial(trusted)
	var left atomic.Bool
	context.AfterFunc(visiting, func() {
		for range 3 { // the connections ended before the visit
			if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the box saw %v", err)
			}
		}
		for range 3 { // if the answer waits for its record only, it comes now
			if err := b.written(); err != nil {
				t.Error(err)
			}
		}
		left.Store(true)
		release()
	})
	b.ensure(key, sensitive(true))
	if !left.Load() {
		t.Error("the answer did not wait for a visit to end")
	}
	for name, c := range map[string]net.Conn{"open": mine, "kept": kept, "without a visit": none} {
		if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: writing: %v", name, err)
		}
	}
	if _, err := theirs.Write([]byte("x")); err != nil {
		t.Errorf("a trusted visitor: %v", err)
	}
	if err := <-ends; err != nil {
		t.Errorf("a trusted visitor: the box saw %v", err)
	}
	// A context from before the ratchet opens nothing.
	if _, err := b.Dial(context.WithoutCancel(visiting), key, port); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("dialling after the ratchet: %v", err)
	}
	if c, err := b.Dial(trusted, key, port); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}

// A connection that is being made when the session becomes sensitive is reset.
func TestRatchetWhileDialling(t *testing.T) {
	b := open(t)
	key := Key{Tenant: "t", ID: "a"}
	b.ensure(key, policy.Request{})
	ends := b.connections(key)
	dialling, ratcheted := make(chan struct{}), make(chan struct{})
	b.host.SetHook(func(_ context.Context, op, _ string) error {
		if op == "dial" {
			close(dialling)
			<-ratcheted
		}
		return nil
	})
	result := make(chan error, 1)
	go func() {
		c, err := b.Dial(ctx, key, boxPort)
		if err == nil {
			c.Close()
		}
		result <- err
	}()
	<-dialling
	b.ensure(key, sensitive(true))
	close(ratcheted)
	if err := <-result; !errors.Is(err, policy.ErrDenied) {
		t.Errorf("dialling: %v", err)
	}
	if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the box saw %v", err)
	}
}

// The proxy of a box is for its own programs, so no caller is connected to its ports, an administrator
// included.
func TestProxyIsNotVisited(t *testing.T) {
	b := open(t)
	key := Key{Tenant: "t", ID: "a"}
	b.ensure(key, policy.Request{})
	refused := func(what string, err error) {
		t.Helper()
		if bad, ok := errors.AsType[*spec.FieldError](err); !ok || bad.Field != "port" || !strings.Contains(bad.Rule, "proxy") {
			t.Errorf("%s: %v", what, err)
		}
	}
	visiting, release, err := b.Visit(ctx, Caller{}, key, Visit{Action: "forward", Port: boxPort, Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for i, at := range egress.Addresses() {
		port := int(at.Port())
		_, err := b.MakeLink(Caller{}, key, port, time.Now().Add(time.Hour))
		refused("a link", err)
		for _, trusted := range []bool{false, true} {
			_, _, err = b.Visit(ctx, Caller{}, key, Visit{Action: "forward", Port: port, Trusted: trusted})
			refused(fmt.Sprint("a visit, trusted ", trusted), err)
		}
		_, err = b.Dial(ctx, key, port)
		refused("dialling", err)
		_, err = b.Dial(visiting, key, port)
		refused("dialling in a visit to another port", err)
		if n, m := b.audit.count("link", audit.Deny), b.audit.count("forward", audit.Deny); n != i+1 || m != 2*(i+1) {
			t.Errorf("%d and %d lines of the audit log", n, m)
		}
	}
}

// A link counts until it is revoked or expires, and never for another session of the same key. What
// it opened ends with it, and nothing else.
func TestLinks(t *testing.T) {
	b := open(t)
	key := Key{Tenant: "t", ID: "a"}
	soon := time.Now().Add(time.Hour)
	if _, err := b.MakeLink(Caller{}, key, 80, soon); !errors.Is(err, ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	b.ensure(key, policy.Request{})
	if n, err := b.LinkNumber(key); n != 0 || err != nil {
		t.Errorf("before the first link: %d, %v", n, err)
	}
	const port = boxPort
	ends := b.connections(key)
	number, err := b.MakeLink(Caller{}, key, port, soon)
	if again, err2 := b.MakeLink(Caller{}, key, port, soon); number == 0 || err != nil || again != number || err2 != nil || b.audit.count("link", audit.Allow) != 2 {
		t.Fatalf("%d, %v, then %d, %v", number, err, again, err2)
	}
	byLink := Visit{Action: "preview", Port: port, Link: number, Expires: soon}
	full := func(err error) {
		b.audit.mu.Lock()
		defer b.audit.mu.Unlock()
		b.audit.err = err
	}
	full(errors.New("disk full"))
	for range 2 {
		if _, _, err := b.Visit(ctx, Caller{}, key, byLink); err == nil {
			t.Error("a visit that cannot be logged is admitted")
		}
	}
	full(nil)
	for range 20 {
		_, release, err := b.Visit(ctx, Caller{}, key, byLink)
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	if n := b.audit.count("preview", audit.Allow); n != 1 {
		t.Errorf("20 visits by a link: %d lines", n)
	}
	other := byLink
	other.Expires = soon.Add(time.Second)
	visiting, release, err := b.Visit(ctx, Caller{}, key, other)
	if n := b.audit.count("preview", audit.Allow); n != 2 || err != nil {
		t.Errorf("a visit by another link: %d lines, %v", n, err)
	}
	context.AfterFunc(visiting, release)
	if c, err := b.Dial(visiting, key, port); err != nil {
		t.Fatal(err)
	} else {
		defer c.Close()
	}
	owner, leave, err := b.Visit(ctx, Caller{}, key, Visit{Action: "forward", Port: port})
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	past := byLink
	past.Expires = time.Now().Add(-time.Second)
	if late, release, err := b.Visit(ctx, Caller{}, key, past); err != nil || late.Err() == nil {
		t.Errorf("a visit by an expired link: %v", err)
	} else {
		release()
	}
	mine, err := b.Dial(owner, key, port)
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	if err := b.RevokeLinks(Caller{}, key); err != nil || visiting.Err() == nil || owner.Err() != nil || !b.audit.has("revoke-links", audit.Allow) {
		t.Errorf("%v; by link %v, owner %v", err, visiting.Err(), owner.Err())
	}
	if err := <-ends; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection by a revoked link: the box saw %v", err)
	}
	if _, err := mine.Write([]byte("x")); err != nil {
		t.Errorf("the owner: %v", err)
	}
	if _, _, err := b.Visit(ctx, Caller{}, key, byLink); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("a visit by a revoked link: %v", err)
	}
	next, err := b.MakeLink(Caller{}, key, port, soon)
	if next == 0 || next == number || err != nil {
		t.Errorf("%d, %v", next, err)
	}
	leave()
	b.crash()
	b.start()
	if n, err := b.LinkNumber(key); n != next || err != nil {
		t.Errorf("after a crash: %d, %v, want %d", n, err, next)
	}
	if err := b.Remove(ctx, Caller{}, key); err != nil {
		t.Fatal(err)
	}
	b.ensure(key, policy.Request{})
	if n, err := b.LinkNumber(key); n != 0 || err != nil {
		t.Errorf("another session of the key: %d, %v", n, err)
	}
	if byLink.Link, err = b.MakeLink(Caller{}, key, port, soon); byLink.Link == next || err != nil {
		t.Errorf("another session of the key: %d again, %v", byLink.Link, err)
	}
	b.ensure(key, sensitive(true))
	if n, err := b.LinkNumber(key); n != 0 || err != nil {
		t.Errorf("a sensitive session: %d, %v", n, err)
	}
	byLink.Trusted = true // a link is never
	if _, _, err := b.Visit(ctx, Caller{}, key, byLink); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("a visit of a sensitive session by a link: %v", err)
	}
	if _, err := b.MakeLink(Caller{}, key, port, soon); !errors.Is(err, policy.ErrDenied) || !b.audit.has("link", audit.Deny) {
		t.Errorf("a link to a sensitive session: %v", err)
	}
}
