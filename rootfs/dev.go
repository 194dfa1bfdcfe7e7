package rootfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// devices of every box, all with mode 0666, by their numbers in
// Documentation/admin-guide/devices.txt.
var devices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// devLinks as in the OCI runtime specification, "Dev symbolic links".
var devLinks = []link{
	{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
	{"ptmx", "pts/ptmx"},
}

// addDev makes the /dev that boxes share: a read-only mount, which does not
// keep anyone from writing to a device. Boxes mount pts and shm of their own in
// it. mqueue stays empty: such a file system must be mounted in the box's ipc
// namespace, and mq_open(3) works without it.
func (h *Host) addDev(top *os.File, _ string) error {
	f := &filler{top: top}
	f.mkdir("dev", 0o755)
	dev := f.into("dev")
	if dev.err != nil {
		return dev.err
	}
	defer dev.top.Close()
	for _, d := range devices {
		dev.mknod(d.name, unix.S_IFCHR|0o666, unix.Mkdev(d.major, d.minor))
	}
	for _, l := range devLinks {
		dev.symlink(l.name, l.target)
	}
	for _, name := range []string{"pts", "shm", "mqueue"} {
		dev.mkdir(name, 0o755)
	}
	if h.reachable {
		dev.mkdir(hostDir, 0o700)
		dev.mkdir(hostView, 0o700)
	}
	if dev.err != nil {
		return dev.err
	}
	return h.seal(top, "dev", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
}
