package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/native/seccomp"
	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/internal/leftover"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/version"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/rootfs"
	"github.com/opencontainers/runc/libcontainer/exeseal"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// etcCache is where all launchers keep their copies of the public part of /etc, whatever
// their state directories are: making one takes longer than to start a launcher.
const etcCache = "/run/boxd/etc"

// clientFD is where the launcher finds its client.
const clientFD = 3

// Launcher serves one client.
type Launcher struct {
	client   *wire.Conn // without a service
	service  *service   // nil: serves one client, and its boxes end with it
	instance *instance
	cgroups  *cgroups.Host
	image    *rootfs.Host
	deny     []string // trees that are never mounted
	storage  *storage // nil without a data directory
	filter   []byte   // seccomp program of agents
	networks *networks
	waves    waves // of boxes that end with this launcher
	views    views
	creating chan struct{}
	budget   *budget // of requests
	works    *works  // requests under way
	pulse    pulse   // whether boxes can be built
	trials   trials  // of directories
	// generation counts the launchers of an instance: the numbers of slots begin with
	// it, so that none is given out twice.
	generation int64

	mu        sync.Mutex
	boxes     map[string]*box
	unremoved map[string]struct{} // boxes of which something could not be removed

	// undead says that a box could not be removed: the record of it must outlive
	// this launcher.
	undead atomic.Bool

	requests sync.WaitGroup

	watching    sync.WaitGroup // watchOutside and refreshVisible
	stopOutside chan struct{}  // closed to end them; nil before it began
}

// quietLibcontainer leaves its reports to the errors that it returns, and starts its init
// stage with the one processor that the stage would else reduce itself to, after it has
// looked for a limit and stopped its threads.
func quietLibcontainer() {
	logrus.SetLevel(logrus.ErrorLevel)
	os.Setenv("GOMAXPROCS", "1") // of the stage: this process has read its own
}

// Main runs a launcher on descriptor 3 until its client goes away. It needs a
// mount namespace of its own, which the client gives it with the first clone.
func Main(stateDir string) error {
	// What others may read and enter is for the launcher to say, not for whoever
	// called its client.
	unix.Umask(0o022)
	// Its end is the client's, or SIGKILL: signals that reach a whole session or
	// service must not stop it in the middle of removing boxes.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	quietLibcontainer()
	client, err := wire.FileConn(os.NewFile(clientFD, "client"))
	if err != nil {
		return err
	}
	client.RefuseFDs() // a client has none to give
	l, err := open(stateDir, nil)
	if l != nil {
		l.client = client
	}
	herr := hello(client, err)
	switch {
	case errors.Is(herr, unix.EPIPE):
		return l.close() // the client has given up already
	case herr != nil || err != nil:
		return errors.Join(herr, l.close())
	}
	served := make(chan struct{})
	go func() { // not on the main thread, to which a change of goroutines is slow
		defer close(served)
		l.serve()
	}()
	<-served
	return l.close()
}

// hello tells the client who serves it, or why nobody does.
func hello(client *wire.Conn, reason error) error {
	h := rpc.Hello{Version: version.Version, Protocol: rpc.Protocol}
	if reason != nil {
		h.Error = reason.Error()
	}
	return sayHello(client, h)
}

func sayHello(client *wire.Conn, h rpc.Hello) error {
	body, err := json.Marshal(h)
	return errors.Join(err, client.Send(rpc.TypeHello, 0, body))
}

// open does everything that does not depend on a box.
func open(stateDir string, s *service) (l *Launcher, err error) {
	// Without a seal libcontainer would copy the binary for every box.
	if !exeseal.IsSelfExeCloned() {
		return nil, errors.New("launcher does not run from a sealed copy of boxd-init")
	}
	l = &Launcher{
		service: s,
		boxes:   map[string]*box{},
		deny:    append([]string{stateDir}, mounts.DefaultDeny...),
		budget:  newBudget(),
		works:   newWorks(),
		// No more at once than there are processors: with twice as many a hundred boxes are
		// there 15 % sooner, but commands in others wait 10 to 20 % longer meanwhile.
		creating: make(chan struct{}, runtime.NumCPU()),
	}
	if s != nil && s.dataDir != "" {
		l.deny = append(l.deny, s.dataDir)
	}
	if l.filter, err = seccomp.Compile(); err != nil {
		return nil, fmt.Errorf("compiling seccomp filter: %w", err)
	}
	if err := l.openHost(stateDir); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *Launcher) openHost(stateDir string) error {
	avoidHugePages()
	if err := becomeSubreaper(); err != nil {
		return err
	}
	// What the host mounts later is seen here, what is mounted here stays here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separating mount namespace: %w", err)
	}
	var err error
	if l.cgroups, err = cgroups.Detect(); err != nil {
		return fmt.Errorf("finding cgroups: %w", err)
	}
	if l.service != nil { // until openService keeps it again
		diskroom.GiveSpare(filepath.Join(stateDir, rpc.SpareFile))
	}
	if l.instance, err = openInstance(context.Background(), stateDir, l.cgroups, l.service != nil); err != nil {
		return err
	}
	// Ahead of the first box, which waits for the answer. The Host waits for it as well
	// when it is closed.
	go func() { _ = l.cgroups.CheckKernelMemory(proofName(l.instance.dir)) }()
	if err := l.instance.mountPrivate(); err != nil {
		return err
	}
	l.views.dir = filepath.Join(l.instance.private(), "views")
	openHost := rootfs.OpenHost
	if l.service != nil {
		openHost = rootfs.OpenReachableHost
	}
	if l.image, err = openHost(filepath.Join(l.instance.private(), "host"), etcCache); err != nil {
		return fmt.Errorf("preparing image %q: %w", "host", err)
	}
	l.networks = newNetworks()
	if err := l.hideCgroups(); err != nil {
		return err
	}
	if l.service != nil {
		if err := l.openService(); err != nil {
			return err
		}
	}
	l.stopOutside = make(chan struct{})
	l.watching.Go(func() { l.watchOutside(l.stopOutside) })
	l.watching.Go(func() { l.refreshVisible(l.stopOutside) })
	return nil
}

