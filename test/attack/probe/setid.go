package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

var setidProbes = []probe{
	{"chmod-setid", "a file in a mounted directory belongs to its owner on the host: a way to become that user", chmodSetid, true},
	{"create-setid", "the same at birth", createSetid, true},
	{"openat2-setid", "the same by a call whose mode no filter sees", openat2Setid, true},
	{"mknod-setid", "the same by mknod", mknodSetid, true},
	{"mkdir-setgid", "the kernel drops the bits of a new directory", mkdirSetgid, false},
	{"setid-programs", "setuid programs of the image do their work", setidPrograms, true},
	{"file-caps", "a program with capabilities", fileCaps, true},
}

var setids = []uint32{0o4755, 0o2755, 0o6755}

// inFile runs try with a file of its own in every writable directory, and always checks the file
// afterwards.
func inFile(b bait, try func(path string, mode uint32) error) outcome {
	return inDirs(b, func(dir string) outcome {
		return each(func(mode uint32) outcome {
			path := filepath.Join(dir, strconv.FormatUint(uint64(mode), 8))
			err := try(path, mode)
			var st unix.Stat_t
			if unix.Lstat(path, &st) == nil && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
				return escaped("%s has mode %#o", path, st.Mode)
			}
			if err == nil {
				return blocked("the bits were dropped")
			}
			return blocked("%s", cause(err))
		}, setids...)
	})
}

func chmodSetid(b bait) outcome {
	return inFile(b, func(path string, mode uint32) error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		kinds := []func() error{
			func() error { return unix.Chmod(path, mode) },
			func() error { return unix.Fchmod(int(f.Fd()), mode) },
			func() error { return unix.Fchmodat(unix.AT_FDCWD, path, mode, 0) },
			func() error { return unix.Chmod(path, 1<<16|mode) },
			func() error {
				_, err := raw(unix.SYS_FCHMODAT2, ^uintptr(99), text(path), uintptr(mode), 0)
				return err
			},
			func() error {
				_, err := raw(unix.SYS_FCHMOD, f.Fd(), 1<<32|uintptr(mode))
				return err
			},
		}
		for _, try := range kinds {
			if err = try(); err == nil {
				return nil
			}
		}
		return err
	})
}

func createSetid(b bait) outcome {
	unix.Umask(0)
	return inFile(b, func(path string, mode uint32) error {
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_WRONLY, mode)
		if err != nil {
			fd, err = unix.Creat(path, mode)
		}
		if err != nil {
			fd, err = unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_WRONLY, mode)
			if err == nil {
				err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
			}
		}
		if fd >= 0 {
			unix.Close(fd)
		}
		return err
	})
}

func openat2Setid(b bait) outcome {
	unix.Umask(0)
	return inFile(b, func(path string, mode uint32) error {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: uint64(mode)})
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
}

func mknodSetid(b bait) outcome {
	unix.Umask(0)
	return inFile(b, func(path string, mode uint32) error {
		return unix.Mknod(path, unix.S_IFREG|mode, 0)
	})
}

func mkdirSetgid(b bait) outcome {
	unix.Umask(0)
	return inFile(b, func(path string, mode uint32) error { return unix.Mkdir(path, mode) })
}

// setidPrograms looks for setuid and setgid programs, and whether their mount honours the bits.
func setidPrograms(bait) outcome {
	o := blocked("there are none")
	for _, pattern := range []string{"/usr/bin/*", "/usr/sbin/*", "/bin/*", "/usr/lib/*/*"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			var st unix.Stat_t
			var fs unix.Statfs_t
			if unix.Stat(path, &st) != nil || st.Mode&unix.S_ISUID == 0 || unix.Statfs(path, &fs) != nil {
				continue
			}
			if fs.Flags&unix.ST_NOSUID == 0 {
				return escaped("%s is setuid on a mount that honours it", path)
			}
			o = blocked("%s and others lie on nosuid mounts", path)
		}
	}
	return o
}

// fileCaps gives a file of its own CAP_SYS_ADMIN, in the layout of revision 2 of
// <linux/capability.h>.
func fileCaps(b bait) outcome {
	value := []byte{1, 0, 0, 2, 0, 0, 0x20, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	o := inDirs(b, func(dir string) outcome {
		path := filepath.Join(dir, "capable")
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			return untried(cause(err))
		}
		return failing("setting security.capability", unix.Setxattr(path, "security.capability", value, 0))
	})
	runtime.KeepAlive(value)
	return o
}
