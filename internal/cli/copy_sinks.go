package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
)

// sink is the destination of a copy. Names are relative paths that stay within it. A size of -1 is
// unknown, a mode of 0 is the default.
type sink interface {
	file(ctx context.Context, name string, mode fs.FileMode, size int64, r io.Reader) error
	symlink(ctx context.Context, name, target string) error
}

// treeSink is a sink for directories too. "." is the directory that receives everything, which
// exists.
type treeSink interface {
	sink
	dir(ctx context.Context, name string, mode fs.FileMode) error
}

// hostSink is a directory of the host. No name or symlink leads out of it.
type hostSink struct{ root *os.Root }

func (s *hostSink) dir(_ context.Context, name string, mode fs.FileMode) error {
	if name == "." {
		return nil
	}
	err := s.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		if info, err := s.root.Lstat(name); err != nil || !info.IsDir() {
			return errors.Join(fmt.Errorf("%s on the host is in the way: it is not a directory", spec.Quote(name)), err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	return s.root.Chmod(name, mode)
}

func (s *hostSink) file(_ context.Context, name string, mode fs.FileMode, _ int64, r io.Reader) error {
	if err := s.clear(name, false); err != nil {
		return err
	}
	f, err := s.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the daemon broke it off, as it does beyond http.max_file: %w", err)
	}
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		// A part must not be taken for the whole.
		return errors.Join(fmt.Errorf("copying %s: %w", spec.Quote(name), err), s.root.Remove(name))
	}
	return nil
}

func (s *hostSink) symlink(_ context.Context, name, target string) error {
	if err := s.clear(name, true); err != nil {
		return err
	}
	return s.root.Symlink(target, name)
}

// clear makes room for a file or symlink. It removes a symlink of that name, and a file if file is
// true. Anything else of that name is an error.
func (s *hostSink) clear(name string, file bool) error {
	info, err := s.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch kind := info.Mode().Type(); {
	case kind == fs.ModeDir:
		return fmt.Errorf("%s on the host is in the way: it is a directory", spec.Quote(name))
	case kind != 0 && kind != fs.ModeSymlink:
		return fmt.Errorf("%s on the host is in the way: it is a %s", spec.Quote(name), typeName(info.Mode()))
	case kind == 0 && !file:
		return nil
	}
	return s.root.Remove(name)
}

// sessionSink is a directory of the copier's session, for a single file or symlink.
type sessionSink struct {
	j   *copier
	top string
}

func (s sessionSink) file(ctx context.Context, name string, mode fs.FileMode, _ int64, r io.Reader) error {
	var o client.WriteOptions
	if mode != 0 {
		o.Mode = fmt.Sprintf("%04o", mode)
	}
	if _, err := s.j.c.WriteFile(ctx, s.j.session, path.Join(s.top, name), r, o); err != nil {
		return s.j.failed(err)
	}
	return nil
}

func (s sessionSink) symlink(ctx context.Context, name, target string) error {
	if err := s.j.c.Symlink(ctx, s.j.session, path.Join(s.top, name), target); err != nil {
		return s.j.failed(err)
	}
	return nil
}

// tarSink is a tar stream. All its entries have the time of the copy.
type tarSink struct {
	w    *tar.Writer
	time time.Time
}

func (s tarSink) dir(_ context.Context, name string, mode fs.FileMode) error {
	if name == "." {
		return nil
	}
	return s.w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(mode), ModTime: s.time})
}

func (s tarSink) file(_ context.Context, name string, mode fs.FileMode, size int64, r io.Reader) error {
	if err := s.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode), Size: size, ModTime: s.time}); err != nil {
		return err
	}
	n, err := io.CopyN(s.w, r, size) // what was added meanwhile is left out
	if err == io.EOF {
		return fmt.Errorf("file %s: became shorter while it was being copied: %d of %d bytes are left", spec.Quote(name), n, size)
	}
	return err
}

func (s tarSink) symlink(_ context.Context, name, target string) error {
	return s.w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: s.time})
}
