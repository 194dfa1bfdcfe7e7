package api

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/session"
)

// A page of a browser signs in with a token, once, and gets a cookie and a secret. Each of its requests
// must have both:
//
//   - The cookie, which scripts cannot read (HttpOnly), is of no use without the secret: browsers send
//     cookies to every port of a host, also to servers of other users there and to ports of boxes that
//     "boxd forward" opens.
//   - The secret is a header, X-Boxd-Page, which a page of another origin cannot send. A WebSocket of a
//     browser has no headers of its own, so a relay takes it as a sub-protocol.
//
// Both are signed with a key that follows from the token: the daemon stores nothing, a login survives
// its restart, and ends when the token is removed.
//
//	cookie: selector [8], signed in i64, expires i64, nonce [12], HMAC-SHA-256 of these under the key [32]
//	secret: HMAC-SHA-256 of "secret", signed in and nonce under the key, in part [24]
//
// Integers are big-endian Unix times; both are base64url without padding.

// PageHeader has the secret of a page in each of its requests.
const PageHeader = "X-Boxd-Page"

// Prefixes of sub-protocols of relays: a WebSocket of a browser has no headers of its own. They stand for
// PageHeader and TenantHeader.
const (
	pageProtocol   = "boxd.page."
	tenantProtocol = "boxd.tenant."
)

const (
	loginLife = 30 * time.Minute // of a cookie, unless the page renews it
	maxLogin  = 4 << 10          // bytes of a sign-in
	maxLogins = 64               // sign-ins at once
	loginMost = 12 * time.Hour   // from the sign-in, whatever is renewed

	cookieBytes = 8 + 8 + 8 + nonceBytes + sha256.Size
	secretBytes = 24
	nonceBytes  = 12
)

// pageKey signs the logins of one token. A caller who has the token can compute it.
type pageKey struct {
	key      [sha256.Size]byte
	selector [8]byte
}

func newPageKey(digest [sha256.Size]byte) (k pageKey) {
	copy(k.key[:], mac(digest[:], []byte("boxd page 1")))
	copy(k.selector[:], mac(k.key[:], []byte("selector")))
	return k
}

func mac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// pageLogin is the login of a page.
type pageLogin struct {
	key            *pageKey
	since, expires time.Time // of whole seconds
	nonce          [nonceBytes]byte
}

func (l *pageLogin) cookie() string {
	raw := append(make([]byte, 0, cookieBytes), l.key.selector[:]...)
	raw = binary.BigEndian.AppendUint64(raw, uint64(l.since.Unix()))
	raw = binary.BigEndian.AppendUint64(raw, uint64(l.expires.Unix()))
	raw = append(raw, l.nonce[:]...)
	return base64.RawURLEncoding.EncodeToString(append(raw, mac(l.key.key[:], raw)...))
}

func (l *pageLogin) secret() string {
	since := binary.BigEndian.AppendUint64(nil, uint64(l.since.Unix()))
	return base64.RawURLEncoding.EncodeToString(mac(l.key.key[:], []byte("secret"), since, l.nonce[:])[:secretBytes])
}

// extend gives the login a new expiry.
func (l *pageLogin) extend(now time.Time) {
	l.expires = now.Add(loginLife)
	if last := l.since.Add(loginMost); l.expires.After(last) {
		l.expires = last
	}
}

// page returns the login that a cookie stands for, and whose it is, whether or not it has expired.
func (t *Tokens) page(cookie string) (*pageLogin, Identity, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cookie)
	if t == nil || err != nil || len(raw) != cookieBytes {
		return nil, Identity{}, false
	}
	entries := *t.entries.Load()
	signed, sum := raw[:cookieBytes-sha256.Size], raw[cookieBytes-sha256.Size:]
	for i := range entries {
		k := &entries[i].page
		if string(k.selector[:]) != string(raw[:8]) || !hmac.Equal(sum, mac(k.key[:], signed)) {
			continue
		}
		l := &pageLogin{key: k, since: time.Unix(int64(binary.BigEndian.Uint64(raw[8:])), 0), expires: time.Unix(int64(binary.BigEndian.Uint64(raw[16:])), 0)}
		copy(l.nonce[:], raw[24:])
		return l, entries[i].id, true
	}
	return nil, Identity{}, false
}

// endedLogins are logins that have been ended and have not expired. A daemon that is started anew does
// not know them.
type endedLogins struct {
	mu    sync.Mutex
	until map[[nonceBytes]byte]time.Time
	more  chan struct{} // closed when another login ends; nil while no stream waits for that
}

