package images

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

func (b *bench) mustImport(tenant, name string, img v1.Image) Image {
	b.t.Helper()
	got, err := b.Import(b.t.Context(), ociLayout(b.t, img), Request{Reference: name, Tenant: tenant})
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

func (b *bench) mustGC() Collected {
	b.t.Helper()
	c, err := b.GC(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// onTop is an image with one layer more.
func onTop(t testing.TB, img v1.Image) v1.Image {
	t.Helper()
	l, err := random.Layer(1000, "application/vnd.docker.image.rootfs.diff.tar.gzip")
	if err == nil {
		img, err = mutate.AppendLayers(img, l)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestGC(t *testing.T) {
	b := newBench(t, Options{})
	base := randomImage(t, 1000, 2)
	one := b.mustImport("a", "one", base)
	two := b.mustImport("b", "two", onTop(t, base))
	if n := len(b.layers()); n != 3 {
		t.Errorf("%d layers, want 3: two are shared", n)
	}
	if c := b.mustGC(); c != (Collected{}) {
		t.Errorf("collected what is needed: %+v", c)
	}
	if _, err := b.Lease("b", "two", "box"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ tenant, name string }{{"a", "one"}, {"b", "two"}} {
		if err := b.Remove(t.Context(), c.tenant, c.name); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Remove(t.Context(), "b", "two"); !errors.Is(err, ErrUnknown) {
		t.Errorf("removed twice: %v", err)
	}
	if len(b.Garbage()) != 1 {
		t.Error("GC is not asked for after removals")
	}
	if c := b.mustGC(); c.Layers != 0 {
		t.Errorf("with a lease: %+v", c)
	}
	b.Close()
	b.open(Options{}) // a lease survives that
	if img, err := b.Leased("box"); err != nil || img.Digest != two.Digest || !slices.Equal(img.Layers[:2], one.Layers) {
		t.Errorf("leased: %v, %v", img, err)
	}
	if c := b.mustGC(); c != (Collected{}) || !slices.Equal(b.layers(), sorted(two.Layers)) {
		t.Errorf("with a lease, after a restart: %+v, %v", c, b.layers())
	}
	if err := b.RetainLeases(func(holder string) bool { return holder != "box" }); err != nil {
		t.Fatal(err)
	}
	b.fake.inUse[two.Layers[0]] = true
	if c := b.mustGC(); c.Layers != 2 {
		t.Errorf("with a layer that a box uses: %+v", c)
	}
	b.fake.inUse = nil
	if c := b.mustGC(); c.Layers != 1 {
		t.Errorf("at the end: %+v", c)
	}
	b.wantClean()
}

func TestGCToSize(t *testing.T) {
	b := newBench(t, Options{})
	var all []Image
	for i := range 4 {
		all = append(all, b.mustImport(Shared, fmt.Sprint("image", i), randomImage(t, 100_000, 1)))
	}
	if _, err := b.Lease("t", "image0", "box"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Lease("t", "image1", "snapshot"); err != nil { // used last, after its end
		t.Fatal(err)
	}
	if err := b.Release("snapshot"); err != nil {
		t.Fatal(err)
	}
	b.o.MaxBytes = all[0].Bytes*2 + 5000
	if c := b.mustGC(); c.Images != 2 || c.Layers != 2 || c.Bytes < 2*all[0].Bytes-5000 {
		t.Errorf("collected %+v", c)
	}
	if got, want := b.layers(), sorted([]string{all[0].Layers[0], all[1].Layers[0]}); !slices.Equal(got, want) {
		t.Errorf("left %v, want the leased one and the one used last %v", got, want)
	}
	last := b.mustImport(Shared, "image4", randomImage(t, 100_000, 1)) // makes room by itself
	if got, want := b.layers(), sorted([]string{all[0].Layers[0], last.Layers[0]}); !slices.Equal(got, want) {
		t.Errorf("left %v, want the leased one and the new one %v", got, want)
	}
}

func TestQuota(t *testing.T) {
	b := newBench(t, Options{TenantBytes: 250_000})
	base := randomImage(t, 100_000, 1)
	b.mustImport("t", "one", base)
	b.mustImport("t", "same", base)
	b.mustImport("t", "more", onTop(t, base)) // shares the large layer
	b.mustImport("u", "one", base)
	before := len(b.layers())
	g := newRegistry(t, false)
	g.push(t, "large:1", randomImage(t, 200_000, 1))
	b.o.Registries = g.options().Registries
	if _, err := b.Pull(t.Context(), Request{Tenant: "t", Reference: g.host() + "/large:1"}); !errors.Is(err, ErrQuota) || g.asked("/blobs/") != 1 {
		t.Errorf("%v; asked %v: want a refusal before the layer is fetched", err, g.seen)
	}
	if len(b.layers()) != before {
		t.Errorf("%d layers, want %d", len(b.layers()), before)
	}
	if _, err := b.Pull(t.Context(), Request{Tenant: "u", Reference: g.host() + "/large:1"}); !errors.Is(err, ErrQuota) {
		t.Errorf("another tenant: %v", err)
	}
	if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/large:1"}); err != nil {
		t.Errorf("the operator: %v", err)
	}
}

// TestLeaseIsWritten: a lease is on disk soon after, and counts before that.
func TestLeaseIsWritten(t *testing.T) {
	b := newBench(t, Options{})
	img := b.mustImport("t", "one", randomImage(t, 1000, 1))
	leased := func(holder string) bool {
		_, err := b.Leased(holder)
		return err == nil
	}
	b.db.writing = true // it is not written
	_, err := b.Lease("t", "one", "box")
	if err != nil || !leased("box") {
		t.Errorf("%v, leased: %v", err, leased("box"))
	}
	if err := b.Remove(t.Context(), "t", "one"); err != nil {
		t.Fatal(err)
	}
	if c := b.mustGC(); c != (Collected{}) {
		t.Errorf("collected what is leased: %+v", c)
	}
	other := &Store{db: &database{path: b.db.path}} // of a process after a kill
	if got, err := other.Leased("box"); err != nil || got.Digest != img.Digest {
		t.Errorf("on disk: %v, %v", got, err)
	}
	if err := b.Release("box"); err != nil || leased("box") {
		t.Errorf("%v, leased: %v", err, leased("box"))
	}
	if c := b.mustGC(); c.Layers != 1 {
		t.Errorf("collected %+v", c)
	}
	b.Close()
	b.open(Options{})
	if leased("box") {
		t.Error("leased after the end")
	}
}

// TestQuotaOfReferences: images that take no layer of their own are bounded, too.
func TestQuotaOfReferences(t *testing.T) {
	b := newBench(t, Options{})
	img := randomImage(t, 1000, 1)
	one := b.mustImport("t", "one", img)
	err := b.change(func(t tables) (err error) {
		for i := range maxReferences - 1 {
			err = errors.Join(err, put(t.refs, refKey("t", fmt.Sprint("docker.io/library/x:", i)), one))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Import(t.Context(), ociLayout(t, img), Request{Reference: "more", Tenant: "t"}); !errors.Is(err, ErrQuota) {
		t.Errorf("one more: %v", err)
	}
	b.mustImport("t", "docker.io/library/one", img) // another spelling of the one that is there
	b.mustImport("u", "more", img)
}

// TestPullsShare: pulls of one image at the same time do its work once; the work goes on when one leaves, and
// ends when all have left.
func TestPullsShare(t *testing.T) {
	g := newRegistry(t, false)
	img := randomImage(t, 50_000, 3)
	g.push(t, "x:1", img)
	b := newBench(t, g.options())
	reached, gate := make(chan struct{}, 10), make(chan struct{})
	b.fake.before = func(ctx context.Context, l Layer) error {
		reached <- struct{}{}
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	pull := func(ctx context.Context, tenant string) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := b.Pull(ctx, Request{Reference: g.host() + "/x:1", Tenant: tenant})
			done <- err
		}()
		return done
	}
	first := pull(ctx, "first")
	<-reached // it has begun to unpack
	var others []chan error
	for i := range 5 {
		others = append(others, pull(t.Context(), fmt.Sprint(i)))
	}
	waitFor(t, func() bool {
		b.flights.mu.Lock()
		defer b.flights.mu.Unlock()
		return len(b.flights.flying) == 3 && b.flights.flying[flightOf(t, g.host()+"/x", img, 2)].waiters == 6
	})
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that left: %v", err)
	}
	close(gate)
	for _, done := range others {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if b.fake.unpacked.Load() != 3 {
		t.Errorf("%d layers unpacked, want 3", b.fake.unpacked.Load())
	}
	for _, l := range manifestOf(t, img).Layers {
		if n := g.asked(l.Digest.String()); n != 1 {
			t.Errorf("layer %s was fetched %d times", l.Digest, n)
		}
	}

	g.push(t, "y:1", randomImage(t, 50_000, 3))
	b.fake.before = func(ctx context.Context, l Layer) error {
		reached <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	before := b.layers()
	ctx, cancel = context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := b.Pull(ctx, Request{Reference: g.host() + "/y:1"}); done <- err }()
	for len(reached) > 0 {
		<-reached
	}
	<-reached
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	b.flights.workers.Wait() // hangs if the work goes on
	b.mustGC()
	if got := b.layers(); !slices.Equal(got, before) {
		t.Errorf("left: %v", got)
	}
	if len(b.pins) > 0 {
		t.Errorf("pinned: %v", b.pins)
	}
}

// TestProgressMayAsk: a progress function may use the store.
func TestProgressMayAsk(t *testing.T) {
	b := newBench(t, Options{})
	asked := 0
	_, err := b.Import(t.Context(), ociLayout(t, randomImage(t, 1000, 2)), Request{Reference: "x", Progress: func(p Progress) {
		if _, err := b.Lease(Shared, "x", "box"); err == nil {
			asked++
		}
	}})
	if err != nil || asked != 1 {
		t.Errorf("%v, the image was there %d times, want 1: at the end", err, asked)
	}
}

// TestInherits: a layer that depends on those below it is shared by images with the same stack only.
func TestInherits(t *testing.T) {
	b := newBench(t, Options{})
	l, err := random.Layer(1000, "application/vnd.docker.image.rootfs.diff.tar.gzip")
	if err != nil {
		t.Fatal(err)
	}
	id, _ := l.DiffID()
	b.fake.inherits = map[string]bool{id.Hex: true}
	image := func(below v1.Image) v1.Image {
		img, err := mutate.AppendLayers(below, l)
		if err != nil {
			t.Fatal(err)
		}
		return withConfig(t, img, func(*v1.ConfigFile) {})
	}
	base := randomImage(t, 1000, 2)
	alone := b.mustImport("", "alone", image(empty.Image))
	first := b.mustImport("", "first", image(base))
	second := b.mustImport("", "second", image(randomImage(t, 1000, 1)))
	again := b.mustImport("", "again", onTop(t, image(base)))
	if alone.Layers[0] != id.Hex || first.Layers[2] != chainIDs(hashes(t, image(base)))[2] || second.Layers[1] == first.Layers[2] || again.Layers[2] != first.Layers[2] {
		t.Errorf("%v, %v, %v, %v", alone.Layers, first.Layers, second.Layers, again.Layers)
	}
	if n := b.fake.unpacked.Load(); n != 1+3+2+1 {
		t.Errorf("%d layers unpacked, want 7", n)
	}
	for _, name := range []string{"alone", "first", "second", "again"} {
		if err := b.Verify(t.Context(), "", name); err != nil {
			t.Error(err)
		}
	}
	b.mustGC()
	b.wantLayers(first)
	b.wantLayers(second)
}

// TestSharedWorkFails: a request whose neighbour fails for a reason of its own does the work itself.
func TestSharedWorkFails(t *testing.T) {
	g := newRegistry(t, false)
	img := randomImage(t, 1000, 1)
	g.push(t, "x:1", img)
	g.push(t, "x:2", img)
	b := newBench(t, g.options())
	var once sync.Once
	arrived, gate := make(chan struct{}), make(chan struct{})
	g.answer(func(w http.ResponseWriter, r *http.Request) bool {
		refuse := false
		if strings.HasSuffix(r.URL.Path, manifestOf(t, img).Layers[0].Digest.String()) {
			once.Do(func() {
				refuse = true
				close(arrived)
				<-gate
				w.WriteHeader(http.StatusForbidden)
			})
		}
		return refuse
	})
	results := make(chan error, 2)
	go func() { _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1"}); results <- err }()
	<-arrived
	go func() {
		_, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:2"})
		if err != nil {
			t.Error(err)
		}
		results <- nil
	}()
	waitFor(t, func() bool {
		b.flights.mu.Lock()
		defer b.flights.mu.Unlock()
		return b.flights.flying[flightOf(t, g.host()+"/x", img, 0)].waiters == 2
	})
	close(gate)
	if err := errors.Join(<-results, <-results); !errors.Is(err, ErrLogin) {
		t.Error(err)
	}
}

// flightOf names the work that makes the layers 0 to i of an image.
func flightOf(t testing.TB, source string, img v1.Image, i int) string {
	var digests []v1.Hash
	for _, l := range manifestOf(t, img).Layers {
		digests = append(digests, l.Digest)
	}
	in := incoming{source: source, chain: chainIDs(hashes(t, img)), blobs: chainIDs(digests)}
	return in.flight(i)
}

func hashes(t testing.TB, img v1.Image) []v1.Hash {
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return c.RootFS.DiffIDs
}

func TestOpen(t *testing.T) {
	b := newBench(t, Options{})
	one := b.mustImport("t", "one", randomImage(t, 1000, 2))
	b.mustImport("t", "two", randomImage(t, 1000, 1))
	if _, err := Open(b.dir, Options{Unpacker: b.fake, Layers: b.fake}); !errors.Is(err, syscall.EAGAIN) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opened twice: %v", err)
	}
	if _, err := b.Lease("t", "one", "box"); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if _, err := b.Pull(t.Context(), Request{Reference: "x"}); err == nil {
		t.Error("Pull after Close")
	}
	os.Remove(filepath.Join(b.fake.dir, one.Layers[1]))
	os.WriteFile(filepath.Join(b.dir, "new", "left"), nil, 0o600)
	b.open(Options{})
	if _, err := b.Get("t", "one"); !errors.Is(err, ErrUnknown) {
		t.Errorf("an image whose layer is lost: %v", err)
	}
	if _, err := b.Leased("box"); !errors.Is(err, ErrUnknown) {
		t.Errorf("a lease of it: %v", err)
	}
	if _, err := b.Get("t", "two"); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Join(b.dir, "new")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if c := b.mustGC(); c.Layers != 1 {
		t.Errorf("collected %+v", c)
	}
	ro := OpenReadOnly(filepath.Join(t.TempDir(), "missing"))
	if _, err := ro.Get("t", "one"); !errors.Is(err, ErrUnknown) {
		t.Errorf("no store: %v", err)
	}
	if all, err := ro.List("t"); err != nil || len(all) > 0 {
		t.Errorf("no store: %v, %v", all, err)
	}
	ro = OpenReadOnly(b.dir)
	_, err1 := ro.Lease("t", "two", "box")
	_, err2 := ro.GC(t.Context())
	_, err3 := ro.Pull(t.Context(), Request{Reference: "x"})
	for _, err := range []error{err1, err2, err3, ro.Release("box"), ro.Remove(t.Context(), "t", "two")} {
		if !errors.Is(err, errReadOnly) {
			t.Errorf("read-only: %v", err)
		}
	}
}

// TestDamagedDatabase: a damaged database is one line that says what to do; boxd does not die of it.
func TestDamagedDatabase(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func([]byte) []byte
	}{
		{"cut", func(b []byte) []byte { return b[:3*4096] }},
		{"a page", func(b []byte) []byte { return b[:4096] }},
		{"zeros", func(b []byte) []byte { return make([]byte, len(b)) }},
		{"overwritten", func(b []byte) []byte {
			for i := 8192; i < len(b); i++ {
				b[i] = 0xee
			}
			return b
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			b.mustImport("t", "one", randomImage(t, 1000, 2))
			b.Close()
			path := filepath.Join(b.dir, "images.db")
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, c.damage(text), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err = Open(b.dir, Options{Unpacker: b.fake, Layers: b.fake}); err == nil || !strings.Contains(err.Error(), "damaged") || strings.Contains(err.Error(), "\n") {
				t.Errorf("Open: %v", err)
			}
		})
	}
}

func TestVerify(t *testing.T) {
	b := newBench(t, Options{})
	img := b.mustImport("t", "one", randomImage(t, 1000, 2))
	layer := filepath.Join(b.fake.dir, img.Layers[1])
	text, _ := os.ReadFile(layer)
	os.WriteFile(layer, append(text, 1), 0o600)
	if err := b.Verify(t.Context(), "t", "one"); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), img.Layers[1]) {
		t.Errorf("a changed layer: %v", err)
	}
	os.WriteFile(layer, text, 0o600)
	if err := b.Verify(t.Context(), "t", "one"); err != nil {
		t.Error(err)
	}
	if err := b.Verify(t.Context(), "t", "none"); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unknown image: %v", err)
	}
}

// TestFailedUnpack: each error of the unpacker comes out as it is, and nothing is left.
func TestFailedUnpack(t *testing.T) {
	for _, want := range []error{ErrCorrupt, ErrRefused, ErrNoSpace, engine.ErrNoLauncher} {
		b := newBench(t, Options{})
		n := 0
		b.fake.before = func(context.Context, Layer) error {
			if n++; n == 2 {
				return fmt.Errorf("unpacking: %w", want)
			}
			return nil
		}
		if _, err := b.Import(t.Context(), ociLayout(t, randomImage(t, 1000, 3)), Request{Reference: "x"}); !errors.Is(err, want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %v", err, want)
		}
		b.wantClean()
	}
}

// TestConcurrently: imports, removals and GC at the same time. All that Get returns is complete.
func TestConcurrently(t *testing.T) {
	b := newBench(t, Options{})
	base := randomImage(t, 1000, 2)
	dirs := []string{ociLayout(t, base), ociLayout(t, onTop(t, base)), ociLayout(t, onTop(t, base))}
	var wg sync.WaitGroup
	for i, dir := range dirs {
		name := fmt.Sprint("image", i)
		wg.Go(func() {
			for range 15 {
				img, err := b.Import(t.Context(), dir, Request{Reference: name})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := b.Lease("t", name, name); err != nil {
					t.Error(err)
				}
				b.wantLayers(img)
				if err := errors.Join(b.Remove(t.Context(), Shared, name), b.Release(name)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		wg.Wait()
	}()
	for {
		b.mustGC()
		select {
		case <-done:
			b.mustGC()
			b.wantClean()
			return
		default:
		}
	}
}

// BenchmarkLease: what an image costs a session beyond the box.
func BenchmarkLease(b *testing.B) {
	s := newBench(b, Options{})
	s.mustImport("t", "one", randomImage(b, 1000, 2))
	for b.Loop() {
		_, err := s.Lease("t", "one", "box")
		b.StopTimer()
		s.db.writer.Wait() // while the box is built
		b.StartTimer()
		if err = errors.Join(err, s.Release("box")); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		s.db.writer.Wait()
		b.StartTimer()
	}
}

// wantLayers fails if the engine lacks a layer of img.
func (b *bench) wantLayers(img Image) {
	for _, id := range img.Layers {
		if _, err := os.Stat(filepath.Join(b.fake.dir, id)); err != nil {
			b.t.Errorf("%s: %v", img.Name, err)
		}
	}
}

// TestGarbage: what can make GC worth its while is told, and the end of a lease of an image that stays is not.
func TestGarbage(t *testing.T) {
	b := newBench(t, Options{})
	told := func() bool {
		select {
		case <-b.Garbage():
			return true
		default:
			return false
		}
	}
	b.mustImport("t", "one", randomImage(t, 1000, 1))
	for _, c := range []struct {
		step string
		do   func() error
		want bool
	}{
		{"a lease", func() error { _, err := b.Lease("t", "one", "box"); return err }, false},
		{"the end of a lease", func() error { return b.Release("box") }, false},
		{"the end of none", func() error { return b.Release("box") }, false},
		{"another lease", func() error { _, err := b.Lease("t", "one", "box"); return err }, false},
		{"another image", func() error { b.mustImport("t", "one", randomImage(t, 1000, 1)); return nil }, true},
		{"the end of the lease of what is no image", func() error { return b.Release("box") }, true},
		{"a removal", func() error { return b.Remove(t.Context(), "t", "one") }, true},
	} {
		if err := c.do(); err != nil {
			t.Fatal(c.step, err)
		}
		if got := told(); got != c.want {
			t.Errorf("after %s: %v", c.step, got)
		}
	}
}

// A box has each layer once, and images of docker build have the empty one often.
func TestLayerTwice(t *testing.T) {
	b := newBench(t, Options{})
	img := randomImage(t, 1000, 2)
	layers, err := img.Layers()
	if err == nil {
		img, err = mutate.AppendLayers(img, layers[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	got, ids := b.mustImport(Shared, "twice", img), diffIDs(t, img)
	if !slices.Equal(got.Layers, ids[1:]) {
		t.Errorf("layers %v, want %v", got.Layers, ids[1:])
	}
	if err := (spec.Spec{Image: got.Name, Layers: got.Layers}).Validate(); err != nil {
		t.Error(err)
	}
}

// Images with the same layers and other configurations do not keep each other from going.
func TestGCToSizeSharing(t *testing.T) {
	b := newBench(t, Options{})
	img := randomImage(t, 100_000, 1)
	b.mustImport(Shared, "one", img)
	b.mustImport(Shared, "two", withConfig(t, img, func(c *v1.ConfigFile) { c.Config.User = "1" }))
	b.o.MaxBytes = 1000
	if c := b.mustGC(); c.Images != 2 || c.Layers != 1 {
		t.Errorf("collected %+v", c)
	}
	b.wantClean()
}
