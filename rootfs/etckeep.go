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

// Making a copy of /etc takes longer than starting a launcher: so copies are kept, in a
// directory that launchers share.
//
//	<copy>/etc    what boxes see
//	<copy>/index  the state of its sources in the first line, then their names
//	current       symlink to the newest copy
//
// A launcher looks at the sources of the newest copy, some 500 calls of fstatat(2), and makes
// a further copy if one has changed. No copy is removed before the machine starts again,
// since boxes may be using it.
const (
	currentEtc = "current"
	unfinished = ".new-" // begins the name of a copy that is being made
	// maxEtcCopies is how many are kept, of 2 MB or so each. If /etc changes more often, further
	// copies are made in the template and end with the launcher.
	maxEtcCopies = 32
	// etcRule counts the versions of the rule.
	etcRule = 1
)

// copyNames begins the names of the copies of this boot and of this version of the rule.
// One that was being made when the machine failed is of another boot.
func copyNames() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // else all are of this one
	return fmt.Sprintf("%d-%.8s-", etcRule, boot)
}

// stateOf is a digest of the status of files and directories.
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

// addEtc adds what boxes share of /etc: from a copy that is kept in the
// directory cache, or from one in the template.
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

// openKept opens the copy for the present state of the sources, nil if none can be kept. The
// directory of the host's /etc is src.
func openKept(root string, src *os.File, cache string) (*os.File, error) {
	if cache == "" || !onlyRootWrites(cache) {
		return nil, nil
	}
	name, err := os.Readlink(filepath.Join(cache, currentEtc))
	if err != nil || !strings.HasPrefix(name, copyNames()) || !isCurrent(src, filepath.Join(cache, name)) {
		if name, err = keepEtc(root, src, cache); name == "" || err != nil {
			return nil, err
		}
	}
	return os.OpenFile(filepath.Join(cache, name), unix.O_PATH|unix.O_DIRECTORY, 0)
}

// isCurrent says whether the sources of a copy are as they were.
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

// keepEtc makes a copy, which appears whole or not at all, and makes it the current one. It
// returns its name, none if there are too many. Others may do the same at the same time.
func keepEtc(root string, src *os.File, cache string) (string, error) {
	copies, err := os.ReadDir(cache)
	if err != nil {
		return "", err
	}
	ours, count := copyNames(), 0
	for _, c := range copies {
		if strings.HasPrefix(strings.TrimPrefix(c.Name(), unfinished), ours) {
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
	dir, err := os.MkdirTemp(cache, unfinished+ours)
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

// fillCopy makes the directory etc in top. It returns what that depends on.
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

// onlyRootWrites makes the directory cache, and says that nobody but root can put anything in
// it or in its place.
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
