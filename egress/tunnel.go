package egress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/boxd/boxd/egress/rules"
)

// errSOCKS: not a SOCKS5 request without authentication.
var errSOCKS = errors.New("the SOCKS5 request is not valid")

// answer writes a response of one line, which is also in the reason phrase, because many
// programs show nothing else of a refused CONNECT.
func (k *client) answer(status int, line string) {
	line = "boxd: " + oneLine(line)
	reason, denied := http.StatusText(status), ""
	if status == http.StatusForbidden {
		reason, denied = line, "X-Boxd-Denied: "+line+"\r\n"
	}
	k.c.SetDeadline(time.Now().Add(lingerTime))
	fmt.Fprintf(k.c, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n%sConnection: close\r\n\r\n%s\n",
		status, reason, len(line)+1, denied, line)
	k.linger()
}

// linger ends the answer and reads what the program still sends for a moment: closing with
// unread bytes would destroy the answer.
func (k *client) linger() {
	k.c.SetDeadline(time.Now().Add(lingerTime))
	k.c.CloseWrite()
	io.CopyN(io.Discard, k.br, 1<<20)
}

// oneLine keeps what a program sent from starting a line of its own in an answer.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

// refuse answers with the status that belongs to err.
func (k *client) refuse(t rules.Target, err error) {
	status := http.StatusBadGateway
	if _, refused := errors.AsType[*Refusal](err); refused {
		status = http.StatusForbidden
	} else if _, limited := errors.AsType[*limitError](err); limited || errors.Is(err, ErrShut) || errors.Is(err, errChanged) || errors.Is(err, errUnlogged) {
		status = http.StatusServiceUnavailable
	}
	k.answer(status, explain(t, err))
}

// malformed reports a request that is refused because of its form. t is the target that it seems to mean; zero: none.
func (k *client) malformed(protocol string, t rules.Target, err error) {
	p := k.p
	c := Connection{ID: p.nextID.Add(1), Name: t.Name, Port: t.Port, Protocol: protocol, Rule: "malformed", Reason: oneLine(err.Error()), Start: time.Now(), Ended: true}
	what := protocol + " request"
	if t.Port != 0 {
		what = t.String()
	}
	if t.Addr.IsValid() {
		c.Address = netip.AddrPortFrom(t.Addr, t.Port)
	}
	p.denied(what, "malformed")
	p.cfg.Observe(c)
}

// serveCONNECT serves a CONNECT request. It reports whether a tunnel owns the connection.
func (k *client) serveCONNECT(h *head) bool {
	t, err := h.connectTarget()
	if err != nil {
		k.malformed("connect", t, err)
		k.answer(http.StatusBadRequest, err.Error())
		return false
	}
	return k.tunnel(t, "connect", []byte("HTTP/1.1 200 Connection established\r\n\r\n"), func(err error) { k.refuse(t, err) })
}

// SOCKS5 replies, RFC 1928, section 6.
const (
	socksOK          = 0
	socksFailure     = 1
	socksNotAllowed  = 2
	socksUnreachable = 4
	socksRefused     = 5
	socksTimeout     = 6 // "TTL expired" is the closest
	socksCommand     = 7
	socksAddressType = 8
)

// serveSOCKS serves one SOCKS5 connection. It reports whether a tunnel owns it.
//
//	05 n method…        05 00     a method must be 00, no authentication
//	05 01 00 type address port    05 reply 00 01 0.0.0.0 0
func (k *client) serveSOCKS() bool {
	reply := func(code byte) []byte { return []byte{5, code, 0, 1, 0, 0, 0, 0, 0, 0} }
	t, code, err := k.readSOCKS()
	if err != nil {
		if errors.Is(err, errSOCKS) {
			k.malformed("socks5", rules.Target{}, err)
			if code != 0 {
				k.c.Write(reply(code))
			}
		}
		return false
	}
	return k.tunnel(t, "socks5", reply(socksOK), func(err error) {
		code := byte(socksFailure)
		timeout, isNet := errors.AsType[net.Error](err)
		dns, isDNS := errors.AsType[*net.DNSError](err)
		switch _, refused := errors.AsType[*Refusal](err); {
		case refused:
			code = socksNotAllowed
		case errors.Is(err, syscall.ECONNREFUSED):
			code = socksRefused
		case isDNS && dns.IsNotFound, errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
			code = socksUnreachable
		case isNet && timeout.Timeout():
			code = socksTimeout
		}
		k.c.SetDeadline(time.Now().Add(lingerTime))
		k.c.Write(reply(code))
		k.linger()
	})
}

