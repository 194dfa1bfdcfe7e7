package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// The descriptor-based mount API: fsopen, fsconfig, fsmount, open_tree, move_mount
// (Linux 5.2) and mount_setattr (Linux 5.12).

// OpenTree opens path beneath dir as a mount object. With OPEN_TREE_CLONE in
// flags, the result is a detached copy that vanishes if it is closed before it is
// attached. An empty path (with AT_EMPTY_PATH) means dir itself; a nil dir means
// the current directory. The caller owns the returned file.
func OpenTree(dir *os.File, path string, flags uint) (*os.File, error) {
	dirfd := unix.AT_FDCWD
	if dir != nil {
		dirfd = int(dir.Fd())
	}
	fd, err := retryFd(func() (int, error) {
		return unix.OpenTree(dirfd, path, flags|unix.OPEN_TREE_CLOEXEC)
	})
	runtime.KeepAlive(dir)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), "tree:"+path), nil
}

// MoveMount attaches the detached mount tree at path beneath dir; an empty path
// means dir itself, and a nil dir the current directory.
func MoveMount(tree, dir *os.File, path string) error {
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH
	dirfd := unix.AT_FDCWD
	if dir != nil {
		dirfd = int(dir.Fd())
	}
	if path == "" {
		flags |= unix.MOVE_MOUNT_T_EMPTY_PATH
	}
	err := Retry(func() error { return unix.MoveMount(int(tree.Fd()), "", dirfd, path, flags) })
	runtime.KeepAlive(tree)
	runtime.KeepAlive(dir)
	if err != nil {
		name := path
		if name == "" && dir != nil {
			name = dir.Name()
		}
		return &os.PathError{Op: "move_mount", Path: name, Err: err}
	}
	return nil
}

// MountSetattr changes the attributes of the mount behind tree and, if recursive is
// set, of every mount below it.
func MountSetattr(tree *os.File, recursive bool, attr unix.MountAttr) error {
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	err := Retry(func() error { return unix.MountSetattr(int(tree.Fd()), "", flags, &attr) })
	return pathError("mount_setattr", tree, "", err)
}

// Option is one parameter of a file system: a string, or a descriptor if there is a File. A
// parameter with neither is a flag.
type Option struct {
	Key, Value string
	File       *os.File // borrowed
}

// Reconfigure changes options of the file system whose root is mount. Other options stay
// as they are.
func Reconfigure(mount *os.File, options ...Option) error {
	fsfd, err := retryFd(func() (int, error) {
		return unix.Fspick(int(mount.Fd()), "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	})
	if err != nil {
		return &os.PathError{Op: "fspick", Path: mount.Name(), Err: err}
	}
	defer unix.Close(fsfd)
	for _, o := range options {
		if err := Retry(func() error { return unix.FsconfigSetString(fsfd, o.Key, o.Value) }); err != nil {
			return &os.PathError{Op: "fsconfig", Path: mount.Name() + " " + o.Key + "=" + o.Value, Err: err}
		}
	}
	if err := Retry(func() error { return unix.FsconfigReconfigure(fsfd) }); err != nil {
		return &os.PathError{Op: "fsconfig reconfigure", Path: mount.Name(), Err: err}
	}
	return nil
}

// NewMount creates a file system of type fstype and returns it as a detached
// mount with the MOUNT_ATTR_* of attrs. The mount vanishes if it is closed before it
// is attached. The caller owns the returned file.
func NewMount(fstype string, attrs int, options ...Option) (*os.File, error) {
	fsfd, err := retryFd(func() (int, error) { return unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC) })
	if err != nil {
		return nil, &os.PathError{Op: "fsopen", Path: fstype, Err: err}
	}
	defer unix.Close(fsfd)
	for _, o := range options {
		set := func() error { return unix.FsconfigSetString(fsfd, o.Key, o.Value) }
		switch {
		case o.File != nil:
			set = func() error { return unix.FsconfigSetFd(fsfd, o.Key, int(o.File.Fd())) }
		case o.Value == "":
			set = func() error { return unix.FsconfigSetFlag(fsfd, o.Key) }
		}
		err := Retry(set)
		runtime.KeepAlive(o.File)
		if err != nil {
			return nil, &os.PathError{Op: "fsconfig", Path: fstype + " " + o.Key + "=" + o.Value, Err: err}
		}
	}
	if err := Retry(func() error { return unix.FsconfigCreate(fsfd) }); err != nil {
		return nil, &os.PathError{Op: "fsconfig create", Path: fstype, Err: err}
	}
	fd, err := retryFd(func() (int, error) { return unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, attrs) })
	if err != nil {
		return nil, &os.PathError{Op: "fsmount", Path: fstype, Err: err}
	}
	return os.NewFile(uintptr(fd), "mount:"+fstype), nil
}

// Unmount removes the mount at path; flags are those of umount2.
func Unmount(path string, flags int) error {
	if err := Retry(func() error { return unix.Unmount(path, flags) }); err != nil {
		return &os.PathError{Op: "umount2", Path: path, Err: err}
	}
	return nil
}
