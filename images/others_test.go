package images

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/boxd/boxd/internal/testutil"
)

// saved writes an image as "docker save" did before version 25.
func saved(t testing.TB, img v1.Image) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "saved.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	add := func(name string, content []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		w.Write(content)
	}
	layers, config := must(img.Layers()), must(img.RawConfigFile())
	s := savedImage{Config: "config.json", RepoTags: []string{"a/b:1"}}
	for i, l := range layers {
		name := fmt.Sprintf("%d/layer.tar", i)
		add(name, must(io.ReadAll(must(l.Uncompressed()))))
		s.Layers = append(s.Layers, name)
	}
	add("config.json", config)
	add(savedFile, must(json.Marshal([]savedImage{s})))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// naming is an image with the layers of one and the diff IDs of another, as only an archive that somebody has forged is.
func naming(t testing.TB, victim, layers v1.Image) v1.Image {
	return withConfig(t, layers, func(c *v1.ConfigFile) { c.RootFS.DiffIDs = hashes(t, victim) })
}

// TestForgedImages: an image whose configuration names a layer of the store and that has another blob is refused,
// whoever brings it, in whatever form, and whoever has the layer. Without the blob, only those get the layer who can
// read it already: not those for whom an operator shares what a stranger wrote.
func TestForgedImages(t *testing.T) {
	g := newRegistry(t, false)
	secret := randomImage(t, 1000, 2)
	forged := naming(t, secret, randomImage(t, 1000, 2))
	g.push(t, "forged:1", forged)
	g.push(t, "gone:1", secret)
	g.answer(func(w http.ResponseWriter, r *http.Request) bool {
		gone := slices.ContainsFunc(manifestOf(t, secret).Layers, func(d v1.Descriptor) bool { return strings.HasSuffix(r.URL.Path, d.Digest.String()) })
		if gone {
			w.WriteHeader(http.StatusNotFound)
		}
		return gone
	})
	swapped, empty := ociLayout(t, secret), ociLayout(t, secret) // the names are right
	for i, l := range manifestOf(t, secret).Layers {
		other := must(must(randomImage(t, 1000, 1).Layers())[0].Compressed())
		if err := errors.Join(os.WriteFile(filepath.Join(swapped, blobsDir, l.Digest.Hex), must(io.ReadAll(other)), 0o644), os.Remove(filepath.Join(empty, blobsDir, l.Digest.Hex))); err != nil {
			t.Fatal(i, err)
		}
	}
	stream := func(b *bench, path string, r Request) (Image, error) {
		f, err := os.Open(path)
		if err != nil {
			return Image{}, err
		}
		defer f.Close()
		return b.ImportStream(t.Context(), f, r)
	}
	layout, archive, docker := ociLayout(t, forged), tarOf(t, ociLayout(t, forged)), saved(t, forged)
	for _, owner := range []string{"a", Shared} {
		b := newBench(t, g.options())
		had := b.mustImport(owner, "secret", secret)
		for _, importer := range []string{"a", "b", Shared} {
			for way, bring := range map[string]func(*bench, Request) (Image, error){
				"pull": func(b *bench, r Request) (Image, error) {
					r.Reference = g.host() + "/forged:1"
					return b.Pull(t.Context(), r)
				},
				"pull without blobs": func(b *bench, r Request) (Image, error) {
					r.Reference = g.host() + "/gone:1"
					return b.Pull(t.Context(), r)
				},
				"layout":                  func(b *bench, r Request) (Image, error) { return b.Import(t.Context(), layout, r) },
				"archive of a layout":     func(b *bench, r Request) (Image, error) { return stream(b, archive, r) },
				"docker save":             func(b *bench, r Request) (Image, error) { return stream(b, docker, r) },
				"file of docker save":     func(b *bench, r Request) (Image, error) { return b.Import(t.Context(), docker, r) },
				"blobs of another digest": func(b *bench, r Request) (Image, error) { return b.Import(t.Context(), swapped, r) },
				"layout without blobs":    func(b *bench, r Request) (Image, error) { return b.Import(t.Context(), empty, r) },
			} {
				img, err := bring(b, Request{Reference: "forged", Tenant: importer})
				if may := strings.HasSuffix(way, "without blobs") && (importer == owner || owner == Shared); may && err != nil || !may && !errors.Is(err, ErrCorrupt) {
					t.Errorf("the layers are those of %q; %q brings %s: %v", owner, importer, way, err)
				}
				for _, tenant := range []string{"b", "c"} {
					seen := must(b.List(tenant))
					if i := slices.IndexFunc(seen, func(img Image) bool { return slices.Equal(img.Layers, had.Layers) }); i >= 0 && owner != Shared {
						t.Errorf("%q brings %s, and %q has %s of %q", importer, way, tenant, seen[i].Name, owner)
					}
				}
				if err == nil {
					err = b.Remove(t.Context(), importer, img.Name)
				}
				if b.mustGC(); !slices.Equal(b.layers(), sorted(had.Layers)) {
					t.Errorf("%q brings %s: layers %q, %v", importer, way, b.layers(), err)
				}
			}
		}
	}
}

