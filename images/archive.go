package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/endmark"
)

// Documents at the root of an OCI layout (image-spec image-layout.md) and of an archive of "docker save".
const (
	layoutFile = "oci-layout"
	indexFile  = "index.json"
	savedFile  = "manifest.json"
	blobsDir   = "blobs/sha256"
)

// errNoLayout says that something is part of an OCI layout, and so no root file system.
var errNoLayout = fmt.Errorf("%w: it has blobs of an OCI layout (%s) and no file %s", ErrCorrupt, blobsDir, layoutFile)

var gzipMagic, zstdMagic = []byte{0x1f, 0x8b}, []byte{0x28, 0xb5, 0x2f, 0xfd}

// Import reads an image from a file or directory of the caller: an OCI layout, as directory or tar archive; an
// archive of "docker save"; or a root file system, as directory or tar archive, which may be compressed by gzip or
// zstd. The archive of a layout and that of "docker save" must not be compressed: boxd reads their files in any
// order, and decompresses in boxes only.
func (s *Store) Import(ctx context.Context, path string, r Request) (img Image, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return Image{}, fmt.Errorf("importing an image: %w", err)
	}
	defer f.Close()
	if info, e := f.Stat(); e != nil {
		err = e
	} else if info.IsDir() {
		img, err = s.importDir(ctx, path, r)
	} else if info.Mode().IsRegular() {
		img, err = s.importFile(ctx, f, info.Size(), r)
	} else {
		err = fmt.Errorf("%w: neither a file nor a directory", ErrRefused)
	}
	if err != nil {
		return Image{}, fmt.Errorf("importing %s: %w", spec.QuotePath(path), err)
	}
	return img, nil
}

// ImportStream is Import from an archive that comes as a stream. It needs the space of the whole archive until it
// returns. It looks at ctx between two reads of in.
func (s *Store) ImportStream(ctx context.Context, in io.Reader, r Request) (img Image, err error) {
	if _, _, err := s.incoming(r); err != nil { // before a long upload
		return Image{}, fmt.Errorf("importing an image: %w", err)
	}
	release, err := s.adds.take(ctx, r.Tenant)
	if err != nil {
		return Image{}, fmt.Errorf("importing an image: %w", err)
	}
	defer release()
	f, err := s.newFile()
	if err == nil {
		defer f.file.Close()
		most := int64(1<<63 - 2)
		if s.o.MaxBytes > 0 {
			most = s.o.MaxBytes
		}
		if s.o.TenantBytes > 0 && r.Tenant != Shared {
			most = min(most, s.o.TenantBytes)
		}
		var n int64
		if n, err = io.Copy(f, io.LimitReader(untilDone{ctx, in}, most+1)); err == nil && n > most {
			err = fmt.Errorf("%w: the archive has more than %d bytes", ErrQuota, most)
		}
		if err == nil {
			img, err = s.importFile(ctx, f.file, n, r)
		}
	}
	if err != nil {
		return Image{}, fmt.Errorf("importing an image: %w", noSpace(err))
	}
	return img, nil
}

// untilDone is a reader that ends with a context.
type untilDone struct {
	ctx context.Context
	in  io.Reader
}

func (r untilDone) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.in.Read(p)
}

func (s *Store) importDir(ctx context.Context, dir string, r Request) (Image, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Image{}, err
	}
	defer root.Close()
	if _, err := root.Lstat(layoutFile); err != nil {
		if _, err := root.Lstat(blobsDir); err == nil {
			return Image{}, errNoLayout
		}
		return s.importTree(ctx, root, r)
	}
	return s.importLayout(ctx, func(name string) (io.ReadCloser, error) {
		return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is no blob, and must not block
	}, r)
}

