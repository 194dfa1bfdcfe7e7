package egress

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/egress/rules"
)

// newTransport returns what forwards requests under set. Its keep-alive connections are
// per scheme, host and port. Those of plain requests to an upstream proxy over HTTP are for all
// hosts together.
func (p *Proxy) newTransport(set *rules.Set) *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			// A transport goes on dialling for later requests when its request is gone.
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(p.ctx, cancel)()
			select {
			case p.dialling <- struct{}{}:
				defer func() { <-p.dialling }()
			default:
				return nil, errBusy
			}
			if err := p.dials.Wait(ctx); err != nil {
				return nil, err
			}
			c := &keptConn{p: p, idle: set.Limits.Idle.D()}
			var err error
			if via := set.UpstreamURL(); via != nil {
				c.TCPConn, c.addr, err = p.dialUpstream(ctx, via)
			} else {
				var t rules.Target
				if t, err = rules.ParseAuthority(address, 0); err == nil {
					c.TCPConn, c.addr, err = p.dial(ctx, t)
				}
			}
			if err != nil {
				return nil, err
			}
			return c, nil
		},
		TLSClientConfig:        &tls.Config{RootCAs: p.cfg.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    headTime,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    4,
		MaxIdleConns:           16,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
	if set.UpstreamURL() != nil {
		t.Proxy = func(*http.Request) (*url.URL, error) { return p.upstreamURL(set) }
	}
	return t
}

// keptConn is a connection of a transport. A read that waits for idle fails.
type keptConn struct {
	*net.TCPConn
	p    *Proxy
	addr netip.AddrPort // that was decided
	idle time.Duration
	// owner is the last flow that got the connection; guarded by p.mu.
	owner *flow
}

// Read waits as long as the flow is not idle: the body of its request may move while the answer is awaited.
func (c *keptConn) Read(b []byte) (int, error) {
	c.SetReadDeadline(time.Now().Add(c.idle))
	for {
		n, err := c.TCPConn.Read(b)
		if err == nil || n > 0 {
			return n, err
		}
		c.p.mu.Lock()
		f := c.owner
		c.p.mu.Unlock()
		if f == nil || f.extend(c.SetReadDeadline, c.idle, err) != nil {
			return n, err
		}
	}
}

func (c *keptConn) Write(b []byte) (int, error) {
	c.SetWriteDeadline(time.Now().Add(c.idle))
	return c.TCPConn.Write(b)
}

// ReadFrom uses Write. Otherwise the transport would find that of the TCP connection, which sets no deadlines.
func (c *keptConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{c}, r) }

func (c *keptConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.addr) }

// Close does not wait until the kernel has sent what is queued, because the transport holds
// locks.
func (c *keptConn) Close() error {
	p := c.p
	if unsent(c.TCPConn) == 0 || !p.join() {
		p.drop(c.TCPConn)
		return nil
	}
	go func() {
		defer p.wg.Done()
		p.drop(c.TCPConn)
	}()
	return nil
}

// serveHTTP serves the requests of a connection: absolute-form ones, or, in a tunnel to
// fixed at port 80, those for fixed. It reports whether a tunnel owns the connection.
func (k *client) serveHTTP(fixed *rules.Target) bool {
	for {
		h, err := readHead(k.br)
		if err != nil {
			if _, bad := errors.AsType[badRequest](err); bad {
				k.malformed("http", rules.Target{}, err)
				k.answer(http.StatusBadRequest, err.Error())
			}
			return false
		}
		if h.method == http.MethodConnect && fixed == nil {
			return k.serveCONNECT(h)
		}
		if !k.exchange(h, fixed) {
			return false
		}
		k.c.SetDeadline(time.Now().Add(min(keepAlive, k.p.now.Load().set.Limits.Idle.D())))
	}
}

