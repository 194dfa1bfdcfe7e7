package api

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/ui"
)

// signIn returns the cookie and the secret that a page gets for a token.
func (f *fixture) signIn(token string, header ...string) (cookie *http.Cookie, secret string) {
	f.t.Helper()
	resp, body := f.raw("POST", loginPath, "", `{"token": "`+token+`"}`, header...)
	var l apitypes.Login
	if err := json.Unmarshal(body, &l); err != nil || resp.StatusCode != 200 || len(resp.Cookies()) != 1 || resp.Header.Get("Cache-Control") != "no-store" {
		f.t.Fatalf("%d %s, %v", resp.StatusCode, body, err)
	}
	return resp.Cookies()[0], l.Page
}

// A page gets a cookie that scripts cannot read and other sites do not send, and its secret, and is then whoever the
// token stands for.
func TestLogin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(path, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	f := serve(t, func(o *Options, _ *policy.Config) { o.Audit = log })
	cookie, secret := f.signIn(viewerToken)
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Secure || cookie.Path != "/" || cookie.MaxAge < 1790 || cookie.MaxAge > 1800 || !strings.HasPrefix(cookie.Name, "boxd-page-") {
		t.Errorf("%+v", cookie)
	}
	page := []string{"Cookie", cookie.Name + "=" + cookie.Value, PageHeader, secret}
	resp, body := f.raw("GET", loginPath, "", "", page...)
	var l apitypes.Login
	if err := json.Unmarshal(body, &l); err != nil || l.Tenant != "acme" || l.Role != "viewer" || l.AllTenants || l.ExpiresAt == nil || l.Page != "" || len(resp.Cookies()) != 1 {
		t.Errorf("%s, %v, %v", body, err, resp.Cookies())
	}
	if resp, body := f.raw("GET", "/v1/sessions", "", "", page...); resp.StatusCode != 200 {
		t.Errorf("list: %d %s", resp.StatusCode, body)
	}
	if p := f.problem("POST", "/v1/sessions", "", `{"id": "a"}`, page...); p.Code != apitypes.CodeForbidden || !strings.Contains(p.Detail, "role viewer") {
		t.Errorf("a viewer creates: %+v", p)
	}
	// Behind a proxy with TLS the origin says so.
	host := strings.TrimPrefix(f.base, "http://")
	if c, _ := f.signIn(adminToken, "Origin", "https://"+host, "Sec-Fetch-Site", "same-origin"); !c.Secure || !strings.HasPrefix(c.Name, "__Host-boxd-page") || c.Path != "/" || c.Domain != "" {
		t.Errorf("with TLS: %+v", c)
	}
	// A bearer token has no login to end, and says who it is.
	if resp, body := f.raw("GET", loginPath, adminToken, ""); resp.StatusCode != 200 || strings.Contains(string(body), "expires_at") || !strings.Contains(string(body), `"all_tenants":true`) {
		t.Errorf("with a bearer token: %d %s", resp.StatusCode, body)
	}
	if p := f.problem("DELETE", loginPath, adminToken, ""); p.Code != apitypes.CodeState {
		t.Errorf("%+v", p)
	}

	if resp, _ := f.raw("DELETE", loginPath, "", "", page...); resp.StatusCode != 204 || len(resp.Cookies()) != 1 || resp.Cookies()[0].MaxAge >= 0 {
		t.Errorf("signing out: %d %+v", resp.StatusCode, resp.Cookies())
	}
	if p := f.problem("GET", "/v1/sessions", "", "", page...); p.Code != apitypes.CodeUnauthenticated {
		t.Errorf("a copy of the cookie after signing out: %+v", p)
	}
	written, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(written), `"action":"login"`) || !strings.Contains(string(written), `"action":"logout"`) || strings.Contains(string(written), viewerToken) {
		t.Errorf("audit log: %s, %v", written, err)
	}
}

