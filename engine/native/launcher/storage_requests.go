package launcher

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/volumes"
	"golang.org/x/sys/unix"
)

func (l *Launcher) handleMakeVolume(body []byte) error {
	var m rpc.MakeVolume
	if err := decode(body, &m); err != nil {
		return err
	}
	if err := m.Volume.Validate(); err != nil {
		return err
	}
	if err := l.storage.ready(); err != nil {
		return err
	}
	name := m.Volume.Name
	l.storage.enter(name)
	defer l.storage.leave(name)
	return volumeError(name, l.storage.store.Make(name, m.Volume.Bytes, m.Volume.Inodes))
}

func (l *Launcher) handleCopyVolume(r *request) (rpc.VolumeCopy, error) {
	var m rpc.CopyVolume
	if err := decode(r.Body, &m); err != nil {
		return rpc.VolumeCopy{}, err
	}
	if err := cmp.Or(m.Volume.Validate(), engine.ValidateVolumeName(m.From)); err != nil {
		return rpc.VolumeCopy{}, err
	}
	if err := l.storage.ready(); err != nil {
		return rpc.VolumeCopy{}, err
	}
	return l.storage.copy(r.work.conn, m)
}

func (l *Launcher) handleRemoveVolume(body []byte) error {
	var m rpc.RemoveVolume
	if err := decode(body, &m); err != nil {
		return err
	}
	if err := engine.ValidateVolumeName(m.Name); err != nil {
		return err
	}
	if l.storage == nil {
		return nil // it cannot exist
	}
	l.storage.copies.giveUp(func(c *volumeCopy) bool { return c.to == m.Name }, "the volume is being removed")
	l.views.detach() // views that the client has closed must not keep the volume mounted
	// A box that is being built or destroyed, such as one whose client has given up, holds
	// the volume only for a moment.
	for end := time.Now().Add(goingTime); time.Now().Before(end) && !l.hasAny(l.storage.holdersOf(m.Name)); {
		time.Sleep(10 * time.Millisecond)
	}
	return l.storage.remove(m.Name)
}

// goingTime bounds the wait for boxes that are being built or destroyed.
const goingTime = 5 * time.Second

// hasAny reports whether a client has one of the boxes ids, or there are no ids.
func (l *Launcher) hasAny(ids []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(ids) == 0 || slices.ContainsFunc(ids, func(id string) bool { return l.boxes[id] != nil })
}

func (l *Launcher) handleVolumes(body []byte) (list rpc.VolumeList, err error) {
	var m rpc.Volumes
	if err := decode(body, &m); err != nil || l.storage == nil {
		return list, err
	}
	if err := l.storage.ready(); err != nil {
		return list, err
	}
	states, err := l.storage.store.List()
	if states == nil && err != nil {
		return list, fmt.Errorf("listing volumes: %w", err)
	}
	l.storage.noteUnreadable(err)
	slices.SortFunc(states, func(a, b volumes.State) int { return strings.Compare(a.Name, b.Name) })
	for _, st := range states {
		if st.Name <= m.After {
			continue
		}
		if list.More = len(list.Volumes) == rpc.MaxVolumes; list.More {
			break
		}
		list.Volumes = append(list.Volumes, engine.VolumeState{
			Volume:    engine.Volume{Name: st.Name, Bytes: st.Bytes, Inodes: st.Inodes},
			UsedBytes: st.UsedBytes, UsedInodes: st.UsedInodes, By: st.By,
		})
	}
	return list, nil
}