// importFile imports from an archive.
func (s *Store) importFile(ctx context.Context, f *os.File, size int64, r Request) (Image, error) {
	magic := make([]byte, 6)
	if n, err := f.ReadAt(magic, 0); n == 0 {
		return Image{}, fmt.Errorf("%w: the archive is empty: %w", ErrCorrupt, err)
	}
	whole, kind := io.NewSectionReader(f, 0, size), layerType(magic)
	switch {
	case kind != types.OCIUncompressedLayer:
		return s.importRoot(ctx, whole, size, kind, r)
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ")), bytes.HasPrefix(magic, []byte("BZh")):
		return Image{}, fmt.Errorf("%w: it is compressed by xz or bzip2: decompress it first", ErrRefused)
	}
	files, err := indexTar(io.NewSectionReader(f, 0, size))
	if err != nil {
		return Image{}, err
	}
	open := bundle(func(name string) (io.ReadCloser, error) {
		if e, ok := files[name]; ok {
			return io.NopCloser(io.NewSectionReader(f, e.offset, e.size)), nil
		}
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	})
	if _, ok := files[layoutFile]; ok {
		return s.importLayout(ctx, open, r)
	}
	var saved []savedImage
	if text, err := open.read(savedFile, maxDocument); err == nil && json.Unmarshal(text, &saved) == nil && len(saved) > 0 {
		return s.importSaved(ctx, open, saved, r)
	}
	for name := range files {
		if path.Dir(name) == blobsDir {
			return Image{}, errNoLayout
		}
	}
	return s.importRoot(ctx, whole, size, kind, r)
}

// layerType is the media type of a layer that begins with these bytes.
func layerType(start []byte) types.MediaType {
	switch {
	case bytes.HasPrefix(start, gzipMagic):
		return types.OCILayer
	case bytes.HasPrefix(start, zstdMagic):
		return types.OCILayerZStd
	}
	return types.OCIUncompressedLayer
}

// extent is where the content of a file is in an archive.
type extent struct{ offset, size int64 }

// maxIndexed is how many files of an archive are looked at. An image has some three, and one for each layer; a root
// file system has no documents, wherever they would be.
const maxIndexed = 100_000

// maxIndexedName bounds their names in bytes: those of documents and blobs are shorter, and the others' would fill the
// memory, because a PAX record allows a name of 1 MiB.
const maxIndexedName = 1024

// indexTar finds the files of an archive.
func indexTar(in *io.SectionReader) (map[string]extent, error) {
	files := map[string]extent{}
	whole := struct {
		io.Reader
		io.Seeker // past the content of files
	}{endmark.Reader(in), in}
	for t := tar.NewReader(whole); len(files) < maxIndexed; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w: it is not a whole tar archive: %w", ErrCorrupt, err)
		}
		if len(h.Name) > maxIndexedName {
			continue
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := in.Seek(0, io.SeekCurrent) // the tar reader reads no byte ahead
			if err != nil {
				return nil, err
			}
			files[name] = extent{at, h.Size}
		case tar.TypeSymlink: // "docker save" before version 25 writes a layer once, and then links to it
			if e, ok := files[path.Join(path.Dir(name), h.Linkname)]; ok {
				files[name] = e
			}
		}
	}
	return files, nil
}

// bundle opens a file of a directory or an archive by its name.
type bundle func(name string) (io.ReadCloser, error)

// read reads a document of at most limit bytes.
func (open bundle) read(name string, limit int64) ([]byte, error) {
	f, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrRefused, spec.Quote(name), limit)
	}
	return text, err
}

// blob opens a blob of an OCI layout. Its reader fails where the blob is not what its digest says.
func (open bundle) blob(d v1.Descriptor) (io.ReadCloser, error) {
	return open.verified(blobsDir+"/"+d.Digest.Hex, d)
}

// verified opens a blob by the name that it has in an archive. Its reader fails where the blob is not what its digest says.
func (open bundle) verified(name string, d v1.Descriptor) (io.ReadCloser, error) {
	f, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: blob %s: %w", ErrCorrupt, d.Digest, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{newVerifier(f, d), f}, nil
}

