package images

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// fake is an engine's layers and an Unpacker: a layer is a file with its tar stream, in dir, where it survives a kill.
type fake struct {
	dir      string
	unpacked atomic.Int64
	// before, if not nil, is called before a layer is published, and can refuse it.
	before func(ctx context.Context, l Layer) error

	mu       sync.Mutex
	inUse    map[string]bool
	inherits map[string]bool // diff IDs of layers that depend on those below them
	below    [][]string      // of each Unpack
}

func newFake(dir string) *fake { return &fake{dir: dir, inUse: map[string]bool{}} }

func (f *fake) Unpack(ctx context.Context, l Layer) (Unpacked, error) {
	in := bufio.NewReader(l.Blob)
	var stream io.Reader = in
	if magic, _ := in.Peek(2); bytes.Equal(magic, gzipMagic) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return Unpacked{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		stream = z
	}
	b, err := io.ReadAll(stream)
	if err != nil {
		return Unpacked{}, fmt.Errorf("unpacking: %w", err)
	}
	if int64(len(b)) > l.MaxBytes {
		return Unpacked{}, fmt.Errorf("%w: too large", ErrRefused)
	}
	if f.before != nil {
		if err := f.before(ctx, l); err != nil {
			return Unpacked{}, err
		}
	}
	if ctx.Err() != nil {
		return Unpacked{}, context.Cause(ctx)
	}
	sum := sha256.Sum256(b)
	id := hex.EncodeToString(sum[:])
	if l.DiffID != "" && l.DiffID != id {
		return Unpacked{}, fmt.Errorf("%w: diff ID %s, got %s", ErrCorrupt, l.DiffID, id)
	}
	if l.Progress != nil {
		l.Progress(l.Size)
	}
	inherits := f.inherits[id]
	if inherits && len(l.Below) > 0 {
		id = l.ChainID
	}
	tmp, err := os.CreateTemp(f.dir, ".new-")
	if err != nil {
		return Unpacked{}, err
	}
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Close(), os.Rename(tmp.Name(), filepath.Join(f.dir, id))); err != nil {
		return Unpacked{}, err
	}
	f.unpacked.Add(1)
	f.mu.Lock()
	f.below = append(f.below, l.Below)
	f.mu.Unlock()
	return Unpacked{ID: id, Bytes: int64(len(b)), Entries: 1, Sum: hex.EncodeToString(sum[:]), Inherits: inherits, Bundle: bytes.Contains(b, []byte("oci-layout\x00"))}, nil
}

func (f *fake) Sum(_ context.Context, id string) (string, error) {
	b, err := os.ReadFile(filepath.Join(f.dir, id))
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), err
}

func (f *fake) MakeLayer(context.Context, string) error            { panic("not used") }
func (f *fake) PublishLayer(context.Context, string, string) error { panic("not used") }
func (f *fake) AbandonLayer(context.Context, string) error         { panic("not used") }

func (f *fake) RemoveLayer(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inUse[id] {
		return fmt.Errorf("layer %s: %w", id, engine.ErrLayerInUse)
	}
	return os.Remove(filepath.Join(f.dir, id))
}

func (f *fake) Layers(context.Context) ([]string, error) {
	entries, err := os.ReadDir(f.dir)
	var ids []string
	for _, e := range entries {
		if e.Name()[0] != '.' {
			ids = append(ids, e.Name())
		}
	}
	return ids, err
}

// bench is a store over a fake engine.
type bench struct {
	*Store
	t    testing.TB
	fake *fake
	dir  string
}

func newBench(t testing.TB, o Options) *bench {
	b := &bench{t: t, fake: newFake(t.TempDir()), dir: t.TempDir()}
	b.open(o)
	t.Cleanup(func() { b.Close() })
	return b
}

func (b *bench) open(o Options) {
	b.t.Helper()
	o.Unpacker, o.Layers, o.pause = b.fake, b.fake, time.Millisecond
	s, err := Open(b.dir, o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Store = s
}

// layers are the IDs of the fake engine's layers.
func (b *bench) layers() []string {
	b.t.Helper()
	ids, err := b.fake.Layers(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return ids
}

// wantClean fails if anything of an unsuccessful request is left.
func (b *bench) wantClean() {
	b.t.Helper()
	for _, dir := range []string{filepath.Join(b.dir, "new"), b.fake.dir} {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > 0 {
			b.t.Errorf("%s is not empty: %v, %v", dir, entries, err)
		}
	}
	all, err := b.List(Shared)
	if err != nil || len(all) > 0 {
		b.t.Errorf("images: %v, %v", all, err)
	}
}

// randomImage is an image for this host.
func randomImage(t testing.TB, size int64, layers int) v1.Image {
	t.Helper()
	var add []mutate.Addendum
	for range layers {
		l, err := random.Layer(size, "application/vnd.docker.image.rootfs.diff.tar.gzip")
		if err != nil {
			t.Fatal(err)
		}
		add = append(add, mutate.Addendum{Layer: l})
	}
	img, err := mutate.Append(empty.Image, add...)
	if err != nil {
		t.Fatal(err)
	}
	return withConfig(t, img, func(*v1.ConfigFile) {})
}

func withConfig(t testing.TB, img v1.Image, change func(*v1.ConfigFile)) v1.Image {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = hostPlatform.OS, hostPlatform.Architecture
	change(c)
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

func diffIDs(t testing.TB, img v1.Image) (ids []string) {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range c.RootFS.DiffIDs {
		ids = append(ids, d.Hex)
	}
	return ids
}

func sorted(ids []string) []string { return slices.Sorted(slices.Values(ids)) }

// waitFor returns when condition is true.
func waitFor(t testing.TB, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(testutil.Patience()); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}