// exchange forwards one request and its response. It reports whether the connection can
// carry another request.
func (k *client) exchange(h *head, fixed *rules.Target) bool {
	p := k.p
	t, path, err := h.httpTarget(fixed)
	var uri *url.URL
	if err == nil {
		if uri, err = url.ParseRequestURI(path); err != nil {
			err = badRequest("its path is malformed")
		}
	}
	if err == nil && h.method == http.MethodConnect {
		err = badRequest("CONNECT in a tunnel")
	}
	if err != nil {
		k.malformed("http", t, err)
		k.answer(http.StatusBadRequest, err.Error())
		return false
	}
	if err := k.enter(t); err != nil {
		k.refuse(t, err)
		return false
	}
	state := p.now.Load()
	protocol := "http"
	inject, port := state.set.Injects(t)
	uri.Scheme = "http"
	if len(inject) > 0 && strings.EqualFold(h.method, http.MethodTrace) {
		err := badRequest("TRACE would send the headers that the proxy adds back to the program")
		k.malformed("inject", t, err)
		k.answer(http.StatusMethodNotAllowed, err.Error())
		return false
	}
	if len(inject) > 0 {
		protocol, uri.Scheme, t.Port = "inject", "https", port
	}
	uri.Host = t.String()
	ctx, f, err := p.open(k.c, t, protocol)
	if err != nil {
		k.refuse(t, err)
		return false
	}
	defer f.end()
	if p.now.Load() != state {
		f.fail(errChanged)
		k.refuse(t, errChanged)
		return false
	}
	err = nil
	switch {
	case t.Port == 443 && len(inject) == 0 && !f.allowsAny():
		err = &Refusal{Target: t, Verdict: rules.Verdict{Rule: "tls", Reason: "port 443 carries TLS only, unless a rule names the port"}}
	case h.webSocket && f.allowsAny():
		err = &Refusal{Target: t, Verdict: rules.Verdict{Rule: "http", Reason: "a forwarded request carries no WebSocket: connect to it by CONNECT"}}
	case h.webSocket:
		err = &Refusal{Target: t, Verdict: rules.Verdict{Rule: "http", Reason: fmt.Sprintf("plain HTTP carries no WebSocket, unless a rule names the port: write %q", t)}}
	}
	if err != nil {
		f.fail(err)
		k.refuse(t, err)
		return false
	}
	k.c.SetDeadline(time.Now().Add(state.set.Limits.Idle.D()))
	secrets, err := p.addSecrets(h.header, inject)
	if err == nil {
		_, err = f.spend(ctx, int(h.size), &f.out)
	}
	if err != nil {
		f.fail(err)
		k.refuse(t, err)
		return false
	}
	body := &requestBody{k: k, f: f, ctx: ctx, left: h.length, chunked: h.length < 0}
	body.src = k.br
	if body.chunked {
		body.src = httputil.NewChunkedReader(k.br)
	}
	body.whole.Store(h.length == 0)
	body.wait = h.expect
	request := (&http.Request{Method: h.method, URL: uri, Host: t.String(), Header: h.header, ContentLength: h.length, Body: http.NoBody}).
		WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			c := info.Conn
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			// HTTP/1: the connection is this request's alone. A change of the rules closes it at
			// once, which the transport does some time after the context has ended.
			if f.attachKept(c.(*keptConn), info.Conn.RemoteAddr().(*net.TCPAddr).AddrPort()) != nil {
				f.cancel()
			}
		}}))
	if h.length != 0 {
		request.Body = body
		k.body.Store(body)
	}
	if defaultPort := uri.Scheme == "http" && t.Port == 80 || uri.Scheme == "https" && t.Port == 443; defaultPort {
		request.Host = strings.TrimSuffix(request.Host, ":"+strconv.Itoa(int(t.Port)))
	}
	if _, ok := h.header["User-Agent"]; !ok {
		h.header["User-Agent"] = nil // net/http adds its own otherwise
	}
	response, err := state.transport.RoundTrip(request)
	if err == nil && response.StatusCode < 200 {
		response.Body.Close()
		err = errAnswer
	}
	if err != nil {
		body.stop()
		err = hideAnswer(err)
		f.fail(err)
		k.refuse(t, err)
		return false
	}
	defer response.Body.Close()
	keep := k.writeResponse(ctx, f, h, response, body, secrets)
	if !body.stop() || !keep {
		k.linger()
		return false
	}
	return true
}

// errChanged: the rules changed while a request was decided.
var errChanged = errors.New("the rules are being changed; retry")