func (s *Store) importLayout(ctx context.Context, open bundle, r Request) (Image, error) {
	in, want, err := s.incoming(r)
	if err != nil {
		return Image{}, err
	}
	text, err := open.read(indexFile, maxDocument)
	if err != nil {
		return Image{}, err
	}
	index, err := parseDocument(text)
	if err != nil {
		return Image{}, err
	}
	names := func(d v1.Descriptor) []string {
		return []string{d.Annotations["io.containerd.image.name"], d.Annotations["org.opencontainers.image.ref.name"]}
	}
	images, err := named(index.Manifests, r.Reference, names)
	if err != nil {
		return Image{}, err
	}
	first, err := choose(want, images)
	if err != nil {
		return Image{}, err
	}
	if err := in.setName(r.Reference, names(first)); err != nil {
		return Image{}, err
	}
	in.resolved = first.Digest.String()
	err = in.resolve(want, first, func(d v1.Descriptor) ([]byte, error) {
		f, err := open.blob(d)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return io.ReadAll(f)
	})
	if err != nil {
		return Image{}, err
	}
	in.open = func(_ context.Context, d v1.Descriptor, _ func(int64)) (io.ReadCloser, error) { return open.blob(d) }
	in.carries = func(ctx context.Context, d v1.Descriptor) (bool, error) {
		f, err := open.blob(d)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer f.Close()
		_, err = io.Copy(io.Discard, untilDone{ctx, f})
		return true, err
	}
	return s.add(ctx, in)
}

// named returns the images of an archive that have the wanted name: all, if none has names to choose by. Those
// with one name are for several platforms.
func named[T any](all []T, want string, names func(T) []string) ([]T, error) {
	wanted, wantErr := spec.CheckReference("", want)
	var found []T
	others := map[string]bool{}
	for _, x := range all {
		for _, n := range names(x) {
			if r, err := spec.CheckReference("", n); n != "" && n == want || err == nil && wantErr == nil && r == wanted {
				found = append(found, x)
				break
			}
			others[n] = n != ""
		}
	}
	delete(others, "")
	switch {
	case len(found) > 0:
		return found, nil
	case len(all) > 1 && len(others) > 1:
		return nil, refuseName(want, fmt.Sprintf("must be one of %s: the archive has several images", spec.Quote(strings.Join(slices.Sorted(maps.Keys(others)), ", "))))
	}
	return all, nil
}

// setName gives the image the name that the caller wants, else the first in the archive that is more than a tag.
func (in *incoming) setName(want string, archived []string) (err error) {
	if in.shown = want; want == "" {
		i := slices.IndexFunc(archived, func(n string) bool { return strings.ContainsAny(n, ":/") })
		if i < 0 {
			return refuseName(want, "must be given, because the archive does not name the image")
		}
		in.shown = archived[i]
	}
	if in.name, err = spec.CheckReference("image", in.shown); err == nil && in.req.Allow != nil {
		err = in.req.Allow(in.name.String())
	}
	return err
}

// refuseName refuses the name that an import asks for.
func refuseName(name, rule string) error {
	return fmt.Errorf("%w: %w", ErrRefused, &spec.FieldError{Field: "name", Value: spec.Quote(name), Rule: rule})
}

// savedImage is an image in the manifest.json of "docker save".
type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// importSaved imports from an archive of "docker save". Its images have no manifest, so they get one.
func (s *Store) importSaved(ctx context.Context, open bundle, all []savedImage, r Request) (Image, error) {
	in, want, err := s.incoming(r)
	if err != nil {
		return Image{}, err
	}
	chosen, err := named(all, r.Reference, func(x savedImage) []string { return x.RepoTags })
	if err != nil {
		return Image{}, err
	}
	image := chosen[0]
	if err := in.setName(r.Reference, image.RepoTags); err != nil {
		return Image{}, err
	}
	config, err := open.read(path.Clean(image.Config), maxDocument)
	if err != nil {
		return Image{}, err
	}
	files := map[v1.Hash]string{}
	var layers []v1.Descriptor
	for _, name := range image.Layers[:min(len(image.Layers), spec.MaxLayers+1)] { // one too many is refused below
		d, err := open.describe(ctx, path.Clean(name))
		if err != nil {
			return Image{}, err
		}
		files[d.Digest] = path.Clean(name)
		layers = append(layers, d)
	}
	if err := in.describe(newManifest(config, layers...), config, want); err != nil {
		return Image{}, err
	}
	in.open = func(_ context.Context, d v1.Descriptor, _ func(int64)) (io.ReadCloser, error) {
		return open.verified(files[d.Digest], d) // the file may have changed since
	}
	return s.add(ctx, in)
}

