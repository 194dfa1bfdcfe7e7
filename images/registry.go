package images

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/boxd/boxd/engine/spec"
)

// place is a repository of a registry or of its mirror. One request uses it, from several goroutines.
//
// A tenant names registries, within the references that its policy allows, and a registry names further hosts by
// redirects and token servers. So a process that pulls can be made to send GET requests to hosts of its own
// network. It sends them by https, reads answers that a registry would give, and shows none of them but the
// text of errors, quoted and cut.
type place struct {
	registry name.Registry
	path     string
	insecure bool
	auth     authn.Authenticator
	wire     *http.Transport
	stall    time.Duration
	pause    time.Duration // before the first retry; each further one is longer

	turn   chan struct{} // has an element while one request connects
	client *http.Client  // nil before connect
}

const maxRedirects = 5

var errStalled = errors.New("it has sent nothing, or too little, for too long")

// places are the mirrors of a reference's registry, and then the registry. Nothing is asked yet. The caller
// closes them.
func (s *Store) places(ref spec.Reference, login string) ([]*place, error) {
	host, repository, _ := strings.Cut(ref.Repository, "/")
	own := s.o.Registries[host]
	var all []*place
	for _, m := range own.Mirrors {
		u, err := url.Parse(m)
		if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !s.o.Registries[u.Host].Insecure) {
			return nil, fmt.Errorf("mirror %s of registry %s: must be https://HOST[/PATH], or http:// of an insecure registry", spec.Quote(m), spec.Quote(host))
		}
		p, err := s.place(u.Host, path.Join(strings.Trim(u.Path, "/"), repository), s.o.Registries[u.Host], "")
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	p, err := s.place(host, repository, own, login)
	return append(all, p), err
}

func (s *Store) place(host, path string, r Registry, login string) (*place, error) {
	login = cmp.Or(login, r.Login)
	if login == "" && r.LoginFile != "" {
		b, err := os.ReadFile(r.LoginFile)
		if err != nil {
			return nil, fmt.Errorf("login of registry %s: %w", spec.Quote(host), err)
		}
		login, _, _ = strings.Cut(string(b), "\n")
		login = strings.TrimSpace(login)
	}
	p := &place{turn: make(chan struct{}, 1), path: path, insecure: r.Insecure, auth: authn.Anonymous, stall: s.o.Stall, pause: s.o.pause}
	if login != "" {
		user, password, ok := strings.Cut(login, ":")
		if !ok || user == "" || password == "" {
			return nil, fmt.Errorf("%w: the login of registry %s must be USER:PASSWORD", ErrLogin, spec.Quote(host))
		}
		p.auth = &authn.Basic{Username: user, Password: password}
	}
	var o []name.Option
	if r.Insecure {
		o = append(o, name.Insecure)
	}
	var err error
	if p.registry, err = name.NewRegistry(host, o...); err != nil {
		return nil, fmt.Errorf("registry %s: %w", spec.Quote(host), err)
	}
	p.wire = &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{Timeout: p.stall}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return impatientConn{c, p.stall}, nil
		},
		TLSHandshakeTimeout:    p.stall,
		IdleConnTimeout:        p.stall,
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: r.Insecure}, // the operator has said so
		DisableCompression:     true,                                        // blobs are what their digests say, and nothing is decompressed here
		MaxResponseHeaderBytes: 256 << 10,
		ForceAttemptHTTP2:      true,
	}
	return p, nil
}

func (p *place) close() { p.wire.CloseIdleConnections() }

// RoundTrip is the lowest layer of the client, and keeps to https.
func (p *place) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !p.insecure {
		return nil, fmt.Errorf("%s wants plain http, which only a registry that the configuration calls insecure may use", spec.Quote(r.URL.Host))
	}
	return p.wire.RoundTrip(r)
}

// impatientConn is a connection that fails if nothing arrives for too long.
type impatientConn struct {
	net.Conn
	stall time.Duration
}

func (c impatientConn) Read(b []byte) (int, error) {
	err := c.SetReadDeadline(time.Now().Add(c.stall))
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errStalled
	}
	return n, err
}

