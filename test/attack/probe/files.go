package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var fileProbes = []probe{
	{"mknod", "devices of the host", mknod, true},
	{"devices", "devices of the host", opening(unix.O_RDONLY, "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/kvm",
		"/dev/fuse", "/dev/net/tun", "/dev/loop-control", "/dev/loop[0-9]*", "/dev/sd*", "/dev/vd*", "/dev/nvme*", "/dev/dm-*",
		"/dev/mapper/control", "/dev/vsock", "/dev/vhost-*", "/dev/uinput", "/dev/input/*", "/dev/tty[0-9]*", "/dev/console",
		"/dev/cpu/*/msr", "/dev/hwrng", "/dev/btrfs-control", "/dev/ppp", "/dev/snapshot"), true},
	{"device-nodes", "only the harmless devices are there", deviceNodes, true},
	{"root-write", "a read-only root is written", rootWrite, true},
	{"proc-mounts", "every mount is nosuid; devices only where they belong", mountFlags, true},
	{"sockets", "sockets of daemons of the host", controlSockets, false},
}

// inDirs runs try in every directory that a box can write.
func inDirs(b bait, try func(dir string) outcome) outcome {
	return each(func(dir string) outcome {
		own, err := os.MkdirTemp(dir, "probe")
		if err != nil {
			return blocked("writing in %s: %s", dir, cause(err))
		}
		defer os.RemoveAll(own)
		return try(own)
	}, b.workDir(), "/tmp", "/dev/shm", "/dev", os.Getenv("HOME"))
}

func mknod(b bait) outcome {
	return inDirs(b, func(dir string) outcome {
		return each(func(mode uint32) outcome {
			path := filepath.Join(dir, "node")
			defer os.Remove(path)
			return all(
				func() outcome { return failing("mknod null", unix.Mknod(path, mode|0o666, int(unix.Mkdev(1, 3)))) },
				func() outcome { return failing("mknod disk", unix.Mknod(path, mode|0o666, int(unix.Mkdev(8, 0)))) },
				func() outcome { return failing("mknod whiteout", unix.Mknod(path, mode, 0)) })
		}, unix.S_IFCHR, unix.S_IFBLK)
	})
}

// harmless are the devices of a box by number: null, zero, full, random, urandom,
// tty, ptmx.
var harmless = map[[2]uint32]bool{{1, 3}: true, {1, 5}: true, {1, 7}: true, {1, 8}: true, {1, 9}: true, {5, 0}: true, {5, 2}: true}

func deviceNodes(bait) outcome {
	o := blocked("only null, zero, full, random, urandom, tty, ptmx and terminals")
	filepath.WalkDir("/dev", func(path string, d os.DirEntry, err error) error {
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil {
			return nil
		}
		major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFBLK:
			o = escaped("%s is a block device", path)
		case unix.S_IFCHR:
			// 136 to 143 are the slave ends of pseudoterminals.
			if !harmless[[2]uint32{major, minor}] && (major < 136 || major > 143) {
				o = escaped("%s is character device %d:%d", path, major, minor)
			}
		}
		return nil
	})
	return o
}

// rootWrite opens files for writing and never writes; with O_CREAT it creates an empty file.
func rootWrite(b bait) outcome {
	if b[baitRoot] == "rw" {
		return untried("the root is writable")
	}
	return each(func(dir string) outcome {
		path := dir + "/boxd-probe"
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err == nil {
			unix.Close(fd)
			unix.Unlink(path)
		}
		return failing("creating "+path, err)
	}, "", "/etc", "/usr", "/usr/bin", "/usr/local/bin", "/bin", "/lib", "/var", "/dev", "/proc", "/opt", "/root", "/run", "/mnt")
}

// mountFlags reads the mount table; proc(5) has its fields.
func mountFlags(bait) outcome {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return untried(cause(err))
	}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		target, options := f[4], strings.Split(f[5], ",")
		if isMask(target, options) {
			continue
		}
		if !slices.Contains(options, "nosuid") {
			return escaped("%s is mounted %s", target, f[5])
		}
		devices := target == "/dev" || strings.HasPrefix(target, "/dev/")
		if !devices && !slices.Contains(options, "nodev") {
			return escaped("%s is mounted %s", target, f[5])
		}
	}
	return blocked("all mounts are nosuid, those outside of /dev are nodev")
}

// isMask reports whether a mount hides something in /proc: an empty read-only directory, or the
// null device.
func isMask(target string, options []string) bool {
	if !strings.HasPrefix(target, "/proc/") {
		return false
	}
	entries, err := os.ReadDir(target)
	return isHarmless(target) || err == nil && len(entries) == 0 && slices.Contains(options, "ro")
}

// isHarmless reports whether a box may have a device node.
func isHarmless(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR &&
		harmless[[2]uint32{unix.Major(st.Rdev), unix.Minor(st.Rdev)}]
}

func controlSockets(bait) outcome {
	return present("/var/run/docker.sock", "/run/docker.sock", "/run/containerd", "/run/podman", "/run/crio", "/run/systemd/private",
		"/run/dbus/system_bus_socket", "/run/boxd", "/run/udev", "/run/snapd.socket", "/var/lib/boxd")(nil)
}
