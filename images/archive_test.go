package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/boxd/boxd/engine"
)

// ociLayout writes an image as an OCI layout.
func ociLayout(t testing.TB, img v1.Image, o ...layout.Option) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	l, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = l.AppendImage(img, o...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tarOf archives a directory.
func tarOf(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestImportLayout(t *testing.T) {
	img := withConfig(t, randomImage(t, 1000, 3), func(c *v1.ConfigFile) {
		c.Config = v1.Config{Env: []string{"A=b"}, Cmd: []string{"sh"}, User: "1:2", WorkingDir: "srv/../x", Labels: map[string]string{"l": "m"}}
	})
	dir := ociLayout(t, img)
	archive := tarOf(t, dir)
	digest, _ := img.Digest()
	for _, c := range []struct {
		name  string
		bring func(*bench) (Image, error)
	}{
		{"directory", func(b *bench) (Image, error) { return b.Import(t.Context(), dir, Request{Reference: "my/image"}) }},
		{"file", func(b *bench) (Image, error) { return b.Import(t.Context(), archive, Request{Reference: "my/image"}) }},
		{"stream", func(b *bench) (Image, error) {
			f, err := os.Open(archive)
			if err != nil {
				return Image{}, err
			}
			defer f.Close()
			return b.ImportStream(t.Context(), io.MultiReader(f), Request{Reference: "my/image"})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			got, err := c.bring(b)
			if err != nil {
				t.Fatal(err)
			}
			if got.Digest != digest.String() || got.Name != "my/image" || !slices.Equal(got.Layers, diffIDs(t, img)) || got.Bytes == 0 {
				t.Errorf("image: %+v", got)
			}
			if got.WorkingDir != "/x" || got.User != "1:2" || got.Env[0] != "A=b" || got.Cmd[0] != "sh" || got.Labels["l"] != "m" {
				t.Errorf("config: %+v", got.Config)
			}
			ro := OpenReadOnly(b.dir) // beside the one that writes
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"my/image", "my/image:latest", "docker.io/my/image:latest", got.Digest, got.Digest[7:19], "my/image@" + got.Digest} {
				if img, err := ro.Get("tenant", name); err != nil || img.Digest != got.Digest {
					t.Errorf("Get(%q): %v, %v", name, img.Digest, err)
				}
			}
			if all, err := b.List("tenant"); err != nil || len(all) != 1 {
				t.Errorf("List: %v, %v", all, err)
			}
			if err := b.Verify(t.Context(), Shared, "my/image"); err != nil {
				t.Error(err)
			}
			if n := b.fake.unpacked.Load(); n != 3 {
				t.Errorf("%d layers unpacked", n)
			}
			if want := [][]string{nil, got.Layers[:1], got.Layers[:2]}; !slices.EqualFunc(b.fake.below, want, slices.Equal) {
				t.Errorf("below: %v", b.fake.below)
			}
		})
	}
}

// Names in an archive can have 1 MiB each, and the store must not keep them.
func TestIndexTarLongNames(t *testing.T) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range []string{strings.Repeat("n", 1<<19), layoutFile} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := indexTar(io.NewSectionReader(bytes.NewReader(archive.Bytes()), 0, int64(archive.Len())))
	if _, ok := files[layoutFile]; !ok || len(files) != 1 || err != nil {
		t.Errorf("%d files, %v; want only %s", len(files), err, layoutFile)
	}
}

// A name with a digest means what has this digest, also if a tenant imports something else under it: policies
// demand such names.
func TestImportPinned(t *testing.T) {
	b := newBench(t, Options{})
	img := randomImage(t, 1000, 1)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	other := "sha256:" + strings.Repeat("a", 64)
	plain := tarOf(t, t.TempDir())
	for _, path := range []string{ociLayout(t, img), tarOf(t, ociLayout(t, img)), plain} {
		if _, err := b.Import(t.Context(), path, Request{Reference: "python@" + other, Tenant: "t"}); !errors.Is(err, ErrRefused) {
			t.Errorf("%s under a name with another digest: %v", path, err)
		}
	}
	b.wantClean()
	if _, err := b.Import(t.Context(), ociLayout(t, img), Request{Reference: "python@" + digest.String(), Tenant: "t"}); err != nil {
		t.Error(err)
	}
	if _, err := b.Import(t.Context(), ociLayout(t, img), Request{Reference: other, Tenant: "t"}); err == nil {
		t.Error("imported under a digest alone")
	}
	if got, err := b.Get("t", other); !errors.Is(err, ErrUnknown) {
		t.Errorf("digest %s means %s, %v", other, got.Digest, err)
	}
}

// TestImportDirWithoutLayout: a part of an OCI layout is not taken for a root file system.
func TestImportDirWithoutLayout(t *testing.T) {
	dir := ociLayout(t, randomImage(t, 1000, 1))
	if err := os.Remove(filepath.Join(dir, "oci-layout")); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, Options{})
	_, err := b.Import(t.Context(), dir, Request{Reference: "x"})
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "it has blobs of an OCI layout (blobs/sha256) and no file oci-layout") || strings.Contains(err.Error(), "\n") {
		t.Errorf("imported: %v", err)
	}
	b.wantClean()
	if b.fake.unpacked.Load() != 0 {
		t.Error("something was unpacked")
	}
}

func TestImportCutArchive(t *testing.T) {
	b := newBench(t, Options{})
	archives := map[string]string{"layout": tarOf(t, ociLayout(t, randomImage(t, 1000, 1)))}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	archives["root"] = tarOf(t, dir)
	for name, path := range archives {
		full, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		members := len(full) - 1024
		for _, n := range []int{members, members - 512} {
			_, err = b.ImportStream(t.Context(), bytes.NewReader(full[:n]), Request{Reference: "cut"})
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "without its end mark: it was cut off") {
				t.Errorf("%s, %d bytes of %d: %v", name, n, len(full), err)
			}
		}
		b.wantClean()
	}
	for name, path := range archives {
		full, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = b.ImportStream(t.Context(), bytes.NewReader(full[:len(full)-512]), Request{Reference: "whole"}); err != nil {
			t.Errorf("%s with half an end mark: %v", name, err)
		}
	}
}

// TestDamagedLayer: another import of an image uses its layers as they are on disk, and makes them anew only after
// GC has deleted them.
func TestDamagedLayer(t *testing.T) {
	b, dir := newBench(t, Options{}), ociLayout(t, randomImage(t, 1000, 1))
	add := func() Image {
		img, err := b.Import(t.Context(), dir, Request{Reference: "x"})
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	if err := os.WriteFile(filepath.Join(b.fake.dir, add().Layers[0]), []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	add()
	if err := b.Verify(t.Context(), Shared, "x"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("after another import: %v", err)
	}
	if err := b.Remove(t.Context(), Shared, "x"); err != nil {
		t.Error(err)
	}
	if _, err := b.GC(t.Context()); err != nil {
		t.Error(err)
	}
	add()
	if err := b.Verify(t.Context(), Shared, "x"); err != nil {
		t.Errorf("after GC: %v", err)
	}
}

// TestImportRefusesBeforeReading: a value of the request that breaks a rule is refused before the archive is read.
func TestImportRefusesBeforeReading(t *testing.T) {
	b := newBench(t, Options{})
	in := strings.NewReader("archive")
	_, err := b.ImportStream(t.Context(), in, Request{Reference: "x", Platform: "linux"})
	if bad, ok := errors.AsType[*engine.FieldError](err); !ok || bad.Field != "platform" || in.Len() != len("archive") {
		t.Errorf("%v, %d bytes left", err, in.Len())
	}
}
