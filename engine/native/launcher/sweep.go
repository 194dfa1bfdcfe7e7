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

// Bounds of the removal of what dead launchers left. A launcher waits for it when it starts.
// If a removal makes no progress, for example because SIGKILL does not reach a process in a
// hung file system, launchers wait for it only once. Then package leftover records it, and
// later attempts, which are rare, wait for againTime.
const (
	sweepTime = 10 * time.Second // for all boxes of one dead instance
	quietTime = 3 * time.Second  // in which none of them is removed
	againTime = 50 * time.Millisecond
)

// sweep removes everything that instances without a living launcher left: processes (by
// cgroup.kill), cgroups, leases and directories. Their mounts are gone with the processes,
// because they were in private mount namespaces. It continues after a failure, and returns
// what this attempt could not remove and why, by instance and box. Leftovers whose next
// attempt is not due yet are skipped.
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
		lock, err := lockFile(filepath.Join(dir, "lock"), 0) // a new one would keep the directory from being removed
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // its launcher lives
		}
		// If there is no lock file, the launcher died before it made one (we hold the
		// global lock, so none is about to make it), or it is removing the directory right
		// now; then both remove it, which does no harm.
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

// forgetGone removes the records of instances that exist no longer.
func forgetGone(state string) error {
	records, err := leftover.List(state)
	for _, r := range records {
		if _, serr := os.Lstat(filepath.Join(state, r.Instance)); errors.Is(serr, fs.ErrNotExist) {
			err = errors.Join(err, leftover.Note(state, r.Instance, nil))
		}
	}
	return err
}

// sweepInstance removes a dead instance. If it cannot remove some boxes, it returns them
// with the reasons and keeps the instance; the key "" is the instance itself. again says
// that an earlier attempt failed.
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
	err = errors.Join(sweepCgroups(ctx, host, proofName(dir)), sweepLeases(filepath.Join(state, "ids"), dir, failed))
	if err == nil && len(failed) == 0 {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		failed[""] = err
	}
	return failed
}

// sweepBoxes removes the boxes of a dead instance in parallel, so that a stuck one does not
// use up the time of the others. It gives up when it has removed none for quietTime. It
// returns the failures by box.
func sweepBoxes(ctx context.Context, dir string, boxes []os.DirEntry, host *cgroups.Host) map[string]error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(quietTime, func() { cancel(fmt.Errorf("nothing has changed for %v", quietTime)) })
	defer quiet.Stop()
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]error{}
	taken, terr := bornNames(dir)
	for _, b := range boxes {
		wg.Go(func() {
			name := bornName(dir, b.Name())
			if other := taken[name]; other != "" && other != b.Name() {
				name = ""
			}
			err := terr
			if err == nil {
				err = sweepBox(ctx, dir, b.Name(), name, host)
			}
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

// sweepBox removes the cgroups and the directory of a box. name is that of its bornName, or "" if the cgroups of that
// name are those of another box.
func sweepBox(ctx context.Context, dir, id, name string, host *cgroups.Host) error {
	if name != "" {
		if err := sweepCgroups(ctx, host, cgroupName(dir, name)); err != nil {
			return err
		}
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
	// Only live processes need a turn to end; most have ended already.
	if pids, err := group.Processes(); err != nil || len(pids) > 0 {
		turn, err := endings.takeTurn(ctx)
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

// sweepLeases gives back the id ranges of a dead instance with directory dir, except those of the
// boxes in keep.
func sweepLeases(ids, dir string, keep map[string]error) error {
	names := map[string]bool{}
	for box, err := range keep {
		names[bornName(dir, box)] = err != nil
	}
	return releaseLeases(ids, func(owner string) bool {
		of, name, ok := strings.Cut(owner, "/")
		return ok && of == filepath.Base(dir) && !names[name]
	})
}
