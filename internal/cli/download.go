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
	"strings"

	"github.com/boxd/boxd/api/apitypes"
)

// print writes one file of the session to stdout.
func (j *copier) print(ctx context.Context, p string) error {
	r, err := j.c.ReadFile(ctx, j.session, p, 0, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(j.app.Stdout, r)
	return err
}

// download copies the session's file or directory at from to the host. What is in
// a session is not trusted: nothing is made outside of the directory to copy to.
func (j *copier) download(ctx context.Context, from, to string) error {
	info, err := j.c.StatFile(ctx, j.session, from)
	if err != nil {
		return err
	}
	dir, name := filepath.Split(absoluteOr(to))
	if there, err := os.Stat(to); err == nil && there.IsDir() {
		dir, name = to, path.Base(from)
	}
	if name == "" || !filepath.IsLocal(name) || name == "." {
		return fmt.Errorf("destination %q: name the copy, %q is no name for it", to, name)
	}
	root, err := os.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	return j.downloadEntry(ctx, root, from, name, info)
}

func (j *copier) downloadEntry(ctx context.Context, root *os.Root, from, name string, info apitypes.FileInfo) error {
	switch info.Type {
	case "dir":
		return j.downloadDir(ctx, root, from, name)
	case "file":
		return j.downloadFile(ctx, root, from, name, info)
	}
	j.skip(from, info.Type)
	return nil
}

func (j *copier) downloadDir(ctx context.Context, root *os.Root, from, name string) error {
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	j.Directories++
	list, err := j.c.ListFiles(ctx, j.session, from)
	if err != nil {
		return fmt.Errorf("%s:%s: %w", j.session, from, err)
	}
	if list.Truncated {
		return fmt.Errorf("%s:%s: has more entries than the daemon lists; pack it with tar in the session first", j.session, from)
	}
	for _, e := range list.Files {
		if len(e.RawName) > 0 {
			e.Name = string(e.RawName) // not UTF-8
		}
		if e.Name == "" || e.Name == "." || e.Name == ".." || strings.ContainsAny(e.Name, "/\x00") {
			return fmt.Errorf("%s:%s: an entry has the impossible name %q", j.session, from, e.Name)
		}
		if err := j.downloadEntry(ctx, root, path.Join(from, e.Name), path.Join(name, e.Name), e); err != nil {
			return err
		}
	}
	return nil
}

func (j *copier) downloadFile(ctx context.Context, root *os.Root, from, name string, info apitypes.FileInfo) error {
	var mode fs.FileMode = 0o644
	if _, err := fmt.Sscanf(info.Mode, "%o", &mode); err != nil {
		mode = 0o644
	}
	r, err := j.c.ReadFile(ctx, j.session, from, 0, 0)
	if err != nil {
		return fmt.Errorf("%s:%s: %w", j.session, from, err)
	}
	defer r.Close()
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode.Perm())
	if err != nil {
		return err
	}
	n, err := io.Copy(f, r)
	err = errors.Join(err, f.Close())
	if err != nil {
		return fmt.Errorf("%s:%s: %w", j.session, from, err)
	}
	j.Files++
	j.Bytes += n
	return nil
}
