package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// handleService answers requests that only a service understands.
func (l *Launcher) handleService(r *request) (reply any, files []*os.File, err error) {
	switch r.Type {
	case rpc.TypeAdopt:
		return onBox(l, r, func(m rpc.Box) string { return m.ID }, l.handleAdopt)
	case rpc.TypeList:
		list, err := l.list()
		return list, nil, err
	case rpc.TypePing:
		return nil, nil, l.health()
	case rpc.TypeUsage:
		return onBox(l, r, func(m rpc.Box) string { return m.ID }, (*box).handleUsage)
	case rpc.TypeOpen:
		return onBox(l, r, func(m rpc.Open) string { return m.ID }, (*box).handleOpen)
	case rpc.TypeStop:
		return nil, nil, l.handleStop(r.Body)
	case rpc.TypeMakeVolume:
		return nil, nil, l.handleMakeVolume(r.Body)
	case rpc.TypeCopyVolume:
		reply, err = l.handleCopyVolume(r)
		return reply, nil, err
	case rpc.TypeRemoveVolume:
		return nil, nil, l.handleRemoveVolume(r.Body)
	case rpc.TypeVolumes:
		reply, err = l.handleVolumes(r.Body)
		return reply, nil, err
	case rpc.TypeOpenDirectory:
		files, err = l.handleOpenDirectory(r)
		return nil, files, err
	case rpc.TypeLimitDirectory:
		return nil, nil, l.handleLimitDirectory(r.Body)
	}
	return nil, nil, fmt.Errorf("request of type %d: %w", r.Type, wire.ErrProtocol)
}

func (l *Launcher) handleAdopt(b *box, _ rpc.Box) (any, []*os.File, error) {
	if ended, err := linux.HasExited(b.pidfd, 0); ended || err != nil {
		return nil, nil, fmt.Errorf("box %q: PID 1 has ended: %w", b.id, errors.Join(engine.ErrBoxLost, err))
	}
	managed, err := l.killForeign(b)
	if err != nil {
		return nil, nil, b.orLost(err)
	}
	created, files, err := b.handOver(false)
	if err != nil {
		linux.CloseAll(files)
		return nil, nil, b.orLost(err)
	}
	b.freezing.Lock()
	paused := b.paused
	b.freezing.Unlock()
	return rpc.Adopted{Created: created, Spec: b.specNow(), Managed: managed, Paused: paused}, files, nil
}

// list names all boxes that have a directory, including those being built or removed.
func (l *Launcher) list() (list rpc.List, err error) {
	entries, err := os.ReadDir(l.instance.boxes())
	for _, e := range entries {
		if !l.works.isProbe(e.Name()) && !l.pool.owns(e.Name()) {
			list.IDs = append(list.IDs, e.Name())
		}
	}
	return list, err
}

// Bytes and inodes that must be free on the state directory's file system to build a box.
const (
	minFreeBytes  = 256 << 10
	minFreeInodes = 64
)

// health returns what would keep a box from being built.
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

func (b *box) handleUsage(rpc.Box) (any, []*os.File, error) {
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

// written sums the bytes that the processes of the box have written to disks. It includes
// PID 1, whose figure contains those of the orphans that it reaped. Nil means that this
// kernel does not count them.
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
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH): // unless it has just ended
			return nil, fmt.Errorf("measuring disk writes of box %q: %w", b.id, err)
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

// handleOpen opens slots again for the client, and keeps no descriptors of them.
func (b *box) handleOpen(m rpc.Open) (any, []*os.File, error) {
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
		described, slotFiles := describe(s, nil)
		if described.Memory, err = s.MemoryLimit(); err != nil {
			linux.CloseAll(append(files, slotFiles...))
			return nil, nil, b.orLost(err)
		}
		described.Memory = max(described.Memory, 0)
		reply, files = append(reply, described), append(files, slotFiles...)
	}
	return reply, files, nil
}

// handleStop removes the boxes, if the client asks for that. The service ends after the answer.
func (l *Launcher) handleStop(body []byte) error {
	var m rpc.Stop
	if err := decode(body, &m); err != nil || !m.RemoveBoxes {
		return err
	}
	return l.discardAll(l.takeBoxes(anyBox))
}
