package launcher

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
)

const (
	// stallTime is how long a create may be at one step before it counts as hanging. A step
	// takes milliseconds. From then on the create blocks no other request, and Ping reports it.
	stallTime = 5 * time.Second
	// giveUpTime is how long it may be at one step before its client gets an error.
	giveUpTime = 30 * time.Second
	// maxHanging is how many creates may hang at once, with each runtime. Each holds threads,
	// descriptors and cgroups of this process; further creates are refused at once.
	maxHanging = 16
)

// works are the requests that the launcher is carrying out, with their current steps.
type works struct {
	mu      sync.Mutex
	all     map[*work]struct{}
	hanging map[kind]int // creates that hang. A runtime that hangs is no reason to refuse boxes of another
	built   time.Time    // when a box was last built
}

// work is one request in progress. A nil work records no steps.
type work struct {
	all     *works
	what    string     // what the work does before its first step
	conn    *wire.Conn // to the client; nil: the launcher's own work
	request uint32     // the ID of the client's frame
	slow    bool       // it may take long without hanging
	// refused is closed when a create is refused; why is set before.
	refused chan struct{}

	// Guarded by all.mu.
	box      string // the box that is created; empty for other requests
	kind     kind   // of the box; zero until that is known
	probe    bool   // the box is a probe of the launcher itself, see pulse
	steps    []*step
	stalled  int    // how many of the steps hang
	release  func() // gives the create's slot back; nil without one
	forsaken bool   // the client is gone: the create is refused as soon as it hangs
	over     bool   // it has been answered, refused or ended: too late to refuse it
	why      error
	failure  error // why the create failed, while its parts are removed

	killing sync.Mutex
	killers []func() // each ends processes that the create waits for
}

// step is a step of a work in progress.
type step struct {
	name   string       // names nothing of a tenant's, because everybody may read it
	detail string       // for the client that sent the request; may be empty
	pids   func() []int // the processes that the step waits for; nil: it waits in this process
	since  time.Time
	timer  *time.Timer
	hangs  bool
	done   bool
}

func newWorks() *works { return &works{all: map[*work]struct{}{}, hanging: map[kind]int{}} }

// Requests other than creates have one step each. Those in slowNames may take long without
// hanging.
var (
	slowNames = map[byte]string{
		rpc.TypeRemove: "removing a box", rpc.TypeStop: "removing all boxes", rpc.TypeMakeVolume: "making a volume",
		rpc.TypeRemoveVolume: "removing a volume", rpc.TypeCopyVolume: "copying a volume", rpc.TypeLimitDirectory: "limiting a directory",
		rpc.TypeEngines: "looking at the engines", rpc.TypePublishLayer: "publishing a layer", rpc.TypeAbandonLayer: "deleting an unpublished layer", rpc.TypeRemoveLayer: "removing a layer",
	}
	quickNames = map[byte]string{
		rpc.TypeUpdate: "changing a box", rpc.TypeSlots: "making cgroups of commands", rpc.TypeKill: "killing a command", rpc.TypePause: "pausing a box", rpc.TypeReclaim: "giving memory of a box to the host",
		rpc.TypePTY: "opening a terminal", rpc.TypeConnect: "connecting to an agent", rpc.TypeDiag: "opening a socket in the network of a box", rpc.TypeSockets: "opening sockets in the network of a box", rpc.TypeAdopt: "adopting a box",
		rpc.TypeList: "listing boxes", rpc.TypePing: "looking at the host's health", rpc.TypeUsage: "measuring a box",
		rpc.TypeOpen: "opening cgroups of commands", rpc.TypeKeep: "keeping the cgroup of a process",
		rpc.TypeVolumes: "listing volumes", rpc.TypeOpenDirectory: "opening a directory",
		rpc.TypeMakeLayer: "making a layer", rpc.TypeLayers: "listing layers",
		rpc.TypeOutside: "asking what a box holds outside its charge", rpc.TypeWhere: "asking after a request",
		rpc.TypePool: "looking at the pool",
	}
)

// request registers a frame of a client.
func (a *works) request(conn *wire.Conn, f *wire.Frame) *work {
	w := &work{conn: conn, request: f.ID, what: "waiting for its turn: as many boxes are being built as there are processors"}
	if f.Type != rpc.TypeCreate {
		w.slow = slowNames[f.Type] != ""
		w.steps = []*step{{name: slowNames[f.Type] + quickNames[f.Type], since: time.Now()}}
	}
	return a.add(w)
}

// add registers a work, until w.end is called.
func (a *works) add(w *work) *work {
	w.all = a
	w.refused = make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all[w] = struct{}{}
	return w
}

// makes notes which box w creates.
func (w *work) makes(box string, probe bool) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.box, w.probe = box, probe
}

// by notes which runtime builds the box, before the create takes a slot.
func (w *work) by(k kind) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.kind = k
}

