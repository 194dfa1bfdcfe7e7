package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/cgroups"
	"golang.org/x/sys/unix"
)

// Every launcher sweeps before it is ready, so what cannot be removed (a process
// that SIGKILL does not reach, in a hung file system, say) is waited for once and
// then only looked at.
const (
	sweepTime = 10 * time.Second // for the boxes of one dead instance
	againTime = 50 * time.Millisecond
	stuckName = "stuck"
)

// sweep removes everything that instances without a living launcher left: their
// processes by cgroup.kill, cgroups, leases, directories. Mounts are gone with
// the processes: they were in private mount namespaces. It goes on after a
// failure; the record of what is left stays for the next sweep.
func sweep(ctx context.Context, state string, host *cgroups.Host) error {
	dirs, err := filepath.Glob(filepath.Join(state, instancePrefix+"*"))
	if err != nil {
		return err
	}
	var errs error
	for _, dir := range dirs {
		if _, err := os.Lstat(filepath.Join(dir, serviceName)); err == nil {
			continue // its boxes wait for the next launcher of the service
		}
		lock, err := lockExisting(filepath.Join(dir, "lock"))
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // its launcher lives
		}
		// Without a lock file its launcher died before it made one (we hold the
		// global lock, so nobody is about to), or is removing the directory itself
		// this very moment; then two do the same, which does no harm.
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = sweepInstance(ctx, state, dir, host)
			lock.Close() // a nil file is fine
		}
		errs = errors.Join(errs, err)
	}
	return errs
}

// lockExisting is lockFile for a file that must not be made: a new one would
// keep its directory from being removed by its owner.
func lockExisting(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "flock", Path: path, Err: err}
	}
	return f, nil
}

// sweepInstance removes a dead instance, or all of it but the boxes that cannot
// be removed.
func sweepInstance(ctx context.Context, state, dir string, host *cgroups.Host) error {
	boxes, err := os.ReadDir(filepath.Join(dir, "boxes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	stuck := filepath.Join(dir, stuckName)
	limit := sweepTime
	if _, err := os.Lstat(stuck); err == nil {
		limit = againTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	failed := sweepBoxes(ctx, dir, boxes, host)
	err = sweepLeases(filepath.Join(state, "ids"), filepath.Base(dir), failed)
	for _, e := range failed {
		err = errors.Join(err, e)
	}
	if err != nil {
		return errors.Join(err, os.WriteFile(stuck, nil, 0o600))
	}
	return os.RemoveAll(dir)
}

// sweepBoxes removes the boxes of a dead instance, all at once, so that one which
// is stuck does not use up the time of the others. It returns what failed, by box.
func sweepBoxes(ctx context.Context, dir string, boxes []os.DirEntry, host *cgroups.Host) map[string]error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]error{}
	for _, b := range boxes {
		wg.Go(func() {
			if err := sweepBox(ctx, dir, b.Name(), host); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[b.Name()] = fmt.Errorf("box %q: %w", b.Name(), err)
			}
		})
	}
	wg.Wait()
	return failed
}

func sweepBox(ctx context.Context, dir, id string, host *cgroups.Host) error {
	if err := sweepCgroups(ctx, host, cgroupName(dir, id)); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(dir, "boxes", id))
}

func sweepCgroups(ctx context.Context, host *cgroups.Host, name string) error {
	group, err := host.OpenGroup(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer group.Close()
	if err := endings.take(ctx); err != nil {
		return err
	}
	defer endings.give()
	if err := group.Kill(); err != nil {
		return err
	}
	return group.Remove(ctx)
}

// sweepLeases gives back the id ranges of a dead instance, except those of boxes
// that are not gone.
func sweepLeases(dir, instance string, keep map[string]error) error {
	leases, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, l := range leases {
		path := filepath.Join(dir, l.Name())
		target, err := os.Readlink(path)
		owner, box, ok := strings.Cut(target, "/")
		if err != nil || !ok || owner != instance || keep[box] != nil {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// releaseOf gives back the id range of one owner.
func releaseOf(dir, owner string) error {
	leases, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, l := range leases {
		path := filepath.Join(dir, l.Name())
		if target, err := os.Readlink(path); err == nil && target == owner {
			return os.Remove(path)
		}
	}
	return nil
}

// oneLine makes one line of joined errors.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
