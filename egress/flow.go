package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/boxd/boxd/egress/rules"
)

// flow is one tunnel, or one HTTP request with its response.
type flow struct {
	p        *Proxy
	id       uint64
	target   rules.Target
	protocol string
	start    time.Time
	in, out  atomic.Int64
	last     atomic.Int64 // when the last byte moved, see now

	// Guarded by p.mu.
	verdict rules.Verdict
	addr    netip.AddrPort
	raw     bool   // carries what only a rule with its port allows, so its verdict must stay Any
	hello   *hello // of a tunnel that must be TLS; nil before it is read
	reason  string
	err     error              // that reason stands for, if it is not the verdict's
	refused netip.Addr         // to which the name leads
	client  *net.TCPConn       // reset with the flow
	remote  *net.TCPConn       // likewise; nil before it is dialled
	kept    *keptConn          // remote of an HTTP request, which another flow may get after it
	cancel  context.CancelFunc // ends the dial or the HTTP request
}

// errUnlogged: Config.Admit failed.
var errUnlogged = errors.New("the connection cannot be logged")

// open decides about t. If t is allowed it returns a flow, which the caller must end, and
// a context that ends with the flow. Otherwise the error is a *Refusal, errUnlogged,
// errChanged or [ErrShut].
func (p *Proxy) open(client *net.TCPConn, t rules.Target, protocol string) (context.Context, *flow, error) {
	f := &flow{p: p, id: p.nextID.Add(1), target: t, protocol: protocol, start: time.Now(), client: client}
	f.last.Store(now())
	ctx, cancel := context.WithCancel(p.ctx)
	f.cancel = cancel
	p.mu.Lock()
	f.verdict = p.now.Load().set.Decide(t, p.cfg.Host)
	shut := p.shut
	if f.verdict.Allowed && !shut {
		p.flows[f] = struct{}{}
	}
	seen := f.snapshotLocked()
	p.mu.Unlock()
	if shut {
		cancel()
		return nil, nil, ErrShut
	}
	if !seen.Allowed {
		cancel()
		seen.Reason, seen.Ended = f.verdict.Reason, true
		p.denied(t.String(), seen.Rule)
		p.cfg.Observe(seen)
		return nil, nil, &Refusal{Target: t, Verdict: f.verdict}
	}
	if err := p.cfg.Admit(ctx, seen); err != nil {
		refused := errUnlogged
		if ctx.Err() == nil {
			p.denied(t.String(), "audit log")
		} else if refused = errChanged; p.ctx.Err() != nil {
			refused = ErrShut
		}
		f.fail(refused)
		f.end()
		return nil, nil, refused
	}
	return ctx, f, nil
}

// judgeLocked decides about a flow again, as about a new one that asks for the same.
func (f *flow) judgeLocked(set *rules.Set) rules.Verdict {
	v := set.Decide(f.target, f.p.cfg.Host)
	if !v.Allowed {
		return v
	}
	if f.raw && !v.Any {
		return rules.Verdict{Rule: v.Rule, Reason: "no rule names the port any more"}
	}
	if f.hello != nil && !v.Any {
		if reason := f.hello.forbidden(set, f.target); reason != "" {
			return rules.Verdict{Rule: "tls", Reason: reason}
		}
	}
	// Headers are added to all that port 80 carries, and to requests without a tunnel.
	if f.target.Port == 80 || f.protocol == "http" || f.protocol == "inject" {
		if inject, _ := set.Injects(f.target); (len(inject) > 0) != (f.protocol == "inject") {
			return rules.Verdict{Rule: v.Rule, Reason: "its requests are sent another way"}
		}
	}
	if f.addr.IsValid() && set.UpstreamURL() == nil {
		av, err := f.p.address(set, f.addr, f.target.Name != "")
		if err != nil {
			return rules.Verdict{Rule: "address", Reason: "boxd cannot read the routes of its host"}
		}
		if !av.Allowed {
			return ofName(f.target, av)
		}
	}
	return v
}

// attach gives the flow its connection to the network, which is tracked already, and its
// address. raw says that only a rule with the port allows what the flow will carry. The rules may have
// changed since the decision, so it decides again.
func (f *flow) attach(remote *net.TCPConn, addr netip.AddrPort, raw bool) error {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	return f.attachLocked(remote, addr, raw)
}

// attachKept is attach for a connection of a transport, which is the flow's until another gets it.
func (f *flow) attachKept(c *keptConn, addr netip.AddrPort) error {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	f.kept, c.owner = c, f
	// Port 443 carries TLS, unless a rule names the port.
	return f.attachLocked(c.TCPConn, addr, f.protocol == "http" && f.target.Port == 443)
}

