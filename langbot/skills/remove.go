package skills

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/internal/linux"
)

// sweepTime bounds how long an action deletes what nobody can see any more. A box that has
// a directory mounted that was deleted can go on writing to it; what is left is for the
// next action.
const sweepTime = 2 * time.Second

// staging makes an empty directory for what is on its way in. It is there only while an
// action is under way: what a crash left is deleted by the next one.
func (t *tree) staging() (string, error) {
	name, err := t.privateName()
	if err == nil {
		err = makeDirs(t.root, name)
	}
	return name, err
}

// privateName is a name in the private directory that is free.
func (t *tree) privateName() (string, error) {
	return path.Join(private, strings.ToLower(rand.Text())), makeDirs(t.root, private)
}

// discard deletes name: at once from where it is, whole, and then its contents. Where
// there is no room for that, its contents are deleted where they are.
func (t *tree) discard(ctx context.Context, name string) error {
	err := t.moveOut(name)
	if diskroom.IsFull(err) {
		return removeTree(context.WithoutCancel(ctx), t.root, name)
	}
	if err == nil {
		t.tidy(ctx)
	}
	return err
}

// moveOut moves name into the private directory.
func (t *tree) moveOut(name string) error {
	to, err := t.privateName()
	if err != nil {
		return err
	}
	err = t.root.Rename(name, to)
	if errors.Is(err, unix.EACCES) { // moving a directory writes its ".."
		if err := unlock(t.root, name); err != nil {
			return err
		}
		err = t.root.Rename(name, to)
	}
	return err
}

// tidy sweeps at the end of an action, also of one that was given up. What stays is for
// the next one, which tells the log.
func (t *tree) tidy(ctx context.Context) { _ = t.sweep(context.WithoutCancel(ctx)) }

// sweep deletes the private directory with what is in it.
func (t *tree) sweep(ctx context.Context) error {
	if _, err := t.root.Lstat(private); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return removeTree(ctx, t.root, private)
}

// maxDepth is how deep a deletion goes: a descriptor is open per level.
const maxDepth = 64

// removeTree deletes name with all that is in it, while a box may still write to it, for
// sweepTime at most. One that does not exist is no error.
func removeTree(ctx context.Context, root *os.Root, name string) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	r := removal{ctx: ctx}
	return r.remove(root, name, 0)
}

type removal struct {
	ctx context.Context
	top *os.Root // what is to be deleted
}

// remove deletes name beneath dir, which is so deep.
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

// moveUp moves a directory that is too deep to the top, where it is found once more. It
// goes by descriptors: a box can put a symlink, which leads to another's, in place of any
// directory on the way.
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

// empty deletes what is in the directory name beneath dir, whatever its mode is.
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
		names, err := someNames(sub)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, n := range names {
			if err := r.remove(sub, n, depth+1); err != nil {
				return err
			}
		}
	}
}

// someNames returns some of the names in the directory dir, none if it is empty.
func someNames(dir *os.Root) ([]string, error) {
	d, err := openDir(dir, ".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(256)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// unlock gives the owner all rights to the directory name beneath dir. The mode is set
// through a descriptor, which can be had without rights to the directory.
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