// What is no token of this daemon's signs nobody in, and the answer sets no cookie.
func TestLoginRefused(t *testing.T) {
	f := serve(t, nil)
	host := strings.TrimPrefix(f.base, "http://")
	for _, c := range []struct {
		body, code string
		header     []string
	}{
		{`{"token": "unknown-0123456789012345"}`, apitypes.CodeUnauthenticated, nil},
		{`{"token": ""}`, apitypes.CodeUnauthenticated, nil},
		{`{}`, apitypes.CodeUnauthenticated, nil},
		{`{"token": 7}`, apitypes.CodeWrongType, nil},
		{`{"token": "` + adminToken + `", "tenant": "x"}`, apitypes.CodeUnknownField, nil},
		{`{"token": "` + adminToken + `"`, apitypes.CodeMalformed, nil},
		{`{"token": "` + adminToken + `"}`, apitypes.CodeForbidden, []string{"Origin", "http://evil.example"}},
		{`{"token": "` + adminToken + `"}`, apitypes.CodeForbidden, []string{"Origin", "null"}},
		{`{"token": "` + adminToken + `"}`, apitypes.CodeForbidden, []string{"Origin", "http://127.0.0.1:1"}},
		{`{"token": "` + adminToken + `"}`, apitypes.CodeForbidden, []string{"Origin", "http://" + host, "Sec-Fetch-Site", "same-site"}},
		{`{"token": "` + adminToken + `"}`, apitypes.CodeMediaType, []string{"Content-Type", "text/plain"}},
	} {
		resp, answer := f.raw("POST", loginPath, "", c.body, c.header...)
		if p := checkProblem(t, resp, answer); p.Code != c.code || len(resp.Cookies()) != 0 {
			t.Errorf("%s %v: %+v, %v", c.body, c.header, p, resp.Cookies())
		}
	}
	none := serve(t, func(o *Options, _ *policy.Config) { o.Auth.Tokens = nil })
	if p := none.problem("POST", loginPath, "", `{"token": "`+adminToken+`"}`); p.Code != apitypes.CodeUnauthenticated || !strings.Contains(p.Detail, "tokens_file") {
		t.Errorf("without tokens: %+v", p)
	}
}

