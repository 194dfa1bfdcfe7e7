// Package trash deletes trees that hostile code has written, and may still be writing. It
// follows no symlink, and holds two directories open however deep a tree is.
package trash

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// ErrStopped interrupts a deletion. A later Discard of the directory's entries continues it.
var ErrStopped = errors.New("closing")

// Prefix begins each new name.
const Prefix = ".new-"

// NewName returns a name that no file has.
func NewName() string { return Prefix + strings.ToLower(rand.Text()) }

// Move moves name from dir to the trash, where Discard deletes it, and returns its new name.
func Move(dir *os.File, name string, trash *os.File) (moved string, err error) {
	moved = NewName()
	return moved, linux.RenameNew(dir, name, trash, moved)
}

// Empty continues the deletions of a killed process. What cannot be deleted stays.
func Empty(trash *os.File, stop <-chan struct{}, discard func(name string) error) {
	names, _ := linux.ReadNames(trash)
	for _, name := range names {
		select {
		case <-stop:
			return
		default:
			_ = discard(name)
		}
	}
}

// Discard deletes name from the directory trash, which only the caller and its like can enter.
// It moves directories that are not empty to the trash itself. Several processes may empty one
// trash at the same time. Closing stop ends it with ErrStopped.
func Discard(trash *os.File, name string, stop <-chan struct{}) error {
	for work := []string{name}; len(work) > 0; {
		last := len(work) - 1
		next := work[last]
		work = work[:last]
		err := linux.UnlinkAt(trash, next)
		if err == nil {
			continue // another process may have deleted it
		}
		if !errors.Is(err, unix.EISDIR) {
			return fmt.Errorf("deleting its content: %w", err)
		}
		more, err := discardDir(trash, next, stop)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("deleting its content: %w", err)
		}
		work = append(work, more...)
	}
	return nil
}

// discardDir deletes the directory name, and returns the new names of the directories that it
// has moved to the trash.
func discardDir(trash *os.File, name string, stop <-chan struct{}) (moved []string, err error) {
	dir, err := linux.OpenDirAt(trash, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// A box may create files as fast as they are deleted, until it has used up its inodes.
	// Most passes are for that case.
	for range 100 {
		for {
			select {
			case <-stop:
				return moved, ErrStopped
			default:
			}
			names, reading := dir.Readdirnames(1024)
			for _, entry := range names {
				err := linux.UnlinkAt(dir, entry)
				if errors.Is(err, unix.EISDIR) {
					if err = linux.RmdirAt(dir, entry); errors.Is(err, unix.ENOTEMPTY) {
						var to string
						if to, err = Move(dir, entry, trash); err == nil {
							moved = append(moved, to)
						}
					}
				}
				if err != nil && !errors.Is(err, unix.ENOENT) {
					return moved, err
				}
			}
			if reading != nil {
				break
			}
		}
		if err = linux.RmdirAt(trash, name); !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
		if _, err := dir.Seek(0, 0); err != nil {
			return moved, err
		}
	}
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return moved, err
}
