package skills

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Modes of new files and directories, independent of the umask. Boxes see them through a mount in
// which the files belong to them.
const (
	fileMode = 0o644
	execMode = 0o755
	dirMode  = 0o755
)

// create writes a file that must not exist yet. If it fails, it removes the file.
func create(root *os.Root, name string, mode fs.FileMode, content io.Reader) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err != nil {
		_ = root.Remove(name)
	}
	return err
}

// makeDirs creates the directory name and its parents, as far as they are missing.
func makeDirs(root *os.Root, name string) error {
	_, err := makeMissing(root, name)
	return err
}

// makeMissing is makeDirs and returns the directories that it created, even if it fails.
func makeMissing(root *os.Root, name string) (made []string, err error) {
	for i := range len(name) + 1 {
		if i < len(name) && name[i] != '/' || name == "." {
			continue
		}
		err := makeDir(root, name[:i])
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return made, err
		}
		made = append(made, name[:i])
	}
	return made, nil
}

func makeDir(root *os.Root, name string) error {
	if err := root.Mkdir(name, dirMode); err != nil {
		return err
	}
	dir, err := openDir(root, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Chmod(dirMode)
}

// staged is the temporary name of a file that is being written to a package.
const staged = ".boxd-writing"

// replace writes the file name in a package atomically. A box that interferes can only damage its
// own package.
func replace(pkg *os.Root, name string, content string) error {
	name, mode, err := destination(pkg, name)
	if err != nil {
		return err
	}
	if err := removeTree(context.Background(), pkg, staged); err != nil {
		return err
	}
	if err := create(pkg, staged, mode, strings.NewReader(content)); err != nil {
		return err
	}
	if err := pkg.Rename(staged, name); err != nil {
		_ = pkg.Remove(staged)
		return err
	}
	return nil
}

// maxLinks bounds the symlinks that are followed in a row, as in os.Root.
const maxLinks = 8

// destination resolves name if it is a symlink, within pkg, and returns the mode for a file there.
func destination(pkg *os.Root, name string) (string, fs.FileMode, error) {
	for range maxLinks {
		st, err := pkg.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return name, fileMode, nil
		case err != nil:
			return "", 0, err
		case st.Mode().IsRegular() && st.Mode()&0o111 != 0:
			return name, execMode, nil
		case st.Mode().IsRegular():
			return name, fileMode, nil
		case st.Mode().Type() != fs.ModeSymlink:
			return "", 0, errNotRegular
		}
		to, err := pkg.Readlink(name)
		if err != nil {
			return "", 0, err
		}
		if name = path.Join(path.Dir(name), to); path.IsAbs(to) || !fs.ValidPath(name) {
			return "", 0, errEscapes
		}
	}
	return "", 0, errEscapes
}