// Cookie and secret belong together, and to this origin: a server at another port of the host gets the cookie from
// the browser, and can do nothing with it. Nothing that was changed, has expired, or belongs to a token that is gone
// counts.
func TestPageCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(tokenFile)
	tokens, err := LoadTokens(file)
	if err != nil {
		t.Fatal(err)
	}
	f := serve(t, func(o *Options, _ *policy.Config) { o.Auth.Tokens = tokens })
	host := strings.TrimPrefix(f.base, "http://")
	cookie, secret := f.signIn(operatorToken)
	other, otherSecret := f.signIn(operatorToken)
	made := func(since, expires time.Duration) (string, string) {
		now := time.Now().Truncate(time.Second)
		l := &pageLogin{key: &tokens.entry(operatorToken).page, since: now.Add(since), expires: now.Add(expires)}
		return l.cookie(), l.secret()
	}
	flipped := func(at int) string {
		raw, err := base64.RawURLEncoding.DecodeString(cookie.Value)
		if err != nil {
			t.Fatal(err)
		}
		raw[at] ^= 1
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	expired, expiredSecret := made(-time.Hour, -time.Second)
	future, futureSecret := made(time.Hour, 2*time.Hour)
	with := func(value, secret string, header ...string) []string {
		return append([]string{"Cookie", cookie.Name + "=" + value, PageHeader, secret}, header...)
	}
	for name, c := range map[string]struct {
		header []string
		code   string // "": it is let in
	}{
		"both":                       {with(cookie.Value, secret), ""},
		"both, of the same origin":   {with(cookie.Value, secret, "Origin", "http://"+host, "Sec-Fetch-Site", "same-origin"), ""},
		"behind a proxy with TLS":    {with(cookie.Value, secret, "Origin", "https://"+host), ""},
		"beside others of that name": {with("x; "+cookie.Name+"="+other.Value+"; "+cookie.Name+"="+cookie.Value, secret), ""},
		"the other pair":             {with(other.Value, otherSecret), ""},
		"no secret":                  {[]string{"Cookie", cookie.Name + "=" + cookie.Value}, apitypes.CodeUnauthenticated},
		"no cookie":                  {[]string{PageHeader, secret}, apitypes.CodeUnauthenticated},
		"the secret of another":      {with(cookie.Value, otherSecret), apitypes.CodeUnauthenticated},
		"a part of the secret":       {with(cookie.Value, secret[:10]), apitypes.CodeUnauthenticated},
		"the cookie as a secret":     {with(cookie.Value, cookie.Value), apitypes.CodeUnauthenticated},
		"empty":                      {with("", secret), apitypes.CodeUnauthenticated},
		"long":                       {with(strings.Repeat("A", 4000), secret), apitypes.CodeUnauthenticated},
		"changed selector":           {with(flipped(0), secret), apitypes.CodeUnauthenticated},
		"changed expiry":             {with(flipped(23), secret), apitypes.CodeUnauthenticated},
		"changed signature":          {with(flipped(cookieBytes-1), secret), apitypes.CodeUnauthenticated},
		"expired":                    {with(expired, expiredSecret), apitypes.CodeUnauthenticated},
		"of the future":              {with(future, futureSecret), apitypes.CodeUnauthenticated},
		"another site":               {with(cookie.Value, secret, "Sec-Fetch-Site", "cross-site"), apitypes.CodeForbidden},
		"another port":               {with(cookie.Value, secret, "Sec-Fetch-Site", "same-site", "Origin", "http://127.0.0.1:1"), apitypes.CodeForbidden},
		"another origin":             {with(cookie.Value, secret, "Origin", "http://evil.example"), apitypes.CodeForbidden},
		"a sandboxed page":           {with(cookie.Value, secret, "Origin", "null"), apitypes.CodeForbidden},
		"somebody navigates":         {with(cookie.Value, secret, "Sec-Fetch-Site", "none"), apitypes.CodeForbidden},
	} {
		resp, body := f.raw("GET", "/v1/sessions", "", "", c.header...)
		if c.code == "" {
			if resp.StatusCode != 200 {
				t.Errorf("%s: %d %s", name, resp.StatusCode, body)
			}
		} else if p := checkProblem(t, resp, body); p.Code != c.code {
			t.Errorf("%s: %+v", name, p)
		}
	}

	// Renewing does not go beyond twelve hours from the sign-in.
	late, lateSecret := made(-loginMost+10*time.Minute, time.Minute)
	resp, body := f.raw("GET", loginPath, "", "", with(late, lateSecret)...)
	if len(resp.Cookies()) != 1 || resp.Cookies()[0].MaxAge > 600 || resp.Cookies()[0].MaxAge < 500 {
		t.Errorf("%d %s %v", resp.StatusCode, body, resp.Cookies())
	}

	write(strings.ReplaceAll(tokenFile, operatorToken, "another-0123456789012345"))
	if err := tokens.Reload(file); err != nil {
		t.Fatal(err)
	}
	if p := f.problem("GET", "/v1/sessions", "", "", with(cookie.Value, secret)...); p.Code != apitypes.CodeUnauthenticated {
		t.Errorf("after the token was removed: %+v", p)
	}
}

