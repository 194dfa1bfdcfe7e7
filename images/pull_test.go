package images

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/boxd/boxd/internal/testutil"
)

// regis is a registry in this process, through which a test can reach into the answers.
type regis struct {
	*httptest.Server
	mu   sync.Mutex
	hook func(http.ResponseWriter, *http.Request) bool // true: it has answered
	seen []string
}

func newRegistry(t testing.TB, tls bool) *regis {
	g := &regis{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		hook := g.hook
		g.seen = append(g.seen, r.Method+" "+r.URL.Path+" "+r.Header.Get("Range"))
		g.mu.Unlock()
		if hook == nil || !hook(w, r) {
			inner.ServeHTTP(w, r)
		}
	})
	if tls {
		g.Server = httptest.NewTLSServer(h)
	} else {
		g.Server = httptest.NewServer(h)
	}
	g.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(g.Close)
	return g
}

func (g *regis) host() string {
	_, host, _ := strings.Cut(g.URL, "://")
	return host
}

func (g *regis) answer(hook func(http.ResponseWriter, *http.Request) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hook, g.seen = hook, nil
}

// asked counts the requests that contain s.
func (g *regis) asked(s string) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.seen {
		if strings.Contains(r, s) {
			n++
		}
	}
	return n
}

func (g *regis) push(t testing.TB, ref string, what remote.Taggable) {
	t.Helper()
	tag, err := name.ParseReference(g.host()+"/"+ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	o := remote.WithTransport(g.Client().Transport)
	switch x := what.(type) {
	case v1.ImageIndex:
		err = remote.WriteIndex(tag, x, o)
	case v1.Image:
		err = remote.Write(tag, x, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	g.answer(nil)
}

func (g *regis) options() Options {
	return Options{Registries: map[string]Registry{g.host(): {Insecure: true}}, Stall: testutil.Patience()}
}

func TestPull(t *testing.T) {
	g := newRegistry(t, false)
	img := randomImage(t, 5000, 4)
	g.push(t, "a/b:1", img)
	b := newBench(t, g.options())
	var steps []Progress
	got, err := b.Pull(t.Context(), Request{Reference: g.host() + "/a/b:1", Tenant: "t", Progress: func(p Progress) { steps = append(steps, p) }})
	if err != nil {
		t.Fatal(err)
	}
	digest, _ := img.Digest()
	if got.Name != g.host()+"/a/b:1" || got.Digest != digest.String() || got.Tenant != "t" || !slices.Equal(got.Layers, diffIDs(t, img)) {
		t.Errorf("image: %+v", got)
	}
	if len(steps) < 6 || steps[0].Step != "resolve" || steps[len(steps)-1].Step != "done" || steps[len(steps)-1].Layer != "" {
		t.Errorf("progress: %+v", steps)
	}
	g.answer(nil)
	if again, err := b.Pull(t.Context(), Request{Reference: g.host() + "/a/b:1", Tenant: "t"}); err != nil || again.Digest != got.Digest || g.asked("") > 0 {
		t.Errorf("again: %v, %v, asked %v", again.Digest, err, g.seen)
	}
	if _, err := b.Get("u", got.Name); !errors.Is(err, ErrUnknown) {
		t.Errorf("another tenant: %v", err)
	}
	if other, err := b.Pull(t.Context(), Request{Reference: g.host() + "/a/b@" + got.Digest, Tenant: "t"}); err != nil || other.Digest != got.Digest {
		t.Errorf("by digest: %v, %v", other.Digest, err)
	}
	for _, l := range manifestOf(t, img).Layers {
		if g.asked(l.Digest.String()) > 0 {
			t.Error("a layer that the store has was fetched again")
		}
	}
	if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/a/b:1", Tenant: "t", Always: true}); err != nil || g.asked("manifests/1") != 1 {
		t.Errorf("always: %v, %v", err, g.seen)
	}
	if b.fake.unpacked.Load() != 4 {
		t.Errorf("%d layers unpacked, want 4", b.fake.unpacked.Load())
	}
}

func manifestOf(t testing.TB, img v1.Image) *v1.Manifest {
	t.Helper()
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPullChoosesPlatform(t *testing.T) {
	g := newRegistry(t, false)
	host := hostPlatform
	index := v1.ImageIndex(empty.Index)
	images := map[string]v1.Image{}
	for _, p := range []v1.Platform{{OS: "linux", Architecture: "s390x"}, {OS: "linux", Architecture: host.Architecture}, {OS: "windows", Architecture: host.Architecture}, {OS: "linux", Architecture: "arm", Variant: "v7"}} {
		img := withConfig(t, randomImage(t, 100, 1), func(c *v1.ConfigFile) { c.OS, c.Architecture, c.Variant = p.OS, p.Architecture, p.Variant })
		images[p.String()] = img
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p}})
	}
	g.push(t, "multi:1", index)
	b := newBench(t, g.options())
	for _, c := range []struct{ asked, got, text string }{
		{"", "linux/" + host.Architecture, ""},
		{"linux/s390x", "linux/s390x", ""},
		{"linux/arm/v7", "linux/arm/v7", ""},
		{"linux/riscv64", "", "linux/s390x, linux/" + host.Architecture + ", windows/" + host.Architecture + ", linux/arm/v7"},
		{"linux/arm/v6", "", "linux/arm/v7"},
		{"linux", "", "must be OS/ARCHITECTURE"},
	} {
		img, err := b.Pull(t.Context(), Request{Reference: g.host() + "/multi:1", Platform: c.asked})
		if c.got == "" {
			if err == nil || !strings.Contains(err.Error(), c.text) || c.asked != "linux" && !errors.Is(err, ErrPlatform) {
				t.Errorf("%q: %v", c.asked, err)
			}
			continue
		}
		want, _ := images[c.got].Digest()
		if err != nil || img.Digest != want.String() || img.Platform != c.got {
			t.Errorf("%q: %v, %v, %v", c.asked, img.Platform, img.Digest, err)
		}
	}
	if host.Architecture == "amd64" { // what the store has suits a lower level, too
		g.answer(nil)
		for _, level := range []string{"", "/v1", "/v2"} {
			b.Pull(t.Context(), Request{Reference: g.host() + "/multi:1", Platform: "linux/amd64" + level})
		}
		if g.asked("manifests/1") != 1 { // the store had linux/arm/v7
			t.Errorf("asked %q", g.seen)
		}
	}
	g.push(t, "foreign:1", images["linux/s390x"])
	if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/foreign:1"}); !errors.Is(err, ErrPlatform) || !strings.Contains(err.Error(), "s390x") {
		t.Errorf("an image for another architecture: %v", err)
	}
}

