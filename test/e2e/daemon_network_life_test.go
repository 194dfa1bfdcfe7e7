package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
)

// webOutside serves handler to boxes on http, and returns the host:port.
func webOutside(t *testing.T, handler http.HandlerFunc) string {
	l := listenOutside(t)
	server := &http.Server{Handler: handler}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return l.Addr().String()
}

// configure writes the configuration of a daemon that does not run yet, and returns its directory.
func (d *daemon) configure(text string) string {
	d.t.Helper()
	dir := filepath.Dir(d.dir)
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
	d.flags = append(d.flags, "--config", file)
	return dir
}

// TestNetworkTurnsOn: PATCH opens the network of a box that lives; once it was given up, it is gone for
// good: for the session, for others of its workspace and of its volume, and after the death of the
// daemon.
func TestNetworkTurnsOn(t *testing.T) {
	at := webOutside(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	d := newDaemon(t)
	root := t.TempDir()
	if err := os.Chmod(root, 0o777); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(root, "shared")
	if err := os.Mkdir(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	d.configure(fmt.Sprintf("network: proxy\nallowed_mount_roots: [%q]\nprofiles:\n  default: {network_rules: {public: false, allow: [%q]}}\n  never: {allow_network: false}\n", root, at))
	d.start()
	d.says(0, "", "volumes", "create", "data", "--size", "4M")
	d.says(0, "", "exec", "s", "--retain", "7d", "--workspace", shared, "--volume", "data:/data", "--", "sh", "-c", "env | grep -i proxy; true")
	d.says(0, "", "start", "s", "--id", "old", "--", "sleep", "1000")
	box := d.field2(t, "s").Box
	on, off := apitypes.SessionUpdate{LiveWishes: spec.LiveWishes{Network: new(true)}}, apitypes.SessionUpdate{LiveWishes: spec.LiveWishes{Network: new(false)}}
	curl := []string{"exec", "s", "--", "curl", "-sS", "http://" + at}
	if got := d.run(curl...); got.status == 0 {
		t.Errorf("off: %v", got)
	}
	if err := d.update("s", on); err != nil {
		t.Fatal(err)
	}
	d.says(0, "hello\n", curl...)
	d.kill()
	d.start()
	d.says(0, "hello\n", curl...)
	if s := d.field2(t, "s"); s.Box != box || !s.Network || s.Sensitive != nil || s.Processes != 1 {
		t.Errorf("%+v", s)
	}
	d.says(0, "", "exec", "never", "--profile", "never", "--", "true")
	if err := d.update("never", on); !client.IsCode(err, apitypes.CodeDenied) || !strings.Contains(err.Error(), "allow_network") {
		t.Errorf("%v", err)
	}
	// A session that shares nothing with it, and one that does.
	d.says(0, "hello\n", "exec", "other", "--network=proxy", "--", "curl", "-sS", "http://"+at)
	d.says(0, "hello\n", "exec", "sharing", "--network", "--mount", shared+":/shared", "--", "curl", "-sS", "http://"+at)

	if err := d.update("s", off); err != nil {
		t.Fatal(err)
	}
	d.kill()
	d.start()
	for _, again := range []func(){func() {}, func() { d.kill(); d.start() }, func() { d.says(0, "", "sessions", "rm", "s") }} {
		again()
		d.says(0, "off\n", "exec", "s", "--workspace", shared, "--", "sh", "-c", "curl -s -x http://127.0.0.1:3128 http://"+at+" || echo off")
		if err := d.update("s", on); !client.IsCode(err, apitypes.CodeDenied) {
			t.Errorf("on again: %v", err)
		}
	}
	// It could have written to the directory and to the volume.
	if err := d.update("sharing", on); !client.IsCode(err, apitypes.CodeDenied) {
		t.Errorf("a session that shares its directory: %v", err)
	}
	d.says(0, "", "exec", "volume", "--volume", "data:/data", "--", "true")
	if err := d.update("volume", on); !client.IsCode(err, apitypes.CodeDenied) {
		t.Errorf("a session with its volume: %v", err)
	}
	d.says(0, "hello\n", "exec", "other", "--", "curl", "-sS", "http://"+at)
}

// field2 returns a session as the API has it.
func (d *daemon) field2(t *testing.T, id string) (s apitypes.Session) {
	t.Helper()
	if got := d.run("sessions", "show", id, "--json"); json.Unmarshal([]byte(got.stdout), &s) != nil {
		t.Fatalf("%v", got)
	}
	return s
}

// TestSessionsSet: the command line changes what a box that lives reaches, and takes its network away
// for good. Connections that are not allowed any more end.
func TestSessionsSet(t *testing.T) {
	held, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	at := webOutside(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello")
		if r.URL.Path == "/hold" {
			w.(http.Flusher).Flush()
			held <- struct{}{}
			<-r.Context().Done()
			ended <- struct{}{}
		}
	})
	await := func(what string, c chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(patience):
			t.Fatal("a connection does not " + what)
		}
	}
	d := newDaemon(t)
	d.configure(fmt.Sprintf("network: proxy\nprofiles:\n  net: {network: true, network_rules: {public: false, allow: [%q, x.example], limits: {connections: 4}}}\n", at))
	d.start()
	curl := []string{"exec", "s", "--", "curl", "-sS", "-w", "%{http_code}\n", "-o", "/dev/null", "-x", "http://127.0.0.1:3128", "http://" + at}
	hold := func(id string) {
		t.Helper()
		d.says(0, "", "start", "s", "--id", id, "--", "curl", "-sSN", "-o", "/dev/null", "http://"+at+"/hold")
		await("open", held)
	}
	d.says(0, "", "exec", "s", "--profile", "net", "--", "true")
	hold("one")
	d.says(0, "s: network on; allow x.example; connections at most 2\n", "sessions", "set", "s", "--allow", "x.example", "--net-limit", "connections=2")
	await("end", ended)
	d.says(0, "403\n", curl...)
	d.wantRefused(125, d.run("sessions", "set", "s", "--net-limit", "connections=5"), "--net-limit connections 5")
	d.wantRefused(125, d.run("sessions", "set", "s", "--deny", "*"), "--deny")
	d.says(0, "s: network on; allow "+at+"; connections at most 2\n", "sessions", "set", "s", "--allow", at)
	d.says(0, "200\n", curl...)
	d.says(0, "s: network on, with the rules of its profile\n", "sessions", "set", "s", "--reset-rules")
	hold("two")
	d.says(0, "s: network off, for good\n", "sessions", "set", "s", "--network", "none")
	await("end", ended)
	d.says(7, "000\n", curl...) // nothing listens
	d.wantRefused(125, d.run("sessions", "set", "s", "--network", "proxy"), "for good")
	d.wantRefused(125, d.run("sessions", "set", "s", "--allow", at), "which has no network")
}

