package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine/native/programs"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/native/seccomp"
	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/internal/leftover"
	"github.com/boxd/boxd/internal/linux"
	_ "github.com/boxd/boxd/internal/smallmem"
	"github.com/boxd/boxd/internal/version"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/rootfs"
	"github.com/opencontainers/runc/libcontainer/exeseal"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// etcCache holds copies of the public part of /etc. Launchers of all state directories
// share it, because making a copy takes longer than starting a launcher.
const etcCache = "/run/boxd/etc"

// clientFD is the descriptor of the connection to the client.
const clientFD = 3

// Launcher builds and removes boxes for one client at a time.
type Launcher struct {
	service    *service // nil: there is one client, and the boxes end with it
	instance   *instance
	cgroups    *cgroups.Host
	image      *rootfs.Host
	deny       []string // trees that are never mounted
	storage    *storage // nil without a data directory
	layers     *layerStore
	filter     []byte                 // the agents' seccomp program
	unpacker   func() ([]byte, error) // the same in boxes that unpack
	programs   boxPrograms
	runtimes   map[kind]boxRuntime
	containerd *containerdRuntime // one of runtimes; nil without boxd-containerd
	networks   *networks
	waves      waves // of boxes that end with this launcher
	views      views
	creating   map[kind]chan struct{} // has one element per create at work with the runtime
	reclaiming chan struct{}          // has an element while memory of a box is given to the host
	budget     *budget                // of requests
	works      *works                 // requests in progress
	pulse      pulse                  // whether boxes can be built
	pool       *pool                  // boxes that are built ahead of time
	trials     trials                 // of directories
	// generation numbers the launchers of an instance. Slot numbers begin with it, so
	// no number is used twice.
	generation int64

	mu    sync.Mutex
	boxes map[string]*box
	// born are the IDs of boxes with another name of their cgroups and lease, by that name, until they are
	// removed.
	born map[string]string
	// unremoved are the names, see born, of boxes that could not be removed completely: the instance must
	// outlive this launcher.
	unremoved map[string]string

	requests sync.WaitGroup

	watching     sync.WaitGroup // watchOutside and refreshVisible
	stopWatching chan struct{}  // closed to end them; nil before they start
}

// logLevel is that of libcontainer, here and in its stage. By default its C part would write some
// thirty lines for each box, of which each wakes this process.
const logLevel = logrus.ErrorLevel

// quietLibcontainer silences libcontainer's log: its errors say the same. It also has the
// init stage start with one processor. The stage would reduce itself to one in any case,
// but only after it has looked for a limit and stopped its threads.
func quietLibcontainer() {
	logrus.SetLevel(logLevel)
	os.Setenv("GOMAXPROCS", "1") // for the stage: this process has read its own already
}

// Main runs a launcher on descriptor 3 until its client goes away. It needs a
// mount namespace of its own, which the client gives it with the first clone.
//
// args are the arguments of the role: --state-dir DIR [--data-dir DIR] [option of rpc.Runtimes]... [--pool BOXES] [--one-box true] --programs FILES.
func Main(args []string) error {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	// The launcher decides what others may read and enter, not the umask that it inherited.
	unix.Umask(0o022)
	// Only the client's end or SIGKILL ends the launcher. Signals to a whole session or
	// service must not stop it while it removes boxes.
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	quietLibcontainer()
	conn, err := wire.FileConn(os.NewFile(clientFD, "client"))
	if err != nil {
		return err
	}
	conn.RefuseFDs() // no request carries any
	l, err := open(o, nil)
	h := rpc.Hello{Version: version.Version, Protocol: rpc.Protocol}
	if err != nil {
		h.Error = err.Error()
	}
	herr := sayHello(conn, h)
	switch {
	case errors.Is(herr, unix.EPIPE):
		return l.close() // the client has given up already
	case herr != nil || err != nil:
		return errors.Join(herr, l.close())
	}
	served := make(chan struct{})
	go func() { // not on the main thread, where switching goroutines is slow
		defer close(served)
		if err := l.serveClient(&client{conn: conn}); !errors.Is(err, io.EOF) {
			fmt.Fprintf(os.Stderr, "boxd-init: launcher: %v\n", err)
		}
	}()
	<-served
	return l.close()
}

