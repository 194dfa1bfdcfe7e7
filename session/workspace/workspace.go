// Package workspace creates, measures and deletes the directories that boxes mount as
// /workspace. It works by descriptor and never follows a symlink, because untrusted code has
// written their content.
//
// It does not know sessions, their owners or their lifetimes.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// trashName is the directory where workspaces wait for their deletion. No tenant's name
// starts with a dot.
const trashName = ".trash"

// mode of every directory created here: only the user of this process has access. Boxes see
// a workspace through a mount.
const mode = 0o700

// Store is a directory with one directory per tenant, which has one directory per
// workspace. It is safe for concurrent use, but its callers must serialise work on one
// workspace.
type Store struct {
	path        string
	root, trash *os.File
	// Reclaim changes the owner of everything below a directory of the store to the owner
	// of that directory, after other users of boxes wrote there. Nil means that this is not
	// possible. It is set before the first use.
	Reclaim func(ctx context.Context, path string) error
}

// Open opens the store at path, and creates it if it is missing.
func Open(path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	if err := os.MkdirAll(path, mode); err != nil {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	root, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	trash, err := makeDir(root, trashName)
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	return &Store{path: path, root: root, trash: trash}, nil
}

// Close closes the descriptors.
func (s *Store) Close() error { return errors.Join(s.trash.Close(), s.root.Close()) }

// Root is the absolute path of the store.
func (s *Store) Root() string { return s.path }

// Space returns the figures of the store's file system.
func (s *Store) Space() (unix.Statfs_t, error) { return linux.Fstatfs(s.root) }

// Path returns where the workspace id of tenant is, or would be. Different pairs have
// different paths.
func (s *Store) Path(tenant, id string) string {
	return filepath.Join(s.path, encode(tenant), encode(id))
}

// IsMissing reports whether there is certainly no workspace id of tenant.
func (s *Store) IsMissing(tenant, id string) bool {
	parent, err := openDir(s.root, encode(tenant))
	if err == nil {
		defer parent.Close()
		_, err = linux.StatAt(parent, encode(id))
	}
	return errors.Is(err, fs.ErrNotExist)
}

// Make creates the workspace id of tenant, at its Path. It does not touch an existing one.
func (s *Store) Make(tenant, id string) error {
	var err error
	for range 100 { // a concurrent Delete may remove the tenant's empty directory each time
		if err = s.makeWorkspace(tenant, id); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return err
}

func (s *Store) makeWorkspace(tenant, id string) error {
	parent, err := makeDir(s.root, encode(tenant))
	if err != nil {
		return err
	}
	defer parent.Close()
	dir, err := makeDir(parent, encode(id))
	if err != nil {
		return err
	}
	return dir.Close()
}

// DropEmpty removes the workspace id of tenant if it is empty.
func (s *Store) DropEmpty(tenant, id string) {
	parent, err := openDir(s.root, encode(tenant))
	if err != nil {
		return // there is none
	}
	defer parent.Close()
	_ = linux.RmdirAt(parent, encode(id)) // fails if it is not empty
	_ = linux.RmdirAt(s.root, encode(tenant))
}

// DropUnknown removes all empty workspaces for whose Path known returns false. It leaves
// alone what Make cannot have created.
func (s *Store) DropUnknown(known func(path string) bool) error {
	tenants, err := os.ReadDir(s.path)
	if err != nil {
		return fmt.Errorf("workspaces: %w", err)
	}
	var errs []error
	for _, tenant := range tenants {
		if !tenant.IsDir() || !isEncoded(tenant.Name()) {
			continue
		}
		if err := s.dropUnknown(tenant.Name(), known); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("workspaces: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) dropUnknown(tenant string, known func(path string) bool) error {
	parent, err := openDir(s.root, tenant)
	if err != nil {
		return err
	}
	defer parent.Close()
	names, err := parent.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if isEncoded(name) && !known(filepath.Join(s.path, tenant, name)) {
			_ = linux.RmdirAt(parent, name) // fails if it is not empty, or not a workspace
		}
	}
	_ = linux.RmdirAt(s.root, tenant)
	return nil
}

// makeDir opens the directory name beneath dir, and creates it if it is missing.
func makeDir(dir *os.File, name string) (*os.File, error) {
	if err := linux.MkdirAt(dir, name, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return openDir(dir, name)
}

// openDir opens the directory name, which may be a path, beneath dir for reading. It
// refuses symlinks, and a mount of another file system.
func openDir(dir *os.File, name string) (*os.File, error) {
	return linux.Openat2(dir, name, unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:@"

// encode returns name as a single component of a path, whatever bytes it has: each byte
// that is not in plain, and a dot at the start, becomes "%" and two hexadecimal digits.
// Valid names of tenants and sessions stay as they are.
func encode(name string) string {
	var out strings.Builder
	for i, c := range []byte(name) {
		if strings.IndexByte(plain, c) < 0 || (c == '.' && i == 0) {
			fmt.Fprintf(&out, "%%%02X", c)
			continue
		}
		out.WriteByte(c)
	}
	if out.Len() == 0 {
		return "%"
	}
	return out.String()
}

// isEncoded reports whether name can be a result of encode.
func isEncoded(name string) bool {
	return !strings.HasPrefix(name, ".") && !strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(plain+"%", r) })
}