// errAnswer stands for errors whose text may repeat what the server sent, and with that a
// secret that the server repeats.
var errAnswer = errors.New("the server's answer is not valid HTTP")

func hideAnswer(err error) error {
	if _, ok := errors.AsType[*Refusal](err); ok {
		return err
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*limitError](err); ok {
		return err
	}
	for _, plain := range []error{context.Canceled, ErrShut, errIdle, errSecret, errUpstream, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, plain) {
			return err
		}
	}
	return errAnswer
}

// writeResponse sends the response to the program. It reports whether the connection can
// carry another request.
func (k *client) writeResponse(ctx context.Context, f *flow, h *head, r *http.Response, body *requestBody, secrets []string) bool {
	defer k.c.SetDeadline(time.Time{})
	body.noContinue()
	empty := h.method == http.MethodHead || r.StatusCode == http.StatusNoContent || r.StatusCode == http.StatusNotModified
	chunked := !empty && r.ContentLength < 0 && h.minor == 1
	keep := !h.close && body.whole.Load() && (empty || chunked || r.ContentLength >= 0)
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", r.StatusCode, http.StatusText(r.StatusCode))
	dropped := map[string]bool{}
	for value := range strings.SplitSeq(strings.Join(r.Header["Connection"], ","), ",") {
		dropped[http.CanonicalHeaderKey(strings.Trim(value, " \t"))] = true
	}
	for name, values := range r.Header {
		if rules.IsFraming(name) || dropped[name] || slices.ContainsFunc(secrets, func(s string) bool { return strings.Contains(strings.ToLower(name), strings.ToLower(s)) }) {
			continue
		}
		for _, value := range values {
			b.WriteString(name + ": " + oneHeader(redact(value, secrets)) + "\r\n")
		}
	}
	switch {
	case chunked:
		b.WriteString("Transfer-Encoding: chunked\r\n")
	case r.ContentLength >= 0 && r.StatusCode != http.StatusNoContent && (r.ContentLength > 0 || h.method != http.MethodHead):
		b.WriteString("Content-Length: " + strconv.FormatInt(r.ContentLength, 10) + "\r\n")
	}
	if !keep {
		b.WriteString("Connection: close\r\n")
	} else if h.minor == 0 {
		b.WriteString("Connection: keep-alive\r\n")
	}
	b.WriteString("\r\n")
	err := f.send(ctx, k.c, []byte(b.String()), &f.in)
	if err == nil && !empty {
		err = k.copyBody(ctx, f, r.Body, chunked)
	}
	if err != nil {
		f.fail(hideAnswer(err))
		reset(k.c) // a body that is cut off must not look whole
	}
	return err == nil && keep
}

func oneHeader(value string) string { return strings.NewReplacer("\r", " ", "\n", " ").Replace(value) }