func (l *Launcher) handleLimitDirectory(body []byte) error {
	var m rpc.LimitDirectory
	if err := decode(body, &m); err != nil {
		return err
	}
	if err := engine.ValidateLimit(m.Directory, m.Bytes, m.Inodes); err != nil {
		return err
	}
	if err := l.storage.ready(); err != nil {
		return err
	}
	m.Directory.ReadOnly = false // setting a limit needs a writable directory
	src, err := l.openDirectory(m.Directory)
	if err != nil {
		return err
	}
	defer src.Close()
	dir, err := linux.DupAs(src.File, src.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return volumeError(m.Directory.Path, l.storage.store.LimitTree(dir, m.Bytes, m.Inodes))
}

// handleOpenDirectory answers with a directory in which the files of its owner belong to the
// client. It lies in a mount that only this process sees, and that disappears when the client
// has closed the directory (see views).
func (l *Launcher) handleOpenDirectory(r *request) ([]*os.File, error) {
	var m rpc.OpenDirectory
	if err := decode(r.Body, &m); err != nil {
		return nil, err
	}
	if err := m.Directory.Validate(); err != nil {
		return nil, err
	}
	if m.Directory.Mappable {
		leave, err := l.trials.enter(m.Directory, r.work)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	src, err := l.openDirectory(m.Directory)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	// A client that writes as root could make setuid files of root's. In a box the system
	// call policy refuses that.
	if l.service.ClientUID != 0 && !m.Directory.ReadOnly && m.Directory.Volume == "" && (src.UID == 0 || src.GID == 0) {
		return nil, &engine.FieldError{Field: "directory.path", Value: spec.Quote(m.Directory.Path),
			Rule: fmt.Sprintf("belongs to root (user %d, group %d): opened for writing it must be another's; chown it, or a directory in it", src.UID, src.GID)}
	}
	if m.Directory.Mappable {
		if err := tryMap(src.Source); err != nil {
			return nil, err
		}
	}
	if m.Directory.Reclaim {
		if err := reclaim(src.Source); err != nil {
			return nil, fmt.Errorf("reclaiming files of other users of boxes: %w", err)
		}
	}
	dir, err := l.viewFor(src.Source, m.Directory.ReadOnly)
	if err != nil {
		return nil, err
	}
	return []*os.File{dir}, nil
}

// tryMap makes the ID-mapped mount of src that a box would get, and drops it.
func tryMap(src *mounts.Source) error {
	owner := mounts.OwnerMap(src.UID, src.GID, idBase, idBase)
	ns, err := mounts.UserNS(owner)
	if err != nil {
		return fmt.Errorf("making id map: %w", err)
	}
	defer ns.Close()
	tree, err := src.Tree(mounts.TreeOptions{ReadOnly: true, Map: owner, UserNS: ns})
	if err != nil {
		return fieldError(err)
	}
	return tree.Close()
}

// openDirectory opens a directory of the host or of a volume, and makes it if d says so.
func (l *Launcher) openDirectory(d engine.Directory) (*source, error) {
	m := engine.Mount{Source: d.Path, Within: d.Within, Volume: d.Volume, ReadOnly: d.ReadOnly, Target: directoryTarget, Users: d.Reclaim}
	if err := m.Validate(); err != nil {
		return nil, fieldError(err)
	}
	src, err := l.openSource(m, d.Make)
	if err != nil {
		return nil, err
	}
	if !src.IsDir {
		src.Close()
		return nil, &engine.FieldError{Field: "directory.path", Value: spec.Quote(d.Path), Rule: "is a file, must be a directory"}
	}
	return src, nil
}

// viewFor opens src for the client. In the view, files of the owner of src belong to the
// client.
func (l *Launcher) viewFor(src *mounts.Source, readOnly bool) (*os.File, error) {
	o := mounts.TreeOptions{ReadOnly: readOnly}
	uid, gid := uint32(l.service.ClientUID), uint32(l.service.ClientGID)
	if src.UID != uid || src.GID != gid {
		o.Map = mounts.OwnerMap(src.UID, src.GID, uid, gid)
		ns, err := mounts.UserNS(o.Map)
		if err != nil {
			return nil, fmt.Errorf("making id map: %w", err)
		}
		defer ns.Close()
		o.UserNS = ns
	}
	tree, err := src.Tree(o)
	if err != nil {
		return nil, fieldError(err)
	}
	defer tree.Close()
	if err := l.views.attach(tree); err != nil {
		return nil, err
	}
	return linux.Openat2(tree, ".", unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}
