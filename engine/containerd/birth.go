package containerd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine/containerd/proto"
	"github.com/boxd/boxd/engine/containerd/standin"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// Names in the directory of a container, besides those of package standin.
const (
	boxName   = "box"
	stateName = "state"
)

// unborn is where attend makes the directory of a container, in the directory of its box.
const unborn = "containerd"

// Birth describes the start of a box. The caller keeps the files.
type Birth struct {
	Container string // its ID in containerd, see [ContainerID]
	Box       string // directory of the box, which is gone when the box is
	Runc      string // path of runc
	Spec      []byte // of the runtime, JSON; without cgroups
	// runc starts in these namespaces and cgroups: the cgroup2 directory, and the tasks files of v1.
	MountNS, NetworkNS *os.File
	Cgroup             *os.File
	Tasks              []*os.File
	Files              []*os.File // PID 1 inherits them, as descriptors from 3 on
}

// Create has containerd make the namespaces of a box and start its PID 1, which waits for
// [Engine.Run]. It fails with engine.ErrNoEngine if containerd cannot be reached, or does not
// answer in time. The caller checks that PID 1 is what it should be.
//
// After a failure, processes may be left in the cgroups of b, which the caller kills. What is left
// in containerd is removed by [Engine.Forget], which the caller calls after that, in any case.
func (e *Engine) Create(ctx context.Context, b Birth) (pid int, err error) {
	unlock := e.works.Lock(b.Container)
	defer unlock()
	if err := e.forget(ctx, b.Container); err != nil { // an earlier box of that name
		return 0, err
	}
	m, err := e.attend(b)
	if err != nil {
		return 0, fmt.Errorf("preparing container %q: %w", b.Container, err)
	}
	dir := e.dir(b.Container)
	r, err := e.request(ctx, proto.TypeCreate, proto.Request{Within: createTime, ID: b.Container, Create: &proto.Create{
		Labels:  map[string]string{proto.LabelState: e.options.StateDir, proto.LabelBox: b.Box},
		Runtime: e.options.Runtime,
		Binary:  filepath.Join(dir, standin.Name),
		Root:    filepath.Join(dir, stateName),
		Spec:    b.Spec,
	}})
	m.listener.Close()
	<-m.done
	switch {
	case err != nil && m.err != nil:
		return 0, fmt.Errorf("creating container %q: %w: %w", b.Container, err, m.err)
	case err == nil && !m.served:
		err = fmt.Errorf("its shim has not started boxd's stand-in of runc: boxd needs a runtime that runs runc, such as %s", DefaultRuntime)
	}
	if err := cmp.Or(err, m.err); err != nil {
		return 0, fmt.Errorf("creating container %q: %w", b.Container, err)
	}
	if err := os.Rename(filepath.Join(dir, standin.ProgramName), filepath.Join(dir, standin.Name)); err != nil {
		return 0, err
	}
	return r.PID, os.Remove(filepath.Join(dir, standin.SocketName))
}

// Run has PID 1 of a created box run its program.
func (e *Engine) Run(ctx context.Context, container string) error {
	if _, err := e.request(ctx, proto.TypeStart, proto.Request{Within: createTime, ID: container}); err != nil {
		return fmt.Errorf("starting container %q: %w", container, err)
	}
	return nil
}

// midwife waits for the stand-in of one box.
type midwife struct {
	listener *net.UnixListener
	done     chan struct{} // closed when nothing more happens; the following is valid then
	served   bool          // something has connected
	err      error         // why it did not get the box
}

// attend makes the directory of a container, and waits in the background for the stand-in, to
// which it gives the files of b.
//
// The directory appears among those of other containers as a whole: another launcher of the state
// directory takes one without a box for what a dead launcher has left. Until then, it goes with the box.
func (e *Engine) attend(b Birth) (_ *midwife, err error) {
	dir := filepath.Join(b.Box, unborn)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	m := &midwife{done: make(chan struct{})}
	defer func() {
		if err != nil {
			if m.listener != nil {
				m.listener.Close()
			}
			_ = os.RemoveAll(dir)
		}
	}()
	for name, target := range map[string]string{
		standin.Name:        e.options.Program,
		standin.ProgramName: b.Runc,
		boxName:             b.Box,
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	// The directory by descriptor: a path may be longer than the 107 bytes of an address (unix(7)).
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	m.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: linux.FdPath(d) + "/" + standin.SocketName, Net: "unix"})
	if err != nil {
		return nil, err
	}
	m.listener.SetUnlinkOnClose(false)
	if err := e.placeDir(dir, b.Container); err != nil {
		return nil, err
	}
	go func() {
		defer close(m.done)
		sock, err := m.listener.AcceptUnix()
		if err != nil {
			return // there was none until the end
		}
		m.listener.Close() // one is enough
		m.served, m.err = true, e.deliver(sock, b)
	}()
	return m, nil
}

// deliver gives the files of a box to the process at the other end, if that is the stand-in. It
// closes sock.
func (e *Engine) deliver(sock *net.UnixConn, b Birth) error {
	conn := wire.NewConn(sock)
	defer conn.Close()
	peer, err := linux.PeerOf(sock)
	if err != nil {
		return err
	}
	pidfd, pid, err := linux.PeerProcess(sock)
	if err != nil {
		return err
	}
	defer pidfd.Close()
	var ours, theirs unix.Stat_t
	if err := errors.Join(unix.Stat(e.options.Program, &ours), unix.Stat("/proc/"+strconv.Itoa(pid)+"/exe", &theirs)); err != nil {
		return fmt.Errorf("identifying process %d: %w", pid, err)
	}
	// If the process is still there, the pid was its own the whole time.
	if ended, err := linux.HasExited(pidfd, 0); ended || err != nil {
		return errors.Join(errors.New("the stand-in has ended"), err)
	}
	if peer.UID != 0 || ours.Dev != theirs.Dev || ours.Ino != theirs.Ino {
		return fmt.Errorf("process %d of uid %d is not %q: it gets nothing of a box", pid, peer.UID, e.options.Program)
	}
	e.mu.Lock()
	version := e.version
	e.mu.Unlock()
	body, err := json.Marshal(standin.Birth{Version: version, Tasks: len(b.Tasks)})
	if err != nil {
		return err
	}
	return conn.Send(standin.TypeBirth, 0, body, slices.Concat([]*os.File{b.MountNS, b.NetworkNS, b.Cgroup}, b.Tasks, b.Files)...)
}
