package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/proxy"

	"github.com/boxd/boxd/egress/rules"
)

const (
	resolveTime = 10 * time.Second
	dialTime    = 30 * time.Second // all addresses together
	// dialDelay is how long an address may take before the next one is tried as well
	// (RFC 8305).
	dialDelay    = 250 * time.Millisecond
	maxAddresses = 8 // of one name
)

// dial connects to t, through the upstream proxy if there is one, and returns the address
// that it dialled. The connection is tracked; the caller owns it and ends it with drop. If the
// rules forbid every address, the error is a *Refusal.
func (p *Proxy) dial(ctx context.Context, t rules.Target) (*net.TCPConn, netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if p.now.Load().set.UpstreamURL() != nil {
		return p.dialThrough(ctx, t)
	}
	return p.reach(ctx, t, func(ap netip.AddrPort) error {
		// The rules in force now, which may be newer than those that allowed the name.
		v, err := p.address(p.now.Load().set, ap, t.Name != "")
		if err != nil || v.Allowed {
			return err
		}
		refusal := &Refusal{Target: t, Verdict: ofName(t, v)}
		if t.Name != "" {
			refusal.Address = ap.Addr().Unmap()
		}
		return refusal
	})
}

// address is [rules.Set.Address], to which an address that the host's routes lead to the host itself is
// one of the host, and so is an IPv4 address inside of ap's. The error is that of reading a route.
func (p *Proxy) address(set *rules.Set, ap netip.AddrPort, byName bool) (rules.Verdict, error) {
	host, forms := p.cfg.Host, []netip.Addr{ap.Addr().Unmap()}
	if inner, ok := rules.Embedded(forms[0]); ok {
		forms = append(forms, inner)
	}
	var here []netip.Addr
	for _, addr := range forms {
		if addr.IsLoopback() { // which has rules of its own
			continue
		}
		local, err := p.routed(addr)
		if err != nil {
			return rules.Verdict{}, err
		}
		if local {
			here = append(here, addr)
		}
	}
	if here != nil {
		var own []netip.Addr
		if host.Own != nil {
			own = host.Own()
		}
		host.Own = func() []netip.Addr { return slices.Concat(own, here) }
		if never := host.Never; never != nil {
			// Never knows the addresses of interfaces only; a listener on all addresses
			// is on this one, too.
			host.Never = func(to netip.AddrPort) bool {
				return never(to) || never(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port()))
			}
		}
	}
	return set.Address(ap, byName, host), nil
}