func sayHello(conn *wire.Conn, h rpc.Hello) error {
	body, err := json.Marshal(h)
	return errors.Join(err, conn.Send(rpc.TypeHello, 0, body))
}

// options are the arguments of the role "launcher" without --service.
type options struct {
	stateDir, dataDir string
	runtimes          rpc.Runtimes
	programs          programs.Files
	pool              int  // see ServiceOptions
	oneBox            bool // the client will create one box only
}

func parseOptions(args []string) (o options, err error) {
	for i := 0; i+1 < len(args); i += 2 {
		switch name, value := args[i], args[i+1]; {
		case name == "--state-dir":
			o.stateDir = value
		case name == "--data-dir":
			o.dataDir = value
		case name == rpc.OneBoxOption:
			o.oneBox = value == "true"
		case name == programs.Option:
			if o.programs, err = programs.Inherited(value); err != nil {
				return o, err
			}
		case name == "--pool":
			if o.pool, err = parsePool(value); err != nil {
				return o, err
			}
		case o.runtimes.Parse(name, value):
		default:
			return o, fmt.Errorf("option %q: unknown", name)
		}
	}
	switch {
	case len(args)%2 != 0:
		return o, fmt.Errorf("option %q: needs a value", args[len(args)-1])
	case o.stateDir == "":
		return o, errors.New("a launcher needs --state-dir")
	case o.dataDir != "" && o.dataDir != filepath.Clean("/"+o.dataDir):
		return o, fmt.Errorf("data directory %q: must be absolute and cleaned", o.dataDir)
	}
	return o, nil
}

// open prepares everything that boxes have in common. Without a data directory, there are
// neither volumes nor layers.
func open(o options, s *service) (l *Launcher, err error) {
	// Without a seal libcontainer would copy the binary for every box.
	if !exeseal.IsSelfExeCloned() {
		return nil, errors.New("launcher does not run from a sealed copy of boxd-init")
	}
	if o.programs.Agent == nil {
		return nil, errNoPrograms
	}
	l = &Launcher{
		service: s,
		boxes:   map[string]*box{},
		born:    map[string]string{},
		deny:    append([]string{o.stateDir}, mounts.DefaultDeny...),
		budget:  newBudget(),
		works:   newWorks(),
	}
	if o.dataDir != "" {
		l.deny = append(l.deny, o.dataDir)
	}
	l.pool = newPool(l, o.pool)
	if l.filter, err = seccomp.Compile(); err != nil {
		return nil, fmt.Errorf("compiling seccomp filter: %w", err)
	}
	l.unpacker = sync.OnceValues(seccomp.CompileUnpacker)
	if err := l.openHost(o); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *Launcher) openHost(o options) error {
	avoidHugePages()
	l.programs.open(o.programs)
	if err := becomeSubreaper(); err != nil {
		return err
	}
	// Later mounts of the host appear here; mounts made here stay here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separating mount namespace: %w", err)
	}
	var err error
	if l.cgroups, err = cgroups.Detect(); err != nil {
		return fmt.Errorf("finding cgroups: %w", err)
	}
	if l.service != nil { // openService makes a new one
		diskroom.GiveSpare(filepath.Join(o.stateDir, rpc.SpareFile))
	}
	if l.instance, err = openInstance(context.Background(), o.stateDir, l.cgroups, l.service != nil); err != nil {
		return err
	}
	// The first box waits for the answer, so this starts early. Host.Close waits for it too.
	go l.proveKernelMemory(o.oneBox)
	if err := l.instance.mountPrivate(); err != nil {
		return err
	}
	l.views.dir = filepath.Join(l.instance.private(), "views")
	l.networks = newNetworks(o.oneBox, makeNetwork) // in parallel
	openHost := rootfs.OpenHost
	if l.service != nil {
		openHost = rootfs.OpenReachableHost
	}
	if l.image, err = openHost(filepath.Join(l.instance.private(), "host"), etcCache); err != nil {
		return fmt.Errorf("preparing image %q: %w", "host", err)
	}
	l.openRuntimes(o.runtimes)
	if err := l.hideCgroups(); err != nil {
		return err
	}
	l.openLayers(o.dataDir) // before boxes that have layers are adopted
	if l.service != nil {
		if err := l.openService(); err != nil {
			return err
		}
	}
	l.sweepContainers() // after boxes have been adopted, or swept
	l.stopWatching = make(chan struct{})
	l.watching.Go(func() { l.watchOutside(l.stopWatching) })
	l.watching.Go(func() { l.refreshVisible(l.stopWatching) })
	l.pool.start()
	return nil
}

