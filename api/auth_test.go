package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/policy"
)

var (
	attachWrite = client.AttachOptions{Write: true}
	attachRead  = client.AttachOptions{}
	isCode      = client.IsCode
)

func TestTokens(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"", "no token in it"},
		{"# only a comment\n", "no token in it"},
		{"short acme admin", "line 1: token of 5 characters"},
		{"\n" + adminToken, "line 2: 1 fields"},
		{adminToken + " acme admin a b", "5 fields"},
		{adminToken + " acme root", `role "root": must be admin, operator or viewer`},
		{adminToken + " .. admin", "tenant"},
		{adminToken + " a admin\n" + adminToken + " b admin", "line 2: token is that of token:"},
		{operatorToken + " a admin ci\n" + adminToken + " a viewer ci", `line 2: name "ci": a token for tenant "a" has it already`},
		{operatorToken + " * viewer ci\n" + adminToken + " a viewer ci", `line 2: name "ci": a token for tenant "*" has it already`},
		{operatorToken + " b viewer ci\n" + adminToken + " a admin ci", `line 2: name "ci": a token for tenant "b" has it already`},
		{strings.Repeat("x", 100<<10) + " a admin", "too long"},
	} {
		_, err := tokensOf(strings.NewReader(c.file))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %q", c.file, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), adminToken) {
			t.Errorf("%.40q: the error tells the token", c.file)
		}
	}
	tokens, err := tokensOf(strings.NewReader(tokenFile))
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := tokens.lookup(operatorToken); !ok || id != (Identity{Tenant: "acme", Actor: "token:ci", Role: Operator, Key: id.Key, Gone: id.Gone}) || id.Gone == nil {
		t.Errorf("%+v, %v", id, ok)
	}
	for _, token := range []string{"", "x", operatorToken + "x", operatorToken[1:], strings.ToUpper(operatorToken)} {
		if id, ok := tokens.lookup(token); ok {
			t.Errorf("%q is %+v", token, id)
		}
	}
}

// A token without a name keeps its identity when lines are added above it, and no two credentials of a tenant
// have the same.
func TestIdentityKeys(t *testing.T) {
	lines := []string{adminToken + " acme operator", operatorToken + " acme operator", viewerToken + " acme operator ci", strangerToken + " other operator ci"}
	first, err := tokensOf(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(lines)
	again, err := tokensOf(strings.NewReader("# edited\n\n" + strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	keys, actors := map[string]bool{}, map[string]bool{}
	for _, token := range []string{adminToken, operatorToken, viewerToken, strangerToken} {
		a, _ := first.lookup(token)
		b, _ := again.lookup(token)
		if a.Key != b.Key || a.Actor != b.Actor || a.Key == "" {
			t.Errorf("%+v after an edit is %+v", a, b)
		}
		if keys[a.Key] || actors[a.Tenant+a.Actor] {
			t.Errorf("two tokens are %+v", a)
		}
		sum := sha256.Sum256([]byte(token))
		if strings.Contains(a.Key+a.Actor, hex.EncodeToString(sum[:])[:8]) || strings.Contains(a.Key+a.Actor, token) {
			t.Errorf("%+v tells the digest that tokens are compared with, or the token", a)
		}
		keys[a.Key], actors[a.Tenant+a.Actor] = true, true
	}
	ca, caKey := certificate(t, pkix.Name{CommonName: "ca"}, nil, nil)
	name := pkix.Name{CommonName: "acme", OrganizationalUnit: []string{"operator"}}
	for range 3 {
		cert, _ := certificate(t, name, ca, caKey)
		id, err := byCertificate(&http.Request{TLS: &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}})
		if err != nil || keys[id.Key] || actors[id.Tenant+id.Actor] || !strings.HasPrefix(id.Actor, "cert:acme:") {
			t.Errorf("%+v, %v", id, err)
		}
		keys[id.Key], actors[id.Tenant+id.Actor] = true, true
	}
}

func TestLoadTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := LoadTokens(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := LoadTokens(filepath.Dir(path)); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a directory: %v", err)
	}
	write(tokenFile, 0o644)
	if _, err := LoadTokens(path); err == nil || !strings.Contains(err.Error(), "chmod o=") {
		t.Errorf("open to others: %v", err)
	}
	write(tokenFile, 0o640)
	tokens, err := LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	write(strings.Repeat("#\n", maxTokenFile/2)+tokenFile, 0o640)
	if _, err := LoadTokens(path); err == nil || !strings.Contains(err.Error(), "must have at most") {
		t.Errorf("a file that would be read in part: %v", err)
	}
	write("broken", 0o640)
	if err := tokens.Reload(path); err == nil {
		t.Error("a broken file was taken")
	}
	if _, ok := tokens.lookup(adminToken); !ok {
		t.Error("a broken file changed something")
	}
	write("other-token-0123456789 a viewer", 0o640)
	if err := tokens.Reload(path); err != nil {
		t.Error(err)
	}
	if _, ok := tokens.lookup(adminToken); ok {
		t.Error("a token that was taken away counts")
	}
}

func TestPeers(t *testing.T) {
	me := os.Getuid()
	a := Auth{Groups: []int{7, 9}}
	for _, c := range []struct {
		peer linux.Peer
		err  error
		ok   bool
	}{
		{linux.Peer{UID: 0, GID: 0}, nil, true},
		{linux.Peer{UID: me, GID: 1}, nil, true},
		{linux.Peer{UID: 1234, GID: 7}, nil, true},
		{linux.Peer{UID: 1234, GID: 1, Groups: []int{1, 9}}, nil, true},
		{linux.Peer{UID: 1234, GID: 1234, Groups: []int{1}}, nil, false},
		{linux.Peer{}, errors.New("no credentials"), false},
	} {
		ctx := context.WithValue(context.Background(), connKey{}, &connInfo{unix: true, peer: c.peer, err: c.err})
		r := (&http.Request{Header: http.Header{}}).WithContext(ctx)
		id, err := a.identify(r)
		if (err == nil) != c.ok || c.ok && (id.Role != Admin || id.Tenant != DefaultTenant) {
			t.Errorf("%+v: %+v, %v", c.peer, id, err)
		}
	}
}

func TestTCPNeedsCredentials(t *testing.T) {
	f := serve(t, nil)
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer nope", "Basic " + adminToken, adminToken, "Bearer " + adminToken + "x"} {
		p := f.problem("GET", "/v1/status", "", "", "Authorization", header)
		if p.Code != apitypes.CodeUnauthenticated {
			t.Errorf("%q: %+v", header, p)
		}
		if strings.Contains(p.Detail, adminToken) {
			t.Errorf("%q: the answer repeats the token", header)
		}
	}
	if p := f.problem("GET", "/no/such/path", "", ""); p.Code != apitypes.CodeUnauthenticated {
		t.Errorf("paths are told to strangers: %+v", p)
	}
	if strings.Contains(f.log.String(), adminToken) {
		t.Error("the log has a token")
	}
}

