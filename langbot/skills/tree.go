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

// private is a directory in the root of each tree for what is on its way in or out. It
// is no skill, and boxes are not meant to have it.
const private = ".boxd"

// tree is the root of a namespace's tree, held by descriptor. All names are relative to
// it, cleaned, with "/".
type tree struct {
	root *os.Root // nil: there is no tree
	path string   // what clients know it as
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
	var told *protocol.Error
	if errors.As(err, &told) || ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		s.o.Logger.Error("opening the skills of a workspace", "namespace", root.Namespace, "error", err)
		return nil, refuse("The skills of this workspace cannot be opened: ask the operator to look into the server's log")
	}
	defer dir.Close()
	if t.root, err = os.OpenRoot(linux.FdPath(dir)); err != nil {
		return nil, fmt.Errorf("opening the skills of this workspace: %w", reason(err))
	}
	if err := t.sweep(ctx); err != nil {
		s.o.Logger.Warn("deleting what is left of skills", "namespace", root.Namespace, "error", err)
	}
	bad := func(entry string) {
		s.o.Logger.Warn("skills: what is no symlink protects no name", "namespace", root.Namespace, "file", t.abs(inRegister(entry)))
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

// abs is the name of what is at rel as clients know it.
func (t *tree) abs(rel string) string { return path.Join(t.path, rel) }

// rel is the name in the tree of what a client calls p.
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

// The calls below are for trees in which a box can put anything in place of what was
// there a moment ago. O_NONBLOCK: opening a FIFO, or a file with a lease of somebody
// else's (fcntl(2)), would wait.

// subtree opens the directory name as a root of its own: nothing leads out of it.
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

// errTooLong is a file or directory that has more than is read of it.
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

// errNotRegular is a directory, device, FIFO or socket in place of a file.
var errNotRegular = errors.New("not a regular file")

// openFile opens a regular file for reading.
func openFile(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	// Looked at first: even to open a device can do something.
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

// readNames returns the names in a directory, sorted; errTooLong if there are more than
// limit, with some of them.
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