// hideCgroups mounts a read-only cgroup2 over /sys/fs/cgroup. So libcontainer leaves
// cgroups alone, and there is no other cgroupfs that a box could find a way to.
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

// client is one connection. Only conn is used without a service.
type client struct {
	conn    *wire.Conn
	sock    *net.UnixConn
	greeted atomic.Bool    // Hello has been sent, and events may follow
	creates sync.WaitGroup // requests for a box or a new layer that are not answered yet
	gone    chan struct{}  // closed when all its creates have been answered
}

// serveClient answers requests until nothing more can be received, and returns the reason.
func (l *Launcher) serveClient(c *client) error {
	for {
		frame, err := c.conn.Receive()
		if err != nil {
			return err
		}
		cost := requestCost + len(frame.Body)
		l.budget.take(cost) // the client waits, and at most one more frame is in memory
		creates := frame.Type == rpc.TypeCreate || frame.Type == rpc.TypeMakeLayer
		if creates {
			c.creates.Add(1)
		}
		w := l.works.request(c.conn, frame)
		l.pool.noteRequest()
		l.requests.Go(func() {
			defer l.budget.give(cost)
			l.answer(w, frame)
			switch {
			case creates:
				c.creates.Done()
			case frame.Type == rpc.TypeStop && l.service != nil:
				_ = os.Remove(filepath.Join(l.service.StateDir, rpc.ClientFile)) // root names the next client anew
				l.service.stop()
			}
		})
	}
}

// boxesWhere returns the boxes for which match, which is called with b.mu held, returns true.
func (l *Launcher) boxesWhere(match func(b *box) bool) (boxes []*box) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.boxes {
		b.mu.Lock()
		if match(b) {
			boxes = append(boxes, b)
		}
		b.mu.Unlock()
	}
	return boxes
}

// discard destroys a box that is no longer in l.boxes, or never was.
func (l *Launcher) discard(b *box) error {
	err := b.destroy()
	if err != nil {
		l.noteUnremoved(b.id, b.name)
		return err
	}
	if b.dir == "" { // another box has the name, and holds volumes under it
		return nil
	}
	l.storage.dropAll(b.id)
	l.layers.dropAll(b.id)
	if l.service != nil {
		l.service.events.rename(b.name, "")
	}
	l.noteBorn(b.name, "")
	return nil
}

// noteBorn notes the ID of a box with another name of its cgroups, or forgets the box if id is "".
func (l *Launcher) noteBorn(name, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch id {
	case "":
		delete(l.born, name)
	case name:
	default:
		l.born[name] = id
	}
}

// takenBy reports whether a box other than id has a name of cgroups that is not its ID.
func (l *Launcher) takenBy(name, id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	other := l.born[name]
	return other != "" && other != id
}

// noteUnremoved keeps the record of a box, and makes another Remove of it try again.
func (l *Launcher) noteUnremoved(id, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unremoved == nil {
		l.unremoved = map[string]string{}
	}
	l.unremoved[id] = name
}