// TestForgedBesideHonest: an archive that is imported at the same time as one with the same configuration is still
// judged by its own blobs.
func TestForgedBesideHonest(t *testing.T) {
	b := newBench(t, Options{})
	img := randomImage(t, 1000, 1)
	forged := ociLayout(t, img)
	if err := os.WriteFile(filepath.Join(forged, blobsDir, manifestOf(t, img).Layers[0].Digest.Hex), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	reached, gate := make(chan struct{}), make(chan struct{})
	b.fake.before = func(context.Context, Layer) error {
		reached <- struct{}{}
		<-gate
		return nil
	}
	honest := make(chan error, 1)
	go func() {
		_, err := b.Import(t.Context(), ociLayout(t, img), Request{Reference: "honest", Tenant: "a"})
		honest <- err
	}()
	<-reached
	second := make(chan error, 1)
	go func() {
		_, err := b.Import(t.Context(), forged, Request{Reference: "forged", Tenant: "a"})
		second <- err
	}()
	select {
	case err := <-second: // without waiting for the other
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("forged: %v", err)
		}
	case <-reached:
		t.Error("the forged archive is being unpacked")
	case <-time.After(testutil.Patience()):
		t.Error("the forged archive waits for the honest one")
	}
	close(gate)
	if err := <-honest; err != nil {
		t.Error(err)
	}
}

// TestSameBlobIsKept: a blob that was once unpacked is not unpacked again for those who may read its layer, and neither
// fetched again.
func TestSameBlobIsKept(t *testing.T) {
	g := newRegistry(t, false)
	base := randomImage(t, 1000, 2)
	g.push(t, "base:1", base)
	g.push(t, "top:1", onTop(t, base))
	b := newBench(t, g.options())
	unpacked := int64(0)
	want := func(more int64, asked int, err error) {
		t.Helper()
		if unpacked += more; err != nil || b.fake.unpacked.Load() != unpacked || g.asked("/blobs/") != asked {
			t.Errorf("%d layers unpacked, want %d; %v; asked %q", b.fake.unpacked.Load(), unpacked, err, g.seen)
		}
		g.answer(nil)
	}
	pull := func(tenant, name string) error {
		_, err := b.Pull(t.Context(), Request{Reference: g.host() + "/" + name, Tenant: tenant})
		return err
	}
	bring := func(tenant, path string) error {
		_, err := b.Import(t.Context(), path, Request{Reference: "copy", Tenant: tenant})
		return err
	}
	g.answer(nil)
	want(2, 3, pull("a", "base:1"))
	want(1, 2, pull("a", "top:1"))
	want(0, 0, bring("a", ociLayout(t, base)))
	want(0, 0, bring("a", saved(t, base))) // not compressed, so its digests are the diff IDs
	want(2, 0, bring("b", ociLayout(t, base)))
	want(2, 3, pull(Shared, "base:1")) // one tenant's is not shared
	want(1, 2, pull("c", "top:1"))
}

// TestRetry: what a request has made before its registry failed, the next one of the tenant does not fetch again, and
// others do not get.
func TestRetry(t *testing.T) {
	for _, tenant := range []string{Shared, "a"} {
		g := newRegistry(t, false)
		img := randomImage(t, 1000, 2)
		g.push(t, "x:1", img)
		b := newBench(t, g.options())
		lower := manifestOf(t, img).Layers[0].Digest.String()
		ctx, cancel := context.WithCancel(t.Context())
		b.fake.before = func(_ context.Context, l Layer) error {
			if len(l.Below) > 0 { // the lower one is there
				cancel()
			}
			return nil
		}
		if _, err := b.Pull(ctx, Request{Reference: g.host() + "/x:1", Tenant: tenant}); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		b.flights.workers.Wait()
		b.fake.before = nil
		g.answer(nil)
		for _, again := range []string{"b", tenant} {
			g.answer(nil)
			_, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1", Tenant: again})
			if n := g.asked(lower); err != nil || (n == 0) != (again == tenant) {
				t.Errorf("%q after a broken pull of %q: %v; asked %q", again, tenant, err, g.seen)
			}
		}
	}
}