// TestHostileRegistry: each answer that is wrong ends in one line that names what is wrong, with nothing left.
func TestHostileRegistry(t *testing.T) {
	g := newRegistry(t, false)
	img := randomImage(t, 100_000, 2)
	g.push(t, "x:1", img)
	m := manifestOf(t, img)
	layer, config := m.Layers[1], m.Config
	text, _ := img.RawManifest()
	changed := func(change func(*v1.Manifest)) []byte {
		c := m.DeepCopy()
		change(c)
		b, _ := json.Marshal(c)
		return b
	}
	compressed := func() []byte {
		l, _ := img.LayerByDigest(layer.Digest)
		r, _ := l.Compressed()
		b, _ := io.ReadAll(r)
		return b
	}()
	manifest := func(b []byte) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/manifests/") {
				w.Write(b)
				return true
			}
			return false
		}
	}
	blob := func(d v1.Descriptor, f func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, d.Digest.String()) {
				f(w, r)
				return true
			}
			return false
		}
	}
	status := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(code); return true }
	}
	flipped := slices.Clone(compressed)
	flipped[len(flipped)/2] ^= 1
	stalled := make(chan struct{})
	defer close(stalled)
	for _, c := range []struct {
		name string
		hook func(http.ResponseWriter, *http.Request) bool
		want error
		text string
	}{
		{"no such tag", manifestStatus(404), ErrUnknown, "404"},
		{"login", status(401), ErrLogin, "give a login"},
		{"forbidden", status(403), ErrLogin, "403"},
		{"broken", status(500), ErrRegistry, "500"},
		{"not JSON", manifest([]byte("<html>")), ErrCorrupt, "not the JSON"},
		{"large manifest", manifest(bytes.Repeat([]byte(" "), 2<<20)), ErrRefused, "1 MiB"},
		{"schema 1", manifest([]byte(`{"schemaVersion":1,"fsLayers":[]}`)), ErrRefused, "schema 1"},
		{"neither", manifest([]byte(`{"schemaVersion":2}`)), ErrCorrupt, "either"},
		{"both", manifest([]byte(`{"schemaVersion":2,"layers":[],"manifests":[]}`)), ErrCorrupt, "either"},
		{"empty index", manifest([]byte(`{"schemaVersion":2,"manifests":[]}`)), ErrPlatform, "there is"},
		{"no layers", manifest(changed(func(m *v1.Manifest) { m.Layers = nil })), ErrCorrupt, "layers"},
		{"a layer too few", manifest(changed(func(m *v1.Manifest) { m.Layers = m.Layers[:1] })), ErrCorrupt, "lists 2 layers"},
		{"many layers", manifest(changed(func(m *v1.Manifest) { m.Layers = slices.Repeat(m.Layers, 300) })), ErrRefused, "at most 500"},
		{"foreign layer", manifest(changed(func(m *v1.Manifest) {
			m.Layers[0].MediaType = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
		})), ErrRefused, "registries do not have"},
		{"encrypted layer", manifest(changed(func(m *v1.Manifest) { m.Layers[0].MediaType += "+encrypted" })), ErrRefused, "decrypts"},
		{"odd layer", manifest(changed(func(m *v1.Manifest) { m.Layers[0].MediaType = "text/html" })), ErrRefused, "text/html"},
		{"negative size", manifest(changed(func(m *v1.Manifest) { m.Layers[0].Size = -1 })), ErrCorrupt, "size -1"},
		{"sizes overflow", manifest(changed(func(m *v1.Manifest) { m.Layers[0].Size, m.Layers[1].Size = 1<<62, 1<<62 })), ErrCorrupt, "exceed"},
		{"sha512", manifest(bytes.Replace(text, []byte(`"sha256:`+m.Layers[0].Digest.Hex), []byte(`"sha512:`+m.Layers[0].Digest.Hex+m.Layers[0].Digest.Hex), 1)), ErrRefused, "SHA-256"},
		{"large config", manifest(changed(func(m *v1.Manifest) { m.Config.Size = 2 << 20 })), ErrRefused, "1 MiB"},
		{"layers as config", manifest(changed(func(m *v1.Manifest) { m.Config = m.Layers[0] })), ErrCorrupt, "not the JSON"},
		{"swapped layers", manifest(changed(func(m *v1.Manifest) { slices.Reverse(m.Layers) })), ErrCorrupt, "diff ID"},
		{"long config", blob(config, func(w http.ResponseWriter, r *http.Request) { w.Write(bytes.Repeat([]byte("a"), 1<<20)) }), ErrCorrupt, "sends sha256:"},
		{"endless config", blob(config, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.Write(compressed)
			}
		}), ErrRefused, "1 MiB"},
		{"config with a manifest's type", manifest(changed(func(m *v1.Manifest) { m.Config.MediaType = m.MediaType })), ErrCorrupt, "sends sha256:"},
		{"blob missing", blob(layer, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) }), ErrCorrupt, "does not have"},
		{"announced longer", blob(layer, func(w http.ResponseWriter, r *http.Request) { w.Write(append(compressed, 1)) }), ErrCorrupt, "announces"},
		{"announced shorter", blob(layer, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "7")
			w.Write(compressed[:7])
		}), ErrCorrupt, "announces 7"},
		{"longer", blob(layer, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush() // no length
			w.Write(append(compressed, 1))
		}), ErrCorrupt, "sends more"},
		{"endless", blob(layer, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			for r.Context().Err() == nil {
				w.Write(compressed)
			}
		}), ErrCorrupt, "sends more"},
		{"shorter", blob(layer, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			w.Write(compressed[:5000])
		}), ErrRegistry, "ended after 5000"},
		{"bit flipped", blob(layer, func(w http.ResponseWriter, r *http.Request) { w.Write(flipped) }), ErrCorrupt, "digest"},
		{"redirect to itself", blob(layer, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }), ErrRegistry, "redirects more than"},
		{"stalls", blob(layer, func(w http.ResponseWriter, r *http.Request) {
			w.Write(compressed[:5000])
			w.(http.Flusher).Flush()
			<-stalled
		}), ErrRegistry, "too long"},
		{"silent", manifestHook(func(http.ResponseWriter, *http.Request) { <-stalled }), ErrRegistry, "too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.answer(c.hook)
			o := g.options()
			if c.text == "too long" {
				o.Stall = 300 * time.Millisecond
			}
			b := newBench(t, o)
			_, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1"})
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || strings.ContainsAny(err.Error(), "\n") {
				t.Errorf("%v, want %v, %q", err, c.want, c.text)
			}
			b.flights.workers.Wait()
			if _, err := b.GC(context.Background()); err != nil { // what is complete stays until then, for a retry
				t.Error(err)
			}
			b.wantClean()
		})
	}
}

