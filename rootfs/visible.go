package rootfs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/mounts"
)

// A box sees its limits in /proc/meminfo, /proc/cpuinfo and /proc/stat: the kernel's files are
// covered with read-only mounts of files on the box's own tmpfs, beside its root. The launcher
// writes these files when a limit changes, and every few seconds while commands run.
//
// The usual way is a FUSE server that generates each text when it is read. With files, no reader
// can hang, nothing breaks when the launcher is killed, and PID 1 of the box, which is not
// trusted, gets no descriptor of /dev/fuse. A FUSE mount per box would also cause two udev events
// on the host, and wait for an RCU grace period when it ends. The price: usage figures are a few
// seconds old.
const visibleDir = "visible"

// visibleFiles are the files in visibleDir, by the names that they cover in /proc.
var visibleFiles = []string{"meminfo", "cpuinfo", "stat"}

// hostFigures are the host's limits and usage. It is safe for concurrent use.
type hostFigures struct {
	processors processors

	mu     sync.Mutex
	memory hostMemory
	at     time.Time // when memory was read
}

// memoryNow returns the memory of the host, at most a second old.
func (h *hostFigures) memoryNow() (hostMemory, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) > time.Second {
		text, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			return hostMemory{}, err
		}
		h.memory, h.at = parseMeminfo(text), time.Now()
	}
	return h.memory, nil
}

// within returns f with the host's number of processors if f has more than that, or none.
func (h *hostFigures) within(f Figures) Figures {
	if n := max(len(h.processors.ends), 1); f.Processors <= 0 || f.Processors > n {
		f.Processors = n
	}
	return f
}

// texts returns the contents of visibleFiles.
func (h *hostFigures) texts(f Figures) ([][]byte, error) {
	memory, err := h.memoryNow()
	if err != nil {
		return nil, err
	}
	up, err := linux.Uptime()
	if err != nil {
		return nil, err
	}
	return [][]byte{f.meminfo(memory), h.processors.first(f.Processors), f.stat(time.Now(), up)}, nil
}

// size returns how many bytes and inodes the files take at most.
func (h *hostFigures) size() (bytes, inodes int64) {
	const statLine = 128
	n := len(h.processors.ends)
	pages := 4 + processorPages(n)
	return pages*int64(os.Getpagesize()) + int64(len(h.processors.text)+n*statLine), 8 + processorInodes(n)
}

// visible creates the files, and detached mounts of them. The caller closes the trees, even after
// an error.
func (b *builder) visible() (covers []mounts.Cover, err error) {
	figures := b.host.figures.within(b.o.Figures)
	texts, err := b.host.figures.texts(figures)
	if err != nil {
		return nil, err
	}
	before, err := linux.Fstatfs(b.top)
	if err != nil {
		return nil, err
	}
	top := &filler{top: b.top, kept: b.kept}
	top.mkdir(visibleDir, 0o700)
	f := top.into(visibleDir)
	if f.err != nil {
		return nil, f.err
	}
	b.root.visible = f.top
	for i, name := range visibleFiles {
		f.write(name, 0o444, texts[i])
	}
	f.mkdir(processorsDir, 0o755)
	if f.err != nil {
		return nil, f.err
	}
	if err := makeProcessors(linux.FdPath(f.top)+"/"+processorsDir+"/", figures.Processors); err != nil {
		return nil, err
	}
	if b.o.Writable { // take back the part of the files' reserve that they do not use
		after, err := linux.Fstatfs(b.top)
		if err != nil {
			return nil, err
		}
		size := b.o.UpperSize + int64(before.Bfree-after.Bfree)*before.Bsize
		if err := linux.Reconfigure(b.top, linux.Option{Key: "size", Value: strconv.FormatInt(size, 10)}); err != nil {
			return nil, err
		}
	}
	for _, name := range append([]string{processorsDir}, visibleFiles...) {
		target := "/proc/" + name
		if name == processorsDir {
			target = "/" + processorsTarget
		}
		tree, err := linux.OpenTree(f.top, name, unix.OPEN_TREE_CLONE|unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return covers, err
		}
		covers = append(covers, mounts.Cover{Tree: tree, Target: target})
		if err := linux.MountSetattr(tree, false, unix.MountAttr{Attr_set: attrReadOnly | unix.MOUNT_ATTR_NOEXEC}); err != nil {
			return covers, err
		}
	}
	return covers, nil
}

// Cover creates the files that show the box its limits, at first those of Options, and covers the
// kernel's files with them. In ns, the namespace of the box, /proc must be mounted, and no command
// may run yet. Cover is called once, before Hide. Build leaves the files to it because the caller
// has time while the box's first process starts.
func (r *Root) Cover(ns mounts.NS) error {
	defer r.built.top.Close()
	covers, err := r.built.visible()
	if err == nil {
		err = mounts.CoverAll(ns, covers)
	}
	for _, c := range covers {
		c.Tree.Close()
	}
	if err != nil {
		return fmt.Errorf("showing limits: %w", err)
	}
	return nil
}

// Visible returns the directory of the files that show the box its limits, for [Host.Show]. It
// belongs to r.
func (r *Root) Visible() *os.File { return r.visible }

// Visible is like that of Root, but the caller owns it.
func (l *Live) Visible() (*os.File, error) {
	dir, err := l.beside(visibleDir)
	if err != nil {
		return nil, fmt.Errorf("opening files that show limits: %w", err)
	}
	return dir, nil
}

// Show writes figures to the files in dir, which is [Root.Visible]. Calls for the same box must
// not overlap.
//
// A reader can get the beginning of the new text with the end of the old one. So the memory
// figures keep their positions, and processors are added and removed at the end.
func (h *Host) Show(dir *os.File, f Figures) error {
	f = h.figures.within(f)
	texts, err := h.figures.texts(f)
	if err == nil {
		err = showProcessors(dir, f.Processors)
		for i, name := range visibleFiles {
			err = errors.Join(err, linux.RewriteAt(dir, name, texts[i]))
		}
	}
	if err != nil {
		return fmt.Errorf("showing limits: %w", err)
	}
	return nil
}
