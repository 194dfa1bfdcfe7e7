package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	boxddaemon "github.com/boxd/boxd/test/daemon"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	dockerarchive "github.com/google/go-containerregistry/pkg/v1/tarball"
)

// gate is the door of a registry, at which a test can change the answers.
type gate struct {
	http.Handler
	host string // of its first listener
	port string

	mu    sync.Mutex
	asked []string // methods and paths
	// answer, if not nil, answers requests for which it returns true.
	answer func(w http.ResponseWriter, r *http.Request) bool
}

// newGate listens at the same port of these addresses of loopback.
func newGate(t *testing.T, handler http.Handler, addresses ...string) *gate {
	t.Helper()
	g := &gate{Handler: handler, port: "0"}
	for _, a := range append([]string{"127.0.0.1"}, addresses...) {
		l, err := net.Listen("tcp", net.JoinHostPort(a, g.port))
		if err != nil {
			t.Fatal(err)
		}
		_, g.port, _ = net.SplitHostPort(l.Addr().String())
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: g, ErrorLog: log.New(io.Discard, "", 0)}}
		s.Start()
		t.Cleanup(s.Close)
	}
	g.host = "127.0.0.1:" + g.port
	return g
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	g.asked = append(g.asked, r.Method+" "+r.URL.Path)
	answer := g.answer
	g.mu.Unlock()
	if answer == nil || !answer(w, r) {
		g.Handler.ServeHTTP(w, r)
	}
}

// change sets answer, nil for none, and forgets what was asked.
func (g *gate) change(answer func(w http.ResponseWriter, r *http.Request) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer, g.asked = answer, nil
}

// requests counts those for a part of the registry since the last change.
func (g *gate) requests(part string) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, path := range g.asked {
		if strings.Contains(path, part) {
			n++
		}
	}
	return n
}

func isBlob(r *http.Request) bool {
	return r.Method == "GET" && strings.Contains(r.URL.Path, "/blobs/")
}

// layer returns the answer to a request for the layer that has busybox; ok is false for all else.
func (g *gate) layer(r *http.Request) (body []byte, ok bool) {
	if !isBlob(r) {
		return nil, false
	}
	whole := httptest.NewRecorder()
	g.Handler.ServeHTTP(whole, r)
	return whole.Body.Bytes(), whole.Code == http.StatusOK && whole.Body.Len() > 100_000
}

// hold keeps the layer that has busybox from its clients. begun receives a value for each request, gone one for each
// client that leaves; release answers all.
func (g *gate) hold() (begun, gone chan string, release func()) {
	begun, gone, open := make(chan string, 100), make(chan string, 100), make(chan struct{})
	g.change(func(w http.ResponseWriter, r *http.Request) bool {
		if _, ok := g.layer(r); !ok {
			return false
		}
		begun <- r.URL.Path
		select {
		case <-open:
			return false
		case <-r.Context().Done():
			gone <- r.URL.Path
			return true
		}
	})
	return begun, gone, sync.OnceFunc(func() { close(open) })
}

// inProcess is a registry without a login.
func inProcess() http.Handler { return registry.New(registry.Logger(log.New(io.Discard, "", 0))) }

// debianRegistry runs the registry that Debian packages, with the login user:secret.
func debianRegistry(t *testing.T) http.Handler {
	t.Helper()
	testutil.RequireProgram(t, "docker-registry")
	testutil.RequireProgram(t, "htpasswd")
	dir := t.TempDir()
	users, err := exec.Command("htpasswd", "-nbB", "user", "secret").Output()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // to find a free port
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	config := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\nauth: {htpasswd: {realm: test, path: %s/users}}\n", dir, address, dir)
	for name, text := range map[string]string{"users": string(users), "config.yml": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("docker-registry", "serve", dir+"/config.yml")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	await(t, "docker-registry listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address})
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	return proxy
}

// await polls where no event can be awaited.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("gave up waiting until %s", what)
		}
	}
}

