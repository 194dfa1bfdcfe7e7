package volumes

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// walk moves a tree from one project to another, while others may write to it.
//
// It changes a directory before it reads it. From then on, new entries get the new project,
// and entries of other projects cannot be renamed into it (EXDEV); so the walk misses nothing,
// whatever is moved meanwhile. A walk out of a project changes a directory after its content,
// so that until the end the top directory shows that the walk is not finished.
type walk struct {
	from, to uint32
	last     bool                      // change a directory after its content
	stale    func(project uint32) bool // reports whether entries of another project may be taken
	dev      uint64
}

// maxDepth bounds the depth, because one descriptor per level is open.
const maxDepth = 500

func (w *walk) top(dir *os.File) error {
	st, err := linux.Fstat(dir)
	if err != nil {
		return err
	}
	w.dev = st.Dev
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return w.directory(dir, 0)
}

func (w *walk) directory(dir *os.File, depth int) error {
	if depth > maxDepth && w.last {
		return nil // the walk into the project has not come this far
	}
	if depth > maxDepth {
		return refuse("directory", dir.Name(), "has more than %d levels of directories in it", maxDepth)
	}
	if !w.last {
		if err := w.change(dir, true); err != nil {
			return err
		}
	}
	for {
		names, reading := dir.Readdirnames(256)
		for _, name := range names {
			if err := w.entry(dir, name, depth); err != nil {
				return err
			}
		}
		if reading == io.EOF {
			break
		}
		if reading != nil {
			return reading
		}
	}
	if w.last {
		return w.change(dir, false)
	}
	return nil
}

// entry changes the file or directory name, if it still exists and is on this file system. It
// opens nothing else, because that could block or have side effects.
func (w *walk) entry(dir *os.File, name string, depth int) error {
	f, err := linux.Openat2(dir, name, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := linux.Fstat(f)
	if err != nil || st.Dev != w.dev {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		file, err := linux.Reopen(f, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			return err
		}
		defer file.Close()
		return w.change(file, false)
	case unix.S_IFDIR:
		sub, err := linux.Reopen(f, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		f.Close()
		defer sub.Close()
		return w.directory(sub, depth+1)
	}
	return nil
}

// change moves f to the new project. It refuses, or in a walk out of a project skips, anything
// that is in neither of the two projects, because another program may have put it there.
func (w *walk) change(f *os.File, inherit bool) error {
	a, err := linux.GetFileAttr(f)
	if err != nil {
		return err
	}
	if a.Project != w.from && a.Project != w.to {
		if w.last {
			return nil
		}
		if !w.stale(a.Project) {
			return refuse("directory", f.Name(), "is already in project %d: a limited directory must not contain anything of another project", a.Project)
		}
	}
	if a.Project == w.to && (a.Flags&linux.ProjectInherit != 0) == inherit {
		return nil
	}
	if err := setProject(f, w.to, inherit); err != nil {
		return fmt.Errorf("moving it to project %d: %w", w.to, err)
	}
	return nil
}