// A relay takes the secret and the tenant as sub-protocols, from its own origin only; nothing else does, because behind
// other WebSockets there are servers in boxes.
func TestPageRelay(t *testing.T) {
	f := serve(t, nil)
	ensure(t, f.as(operatorToken, ""), "a")
	if _, err := f.as(operatorToken, "").Start(t.Context(), "a", apitypes.ProcessRequest{ID: "p", Argv: []string{"sleep", "44"}}); err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(f.base, "http://")
	dial := func(path, origin string, cookie *http.Cookie, protocols ...string) (status int, chosen string) {
		t.Helper()
		d := websocket.Dialer{Subprotocols: protocols}
		h := http.Header{"Cookie": {cookie.Name + "=" + cookie.Value}, "Origin": {origin}}
		ws, resp, err := d.Dial("ws://"+host+path, h)
		if err == nil {
			chosen = ws.Subprotocol()
			ws.Close()
		} else if resp == nil {
			t.Fatal(err)
		}
		return resp.StatusCode, chosen
	}
	cookie, secret := f.signIn(operatorToken)
	admin, adminSecret := f.signIn(adminToken)
	const relay = "/v1/sessions/a/processes/p/relay"
	for name, c := range map[string]struct {
		path, origin string
		cookie       *http.Cookie
		protocols    []string
		status       int
	}{
		"both":                        {relay, f.base, cookie, []string{"boxd", "boxd.page." + secret}, 101},
		"an administrator's tenant":   {relay, f.base, admin, []string{"boxd", "boxd.page." + adminSecret, "boxd.tenant.acme"}, 101},
		"an administrator's own":      {relay, f.base, admin, []string{"boxd", "boxd.page." + adminSecret}, 404},
		"another tenant":              {relay, f.base, cookie, []string{"boxd", "boxd.page." + secret, "boxd.tenant.default"}, 403},
		"no secret":                   {relay, f.base, cookie, []string{"boxd"}, 401},
		"a wrong secret":              {relay, f.base, cookie, []string{"boxd", "boxd.page." + adminSecret}, 401},
		"a page at another port":      {relay, "http://127.0.0.1:1", cookie, []string{"boxd", "boxd.page." + secret}, 403},
		"a page of another site":      {relay, "http://evil.example", cookie, []string{"boxd", "boxd.page." + secret}, 403},
		"a sandboxed page":            {relay, "null", cookie, []string{"boxd", "boxd.page." + secret}, 403},
		"a tunnel":                    {"/v1/sessions/a/tunnels/80", f.base, cookie, []string{"boxd", "boxd.page." + secret}, 401},
		"a WebSocket of a box's port": {"/v1/sessions/a/ports/80", f.base, cookie, []string{"boxd", "boxd.page." + secret}, 401},
	} {
		status, chosen := dial(c.path, c.origin, c.cookie, c.protocols...)
		if status != c.status || (chosen == "boxd") != (status == 101) {
			t.Errorf("%s: %d, protocol %q", name, status, chosen)
		}
	}
}

