package cli

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
)

// fromSession copies the session's file, symlink or directory at from to name in the sink.
func (j *copier) fromSession(ctx context.Context, from, name string, info apitypes.FileInfo, to treeSink) error {
	mode := permissions(info.Mode)
	switch info.Type {
	case "file":
		r, err := j.c.ReadFile(ctx, j.session, from, 0, 0)
		if err != nil {
			return j.failed(err)
		}
		defer r.Close()
		return j.file(ctx, to, name, mode, info.Size, r)
	case "symlink":
		return j.symlink(ctx, to, name, info.Target)
	}
	if err := j.directory(ctx, to, name, mode); err != nil {
		return err
	}
	r, err := j.c.PackFiles(ctx, j.session, from)
	if err != nil {
		return j.failed(err)
	}
	defer r.Close()
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, r) // a cut stream is an error, an archive without its end is none
			return err
		}
		if err != nil {
			return fmt.Errorf("session %s: directory %s: reading the archive: %w", j.session, spec.Quote(from), err)
		}
		if kind, file, ok := strings.Cut(h.PAXRecords[apitypes.LeftOutRecord], " "); ok && h.Typeflag == tar.TypeXGlobalHeader {
			j.skip(path.Join(from, file), "is a "+printable(kind))
			continue
		}
		// Sessions are not trusted: a name must not lead out of the sink.
		entry := strings.TrimSuffix(h.Name, "/")
		if !fs.ValidPath(strings.ToValidUTF8(entry, "?")) || entry == "." || strings.Contains(entry, "\x00") {
			return fmt.Errorf("session %s: directory %s: an entry has the impossible name %s", j.session, spec.Quote(from), spec.Quote(h.Name))
		}
		if err := j.fromTarEntry(ctx, h, path.Join(name, entry), archive, to); err != nil {
			return err
		}
	}
}

// permissions parses permission bits in octal.
func permissions(text string) fs.FileMode {
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil {
		return 0o600
	}
	return fs.FileMode(n) & fs.ModePerm
}

// fromHost copies the host's file, symlink or directory at from to name in the sink.
func (j *copier) fromHost(ctx context.Context, from, name string, info fs.FileInfo, to treeSink) error {
	if !info.IsDir() {
		return j.oneFromHost(ctx, from, name, info, to)
	}
	if err := j.directory(ctx, to, name, info.Mode().Perm()); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if err := j.fromHost(ctx, filepath.Join(from, e.Name()), path.Join(name, e.Name()), info, to); err != nil {
			return err
		}
	}
	return nil
}

// oneFromHost is fromHost for anything but a directory.
func (j *copier) oneFromHost(ctx context.Context, from, name string, info fs.FileInfo, to sink) error {
	switch info.Mode().Type() {
	case 0:
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		mode := cmp.Or(info.Mode().Perm(), 0o400) // 0 stands for the default
		return j.file(ctx, to, name, mode, info.Size(), f)
	case fs.ModeSymlink:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return j.symlink(ctx, to, name, target)
	}
	j.skip(from, "is a "+typeName(info.Mode()))
	return nil
}

func typeName(m fs.FileMode) string {
	switch m.Type() {
	case fs.ModeNamedPipe:
		return "fifo"
	case fs.ModeSocket:
		return "socket"
	}
	return "device"
}

// gunzipped returns the content of r, decompressed if it begins as gzip does. It reads nothing yet.
func gunzipped(r io.Reader) io.Reader { return &gunzip{r: bufio.NewReader(r)} }

type gunzip struct {
	r *bufio.Reader
	z io.Reader // nil before the first read
}

func (g *gunzip) Read(p []byte) (int, error) {
	if g.z == nil {
		g.z = g.r
		if magic, _ := g.r.Peek(2); string(magic) == "\x1f\x8b" {
			z, err := gzip.NewReader(g.r)
			if err != nil {
				return 0, err
			}
			g.z = z
		}
	}
	return g.z.Read(p)
}

// fromTar copies the entries of a tar stream. No name leads out of the destination.
func (j *copier) fromTar(ctx context.Context, r *tar.Reader, to treeSink) error {
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("stdin: must be a tar stream, as the destination is a directory: %w", err)
		}
		if name := strings.TrimPrefix(path.Clean("/"+h.Name), "/"); name != "" {
			if err := j.fromTarEntry(ctx, h, name, r, to); err != nil {
				return err
			}
		}
	}
}

// fromTarEntry copies an entry of a tar stream to name in the sink.
func (j *copier) fromTarEntry(ctx context.Context, h *tar.Header, name string, content io.Reader, to treeSink) error {
	mode := fs.FileMode(h.Mode) & fs.ModePerm
	switch h.Typeflag {
	case tar.TypeDir:
		return j.directory(ctx, to, name, mode)
	case tar.TypeReg:
		return j.file(ctx, to, name, cmp.Or(mode, 0o400), h.Size, content)
	case tar.TypeSymlink:
		return j.symlink(ctx, to, name, h.Linkname)
	case tar.TypeLink:
		j.skip(h.Name, "is a hard link to "+spec.Quote(h.Linkname))
	case tar.TypeXGlobalHeader:
	default:
		j.skip(h.Name, "is neither file, directory nor symlink")
	}
	return nil
}

// unpack has the daemon unpack, below the session's directory top, what fill copies to a sink.
func (j *copier) unpack(ctx context.Context, top string, fill func(treeSink) error) error {
	r, w := io.Pipe()
	filled := make(chan error, 1)
	go func() {
		archive := tar.NewWriter(w)
		err := fill(tarSink{archive, time.Now()})
		if err == nil {
			err = archive.Close()
		}
		w.CloseWithError(err)
		filled <- err
	}()
	_, err := j.c.UnpackFiles(ctx, j.session, top, r, client.UnpackOptions{})
	r.Close()
	if err != nil {
		// fill may be waiting for a stdin on which nothing comes, so only what it has said
		// already counts.
		select {
		case failed := <-filled:
			if failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
				return failed
			}
		default:
		}
		return j.failed(err)
	}
	return <-filled
}

// file creates a file in the sink. A size of -1 is unknown.
func (j *copier) file(ctx context.Context, to sink, name string, mode fs.FileMode, size int64, r io.Reader) error {
	counted := &countedReader{r: r, p: j.progress}
	if err := to.file(ctx, name, mode, size, counted); err != nil {
		return err
	}
	j.Files++
	j.Bytes += counted.n.Load()
	return nil
}

// countedReader counts the bytes read from a file. The HTTP client reads a body in its own
// goroutine, which can outlive a failed request.
type countedReader struct {
	r io.Reader
	p *progress
	n atomic.Int64
}

func (c *countedReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n.Add(int64(n))
	if c.p != nil {
		c.p.add(int64(n))
	}
	return n, err
}

func (j *copier) directory(ctx context.Context, to treeSink, name string, mode fs.FileMode) error {
	j.Directories++
	return to.dir(ctx, name, mode|0o700) // the copy writes into it
}

func (j *copier) symlink(ctx context.Context, to sink, name, target string) error {
	j.Symlinks++
	return to.symlink(ctx, name, target)
}
