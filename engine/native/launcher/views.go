package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// views are the directories that the client has open. Each is attached below the state
// directory, in this process's mount namespace, until the client closes it. Landlock walks
// up from a file to find a directory that the client may use, and cannot leave a mount that
// is attached nowhere (is_access_to_paths_allowed in security/landlock/fs.c).
type views struct {
	dir string

	mu   sync.Mutex
	last int
	open map[string]struct{}
	busy bool // detachAll runs
}

// maxViews bounds how many views a client has open, because each new box begins with a copy
// of all mounts.
const maxViews = 256

// attach attaches tree, a detached mount.
func (v *views) attach(tree *os.File) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.open) >= maxViews {
		if v.detachLocked(); len(v.open) >= maxViews {
			return fmt.Errorf("the client has %d directories open, which is the maximum: close some", maxViews)
		}
	}
	v.last++
	path := filepath.Join(v.dir, strconv.Itoa(v.last))
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("attaching a view: %w", err)
	}
	if err := linux.MoveMount(tree, nil, path); err != nil {
		return errors.Join(fmt.Errorf("attaching a view: %w", err), os.Remove(path))
	}
	if v.open == nil {
		v.open = map[string]struct{}{}
	}
	v.open[path] = struct{}{}
	if !v.busy {
		v.busy = true
		go v.detachAll()
	}
	return nil
}

// Pauses between attempts to detach views. Most are open for some milliseconds.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 500 * time.Millisecond
)

// detachAll detaches views until none is left. An ending launcher does not wait for it: its
// mount namespace ends with it.
func (v *views) detachAll() {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		time.Sleep(pause) // the kernel does not report that a descriptor was closed
		v.mu.Lock()
		v.detachLocked()
		if v.busy = len(v.open) > 0; !v.busy {
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
	}
}

// detach detaches the views that the client has closed. The others are busy (umount2(2)).
func (v *views) detach() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.detachLocked()
}

func (v *views) detachLocked() {
	for path := range v.open {
		if err := linux.Unmount(path, unix.UMOUNT_NOFOLLOW); err == nil {
			delete(v.open, path)
			_ = os.Remove(path) // if this fails, it stays in a tmpfs that ends with this process
		}
	}
}