// describe computes the descriptor of a layer.
func (open bundle) describe(ctx context.Context, name string) (v1.Descriptor, error) {
	f, err := open(name)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	defer f.Close()
	start := bytes.Buffer{}
	v := newVerifier(f, v1.Descriptor{})
	if _, err = io.CopyN(&start, v, 4); err == nil || errors.Is(err, io.EOF) {
		_, err = io.Copy(io.Discard, untilDone{ctx, v})
	}
	return v1.Descriptor{MediaType: layerType(start.Bytes()), Digest: v.hash(), Size: v.n}, err
}

// newManifest makes the manifest of an image that comes without one.
func newManifest(config []byte, layers ...v1.Descriptor) []byte {
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: layers,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: hexDigest(sha256Of(config)), Size: int64(len(config))}}
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // it has no value that JSON lacks
	}
	return text
}

// importRoot makes an image of one layer from the archive of a root file system. size is 0 if it is not known.
func (s *Store) importRoot(ctx context.Context, archive io.Reader, size int64, kind types.MediaType, r Request) (img Image, err error) {
	in, want, err := s.incoming(r)
	if err != nil {
		return Image{}, err
	}
	if r.Reference == "" {
		return Image{}, refuseName(r.Reference, "must be given, because this is taken for a root file system; an archive of images must not be compressed")
	}
	if err := in.setName(r.Reference, nil); err != nil {
		return Image{}, err
	}
	if in.maxBytes, err = s.allowance(in, size); err != nil {
		return Image{}, err
	}
	defer s.begin(ctx, &err, "")()
	blob := newVerifier(archive, v1.Descriptor{})
	rec, err := s.unpack(ctx, Layer{Blob: blob, Size: size, MaxBytes: in.maxBytes,
		Progress: func(n int64) { in.report(Progress{Step: "unpack", Done: n, Total: size}) }}, "")
	if err != nil {
		return Image{}, err
	}
	if rec.Bundle {
		return Image{}, fmt.Errorf("%w: its root has the documents of an archive of images, not of a root file system: import that archive without compression", ErrRefused)
	}
	config, err := json.Marshal(v1.ConfigFile{OS: want.OS, Architecture: want.Architecture, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{{Algorithm: "sha256", Hex: rec.ID}}}})
	if err != nil {
		return Image{}, err
	}
	if err := in.describe(newManifest(config, v1.Descriptor{MediaType: kind, Digest: blob.hash(), Size: blob.n}), config, want); err != nil {
		return Image{}, err
	}
	if err := s.record(rec, origin{blob.hash().Hex, r.Tenant}); err != nil {
		return Image{}, err
	}
	return s.finish(in, []Unpacked{*rec})
}

// importTree makes an image of one layer from a directory that is a root file system, and in which nothing is
// mounted. Symlinks are not followed; each hard link becomes a file.
func (s *Store) importTree(ctx context.Context, root *os.Root, r Request) (Image, error) {
	out, in := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		w := tar.NewWriter(in)
		in.CloseWithError(errors.Join(w.AddFS(tree{root.FS().(fs.ReadLinkFS)}), w.Close()))
	}()
	img, err := s.importRoot(ctx, out, 0, types.OCIUncompressedLayer, r)
	out.Close() // ends the writer, if it has not ended
	<-written
	return img, err
}

// tree is a directory without its devices, sockets and pipes, which archive/tar refuses.
type tree struct{ fs.ReadLinkFS }

// ReadDir makes tree an [fs.ReadDirFS].
func (t tree) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(t.ReadLinkFS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Type()&^(fs.ModeDir|fs.ModeSymlink) != 0 }), err
}
