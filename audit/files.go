package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// rotated returns the name of the full file with a number.
func rotated(path string, number int) string { return path + "." + strconv.Itoa(number) }

// numbers lists the numbers of the rotated files of path, oldest first. It ignores files
// with other suffixes.
func numbers(path string) ([]int, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var list []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		// Atoi also accepts "+1" and "01", which are no suffixes of rotated.
		if n, err := strconv.Atoi(digits); ok && err == nil && n > 0 && strconv.Itoa(n) == digits {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list, nil
}

// openLocked opens or creates the file at path for appending, and locks it. O_NONBLOCK
// keeps it from waiting at a FIFO; O_NOFOLLOW protects the target of a symlink.
func openLocked(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockRegular(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockRegular locks f, which must be a regular file, and makes it private.
func lockRegular(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return errors.New("is not a regular file")
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("locking: another process writes this log: %w", os.NewSyscallError("flock", err))
	}
	if st.Mode().Perm() != 0o600 {
		return f.Chmod(0o600)
	}
	return nil
}

// syncDir makes a change of names in the directory of path durable.
func syncDir(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// rotateLocked renames the full file, starts the next one with an anchor, and deletes old
// files. It can be called again after a failure at any step.
func (l *Log) rotateLocked() error {
	if l.file != nil {
		if err := l.takeBackLocked(); err != nil {
			return err
		}
		if err := l.file.Sync(); err != nil {
			return err
		}
		if err := l.file.Truncate(l.size); err != nil { // frees the reserve
			return err
		}
		if err := os.Rename(l.path, rotated(l.path, l.number)); err != nil {
			return err
		}
		// The content is synced, so closing loses nothing.
		l.file.Close()
		l.file, l.size = nil, 0
		l.disk.Forget()
	}
	f, err := openLocked(l.path, 0)
	if err != nil {
		return err
	}
	l.file, l.number = f, l.number+1
	if err := l.anchorLocked(); err != nil {
		// The file must not be used without its anchor: start it again next time.
		l.file, l.number = nil, l.number-1
		return errors.Join(err, f.Truncate(0), f.Close())
	}
	l.deleteOld()
	return syncDir(l.path)
}

// anchorLocked starts the current file.
func (l *Log) anchorLocked() error {
	l.oldest = max(l.oldest, l.number-l.options.Keep)
	return l.writeRecordLocked(nil, record{Kind: kindAnchor, Anchor: &anchor{File: l.number, Oldest: l.oldest}})
}

// deleteOld deletes the files that are too old. The next rotation retries what fails.
func (l *Log) deleteOld() {
	list, _ := numbers(l.path)
	for _, n := range list {
		if n < l.oldest {
			_ = os.Remove(rotated(l.path, n))
		}
	}
}
