package main

import (
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

var namespaceProbes = []probe{
	{"unshare", "a nested user namespace hands out capabilities", unshareAll, false},
	{"unshare-user", "the same, the one that matters", calls(call("unshare(CLONE_NEWUSER)", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)), false},
	{"clone-user", "the same by clone, also with a bit that the kernel ignores", cloneUser, true},
	{"clone3-user", "the same by clone3, whose flags no filter sees", clone3User, true},
	{"clone3", "other namespaces by clone3", clone3Others, true},
	{"setns", "joining a namespace of PID 1 or one's own", setns, true},
	{"ns-files", "namespace files of PID 1 can be opened and kept", opening(unix.O_RDONLY, "/proc/1/ns/*",
		"/proc/1/ns/mnt", "/proc/1/ns/user", "/proc/1/ns/net", "/proc/1/ns/pid"), false},
	{"mount", "new mounts", mount, false},
	{"remount", "a read-only mount becomes writable", remount, false},
	{"umount", "what is mounted over something is taken away", umount, false},
	{"pivot-root", "another root", calls(call("pivot_root", unix.SYS_PIVOT_ROOT, text("."), text("."))), false},
	{"mount-api", "mounts by descriptor", mountAPI, false},
	{"chroot", "another root, and from there the old one", chroot, false},
	{"dotdot", "the root has a parent", dotdot, false},
	{"host-file", "a file of the host is read by one of the roads to its root", hostFile, false},
	{"handle", "files are opened past all mounts (Shocker)", openByHandle, true},
}

// text returns the address of a NUL-terminated string, which stays valid.
func text(s string) uintptr {
	b := append([]byte(s), 0)
	kept = append(kept, b)
	return pointer(&b[0])
}

var kept [][]byte

func unshareAll(bait) outcome {
	flags := []uintptr{unix.CLONE_NEWNS, unix.CLONE_NEWNET, unix.CLONE_NEWPID, unix.CLONE_NEWIPC, unix.CLONE_NEWUTS,
		unix.CLONE_NEWCGROUP, unix.CLONE_NEWTIME, unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	return each(func(f uintptr) outcome { return call("unshare", unix.SYS_UNSHARE, f)() }, flags...)
}

// fork makes a raw clone call. A child ends at once.
func fork(what string, nr uintptr, args ...uintptr) func() outcome {
	return func() outcome {
		pid, err := raw(nr, args...)
		if err == nil && pid == 0 {
			raw(unix.SYS_EXIT_GROUP, 0)
		}
		if err == nil {
			unix.Wait4(int(pid), nil, 0, nil)
		}
		return failing(what, err)
	}
}

func cloneUser(bait) outcome {
	const flags = unix.CLONE_NEWUSER | uintptr(unix.SIGCHLD)
	return all(
		fork("clone(CLONE_NEWUSER)", unix.SYS_CLONE, flags),
		fork("clone(CLONE_NEWUSER, bit 32)", unix.SYS_CLONE, 1<<32|flags))
}

func clone3User(bait) outcome {
	return each(clone3, unix.CLONE_NEWUSER, unix.CLONE_NEWUSER|unix.CLONE_NEWNS, unix.CLONE_NEWUSER|unix.CLONE_NEWNET)
}

func clone3Others(bait) outcome {
	return each(clone3, unix.CLONE_NEWNS, unix.CLONE_NEWNET, unix.CLONE_NEWPID, unix.CLONE_NEWIPC, unix.CLONE_NEWUTS,
		unix.CLONE_NEWCGROUP, unix.CLONE_NEWTIME)
}

func clone3(flags uint64) outcome {
	args := struct{ flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64 }{
		flags: flags, exitSignal: uint64(unix.SIGCHLD)}
	o := fork("clone3", unix.SYS_CLONE3, pointer(&args), 64)()
	runtime.KeepAlive(&args)
	return o
}

// setns tries the namespaces that it can reach: its own, and those of PID 1 through a pidfd, which
// needs no file.
func setns(bait) outcome {
	files, _ := filepath.Glob("/proc/self/ns/*")
	own := each(func(path string) outcome {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return failing("opening "+path, err)
		}
		defer unix.Close(fd)
		return call("setns to an own namespace", unix.SYS_SETNS, uintptr(fd), 0)()
	}, files...)
	if own.kind == isEscaped {
		return own
	}
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return failing("pidfd_open", err)
	}
	defer unix.Close(fd)
	return call("setns by pidfd", unix.SYS_SETNS, uintptr(fd), unix.CLONE_NEWNS|unix.CLONE_NEWNET)()
}