// TestNetworkLimits: a box moves no more bytes and has no more connections than its request says, and a
// request cannot ask for more than its profile.
func TestNetworkLimits(t *testing.T) {
	held := make(chan struct{})
	at := webOutside(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			w.(http.Flusher).Flush()
			<-held
		}
		w.Write(make([]byte, 1<<20))
	})
	defer close(held)
	d := newDaemon(t)
	d.configure(fmt.Sprintf("network: proxy\nprofiles:\n  net: {network: true, network_rules: {public: false, allow: [%q], limits: {connections: 4, bytes: 100M}}}\n  fixed: {extends: net, locked: [network_rules]}\n", at))
	d.start()
	d.wantRefused(125, d.run("exec", "x", "--profile", "net", "--net-limit", "bytes=101M", "--", "true"), "network_rules.limits.bytes")
	d.wantRefused(125, d.run("exec", "x", "--profile", "net", "--net-limit", "connections=5", "--", "true"), "network_rules.limits.connections")
	d.wantRefused(125, d.run("exec", "x", "--profile", "net", "--net-limit", "speed=5", "--", "true"), "--net-limit")
	if got := d.run("exec", "few", "--profile", "net", "--net-limit", "bytes=2M,connections=1", "--", "sh", "-c", "for i in 1 2 3; do curl -sS -o /dev/null -w '%{size_download}\\n' http://"+at+"; done"); !strings.HasPrefix(got.stdout, "1048576\n") || strings.Count(got.stdout, "1048576\n") > 1 {
		t.Errorf("2 MiB with their heads: %v", got)
	}
	if got := d.run("exec", "one", "--profile", "net", "--net-limit", "connections=1", "--", "sh", "-c", "curl -sSN http://"+at+"/hold -o /tmp/held -D /tmp/head & until grep -q 200 /tmp/head 2>/dev/null; do :; done; curl -sS http://"+at+" -o /tmp/x -w '%{http_code}\\n'; kill %1"); !strings.Contains(got.stdout, "503") && !strings.Contains(got.stdout, "502") && !strings.Contains(got.stdout, "403") && !strings.Contains(got.stdout, "429") {
		t.Errorf("a second connection: %v", got)
	}
	d.says(0, "200\n", "exec", "fixed", "--profile", "fixed", "--net-limit", "bytes=1", "--", "curl", "-sS", "http://"+at, "-o", "/dev/null", "-w", "%{http_code}\n")
	if err := d.update("fixed", apitypes.SessionUpdate{NetworkRules: &spec.NetworkRules{Deny: []string{at}}}); !client.IsCode(err, apitypes.CodeDenied) || !strings.Contains(err.Error(), "locked") {
		t.Errorf("%v", err)
	}
}

