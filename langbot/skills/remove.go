package skills

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/internal/linux"
)

// sweepTime bounds how long an action spends on deleting contents that are invisible already. A box
// that has a deleted directory mounted can keep writing to it; the next action deletes the rest.
const sweepTime = 2 * time.Second

// staging creates an empty directory for new contents. It exists only during an action: after a
// crash, the next action deletes it.
func (t *tree) staging() (string, error) {
	name, err := t.privateName()
	if err == nil {
		err = makeDirs(t.root, name)
	}
	return name, err
}

// privateName returns an unused name in the private directory.
func (t *tree) privateName() (string, error) {
	return path.Join(private, strings.ToLower(rand.Text())), makeDirs(t.root, private)
}

// discard deletes name: it moves all of it into the private directory at once, and then deletes the
// contents. If the disk has no room for the move, it deletes the contents in place.
func (t *tree) discard(ctx context.Context, name string) error {
	to, err := t.privateName()
	if err == nil {
		err = t.root.Rename(name, to)
		if errors.Is(err, unix.EACCES) { // moving a directory writes its ".."
			if err = unlock(t.root, name); err == nil {
				err = t.root.Rename(name, to)
			}
		}
	}
	switch {
	case err == nil:
		t.tidy(ctx)
	case diskroom.IsFull(err):
		return removeTree(context.WithoutCancel(ctx), t.root, name)
	}
	return err
}

// tidy sweeps at the end of an action, even of a cancelled one. The next action deletes what is
// left, and logs errors.
func (t *tree) tidy(ctx context.Context) { _ = t.sweep(context.WithoutCancel(ctx)) }

// sweep deletes the private directory and its contents.
func (t *tree) sweep(ctx context.Context) error {
	if _, err := t.root.Lstat(private); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return removeTree(ctx, t.root, private)
}

// maxDepth bounds the depth of a deletion, which has a descriptor open per level.
const maxDepth = 64

// removeTree deletes name and its contents, although a box may write to it at the same time. It
// takes sweepTime at most. If name does not exist, there is nothing to do.
func removeTree(ctx context.Context, root *os.Root, name string) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	r := removal{ctx: ctx}
	return r.remove(root, name, 0)
}

type removal struct {
	ctx context.Context
	top *os.Root // the directory that is being deleted
}

// remove deletes name in dir, at the given depth.
func (r *removal) remove(dir *os.Root, name string, depth int) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	err := dir.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if st, e := dir.Lstat(name); e != nil || !st.IsDir() {
		return err
	}
	if depth >= maxDepth {
		return r.moveUp(dir, name)
	}
	if err := r.empty(dir, name, depth); err != nil {
		return err
	}
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// moveUp moves a directory that is too deep to the top, where the deletion meets it again. It uses
// descriptors, because a box can replace any directory of the path by a symlink.
func (r *removal) moveUp(dir *os.Root, name string) error {
	if err := unlock(dir, name); err != nil {
		return err
	}
	from, err := openDir(dir, ".")
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := openDir(r.top, ".")
	if err != nil {
		return err
	}
	defer to.Close()
	return linux.RenameAt(from, name, to, ".boxd-"+strings.ToLower(rand.Text()))
}

// empty deletes the contents of the directory name in dir, whatever its mode is.
func (r *removal) empty(dir *os.Root, name string, depth int) error {
	if err := unlock(dir, name); err != nil {
		return err
	}
	sub, err := subtree(dir, name)
	if err != nil {
		return err
	}
	defer sub.Close()
	if depth == 0 {
		r.top = sub
	}
	for {
		names, err := readNames(sub, ".", 256)
		if err != nil && !errors.Is(err, errTooLong) || len(names) == 0 { // errTooLong comes with some of the names
			return err
		}
		for _, n := range names {
			if err := r.remove(sub, n, depth+1); err != nil {
				return err
			}
		}
	}
}

// unlock gives the owner all rights to the directory name in dir. It sets the mode through an O_PATH
// descriptor, which needs no rights to the directory.
func unlock(dir *os.Root, name string) error {
	d, err := dir.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	if st, err := d.Stat(); err != nil || st.Mode().Perm()&0o700 == 0o700 {
		return err
	}
	return os.Chmod(linux.FdPath(d), 0o700)
}