// cannot returns an error that boxes cannot be built now. Only native boxes depend on the launcher
// alone: with the others, another engine may work.
func (k kind) cannot(why string) error {
	if k == nativeKind || k == (kind{}) {
		return unavailable(why)
	}
	return fmt.Errorf("%w: %s", engine.ErrNoEngine, why)
}

func (w *work) end() {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.over = true
	delete(w.all.all, w)
}

// begin begins a step of the work. The caller calls done when the step is done. A work may be
// at several steps at once.
func (w *work) begin(name, detail string, pids func() []int) (done func()) {
	if w == nil {
		return func() {}
	}
	s := &step{name: name, detail: detail, pids: pids, since: time.Now()}
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.steps = append(w.steps, s)
	if w.box != "" {
		s.timer = time.AfterFunc(stallTime, func() { w.stall(s) })
	}
	return func() { w.finish(s) }
}

func (w *work) finish(s *step) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	s.done = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if i := slices.Index(w.steps, s); i >= 0 {
		w.steps = slices.Delete(w.steps, i, i+1)
	}
	if s.hangs {
		if w.stalled--; w.stalled == 0 {
			w.all.hanging[w.kind]--
		}
	}
}

// stall notes that the create w hangs at s, and gives its slot to others.
func (w *work) stall(s *step) {
	w.all.mu.Lock()
	if s.done {
		w.all.mu.Unlock()
		return
	}
	s.hangs = true
	if w.stalled++; w.stalled == 1 {
		w.all.hanging[w.kind]++
	}
	w.releaseLocked()
	late := w.forsaken
	if !late {
		s.timer = time.AfterFunc(giveUpTime-stallTime, func() { w.giveUp(s) })
	}
	w.all.mu.Unlock()
	if late {
		w.giveUp(s)
	}
}

func (w *work) releaseLocked() {
	if w.release != nil {
		w.release()
		w.release = nil
	}
}

// giveUp refuses the create if it is still at s.
func (w *work) giveUp(s *step) {
	text := s.text(true)
	w.all.mu.Lock()
	late := s.done
	w.all.mu.Unlock()
	if !late {
		w.refuse(text + ": given up")
	}
}

// refuse refuses a create: its client is told why, and processes that it waits for are killed.
// The goroutine that carries the create out removes whatever it still makes.
func (w *work) refuse(why string) {
	w.all.mu.Lock()
	if w.over {
		w.all.mu.Unlock()
		return
	}
	w.over = true
	w.why = w.kind.cannot(fmt.Sprintf("box %q: %s", w.box, why))
	if w.failure != nil {
		w.why = fmt.Errorf("%w; before: %w", w.why, w.failure)
	}
	close(w.refused)
	w.all.mu.Unlock()
	go w.kill() // may hang itself
}

// isOver reports whether the client of a create has its answer.
func (w *work) isOver() bool {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	return w.over
}

// complete ends a create. If it returns true, the client still waits and must get the answer;
// otherwise the create was refused.
func (w *work) complete() bool {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	if w.over {
		return false
	}
	w.over = true
	return true
}

// onRefusal calls fn when the create is refused, or now if it was refused already. fn ends
// processes that the create waits for.
func (w *work) onRefusal(fn func()) {
	w.killing.Lock()
	w.killers = append(w.killers, fn)
	w.killing.Unlock()
	select {
	case <-w.refused:
		w.kill()
	default:
	}
}

func (w *work) kill() {
	w.killing.Lock()
	defer w.killing.Unlock()
	for _, fn := range w.killers {
		fn()
	}
	w.killers = nil
}

// spare drops the functions of onRefusal, before the box that they kill is destroyed.
func (w *work) spare() {
	w.killing.Lock()
	defer w.killing.Unlock()
	w.killers = nil
}

// failed notes why the create failed, for a client that is refused while the parts of the box
// are removed.
func (w *work) failed(err error) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.failure = err
}

// enter waits for one of the slots, whose number bounds how many creates with one runtime work at a
// time. Creates that hang have no slot.
func (w *work) enter(slots chan struct{}) error {
	if err := w.all.full(w.kind); err != nil {
		return err
	}
	select {
	case slots <- struct{}{}:
	case <-w.refused:
		return w.why
	}
	w.all.mu.Lock()
	w.release = func() { <-slots }
	w.all.mu.Unlock()
	err := w.all.full(w.kind) // the creates before it may hang by now
	if err != nil {
		w.leave()
	}
	return err
}

func (w *work) leave() {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.releaseLocked()
}

// full returns an error if so many creates with a runtime hang that no further one is tried.
func (a *works) full(k kind) error {
	a.mu.Lock()
	n := a.hanging[k]
	a.mu.Unlock()
	if n < maxHanging {
		return nil
	}
	return k.cannot(fmt.Sprintf("no further box is tried: %s", a.report(k)))
}

