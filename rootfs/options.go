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
	// Hostname in /etc/hostname and /etc/hosts. Empty means DefaultHostname. It must be
	// one word; further checks are up to the caller.
	Hostname string
	// IDBase is the host ID that user and group ID 0 of the box are mapped to. The box
	// has the 65,536 IDs from there on.
	IDBase int
	// UID and GID, in the box, are the user that commands run as, who owns the home
	// directory. UserName is its name; empty means "root" for 0, "user" for 1000, and
	// "userN" for any other N.
	UID, GID int
	UserName string
	// TmpSize is the size in bytes of each of /tmp, the home directory and /dev/shm. It
	// must be at least 64 KiB.
	TmpSize int64
	// Writable makes everything below / writable for the box, up to UpperSize bytes. The
	// changes are lost when the box ends.
	Writable  bool
	UpperSize int64 // bytes; only with Writable
	// Figures are the limits that the box is shown.
	Figures Figures
	// Layers are the directories that make the root instead of the host's, lowest first, at
	// most MaxLayers, none of them twice. They must be on mounts of the caller's mount namespace. They are
	// borrowed for the duration of the call; the root keeps using the directories, so
	// nobody may change or remove them before the box has ended.
	Layers []*os.File
	// IDMapUserNS is a user namespace that maps the IDs of the box's users on disk to the IDs
	// of the box: 0 to 65535 in a writable root without Layers, and the owners of the files
	// in Layers otherwise. It is required with Writable or Layers, and borrowed for the
	// duration of the call.
	IDMapUserNS *os.File
}

// MaxLayers is how many layers an overlay takes (OVL_MAX_STACK in fs/overlayfs).
const MaxLayers = 500

// minSize is the smallest size of a box's tmpfs, in bytes.
const minSize = 64 << 10

// check fills in defaults and refuses invalid options.
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
	case len(o.Layers) > 0 && o.IDMapUserNS == nil:
		return errors.New("root of layers: needs a user namespace for id-mapped mounts")
	case len(o.Layers) > MaxLayers:
		return fmt.Errorf("root of %d layers: overlayfs takes at most %d, merge some of them", len(o.Layers), MaxLayers)
	}
	return nil
}

// oneWord reports whether name can be a field of hosts(5) and passwd(5): it neither ends the
// field nor begins a comment.
func oneWord(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r == '#' || r == ':' || unicode.IsSpace(r) || unicode.IsControl(r)
	})
}

// sized returns the options of a tmpfs of size bytes, with one inode per page and, in
// addition, inodes. With fewer, many small files would use up the inodes before the size;
// with more, empty files could take more kernel memory than the size suggests.
func sized(size, inodes int64, mode string, uid, gid int) []linux.Option {
	return []linux.Option{
		{Key: "size", Value: strconv.FormatInt(size, 10)},
		{Key: "nr_inodes", Value: strconv.FormatInt(max(size/4096, 64)+inodes, 10)},
		{Key: "mode", Value: mode},
		{Key: "uid", Value: strconv.Itoa(uid)},
		{Key: "gid", Value: strconv.Itoa(gid)},
	}
}