// reach resolves t and connects to the first address that answers, trying the next one
// after dialDelay. check decides about each address that is really dialled. Each attempt
// holds a socket; without a free one for the first, the error is errBusy or errFull.
func (p *Proxy) reach(ctx context.Context, t rules.Target, check func(netip.AddrPort) error) (*net.TCPConn, netip.AddrPort, error) {
	var none netip.AddrPort
	// The resolver uses the socket of the first attempt.
	if err := p.takeSocket(); err != nil {
		return nil, none, err
	}
	first := true
	defer func() {
		if first {
			p.freeSocket()
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addrs := []netip.Addr{t.Addr}
	if t.Name != "" {
		rctx, done := context.WithTimeout(ctx, resolveTime)
		// The trailing dot keeps the host's search domains out. A single label stands in an entry
		// of its own, and means what it means on the host; /etc/hosts does not have it with a dot.
		name := t.Name
		if strings.Contains(name, ".") {
			name += "."
		}
		found, err := p.cfg.Resolve(rctx, name)
		done()
		if err != nil {
			return nil, none, err
		}
		addrs = alternate(found)
	}
	if len(addrs) == 0 {
		return nil, none, &net.DNSError{Err: "no address", Name: t.Name, IsNotFound: true}
	}
	dialer := net.Dialer{Control: func(_, address string, raw syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err == nil {
			err = check(ap)
		}
		if err == nil {
			err = boundBuffers(raw)
		}
		return err
	}}
	type result struct {
		c   net.Conn
		ap  netip.AddrPort
		err error
	}
	results := make(chan result)
	next := time.NewTimer(0)
	defer next.Stop()
	var failed error
	for started, pending := 0, 0; ; {
		select {
		case <-next.C:
			if started == len(addrs) {
				continue
			}
			if !first && p.takeSocket() != nil {
				// Another attempt would only be faster, unless none is pending.
				if pending == 0 {
					return nil, none, failed
				}
				next.Reset(dialDelay)
				continue
			}
			first = false
			ap := netip.AddrPortFrom(addrs[started], t.Port)
			started++
			pending++
			next.Reset(dialDelay)
			go func() {
				c, err := p.connect(ctx, &dialer, ap)
				results <- result{c, ap, err}
			}()
		case r := <-results:
			pending--
			if r.err == nil {
				cancel()
				// The other attempts end at once; one may still succeed.
				for ; pending > 0; pending-- {
					if r := <-results; r.err == nil {
						r.c.Close()
					}
					p.freeSocket()
				}
				c := r.c.(*net.TCPConn)
				if !p.track(c) {
					return nil, none, ErrShut
				}
				return c, r.ap, nil
			}
			p.freeSocket()
			// A refusal explains more than a failure.
			if _, refused := errors.AsType[*Refusal](r.err); failed == nil || refused {
				failed = r.err
			}
			if pending == 0 && started == len(addrs) {
				return nil, none, failed
			}
			next.Reset(0)
		}
	}
}

// alternate orders addresses so that the families take turns, beginning with the first
// one's, and keeps maxAddresses of them.
func alternate(addrs []netip.Addr) []netip.Addr {
	var families [2][]netip.Addr
	for _, a := range addrs {
		a, i := a.Unmap(), 0
		if a.Is4() != addrs[0].Unmap().Is4() {
			i = 1
		}
		families[i] = append(families[i], a)
	}
	var order []netip.Addr
	for i := range max(len(families[0]), len(families[1])) {
		for _, f := range families {
			if i < len(f) && len(order) < maxAddresses {
				order = append(order, f[i])
			}
		}
	}
	return order
}

// dialUpstream connects to the upstream proxy, whose address the rules do not check: the
// operator chose it.
func (p *Proxy) dialUpstream(ctx context.Context, via *url.URL) (*net.TCPConn, netip.AddrPort, error) {
	t, err := rules.ParseAuthority(via.Host, 0)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	return p.reach(ctx, t, func(ap netip.AddrPort) error {
		if p.cfg.Host.IsListener(ap) {
			return &Refusal{Target: t, Verdict: rules.Verdict{Rule: "address", Reason: "the upstream proxy is a listener of boxd"}}
		}
		return nil
	})
}

// upstreamURL returns the upstream proxy with its login, nil if there is none.
func (p *Proxy) upstreamURL(set *rules.Set) (*url.URL, error) {
	via := set.UpstreamURL()
	if via == nil || set.UpstreamLogin == nil {
		return via, nil
	}
	login, err := p.secret(*set.UpstreamLogin)
	if err != nil {
		return nil, err
	}
	with := *via
	user, password, _ := strings.Cut(login, ":")
	with.User = url.UserPassword(user, password)
	return &with, nil
}

// dialThrough connects to t through an upstream proxy, which resolves the name.
func (p *Proxy) dialThrough(ctx context.Context, t rules.Target) (*net.TCPConn, netip.AddrPort, error) {
	var addr netip.AddrPort
	via, err := p.upstreamURL(p.now.Load().set)
	if err != nil {
		return nil, addr, err
	}
	if via == nil { // the rules changed; the flow is being closed
		return nil, addr, ErrShut
	}
	var c *net.TCPConn
	connect := contextDialer(func(ctx context.Context) (_ net.Conn, err error) {
		c, addr, err = p.dialUpstream(ctx, via)
		if err != nil {
			return nil, err
		}
		return c, nil
	})
	if via.Scheme == "socks5" {
		var auth *proxy.Auth
		if via.User != nil {
			password, _ := via.User.Password()
			auth = &proxy.Auth{User: via.User.Username(), Password: password}
		}
		var d proxy.Dialer
		if d, err = proxy.SOCKS5("tcp", via.Host, auth, connect); err == nil {
			_, err = d.(proxy.ContextDialer).DialContext(ctx, "tcp", t.String())
		}
	} else if _, err = connect(ctx); err == nil {
		stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
		err = requestTunnel(c, via, t)
		if !stop() && err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		if c != nil {
			reset(c)
			p.drop(c)
		}
		return nil, addr, fmt.Errorf("upstream proxy: %w", err)
	}
	return c, addr, nil
}

// contextDialer is a dialer of [proxy] that always connects to the same place.
type contextDialer func(ctx context.Context) (net.Conn, error)

func (d contextDialer) Dial(_, _ string) (net.Conn, error) { return d(context.Background()) }
func (d contextDialer) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	return d(ctx)
}

// errUpstream: the upstream proxy did not accept a tunnel.
var errUpstream = errors.New("refused the connection")

// requestTunnel asks an HTTP proxy for a tunnel to t. It reads single bytes, so as to take
// nothing that belongs to the tunnel.
func requestTunnel(c net.Conn, via *url.URL, t rules.Target) error {
	request := fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n", t)
	if via.User != nil {
		password, _ := via.User.Password()
		request += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(via.User.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(c, request+"\r\n"); err != nil {
		return err
	}
	answer := make([]byte, 0, 512)
	for !bytes.HasSuffix(answer, []byte("\r\n\r\n")) {
		if len(answer) == maxTrailer {
			return errUpstream
		}
		answer = append(answer, 0)
		if _, err := io.ReadFull(c, answer[len(answer)-1:]); err != nil {
			return err
		}
	}
	if status := string(answer[:min(len(answer), 12)]); status != "HTTP/1.1 200" && status != "HTTP/1.0 200" {
		return errUpstream
	}
	return nil
}

// explain returns an error for the program in the box.
func explain(t rules.Target, err error) string {
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		return t.String() + " is not allowed: " + refusal.Verdict.Reason
	}
	return t.String() + " cannot be reached: " + causeOf(err)
}

// causeOf says why a connection failed, without addresses and names of the host's own network, and
// without secrets.
func causeOf(err error) string {
	cause := "the connection failed"
	dns, isDNS := errors.AsType[*net.DNSError](err)
	errno, isErrno := errors.AsType[syscall.Errno](err)
	timeout, isNet := errors.AsType[net.Error](err)
	_, isCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case isCertificate:
		cause = "its certificate is not valid"
	case errors.Is(err, errUpstream):
		cause = "the upstream proxy refused the connection"
	case isDNS && dns.IsNotFound:
		cause = "the name does not exist"
	case isDNS:
		cause = "the name cannot be resolved"
	case isNet && timeout.Timeout():
		cause = "it does not answer in time"
	case isErrno:
		cause = errno.Error()
	}
	for _, plain := range []error{ErrShut, errIdle, errSecret, errChanged, errUnlogged, errAnswer} {
		if errors.Is(err, plain) {
			cause = plain.Error()
		}
	}
	if limit, ok := errors.AsType[*limitError](err); ok {
		cause = limit.Error()
	}
	return cause
}
