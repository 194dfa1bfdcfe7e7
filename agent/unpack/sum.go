package unpack

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/boxd/boxd/agent/unpack/proto"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// summer computes the sum of a layer: SHA-256 of a stream in which every number is a varint, and every string has
// its length in front. The stream begins with sumVersion. Each file follows: directories before their content,
// and the entries of a directory sorted by name. A file is
//
//	path from the top, mode with type, owner, group, seconds and nanoseconds of the modification time,
//	the number of user.* attributes, and each of them by name: name, value;
//	for all but directories: "" for the first name of a file, or that name, which ends the record;
//	then, of a regular file, size and bytes; of a symlink, the target; of a device, its number.
//
// At the end come the number of opaque directories, and each of them.
type summer struct {
	out   *bufio.Writer
	links map[uint64]string // by inode, the first name of files with several
	buf   []byte
	total proto.Sum
	at    string // path of the file that is read
}

const sumVersion = "boxd layer 1\n"

// sum reads the layer in a directory.
func sum(layer string) (proto.Sum, error) {
	layerFd, err := openDir(unix.AT_FDCWD, layer)
	if err != nil {
		return proto.Sum{}, fmt.Errorf("opening the layer %q: %w", layer, err)
	}
	defer unix.Close(layerFd)
	hash := sha256.New()
	s := &summer{
		out:   bufio.NewWriterSize(hash, 64<<10),
		links: make(map[uint64]string),
		buf:   make([]byte, streamBuffer),
	}
	s.out.WriteString(sumVersion)
	if err := s.file(layerFd, "fs", ""); err != nil {
		return proto.Sum{}, fmt.Errorf("file %s: %w", quote(s.at), err)
	}
	opaque, err := readOpaque(layer)
	if err != nil {
		return proto.Sum{}, fmt.Errorf("reading the list of opaque directories: %w", err)
	}
	s.number(int64(len(opaque)))
	for _, name := range opaque {
		s.text(name)
	}
	s.out.Flush()
	s.total.SHA256 = hex.EncodeToString(hash.Sum(nil))
	return s.total, nil
}

func (s *summer) number(n int64) { s.out.Write(binary.AppendVarint(s.out.AvailableBuffer(), n)) }

func (s *summer) text(t string) {
	s.number(int64(len(t)))
	s.out.WriteString(t)
}

// file adds the file name of the directory dirFd, which is path from the top, and all that it contains.
func (s *summer) file(dirFd int, name, path string) error {
	s.at = path
	var st unix.Stat_t
	if err := unix.Fstatat(dirFd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	s.total.Files++
	s.text(path)
	for _, n := range []int64{int64(st.Mode), int64(st.Uid), int64(st.Gid), st.Mtim.Sec, st.Mtim.Nsec} {
		s.number(n)
	}
	kind := st.Mode & unix.S_IFMT
	fd := -1
	if kind == unix.S_IFREG || kind == unix.S_IFDIR {
		var err error
		fd, err = unix.Openat(dirFd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		attributes, err := readXattrs(fd)
		if err != nil {
			return err
		}
		s.number(int64(len(attributes)))
		for _, a := range attributes {
			s.text(a.name)
			s.text(string(a.value))
		}
	} else {
		s.number(0) // the kernel has user.* attributes of files and directories only (xattr(7))
	}
	if kind == unix.S_IFDIR {
		names, err := readNames(fd)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := s.file(fd, name, strings.TrimPrefix(path+"/"+name, "/")); err != nil {
				return err
			}
		}
		return nil
	}
	first := s.links[st.Ino]
	s.text(first)
	if first != "" {
		return nil
	}
	if st.Nlink > 1 {
		s.links[st.Ino] = path
	}
	switch kind {
	case unix.S_IFREG:
		s.number(st.Size)
		s.total.Bytes += st.Size
		return s.bytes(fd, st.Size)
	case unix.S_IFLNK:
		target, err := readlink(dirFd, name)
		s.text(target)
		return err
	case unix.S_IFCHR, unix.S_IFBLK:
		s.number(int64(st.Rdev))
	}
	return nil
}

// bytes adds the content of a regular file, which has size bytes.
func (s *summer) bytes(fd int, size int64) error {
	for left := size; ; {
		var n int
		err := linux.Retry(func() (err error) { n, err = unix.Read(fd, s.buf); return err })
		if err != nil {
			return err
		}
		if left -= int64(n); left < 0 || n == 0 && left > 0 {
			return fmt.Errorf("reading: %w: its size has changed", io.ErrUnexpectedEOF)
		}
		if n == 0 {
			return nil
		}
		s.out.Write(s.buf[:n])
	}
}

type xattr struct {
	name  string
	value []byte
}

// readXattrs returns the user.* attributes of an open file, sorted by name.
func readXattrs(fd int) ([]xattr, error) {
	n, err := unix.Flistxattr(fd, nil)
	if err == unix.EOPNOTSUPP {
		return nil, nil
	}
	if err != nil || n == 0 {
		return nil, err
	}
	list := make([]byte, n)
	if n, err = unix.Flistxattr(fd, list); err != nil || n == 0 {
		return nil, err
	}
	var all []xattr
	for name := range bytes.SplitSeq(list[:n-1], []byte{0}) {
		if !isUserXattr(string(name)) {
			continue
		}
		value := make([]byte, 64<<10) // XATTR_SIZE_MAX
		n, err := unix.Fgetxattr(fd, string(name), value)
		if err != nil {
			return nil, err
		}
		all = append(all, xattr{string(name), value[:n]})
	}
	slices.SortFunc(all, func(a, b xattr) int { return strings.Compare(a.name, b.name) })
	return all, nil
}