func manifestHook(f func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") {
			f(w, r)
			return true
		}
		return false
	}
}

func manifestStatus(code int) func(http.ResponseWriter, *http.Request) bool {
	return manifestHook(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) })
}

// TestPullResumes: a connection that breaks off costs only what is missing, with and without Range.
func TestPullResumes(t *testing.T) {
	for _, ranges := range []bool{true, false} {
		t.Run(fmt.Sprint("ranges=", ranges), func(t *testing.T) {
			g := newRegistry(t, false)
			img := randomImage(t, 300_000, 1)
			g.push(t, "x:1", img)
			layer := manifestOf(t, img).Layers[0]
			l, _ := img.LayerByDigest(layer.Digest)
			r, _ := l.Compressed()
			content, _ := io.ReadAll(r)
			breaks := 3
			g.answer(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, layer.Digest.String()) {
					return false
				}
				from := 0
				if ranges {
					fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(content)-from))
				if from > 0 {
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(content)-1, len(content)))
					w.WriteHeader(http.StatusPartialContent)
				}
				if breaks--; breaks >= 0 {
					w.Write(content[from : from+50_000])
					panic(http.ErrAbortHandler)
				}
				w.Write(content[from:])
				return true
			})
			b := newBench(t, g.options())
			got, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1"})
			if err != nil || !slices.Equal(got.Layers, diffIDs(t, img)) {
				t.Fatal(got, err)
			}
			if g.asked(layer.Digest.String()) != 4 || ranges && g.asked("bytes=150000-") != 1 {
				t.Errorf("asked: %q", g.seen)
			}
		})
	}
}

