package workspace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Delete deletes the workspace id of tenant with its content. The name is free at once for
// a new workspace; if the rest fails or ctx ends, the remains stay in the trash for
// [Store.Sweep]. Deleting a missing workspace does nothing. No box may have the workspace
// mounted.
func (s *Store) Delete(ctx context.Context, tenant, id string) error {
	name, err := s.trashed(tenant, id)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) { // no room for a name in the trash
		return s.deleteInPlace(ctx, tenant, id)
	}
	if err != nil || name == "" {
		return err
	}
	return s.empty(ctx, name)
}

// deleteInPlace deletes a workspace where it is, because the disk has no room to move it.
func (s *Store) deleteInPlace(ctx context.Context, tenant, id string) error {
	parent, err := openDir(s.root, encode(tenant))
	if err != nil {
		return fmt.Errorf("deleting workspace: %w", err)
	}
	defer parent.Close()
	r := removal{ctx: ctx, store: s}
	if err := r.remove(parent, encode(id), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deleting workspace: %w", err)
	}
	_ = linux.RmdirAt(s.root, encode(tenant))
	return nil
}

// Trash frees the name, as the first step of Delete does. A box may have the workspace
// mounted.
func (s *Store) Trash(tenant, id string) error {
	_, err := s.trashed(tenant, id)
	return err
}

// trashed moves a workspace to the trash and returns its name there, or "" if there is no
// such workspace.
func (s *Store) trashed(tenant, id string) (string, error) {
	parent, err := openDir(s.root, encode(tenant))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("deleting workspace: %w", err)
	}
	defer parent.Close()
	name, err := s.discard(parent, encode(id))
	if err != nil {
		return "", fmt.Errorf("deleting workspace: %w", err)
	}
	_ = linux.RmdirAt(s.root, encode(tenant)) // fails unless this was the tenant's last workspace
	return name, nil
}

// Sweep deletes the content of the trash.
func (s *Store) Sweep(ctx context.Context) error {
	return s.empty(ctx, "")
}

// discard moves name beneath dir to the trash and returns its name there, or "" if it does
// not exist.
func (s *Store) discard(dir *os.File, name string) (string, error) {
	to := strings.ToLower(rand.Text())
	err := linux.RenameAt(dir, name, s.trash, to)
	if errors.Is(err, unix.EACCES) { // moving a directory changes its ".."
		if err := unlock(dir, name); err != nil {
			return "", err
		}
		err = linux.RenameAt(dir, name, s.trash, to)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if _, e := linux.StatAt(dir, name); errors.Is(e, fs.ErrNotExist) {
			return "", nil
		} // otherwise the trash is gone
	}
	if err != nil {
		return "", fmt.Errorf("moving to the trash: %w", err)
	}
	return to, nil
}

// empty deletes name in the trash, or everything in it if name is "". Directories that are
// nested too deep are moved up into the trash on the way, so it continues until none of
// these is left.
func (s *Store) empty(ctx context.Context, name string) error {
	work := []string{name}
	if name == "" {
		dir, err := openDir(s.root, trashName) // a descriptor with its own position
		if err != nil {
			return err
		}
		work, err = dir.Readdirnames(-1)
		dir.Close()
		if err != nil {
			return err
		}
	}
	var errs []error
	for len(work) > 0 {
		r := removal{ctx: ctx, store: s}
		err := r.remove(s.trash, work[0], 0)
		if errors.Is(err, fs.ErrPermission) && s.Reclaim != nil {
			if err = s.Reclaim(ctx, filepath.Join(s.path, trashName)); err == nil {
				err = r.remove(s.trash, work[0], 0)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("emptying the trash: %w", err))
		}
		work = append(work[1:], r.moved...)
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
	}
	return errors.Join(errs...)
}

// removal deletes one tree.
type removal struct {
	ctx   context.Context
	store *Store
	moved []string // names in the trash of what was moved out of this tree
}

// remove deletes name beneath dir. It holds one descriptor per level, at most maxDepth.
func (r *removal) remove(dir *os.File, name string, depth int) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	err := linux.Retry(func() error { return unix.Unlinkat(int(dir.Fd()), name, 0) })
	switch {
	case err == nil:
		return nil
	case err != unix.EISDIR:
		return &os.PathError{Op: "unlink", Path: dir.Name() + "/" + name, Err: err}
	}
	if linux.RmdirAt(dir, name) == nil {
		return nil
	}
	if depth >= maxDepth {
		moved, err := r.store.discard(dir, name)
		if moved != "" {
			r.moved = append(r.moved, moved)
		}
		return err
	}
	if err := r.removeContents(dir, name, depth); err != nil {
		return err
	}
	return linux.RmdirAt(dir, name)
}

// removeContents deletes the content of the directory name beneath dir, whatever its mode.
func (r *removal) removeContents(dir *os.File, name string, depth int) error {
	if err := unlock(dir, name); err != nil {
		return err
	}
	d, err := openDir(dir, name)
	if err != nil {
		return err
	}
	defer d.Close()
	var errs []error
	for {
		names, err := d.Readdirnames(256)
		for _, n := range names {
			if err := r.remove(d, n, depth+1); err != nil {
				errs = append(errs, err)
			}
			if len(errs) > maxErrors || r.ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
		if errors.Is(err, io.EOF) {
			return errors.Join(errs...)
		}
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
}

// maxErrors is the number of errors after which the deletion of a directory gives up.
const maxErrors = 10

// unlock gives the owner all rights to the directory name beneath dir. It sets the mode
// through a descriptor, because a chmod by name would follow a symlink.
func unlock(dir *os.File, name string) error {
	f, err := linux.Openat2(dir, name, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := linux.Fstat(f)
	if err != nil || st.Mode&mode == mode {
		return err
	}
	return os.Chmod(linux.FdPath(f), mode)
}
