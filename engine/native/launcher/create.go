package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/layers"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/rootfs"
	"golang.org/x/sys/unix"
)

// newBox checks what is asked for, and looks at the program of the engine. It makes nothing yet. It may wait
// for that program, for a limited time, so it is called before the create takes a slot, for which others
// wait. It is no step: a program that does not answer is no sign that this launcher hangs.
func (l *Launcher) newBox(w *work, spec engine.Spec) (*box, error) {
	b, err := l.boxOf(w, spec)
	if err != nil {
		return nil, err
	}
	if _, err := b.runtime.look(false); err != nil {
		return nil, fmt.Errorf("engine %q with isolation %q: %w", b.spec.Engine, b.spec.Isolation, err)
	}
	return b, nil
}

// boxOf is newBox without a look at the program.
func (l *Launcher) boxOf(w *work, spec engine.Spec) (*box, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	b := &box{
		id:      spec.ID,
		spec:    spec.WithDefaults(),
		service: l.service != nil && !w.probe,
		work:    w,
	}
	if b.runtime = l.runtimes[kindOf(b.spec)]; b.runtime == nil {
		return nil, fmt.Errorf("engine %q with isolation %q: %w", b.spec.Engine, b.spec.Isolation, engine.ErrNoEngine)
	}
	w.by(kindOf(b.spec))
	if isGVisor(b.spec) {
		if err := checkGVisor(b.spec); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// create builds a box of newBox or boxOf, in which commands can run. After a failure it removes the
// parts of the box again.
func (l *Launcher) create(w *work, b *box) error {
	b.init()
	if !b.service {
		b.wave = l.waves.takePlace()
	}
	defer l.networks.prepare()
	for _, step := range []func(*box) error{
		l.reserve, l.makeParts, l.startInit, l.furnish, l.verify, l.finish,
	} {
		if err := step(b); err != nil {
			return errors.Join(l.instance.whereFull(err), l.abandon(b, err))
		}
	}
	w.all.noteBuilt()
	return nil
}

// abandon removes the parts of a box that its client does not get. If PID 1 hangs in the
// kernel, where SIGKILL does not reach it, abandon waits for it, and the create counts as
// hanging until then.
func (l *Launcher) abandon(b *box, why error) error {
	b.work.failed(why)
	b.work.spare()
	// The wait for a turn is not part of the step: it is long when many boxes end.
	b.turn, _ = endings.takeTurn(context.Background())
	defer b.work.begin("removing what was made of a box", "", only(b.pid))()
	err := l.discard(b)
	if err != nil && b.reaped != nil {
		<-b.reaped
		err = l.removeAgain(b.id)
	}
	if err != nil && b.work.isOver() { // the client has its answer already
		fmt.Fprintf(os.Stderr, "boxd-init: %v\n", oneline.Error(err))
	}
	return err
}

// only lists one process, or none if pid is 0.
func only(pid int) func() []int {
	return func() []int {
		if pid == 0 {
			return nil
		}
		return []int{pid}
	}
}

// init prepares the fields of a box that is built or adopted.
func (b *box) init() {
	b.name = b.id
	b.slots = map[string]*cgroups.Slot{}
	b.mounted = map[string]mounted{}
	b.userNS = map[string]*os.File{}
	b.outside.killed = map[string]time.Duration{}
	b.life, b.end = context.WithCancel(context.Background())
}

// finish hands the box over to the service, if there is one. A blank box is none of it yet.
func (l *Launcher) finish(b *box) error {
	defer b.work.begin("recording it", "", nil)()
	if !b.service || b.blank {
		return nil
	}
	if err := b.settle(); err != nil {
		return err
	}
	return l.watch(b)
}

// reserve takes the box's name on this host and its id range.
func (l *Launcher) reserve(b *box) error {
	defer b.work.begin("reserving its name and its ids", "", nil)()
	dir := filepath.Join(l.instance.boxes(), b.id)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return fmt.Errorf("reserving box %q: %w", b.id, err)
	}
	// A box of the pool has had this directory until it was noted in l.born, so it is seen here.
	if l.takenBy(b.id, b.id) {
		return errors.Join(fmt.Errorf("reserving box %q: another box has cgroups of this name: %w", b.id, fs.ErrExist), os.Remove(dir))
	}
	b.dir = dir
	if b.blank {
		if err := os.Symlink(b.id, filepath.Join(dir, bornLink)); err != nil {
			return fmt.Errorf("reserving box %q: %w", b.id, err)
		}
	}
	private := filepath.Join(l.instance.private(), b.id)
	if err := os.Mkdir(private, 0o711); err != nil {
		return fmt.Errorf("reserving box %q: %w", b.id, err)
	}
	b.private = private
	lease, err := leaseIDs(filepath.Join(l.instance.state, "ids"), l.instance.owner(b.id))
	if err != nil {
		return err
	}
	b.lease = lease
	return nil
}

// makeParts makes in parallel the parts that the init stage needs. Making the cgroups and
// namespaces takes longest, so it stays on this goroutine.
func (l *Launcher) makeParts(b *box) error {
	root := make(chan error, 1)
	go func() { root <- l.makeRoot(b) }()
	return errors.Join(l.takeNetwork(b), l.makeCgroups(b), b.makeUserNS(), <-root)
}

func (l *Launcher) takeNetwork(b *box) (err error) {
	defer b.work.begin("making its network namespace", "", nil)()
	b.network, err = l.networks.take()
	return err
}

// makeUserNS makes the user namespace of the box. PID 1's user owns it. If root did, the
// kernel would charge root for the inotify watches, POSIX queues, timers and the like of
// all boxes.
func (b *box) makeUserNS() error {
	defer b.work.begin("making its user namespace", "", nil)()
	ids := fmt.Sprintf("0 %d %d", b.lease.Base, idRange)
	ns, err := linux.NewOwnedUserNS(b.lease.Base+agentID, ids, ids)
	if err != nil {
		return err
	}
	b.user = ns
	return nil
}

func (l *Launcher) makeCgroups(b *box) error {
	defer b.work.begin("making its cgroups", "", nil)()
	owner := cgroups.Owner{UID: b.lease.Base + agentID, GID: b.lease.Base + agentID}
	group, err := l.cgroups.Create(cgroupName(l.instance.dir, b.id), owner, limitsOf(b.spec, b.spec.Limits))
	if err != nil {
		return fmt.Errorf("making cgroups: %w", limitError(err))
	}
	group.NumberFrom(l.generation << slotBits)
	b.group = group
	b.work.onRefusal(func() { _ = group.Kill() }) // ends an init stage that hangs
	return nil
}

// limitError adds engine.ErrUnenforceable to an error about a limit that this host cannot
// enforce.
func limitError(err error) error {
	if _, ok := errors.AsType[*cgroups.UnenforceableError](err); ok {
		return fmt.Errorf("%w: %w", engine.ErrUnenforceable, err)
	}
	return err
}

func groupLimits(l engine.Limits, degraded bool) cgroups.Limits {
	return cgroups.Limits{Memory: l.Memory, PIDs: l.PIDs, CPUs: l.CPUs, AllowDegraded: degraded}
}

func (l *Launcher) makeRoot(b *box) error {
	defer b.work.begin("making its root", "", nil)()
	o := rootfs.Options{
		Hostname:  b.spec.Hostname,
		IDBase:    b.lease.Base,
		UID:       b.spec.User.UID,
		GID:       b.spec.User.GID,
		TmpSize:   b.spec.TmpSize,
		Writable:  b.spec.WritableRoot,
		UpperSize: b.spec.UpperSize,
		Figures:   figures(groupLimits(b.spec.Limits, b.spec.AllowDegraded)),
	}
	for _, id := range b.spec.Layers {
		files, err := l.openLayer(id, b.id)
		if err != nil {
			return err
		}
		defer files.Close()
		o.Layers = append(o.Layers, files)
	}
	if o.Writable || len(o.Layers) > 0 {
		ids := []mounts.IDRange{{Disk: 0, Host: uint32(b.lease.Base), Size: idRange}}
		owners := mounts.IDMap{UIDs: ids, GIDs: ids}
		if len(o.Layers) > 0 {
			owners = layerMap(b.lease.Base)
		}
		ns, err := b.mapping(owners)
		if err != nil {
			return err
		}
		defer ns.Close()
		o.IDMapUserNS = ns
	}
	root, err := l.image.Build(filepath.Join(b.private, "root"), o)
	if err != nil {
		return err
	}
	b.root = root
	return nil
}

// openLayer opens the files of a published layer, and holds it for the box. The caller closes the
// directory.
func (l *Launcher) openLayer(id, box string) (*os.File, error) {
	dir, err := l.layers.hold(id, box)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	files, err := linux.Openat2(dir, layers.Files, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", spec.Quote(id), err)
	}
	return files, nil
}

// startInit has the box's runtime make its namespaces and run the agent in them.
func (l *Launcher) startInit(b *box) error {
	defer b.network.Close() // PID 1 keeps the namespaces alive
	defer b.user.Close()
	prepared := b.work.begin("preparing its init stage", "", nil)
	defer func() { prepared() }()
	control, agentEnd, err := l.openControl(b)
	if err != nil {
		return err
	}
	defer agentEnd.Close()
	b.control = control
	home, err := b.group.InitDir()
	if err != nil {
		return err
	}
	defer home.Close()
	birth, err := b.runtime.prepare(b, agentEnd, home)
	if err != nil {
		return err
	}
	l.networks.prepare() // in parallel with the stage, which keeps only one processor busy
	prepared()
	prepared = b.work.begin("starting its init stage", "", func() []int {
		pids, _ := cgroups.Processes(home) // the cgroup may be gone
		return pids
	})
	born, err := birth.start()
	if err != nil {
		return fmt.Errorf("starting box: %w", err)
	}
	b.pid, b.pidfd = born.pid, born.pidfd
	if born.reap != nil {
		b.reaped = make(chan struct{})
		go func() { // from here on another process may get the number
			defer close(b.reaped)
			born.reap()
		}()
	}
	b.work.onRefusal(func() { _ = b.kill() })
	return nil
}

// furnish attaches the box's mounts while the agent sets itself up. The stage has pivoted by
// now: the box has its own copy of the mounts, and those added to it stay.
func (l *Launcher) furnish(b *box) (err error) {
	if b.ns, err = mounts.OpenNS(b.pid); err != nil {
		return err
	}
	if err := b.stillThere(); err != nil {
		return err
	}
	furnished := make(chan error, 1)
	furnish := func() {
		var err error
		if !isGVisor(b.spec) { // whose own kernel has a /proc of its own
			done := b.work.begin("showing it its limits", "", nil)
			err = b.root.Cover(b.ns)
			done()
		}
		if err == nil {
			done := b.work.begin("hiding its root", "", nil)
			err = b.root.Hide()
			done()
		}
		if err == nil {
			err = l.attachMounts(b)
		}
		furnished <- err
	}
	if isGVisor(b.spec) { // the sandbox sees what is there when it starts
		furnish()
	} else {
		go furnish()
	}
	done := b.work.begin("the agent's start, with its system call filter,", "", only(b.pid))
	err = l.greetAgent(b)
	done()
	return errors.Join(err, <-furnished)
}

// maxMappings is how many user namespaces a box keeps for further mounts. Most boxes need
// one, which maps the workspace's owner.
const maxMappings = 8

// mapping returns a user namespace with map m. The caller owns it, and closes it once its
// mounts are made: they do not need it.
func (b *box) mapping(m mounts.IDMap) (*os.File, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f, ok := b.userNS[m.String()]; ok {
		return linux.Dup(f)
	}
	f, err := mounts.UserNS(m)
	if err != nil {
		return nil, fmt.Errorf("making id map: %w", err)
	}
	if len(b.userNS) >= maxMappings || b.service {
		return f, nil // a service has many boxes, most of them idle
	}
	b.userNS[m.String()] = f
	return linux.Dup(f)
}
