package rootfs

import (
	"os"

	"github.com/boxd/boxd/internal/linux"
)

// filler creates directories, files and symlinks beneath a directory to which nobody
// else can write yet, with exact owners and modes whatever the umask is. After the
// first error, which it keeps, it does nothing.
type filler struct {
	top      *os.File
	uid, gid int // host IDs of the owner
	// kept are mode bits that the umask is known not to clear, which saves chmod calls.
	// The umask must not change while the filler is in use.
	kept uint32
	err  error
}

// learnUmask creates the directory path to find out about the umask.
func (f *filler) learnUmask(path string, mode uint32) {
	f.do(func() error { return linux.MkdirAt(f.top, path, 0o777) })
	f.do(func() error {
		st, err := linux.StatAt(f.top, path)
		f.kept = st.Mode & 0o777
		return err
	})
	f.own(path)
	f.do(func() error { return linux.ChmodAt(f.top, path, mode) })
}

func (f *filler) mkdir(path string, mode uint32) {
	f.do(func() error { return linux.MkdirAt(f.top, path, mode) })
	f.own(path)
	f.chmod(path, mode)
}

// chmod sets the mode of a new entry if the umask may have cleared bits of it.
func (f *filler) chmod(path string, mode uint32) {
	if mode&^f.kept != 0 {
		f.do(func() error { return linux.ChmodAt(f.top, path, mode) })
	}
}

func (f *filler) symlink(path, target string) {
	f.do(func() error { return linux.SymlinkAt(target, f.top, path) })
	f.own(path)
}

func (f *filler) mknod(path string, mode uint32, dev uint64) {
	f.do(func() error { return linux.MknodAt(f.top, path, mode, dev) })
	f.own(path)
	f.chmod(path, mode&0o7777)
}

func (f *filler) write(path string, mode uint32, content []byte) {
	f.do(func() error {
		file, err := linux.CreateAt(f.top, path, mode)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = file.Write(content)
		return err
	})
	f.own(path)
	f.chmod(path, mode)
}

// own changes the owner of path, unless the owner is root, who has created it.
func (f *filler) own(path string) {
	if f.uid == 0 && f.gid == 0 {
		return
	}
	f.do(func() error { return linux.Fchownat(f.top, path, f.uid, f.gid) })
}

func (f *filler) do(step func() error) {
	if f.err == nil {
		f.err = step()
	}
}

// into returns a filler for the directory path. The caller closes its top.
func (f *filler) into(path string) *filler {
	sub := &filler{uid: f.uid, gid: f.gid, kept: f.kept, err: f.err}
	f.do(func() (err error) {
		sub.top, err = openDir(f.top, path)
		return err
	})
	sub.err = f.err
	return sub
}
