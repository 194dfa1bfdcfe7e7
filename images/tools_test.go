package images

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// run runs a tool of the distribution's, and returns its output.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed", name)
	}
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// umociLayout is a layout that umoci has written, with an image "made" of two layers and a configuration.
func umociLayout(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "umoci")
	run(t, "umoci", "init", "--layout", dir)
	run(t, "umoci", "new", "--image", dir+":made")
	for i := range 2 {
		files := t.TempDir()
		content := make([]byte, 300_000)
		rand.Read(content)
		if err := os.WriteFile(filepath.Join(files, fmt.Sprint("file", i)), content, 0o644); err != nil {
			t.Fatal(err)
		}
		run(t, "umoci", "insert", "--rootless", "--image", dir+":made", files, "/files")
	}
	run(t, "umoci", "config", "--image", dir+":made", "--config.env", "A=b", "--config.user", "7:8", "--config.workingdir", "/files", "--config.cmd", "true")
	return dir
}

// TestToolsArchives: what umoci and skopeo write means the same image, whatever its form.
func TestToolsArchives(t *testing.T) {
	made := umociLayout(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	skopeo := func(from, to string) { run(t, "skopeo", "--insecure-policy", "copy", "-q", from, to) }
	skopeo("oci:"+made+":made", "oci:"+path("layout")+":py:3.12")
	skopeo("oci:"+made+":made", "oci-archive:"+path("oci.tar")+":py:3.12")
	skopeo("oci:"+made+":made", "docker-archive:"+path("docker.tar")+":registry.example/py:3.12")
	var first Image
	for _, c := range []struct{ path, name, want string }{
		{made, "umoci", "umoci"},
		{path("layout"), "", "py:3.12"},
		{path("layout"), "other", "other"},
		{path("oci.tar"), "", "py:3.12"},
		{path("docker.tar"), "", "registry.example/py:3.12"},
	} {
		b := newBench(t, Options{})
		got, err := b.Import(t.Context(), c.path, Request{Reference: c.name})
		if err != nil {
			t.Error(err)
			continue
		}
		if first.Name == "" {
			first = got
		}
		if got.Name != c.want || !slices.Equal(got.Layers, first.Layers) || len(got.Layers) != 2 || got.User != "7:8" || !slices.Contains(got.Env, "A=b") || got.WorkingDir != "/files" || got.Cmd[0] != "true" {
			t.Errorf("%s: %+v", c.path, got)
		}
		if _, err := b.Get("t", c.want); err != nil {
			t.Error(err)
		}
	}
	b := newBench(t, Options{})
	if _, err := b.Import(t.Context(), made, Request{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "name \"\": must be given") {
		t.Errorf("umoci names no image: %v", err)
	}
	b.wantClean()
	skopeo("oci:"+made+":made", "oci:"+path("layout")+":second:1")
	if _, err := b.Import(t.Context(), path("layout"), Request{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "py:3.12, second:1") {
		t.Errorf("several images: %v", err)
	}
	if _, err := b.Import(t.Context(), path("layout"), Request{Reference: "second:1"}); err != nil {
		t.Error(err)
	}
}

// TestRootFS: a root file system is an image of one layer, from a tar archive, compressed or not, or a directory.
func TestRootFS(t *testing.T) {
	tree := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(tree, "usr/bin"), 0o755), os.WriteFile(filepath.Join(tree, "usr/bin/tool"), []byte("#!"), 0o755),
		os.Link(filepath.Join(tree, "usr/bin/tool"), filepath.Join(tree, "usr/bin/twin")), os.Symlink("/etc/shadow", filepath.Join(tree, "link")),
		os.WriteFile(filepath.Join(tree, "manifest.json"), []byte("{}"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	archive, err := os.ReadFile(tarOf(t, tree))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(tree, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(archive)
	z.Close()
	sum := sha256.Sum256(archive)
	for _, text := range [][]byte{archive, zipped.Bytes()} {
		b := newBench(t, Options{})
		got, err := b.ImportStream(t.Context(), bytes.NewReader(text), Request{Reference: "root"})
		if err != nil || !slices.Equal(got.Layers, []string{hex.EncodeToString(sum[:])}) || got.Platform != "linux/"+hostPlatform.Architecture {
			t.Errorf("%+v, %v", got, err)
		}
		if again, err := b.ImportStream(t.Context(), bytes.NewReader(text), Request{Reference: "again"}); err != nil || again.Digest != got.Digest {
			t.Errorf("again: %+v, %v", again, err)
		}
		if err := b.Verify(t.Context(), "", "root"); err != nil {
			t.Error(err)
		}
	}
	b := newBench(t, Options{})
	if _, err := b.ImportStream(t.Context(), &zipped, Request{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "must not be compressed") {
		t.Errorf("without a name: %v", err)
	}
	got, err := b.Import(t.Context(), tree, Request{Reference: "root"})
	if err != nil {
		t.Fatal(err)
	}
	layer, err := os.Open(filepath.Join(b.fake.dir, got.Layers[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	seen := map[string]string{}
	for r := tar.NewReader(layer); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		seen[strings.Trim(h.Name, "/")] = fmt.Sprintf("%c%s %d", h.Typeflag, h.Linkname, h.Uid)
	}
	uid := os.Getuid()
	if seen["usr/bin/tool"] != fmt.Sprintf("0 %d", uid) || seen["link"] != fmt.Sprintf("2/etc/shadow %d", uid) || seen["usr/bin"] == "" || seen["usr/bin/twin"] == "" || seen["socket"] != "" {
		t.Errorf("archive: %v", seen)
	}
}

func TestBadArchives(t *testing.T) {
	whole, err := os.ReadFile(tarOf(t, ociLayout(t, randomImage(t, 50_000, 2))))
	if err != nil {
		t.Fatal(err)
	}
	broken := func(remove string) string {
		dir := ociLayout(t, randomImage(t, 1000, 2))
		matches, _ := filepath.Glob(filepath.Join(dir, remove))
		for _, m := range matches {
			if err := os.WriteFile(m, []byte(`{"schemaVersion":2}`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(tarOf(t, dir))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, c := range []struct {
		name, text string
		want       error
		says       string
	}{
		{"empty", "", ErrCorrupt, "empty"},
		{"text", strings.Repeat("no archive\n", 1000), ErrCorrupt, "tar"},
		{"xz", "\xfd7zXZ\x00...", ErrRefused, "decompress"},
		{"bzip2", "BZh91AY", ErrRefused, "decompress"},
		{"cut somewhere", string(whole[:len(whole)/2+100]), ErrCorrupt, "it "},
		{"cut between two files", string(whole[:bytes.LastIndex(whole, []byte("index.json\x00"))]), ErrCorrupt, "it was cut off"},
		{"no oci-layout", string(whole[:bytes.LastIndex(whole, []byte("oci-layout\x00"))]) + string(make([]byte, 1024)), ErrCorrupt, "no file oci-layout"},
		{"blobs replaced", broken("blobs/sha256/*"), ErrCorrupt, "blob sha256:"},
		{"no index", broken("index.json"), ErrCorrupt, "must list"},
	} {
		b := newBench(t, Options{})
		if _, err := b.ImportStream(t.Context(), strings.NewReader(c.text), Request{Reference: "x"}); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %v, %q", c.name, err, c.want, c.says)
		}
		b.wantClean()
	}
	b := newBench(t, Options{MaxBytes: 10_000})
	if _, err := b.ImportStream(t.Context(), bytes.NewReader(whole), Request{Reference: "x"}); !errors.Is(err, ErrQuota) {
		t.Errorf("larger than the store: %v", err)
	}
	b.wantClean()
	if _, err := b.Import(t.Context(), "/dev/null", Request{Reference: "x"}); !errors.Is(err, ErrRefused) {
		t.Errorf("a device: %v", err)
	}
	if _, err := b.Import(t.Context(), "/nonexistent", Request{Reference: "x"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestImportAllow: the name that an image gets can be refused before anything is unpacked, whoever chose it.
func TestImportAllow(t *testing.T) {
	denied := errors.New("denied")
	dir := ociLayout(t, randomImage(t, 1000, 1), layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "acme/tool:1"}))
	b := newBench(t, Options{})
	for _, name := range []string{"", "mine"} {
		var asked string
		allow := func(full string) error { asked = full; return denied }
		_, err := b.Import(t.Context(), dir, Request{Reference: name, Allow: allow})
		if want := cmp.Or(name, "acme/tool:1"); !errors.Is(err, denied) || asked != must(spec.CheckReference("", want)).String() {
			t.Errorf("%q: asked about %q: %v", name, asked, err)
		}
	}
	b.wantClean()
	if b.fake.unpacked.Load() != 0 {
		t.Error("unpacked an image that is not allowed")
	}
	if _, err := b.Import(t.Context(), dir, Request{Allow: func(string) error { return nil }}); err != nil {
		t.Error(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestImportCompressed: an archive of images that is compressed as a whole is not taken for a root file system.
func TestImportCompressed(t *testing.T) {
	archive, err := os.ReadFile(tarOf(t, ociLayout(t, randomImage(t, 1000, 1))))
	if err != nil {
		t.Fatal(err)
	}
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	z.Write(archive)
	z.Close()
	b := newBench(t, Options{})
	_, err = b.ImportStream(t.Context(), &compressed, Request{Reference: "x"})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "without compression") || strings.Contains(err.Error(), "\n") {
		t.Errorf("imported: %v", err)
	}
	b.wantClean()
}

// cutProxy passes connections on, and cuts the first few after some bytes of their answers.
type cutProxy struct {
	net.Listener
	cuts atomic.Int64
	wg   sync.WaitGroup
}

func newCutProxy(t testing.TB, to string, after int64) *cutProxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &cutProxy{Listener: l}
	t.Cleanup(func() { l.Close(); p.wg.Wait() })
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() {
				defer c.Close()
				s, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer s.Close()
				// Not with splice(2), for which the runtime keeps pipes.
				s, c := struct{ net.Conn }{s}, struct{ net.Conn }{c}
				p.wg.Go(func() { io.Copy(s, c); s.Close() })
				if n, _ := io.CopyN(c, s, after); n == after && p.cuts.Add(-1) < 0 {
					io.Copy(c, s)
				}
			})
		}
	})
	return p
}

// TestDockerRegistry pulls from Debian's registry what skopeo has pushed, with a login, through connections that
// are cut.
func TestDockerRegistry(t *testing.T) {
	made := umociLayout(t)
	if _, err := exec.LookPath("docker-registry"); err != nil {
		t.Skip("docker-registry is not installed")
	}
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	// "user:secret", by htpasswd -B
	users := "user:" + strings.TrimPrefix(strings.TrimSpace(run(t, "htpasswd", "-nbB", "user", "secret")), "user:") + "\n"
	config := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\nauth: {htpasswd: {realm: test, path: %s}}\n", dir, addr, filepath.Join(dir, "users"))
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "users"), []byte(users), 0o600), os.WriteFile(filepath.Join(dir, "config.yml"), []byte(config), 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("docker-registry", "serve", filepath.Join(dir, "config.yml"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	waitFor(t, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	run(t, "skopeo", "--insecure-policy", "copy", "-q", "--dest-tls-verify=false", "--dest-creds", "user:secret", "oci:"+made+":made", "docker://"+addr+"/team/app:1")

	proxy := newCutProxy(t, addr, 100_000)
	host := proxy.Addr().String()
	login := filepath.Join(dir, "login")
	if err := os.WriteFile(login, []byte("user:secret\nsecond line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		registry Registry
		login    string
		want     error
	}{
		{"no login", Registry{}, "", ErrLogin},
		{"wrong login", Registry{Login: "user:wrong"}, "", ErrLogin},
		{"malformed login", Registry{Login: "user"}, "", ErrLogin},
		{"login", Registry{Login: "user:secret"}, "", nil},
		{"login of the request", Registry{Login: "user:wrong"}, "user:secret", nil},
		{"login file", Registry{LoginFile: login}, "", nil},
	} {
		proxy.cuts.Store(3)
		c.registry.Insecure = true
		b := newBench(t, Options{Registries: map[string]Registry{host: c.registry}, Stall: testutil.Patience()})
		got, err := b.Pull(t.Context(), Request{Reference: host + "/team/app:1", Login: c.login})
		if !errors.Is(err, c.want) || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil {
			b.wantClean()
			continue
		}
		if len(got.Layers) != 2 || got.User != "7:8" || proxy.cuts.Load() >= 0 {
			t.Errorf("%s: %+v, %d connections were not cut", c.name, got, proxy.cuts.Load())
		}
		if err := b.Verify(t.Context(), "", got.Name); err != nil {
			t.Error(err)
		}
	}
}