// The page and its files are whole, may be loaded by anybody, and say what browsers may do with them.
func TestPage(t *testing.T) {
	f := serve(t, nil)
	resp, body := f.raw("GET", "/ui", "", "")
	h := resp.Header
	if resp.StatusCode != 200 || h.Get("Content-Type") != "text/html; charset=utf-8" || h.Get("Content-Security-Policy") != ui.Policy || h.Get("X-Frame-Options") != "DENY" ||
		h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-cache" || h.Get("Referrer-Policy") != "no-referrer" || !bytes.Contains(body, []byte(`src="/ui/app.js"`)) {
		t.Errorf("%d %v %s", resp.StatusCode, h, body)
	}
	for _, forbidden := range []string{"unsafe", "http:", "https:", "*", "data:"} {
		if strings.Contains(ui.Policy, forbidden) {
			t.Errorf("the policy has %q", forbidden)
		}
	}
	total := 0
	for _, name := range []string{"index.html", "app.js", "app.css", "terminal.js", "chunk.js", "icon.svg", "licenses.txt"} {
		resp, plain := f.raw("GET", "/ui/"+name, "", "", "Accept-Encoding", "identity")
		total += len(plain)
		zipped, compressed := f.raw("GET", "/ui/"+name, "", "", "Accept-Encoding", "gzip")
		z, err := gzip.NewReader(bytes.NewReader(compressed))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		unzipped, err := io.ReadAll(z)
		if err != nil || !bytes.Equal(plain, unzipped) || len(plain) == 0 || zipped.Header.Get("Content-Encoding") != "gzip" || zipped.Header.Get("ETag") == resp.Header.Get("ETag") {
			t.Errorf("%s: %d bytes, %d unzipped, %v, %v", name, len(plain), len(unzipped), zipped.Header, err)
		}
		for _, r := range []*http.Response{resp, zipped} {
			again, rest := f.raw("GET", "/ui/"+name, "", "", "Accept-Encoding", cmp.Or(r.Header.Get("Content-Encoding"), "identity"), "If-None-Match", `"old", `+r.Header.Get("ETag"))
			if again.StatusCode != 304 || len(rest) != 0 || again.Header.Get("Content-Security-Policy") == "" {
				t.Errorf("%s again: %d", name, again.StatusCode)
			}
		}
	}
	if total > 500_000 {
		t.Errorf("the page has %d bytes", total)
	}
	if resp, body := f.raw("HEAD", "/ui", "", ""); resp.StatusCode != 200 || len(body) != 0 || resp.Header.Get("ETag") == "" {
		t.Errorf("HEAD: %d, %d bytes", resp.StatusCode, len(body))
	}
	for _, path := range []string{"/ui/none", "/ui/dist", "/ui/%2e%2e%2fui.go", "/ui/src%2fmain.tsx"} {
		if resp, body := f.raw("GET", path, "", ""); checkProblem(t, resp, body).Status != 404 && resp.StatusCode != 400 {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
}

// With a client certificate a page needs no token: it sends an empty secret, and no cookie.
func TestPageWithCertificate(t *testing.T) {
	ca, caKey := certificate(t, pkix.Name{CommonName: "ca"}, nil, nil)
	server, serverKey := certificate(t, pkix.Name{CommonName: "localhost"}, ca, caKey)
	cert, key := certificate(t, pkix.Name{CommonName: "acme", OrganizationalUnit: []string{"operator"}}, ca, caKey)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	f := serve(t, func(o *Options, _ *policy.Config) { o.Auth.ClientCerts = true })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go f.Serve(l, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{server.Raw}, PrivateKey: serverKey}}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven})
	f.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	f.base = "https://localhost:" + port
	page := []string{PageHeader, "", "Sec-Fetch-Site", "same-origin"}
	if resp, body := f.raw("GET", loginPath, "", "", page...); resp.StatusCode != 200 || !strings.Contains(string(body), `"role":"operator"`) || strings.Contains(string(body), "expires_at") || len(resp.Cookies()) != 0 {
		t.Errorf("%d %s %v", resp.StatusCode, body, resp.Cookies())
	}
	if p := f.problem("GET", loginPath, "", "", PageHeader, "left of another login", "Sec-Fetch-Site", "same-origin"); p.Code != apitypes.CodeUnauthenticated {
		t.Errorf("%+v", p)
	}
	if p := f.problem("GET", loginPath, "", "", PageHeader, "", "Sec-Fetch-Site", "cross-site"); p.Code != apitypes.CodeForbidden {
		t.Errorf("%+v", p)
	}
	// Who signs in with a token nevertheless is whom the token stands for, with a cookie for TLS only.
	cookie, secret := f.signIn(viewerToken, "Origin", f.base)
	if !cookie.Secure || cookie.Name != "__Host-boxd-page-"+port {
		t.Errorf("%+v", cookie)
	}
	if resp, body := f.raw("GET", loginPath, "", "", PageHeader, secret, "Cookie", cookie.Name+"="+cookie.Value); !strings.Contains(string(body), `"role":"viewer"`) || len(resp.Cookies()) != 1 || !resp.Cookies()[0].Secure {
		t.Errorf("%d %s %v", resp.StatusCode, body, resp.Cookies())
	}
}
