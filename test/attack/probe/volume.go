package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// volumeProbes run in a directory of limited size, "dir", which belongs to their user.
var volumeProbes = []probe{
	{"volume-project", "what has another project, or passes on none, counts against nobody's quota", inEach(changeProject), false},
	{"volume-flags", "flags of ext2 say the same as those of projects, and hold what nobody can remove any more", inEach(changeFlags), false},
	{"volume-filesystem", "whoever owns a file asks its file system to grow, to freeze or to shut down", inEach(changeFileSystem), false},
	{"volume-quotactl", "limits are set by who can name the file system", inEach(changeQuota), false},
	{"volume-loop", "the image behind the directory is opened, or another one put there", opening(unix.O_RDWR,
		"/dev/loop-control", "/dev/loop*", "/dev/block/*", "/sys/block/loop*/loop/backing_file"), false},
}

// Numbers and structures of linux/fs.h, ext4.h and the manuals named there.
const (
	fsGetXattr = 0x801c581f
	fsSetXattr = 0x401c5820
	getFlags   = 0x80086601
	setFlags   = 0x40086602

	projInheritX = 0x200      // FS_XFLAG_PROJINHERIT
	projInherit  = 0x20000000 // FS_PROJINHERIT_FL
	immutable    = 0x10
	appendOnly   = 0x20

	setProjectQuota = 0x800008<<8 | 2 // Q_SETQUOTA, PRJQUOTA
)

type xattr struct {
	flags   uint32
	_       [2]uint32 // extents
	project uint32
	_       [3]uint32 // extents, padding
}

// inEach tries with the directory itself, a new directory in it, and a file.
func inEach(try func(f *os.File) outcome) func(bait) outcome {
	return func(b bait) outcome {
		dir := b.workDir()
		sub, file := filepath.Join(dir, fmt.Sprint("d", os.Getpid())), filepath.Join(dir, fmt.Sprint("f", os.Getpid()))
		defer os.Remove(sub)
		defer os.Remove(file)
		if err := os.Mkdir(sub, 0o700); err != nil {
			return untried(cause(err))
		}
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			return untried(cause(err))
		}
		return each(func(path string) outcome {
			mode := os.O_RDONLY
			if path == file {
				mode = os.O_RDWR
			}
			f, err := os.OpenFile(path, mode, 0)
			if err != nil {
				return untried(cause(err))
			}
			defer f.Close()
			return try(f)
		}, dir, sub, file)
	}
}

func control[T any](f *os.File, what string, number uintptr, arg *T) outcome {
	_, err := raw(unix.SYS_IOCTL, f.Fd(), number, pointer(arg))
	return failing(what, err)
}

// changeProject escapes if afterwards f has another project, or none to inherit.
func changeProject(f *os.File) outcome {
	var now xattr
	if o := control(f, "FS_IOC_FSGETXATTR", fsGetXattr, &now); o.kind == isBlocked {
		return o
	}
	return each(func(change func(*xattr)) outcome {
		wanted, got := now, xattr{}
		change(&wanted)
		o := control(f, "FS_IOC_FSSETXATTR", fsSetXattr, &wanted)
		if again := control(f, "FS_IOC_FSGETXATTR", fsGetXattr, &got); again.kind == isEscaped && got.project == now.project && got.flags&projInheritX == now.flags&projInheritX {
			o.kind = isBlocked
		}
		return o
	},
		func(x *xattr) { x.project = 0; x.flags &^= projInheritX },
		func(x *xattr) { x.project = now.project + 1 },
		func(x *xattr) { x.flags ^= projInheritX },
		func(x *xattr) { x.project, x.flags = 0, x.flags|projInheritX },
	)
}

// changeFlags escapes if it changes a flag that matters.
func changeFlags(f *os.File) outcome {
	const counts = projInherit | immutable | appendOnly
	var now uint64
	if o := control(f, "FS_IOC_GETFLAGS", getFlags, &now); o.kind == isBlocked {
		return o
	}
	return each(func(flag uint64) outcome {
		wanted, got := now^flag, uint64(0)
		o := control(f, "FS_IOC_SETFLAGS", setFlags, &wanted)
		if again := control(f, "FS_IOC_GETFLAGS", getFlags, &got); again.kind == isEscaped && got&counts == now&counts {
			o.kind = isBlocked
		}
		return o
	}, projInherit, immutable, appendOnly)
}

func changeFileSystem(f *os.File) outcome {
	var arg [512]byte
	copy(arg[:], "\x00\x00\x00\x01") // a number of blocks, or a label
	calls := map[string]uintptr{
		"EXT4_IOC_RESIZE_FS": 0x40086610, "EXT4_IOC_GROUP_EXTEND": 0x40086607, "EXT4_IOC_GROUP_ADD": 0x40286608, "EXT4_IOC_SWAP_BOOT": 0x6611,
		"EXT4_IOC_SHUTDOWN": 0x8004587d, "FIFREEZE": 0xc0045877, "FITHAW": 0xc0045878, "FITRIM": 0xc0185879, "FS_IOC_SETFSLABEL": 0x41009432,
		"XFS_IOC_FSGROWFSDATA": 0x4010586e,
	}
	var attempts []func() outcome
	for what, number := range calls {
		attempts = append(attempts, func() outcome { return control(f, what, number, &arg) })
	}
	return all(attempts...)
}

func changeQuota(f *os.File) outcome {
	var limits [128]byte
	return all(
		call("quotactl_fd", unix.SYS_QUOTACTL_FD, f.Fd(), setProjectQuota, 0, pointer(&limits)),
		call("quotactl", unix.SYS_QUOTACTL, setProjectQuota, text("/dev/loop0"), 0, pointer(&limits)),
	)
}
