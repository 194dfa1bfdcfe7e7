package api

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/linux"
)

// Auth decides who may use the server. The zero value admits root and the daemon's own user
// through Unix sockets, and nobody through TCP.
type Auth struct {
	// Groups are the groups whose members are administrators through a Unix socket, in
	// addition to root and the user of this process.
	Groups []int
	// Tokens are accepted on every listener; nil: none.
	Tokens *Tokens
	// ClientCerts accepts a client certificate that the TLS listener has verified: its
	// common name is the tenant, its organizational unit the role.
	ClientCerts bool
	// Local decides about a TCP client on this host that has sent no credentials. uid is
	// the user that created the client's socket; it is valid only if err is nil. An error
	// of Local refuses the request. nil: TCP clients need credentials.
	Local func(uid int, err error) (Identity, error)
}

var (
	errUnauthenticated = errors.New("no credentials: send a bearer token, use a client certificate, or the daemon's Unix socket")
	errBadToken        = errors.New("unknown bearer token")
	errStranger        = errors.New("this user may not use the daemon: root, the daemon's user and its group may")
	errOtherPage       = errors.New("a request from another web page is not accepted with a client certificate, which the browser sends by itself: send a bearer token")
	errBrowser         = errors.New("a request from a web page or for another host is not accepted without credentials")
)

// connKey is the key of *connInfo in the context of a connection.
type connKey struct{}

// connInfo is what the server knows about a connection.
type connInfo struct {
	unix, tcp bool
	peer      linux.Peer      // with unix
	uid       int             // with tcp, and only if Auth.Local asks for it
	err       error           // why peer or uid is unknown
	raw       syscall.RawConn // the socket, or nil
	inside    *Caller         // who is behind a connection of the daemon itself; nil: it is another's
}

// connContext identifies the client of a connection once, as soon as the connection is
// accepted: a client that has gone cannot be identified any more.
func (a *Auth) connContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	info := &connInfo{raw: rawConn(c)}
	switch c := c.(type) {
	case *insideConn:
		info.inside = &c.caller
	case *net.UnixConn:
		info.unix = true
		info.peer, info.err = linux.PeerOf(c)
	case *net.TCPConn:
		info.tcp = true
		if a.Local != nil {
			info.uid, info.err = linux.TCPClientUID(c)
		}
	}
	return context.WithValue(ctx, connKey{}, info)
}

// identify returns the sender of r.
func (a *Auth) identify(r *http.Request) (Identity, error) {
	info, _ := r.Context().Value(connKey{}).(*connInfo)
	switch header := r.Header.Get("Authorization"); {
	case info != nil && info.inside != nil:
		return info.inside.Identity, nil
	case header != "":
		return a.byToken(header)
	case info != nil && info.unix:
		return a.byPeer(info)
	case a.ClientCerts && r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		if err := fromOtherPage(r); err != nil {
			return Identity{}, err
		}
		return byCertificate(r)
	case a.Local != nil && info != nil && info.tcp:
		if err := fromBrowser(r); err != nil {
			return Identity{}, err
		}
		id, err := a.Local(info.uid, info.err)
		if err != nil {
			return Identity{}, &refusal{code: apitypes.CodeForbidden, detail: err.Error(), err: err}
		}
		return id, nil
	}
	return Identity{}, errUnauthenticated
}

func (a *Auth) byToken(header string) (Identity, error) {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return Identity{}, errUnauthenticated
	}
	if id, ok := a.Tokens.lookup(strings.TrimSpace(token)); ok {
		return id, nil
	}
	return Identity{}, errBadToken
}

func (a *Auth) byPeer(info *connInfo) (Identity, error) {
	if info.err != nil {
		return Identity{}, errors.Join(errUnauthenticated, info.err)
	}
	p := info.peer
	member := slices.ContainsFunc(a.Groups, func(gid int) bool {
		return gid == p.GID || slices.Contains(p.Groups, gid)
	})
	if p.UID != 0 && p.UID != os.Getuid() && !member {
		return Identity{}, errStranger
	}
	return userIdentity(p.UID, Admin), nil
}

func byCertificate(r *http.Request) (Identity, error) {
	cert := r.TLS.VerifiedChains[0][0]
	subject := cert.Subject
	if len(subject.OrganizationalUnit) != 1 {
		return Identity{}, errors.Join(errUnauthenticated, errors.New("client certificate: must have one organizational unit, the role"))
	}
	// A certificate that is renewed for the same key stands for the same caller.
	key := fmt.Sprintf("%x", sha256.Sum256(cert.RawSubjectPublicKeyInfo))
	id, err := newIdentity(subject.CommonName, subject.OrganizationalUnit[0], "cert:"+subject.CommonName+":"+key[:shownKey])
	if err != nil {
		return Identity{}, errors.Join(errUnauthenticated, err)
	}
	id.Key = "cert:" + key
	return id, nil
}

// fromOtherPage refuses requests of web pages other than those of the same origin. A browser sends its
// client certificate by itself, also with what a page of another site, or the sandboxed page of a
// box, makes it request. Browsers state Sec-Fetch-Site to every https URL (W3C Fetch Metadata);
// older ones state an origin at least.
func fromOtherPage(r *http.Request) error {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	if site != "" && site != "none" && site != "same-origin" || origin != "" && origin != "https://"+r.Host {
		return errOtherPage
	}
	return nil
}

// fromBrowser refuses requests that a web page on this machine could make a browser send to
// a port on loopback: those with an origin; those without one, such as for an image, which
// browsers mark (W3C Fetch Metadata); and those for a host name that an attacker has
// pointed here.
func fromBrowser(r *http.Request) error {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	local := strings.EqualFold(host, "localhost") || (ip != nil && ip.IsLoopback())
	site := r.Header.Get("Sec-Fetch-Site")
	if !local || r.Header.Get("Origin") != "" || (site != "" && site != "none") {
		return errBrowser
	}
	return nil
}
