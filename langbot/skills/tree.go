package skills

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
)

// private is a directory in the root of each tree for contents that are being added or deleted. It
// is not a skill, and boxes do not get it.
const private = ".boxd"

// tree is the tree of a namespace, held by a descriptor of its root. All names are relative to the
// root, cleaned, with "/".
type tree struct {
	root *os.Root // nil if there is no tree
	path string   // its path as clients know it
	names
}

func (s *Store) open(ctx context.Context, root Root, make bool) (*tree, error) {
	t := &tree{path: path.Clean(root.Path)}
	dir, err := root.Open(ctx, make)
	if errors.Is(err, fs.ErrNotExist) && !make {
		return t, nil
	}
	if err == nil && ctx.Err() != nil {
		dir.Close()
		return nil, ctx.Err()
	}
	if _, forClient := errors.AsType[*protocol.Error](err); forClient || ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		s.log.Error("opening the skills of a workspace", "namespace", root.Namespace, "error", err)
		return nil, refuse("The skills of this workspace cannot be opened: ask the operator to check the server's log")
	}
	defer dir.Close()
	if t.root, err = os.OpenRoot(linux.FdPath(dir)); err != nil {
		return nil, fmt.Errorf("opening the skills of this workspace: %w", reason(err))
	}
	if err := t.sweep(ctx); err != nil {
		s.log.Warn("deleting the remains of skills", "namespace", root.Namespace, "error", err)
	}
	bad := func(entry string) {
		s.log.Warn("skills: an entry that is not a symlink protects no name", "namespace", root.Namespace, "file", t.abs(inRegister(entry)))
	}
	if err := t.readRegister(bad); err != nil {
		t.close()
		return nil, fmt.Errorf("reading the names of this workspace's skills: %w", reason(err))
	}
	return t, nil
}

func (t *tree) close() {
	if t.root != nil {
		t.root.Close()
	}
}

// abs returns the path of rel as clients know it.
func (t *tree) abs(rel string) string { return path.Join(t.path, rel) }

// rel returns the name in the tree for a client's path p.
func (t *tree) rel(field, p string) (string, error) {
	clean := path.Clean(p)
	outside := refuse("%s must stay within the Workspace skill root", field)
	if !path.IsAbs(p) {
		return "", outside
	}
	rel, ok := pathin.Rel(clean, t.path)
	if !ok || IsPrivate(rel) {
		return "", outside
	}
	return rel, nil
}

// A box can replace anything in its tree at any moment. The functions below are safe against that.
// They use O_NONBLOCK because opening a FIFO, or a file on which somebody holds a lease
// (fcntl(2)), would block.

// subtree opens the directory name as a root of its own, which nothing leads out of.
func subtree(root *os.Root, name string) (*os.Root, error) {
	dir, err := openDir(root, name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return os.OpenRoot(linux.FdPath(dir))
}

func openDir(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// errTooLong means that a file or directory exceeds the bound up to which it is read.
var errTooLong = errors.New("too long")

// readFile reads a regular file of at most limit bytes.
func readFile(root *os.Root, name string, limit int64) ([]byte, fs.FileInfo, error) {
	f, st, err := openFile(root, name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if st.Size() > limit {
		return nil, nil, errTooLong
	}
	p, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, nil, err
	}
	if int64(len(p)) > limit {
		return nil, nil, errTooLong
	}
	return p, st, nil
}

// errNotRegular means that a name is a directory, device, FIFO or socket instead of a file.
var errNotRegular = errors.New("not a regular file")

// openFile opens a regular file for reading.
func openFile(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	// Check the type first: merely opening a device can have effects.
	if st, err := root.Stat(name); err != nil {
		return nil, nil, err
	} else if !st.Mode().IsRegular() {
		return nil, nil, errNotRegular
	}
	f, err := root.OpenFile(name, unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// readNames returns the names in a directory, sorted. If there are more than limit, it returns some
// of them with errTooLong.
func readNames(root *os.Root, name string, limit int) ([]string, error) {
	dir, err := openDir(root, name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(limit + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.Sort(names)
	if len(names) > limit {
		return names[:limit], errTooLong
	}
	return names, nil
}