// TestLayersOfOthers: to get a layer that another tenant has, it is not enough to know its digest.
func TestLayersOfOthers(t *testing.T) {
	g := newRegistry(t, false)
	img := randomImage(t, 1000, 2)
	g.push(t, "private/x:1", img)
	b := newBench(t, g.options())
	if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/private/x:1", Tenant: "t"}); err != nil {
		t.Fatal(err)
	}
	noBlobs := ociLayout(t, img)
	for _, l := range manifestOf(t, img).Layers {
		if err := os.Remove(filepath.Join(noBlobs, blobsDir, l.Digest.Hex)); err != nil {
			t.Fatal(err)
		}
	}
	bring := func(tenant string) error {
		_, err := b.Import(t.Context(), noBlobs, Request{Reference: "copy", Tenant: tenant})
		return err
	}
	if err := bring("u"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another tenant without the blobs: %v", err)
	}
	if err := bring("t"); err != nil {
		t.Errorf("the tenant itself: %v", err)
	}
	g.answer(nil)
	if got, err := b.Pull(t.Context(), Request{Reference: g.host() + "/private/x:1", Tenant: "u"}); err != nil || g.asked("/blobs/") != 3 || len(b.layers()) != 2 {
		t.Errorf("another tenant that can read them: %+v, %v, asked %q", got, err, g.seen)
	}
	if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/private/x:1", Tenant: Shared}); err != nil {
		t.Error(err)
	}
	if err := bring("v"); err != nil {
		t.Errorf("a shared layer: %v", err)
	}
}

// TestSlowNeighbour: a registry that serves layers slowly does not hold up those who pull them elsewhere.
func TestSlowNeighbour(t *testing.T) {
	img := randomImage(t, 1000, maxDownloads+1)
	slow, g := newRegistry(t, false), newRegistry(t, false)
	slow.push(t, "x:1", img)
	g.push(t, "x:1", img)
	reached := make(chan struct{}, 10)
	config := manifestOf(t, img).Config.Digest.String()
	slow.answer(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") && !strings.HasSuffix(r.URL.Path, config) {
			reached <- struct{}{}
			<-r.Context().Done()
		}
		return false
	})
	b := newBench(t, Options{Registries: map[string]Registry{slow.host(): {Insecure: true}, g.host(): {Insecure: true}}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := b.Pull(ctx, Request{Reference: slow.host() + "/x:1", Tenant: "slow"}); done <- err }()
	for range maxDownloads {
		<-reached
	}
	if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1", Tenant: "other"}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestDrip: a registry that sends a byte now and then is as bad as a silent one.
func TestDrip(t *testing.T) {
	g := newRegistry(t, false)
	img := randomImage(t, 100_000, 1)
	g.push(t, "x:1", img)
	layer := manifestOf(t, img).Layers[0]
	g.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, layer.Digest.String()) {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(layer.Size))
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			w.Write([]byte{0})
			w.(http.Flusher).Flush()
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return true
			}
		}
	})
	o := g.options()
	o.Stall = 500 * time.Millisecond
	b := newBench(t, o)
	if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1"}); !errors.Is(err, ErrRegistry) || !strings.Contains(err.Error(), "too little") || g.asked(layer.Digest.String()) != 1 {
		t.Errorf("%v; asked %q", err, g.seen)
	}
}

