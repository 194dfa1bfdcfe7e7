package rootfs

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Copying /etc takes longer than starting a launcher, so copies are kept in a directory that
// launchers share.
//
//	<copy>/etc    what boxes see
//	<copy>/index  a digest of the state of its sources, then their names, one per line
//	current       symlink to the newest copy
//
// A launcher checks the sources of the newest copy, with some 500 calls of fstatat(2), and
// makes another copy if any has changed. Copies are removed only after a reboot, since boxes
// may be using them.
const (
	currentEtc = "current"
	unfinished = ".new-" // begins the name of a copy that is being made
	// maxEtcCopies is how many copies are kept, of about 2 MB each. If /etc changes more
	// often, further copies are made in the template and end with the launcher.
	maxEtcCopies = 32
	// etcLayout is the version of this directory's layout, and etcRule that of the rule for what
	// boxes see.
	etcLayout, etcRule = 1, 4
)

// copyNames returns the beginning of the names of all copies of this boot, which boxes may be using,
// and of those made by this version of the rule. So a copy that was unfinished when the machine
// crashed has another name, and a launcher of another version leaves the copies of this one alone.
func copyNames() (boot, rule string) {
	id, _ := linux.BootID() // without it, all copies count as made since this boot
	boot = fmt.Sprintf("%d-%.8s-", etcLayout, id)
	return boot, fmt.Sprintf("%s%d-", boot, etcRule)
}

// stateOf returns a digest of the status of files and directories.
func stateOf(sources []etcEntry) string {
	h := sha256.New()
	var buf []byte
	for _, e := range sources {
		buf = append(append(buf[:0], e.name...), 0)
		for _, n := range []int64{int64(e.st.Dev), int64(e.st.Ino), int64(e.st.Mode), int64(e.st.Uid), e.st.Size, e.st.Mtim.Nano(), e.st.Ctim.Nano()} {
			buf = binary.LittleEndian.AppendUint64(buf, uint64(n))
		}
		h.Write(buf)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// addEtc adds the shared part of /etc, from a copy in the directory cache or from one in the
// template.
func (h *Host) addEtc(top *os.File, root, cache string) error {
	src, err := os.OpenFile(filepath.Join(root, "etc"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	f := &filler{top: top}
	f.learnUmask("copy", 0o711)
	f.mkdir("etc", 0o755)
	if f.err != nil {
		return f.err
	}
	from, err := openKept(root, src, cache)
	if err == nil && from == nil {
		if from, err = openDir(top, "copy"); err == nil {
			_, err = fillCopy(root, src, from)
		}
	}
	if err != nil {
		return err
	}
	defer from.Close()
	tree, err := linux.OpenTree(from, "etc", unix.OPEN_TREE_CLONE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer tree.Close()
	return h.keep(top, "etc", tree, attrReadOnly|unix.MOUNT_ATTR_NOEXEC)
}

// openKept opens the kept copy for the current state of the sources, and makes it if
// necessary. It returns nil if no copy can be kept. src is the host's /etc.
func openKept(root string, src *os.File, cache string) (*os.File, error) {
	if cache == "" || !onlyRootWrites(cache) {
		return nil, nil
	}
	name, err := os.Readlink(filepath.Join(cache, currentEtc))
	if _, rule := copyNames(); err != nil || !strings.HasPrefix(name, rule) || !isCurrent(src, filepath.Join(cache, name)) {
		if name, err = keepEtc(root, src, cache); name == "" || err != nil {
			return nil, err
		}
	}
	return os.OpenFile(filepath.Join(cache, name), unix.O_PATH|unix.O_DIRECTORY, 0)
}

// isCurrent reports whether the sources of a copy are unchanged.
func isCurrent(src *os.File, kept string) bool {
	index, err := os.ReadFile(filepath.Join(kept, "index"))
	if err != nil {
		return false
	}
	state, names, _ := strings.Cut(string(index), "\n")
	var sources []etcEntry
	for name := range strings.SplitSeq(names, "\n") {
		st, err := linux.StatAt(src, name)
		if err != nil {
			return false
		}
		sources = append(sources, etcEntry{name: name, st: st})
	}
	return state == stateOf(sources)
}

// keepEtc makes a copy, which appears atomically, makes it the current one, and returns its
// name, or "" if there are too many. Other launchers may do the same at the same time.
func keepEtc(root string, src *os.File, cache string) (string, error) {
	copies, err := os.ReadDir(cache)
	if err != nil {
		return "", err
	}
	boot, rule := copyNames()
	count := 0
	for _, c := range copies {
		if strings.HasPrefix(strings.TrimPrefix(c.Name(), unfinished), boot) {
			count++
		} else if c.Name() == currentEtc {
			continue
		} else if err := os.RemoveAll(filepath.Join(cache, c.Name())); err != nil {
			return "", err
		}
	}
	if count >= maxEtcCopies {
		return "", nil
	}
	dir, err := os.MkdirTemp(cache, unfinished+rule)
	if err != nil {
		return "", err
	}
	if err := fillKept(root, src, dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	name := strings.TrimPrefix(filepath.Base(dir), unfinished)
	if err := os.Rename(dir, filepath.Join(cache, name)); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	link := filepath.Join(cache, unfinished+name)
	if err := os.Symlink(name, link); err != nil {
		return "", err
	}
	return name, os.Rename(link, filepath.Join(cache, currentEtc))
}

// fillKept makes a copy and its index in dir.
func fillKept(root string, src *os.File, dir string) error {
	top, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer top.Close()
	sources, err := fillCopy(root, src, top)
	if err != nil {
		return err
	}
	var index strings.Builder
	index.WriteString(stateOf(sources))
	for _, e := range sources {
		index.WriteString("\n" + e.name)
	}
	return os.WriteFile(filepath.Join(dir, "index"), []byte(index.String()), 0o600)
}

// fillCopy creates the directory etc in top. It returns what its content depends on.
func fillCopy(root string, src, top *os.File) ([]etcEntry, error) {
	f := &filler{top: top}
	f.learnUmask("etc", 0o755)
	etc := f.into("etc")
	if etc.err != nil {
		return nil, etc.err
	}
	defer etc.top.Close()
	return fillPublicEtc(root, src, etc)
}

// onlyRootWrites creates the directory cache if necessary, and reports whether only root can
// write to it or replace it.
func onlyRootWrites(cache string) bool {
	if err := os.MkdirAll(filepath.Dir(cache), 0o711); err != nil {
		return false
	}
	if err := os.Mkdir(cache, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false
	}
	for _, dir := range []string{cache, filepath.Dir(cache)} {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil || !isDir(st) || st.Uid != 0 || st.Mode&0o022 != 0 {
			return false
		}
	}
	return true
}
