package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
)

// write makes a file of the session.
func (j *copier) write(ctx context.Context, r io.Reader, p, mode string) error {
	info, err := j.c.WriteFile(ctx, j.session, p, r, client.WriteOptions{Mode: mode})
	if err != nil {
		return fmt.Errorf("%s:%s: %w", j.session, p, err)
	}
	j.Files++
	j.Bytes += info.Size
	return nil
}

// upload copies the host's file or directory at from to the session.
func (j *copier) upload(ctx context.Context, from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if there, err := j.c.StatFile(ctx, j.session, to); err == nil && there.Type == "dir" {
		to = path.Join(to, filepath.Base(absoluteOr(from)))
	} else if err == nil && info.IsDir() {
		return fmt.Errorf("%s:%s: is not a directory", j.session, to)
	}
	return j.uploadEntry(ctx, from, to, info)
}

// absoluteOr is the absolute form of name, so that "." has a base name.
func absoluteOr(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return name
}

func (j *copier) uploadEntry(ctx context.Context, from, to string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return j.uploadDir(ctx, from, to)
	case !info.Mode().IsRegular():
		j.skip(from, typeName(info.Mode()))
		return nil
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return j.write(ctx, f, to, fmt.Sprintf("%04o", info.Mode().Perm()))
}

func (j *copier) uploadDir(ctx context.Context, from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := j.c.Mkdir(ctx, j.session, apitypes.MkdirRequest{Path: to, Parents: true}); err != nil {
		return fmt.Errorf("%s:%s: %w", j.session, to, err)
	}
	j.Directories++
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if err := j.uploadEntry(ctx, filepath.Join(from, e.Name()), path.Join(to, e.Name()), info); err != nil {
			return err
		}
	}
	return nil
}

func typeName(m fs.FileMode) string {
	switch m.Type() {
	case fs.ModeSymlink:
		return "symlink"
	case fs.ModeNamedPipe:
		return "fifo"
	case fs.ModeSocket:
		return "socket"
	}
	return "device"
}