func mount(b bait) outcome {
	dir := b.workDir()
	return each(func(fstype string) outcome {
		return call("mount "+fstype, unix.SYS_MOUNT, text("none"), text(dir), text(fstype), 0, 0)()
	}, "tmpfs", "proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "overlay", "debugfs", "bpf", "fuse")
}

func remount(bait) outcome {
	return each(func(path string) outcome {
		return all(
			call("remounting "+path, unix.SYS_MOUNT, 0, text(path), 0, unix.MS_REMOUNT|unix.MS_BIND, 0),
			call("making shared "+path, unix.SYS_MOUNT, 0, text(path), 0, unix.MS_SHARED, 0),
			call("binding "+path, unix.SYS_MOUNT, text("/"), text(path), 0, unix.MS_BIND|unix.MS_REC, 0))
	}, "/", "/usr", "/proc", "/proc/sys", "/etc")
}

func umount(bait) outcome {
	return each(func(path string) outcome {
		return call("umount2 "+path, unix.SYS_UMOUNT2, text(path), unix.MNT_DETACH)()
	}, "/proc", "/proc/sys", "/proc/kcore", "/dev", "/usr", "/tmp", "/")
}

func mountAPI(b bait) outcome {
	here := ^uintptr(99) // AT_FDCWD
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	o := all(
		call("open_tree", unix.SYS_OPEN_TREE, here, text("/"), unix.OPEN_TREE_CLONE),
		call("move_mount", unix.SYS_MOVE_MOUNT, here, text("/proc"), here, text(b.workDir()), 0),
		call("fsopen", unix.SYS_FSOPEN, text("tmpfs"), 0),
		call("fspick", unix.SYS_FSPICK, here, text("/"), 0),
		call("mount_setattr", unix.SYS_MOUNT_SETATTR, here, text("/usr"), 0, pointer(&attr), unsafe.Sizeof(attr)))
	runtime.KeepAlive(&attr)
	return o
}

func chroot(b bait) outcome {
	if o := call("chroot", unix.SYS_CHROOT, text(b.workDir()))(); o.kind != isEscaped {
		return o
	}
	for range 64 {
		unix.Chdir("..")
	}
	unix.Chroot(".")
	return escaped("chroot twice")
}

func dotdot(bait) outcome {
	root, err := os.Stat("/")
	if err != nil {
		return untried(cause(err))
	}
	for _, path := range []string{"/..", "/../../..", "/proc/self/root/..", "/proc/self/root/../.."} {
		up, err := os.Stat(path)
		if err == nil && !os.SameFile(root, up) {
			return escaped("%q is not the root", path)
		}
	}
	return blocked("the parent of the root is the root")
}

// hostFile looks for the bait's marker, whose directory must not be in the box.
func hostFile(b bait) outcome {
	marker := b[baitMarker]
	if marker == "" {
		return untried("no marker given")
	}
	roads := []string{"", "/..", "/../../..", "/proc/1/root", "/proc/1/cwd", "/proc/self/root/..", "/proc/self/cwd/../../../..", "/proc/thread-self/root"}
	return each(func(road string) outcome { return openOne(road+marker, unix.O_RDONLY) }, roads...)
}

func openByHandle(b bait) outcome {
	here, err := unix.Open(b.workDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return untried(cause(err))
	}
	defer unix.Close(here)
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/etc", 0)
	if err != nil {
		// Not all file systems have handles; inode 2 is the root of an ext4.
		handle = unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0})
	}
	fd, err := unix.OpenByHandleAt(here, handle, unix.O_RDONLY)
	if err == nil {
		unix.Close(fd)
	}
	if err == unix.ESTALE || err == unix.EINVAL || err == unix.ENOTSUP {
		return escaped("open_by_handle_at: %v, so handles are looked up", err)
	}
	return failing("open_by_handle_at", err)
}
