package preview

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

var lab = Target{"default", "lab", 3000}

func testLinks(t testing.TB, now time.Time) *Links {
	t.Helper()
	l, err := NewLinks(bytes.Repeat([]byte("k"), 32))
	if err != nil {
		t.Fatal(err)
	}
	l.now = func() time.Time { return now }
	return l
}

func testQuery(t testing.TB, l *Links, target Target, generation uint64, ttl time.Duration) string {
	t.Helper()
	q, err := l.Query(target, generation, l.now().Add(cmp.Or(ttl, DefaultLinkTTL)))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestLinkTampering(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	l := testLinks(t, now)
	query := testQuery(t, l, lab, 7, 0)
	token := strings.TrimPrefix(query, linkParam+"=")
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(i int, bit byte) string {
		b := bytes.Clone(raw)
		b[i] ^= bit
		return base64.RawURLEncoding.EncodeToString(b)
	}
	other, _ := NewLinks(bytes.Repeat([]byte("o"), 32))
	for _, c := range []struct {
		name       string
		l          *Links
		use        byte
		token      string
		t          Target
		generation uint64
		ok         bool
	}{
		{"as made", l, useLink, token, lab, 7, true},
		{"a second before the end", testLinks(t, now.Add(time.Hour-time.Second)), useLink, token, lab, 7, true},
		{"at the end", testLinks(t, now.Add(time.Hour)), useLink, token, lab, 7, false},
		{"clock set back", testLinks(t, now.Add(-8*24*time.Hour)), useLink, token, lab, 7, false},
		{"other port", l, useLink, token, Target{"default", "lab", 3001}, 7, false},
		{"other session", l, useLink, token, Target{"default", "lab2", 3000}, 7, false},
		{"other tenant", l, useLink, token, Target{"acme", "lab", 3000}, 7, false},
		{"shifted names", l, useLink, token, Target{"defaultl", "ab", 3000}, 7, false},
		{"later generation", l, useLink, token, lab, 8, false},
		{"earlier generation", l, useLink, token, lab, 6, false},
		{"as cookie", l, useCookie, token, lab, 7, false},
		{"other key", other, useLink, token, lab, 7, false},
		{"longer life", l, useLink, flip(5, 1), lab, 7, false},
		{"other signature", l, useLink, flip(39, 1), lab, 7, false},
		{"truncated", l, useLink, token[:len(token)-1], lab, 7, false},
		{"a byte fewer", l, useLink, base64.RawURLEncoding.EncodeToString(raw[:39]), lab, 7, false},
		{"longer", l, useLink, token + "A", lab, 7, false},
		{"other last bits", l, useLink, token[:len(token)-1] + string(token[len(token)-1]+1), lab, 7, false},
		{"line breaks", l, useLink, token[:52] + "\n\n", lab, 7, false},
		{"empty", l, useLink, "", lab, 7, false},
	} {
		if _, ok := c.l.check(c.use, c.token, c.t, c.generation); ok != c.ok {
			t.Errorf("%s: %v", c.name, ok)
		}
	}
}

func TestLinkLifetime(t *testing.T) {
	l := testLinks(t, time.Unix(1_800_000_000, 999_999_999))
	for ttl, ok := range map[time.Duration]bool{time.Second: true, MaxLinkTTL: true, MaxLinkTTL + 1: false, 0: false, -time.Hour: false} {
		q, err := l.Query(lab, 0, l.now().Add(ttl))
		if (err == nil) != ok {
			t.Errorf("%v: %v", ttl, err)
		}
		if _, valid := l.check(useLink, strings.TrimPrefix(q, linkParam+"="), lab, 0); ok && ttl != time.Second && !valid {
			t.Errorf("%v: not valid", ttl)
		}
	}
	if _, err := NewLinks(make([]byte, 31)); err == nil {
		t.Error("a key of 31 bytes is valid")
	}
}

// admit sends one request through Admit.
func admit(l *Links, v Visit, method, url string, header ...string) (*httptest.ResponseRecorder, Admission) {
	r := httptest.NewRequest(method, url, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	a, _ := l.Admit(w, r, v, 7)
	return w, a
}

func TestExchange(t *testing.T) {
	l := testLinks(t, time.Now())
	query := testQuery(t, l, lab, 7, 0)
	for _, c := range []struct {
		name, url, prefix, cookie, location, path string
	}{
		{"host", "https://3000-lab.p.example/a%2Fb?x=1&" + query + "&y=;%zz", "", "__Host-boxd-preview", "https://3000-lab.p.example/a%2Fb?x=1&y=;%zz", "/"},
		{"no TLS", "http://3000-lab.p.example/?" + query, "", "boxd-preview", "http://3000-lab.p.example/", "/"},
		{"path", "https://api.example/v1/p/3000/?" + query, "/v1/p/3000", "boxd-preview", "https://api.example/v1/p/3000/", "/v1/p/3000/"},
		{"path like a host", "https://3000-lab.p.example//evil.example/?" + query, "", "__Host-boxd-preview", "https://3000-lab.p.example//evil.example/", "/"},
	} {
		v := Visit{Target: lab, Prefix: c.prefix}
		w, got := admit(l, v, "GET", c.url, "Accept", "text/html")
		if got != Answered || w.Code != 303 || w.Header().Get("Location") != c.location || w.Header().Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %v, %d %v", c.name, got, w.Code, w.Header())
			continue
		}
		cookie := w.Result().Cookies()[0]
		if cookie.Name != c.cookie || cookie.Path != c.path || !cookie.HttpOnly || cookie.Secure != strings.HasPrefix(c.url, "https") ||
			cookie.SameSite != http.SameSiteLaxMode || cookie.Domain != "" || cookie.MaxAge < 3590 || cookie.MaxAge > 3600 {
			t.Errorf("%s: %v", c.name, cookie)
		}
		pair := cookie.Name + "=" + cookie.Value
		if strings.Contains(query, cookie.Value) {
			t.Errorf("%s: the cookie is the link", c.name)
		}
		clean := strings.ReplaceAll(c.location, ";%zz", "")
		if _, got := admit(l, v, "GET", clean, "Sec-Fetch-Site", "none", "Cookie", "boxd-preview=junk; __Host-boxd-preview=junk; "+pair); got != Admitted {
			t.Errorf("%s: not admitted by its cookie", c.name)
		}
		if _, got := admit(l, Visit{Target: Target{"default", "lab", 3001}, Prefix: c.prefix}, "GET", clean, "Sec-Fetch-Site", "none", "Cookie", pair); got != Refused {
			t.Errorf("%s: admitted to another port", c.name)
		}
		if _, got := admit(l, v, "GET", clean+"?boxd-link="+cookie.Value); got != Refused {
			t.Errorf("%s: the cookie is a link", c.name)
		}
	}
}

// TestAdmit: who is admitted by a link, and which requests the cookie counts for.
func TestAdmit(t *testing.T) {
	l := testLinks(t, time.Now())
	const origin = "https://3000-lab.p.example"
	v := Visit{Target: lab, Origin: origin}
	query := testQuery(t, l, lab, 7, 0)
	w, _ := admit(l, v, "GET", origin+"/?"+query, "Accept", "text/html")
	c := w.Result().Cookies()[0]
	cookie := c.Name + "=" + c.Value
	many := strings.Repeat(c.Name+"=x; ", 8) + cookie
	for _, c := range []struct {
		name, method, path string
		header             []string
		want               Admission
	}{
		{"curl with a link", "GET", "/?" + query, nil, Admitted},
		{"post with a link", "POST", "/?" + query, []string{"Accept", "text/html"}, Admitted},
		{"websocket with a link", "GET", "/?" + query, []string{"Accept", "text/html", "Upgrade", "websocket"}, Admitted},
		{"wrong link with a cookie", "GET", "/?boxd-link=x", []string{"Cookie", cookie}, Refused},
		{"nothing", "GET", "/", nil, Refused},
		{"cookie", "GET", "/", []string{"Cookie", cookie, "Sec-Fetch-Site", "same-origin"}, Admitted},
		{"cookie behind many", "GET", "/", []string{"Cookie", many, "Sec-Fetch-Site", "same-origin"}, Refused},
		{"perhaps a script in a sibling, old browser", "GET", "/", []string{"Cookie", cookie}, Refused},
		{"own fetch", "POST", "/", []string{"Cookie", cookie, "Origin", origin, "Sec-Fetch-Site", "same-origin"}, Admitted},
		{"own fetch, old browser", "POST", "/", []string{"Cookie", cookie, "Origin", origin}, Admitted},
		{"own websocket", "GET", "/", []string{"Cookie", cookie, "Origin", origin, "Upgrade", "websocket"}, Admitted},
		{"typed", "GET", "/", []string{"Cookie", cookie, "Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}, Admitted},
		{"link on another page", "GET", "/", []string{"Cookie", cookie, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, Admitted},
		{"a frame in a sibling", "GET", "/", []string{"Cookie", cookie, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, Refused},
		{"a link in a sibling", "GET", "/", []string{"Cookie", cookie, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, Admitted},
		{"sibling's websocket", "GET", "/", []string{"Cookie", cookie, "Origin", "https://3000-evil.p.example", "Upgrade", "websocket"}, Refused},
		{"sibling's websocket as navigation", "GET", "/", []string{"Cookie", cookie, "Upgrade", "websocket", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate"}, Refused},
		{"sibling's fetch", "GET", "/", []string{"Cookie", cookie, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, Refused},
		{"sibling's form", "POST", "/", []string{"Cookie", cookie, "Origin", "https://3000-evil.p.example", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate"}, Refused},
		{"sibling's form, old browser", "POST", "/", []string{"Cookie", cookie, "Origin", "https://3000-evil.p.example"}, Refused},
		{"opaque origin", "POST", "/", []string{"Cookie", cookie, "Origin", "null"}, Refused},
		{"same site, other scheme", "POST", "/", []string{"Cookie", cookie, "Origin", "http://3000-lab.p.example"}, Refused},
		{"contradiction", "POST", "/", []string{"Cookie", cookie, "Origin", "https://evil.example", "Sec-Fetch-Site", "same-origin"}, Refused},
	} {
		if _, got := admit(l, v, c.method, origin+c.path, c.header...); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	r := httptest.NewRequest("GET", origin+"/", nil)
	r.Header.Set("Cookie", cookie)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if a, _ := l.Admit(httptest.NewRecorder(), r, v, 7); a != Admitted {
		t.Error("not admitted before the link was revoked")
	}
	if a, _ := l.Admit(httptest.NewRecorder(), r, v, 8); a != Refused {
		t.Error("admitted after the link was revoked")
	}
}

func FuzzLink(f *testing.F) {
	l := testLinks(f, time.Unix(1_800_000_000, 0))
	good := testQuery(f, l, lab, 7, 0)
	f.Add("a=b&" + good + "&c")
	f.Add(linkParam + "=" + strings.Repeat("A", 54))
	f.Fuzz(func(t *testing.T, query string) {
		token, rest, found := cutLink(query)
		if _, _, again := cutLink(rest); again {
			t.Errorf("%q: %q still has a link", query, rest)
		}
		if _, ok := l.check(useLink, token, lab, 7); ok && linkParam+"="+token != good {
			t.Errorf("%q is valid", token)
		}
		if !found && rest != query {
			t.Errorf("%q became %q", query, rest)
		}
	})
}
