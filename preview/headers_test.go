package preview

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// rewritten returns the request that the box gets.
func rewritten(p *Proxy, v Visit, r *http.Request) *http.Request {
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, &exchange{visit: v, origin: v.origin(r), entry: &entry{id: 1}}))
	out := r.Clone(r.Context())
	p.rewrite(&httputil.ProxyRequest{In: r, Out: out})
	return out
}

func TestRequestHeaders(t *testing.T) {
	const origin = "https://3000-lab.p.example"
	p := New(Options{OwnAuthorization: func(r *http.Request) bool { return strings.HasPrefix(r.Header.Get("Authorization"), "Bearer boxd") }, DropHeaders: []string{"x-company-login"}})
	host, path := Visit{Target: lab}, Visit{Target: lab, Prefix: "/v1/p"}
	for _, c := range []struct {
		v                 Visit
		name, value, want string // want "": the header is removed
	}{
		{host, "Authorization", "Bearer boxd_x", ""},
		{host, "Authorization", "Basic app", "Basic app"},
		{path, "Authorization", "Basic app", ""},
		{host, "X-Boxd-Tenant", "acme", ""},
		{host, "x_boxd_tenant", "acme", ""},
		{host, "Boxd-Writer", "x", ""},
		{host, "Proxy-Authorization", "x", ""},
		{host, "Proxy", "evil:80", ""},
		{host, "Forwarded", "host=evil", ""},
		{host, "X-Forwarded-For", "1.2.3.4", ""},
		{host, "X_Forwarded_For", "1.2.3.4", ""},
		{host, "X-Forwarded-Port", "1", ""},
		{host, "X-Forwarded-Host", "evil", "3000-lab.p.example"},
		{host, "X-Forwarded-Proto", "ftp", "https"},
		{host, "X-Forwarded-Prefix", "/evil", ""},
		{path, "X-Forwarded-Prefix", "/evil", "/v1/p"},
		{host, "X-Real-Ip", "1.2.3.4", ""},
		{host, "X-Auth-Request-Access-Token", "secret", ""},
		{host, "x_auth_request_email", "me@example.com", ""},
		{path, "X-Forwarded-User", "me", ""},
		{path, "X-Remote-User", "me", ""},
		{host, "Remote-Groups", "admins", ""},
		{host, "Cf-Access-Jwt-Assertion", "secret", ""},
		{path, "X-Amzn-Oidc-Data", "secret", ""},
		{host, "X-Goog-Iap-Jwt-Assertion", "secret", ""},
		{host, "X-Ms-Token-Aad-Id-Token", "secret", ""},
		{host, "X-Ms-Client-Principal", "me", ""},
		{host, "Tailscale-User-Login", "me", ""},
		{host, "X-Authentik-Jwt", "secret", ""},
		{host, "X-Ssl-Client-Cert", "pem", ""},
		{host, "X-Original-Url", "/v1/sessions", ""},
		{host, "X-Company-Login", "me", ""},
		{host, "X-Company-Theme", "dark", "dark"},
		{host, "X-Requested-With", "XMLHttpRequest", "XMLHttpRequest"},
		{host, "X-Csrf-Token", "app", "app"},
		{path, "Cookie", "session=of the API's host", ""},
		{host, "Cookie", "a=1; boxd-preview=s; __Host-boxd-preview=s; b=\"x", "a=1; b=\"x"},
		{host, "Cookie", "BOXD-x=1;__secure-Boxd-y=2", ""},
		{host, "Cookie", "myboxd-x=1; x=boxd-preview", "myboxd-x=1; x=boxd-preview"},
		{host, "Origin", origin, "http://localhost:3000"},
		{host, "Origin", "https://evil.example", "https://evil.example"},
		{host, "Origin", "null", "null"},
		{host, "Referer", origin + "/a/b?x=1&boxd-link=secret", "http://localhost:3000/a/b?x=1"},
		{host, "Referer", "https://chat.example/?q=1", "https://chat.example/?q=1"},
		{host, "Referer", "https://3001-lab.p.example/?boxd-link=secret", ""},
		{host, "Referer", "http://%zz", ""},
		{path, "Referer", origin + "/v1/p/x", "http://localhost:3000/x"},
		{path, "Referer", origin + "/v1/other?secret", ""},
		{host, "Upgrade", "h2c", ""},
		{host, "Upgrade", "websocket, h2c", ""},
		{host, "Upgrade", "WebSocket", "WebSocket"},
		{host, "Accept-Encoding", "br", "br"},
		{host, "Sec-Websocket-Protocol", "vite-hmr", "vite-hmr"},
	} {
		r := httptest.NewRequest("GET", origin+c.v.Prefix+"/x", nil)
		r.Header[c.name] = []string{c.value}
		out := rewritten(p, c.v, r)
		if got := strings.Join(out.Header[c.name], ", "); got != c.want {
			t.Errorf("%q %s: %s: %q, want %q", c.v.Prefix, c.name, c.value, got, c.want)
		}
		if out.Host != "localhost:3000" || out.URL.Host == r.URL.Host || out.URL.Scheme != "http" {
			t.Errorf("to %q of %v", out.Host, out.URL)
		}
	}
}

