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
// directory, in this process's mount namespace, for as long as the client has it: Landlock
// looks for a directory that the client may use on the way up, and does not get anywhere
// from a mount that is attached nowhere (is_access_to_paths_allowed in
// security/landlock/fs.c).
type views struct {
	dir string

	mu   sync.Mutex
	last int
	open map[string]struct{}
	busy bool // somebody waits for the client to close them
}

// maxViews bounds what a client has open: each new box begins with a copy of all mounts.
const maxViews = 256

// attach attaches tree, a detached mount.
func (v *views) attach(tree *os.File) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.open) >= maxViews {
		if v.detachLocked(); len(v.open) >= maxViews {
			return fmt.Errorf("the client has %d directories open, and there can be no more: close some", maxViews)
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

// Pauses between looks at what the client has closed. Most is open for some milliseconds.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 500 * time.Millisecond
)

// detachAll detaches views until there is none. The launcher does not wait for it at its
// end: its mount namespace ends with it.
func (v *views) detachAll() {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		time.Sleep(pause) // the kernel does not report the closing of a descriptor
		v.mu.Lock()
		v.detachLocked()
		if v.busy = len(v.open) > 0; !v.busy {
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
	}
}

// detach detaches what the client has closed. Until then it is busy (umount2(2)).
func (v *views) detach() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.detachLocked()
}

func (v *views) detachLocked() {
	for path := range v.open {
		if err := linux.Unmount(path, unix.UMOUNT_NOFOLLOW); err == nil {
			delete(v.open, path)
			_ = os.Remove(path) // else it stays in a tmpfs that ends with this process
		}
	}
}
