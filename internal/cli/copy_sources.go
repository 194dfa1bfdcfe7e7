package cli

import (
	"archive/tar"
	"cmp"
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
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
)

// fromSession copies the session's file, symlink or directory at from to name in the sink. Sessions
// are not trusted: a name must not lead out of the sink.
func (j *copier) fromSession(ctx context.Context, from, name string, info apitypes.FileInfo, to sink) error {
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
		if strings.ContainsRune(info.Target, utf8.RuneError) {
			j.skip(from, "is a symlink to a name that is not UTF-8")
			return nil
		}
		return j.symlink(ctx, to, name, info.Target)
	case "dir":
	default:
		j.skip(from, "is a "+info.Type)
		return nil
	}
	if err := j.directory(ctx, to, name, mode); err != nil {
		return err
	}
	list, err := j.c.ListFiles(ctx, j.session, from)
	if err != nil {
		return j.failed(err)
	}
	if list.Truncated {
		return fmt.Errorf("session %s: directory %s: has more than %d entries: pack it with tar in the session first", j.session, spec.Quote(from), len(list.Files))
	}
	for _, e := range list.Files {
		if len(e.RawName) > 0 {
			e.Name = string(e.RawName) // not UTF-8
		}
		if e.Name == "" || e.Name == "." || e.Name == ".." || strings.ContainsAny(e.Name, "/\x00") {
			return fmt.Errorf("session %s: directory %s: an entry has the impossible name %s", j.session, spec.Quote(from), spec.Quote(e.Name))
		}
		if err := j.fromSession(ctx, path.Join(from, e.Name), path.Join(name, e.Name), e, to); err != nil {
			return err
		}
	}
	return nil
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
func (j *copier) fromHost(ctx context.Context, from, name string, info fs.FileInfo, to sink) error {
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
	case fs.ModeDir:
	default:
		j.skip(from, "is a "+typeName(info.Mode()))
		return nil
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

func typeName(m fs.FileMode) string {
	switch m.Type() {
	case fs.ModeNamedPipe:
		return "fifo"
	case fs.ModeSocket:
		return "socket"
	}
	return "device"
}

// fromTar copies the entries of a tar stream. No name leads out of the destination.
func (j *copier) fromTar(ctx context.Context, r *tar.Reader, to sink) error {
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("stdin: must be a tar stream, as the destination is a directory: %w", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		mode := fs.FileMode(h.Mode) & fs.ModePerm
		switch {
		case name == "":
		case h.Typeflag == tar.TypeDir:
			err = j.directory(ctx, to, name, mode)
		case h.Typeflag == tar.TypeReg:
			err = j.file(ctx, to, name, cmp.Or(mode, 0o400), h.Size, r)
		case h.Typeflag == tar.TypeSymlink:
			err = j.symlink(ctx, to, name, h.Linkname)
		case h.Typeflag == tar.TypeLink:
			j.skip(h.Name, "is a hard link to "+spec.Quote(h.Linkname))
		case h.Typeflag != tar.TypeXGlobalHeader:
			j.skip(h.Name, "is neither file, directory nor symlink")
		}
		if err != nil {
			return err
		}
	}
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

func (j *copier) directory(ctx context.Context, to sink, name string, mode fs.FileMode) error {
	j.Directories++
	return to.dir(ctx, name, mode|0o700) // the copy writes into it
}

func (j *copier) symlink(ctx context.Context, to sink, name, target string) error {
	j.Symlinks++
	return to.symlink(ctx, name, target)
}
