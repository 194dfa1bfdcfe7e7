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

// modes of what is made here, whatever the umask is: boxes see it through a mount in
// which it belongs to them.
const (
	fileMode = 0o644
	execMode = 0o755
	dirMode  = 0o755
)

// create writes a file that must not exist. On failure it is removed.
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

// makeDirs makes the directory name and those above it. What exists is left as it is.
func makeDirs(root *os.Root, name string) error {
	_, err := makeMissing(root, name)
	return err
}

// makeMissing is makeDirs, and says what it made, also when it fails.
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

// staged is the name of a file of a package that is being written.
const staged = ".boxd-writing"

// replace writes the file name in a package: whole, or not at all. A box that meddles
// gets what it deserves, in its own package.
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

// maxLinks is how many symlinks are followed one after the other, as in os.Root.
const maxLinks = 8

// destination follows the symlinks that name may be, within pkg, and says which mode
// the file there is to have.
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