// copyBody sends the body of a response, each piece as soon as it is there.
func (k *client) copyBody(ctx context.Context, f *flow, r io.Reader, chunked bool) error {
	const room = 16 // for the length in front of a chunk, and what stands after it
	b := smallBuffers.Get().(*[smallBuffer]byte)
	defer smallBuffers.Put(b)
	for {
		n, err := r.Read(b[room : len(b)-room])
		if n > 0 {
			piece := b[room : room+n]
			if chunked {
				length := strconv.FormatInt(int64(n), 16) + "\r\n"
				start := room - len(length)
				copy(b[start:], length)
				piece = append(b[start:room+n], "\r\n"...)
			}
			if err := f.send(ctx, k.c, piece, &f.in); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			if chunked {
				return f.send(ctx, k.c, []byte("0\r\n\r\n"), &f.in)
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// requestBody is the body of a request on its way to the network. The transport reads it,
// possibly still while the response is written.
type requestBody struct {
	k       *client
	f       *flow
	ctx     context.Context
	chunked bool
	whole   atomic.Bool // the body was read to its end
	ending  atomic.Bool // set before stop wakes a Read

	mu      sync.Mutex // held while the connection is read
	src     io.Reader
	left    int64 // unless chunked
	stopped bool

	wmu  sync.Mutex // held while 100 Continue is written
	wait bool       // the program waits for 100 Continue
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.whole.Load() {
		return 0, io.EOF
	}
	if b.stopped {
		return 0, net.ErrClosed
	}
	b.wmu.Lock()
	if b.wait {
		b.wait = false
		io.WriteString(b.k.c, "HTTP/1.1 100 Continue\r\n\r\n")
	}
	b.wmu.Unlock()
	if !b.chunked {
		p = p[:min(int64(len(p)), b.left)]
	}
	n, err := b.src.Read(p)
	b.left -= int64(n)
	switch {
	case b.chunked && errors.Is(err, io.EOF):
		if err := b.skipTrailer(); err != nil {
			return n, err
		}
		b.whole.Store(true)
	case !b.chunked && b.left == 0:
		b.whole.Store(true)
		err = io.EOF
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	if n > 0 {
		room, serr := b.f.spend(b.ctx, n, &b.f.out)
		if serr != nil || room < n {
			b.whole.Store(false)
			b.stopped = true
			return room, cmp.Or(serr, error(errSpent))
		}
	}
	return n, err
}

// skipTrailer reads the fields after the last chunk, which are not forwarded.
func (b *requestBody) skipTrailer() error {
	for room := int64(maxTrailer); ; {
		line, err := readLine(b.k.br, room)
		if err != nil || line == "" {
			return err
		}
		room -= int64(len(line)) + 2
	}
}

// Close does nothing: stop does it, once the response was written.
func (b *requestBody) Close() error { return nil }

// noContinue returns once no 100 Continue can be written any more.
func (b *requestBody) noContinue() {
	b.wmu.Lock()
	defer b.wmu.Unlock()
	b.wait = false
}

// stop ends the reading of the body: the caller alone uses the connection afterwards. It
// reports whether the body was read whole.
func (b *requestBody) stop() bool {
	defer b.k.body.Store(nil)
	b.noContinue()
	if b.whole.Load() {
		return true
	}
	b.ending.Store(true)
	b.k.c.SetReadDeadline(time.Unix(1, 0)) // wakes a Read
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	return b.whole.Load()
}

// errSecret: the value of an injected header cannot be read. The box does not learn why.
var errSecret = errors.New("a secret of the operator cannot be read")

const maxSecret = 16 << 10

// secret reads the value of a source for a request. Its error is errSecret alone: Trouble gets the
// cause, which names the source.
func (p *Proxy) secret(s rules.Source) (string, error) {
	value, err := ReadSecret(s)
	if err != nil {
		p.cfg.Trouble(err)
		return "", errSecret
	}
	return value, nil
}

// ReadSecret reads the value of a source, without newlines at its end. Its errors never
// repeat the value.
func ReadSecret(s rules.Source) (string, error) {
	value := os.Getenv(s.Env)
	if s.File != "" {
		file, err := os.Open(s.File)
		if err != nil {
			return "", fmt.Errorf("%w: %w", errSecret, err)
		}
		defer file.Close()
		b, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
		if err != nil {
			return "", fmt.Errorf("%w: %w", errSecret, err)
		}
		value = string(b)
	}
	value = strings.TrimRight(value, "\r\n")
	if value == "" || len(value) > maxSecret || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return "", fmt.Errorf("%w: %s is empty, longer than 16 KiB or has control characters", errSecret, cmp.Or(s.File, "variable "+s.Env))
	}
	return value, nil
}

// addSecrets sets the headers of the rules, and returns all texts that must not come back.
func (p *Proxy) addSecrets(header http.Header, inject []rules.Inject) (secrets []string, err error) {
	for _, rule := range inject {
		value, err := p.secret(rule.ValueFrom)
		if err != nil {
			return nil, err
		}
		header.Set(rule.Header, value)
		secrets = append(secrets, value)
		// "Bearer TOKEN": the token is the secret.
		if _, token, ok := strings.Cut(value, " "); ok && len(token) >= 8 {
			secrets = append(secrets, token)
		}
	}
	return secrets, nil
}

// redact replaces secrets in what a server sent.
func redact(s string, secrets []string) string {
	for _, secret := range secrets {
		s = strings.ReplaceAll(s, secret, "[redacted]")
	}
	return s
}
