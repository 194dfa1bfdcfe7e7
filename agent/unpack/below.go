package unpack

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// below are the layers below the one that is written, in the directories 0 (the lowest) to layers-1 of dir.
type below struct {
	dir    string
	layers int
	opaque []map[string]bool // of each layer, its opaque directories; read when they are first needed
}

// topmost finds what an overlay of the layers has under names. It returns the directory that has its last name,
// which the caller closes, and its status; -1 if there is nothing.
func (b *below) topmost(names []string) (int, *unix.Stat_t, error) {
	if err := b.readOpaque(); err != nil {
		return -1, nil, err
	}
	for i := b.layers - 1; i >= 0; i-- {
		fd, err := openDir(unix.AT_FDCWD, filepath.Join(b.dir, strconv.Itoa(i), "fs"))
		if err != nil {
			return -1, nil, err
		}
		last := false // the layers below this one are hidden
		for depth, name := range names {
			var st unix.Stat_t
			err = unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
			if err == nil && depth == len(names)-1 && !isWhiteout(&st) {
				return fd, &st, nil
			}
			sub := -1
			if err == nil {
				if st.Mode&unix.S_IFMT != unix.S_IFDIR { // it hides the lower layers' entry
					last = true
					break
				}
				last = last || b.opaque[i][strings.Join(names[:depth+1], "/")]
				sub, err = openDir(fd, name)
			}
			if err == unix.ENOENT {
				break
			}
			if err != nil {
				unix.Close(fd)
				return -1, nil, err
			}
			unix.Close(fd)
			fd = sub
		}
		unix.Close(fd)
		if last {
			break
		}
	}
	return -1, nil, nil
}

func (b *below) readOpaque() error {
	for i := len(b.opaque); i < b.layers; i++ {
		list, err := readOpaque(filepath.Join(b.dir, strconv.Itoa(i)))
		if err != nil {
			return err
		}
		set := make(map[string]bool, len(list))
		for _, name := range list {
			set[name] = true
		}
		b.opaque = append(b.opaque, set)
	}
	return nil
}

// readOpaque returns the list of opaque directories of a layer, sorted.
func readOpaque(layer string) ([]string, error) {
	f, err := os.OpenFile(filepath.Join(layer, "opaque"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	list := strings.FieldsFunc(string(content), func(r rune) bool { return r == 0 })
	slices.Sort(list)
	return list, nil
}

// readlink returns the target of a symlink, "" if there is none under names.
func (b *below) readlink(names []string) (string, error) {
	fd, st, err := b.topmost(names)
	if fd < 0 {
		return "", err
	}
	defer unix.Close(fd)
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", nil
	}
	return readlink(fd, names[len(names)-1])
}

// inherit returns the metadata of a directory, nil if there is none under names. If asked to, it copies the
// directory's attributes to the file that is open as to.
func (b *below) inherit(names []string, to int, xattrs bool) (*meta, error) {
	fd, st, err := b.topmost(names)
	if fd < 0 {
		return nil, err
	}
	defer unix.Close(fd)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, nil
	}
	m := &meta{owner{int(st.Uid), int(st.Gid)}, st.Mode & 0o1777, st.Mtim}
	if !xattrs {
		return m, nil
	}
	sub, err := openDir(fd, names[len(names)-1])
	if err != nil {
		return nil, err
	}
	defer unix.Close(sub)
	attributes, err := readXattrs(sub)
	for _, a := range attributes {
		if err = unix.Fsetxattr(to, a.name, a.value, 0); err != nil {
			break
		}
	}
	return m, err
}

// names returns what the top directories of all layers have, whiteouts included.
func (b *below) names() ([]string, error) {
	var all []string
	for i := range b.layers {
		fd, err := openDir(unix.AT_FDCWD, filepath.Join(b.dir, strconv.Itoa(i), "fs"))
		if err != nil {
			return nil, err
		}
		names, err := readNames(fd)
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