// removeAgain removes the rest of a box whose removal failed before. It does nothing for
// other boxes.
func (l *Launcher) removeAgain(id string) error {
	l.mu.Lock()
	name, ok := l.unremoved[id]
	l.mu.Unlock()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	if l.takenBy(name, id) {
		name = ""
	}
	err := sweepBox(ctx, l.instance.dir, id, name, l.cgroups)
	if name != "" {
		err = errors.Join(os.RemoveAll(filepath.Join(l.instance.private(), name)), err)
	}
	if err == nil && name != "" {
		owner := l.instance.owner(name)
		err = releaseLeases(filepath.Join(l.instance.state, "ids"), func(of string) bool { return of == owner })
	}
	if err != nil {
		return fmt.Errorf("removing the rest of box %q: %w", id, err)
	}
	l.storage.dropAll(id)
	l.layers.dropAll(id)
	if name != "" {
		l.noteBorn(name, "")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unremoved, id)
	return leftover.Forget(l.instance.state, filepath.Base(l.instance.dir), id)
}

// close destroys all boxes and the instance.
func (l *Launcher) close() error {
	if l == nil {
		return nil
	}
	if l.instance != nil && l.instance.lock != nil {
		// The end of the process would not release it while a thread hangs in the kernel.
		defer l.instance.lock.Close()
	}
	errs := []error{l.pool.close()}
	if err := l.drain(); err != nil {
		return errors.Join(append(errs, err)...) // the next launcher adopts or removes the boxes
	}
	if l.stopWatching != nil {
		close(l.stopWatching)
		l.watching.Wait()
	}
	if l.service == nil {
		errs = append(errs, l.discardAll(l.takeBoxes(anyBox)), l.abandonLayers(l.layers.unfinished()))
	} else { // the boxes of a service stay
		errs = append(errs, l.storage.close())
		if l.service.watcher != nil {
			errs = append(errs, l.service.watcher.Close())
		}
	}
	if l.containerd != nil {
		l.containerd.engine.Close()
	}
	errs = append(errs, l.layers.close())
	if l.networks != nil {
		l.networks.close()
	}
	if l.image != nil {
		errs = append(errs, l.image.Close())
	}
	// Otherwise the next launcher finds in it the boxes to adopt or remove.
	l.mu.Lock()
	removed := len(l.unremoved) == 0
	l.mu.Unlock()
	if l.instance != nil && removed && l.works.idle() && (l.service == nil || l.instance.empty()) {
		errs = append(errs, l.instance.close())
	}
	if l.cgroups != nil {
		errs = append(errs, l.cgroups.Close())
	}
	return errors.Join(errs...)
}

// An ending launcher waits quickEnd for requests in progress, which take milliseconds unless
// they hang, and slowEnd if one of them may take long.
const (
	quickEnd = 10 * time.Second
	slowEnd  = removeTime + quickEnd
)

// drain waits for the requests in progress, for a limited time: they may hang in the kernel.
func (l *Launcher) drain() error {
	l.works.forsake(nil)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		l.requests.Wait()
	}()
	for _, limit := range []time.Duration{quickEnd, slowEnd - quickEnd} {
		select {
		case <-drained:
			l.works.settle(quickEnd)
			return nil
		case <-time.After(limit):
		}
		if l.works.find(func(w *work) bool { return w.slow }) == nil {
			break
		}
	}
	return fmt.Errorf("ending although requests hang: %s", l.works.text())
}

func anyBox(*box) bool { return true }

// takeBoxes removes the boxes for which match returns true from l.boxes. The caller destroys them.
func (l *Launcher) takeBoxes(match func(*box) bool) (boxes []*box) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, b := range l.boxes {
		if match(b) {
			boxes = append(boxes, b)
			delete(l.boxes, id)
		}
	}
	return boxes
}

// discardAll destroys boxes that takeBoxes has returned.
func (l *Launcher) discardAll(boxes []*box) error {
	var wg sync.WaitGroup
	errs := make([]error, len(boxes))
	for i, b := range boxes {
		wg.Go(func() { errs[i] = l.discard(b) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