// push copies an image of a layout to a registry.
func (g *gate) push(t *testing.T, from, to string) {
	t.Helper()
	tool(t, "skopeo", "copy", "-q", "--dest-tls-verify=false", "--dest-creds", "user:secret", "oci:"+from, "docker://"+g.host+"/"+to)
}

// newImageDaemon returns a daemon with this configuration that does not run yet. Texts "HOST" and "PORT" are those of g.
func newImageDaemon(t *testing.T, g *gate, config string, flags ...string) *daemon {
	t.Helper()
	file := filepath.Join(testutil.ReachableDir(t, ""), "boxd.yaml")
	if g != nil {
		config = strings.NewReplacer("HOST", g.host, "PORT", g.port).Replace(config)
	}
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return newDaemon(t, append(flags, "--config", file)...)
}

// stored lists what the daemon and its launcher keep of images.
func (d *daemon) stored() []string {
	return tree(d.t, filepath.Join(d.dir, "volumes", "images"), filepath.Join(d.dir, "images"))
}

// layers are the directories of published layers.
func (d *daemon) layers() []string {
	dirs, _ := filepath.Glob(filepath.Join(d.dir, "volumes", "images", strings.Repeat("?", 64)))
	return dirs
}

func (d *daemon) client(tenant string) *client.Client {
	d.t.Helper()
	c, err := client.New(client.Options{Socket: d.socket(), Tenant: tenant})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(c.Close)
	return c
}

// session asks for a session of the daemon.
func (d *daemon) sessionOf(id string) (s apitypes.Session) {
	d.t.Helper()
	status, answer := d.ask(d.apiClient(), "GET", "/v1/sessions/"+id, "")
	if err := json.Unmarshal(answer, &s); err != nil || status != 200 {
		d.t.Fatalf("session %s: %d %s, %v", id, status, answer, err)
	}
	return s
}