// waitFor returns when l is ended, or by itself at its latest, or when ctx ends.
func (e *endedLogins) waitFor(ctx context.Context, l *pageLogin) {
	last := time.NewTimer(time.Until(l.since.Add(loginMost)))
	defer last.Stop()
	for {
		e.mu.Lock()
		_, ended := e.until[l.nonce]
		if e.more == nil {
			e.more = make(chan struct{})
		}
		more := e.more
		e.mu.Unlock()
		if ended {
			return
		}
		select {
		case <-more:
		case <-last.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (e *endedLogins) add(l *pageLogin, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.until == nil {
		e.until = map[[nonceBytes]byte]time.Time{}
	}
	for nonce, until := range e.until {
		if now.After(until) {
			delete(e.until, nonce)
		}
	}
	// An ended login is not renewed, so its cookie lives for loginLife at most.
	last := l.since.Add(loginMost)
	if soon := now.Add(loginLife); soon.Before(last) {
		last = soon
	}
	e.until[l.nonce] = last
	if e.more != nil {
		close(e.more)
		e.more = nil
	}
}

func (e *endedLogins) has(l *pageLogin) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ended := e.until[l.nonce]
	return ended
}

var (
	errNoLogin      = errors.New("no login: sign in with POST " + loginPath)
	errLoginExpired = errors.New("the login has expired: sign in again")
	errEnded        = errors.New("signed out, or the token was removed")
	errForeignPage  = errors.New("a request from another web page is not accepted with the cookie of a login")
)

// identify returns the sender of the request: the one whose login the page has that sent it, or the one
// whom the credentials of a program name.
func (c *call) identify() (Identity, error) {
	secret, tenant := c.r.Header.Get(PageHeader), ""
	if c.route != nil && c.route.name == "relay" && secret == "" {
		// Nowhere else: what lies behind other WebSockets may be a server in a box.
		for name := range strings.SplitSeq(c.r.Header.Get("Sec-WebSocket-Protocol"), ",") {
			name = strings.TrimSpace(name)
			if s, ok := strings.CutPrefix(name, pageProtocol); ok {
				secret = s
			}
			if s, ok := strings.CutPrefix(name, tenantProtocol); ok {
				tenant = s
			}
		}
	}
	if tenant != "" {
		c.r.Header.Set(TenantHeader, tenant)
	}
	if secret == "" || c.r.Header.Get("Authorization") != "" {
		return c.s.opt.Auth.identify(c.r)
	}
	if !ofSameOrigin(c.r) {
		return Identity{}, refuse(apitypes.CodeForbidden, "", "%s", errForeignPage)
	}
	for i, cookie := range append(c.r.CookiesNamed(cookieName(c.r, true)), c.r.CookiesNamed(cookieName(c.r, false))...) {
		if i == 8 { // hosts below the same domain can add some
			break
		}
		l, id, ok := c.s.opt.Auth.Tokens.page(cookie.Value)
		if !ok || !hmac.Equal([]byte(l.secret()), []byte(secret)) {
			continue
		}
		// A clock that was set back must not prolong a login.
		now := time.Now()
		if !now.Before(l.expires) || l.since.Sub(now) > time.Minute || c.s.logins.has(l) {
			return Identity{}, errLoginExpired
		}
		c.mine = l
		return id, nil
	}
	return Identity{}, errNoLogin
}

// whileAdmitted returns a context for a stream: it ends, because of errEnded, when the caller signs out, its
// login is over, or its token is removed.
func (c *call) whileAdmitted(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	var wait sync.WaitGroup
	if gone := c.who.Gone; gone != nil {
		wait.Go(func() {
			select {
			case <-gone:
				cancel(errEnded)
			case <-ctx.Done():
			}
		})
	}
	if l := c.mine; l != nil {
		wait.Go(func() {
			c.s.logins.waitFor(ctx, l)
			cancel(errEnded) // has no effect if ctx has ended
		})
	}
	return ctx, func() { cancel(nil); wait.Wait() }
}

// ofSameOrigin reports whether a request may come from a page of this origin, as far as its browser
// says: Sec-Fetch-Site is for https and localhost only (W3C Fetch Metadata), and Origin is not sent
// with GET to the same origin.
func ofSameOrigin(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	if site != "" && site != "same-origin" {
		return false
	}
	origin := r.Header.Get("Origin")
	u, err := url.Parse(origin)
	return origin == "" || err == nil && u.Host == r.Host
}

// cookieName is the name of the cookie. Two daemons at ports of one host have different names, since
// cookies know no ports. With https it is one that no other host can set.
func cookieName(r *http.Request, secure bool) string {
	name := "boxd-page"
	if u := (&url.URL{Host: r.Host}); u.Port() != "" {
		name += "-" + u.Port()
	}
	if secure {
		name = "__Host-" + name
	}
	return name
}

// setCookie sends the cookie of a login; an expiry in the past deletes it.
func (c *call) setCookie(l *pageLogin, secure bool) {
	http.SetCookie(c.w, &http.Cookie{
		Name: cookieName(c.r, secure), Value: l.cookie(), Path: "/", MaxAge: max(int(time.Until(l.expires)/time.Second), -1),
		Secure: secure, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}

// isSecure reports whether the browser speaks TLS, be it to a proxy: then the origin says so, which
// browsers send with everything but GET.
func isSecure(r *http.Request) bool {
	return r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
}

// login exchanges a token for the cookie and the secret of a page.
func (c *call) login() error {
	if !ofSameOrigin(c.r) {
		return refuse(apitypes.CodeForbidden, "", "%s", errForeignPage)
	}
	// Anybody may send this, so it costs little: a short body, and few at once.
	select {
	case c.s.loggingIn <- struct{}{}:
		defer func() { <-c.s.loggingIn }()
	default:
		return refuse(apitypes.CodeTooManyConnections, "", "%d sign-ins are in progress: retry", cap(c.s.loggingIn))
	}
	c.r.Body = http.MaxBytesReader(c.w, c.r.Body, maxLogin)
	var q apitypes.LoginRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	if c.s.opt.Auth.Tokens == nil {
		return refuse(apitypes.CodeUnauthenticated, "token", "this daemon has no tokens: set tokens_file")
	}
	e := c.s.opt.Auth.Tokens.entry(strings.TrimSpace(q.Token))
	if e == nil {
		return refuse(apitypes.CodeUnauthenticated, "token", "unknown token")
	}
	c.who, c.tenant = e.id, e.id.Tenant
	tenant := c.tenant
	if tenant == AllTenants {
		tenant = ""
	}
	if err := c.s.opt.Sessions.AdmitRequest(tenant, c.who.Limits); err != nil {
		return err
	}
	if err := c.auditLogin("login"); err != nil {
		return err
	}
	now := time.Now().Truncate(time.Second)
	l := &pageLogin{key: &e.page, since: now}
	l.extend(now)
	rand.Read(l.nonce[:])
	c.setCookie(l, isSecure(c.r))
	answer := c.loginOf(l)
	answer.Page = l.secret()
	c.w.Header().Set("Cache-Control", "no-store")
	return c.reply(http.StatusOK, answer)
}

// auditLogin records that somebody signs in or out.
func (c *call) auditLogin(action string) error {
	if c.s.opt.Audit == nil {
		return nil
	}
	e := audit.Entry{Tenant: c.who.Tenant, Actor: c.who.Actor, Request: c.id, Action: action, Decision: audit.Allow}
	if err := c.s.opt.Audit.Append(e); err != nil {
		return errors.Join(session.ErrStorage, err)
	}
	return nil
}

func (c *call) loginOf(l *pageLogin) apitypes.Login {
	a := apitypes.Login{Tenant: c.who.Tenant, Role: c.who.Role.String(), Actor: c.who.Actor, AllTenants: c.who.all()}
	if l != nil {
		expires := l.expires.UTC()
		a.ExpiresAt = &expires
	}
	return a
}

// getLogin says who the caller is. A page that asks gets a cookie that lasts longer.
func (c *call) getLogin() error {
	if c.mine != nil {
		c.mine.extend(time.Now().Truncate(time.Second))
		c.setCookie(c.mine, len(c.r.CookiesNamed(cookieName(c.r, true))) > 0)
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.reply(http.StatusOK, c.loginOf(c.mine))
}

// logout ends the login of a page, and deletes its cookie.
func (c *call) logout() error {
	if c.mine == nil {
		return refuse(apitypes.CodeState, "", "there is no login to end: this caller has not signed in with POST %s", loginPath)
	}
	if err := c.auditLogin("logout"); err != nil {
		return err
	}
	now := time.Now()
	c.s.logins.add(c.mine, now)
	c.mine.expires = time.Time{}
	for _, secure := range []bool{true, false} {
		if len(c.r.CookiesNamed(cookieName(c.r, secure))) > 0 {
			c.setCookie(c.mine, secure)
		}
	}
	return c.empty()
}
