package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// handleService answers what only a service understands.
func (l *Launcher) handleService(r *request) (any, []*os.File, error) {
	if reply, files, known, err := l.handleStorage(r); known {
		return reply, files, err
	}
	switch r.Type {
	case rpc.TypeAdopt:
		return l.handleAdopt(r)
	case rpc.TypeList:
		list, err := l.list()
		return list, nil, err
	case rpc.TypePing:
		return nil, nil, l.health()
	case rpc.TypeUsage:
		return l.handleUsage(r)
	case rpc.TypeOpen:
		return l.handleOpen(r)
	case rpc.TypeStop:
		return nil, nil, l.handleStop(r.Body)
	}
	return nil, nil, fmt.Errorf("request of type %d: %w", r.Type, wire.ErrProtocol)
}

func (l *Launcher) handleAdopt(r *request) (any, []*os.File, error) {
	var m rpc.Box
	b, err := l.find(r, &m, func() string { return m.ID })
	if err != nil {
		return nil, nil, err
	}
	if ended, err := linux.HasExited(b.pidfd, 0); ended || err != nil {
		return nil, nil, fmt.Errorf("box %q: PID 1 has ended: %w", b.id, errors.Join(engine.ErrBoxLost, err))
	}
	var a rpc.Adopted
	if a.Managed, err = l.killForeign(b); err != nil {
		return nil, nil, b.orLost(err)
	}
	created, files, err := b.handOver(false)
	if err != nil {
		linux.CloseAll(files)
		return nil, nil, b.orLost(err)
	}
	a.Created, a.Spec = created, b.specNow()
	return a, files, nil
}

// list names all boxes that leave something on this host.
func (l *Launcher) list() (list rpc.List, err error) {
	entries, err := os.ReadDir(l.instance.boxes())
	for _, e := range entries {
		if !l.works.isProbe(e.Name()) {
			list.IDs = append(list.IDs, e.Name())
		}
	}
	return list, err
}

// minFree is how many bytes and inodes of the state directory a box may need.
const (
	minFreeBytes  = 256 << 10
	minFreeInodes = 64
)

// health says what would keep a box from being made.
func (l *Launcher) health() error {
	var st unix.Statfs_t
	if err := unix.Statfs(l.instance.boxes(), &st); err != nil {
		return fmt.Errorf("state directory %q: %w", l.instance.state, err)
	}
	if free := int64(st.Bavail) * st.Bsize; st.Blocks > 0 && free < minFreeBytes || st.Files > 0 && st.Ffree < minFreeInodes {
		return fmt.Errorf("state directory %q: its file system is full (%d bytes and %d inodes free): free space in %s", l.instance.state, free, st.Ffree, l.instance.state)
	}
	if _, err := l.cgroups.List(); err != nil {
		return fmt.Errorf("looking at cgroups: %w", err)
	}
	return l.canBuild()
}

func (l *Launcher) handleUsage(r *request) (any, []*os.File, error) {
	var m rpc.Box
	b, err := l.find(r, &m, func() string { return m.ID })
	if err != nil {
		return nil, nil, err
	}
	u, err := b.group.Usage()
	if err != nil {
		return nil, nil, b.orLost(err)
	}
	written, err := b.written()
	if err != nil {
		return nil, nil, b.orLost(err)
	}
	return engine.Usage{Memory: u.Memory, PIDs: u.PIDs, CPU: microseconds(u.CPUUsec), Throttled: microseconds(u.ThrottledUsec), Written: written}, nil, nil
}

// written sums up what the processes of the box have written to disks, PID 1 included, which
// waits for orphans. Nil: this kernel does not count that.
func (b *box) written() (*int64, error) {
	pids, err := b.group.Processes()
	if err != nil {
		return nil, err
	}
	var sum int64
	counted := false
	for _, pid := range pids {
		n, err := linux.DiskWrites(pid)
		switch {
		case err == nil:
			sum, counted = sum+n, true
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH): // it has not just ended
			return nil, fmt.Errorf("measuring what box %q writes: %w", b.id, err)
		}
	}
	if !counted {
		return nil, nil
	}
	return &sum, nil
}

func microseconds(n *int64) *time.Duration {
	if n == nil {
		return nil
	}
	d := time.Duration(*n) * time.Microsecond
	return &d
}

// handleOpen opens slots again. The descriptors are the client's alone.
func (l *Launcher) handleOpen(r *request) (any, []*os.File, error) {
	var m rpc.Open
	b, err := l.find(r, &m, func() string { return m.ID })
	if err != nil {
		return nil, nil, err
	}
	if len(m.Slots) > rpc.MaxSlots {
		return nil, nil, fmt.Errorf("%d slots: %w", len(m.Slots), wire.ErrProtocol)
	}
	reply := []rpc.Slot{}
	var files []*os.File
	for _, name := range m.Slots {
		if _, err := b.slot(name); err != nil {
			continue
		}
		s, err := b.group.Slot(name)
		if err == nil {
			err = s.Open()
		}
		if err != nil {
			linux.CloseAll(files)
			return nil, nil, b.orLost(err)
		}
		described, slotFiles := describe(s)
		if described.Memory, err = s.MemoryLimit(); err != nil {
			linux.CloseAll(append(files, slotFiles...))
			return nil, nil, b.orLost(err)
		}
		described.Memory = max(described.Memory, 0)
		reply, files = append(reply, described), append(files, slotFiles...)
	}
	return reply, files, nil
}

// handleStop removes the boxes, if asked for. The service ends after the answer.
func (l *Launcher) handleStop(body []byte) error {
	var m rpc.Stop
	if err := json.Unmarshal(body, &m); err != nil {
		return fmt.Errorf("decoding request: %w", err)
	}
	if !m.RemoveBoxes {
		return nil
	}
	l.mu.Lock()
	boxes := l.boxes
	l.boxes = map[string]*box{}
	l.mu.Unlock()
	var wg sync.WaitGroup
	errs := make(chan error, len(boxes))
	for _, b := range boxes {
		wg.Go(func() { errs <- l.discard(b) })
	}
	wg.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return all
}