func (f *flow) attachLocked(remote *net.TCPConn, addr netip.AddrPort, raw bool) error {
	f.remote, f.raw = remote, raw
	// The operator alone knows where the upstream proxy is.
	if f.p.now.Load().set.UpstreamURL() == nil {
		f.addr = addr
	}
	switch {
	case f.p.shut:
		return ErrShut
	case f.reason != "":
		return errChanged
	}
	if v := f.judgeLocked(f.p.now.Load().set); !v.Allowed {
		f.verdict = v
		return &Refusal{Target: f.target, Verdict: v}
	}
	return nil
}

// settle gives up the flow's context, which costs an open tunnel 0.8 KB: closing a tunnel resets its connections, which
// ends its directions.
func (f *flow) settle() {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	f.cancel()
	f.cancel = func() {}
}

// allowsAny reports whether the flow may carry any protocol.
func (f *flow) allowsAny() bool {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	return f.verdict.Any
}

// closeLocked resets the flow's connections; its goroutines then end it.
func (f *flow) closeLocked(reason string) {
	f.reasonLocked(reason)
	f.cancel()
	reset(f.client)
	if f.remote != nil && (f.kept == nil || f.kept.owner == f) {
		reset(f.remote)
	}
}

// reasonLocked keeps the first reason: later errors only follow from it.
func (f *flow) reasonLocked(reason string) {
	if f.reason == "" {
		f.reason = reason
	}
}

// fail records why the flow does not go on. A refusal counts as a denial.
func (f *flow) fail(err error) {
	refusal, refused := errors.AsType[*Refusal](err)
	limit, limited := errors.AsType[*limitError](err)
	rule := ""
	f.p.mu.Lock()
	switch {
	case f.reason != "":
	case refused:
		f.verdict, f.reason, f.refused = refusal.Verdict, refusal.Verdict.Reason, refusal.Address
		rule = refusal.Verdict.Rule
	case limited:
		rule = limit.rule
		fallthrough
	default:
		f.reason, f.err = causeOf(err), err
	}
	f.p.mu.Unlock()
	if rule != "" {
		f.p.denied(f.target.String(), rule)
	}
}

// end reports the flow's end. It does not close its connections.
func (f *flow) end() {
	f.cancel()
	f.p.mu.Lock()
	delete(f.p.flows, f)
	seen := f.snapshotLocked()
	f.p.mu.Unlock()
	seen.Ended = true
	f.p.cfg.Observe(seen)
}

func (f *flow) snapshotLocked() Connection {
	addr := f.addr
	if !addr.IsValid() && f.target.Name == "" {
		addr = netip.AddrPortFrom(f.target.Addr, f.target.Port)
	}
	c := Connection{ID: f.id, Name: f.target.Name, Port: f.target.Port, Address: addr, Protocol: f.protocol, In: f.in.Load(), Out: f.out.Load(),
		Allowed: f.verdict.Allowed, Rule: f.verdict.Rule, Reason: f.reason, Refused: f.refused, Start: f.start, Duration: time.Since(f.start)}
	if f.err != nil {
		c.Error = f.err.Error()
	}
	return c
}

// errIdle: no byte moved for Limits.Idle.
var errIdle = errors.New("idle for too long")

// take books up to n bytes against Limits.Bytes and returns how many of them it has left.
func (p *Proxy) take(n int) (int, error) {
	limit := int64(p.now.Load().set.Limits.Bytes)
	if total := p.spent.Add(int64(n)); limit > 0 && total > limit {
		over := min(total-limit, int64(n))
		p.spent.Add(-over)
		if n -= int(over); n == 0 {
			return 0, errSpent
		}
	}
	return n, nil
}

// spend books up to n bytes that were read, waits as count does, and returns how many of
// them may be sent.
func (f *flow) spend(ctx context.Context, n int, total *atomic.Int64) (int, error) {
	n, err := f.p.take(n)
	if err == nil {
		err = f.count(ctx, n, total)
	}
	return n, err
}

// count books n bytes that were read, and waits as long as the bandwidth demands: before
// they are sent, so that nobody gets them early.
func (f *flow) count(ctx context.Context, n int, total *atomic.Int64) error {
	f.last.Store(now())
	total.Add(int64(n))
	b := f.p.bucket
	if b.Limit() == rate.Inf {
		return nil
	}
	for n > 0 {
		part := min(n, max(b.Burst(), 1))
		switch err := b.WaitN(ctx, part); {
		case err == nil:
			n -= part
		case ctx.Err() != nil:
			return ctx.Err()
		case b.Limit() == rate.Inf: // as of now
			return nil
		}
	}
	return nil
}

// smallBuffer is how much a copy reads at once, unless it fills that. A connection holds a
// buffer or a pipe only while it has bytes to move, so an idle one costs neither.
const smallBuffer = 16 << 10

var smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}

// copy moves bytes from the source of d until it ends, which gives nil, or until d is parked. It reads into a buffer;
// a stream that filled one goes through a pipe (splice(2)) while it fills more.
func (f *flow) copy(d *direction) error {
	ctx, dst, src := f.p.ctx, d.dst, d.src
	raw, err := src.SyscallConn()
	if err != nil {
		return err
	}
	var (
		b    *[smallBuffer]byte
		via  *pipe
		n    int
		bulk bool
		rerr error
	)
	release := func() {
		if b != nil {
			smallBuffers.Put(b)
			b = nil
		}
		if via != nil {
			via.release()
			via = nil
		}
	}
	read := func(fd uintptr) bool {
		if b := f.p.bucket; bulk && (b.Limit() == rate.Inf || b.Burst() >= pipeSize) {
			via = takePipe()
		}
		if via != nil {
			n, rerr = via.fill(int(fd))
		} else {
			b = smallBuffers.Get().(*[smallBuffer]byte)
			n, rerr = ignoringEINTR(func() (int, error) { return syscall.Read(int(fd), b[:]) })
		}
		bulk = n == smallBuffer || bulk && n > smallBuffer
		if n <= 0 {
			n = 0
			release()
		}
		return !errors.Is(rerr, syscall.EAGAIN)
	}
	for {
		n, rerr = 0, nil
		if err := raw.Read(read); err != nil {
			if err = f.extend(src.SetReadDeadline, parkAfter, err); err != nil {
				return err
			}
			if left, quiet := f.patience(); quiet {
				if park(d) == nil {
					return errParked
				}
				src.SetReadDeadline(time.Now().Add(min(left, parkRetry)))
			}
			continue
		}
		if rerr != nil {
			return fmt.Errorf("reading: %w", rerr)
		}
		if n == 0 {
			return nil
		}
		room, err := f.spend(ctx, n, d.total)
		if err == nil {
			if via != nil {
				err = f.splice(dst, via, room)
			} else {
				err = f.write(dst, b[:room])
			}
		}
		release()
		if err == nil && room < n {
			err = errSpent
		}
		if err != nil {
			return err
		}
	}
}

// splice is write for n bytes of a pipe.
func (f *flow) splice(dst *net.TCPConn, via *pipe, n int) error {
	raw, err := dst.SyscallConn()
	if err != nil {
		return err
	}
	for n > 0 {
		var werr error
		err := raw.Write(func(fd uintptr) bool {
			for n > 0 && werr == nil {
				var moved int
				if moved, werr = via.drain(int(fd), n); moved > 0 {
					n -= moved
					f.last.Store(now())
				}
			}
			wait := errors.Is(werr, syscall.EAGAIN)
			if wait {
				werr = nil
			}
			return !wait
		})
		if err != nil {
			if err = f.extend(dst.SetWriteDeadline, f.idle(), err); err != nil {
				return err
			}
			continue
		}
		if werr != nil {
			return fmt.Errorf("writing: %w", werr)
		}
	}
	return nil
}

// write is dst.Write, except that a deadline counts only if the flow is idle.
func (f *flow) write(dst net.Conn, b []byte) error {
	for {
		n, err := dst.Write(b)
		if n > 0 {
			f.last.Store(now())
		}
		if b = b[n:]; err == nil {
			return nil
		}
		if err = f.extend(dst.SetWriteDeadline, f.idle(), err); err != nil {
			return err
		}
	}
}

// send counts b in total and writes it to c.
func (f *flow) send(ctx context.Context, c net.Conn, b []byte, total *atomic.Int64) error {
	for len(b) > 0 {
		n, err := f.spend(ctx, len(b), total)
		if err == nil {
			err = f.write(c, b[:n])
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// extend sets a new deadline, at most after most, if err is a timeout and the flow was not idle, in either
// direction. Otherwise it returns the error that ends the flow. A deadline is not moved
// with every byte, because that would cost more than moving a small packet.
func (f *flow) extend(set func(time.Time) error, most time.Duration, err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	left, _ := f.patience()
	if left <= 0 {
		return errIdle
	}
	return set(time.Now().Add(min(left, most)))
}

// idle is how long the flow may move no byte.
func (f *flow) idle() time.Duration { return f.p.now.Load().set.Limits.Idle.D() }

// patience returns how long the flow may still move no byte, and whether it has moved none for parkAfter.
func (f *flow) patience() (left time.Duration, quiet bool) {
	still := time.Duration(now() - f.last.Load())
	return f.idle() - still, still >= parkAfter
}

var started = time.Now()

// now is the time since the process began, in nanoseconds. Steps of the clock do not change it.
func now() int64 { return int64(time.Since(started)) }