// TestDaemonPulls: a daemon pulls from Debian's registry with a login of its configuration, through a connection that
// dies, and tells its clients how far it is.
func TestDaemonPulls(t *testing.T) {
	g := newGate(t, debianRegistry(t), "127.0.0.2", "127.0.0.3", "127.0.0.4")
	g.push(t, umociLayout(t)+":app", "team/app:1")
	dir := testutil.ReachableDir(t, "")
	d := newImageDaemon(t, g, `
images:
  registries:
    HOST: {insecure: true, login_file: `+dir+`/right}
    127.0.0.2:PORT: {insecure: true, login_file: `+dir+`/wrong}
    127.0.0.3:PORT: {login_file: `+dir+`/right}
    127.0.0.4:PORT: {insecure: true}
    docker.io: {mirrors: ["https://127.0.0.9:PORT", "http://HOST"]}
profiles:
  default: {workspace_mode: none, images: ["HOST/*"], image: "HOST/team/app:1", isolation: `+isolation+`}
`)
	uid, gid := servingUser(t)
	for name, login := range map[string]string{"right": "user:secret\n", "wrong": "user:guess\n"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(login), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	d.start()
	before := d.stored()
	for host, want := range map[string][]string{
		"127.0.0.2:" + g.port: {"login refused", "401", "team/app"}, "127.0.0.4:" + g.port: {"login refused", "401"},
		"127.0.0.3:" + g.port: {"registry not reachable", "HTTP response to HTTPS client"},
	} {
		got := d.run("image", "pull", "-q", host+"/team/app:1")
		d.wantRefused(125, got, want...)
		if strings.Contains(got.stderr+d.logged(), "guess") || strings.Contains(d.logged(), "secret") {
			t.Errorf("a password is shown: %v", got)
		}
	}
	d.wantRefused(125, d.run("image", "pull", "-q", g.host+"/team/other:1"), "unknown image", "team/other")
	d.wantRefused(125, d.run("image", "pull", "-q", g.host+"/team/app@sha256:"+strings.Repeat("0", 64)), "unknown image")
	if after := d.stored(); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter %q", before, after)
	}

	// The large layer breaks off once, after half of it. The download then continues.
	var mu sync.Mutex
	cut, ranges := false, 0
	g.change(func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("Range") != "" {
			ranges++
		}
		if cut {
			return false
		}
		var body []byte
		if body, cut = g.layer(r); !cut {
			return false
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body[:len(body)/2])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	c := d.client("")
	events, err := c.Events(t.Context(), "0")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	steps := map[string]int{}
	img, err := c.PullImage(t.Context(), apitypes.ImagePull{Reference: g.host + "/team/app:1"}, func(p apitypes.ImageProgress) { steps[p.Step]++ })
	if err != nil {
		t.Fatal(err)
	}
	if ranges == 0 || steps["resolve"] == 0 || steps["download"] == 0 || steps["unpack"] == 0 || steps["done"] == 0 {
		t.Errorf("%d downloads were continued, steps %v", ranges, steps)
	}
	if img.Name != g.host+"/team/app:1" || img.User != "app" || img.StopSignal != "SIGUSR1" || img.Labels["org.example.note"] != "kept" || len(img.Layers) != 4 {
		t.Errorf("%+v", img)
	}
	seen := map[string]bool{}
	for !seen["image-pulled"] {
		e, err := events.Next()
		if err != nil {
			t.Fatalf("%v, seen %v", err, seen)
		}
		seen[e.Type] = true
	}
	if !seen["image-progress"] {
		t.Errorf("events %v", seen)
	}

	// The mirror that has it is asked, and docker.io is not. The layers are there.
	g.change(nil)
	if got := d.ok("image", "pull", "-q", "team/app:1"); got != "docker.io/team/app:1\n" || g.requests("GET /v2/team/app/manifests/1") != 1 {
		t.Errorf("%q, asked %q", got, g.asked)
	}
	d.wantRefused(125, d.run("image", "pull", "-q", "--platform", "linux/arm64", g.host+"/team/app:1"), "no image for this host", "linux/arm64")

	// What the image says holds in a session.
	d.says(0, appSays, "exec", "s")
	d.says(0, "c / 7:8\n", "exec", "s", "-e", "A=c", "-w", "/", "-u", "7:8", "--", "sh", "-c", appWith)
	d.says(0, "", "start", "s", "--id", "p", "--", "sh", "-c", `trap 'echo asked; exit 7' USR1; echo up; `+testutil.SignalLoop)
	await(t, "the process is up", func() bool { return d.run("logs", "s", "p").stdout == "up\n" })
	d.run("stop", "s", "p")
	if got := d.run("logs", "s", "p").stdout; got != "up\nasked\n" {
		t.Errorf("the image's stop signal: %q, %+v", got, d.process("p"))
	}
	if s := d.sessionOf("s"); s.Image != img.Name || s.ImageDigest != img.Digest {
		t.Errorf("%+v, want %s", s, img.Digest)
	}
}

// TestLocalPulls: boxd pulls without a daemon, with the login of a file or of docker's configuration.
func TestLocalPulls(t *testing.T) {
	g := newGate(t, debianRegistry(t))
	g.push(t, umociLayout(t)+":app", "team/app:1")
	c := newImageCLI(t)
	ref := g.host + "/team/app:1"
	c.wantRefused(125, c.run("image", "pull", "-q", ref), "registry not reachable", "HTTP response to HTTPS client")
	c.wantRefused(125, c.run("image", "pull", "-q", "--insecure", ref), "login refused", "401")
	login := filepath.Join(t.TempDir(), "login")
	if err := os.WriteFile(login, []byte("user:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := c.ok("image", "pull", "-q", "--insecure", "--login-file", login, ref); got != ref+"\n" {
		t.Errorf("%q", got)
	}
	c.want(result{0, appSays, ""}, "--image", ref)
	c.ok("image", "rm", ref)
	c.ok("image", "gc")
	auth := fmt.Sprintf(`{"auths": {%q: {"auth": "dXNlcjpzZWNyZXQ="}}}`, g.host) // user:secret
	if err := os.WriteFile(filepath.Join(filepath.Dir(c.data), "config.json"), []byte(auth), 0o600); err != nil {
		t.Fatal(err)
	}
	c.ok("image", "pull", "--insecure", ref)
	c.want(result{0, "b /srv/data 1234:2345\n", ""}, "--image", ref, "--", "sh", "-c", appWith)
}

// imagesConfig has a profile for each value of pull, and for digests.
const imagesConfig = `
images:
  registries:
    HOST: {insecure: true}
    127.0.0.2:PORT: {insecure: true}
profiles:
  default: {workspace_mode: none, images: ["host", "HOST/*", "imported:*"]}
  missing: {extends: default, pull: missing}
  always: {extends: default, pull: always}
  digests: {extends: default, image_digests: true}
  hostless: {extends: default, images: ["HOST/team/*"], image: "HOST/team/app:1"}
tenants:
  narrow: {allowed_images: ["host", "imported:*"]}
`

// TestDaemonImagePolicy: who may have which image, and who waits for it.
func TestDaemonImagePolicy(t *testing.T) {
	g := newGate(t, inProcess(), "127.0.0.2")
	layout := umociLayout(t)
	g.push(t, layout+":app", "team/app:1")
	ref := g.host + "/team/app:1"
	d := newImageDaemon(t, g, imagesConfig)
	d.start()
	says := func(status int, stdout string, args ...string) {
		t.Helper()
		d.says(status, stdout, append(append([]string{"exec"}, args...), "--", "sh", "-c", "echo $A")...)
	}
	refused := func(words []string, args ...string) {
		t.Helper()
		d.wantRefused(125, d.run(append(append([]string{"exec"}, args...), "--", "true")...), words...)
	}

	// Never: at once, and the registry is not asked.
	g.change(nil)
	refused([]string{"image is not present", ref, "boxd image"}, "never", "--image", ref)
	if n := g.requests(""); n != 0 {
		t.Errorf("pull never costs %d requests", n)
	}

	// Missing: the request waits, events say how far the pull is, and a client that leaves ends it.
	begun, gone, release := g.hold()
	c := d.client("")
	events, err := c.Events(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	cmd, cancel := d.command("exec", "waits", "--profile", "missing", "--image", ref, "--", "true")
	defer cancel()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-begun
	for {
		e, err := events.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "image-progress" && e.Session == "waits" && e.Details["image"] == ref {
			break
		}
	}
	cmd.Process.Signal(syscall.SIGINT)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("a client that was interrupted: %v", err)
	}
	<-gone
	await(t, "the session is forgotten", func() bool { return strings.TrimSpace(d.run("sessions", "ls", "-q").stdout) == "" })
	release()

	// Two who want the same image share the work. One of them leaves, and the pull goes on for the other.
	begun, gone, release = g.hold()
	leaves, cancel := d.command("exec", "leaves", "--profile", "missing", "--image", ref, "--", "true")
	defer cancel()
	stays, cancel := d.command("image", "pull", ref)
	defer cancel()
	shown, err := stays.StderrPipe()
	if err := errors.Join(err, leaves.Start()); err != nil {
		t.Fatal(err)
	}
	layer := <-begun
	if err := stays.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(shown); lines.Scan() && !strings.Contains(lines.Text(), "download"); {
	}
	leaves.Process.Signal(syscall.SIGINT)
	_ = leaves.Wait() // 130, as above
	release()
	go io.Copy(io.Discard, shown)
	if err := stays.Wait(); err != nil || g.requests("GET "+layer) != 1 || len(gone) != 0 {
		t.Errorf("%v, %d downloads, %d broken off", err, g.requests("GET "+layer), len(gone))
	}
	says(0, "b\n", "waits", "--profile", "missing", "--image", ref)
	g.change(nil)
	says(0, "b\n", "again", "--profile", "missing", "--image", ref)
	if n := g.requests(""); n != 0 {
		t.Errorf("an image that is there cost %d requests", n)
	}
	first := d.sessionOf("again").ImageDigest

	// Always: the registry is asked, also where the tag has moved. Those who have the image keep theirs.
	tool(t, "umoci", "config", "--image", layout+":app", "--tag", "moved", "--config.env", "A=moved")
	g.push(t, layout+":moved", "team/app:1")
	g.change(nil)
	says(0, "moved\n", "asks", "--profile", "always", "--image", ref)
	if n := g.requests("/manifests/"); n == 0 {
		t.Error("the registry was not asked")
	}
	if second := d.sessionOf("asks").ImageDigest; second == first {
		t.Errorf("%s: the tag has not moved", second)
	}
	says(0, "b\n", "again", "--image", ref)
	d.killInit(d.sessionOf("again").Box)
	d.awaitFailed("again") // a command that comes before is lost with the box
	says(0, "b\n", "again")
	if s := d.sessionOf("again"); s.ImageDigest != first {
		t.Errorf("the new box has %s, want %s", s.ImageDigest, first)
	}

	// Digests, and who may have what.
	named := g.host + "/team/app@" + first
	refused([]string{"digest", "NAME@sha256:DIGEST"}, "d", "--profile", "digests", "--image", ref)
	d.ok("image", "pull", "-q", named)
	says(0, "b\n", "d", "--profile", "digests", "--image", named)
	refused([]string{`"host"`, "hostless"}, "h", "--profile", "hostless", "--image", "host")
	says(0, "moved\n", "h", "--profile", "hostless")
	refused([]string{"other.example/x:1"}, "o", "--profile", "missing", "--image", "other.example/x:1")
	refused([]string{"narrow", "may have"}, "n", "--tenant", "narrow", "--image", ref)
	d.wantRefused(125, d.run("image", "pull", "-q", "--tenant", "narrow", ref), "narrow", "may have")
	refused([]string{"image"}, "again", "--image", named) // another reference is another image
	if got := d.ok("sessions", "ls", "-q", "--tenant", "*"); len(strings.Fields(got)) != 5 {
		t.Errorf("sessions that were refused exist: %q", got)
	}
}

// TestDaemonImageCrash: a session of an image outlives a SIGKILL of daemon and launcher. Its image stays as long as it
// does, whatever is removed.
func TestDaemonImageCrash(t *testing.T) {
	g := newGate(t, inProcess(), "127.0.0.2")
	g.push(t, umociLayout(t)+":app", "team/app:1")
	ref := g.host + "/team/app:1"
	d := newImageDaemon(t, g, imagesConfig+"\nallow_degraded: true\n")
	d.start()
	d.ok("image", "pull", "-q", ref)
	parts := boxddaemon.Daemon{Config: boxddaemon.Config{Runtime: filepath.Join(d.dir, "run")}}
	d.says(0, "", "start", "s", "--image", ref, "--id", "p", "--", "sh", "-c", `while read -r line; do echo "got $line $A"; done; exit 9`)
	box, digest := d.sessionOf("s").Box, d.sessionOf("s").ImageDigest
	p := d.openPTY(24, 80, "attach", "s", "p")
	p.send("zero\n")
	p.await("got zero b")
	kills := map[string]func(){
		"daemon": func() { d.kill(); p.await("connection lost"); d.start() },
		"launcher": func() {
			for _, pid := range parts.Find(boxddaemon.Launcher) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		},
	}
	for _, what := range []string{"daemon", "launcher", "daemon"} {
		kills[what]()
		p.send(what + "\n")
		p.await("got " + what + " b")
		d.says(0, "b\n", "exec", "s", "--", "sh", "-c", "echo $A")
		d.says(0, "b\n", "exec", "new-"+what, "--image", ref, "--", "sh", "-c", "echo $A")
		d.says(0, "", "sessions", "rm", "new-"+what)
	}
	if s := d.sessionOf("s"); s.Box != box {
		t.Errorf("box %s has become %s", box, s.Box)
	}

	// Removed while it is used: gc keeps it, and new boxes get it, also after both were killed at once.
	d.says(0, "", "image", "rm", ref)
	d.wantRefused(125, d.run("image", "inspect", ref), "unknown image")
	d.ok("image", "gc")
	if n := len(d.layers()); n != 4 {
		t.Errorf("%d layers after gc", n)
	}
	for _, pid := range parts.Find(boxddaemon.Launcher) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	d.kill()
	d.start()
	d.killInit(box)
	d.awaitFailed("s")
	d.says(0, "b\n", "exec", "s", "--", "sh", "-c", "echo $A")
	if s := d.sessionOf("s"); s.Box == box || s.ImageDigest != digest {
		t.Errorf("%+v, want another box than %s with %s", s, box, digest)
	}
	d.wantRefused(125, d.run("exec", "another", "--image", ref, "--", "true"), "image is not present")
	d.says(0, "", "sessions", "rm", "s")
	if got := d.ok("image", "gc"); !strings.Contains(got, "layers: 4,") {
		t.Errorf("%q", got)
	}
	if left := d.layers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestDaemonImageTenants: a tenant's image is unknown to another, by any name; a second tenant of an image takes no
// disk; a shared one is for all.
func TestDaemonImageTenants(t *testing.T) {
	d := newImageDaemon(t, nil, "profiles:\n  default: {workspace_mode: none}\n")
	d.start()
	first := tarOf(t, rootFS(t, true, map[string]string{"note": "first"}))
	second := tarOf(t, rootFS(t, true, map[string]string{"note": "second"}))
	d.ok("image", "import", "-q", first, "--name", "lab/private:1", "--tenant", "one")
	d.ok("image", "import", "-q", second, "--name", "lab/shared:1", "--shared", "--tenant", "*")
	digest := strings.TrimSpace(d.ok("image", "inspect", "lab/private:1", "--tenant", "one", "--format", "{{.digest}}"))
	short := strings.TrimPrefix(digest, "sha256:")[:12]
	list := func(tenant string) string { return d.ok("image", "ls", "-q", "--tenant", tenant) }
	if one, two := list("one"), list("two"); one != "lab/private:1\nlab/shared:1\n" || two != "lab/shared:1\n" {
		t.Errorf("%q, %q", one, two)
	}
	for _, name := range []string{"lab/private:1", "lab/private", digest, short, "lab/private@" + digest} {
		for _, command := range [][]string{{"image", "inspect", name}, {"image", "rm", name}, {"image", "verify", name}} {
			d.wantRefused(125, d.run(append(command, "--tenant", "two")...), "unknown image")
		}
	}
	cat := func(tenant, image string) result {
		return d.run("exec", "--tenant", tenant, "s-"+strings.NewReplacer("/", "-", ":", "-").Replace(image), "--image", image, "--", "cat", "/note")
	}
	for _, c := range []struct {
		tenant, image string
		want          string // empty: it is not there
	}{{"one", "lab/private:1", "first"}, {"one", "lab/shared:1", "second"}, {"two", "lab/shared:1", "second"}, {"two", "lab/private:1", ""}, {"two", "lab/private@" + digest, ""}} {
		got := cat(c.tenant, c.image)
		if got.stdout != c.want || c.want == "" && !strings.Contains(got.stderr, "image is not present") {
			t.Errorf("%s, %s: %v", c.tenant, c.image, got)
		}
	}
	d.wantRefused(125, d.run("image", "rm", "lab/shared:1", "--tenant", "two"), "--shared false: must be true", "only administrators can remove it")

	// The second tenant of the same files.
	layers := d.layers()
	before := usedBy(t, filepath.Join(d.dir, "volumes", "images"))
	d.ok("image", "import", "-q", first, "--name", "other/name:2", "--tenant", "two")
	if after := usedBy(t, filepath.Join(d.dir, "volumes", "images")); !slices.Equal(layers, d.layers()) || after != before {
		t.Errorf("%d bytes before, %d after, layers %q", before, after, d.layers())
	}
	if got := cat("two", "other/name:2"); got.stdout != "first" {
		t.Errorf("%v", got)
	}
	d.ok("image", "rm", "lab/private:1", "--tenant", "one")
	d.says(0, "", "sessions", "rm", "--tenant", "one", "s-lab-private-1")
	d.ok("image", "gc", "--tenant", "*")
	if got := cat("two", "other/name:2"); got.stdout != "first" || !slices.Equal(layers, d.layers()) {
		t.Errorf("%v, layers %q", got, d.layers())
	}
	if got := d.run("image", "verify", "--all", "--tenant", "two"); got.stdout != "lab/shared:1: ok\nother/name:2: ok\n" {
		t.Errorf("%v", got)
	}
	if f, err := os.OpenFile(filepath.Join(layers[0], "fs", "note"), os.O_APPEND|os.O_WRONLY, 0); err != nil {
		t.Error(err)
	} else {
		io.WriteString(f, "x")
		f.Close()
	}
	if got := d.run("image", "verify", "--all", "--tenant", "two"); got.status != 1 || strings.Count(got.stdout, ": ok\n") != 1 || strings.Count(got.stdout, ": no: ") != 1 {
		t.Errorf("after a change on disk: %v", got)
	}
}

// TestForgedImage: an image that names the layer of a tenant in its configuration, and has another blob, is refused in
// each way in, also if an operator brings it for all tenants, and by the store of boxd run.
func TestForgedImage(t *testing.T) {
	testutil.Long(t)
	private := tarOf(t, rootFS(t, false, map[string]string{"note": "secret"}))
	secret, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(secret)
	forged, err := random.Image(1000, 1)
	if err == nil {
		forged, err = mutate.ConfigFile(forged, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH,
			RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	g, dir := newGate(t, inProcess()), t.TempDir()
	pushed, err := name.NewTag(g.host+"/forged:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	written, err := layout.Write(dir+"/layout", empty.Index)
	if err == nil {
		err = written.AppendImage(forged)
	}
	if err := errors.Join(err, dockerarchive.WriteToFile(dir+"/docker.tar", pushed, forged), remote.Write(pushed, forged)); err != nil {
		t.Fatal(err)
	}
	files := []string{dir + "/docker.tar", tarOf(t, dir+"/layout")}

	c := newImageCLI(t)
	c.ok("image", "import", "-q", private, "--name", "lab/private:1")
	for _, file := range append(files, dir+"/layout") {
		c.wantRefused(125, c.run("image", "import", "-q", file, "--name", "lab/forged:1"), "image is damaged", "the archive of the layer has the digest")
	}
	c.wantRefused(125, c.run("image", "pull", "-q", "--insecure", pushed.String()), "image is damaged", "the archive of the layer has the digest")

	d := newImageDaemon(t, g, "images:\n  registries:\n    HOST: {insecure: true}\n  prefetch: [HOST/forged:1]\nprofiles:\n  default: {workspace_mode: none}\n")
	g.change(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusNotFound); return true })
	d.start()
	d.ok("image", "import", "-q", private, "--name", "lab/private:1", "--tenant", "one")
	g.change(nil)
	for _, whose := range [][]string{{"--tenant", "one"}, {"--tenant", "two"}, {"--tenant", "*", "--shared"}} {
		for _, file := range files {
			got := d.run(append([]string{"image", "import", "-q", file, "--name", "lab/forged:1"}, whose...)...)
			d.wantRefused(125, got, "image is damaged", "the archive of the layer has the digest")
		}
		d.wantRefused(125, d.run(append([]string{"image", "pull", "-q", pushed.String()}, whose...)...), "image is damaged", "the archive of the layer has the digest")
	}
	d.stop()
	d.start() // and tries again to prefetch
	await(t, "the image was asked for", func() bool {
		return g.requests("/blobs/") > 0 && strings.Contains(d.run("status").stdout, "prefetching image")
	})
	if got := d.run("status").stdout; !strings.Contains(got, "the archive of the layer has the digest") {
		t.Errorf("%s", got)
	}
	for tenant, want := range map[string]string{"one": "lab/private:1\n", "two": "", "three": ""} {
		if got := d.ok("image", "ls", "-q", "--tenant", tenant); got != want {
			t.Errorf("tenant %s has %q", tenant, got)
		}
	}
}

// usedBy is the disk space of a tree in bytes.
func usedBy(t *testing.T, dir string) (n int64) {
	t.Helper()
	for _, path := range tree(t, dir) {
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		n += st.Blocks * 512
	}
	return n
}

// TestBadRegistry: one line each, and nothing is left.
func TestBadRegistry(t *testing.T) {
	t.Parallel()
	g := newGate(t, inProcess(), "127.0.0.2")
	g.push(t, umociLayout(t)+":app", "team/app:1")
	d := newImageDaemon(t, g, imagesConfig)
	d.start()
	ref := g.host + "/team/app:1"
	before := d.stored()
	change := func(answer func(http.ResponseWriter, []byte)) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			body, ok := g.layer(r)
			if ok {
				answer(w, body)
			}
			return ok
		}
	}
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request) bool
		want   []string
	}{
		"sends more than the manifest says": {change(func(w http.ResponseWriter, body []byte) {
			w.(http.Flusher).Flush() // so there is no Content-Length
			w.Write(body)
			w.Write(body)
		}), []string{"image is damaged", g.host, "sends more than the"}},
		"announces another size": {change(func(w http.ResponseWriter, body []byte) {
			w.Header().Set("Content-Length", "1000000000000")
		}), []string{"image is damaged", "announces 1000000000000 bytes"}},
		"truncates": {change(func(w http.ResponseWriter, body []byte) { w.Write(body[:10]) }), []string{"image is damaged", "announces 10 bytes"}},
		"flips a bit": {change(func(w http.ResponseWriter, body []byte) {
			body[len(body)/2] ^= 1
			w.Write(body)
		}), []string{"image is damaged", "digest"}},
		"dies": {change(func(http.ResponseWriter, []byte) { panic(http.ErrAbortHandler) }), []string{"registry not reachable", g.host, "gave up after"}},
		"redirects to itself": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/v2/" {
				http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
				return true
			}
			return false
		}, []string{"registry not reachable", "redirects more than"}},
		"demands a login": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}, []string{"login refused", "401"}},
		"sends no manifest": {func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/manifests/") {
				io.WriteString(w, "<html>")
				return true
			}
			return false
		}, []string{"image is damaged", "manifest"}},
	} {
		g.change(c.answer)
		pull := []string{"image", "pull", "-q", ref}
		if name != "dies" { // what breaks off is tried again, so that takes long
			d.wantRefused(125, d.run(pull...), c.want...)
			pull = []string{"exec", "s", "--profile", "missing", "--image", ref, "--", "true"}
		}
		got := d.run(pull...)
		d.wantRefused(125, got, c.want...)
		if strings.Count(got.stderr, "pulling image") != 1 {
			t.Errorf("%q", got.stderr)
		}
		if after := d.stored(); !slices.Equal(before, after) {
			t.Errorf("%s: before %q\nafter %q", name, before, after)
		}
	}
	g.change(nil)
	d.says(0, "b\n", "exec", "s", "--profile", "missing", "--image", ref, "--", "sh", "-c", "echo $A")
	d.wantRefused(125, d.run("image", "pull", "-q", "Not/A:Ref:erence"), "REFERENCE", "must be")
}

// TestPrefetch: the daemon pulls what its configuration lists, for all tenants, and the status says what is missing.
func TestPrefetch(t *testing.T) {
	g := newGate(t, inProcess(), "127.0.0.2")
	g.push(t, umociLayout(t)+":app", "team/app:1")
	d := newImageDaemon(t, g, strings.Replace(imagesConfig, "images:\n", "images:\n  prefetch: [HOST/team/gone:1, HOST/team/app:1]\n", 1))
	d.start()
	await(t, "the image is there", func() bool { return d.run("image", "ls", "-q", "--tenant", "any").stdout == g.host+"/team/app:1\n" })
	if got := d.run("status").stdout; !strings.Contains(got, "prefetching image") || !strings.Contains(got, "team/gone:1") || strings.Contains(got, "team/app") {
		t.Errorf("%s", got)
	}
	d.says(0, "b\n", "exec", "s", "--tenant", "any", "--image", g.host+"/team/app:1", "--", "sh", "-c", "echo $A")
}