// What a web page can make a browser send to an open port on loopback.
func TestBrowsers(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) {
		o.Auth = Auth{Local: func(int, error) (Identity, error) {
			return Identity{Tenant: DefaultTenant, Actor: "uid:1", Role: Admin}, nil
		}}
	})
	if resp, body := f.raw("GET", "/v1/status", "", ""); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if p := f.problem("GET", "/v1/status", "", "", "Origin", "http://evil.example"); p.Code != apitypes.CodeForbidden {
		t.Errorf("origin: %+v", p)
	}
	for site, ok := range map[string]bool{"cross-site": false, "same-site": false, "same-origin": false, "none": true} {
		r := &http.Request{Host: "localhost", Header: http.Header{"Sec-Fetch-Site": {site}}}
		if err := fromBrowser(r); (err == nil) != ok {
			t.Errorf("site %q: %v", site, err)
		}
	}
	for host, ok := range map[string]bool{"evil.example": false, "evil.example:80": false, "127.0.0.1.evil.example": false, "localhost": true, "localhost:1": true, "[::1]:5": true, "127.9.9.9": true, "": false} {
		r := &http.Request{Host: host, Header: http.Header{}}
		if err := fromBrowser(r); (err == nil) != ok {
			t.Errorf("host %q: %v", host, err)
		}
	}
}

// Local decides about the users of TCP clients on each listener, and about no other callers.
func TestLocalUsers(t *testing.T) {
	var refused atomic.Bool
	f := serve(t, func(o *Options, _ *policy.Config) {
		o.Auth.Local = func(uid int, err error) (Identity, error) {
			if err != nil || uid != os.Getuid() {
				t.Errorf("user %d, %v", uid, err)
			}
			if refused.Load() {
				return Identity{}, errors.New("listen: user 7 may not")
			}
			return Identity{Tenant: DefaultTenant, Actor: "uid:7", Role: Operator}, nil
		}
	})
	six, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	go f.Serve(six, nil)
	cert, key := certificate(t, pkix.Name{CommonName: "localhost"}, nil, nil)
	secure, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go f.Serve(secure, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}})
	hc := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer hc.CloseIdleConnections()
	for _, base := range []string{f.base, "http://" + six.Addr().String(), "https://" + secure.Addr().String()} {
		for _, want := range []struct {
			refused bool
			path    string
			status  int
			body    string
		}{
			{false, "/v1/sessions", 200, "sessions"},
			{true, "/v1/sessions", 403, `"detail":"listen: user 7 may not"`}, // on the same connection
			{true, "/v1/nothing", 403, `"code":"forbidden"`},
			{true, "/healthz", 200, ""},
			{false, "/v1/status", 200, ""},
		} {
			refused.Store(want.refused)
			resp, err := hc.Get(base + want.path)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != want.status || !strings.Contains(string(body), want.body) {
				t.Errorf("%s%s: %d %s %v, want %d %s", base, want.path, resp.StatusCode, body, err, want.status, want.body)
			}
		}
	}
	refused.Store(true)
	if resp, body := f.raw("GET", "/v1/status", "", "", "Authorization", "Bearer "+operatorToken); resp.StatusCode != 200 {
		t.Errorf("with a token: %d %s", resp.StatusCode, body)
	}
	// A connection that Serve has not seen has no user.
	w := httptest.NewRecorder()
	refused.Store(false)
	f.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1/v1/status", nil))
	if w.Code != 401 {
		t.Errorf("without a connection: %d %s", w.Code, w.Body)
	}
}