// readSOCKS reads the greeting, answers it, and reads the request. With errSOCKS, code is
// the reply if the program can read one.
func (k *client) readSOCKS() (t rules.Target, code byte, err error) {
	var b [256 + 2]byte
	read := func(n int) []byte {
		if err == nil {
			_, err = io.ReadFull(k.br, b[:n])
		}
		return b[:n]
	}
	methods := int(read(2)[1])
	open := strings.IndexByte(string(read(methods)), 0) >= 0
	if err != nil {
		return t, 0, err
	}
	if !open {
		k.c.Write([]byte{5, 0xff})
		return t, 0, fmt.Errorf("%w: it must offer no authentication", errSOCKS)
	}
	if _, err := k.c.Write([]byte{5, 0}); err != nil {
		return t, 0, err
	}
	request := [4]byte(read(4))
	switch {
	case err != nil:
		return t, 0, err
	case request[0] != 5 || request[2] != 0:
		return t, socksFailure, errSOCKS
	case request[1] != 1:
		return t, socksCommand, fmt.Errorf("%w: only CONNECT is known", errSOCKS)
	}
	var host string
	switch request[3] {
	case 1:
		t.Addr = netip.AddrFrom4([4]byte(read(4)))
	case 3:
		host = string(read(int(read(1)[0])))
	case 4:
		t.Addr = netip.AddrFrom16([16]byte(read(16))).Unmap()
	default:
		return t, socksAddressType, errSOCKS
	}
	if request[3] == 3 && err == nil {
		parsed, perr := rules.ParseHost(host)
		if perr != nil {
			return t, socksNotAllowed, fmt.Errorf("%w: %w", errSOCKS, perr)
		}
		t = parsed
	}
	port := read(2)
	if t.Port = uint16(port[0])<<8 | uint16(port[1]); t.Port == 0 && err == nil {
		return t, socksNotAllowed, errSOCKS
	}
	return t, 0, err
}

// tunnel connects to t and copies both ways. ok is the answer to the program if t may be
// reached; refuse answers otherwise. It reports whether the tunnel owns the connection.
//
// Unless a rule names the port, port 443 carries TLS for t only, and port 80 carries HTTP
// requests for t, which are forwarded one by one.
func (k *client) tunnel(t rules.Target, protocol string, ok []byte, refuse func(error)) bool {
	p := k.p
	if err := k.enter(t); err != nil {
		refuse(err)
		return false
	}
	if t.Port == 80 {
		set := p.now.Load().set
		inject, _ := set.Injects(t)
		if v := set.Decide(t, p.cfg.Host); len(inject) > 0 || v.Allowed && !v.Any {
			k.c.SetDeadline(time.Now().Add(headTime))
			if _, err := k.c.Write(ok); err != nil {
				return false
			}
			return k.serveHTTP(&t)
		}
	}
	ctx, f, err := p.open(k.c, t, protocol)
	if err != nil {
		refuse(err)
		return false
	}
	remote, addr, err := p.dial(ctx, t)
	checked := t.Port == 443 && !f.allowsAny()
	if err == nil {
		err = f.attach(remote, addr, !checked)
	}
	answered := false
	var early []byte
	if err == nil {
		k.c.SetDeadline(time.Now().Add(headTime))
		answered = true
		if _, err = k.c.Write(ok); err == nil && checked {
			early, err = k.checkHello(f)
		}
	}
	if err != nil {
		f.fail(err)
		if !answered {
			refuse(err)
		}
		if remote != nil {
			p.drop(remote)
		}
		f.end()
		return false
	}
	f.settle()
	// Both goroutines of the tunnel begin with a small stack; this one's has grown.
	waiting, _ := k.br.Peek(k.br.Buffered())
	early = append(early, waiting...)
	k.giveReader()
	begin := time.Now()
	for _, c := range []*net.TCPConn{k.c, remote} {
		c.SetReadDeadline(begin.Add(min(f.idle(), parkAfter)))
		c.SetWriteDeadline(begin.Add(f.idle()))
	}
	var ended atomic.Int32
	finish := func(dst *net.TCPConn, err error) {
		if err == nil {
			dst.CloseWrite()
		} else {
			// The other direction fails at once with what follows from this.
			f.fail(err)
			reset(k.c)
			reset(remote)
		}
		if ended.Add(1) == 2 {
			p.drop(remote)
			p.drain(k.c)
			f.end()
			k.end()
		}
	}
	go (&direction{f: f, dst: remote, src: k.c, total: &f.out, early: early, finish: finish}).run()
	go (&direction{f: f, dst: k.c, src: remote, total: &f.in, finish: finish}).run()
	return true
}

// checkHello reads the ClientHello of the tunnel f and checks it. The bytes are returned to be sent on;
// a refusal is told to the program by a TLS alert.
func (k *client) checkHello(f *flow) ([]byte, error) {
	raw, h, err := readHello(k.br)
	reason := ""
	switch {
	case errors.Is(err, errNotTLS), errors.Is(err, errHello):
		reason = err.Error()
	case err != nil:
		return nil, err
	default:
		f.p.mu.Lock()
		f.hello = &h
		reason = h.forbidden(f.p.now.Load().set, f.target)
		f.p.mu.Unlock()
	}
	if reason == "" {
		return raw, nil
	}
	if !errors.Is(err, errNotTLS) {
		k.c.Write([]byte{21, 3, 3, 0, 2, 2, 112}) // fatal alert: unrecognized_name
		k.c.CloseWrite()
	}
	return nil, &Refusal{Target: f.target, Verdict: rules.Verdict{Rule: "tls", Reason: reason}}
}
