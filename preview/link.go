package preview

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Lifetimes of links.
const (
	DefaultLinkTTL = time.Hour
	MaxLinkTTL     = 7 * 24 * time.Hour
)

// linkParam is the query parameter of a link, and ownPrefix begins the name of each cookie
// of boxd.
const (
	linkParam  = "boxd-link"
	ownPrefix  = "boxd-"
	linkCookie = ownPrefix + "preview"
)

// Links makes and checks signed links. A link gives access to one target until it expires,
// or the generation of its session changes. It is safe for concurrent use.
type Links struct {
	key []byte
	now func() time.Time
}

// NewLinks takes the key of the signatures: at least 32 random bytes. The caller keeps it,
// because links end with it.
func NewLinks(key []byte) (*Links, error) {
	if len(key) < sha256.Size {
		return nil, fmt.Errorf("key of preview links: has %d bytes: must have at least %d", len(key), sha256.Size)
	}
	return &Links{append([]byte(nil), key...), time.Now}, nil
}

// A token is base64url(expiry, 8 bytes, big-endian Unix seconds; HMAC-SHA256, 32 bytes).
const tokenSize = 8 + sha256.Size

// Uses of tokens. The cookie's cannot be passed on as a link.
const (
	useLink   = 'l'
	useCookie = 'c'
)

func (l *Links) sign(use byte, t Target, generation uint64, expiry int64) []byte {
	m := hmac.New(sha256.New, l.key)
	b := append([]byte("boxd preview 1"), use)
	for _, n := range []uint64{uint64(expiry), generation, uint64(t.Port), uint64(len(t.Tenant)), uint64(len(t.Session))} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	m.Write(b)
	m.Write([]byte(t.Tenant + t.Session))
	return m.Sum(binary.BigEndian.AppendUint64(make([]byte, 0, tokenSize), uint64(expiry)))
}

// check returns the expiry of a token that is valid now.
func (l *Links) check(use byte, token string, t Target, generation uint64) (time.Time, bool) {
	if len(token) != base64.RawURLEncoding.EncodedLen(tokenSize) {
		return time.Time{}, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) != tokenSize {
		return time.Time{}, false
	}
	expiry := int64(binary.BigEndian.Uint64(raw))
	if !hmac.Equal(raw, l.sign(use, t, generation, expiry)) {
		return time.Time{}, false
	}
	// A clock that was set back must not prolong a link.
	left := time.Unix(expiry, 0).Sub(l.now())
	return time.Unix(expiry, 0), left > 0 && left <= MaxLinkTTL
}

// Query returns the query of a link, "boxd-link=…", which the caller appends to a URL of the
// target. The link expires at a whole second, at most MaxLinkTTL from now. generation is a number
// of the session that changes when its links are revoked.
func (l *Links) Query(t Target, generation uint64, expires time.Time) (string, error) {
	if left := expires.Sub(l.now()); left <= 0 || left > MaxLinkTTL {
		return "", fmt.Errorf("lifetime of a preview link: %v: must be above 0 and at most %v", left, MaxLinkTTL)
	}
	if err := checkPort(t.Port); err != nil {
		return "", err
	}
	token := l.sign(useLink, t, generation, expires.Unix())
	return linkParam + "=" + base64.RawURLEncoding.EncodeToString(token), nil
}

// Admission is the result of [Links.Admit].
type Admission int

const (
	Refused  Admission = iota // the request has no valid link
	Admitted                  // the caller may serve it
	Answered                  // the answer has been written
)

// Admit decides about a request by its link or by the cookie that a link was exchanged for, and returns
// when that expires.
// Browsers that open a link receive the cookie and are redirected to the URL without the
// secret.
//
// The cookie counts only for requests that the preview itself made, and for navigation:
// previews of one domain are the same site to a browser, which sends the cookie of one box
// with what the page of another box requests.
func (l *Links) Admit(w http.ResponseWriter, r *http.Request, v Visit, generation uint64) (Admission, time.Time) {
	if token, query, ok := cutLink(r.URL.RawQuery); ok {
		expiry, valid := l.check(useLink, token, v.Target, generation)
		if !valid {
			return Refused, time.Time{}
		}
		if r.Method == http.MethodGet && !isUpgrade(r) && wantsHTML(r) {
			l.exchange(w, r, v, generation, expiry, query)
			return Answered, expiry
		}
		return Admitted, expiry
	}
	if !isOwnRequest(r, v.origin(r)) {
		return Refused, time.Time{}
	}
	name := cookieName(v, r)
	for i, c := range r.CookiesNamed(name) {
		if i == 8 { // pages of other boxes can add some
			break
		}
		if expiry, ok := l.check(useCookie, c.Value, v.Target, generation); ok {
			return Admitted, expiry
		}
	}
	return Refused, time.Time{}
}

func (l *Links) exchange(w http.ResponseWriter, r *http.Request, v Visit, generation uint64, expiry time.Time, query string) {
	token := l.sign(useCookie, v.Target, generation, expiry.Unix())
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(v, r), Value: base64.RawURLEncoding.EncodeToString(token),
		Path: v.Prefix + "/", MaxAge: int(expiry.Sub(l.now()) / time.Second), // 0: until the browser ends
		HttpOnly: true, Secure: v.secure(r), SameSite: http.SameSiteLaxMode,
	})
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	// The origin is part of the location: a path may begin with "//".
	location := v.origin(r) + (&url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath}).EscapedPath()
	if query != "" {
		location += "?" + query
	}
	h.Set("Location", location)
	w.WriteHeader(http.StatusSeeOther)
}

// cookieName is one that no other host can set, if browsers have such names for it.
func cookieName(v Visit, r *http.Request) string {
	if v.Prefix == "" && v.secure(r) {
		return "__Host-" + linkCookie
	}
	return linkCookie
}

// cutLink returns the token and the query without it. Other parameters stay as they are:
// servers differ in how they read them.
func cutLink(query string) (token, rest string, found bool) {
	var kept []string
	for p := range strings.SplitSeq(query, "&") {
		if t, ok := strings.CutPrefix(p, linkParam+"="); ok {
			token, found = t, true
		} else {
			kept = append(kept, p)
		}
	}
	return token, strings.Join(kept, "&"), found
}

// isOwnRequest reports whether a page of the origin made the request, or a person navigated.
// Browsers state Sec-Fetch-Site to https and localhost, since 2023 all of them (W3C Fetch
// Metadata). Without it, a request without Origin may be for a script or an image in any page.
func isOwnRequest(r *http.Request, origin string) bool {
	o := r.Header.Get("Origin")
	switch r.Header.Get("Sec-Fetch-Site") {
	case "":
		return o == origin
	case "same-origin", "none":
		return o == "" || o == origin
	}
	dest := r.Header.Get("Sec-Fetch-Dest") // a frame would let the other page place clicks
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && (dest == "" || dest == "document") && !isUpgrade(r) &&
		(r.Method == http.MethodGet || r.Method == http.MethodHead)
}