func TestRequestURL(t *testing.T) {
	p := New(Options{})
	for _, c := range []struct{ prefix, uri, want string }{
		{"", "/", "/"},
		{"", "/a%2Fb/%20?import&t=1;2&%zz=&boxd-link=s&x", "/a%2Fb/%20?import&t=1;2&%zz=&x"},
		{"", "/?", "/?"},
		{"", "//evil.example/x", "//evil.example/x"},
		{"", "/../../x", "/../../x"},
		{"/v1/p", "/v1/p/a%2Fb?boxd-link=s", "/a%2Fb"},
		{"/v1/p", "/v1/p//x", "//x"},
		{"/v1/s%2F/p", "/v1/s%2F/p/x", "/x"},
		{"", "/@fs/a:b!$'()*,", "/@fs/a:b!$'()*,"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		u, err := url.Parse("http://x" + c.uri)
		if err != nil {
			t.Fatal(err)
		}
		r.URL = u
		if got := rewritten(p, Visit{Target: lab, Prefix: c.prefix}, r).URL.RequestURI(); got != c.want {
			t.Errorf("%q: %q, want %q", c.uri, got, c.want)
		}
	}
}

// answered returns the headers that the client gets.
func answered(p *Proxy, v Visit, h http.Header) http.Header {
	r := httptest.NewRequest("GET", "https://3000-lab.p.example"+v.Prefix+"/", nil)
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, &exchange{visit: v, origin: v.origin(r)}))
	p.modify(&http.Response{StatusCode: 200, Header: h, Request: r, Body: http.NoBody})
	return h
}

func TestAnswerHeaders(t *testing.T) {
	p := New(Options{})
	all := func() http.Header {
		h := http.Header{}
		for _, name := range []string{"Strict-Transport-Security", "Alt-Svc", "Public-Key-Pins", "Public-Key-Pins-Report-Only", "Service-Worker-Allowed",
			"X-Boxd-Offset", "Boxd-Writer", "X_boxd_offset", "Clear-Site-Data", "NEL", "Report-To", "WWW-Authenticate", "Accept-CH",
			"X-Accel-Redirect", "X-Sendfile", "X-Lighttpd-Send-File", "Surrogate-Control", "Cdn-Cache-Control", "Via",
			"Content-Type", "Content-Security-Policy", "X-Frame-Options", "Etag"} {
			h.Set(name, "x")
		}
		return h
	}
	for _, c := range []struct{ prefix, want string }{
		{"", "Accept-Ch Cache-Control Content-Security-Policy Content-Type Etag Nel Report-To Www-Authenticate X-Frame-Options"},
		{"/v1/p", "Cache-Control Content-Security-Policy Content-Type Etag X-Frame-Options"},
	} {
		h := answered(p, Visit{Target: lab, Prefix: c.prefix}, all())
		if got := strings.Join(slices.Sorted(maps.Keys(h)), " "); got != c.want {
			t.Errorf("%q: %s\nwant %s", c.prefix, got, c.want)
		}
		if got := h["Content-Security-Policy"]; got[0] != "x" || (c.prefix != "") != (len(got) == 2 && got[1] == sandbox) {
			t.Errorf("%q: %q", c.prefix, got)
		}
	}
	if strings.Contains(sandbox, "same-origin") || strings.Contains(sandbox, "top-navigation") {
		t.Error("a page in path mode can act as a page of the API")
	}
}