// connect finds out how the registry wants to be asked, and logs in if it demands that.
func (p *place) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 4*p.stall, errStalled) // also ends an endless answer
	defer cancel()
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return p.explain(ctx, ctx.Err())
	}
	if p.client != nil {
		return nil
	}
	backoff := transport.Backoff{Duration: p.pause, Factor: 3, Jitter: 0.1, Steps: 3}
	retry := transport.NewRetry(p, transport.WithRetryBackoff(backoff), transport.WithRetryStatusCodes(http.StatusRequestTimeout, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout))
	t, err := transport.NewWithContext(ctx, p.registry, p.auth, retry, []string{p.registry.Repo(p.path).Scope(transport.PullScope)})
	if err != nil {
		return p.explain(ctx, err)
	}
	p.client = &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("it redirects more than %d times", maxRedirects)
		}
		return nil
	}}
	return nil
}

// get asks for a part of the repository. The caller closes the body. Statuses other than want are errors.
func (p *place) get(ctx context.Context, part string, header http.Header, want ...int) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.registry.Scheme()+"://"+p.registry.RegistryStr()+"/v2/"+p.path+"/"+part, nil)
	if err != nil {
		return nil, err
	}
	r.Header = header
	resp, err := p.client.Do(r)
	if err != nil {
		return nil, p.explain(ctx, err)
	}
	if err := transport.CheckError(resp, want...); err != nil {
		resp.Body.Close()
		return nil, p.explain(ctx, err)
	}
	return resp, nil
}

// explain makes one line of an error of this registry. It keeps URLs out of it: those of redirects can contain
// signatures.
func (p *place) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		if !errors.Is(cause, errStalled) {
			return cause
		}
		err = cause
	}
	who := spec.Quote(p.registry.RegistryStr())
	var status *transport.Error
	if errors.As(err, &status) {
		said := http.StatusText(status.StatusCode)
		if len(status.Errors) > 0 {
			said = spec.Quote(string(status.Errors[0].Code) + ": " + status.Errors[0].Message)
		}
		switch status.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return fmt.Errorf("%w: registry %s answers %d, %s: give a login that may pull %s, if that exists", ErrLogin, who, status.StatusCode, said, spec.Quote(p.path))
		case http.StatusNotFound:
			return fmt.Errorf("%w: registry %s answers 404, %s", ErrUnknown, who, said)
		}
		return fmt.Errorf("%w: %s answers %d, %s", ErrRegistry, who, status.StatusCode, said)
	}
	for u := (*url.Error)(nil); errors.As(err, &u); {
		err = u.Err
	}
	return fmt.Errorf("%w: %s: %w", ErrRegistry, who, err)
}

// document fetches a manifest, an index or a configuration, and checks its digest. The zero descriptor is the
// document that ref names.
func (p *place) document(ctx context.Context, ref spec.Reference, d v1.Descriptor) ([]byte, error) {
	if err := p.connect(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 4*p.stall, errStalled) // also ends one that trickles
	defer cancel()
	want, kind := d.Digest.String(), "manifests/"
	switch {
	case d.Digest.Hex == "":
		want = cmp.Or(ref.Digest, ref.Tag)
	case !d.MediaType.IsImage() && !d.MediaType.IsIndex():
		kind = "blobs/"
	}
	accept := http.Header{"Accept": {strings.Join([]string{string(types.OCIManifestSchema1), string(types.OCIImageIndex),
		string(types.DockerManifestSchema2), string(types.DockerManifestList)}, ", ")}}
	resp, err := p.get(ctx, kind+want, accept, http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return nil, p.explain(ctx, err)
	}
	if len(text) > maxDocument {
		return nil, fmt.Errorf("%w: its manifest or configuration is larger than 1 MiB", ErrRefused)
	}
	for _, w := range []string{want, resp.Header.Get("Docker-Content-Digest")} {
		if got := digestOf(text); strings.HasPrefix(w, "sha256:") && got != w {
			return nil, fmt.Errorf("%w: registry %s sends %s as %s", ErrCorrupt, spec.Quote(p.registry.RegistryStr()), got, w)
		}
	}
	return text, nil
}