// TestRoom: downloads and archives stop before the disk is full.
func TestRoom(t *testing.T) {
	g := newRegistry(t, false)
	g.push(t, "x:1", randomImage(t, 1000, 1))
	o, calls, enough := g.options(), 0, 0
	o.Room = func() error {
		if calls++; calls > enough {
			return errors.New("only 5 MiB are left")
		}
		return nil
	}
	b := newBench(t, o)
	_, pulled := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1"})
	calls, enough = 0, 2
	large := &io.LimitedReader{R: zeros{}, N: 5 * roomEvery}
	_, imported := b.ImportStream(t.Context(), large, Request{Reference: "x"})
	if !errors.Is(pulled, ErrNoSpace) || !errors.Is(imported, ErrNoSpace) || calls != 3 || large.N < 2*roomEvery {
		t.Errorf("%v; %v after %d calls, with %d bytes to go", pulled, imported, calls, large.N)
	}
	b.wantClean()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestAdds: a tenant cannot fill the disk with archives that it uploads at the same time, and others do not wait.
func TestAdds(t *testing.T) {
	b := newBench(t, Options{TenantBytes: 1000})
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	defer out.Close()
	var all sync.WaitGroup
	for range maxAdds {
		all.Go(func() { b.ImportStream(ctx, in, Request{Reference: "x", Tenant: "t"}) })
	}
	for range maxAdds {
		out.Write([]byte{0}) // one of them has begun
	}
	waitFor(t, func() bool { slots, ok := b.adds.all.Load("t"); return ok && len(slots.(chan struct{})) == maxAdds })
	brief, end := context.WithTimeout(ctx, 50*time.Millisecond)
	defer end()
	more := &io.LimitedReader{R: zeros{}, N: 1 << 20}
	if _, err := b.ImportStream(brief, more, Request{Reference: "x", Tenant: "t"}); !errors.Is(err, context.DeadlineExceeded) || more.N < 1<<20 {
		t.Errorf("one more: %v, read %d bytes", err, 1<<20-more.N)
	}
	if _, err := b.ImportStream(ctx, zeros{}, Request{Reference: "x", Tenant: "u"}); !errors.Is(err, ErrQuota) {
		t.Errorf("another tenant: %v", err)
	}
	cancel()
	out.Close()
	all.Wait()
}

// TestFullDisk: a disk that fills up during a download is one clear error, and no reason to ask again.
func TestFullDisk(t *testing.T) {
	g := newRegistry(t, false)
	img := randomImage(t, 10_000, 1)
	g.push(t, "x:1", img)
	b := newBench(t, g.options())
	p, err := b.place(g.host(), "x", Registry{Insecure: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	layer := manifestOf(t, img).Layers[0]
	w := &part{spool: &spool{file: full}, sum: sha256.New(), progress: func(int64) {}}
	if err := noSpace(p.fetch(t.Context(), layer, w)); !errors.Is(err, ErrNoSpace) || g.asked(layer.Digest.String()) != 1 {
		t.Errorf("%v; asked %q", err, g.seen)
	}
}

// TestQuotaTogether: two images that fit alone and not together do not both pass, however close they come.
func TestQuotaTogether(t *testing.T) {
	b := newBench(t, Options{TenantBytes: 150_000})
	both := make(chan struct{}, 2)
	b.fake.before = func(context.Context, Layer) error {
		both <- struct{}{}
		waitFor(t, func() bool { return len(both) == 2 })
		return nil
	}
	results := make(chan error, 2)
	for i := range 2 {
		dir := ociLayout(t, randomImage(t, 100_000, 1))
		go func() {
			_, err := b.Import(t.Context(), dir, Request{Reference: fmt.Sprint("image", i), Tenant: "t"})
			results <- err
		}()
	}
	first, second := <-results, <-results
	if (first == nil) == (second == nil) || !errors.Is(cmp.Or(first, second), ErrQuota) {
		t.Errorf("%v, %v", first, second)
	}
	if n := len(b.layers()); n != 1 {
		t.Errorf("%d layers", n)
	}
}
