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
	"github.com/boxd/boxd/internal/leftover"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// Bounds of the removal of what dead launchers left. A launcher that starts waits for it,
// so what makes no progress (a process that SIGKILL does not reach, in a hung file
// system, say) is waited for once. Then there is a record of it, package leftover, and
// later tries, which are seldom, only look.
const (
	sweepTime = 10 * time.Second // for the boxes of one dead instance
	quietTime = 3 * time.Second  // without that one of them goes
	againTime = 50 * time.Millisecond
)

// sweep removes everything that instances without a living launcher left: their
// processes by cgroup.kill, cgroups, leases, directories. Mounts are gone with
// the processes: they were in private mount namespaces. It goes on after a
// failure, and returns what could not be removed in this try and why, by instance and
// box. What has failed before and is not due to be tried again does not count.
func sweep(ctx context.Context, state string, host *cgroups.Host) (map[string]error, error) {
	failed := map[string]error{}
	if err := forgetGone(state); err != nil {
		return failed, err
	}
	dirs, err := filepath.Glob(filepath.Join(state, instancePrefix+"*"))
	if err != nil {
		return failed, err
	}
	for _, dir := range dirs {
		if _, err := os.Lstat(filepath.Join(dir, serviceName)); err == nil {
			continue // its boxes wait for the next launcher of the service
		}
		before := leftover.Read(state, filepath.Base(dir))
		if before != nil && !before.Due() {
			continue
		}
		lock, err := lockExisting(filepath.Join(dir, "lock"))
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // its launcher lives
		}
		// Without a lock file its launcher died before it made one (we hold the
		// global lock, so nobody is about to), or is removing the directory itself
		// this very moment; then two do the same, which does no harm.
		left := map[string]error{"": err}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			left = sweepInstance(ctx, state, dir, before != nil, host)
			lock.Close() // a nil file is fine
		}
		if err := leftover.Note(state, filepath.Base(dir), left); err != nil {
			left[""] = errors.Join(left[""], err)
		}
		for box, err := range left {
			failed[filepath.Base(dir)+"/"+box] = err
		}
	}
	return failed, nil
}

// forgetGone removes the records of instances that somebody else has removed.
func forgetGone(state string) error {
	records, err := leftover.List(state)
	for _, r := range records {
		if _, serr := os.Lstat(filepath.Join(state, r.Instance)); errors.Is(serr, fs.ErrNotExist) {
			err = errors.Join(err, leftover.Note(state, r.Instance, nil))
		}
	}
	return err
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

// sweepInstance removes a dead instance, or all of it but the boxes that cannot be
// removed, which it returns with the reason; "" is the instance itself. again: that was
// tried before.
func sweepInstance(ctx context.Context, state, dir string, again bool, host *cgroups.Host) map[string]error {
	boxes, err := os.ReadDir(filepath.Join(dir, "boxes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return map[string]error{"": err}
	}
	limit := sweepTime
	if again {
		limit = againTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	failed := sweepBoxes(ctx, dir, boxes, host)
	err = errors.Join(sweepCgroups(ctx, host, proofName(dir)), sweepLeases(filepath.Join(state, "ids"), filepath.Base(dir), failed))
	if err == nil && len(failed) == 0 {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		failed[""] = err
	}
	return failed
}

// sweepBoxes removes the boxes of a dead instance, all at once, so that one which
// is stuck does not use up the time of the others. It gives up when none has gone for
// quietTime. It returns what failed, by box.
func sweepBoxes(ctx context.Context, dir string, boxes []os.DirEntry, host *cgroups.Host) map[string]error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(quietTime, func() { cancel(fmt.Errorf("nothing has changed for %v", quietTime)) })
	defer quiet.Stop()
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]error{}
	for _, b := range boxes {
		wg.Go(func() {
			err := sweepBox(ctx, dir, b.Name(), host)
			if err == nil {
				quiet.Reset(quietTime)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			failed[b.Name()] = fmt.Errorf("box %q: %w", b.Name(), err)
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
	// Only processes need a turn to end; mostly they have ended already.
	if pids, err := group.Processes(); err != nil || len(pids) > 0 {
		turn, err := endings.take(ctx)
		if err != nil {
			return err
		}
		defer turn.give()
		if err := group.Kill(); err != nil {
			return err
		}
	}
	if err := group.Remove(ctx); err != nil {
		return explain(group, err)
	}
	return nil
}

// explain says which process keeps a cgroup from being removed, and what it waits for.
func explain(group *cgroups.Group, err error) error {
	pids, perr := group.Processes()
	if perr != nil || len(pids) == 0 {
		return err
	}
	first := fmt.Sprintf("process %d", pids[0])
	if threads, werr := linux.Waits(pids[0]); werr == nil && len(threads) > 0 {
		first = threads[0].String()
		if worst, found := linux.Hanging(threads); found {
			first = worst.String()
		}
	}
	return fmt.Errorf("%d processes do not end, such as %s: %w", len(pids), first, err)
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
