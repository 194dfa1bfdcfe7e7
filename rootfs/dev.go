package rootfs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// devices lists the devices of every box, all with mode 0666. For the numbers, see
// Documentation/admin-guide/devices.txt.
var devices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// devLinks are those of the OCI runtime specification, "Dev symbolic links".
var devLinks = []link{
	{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
	{"ptmx", "pts/ptmx"},
}

// devInodes is how many inodes of the box's tmpfs are reserved for /dev, more than it needs.
const devInodes = 32

// devName is the box's /dev beneath the directory of a Root.
const devName = "dev"

// sizeFile is an empty file in /dev, where the box cannot write. It is on the file system of
// a writable root, so a descriptor of it shows how full that is but gives access to nothing.
const sizeFile = ".size"

// dev creates the box's /dev: a read-only mount, which still allows writing to devices. Its
// inodes belong to this box alone, because locks belong to inodes: flock(2) and fcntl(2) locks
// on a shared /dev/null would work across boxes. The inodes are beside the box's root, out of
// its reach. The mount contains the box's own pts and shm. mqueue stays empty: an mqueue file
// system would have to be mounted in the box's IPC namespace, and mq_open(3) works without
// one.
//
// The mount is attached beside the box's root, together with the mounts on it, and the box's
// first process binds it to /dev: if it were attached to the root here, the box would have it
// twice.
func (b *builder) dev() error {
	top := &filler{top: b.top, kept: b.kept}
	top.mkdir(devName, 0o755)
	f := top.into(devName)
	if f.err != nil {
		return f.err
	}
	defer f.top.Close()
	for _, d := range devices {
		f.mknod(d.name, unix.S_IFCHR|0o666, unix.Mkdev(d.major, d.minor))
	}
	for _, l := range devLinks {
		f.symlink(l.name, l.target)
	}
	for _, name := range []string{"pts", "shm", "mqueue"} {
		f.mkdir(name, 0o755)
	}
	if b.host.reachable {
		f.mkdir(hostDir, 0o700)
		f.mkdir(hostTop, 0o700)
		if len(b.o.Layers) > 0 {
			f.mkdir(hostMerged, 0o700)
		}
	}
	if b.o.Writable {
		f.write(sizeFile, 0o444, nil)
		f.do(func() error {
			size, err := linux.Openat2(f.top, sizeFile, unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW})
			if err == nil {
				b.root.volumes = append(b.root.volumes, Volume{Path: "/", Size: b.o.UpperSize, File: size})
			}
			return err
		})
	}
	if f.err != nil {
		return f.err
	}
	if err := cloneTo(f.top, b.top, devName, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC); err != nil {
		return fmt.Errorf("mounting %q: %w", "/dev", err)
	}
	var err error
	b.devices, err = openDir(b.top, devName)
	return err
}
