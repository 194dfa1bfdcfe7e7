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

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
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

// hostSink is a directory of the host that receives what comes from a box. It follows no symlink below itself, because
// an earlier copy may have left one that the box has made.
type hostSink struct{ top *os.File }

// openHostSink opens a directory of the user's, also by symlinks.
func openHostSink(path string) (*hostSink, error) {
	top, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	return &hostSink{top}, err
}

func (s *hostSink) close() { s.top.Close() }

// parent opens the directory of name, and returns the last part of name.
func (s *hostSink) parent(name string) (dir *os.File, base string, err error) {
	dir, err = linux.Openat2(s.top, path.Dir(name), unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("%s on the host is in the way: it leads through a symlink or a file", spec.Quote(path.Dir(name)))
	}
	return dir, path.Base(name), err
}

func (s *hostSink) dir(_ context.Context, name string, mode fs.FileMode) error {
	if name == "." {
		return nil
	}
	dir, base, err := s.parent(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := linux.MkdirAt(dir, base, 0o700); errors.Is(err, fs.ErrExist) {
		if st, err := linux.StatAt(dir, base); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return errors.Join(fmt.Errorf("%s on the host is in the way: it is not a directory", spec.Quote(name)), err)
		}
		return nil
	} else if err != nil {
		return err
	}
	made, err := linux.OpenDirAt(dir, base, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer made.Close()
	return made.Chmod(mode)
}

func (s *hostSink) file(_ context.Context, name string, mode fs.FileMode, _ int64, r io.Reader) error {
	dir, base, err := s.parent(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := s.clear(dir, base, name, false); err != nil {
		return err
	}
	f, err := linux.Openat2(dir, base, unix.OpenHow{
		Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC | unix.O_NOFOLLOW, Mode: 0o600, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the daemon broke it off, as it does beyond http.max_file: %w", err)
	}
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		// A part must not be taken for the whole.
		return errors.Join(fmt.Errorf("copying %s: %w", spec.Quote(name), err), linux.UnlinkAt(dir, base))
	}
	return nil
}

func (s *hostSink) symlink(_ context.Context, name, target string) error {
	dir, base, err := s.parent(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := s.clear(dir, base, name, true); err != nil {
		return err
	}
	return linux.SymlinkAt(target, dir, base)
}

// clear makes room for a file or symlink. It removes a symlink of that name, and a file if file is
// true. Anything else of that name is an error.
func (s *hostSink) clear(dir *os.File, base, name string, file bool) error {
	info, err := os.Lstat(linux.FdPath(dir) + "/" + base)
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
	return linux.UnlinkAt(dir, base)
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