// hideCgroups shows libcontainer a read-only cgroup2 and nothing else, so that it
// leaves cgroups alone, and boxes no cgroupfs that they could find a way to.
func (l *Launcher) hideCgroups() error {
	tree, err := l.cgroups.ReadOnlyTree()
	if err != nil {
		return err
	}
	defer tree.Close()
	if err := linux.MoveMount(tree, nil, "/sys/fs/cgroup"); err != nil {
		return fmt.Errorf("hiding cgroups: %w", err)
	}
	return nil
}

// serve answers requests until the client goes away.
func (l *Launcher) serve() {
	for {
		frame, err := l.client.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintf(os.Stderr, "boxd-init: launcher: %v\n", err)
			}
			return
		}
		cost := requestCost + len(frame.Body)
		l.budget.take(cost) // the client waits, and at most one frame more is in memory
		w := l.works.request(l.client, frame)
		l.requests.Go(func() {
			defer l.budget.give(cost)
			l.answer(w, frame)
		})
	}
}

// discard destroys a box that nobody can find any more.
func (l *Launcher) discard(b *box) error {
	err := b.destroy()
	if err != nil {
		l.noteUnremoved(b.id)
		return err
	}
	if b.dir != "" { // else the name, and what is held under it, is another box's
		l.storage.dropAll(b.id)
	}
	return nil
}

// noteUnremoved keeps the record of a box, and has a further Remove try again.
func (l *Launcher) noteUnremoved(id string) {
	l.undead.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unremoved == nil {
		l.unremoved = map[string]struct{}{}
	}
	l.unremoved[id] = struct{}{}
}

// removeAgain removes what is left of a box, if anything could not be removed before.
func (l *Launcher) removeAgain(id string) error {
	l.mu.Lock()
	_, ok := l.unremoved[id]
	l.mu.Unlock()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	err := errors.Join(os.RemoveAll(filepath.Join(l.instance.private(), id)), sweepBox(ctx, l.instance.dir, id, l.cgroups))
	if err == nil {
		err = releaseOf(filepath.Join(l.instance.state, "ids"), l.instance.owner(id))
	}
	if err != nil {
		return fmt.Errorf("removing what is left of box %q: %w", id, err)
	}
	l.storage.dropAll(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unremoved, id)
	l.undead.Store(len(l.unremoved) > 0)
	return leftover.Forget(l.instance.state, filepath.Base(l.instance.dir), id)
}

// close destroys all boxes and the instance.
func (l *Launcher) close() error {
	if l == nil {
		return nil
	}
	if l.instance != nil && l.instance.lock != nil {
		// With the process it would be held for as long as a thread hangs in the kernel.
		defer l.instance.lock.Close()
	}
	if err := l.drain(); err != nil {
		return err // the next launcher goes on with, or removes, what is there
	}
	if l.stopOutside != nil {
		close(l.stopOutside)
		l.watching.Wait()
	}
	var errs []error
	if l.service == nil {
		errs = append(errs, l.discardAll())
	} else {
		errs = append(errs, l.closeService())
	}
	if l.networks != nil {
		l.networks.close()
	}
	if l.image != nil {
		errs = append(errs, l.image.Close())
	}
	// Otherwise the next launcher finds there what to remove, or to go on with.
	if l.instance != nil && !l.undead.Load() && l.works.idle() && (l.service == nil || l.instance.empty()) {
		errs = append(errs, l.instance.close())
	}
	if l.cgroups != nil {
		errs = append(errs, l.cgroups.Close())
	}
	return errors.Join(errs...)
}

// How long the end of a launcher waits for requests under way: those that take milliseconds
// unless they hang, and those that may take their time.
const (
	quickEnd = 10 * time.Second
	slowEnd  = removeTime + quickEnd
)

// drain waits for the requests under way, but not for ever for those that hang in the kernel.
func (l *Launcher) drain() error {
	l.works.forsake(nil)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		l.requests.Wait()
	}()
	select {
	case <-drained:
		l.works.settle(quickEnd)
		return nil
	case <-time.After(quickEnd):
	}
	if l.works.anySlow() {
		select {
		case <-drained:
			l.works.settle(quickEnd)
			return nil
		case <-time.After(slowEnd - quickEnd):
		}
	}
	return fmt.Errorf("ending although requests hang: %s", l.works.text())
}

func (l *Launcher) discardAll() error {
	var wg sync.WaitGroup
	errs := make([]error, len(l.boxes))
	i := 0
	for _, b := range l.boxes {
		err := &errs[i]
		i++
		wg.Go(func() { *err = l.discard(b) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