func TestClientCertificates(t *testing.T) {
	ca, caKey := certificate(t, pkix.Name{CommonName: "ca"}, nil, nil)
	server, serverKey := certificate(t, pkix.Name{CommonName: "localhost"}, ca, caKey)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	f := serve(t, func(o *Options, _ *policy.Config) { o.Auth.ClientCerts = true })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go f.Serve(l, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{server.Raw}, PrivateKey: serverKey}}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven})
	for _, c := range []struct {
		name pkix.Name
		code string // "": may list
	}{
		{pkix.Name{CommonName: "acme", OrganizationalUnit: []string{"viewer"}}, ""},
		{pkix.Name{CommonName: "acme", OrganizationalUnit: []string{"operator"}}, ""},
		{pkix.Name{CommonName: "acme"}, apitypes.CodeUnauthenticated},
		{pkix.Name{CommonName: "acme", OrganizationalUnit: []string{"viewer", "admin"}}, apitypes.CodeUnauthenticated},
		{pkix.Name{CommonName: "acme", OrganizationalUnit: []string{"king"}}, apitypes.CodeUnauthenticated},
		{pkix.Name{CommonName: "../acme", OrganizationalUnit: []string{"viewer"}}, apitypes.CodeUnauthenticated},
	} {
		cert, key := certificate(t, c.name, ca, caKey)
		cl, err := client.New(client.Options{URL: "https://localhost:" + strings.Split(l.Addr().String(), ":")[1],
			TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cl.Sessions(t.Context()); (c.code == "") != (err == nil) || err != nil && !isCode(err, c.code) {
			t.Errorf("%v: %v, want %q", c.name, err, c.code)
		}
		cl.Close()
	}
	// A browser sends the certificate with what any page makes it request.
	cert, key := certificate(t, pkix.Name{CommonName: "acme", OrganizationalUnit: []string{"operator"}}, ca, caKey)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}}
	defer transport.CloseIdleConnections()
	ensure(t, f.as(operatorToken, ""), "a")
	port := listening(t, func(w http.ResponseWriter, r *http.Request) {})
	base := "https://localhost:" + strings.Split(l.Addr().String(), ":")[1]
	for _, c := range []struct {
		site, origin string
		ok           bool
	}{
		{"", "", true}, {"none", "", true}, {"same-origin", base, true}, {"", base, true},
		{"cross-site", "null", false}, {"cross-site", "", false}, {"same-site", "", false}, {"same-origin", "https://evil.example", false},
		{"", "null", false}, {"", "https://evil.example", false}, {"", "http" + strings.TrimPrefix(base, "https"), false},
	} {
		for _, path := range []string{"/v1/sessions/a/ports/" + port + "/", "/v1/sessions/a/tunnels/" + port, "/v1/sessions"} {
			req, _ := http.NewRequest("GET", base+path, nil)
			for name, value := range map[string]string{"Sec-Fetch-Site": c.site, "Origin": c.origin} {
				if value != "" {
					req.Header.Set(name, value)
				}
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := resp.StatusCode != 403; got != c.ok {
				t.Errorf("%s of a page of %q, %q: %d", path, c.site, c.origin, resp.StatusCode)
			}
		}
	}
}

// certificate makes one that ca has signed, or a CA.
func certificate(t *testing.T, name pkix.Name, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: name, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name.CommonName}, IsCA: ca == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	if ca == nil {
		ca, caKey = template, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// tokensOf reads tokens as LoadTokens reads them from a file.
func tokensOf(r io.Reader) (*Tokens, error) {
	entries, err := parseTokens(r)
	if err != nil {
		return nil, err
	}
	t := &Tokens{}
	t.entries.Store(&entries)
	return t, nil
}