// TestNetworkInject: a program uses a secret that it does not see: the proxy adds it to plain http,
// which leaves by https. The value is read again for each request, and the place where it stands is
// known to operators only.
func TestNetworkInject(t *testing.T) {
	d := newDaemon(t)
	dir := filepath.Dir(d.dir)
	cert, authority := localhost(t)
	var plain atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		if r.TLS == nil {
			plain.Add(1)
		}
		fmt.Fprintf(w, "tls %t, %d bytes, %s\n", r.TLS != nil, len(r.Header.Get("Authorization")), r.Header.Get("X-Own"))
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.StartTLS()
	t.Cleanup(server.Close)
	port := server.Listener.Addr().String()
	port = port[strings.LastIndex(port, ":")+1:]
	host := "localhost:" + port
	roots, secrets := filepath.Join(dir, "roots.pem"), filepath.Join(dir, "secrets")
	file, tenant := filepath.Join(secrets, "key"), filepath.Join(secrets, "tenant")
	must(t, os.WriteFile(roots, authority, 0o644))
	must(t, os.Mkdir(secrets, 0o755))
	put := func(file, value string) { // as secrets are rotated
		t.Helper()
		must(t, os.WriteFile(file+"~", []byte(value+"\n"), 0o644))
		must(t, os.Rename(file+"~", file))
	}
	put(file, "Bearer first-secret")
	d.configure(fmt.Sprintf(`network: proxy
profiles:
  agent:
    network: true
    network_rules:
      public: false
      allow: ["localhost:%[1]s", "127.0.0.1/32:%[1]s", "[::1/128]:%[1]s"]
      inject: [{host: "localhost:%[1]s", header: Authorization, value_from: {file: %[2]q}}]
tenants:
  default: {network_rules: {limits: {connections: 100}}}
  alice: {network_rules: {inject: [{host: "localhost:%[1]s", header: authorization, value_from: {file: %[3]q}}, {host: "localhost:%[1]s", header: X-Own, value_from: {env: OWN_SECRET}}]}}
`, port, file, tenant))
	d.env = append(d.env, "SSL_CERT_FILE="+roots, "OWN_SECRET=of-alice")
	d.refuses(78, append(d.flags, "--allow-mount-root", secrets), "never mounted")
	d.start()
	if log := d.logged(); !strings.Contains(log, tenant) || !strings.Contains(log, "tenants.alice.network_rules.inject[0].value_from") || strings.Contains(log, "profiles.agent.network_rules") {
		t.Error("the log does not warn of the missing file alone")
	}
	curl := func(session string, more ...string) result {
		return d.run(append([]string{"exec", session, "--", "curl", "-sSi", "--noproxy", "none.example", "http://" + host + "/"}, more...)...)
	}
	d.says(0, "", "exec", "s", "--profile", "agent", "--", "true")
	for _, value := range []string{"Bearer first-secret", "Bearer secret-no-2"} {
		put(file, value)
		got := curl("s", "-H", "Authorization: mine")
		if !strings.Contains(got.stdout, fmt.Sprintf("tls true, %d bytes, \n", len(value))) || strings.Contains(got.stdout, "secret") || !strings.Contains(got.stdout, "X-Echo: [redacted]") {
			t.Errorf("%v", got)
		}
	}
	if got := d.run("exec", "s", "--", "sh", "-c", "env; cat /proc/[0-9]*/environ"); strings.Contains(got.stdout, "secret") || strings.Contains(got.stdout, "of-alice") {
		t.Errorf("the box sees %v", got)
	}
	must(t, os.Remove(file))
	got := curl("s")
	if !strings.Contains(got.stdout, "502") || !strings.Contains(got.stdout, "a secret of the operator cannot be read") || strings.Contains(got.stdout, secrets) {
		t.Errorf("%v", got)
	}
	if !strings.Contains(d.logged(), "open "+file) {
		t.Error("the log does not say why")
	}
	for _, seen := range [][]string{{"net", "s", "--json"}, {"audit"}, {"sessions", "show", "s", "--json"}} {
		if got := d.run(seen...); strings.Contains(got.stdout, secrets) || strings.Contains(got.stdout, "Bearer") {
			t.Errorf("%q: %v", seen, got)
		}
	}
	put(file, "Bearer third")
	if got := curl("s"); !strings.Contains(got.stdout, "tls true, 12 bytes, \n") {
		t.Errorf("the file is there again: %v", got)
	}

	c, err := client.New(client.Options{Socket: d.socket()})
	must(t, err)
	defer c.Close()
	profiles, err := c.Profiles(t.Context())
	must(t, err)
	all, _ := json.Marshal(profiles)
	if !strings.Contains(string(all), `"inject":[{"host":"localhost:`+port+`","header":"Authorization"}]`) || strings.Contains(string(all), secrets) {
		t.Errorf("profiles: %s", all)
	}

	// A tenant's own.
	put(tenant, "Bearer of alice, longer")
	got = d.run("exec", "--tenant", "alice", "s", "--profile", "agent", "--", "curl", "-sSi", "--noproxy", "none.example", "http://"+host+"/")
	if !strings.Contains(got.stdout, "tls true, 23 bytes, of-alice\n") {
		t.Errorf("a tenant's: %v", got)
	}
	if plain.Load() != 0 {
		t.Error("a request left in plain")
	}

	// boxd run does the same.
	run := newCLI(t)
	run.env = append(run.env, "SSL_CERT_FILE="+roots, "MY_SECRET=own secret")
	flags := []string{"run", "--network", "proxy", "--allow", "localhost:" + port, "--allow", "127.0.0.1/32:" + port, "--allow", "[::1/128]:" + port}
	for _, r := range []struct{ rule, says string }{
		{"localhost:" + port + " Authorization=file:" + file, "tls true, 12 bytes, \n"}, {"localhost:" + port + " Authorization=env:MY_SECRET", "tls true, 10 bytes, \n"},
	} {
		if got := run.run(append(flags, "--inject", r.rule, "--", "sh", "-c", "env; curl -sSi --noproxy none.example http://"+host)...); got.status != 0 || !strings.Contains(got.stdout, r.says) || strings.Contains(got.stdout, "secret") {
			t.Errorf("boxd run --inject %q: %v", r.rule, got)
		}
	}
	for _, r := range []struct{ rule, says string }{
		{"localhost:" + port + " Authorization=file:/missing", "/missing"}, {"x.example Authorization=file:" + file, "--allow"}, {"localhost:80 Authorization=file:" + file, "--inject"},
		{"localhost Authorization", "HOST HEADER=file:PATH"}, {"localhost:" + port + " Host=file:" + file, "header"}, {"localhost:" + port + " X=env:NOT_SET", "NOT_SET"},
	} {
		run.wantRefused(125, run.run(append(flags, "--inject", r.rule, "--", "true")...), r.says)
	}
	run.wantRefused(125, run.run("run", "--inject", "localhost A=file:"+file, "--", "true"), "need --network proxy")
	run.wantRefused(125, run.run("run", "--net-limit", "bytes=1M", "--", "true"), "need --network proxy")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// localhost returns a certificate for localhost, and as PEM the authority that signed it: itself.
func localhost(t *testing.T) (tls.Certificate, []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
