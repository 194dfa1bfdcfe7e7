package rootfs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/boxd/boxd/internal/linux"
)

// Options of the root of one box.
type Options struct {
	// Hostname in /etc/hostname and /etc/hosts. Empty: DefaultHostname. Whether it
	// is a good one is the caller's to check; here it must be one word.
	Hostname string
	// IDBase is the host id that the box's user and group id 0 are mapped to;
	// the box has the 65,536 ids from there on.
	IDBase int
	// UID and GID, in the box, are the user that commands run as: it owns the
	// home directory. UserName is its name; empty: "root" for 0, "user" for
	// 1000, and made up for others.
	UID, GID int
	UserName string
	// TmpSize is the size in bytes of /tmp, the home directory and /dev/shm,
	// each. It is at least 64 KiB.
	TmpSize int64
	// Writable makes everything below / writable for the box, up to UpperSize
	// bytes, until it ends.
	Writable  bool
	UpperSize int64 // bytes; only with Writable
	// Figures are what the box is shown of its limits.
	Figures Figures
	// IDMapUserNS is a user namespace that maps the ids 0 … 65535 to the ids of
	// the box. It is needed with Writable, and lent for the time of the call.
	IDMapUserNS *os.File
}

// minSize is the smallest tmpfs in bytes that a box gets.
const minSize = 64 << 10

// check fills in defaults and refuses what cannot work.
func (o *Options) check() error {
	if o.Hostname == "" {
		o.Hostname = DefaultHostname
	}
	switch {
	case o.IDBase <= 0:
		return fmt.Errorf("id base %d: must be above 0, the ids of the host itself", o.IDBase)
	case o.UID < 0 || o.UID >= boxIDs || o.GID < 0 || o.GID >= boxIDs:
		return fmt.Errorf("user %d:%d: ids in a box are 0 to %d", o.UID, o.GID, boxIDs-1)
	case !oneWord(o.Hostname):
		return fmt.Errorf("hostname %q: must be one word without '#' and ':', or /etc/hosts would mean something else", o.Hostname)
	case !oneWord(o.UserName):
		return fmt.Errorf("user name %q: must be one word without '#' and ':', or /etc/passwd would mean something else", o.UserName)
	case o.TmpSize < minSize:
		return fmt.Errorf("tmp size %d: must be at least %d bytes", o.TmpSize, minSize)
	case o.Writable && o.UpperSize < minSize:
		return fmt.Errorf("upper size %d: must be at least %d bytes", o.UpperSize, minSize)
	case o.Writable && o.IDMapUserNS == nil:
		return errors.New("writable root: needs a user namespace for id-mapped mounts")
	}
	return nil
}

// oneWord says that name can be a field of hosts(5) and passwd(5) without ending
// it or beginning a comment.
func oneWord(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r == '#' || r == ':' || unicode.IsSpace(r) || unicode.IsControl(r)
	})
}

// sized returns the options of a tmpfs of size bytes. It gets an inode for each
// page: less would fail before the size is used up with many small files, and
// more would let empty files take more kernel memory than the size suggests.
//
// inodes come on top of those.
func sized(size, inodes int64, mode string, uid, gid int) []linux.Option {
	return []linux.Option{
		{Key: "size", Value: strconv.FormatInt(size, 10)},
		{Key: "nr_inodes", Value: strconv.FormatInt(max(size/4096, 64)+inodes, 10)},
		{Key: "mode", Value: mode},
		{Key: "uid", Value: strconv.Itoa(uid)},
		{Key: "gid", Value: strconv.Itoa(gid)},
	}
}
