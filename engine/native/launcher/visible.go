package launcher

import (
	"os"
	"runtime"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/rootfs"
)

// visibleEvery is how often the launcher refreshes the use that a box reads in /proc, if it has
// a slot, where commands run. It takes some 30 µs per box.
const visibleEvery = 2 * time.Second

// figures returns what a box without commands is shown.
func figures(l cgroups.Limits) rootfs.Figures {
	return rootfs.Figures{Memory: l.Memory, Processors: engine.Limits{CPUs: l.CPUs}.Processors(runtime.NumCPU())}
}

// figures measures what the box is shown.
func (b *box) figures() (rootfs.Figures, error) {
	d, err := b.group.Detail()
	if err != nil {
		return rootfs.Figures{}, err
	}
	b.mu.Lock()
	outside := b.outside.now.Total()
	b.mu.Unlock()
	f := figures(b.group.Limits())
	f.Used, f.Anon, f.Shmem, f.File, f.Mapped = d.Memory+outside, d.Anon, d.Shmem, d.File, d.Mapped
	f.Active = [2]int64{d.ActiveAnon, d.ActiveFile}
	f.Inactive = [2]int64{d.InactiveAnon, d.InactiveFile}
	f.User, f.System = d.User, d.System
	return f, nil
}

// show writes the limits and the use of the box to the files that the box sees.
func (l *Launcher) show(b *box) error {
	if isGVisor(b.spec) {
		return nil // its own kernel does that
	}
	b.showing.Lock()
	defer b.showing.Unlock()
	f, err := b.figures()
	if err != nil {
		return err
	}
	return b.withDir((*rootfs.Root).Visible, (*rootfs.Live).Visible, func(dir *os.File) error { return l.image.Show(dir, f) })
}

// refreshVisible refreshes the use that boxes are shown until stop is closed. An idle box
// costs nothing.
func (l *Launcher) refreshVisible(stop <-chan struct{}) {
	ticker := time.NewTicker(visibleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-stop:
			return
		}
		for _, b := range l.boxesWhere((*box).wasStaleLocked) {
			if b.enter() {
				_ = l.show(b) // retried next time; a change of limits reports failures
				b.leave()
			}
		}
	}
}

// wasStaleLocked reports whether commands may have run in the box since the last call.
func (b *box) wasStaleLocked() bool {
	was, runs := b.stale, b.runsLocked()
	b.stale = runs
	return was || runs
}