// noteBuilt notes that the kernel can build boxes.
func (a *works) noteBuilt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.built = time.Now()
}

// find returns a work for which match, which is called with a.mu held, returns true, or nil.
func (a *works) find(match func(*work) bool) *work {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.all {
		if match(w) {
			return w
		}
	}
	return nil
}

// creating returns the create of a box that can still be refused, or nil.
func (a *works) creating(box string) *work {
	return a.find(func(w *work) bool { return w.box == box && box != "" && !w.over })
}

// isProbe reports whether a box is a probe of the launcher itself.
func (a *works) isProbe(box string) bool {
	return a.find(func(w *work) bool { return w.probe && w.box == box }) != nil
}

// idle reports whether no work is in progress.
func (a *works) idle() bool { return a.find(func(*work) bool { return true }) == nil }

// forsake refuses the creates of a client that is gone if they hang, now or later; nil stands
// for all clients.
func (a *works) forsake(conn *wire.Conn) {
	a.mu.Lock()
	var late []*work
	for w := range a.all {
		if conn == nil || w.conn == conn {
			w.forsaken = true
			if w.stalled > 0 {
				late = append(late, w)
			}
		}
	}
	a.mu.Unlock()
	for _, w := range late {
		w.refuse("its client is gone")
	}
}

// report says at which step creates with a runtime hang, or returns "". It names no box and no path.
func (a *works) report(k kind) string {
	a.mu.Lock()
	var oldest *step
	for w := range a.all {
		for _, s := range w.steps {
			if w.kind == k && s.hangs && (oldest == nil || s.since.Before(oldest.since)) {
				oldest = s
			}
		}
	}
	n := a.hanging[k]
	a.mu.Unlock()
	switch {
	case oldest == nil:
		return ""
	case n == 1:
		return "the making of a box hangs: " + oldest.text(false)
	}
	return fmt.Sprintf("the making of %d boxes hangs, the first: %s", n, oldest.text(false))
}

// at describes the current step of a client's request.
func (a *works) at(conn *wire.Conn, request uint32) string {
	found := a.find(func(w *work) bool { return w.conn == conn && w.request == request })
	if found == nil {
		return "it has just been answered"
	}
	return a.textOf(found)
}

// textOf describes the current step of w for its client.
func (a *works) textOf(w *work) string {
	a.mu.Lock()
	var oldest *step
	for _, s := range w.steps {
		if oldest == nil || s.since.Before(oldest.since) {
			oldest = s
		}
	}
	what := w.what
	a.mu.Unlock()
	if oldest == nil {
		return what
	}
	return oldest.text(true)
}

// settle waits, at most for limit, until every remaining work hangs. Refused creates continue
// without a request until the parts of their boxes are removed.
func (a *works) settle(limit time.Duration) {
	moves := func(w *work) bool { return w.stalled == 0 }
	for end := time.Now().Add(limit); a.find(moves) != nil && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
}

// text lists the works in progress.
func (a *works) text() string {
	a.mu.Lock()
	list := slices.Collect(maps.Keys(a.all))
	a.mu.Unlock()
	var texts []string
	for _, w := range list[:min(len(list), maxNamed)] {
		texts = append(texts, a.textOf(w))
	}
	return fmt.Sprintf("%d, such as %s", len(list), strings.Join(texts, "; "))
}

// text says what the step is, how long it has taken, and which thread waits where in the
// kernel. It reads /proc, so the caller does not hold works.mu.
func (s *step) text(withDetail bool) string {
	name := s.name
	if withDetail && s.detail != "" {
		name += " " + s.detail
	}
	return fmt.Sprintf("%s has taken %.1f s: %s", name, time.Since(s.since).Seconds(), s.where())
}

// maxNamed bounds how many threads, or works, a text names.
const maxNamed = 3

func (s *step) where() string {
	if s.pids != nil {
		var threads []linux.Wait
		for _, pid := range s.pids() {
			list, _ := linux.Waits(pid) // it may have ended
			threads = append(threads, list...)
		}
		if w, ok := linux.Hanging(threads); ok {
			return w.String()
		}
		return "there is no process yet"
	}
	own, err := linux.Waits(os.Getpid())
	if err != nil {
		return err.Error()
	}
	var odd []string
	for _, w := range own {
		if !w.IsIdle() && len(odd) < maxNamed {
			odd = append(odd, w.String())
		}
	}
	if len(odd) == 0 {
		return "no thread of the launcher hangs in the kernel"
	}
	return "launcher " + strings.Join(odd, ", ")
}

// unavailable reports that the host cannot build boxes now.
type unavailable string

func (u unavailable) Error() string { return string(u) }

// Is makes clients see engine.ErrNoLauncher.
func (u unavailable) Is(target error) bool { return target == engine.ErrNoLauncher }