// Proxies in front of boxd must not give the answer to others.
func TestPrivately(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "private",
		"no-store":                       "private, no-store",
		"public, max-age=60, immutable":  "private, max-age=60, immutable",
		"PUBLIC,S-MaxAge=9 , Private":    "private",
		`private="set-cookie", no-cache`: "private, no-cache",
	} {
		if got := answered(New(Options{}), Visit{Target: lab}, http.Header{"Cache-Control": {in}}).Get("Cache-Control"); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestCookies(t *testing.T) {
	host, path := Visit{Target: lab}, Visit{Target: lab, Prefix: "/v1/p"}
	for _, c := range []struct {
		v        Visit
		in, want string // want "": dropped
	}{
		{host, "a=b", "a=b"},
		{host, "a=b; Path=/x; HttpOnly; SameSite=None; Secure; Partitioned", "a=b; Path=/x; HttpOnly; SameSite=None; Secure; Partitioned"},
		{host, "a=b; Domain=p.example; Max-Age=1", "a=b; Max-Age=1"},
		{host, "a=b;domain=p.example;DOMAIN=.x", "a=b"},
		{host, "a=b; domain", "a=b"},
		{host, "a=b; Expires=Wed, 09 Jun 2027 10:18:14 GMT", "a=b; Expires=Wed, 09 Jun 2027 10:18:14 GMT"},
		{host, "boxd-preview=x", ""},
		{host, " BoxD-preview =x; Path=/", ""},
		{host, "__Host-boxd-preview=x; Secure; Path=/", ""},
		{host, "__Secure-boxd-x=x", ""},
		{host, "=boxd-preview=x", ""},
		{host, "boxd-preview", ""},
		{host, " =x", ""},
		{host, "a=boxd-preview=x", "a=boxd-preview=x"},
		{path, "a=b", ""},
		{path, "a=b; Path=/v1/p/", ""},
		{path, "__Secure-session=x; Path=/; Secure; Domain=api.example", ""},
	} {
		if got := strings.Join(answered(New(Options{}), c.v, http.Header{"Set-Cookie": {c.in}})["Set-Cookie"], "|"); got != c.want {
			t.Errorf("%q %q: %q, want %q", c.v.Prefix, c.in, got, c.want)
		}
	}
}

func TestLocations(t *testing.T) {
	const origin = "https://3000-lab.p.example"
	host, path := Visit{Target: lab}, Visit{Target: lab, Prefix: "/v1/p"}
	for _, c := range []struct {
		v        Visit
		in, want string
	}{
		{host, "/x?a=b#c", "/x?a=b#c"},
		{host, "x/y", "x/y"},
		{host, "http://localhost:3000/x%2Fy?a=b#c", origin + "/x%2Fy?a=b#c"},
		{host, "http://LOCALHOST:3000", origin + "/"},
		{host, "http://127.0.0.1:3000/x", origin + "/x"},
		{host, "http://0.0.0.0:3000/x", origin + "/x"},
		{host, "http://[::1]:3000/x", origin + "/x"},
		{host, "//localhost:3000/x", origin + "/x"},
		{host, "http://localhost:3001/x", "http://localhost:3001/x"},
		{host, "http://localhost/x", "http://localhost/x"},
		{Visit{Target: Target{"", "lab", 80}}, "http://localhost/x", origin + "/x"},
		{host, "https://localhost:3000/x", "https://localhost:3000/x"},
		{host, "https://login.example/?to=http://localhost:3000", "https://login.example/?to=http://localhost:3000"},
		{host, "http://localhost.evil:3000/", "http://localhost.evil:3000/"},
		{host, "mailto:a@b", "mailto:a@b"},
		{host, "http://%zz", "http://%zz"},
		{path, "/x", "/v1/p/x"},
		{path, "/v1/p/x", "/v1/p/x"},
		{path, "x", "x"},
		{path, "/", "/v1/p/"},
		{path, "http://localhost:3000/x", origin + "/v1/p/x"},
		{path, origin + "/x", origin + "/v1/p/x"},
		{path, origin + "/v1/p/x", origin + "/v1/p/x"},
	} {
		if got := c.v.outside(c.in, origin); got != c.want {
			t.Errorf("%q %q: %q, want %q", c.v.Prefix, c.in, got, c.want)
		}
	}
}
