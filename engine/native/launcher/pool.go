package launcher

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/command"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/mounts"
	"golang.org/x/sys/unix"
)

// A pool holds boxes that were built before anybody asked for them. Such a box is a blank one: it has
// everything but what its client chooses. At its hand-over it gets its ID, limits, sizes, hostname
// and mounts, in the same way as a running box or in the order of a birth, and goes through the last steps of a birth.
// What cannot change later is its blankKey. A request gets a box of exactly its key, which nobody has
// had, or is built as if there were no pool.
//
// A blank box is not in Launcher.boxes, so no request reaches it. A launcher that starts finds it
// without a record, like any box whose birth was interrupted, and removes it.

const (
	// demandTime is how long the pool remembers how many boxes of a key were asked for per minute.
	demandTime = 10 * time.Minute
	// maxKeys is of how many keys the pool remembers it.
	maxKeys = 64
	// quietBefore is how long no request may have come before a box is built ahead of time.
	quietBefore = 20 * time.Millisecond
	// fillPatience is how long the pool waits for an idle processor. After that it builds one box
	// although the processors are busy, which then takes 1 to 2 % of one. For a box with zygotes, which takes ten times as
	// much or more, it is warmPatience.
	fillPatience = time.Second
	warmPatience = 10 * time.Second
	// failedPause is how long no box of a key is built ahead of time after one could not be. It is twice as long after
	// each further failure, up to demandTime.
	failedPause = 30 * time.Second
	// blankMemory is about what a blank box takes, in bytes: 1.4 MiB for PID 1, the rest for its
	// cgroups, namespaces and file systems. zygoteMemory is what a zygote takes, until that is measured.
	blankMemory  = 2 << 20
	zygoteMemory = 16 << 20
	// memoryShare is the part of the host's available memory that blank boxes may take.
	memoryShare = 1.0 / 128
	// blankFiles is about how many descriptors of the launcher a blank box holds.
	blankFiles = 36
	// filesShare is the part of the launcher's descriptors that blank boxes may take.
	filesShare = 1.0 / 4
	// busyBoxes is how many boxes a launcher may have before its pool gives way: they share the ranges
	// of IDs.
	busyBoxes = idRanges * 3 / 4
)

// blankKey is what cannot change in a blank box.
type blankKey struct {
	// Form of the ID, see idForm: the name of a box's cgroup, which the box can read, is the name under
	// which it was built.
	prefix string
	random int

	user          engine.User // owns the home directory
	allowDegraded bool
	// A limit that was set leaves traces when it is lifted again.
	noMemory, noPIDs, noCPUs bool
	writable                 bool
	// Only of a writable root: it lies in an overlay, below which no file may change, and its size includes that of the
	// files about processors.
	upperSize  int64
	hostname   string // also of a box with zygotes
	processors int
	// Only of a box with zygotes, which have seen all this and may keep it in variables.
	zygotes string // the requests that start them
	limits  engine.Limits
	tmpSize int64
}

// keyOf returns the key of boxes that can be completed to become s, which has its defaults. ok is
// false if the pool never has any.
func keyOf(s engine.Spec) (key blankKey, ok bool) {
	key.prefix, key.random, ok = idForm(s.ID)
	if !ok || kindOf(s) != (kind{spec.EngineNative, spec.IsolationNamespaces}) || len(s.Layers) > 0 || s.Unpacks {
		return key, false
	}
	key.user, key.allowDegraded = s.User, s.AllowDegraded
	key.noMemory, key.noPIDs, key.noCPUs = s.Limits.Memory == engine.Unlimited, s.Limits.PIDs == engine.Unlimited, s.Limits.CPUs == engine.Unlimited
	if s.WritableRoot {
		key.writable, key.upperSize, key.hostname = true, s.UpperSize, s.Hostname
		key.processors = s.Limits.Processors(runtime.NumCPU())
	}
	if len(s.Zygotes) > 0 && !slices.ContainsFunc(s.Mounts, func(m engine.Mount) bool { return m.Target != engine.WorkspaceTarget }) {
		key.hostname, key.limits, key.tmpSize = s.Hostname, s.Limits, s.TmpSize
		for _, z := range s.Zygotes {
			key.zygotes += fmt.Sprintf("%q %d %s\n", z.Name, z.Spares, command.Zygote(z, s.User, s, s.Limits).Marshal())
		}
	}
	return key, true
}

// blankOf returns a spec of a box that can be completed to become s, of key.
func blankOf(key blankKey, s engine.Spec) engine.Spec {
	s.ID = key.prefix + strings.ToLower(rand.Text())[:key.random]
	s.Mounts, s.Labels = nil, nil
	if key.zygotes == "" { // those of a box with mounts start when these are there
		s.Zygotes = nil
	}
	return s
}

// base32 are the characters of rand.Text in lower case.
const base32 = "abcdefghijklmnopqrstuvwxyz234567"

// idForm splits an ID of the form that clients give to boxes, such as "box-" or "s-" with 16 to 26
// random characters. An ID of another form was chosen by somebody, who may look for it.
func idForm(id string) (prefix string, random int, ok bool) {
	i := strings.LastIndexByte(id, '-') + 1
	random = len(id) - i
	return id[:i], random, random >= 16 && random <= 26 && strings.Trim(id[i:], base32) == ""
}

func parsePool(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > engine.MaxPool {
		return 0, fmt.Errorf("pool %q: must be a number of boxes, 0 to %d", text, engine.MaxPool)
	}
	return n, nil
}

// pool is the blank boxes of one launcher. Without a limit it does nothing.
type pool struct {
	l     *Launcher
	limit int // of blank boxes

	asked atomic.Int64  // when the last request came, in ns since 1970
	more  chan struct{} // has an element if a box may have to be built
	stop  chan struct{} // closed to end fill
	ended chan struct{} // closed when fill has ended; nil before it has begun

	mu      sync.Mutex
	shelves map[blankKey]*shelf
	blank   map[string]struct{} // the IDs of boxes that are blank, being built, or being removed
	closed  bool
	hits    int64
	misses  map[string]int64
}

// shelf is the blank boxes of one key.
type shelf struct {
	like   engine.Spec // of the last request: most boxes are asked for again
	first  time.Time   // when a box was first asked for
	last   time.Time
	demand [demandTime / time.Minute]minuteDemand
	ready  []*box // oldest first

	pause     time.Duration // after the last box that could not be built; 0 after one that could
	notBefore time.Time     // when the pause ends
	coldUntil time.Time     // no zygotes are started before
	told      time.Time     // when it was said last that memory is too short for them
	warmth    int64         // what the zygotes of the last box took, in bytes; 0 is not known
}

// minuteDemand is how many boxes were asked for in one minute of the clock.
type minuteDemand struct{ minute, count int64 }

func newPool(l *Launcher, limit int) *pool {
	return &pool{
		l: l, limit: limit, more: make(chan struct{}, 1), stop: make(chan struct{}),
		shelves: map[blankKey]*shelf{}, blank: map[string]struct{}{}, misses: map[string]int64{},
	}
}

// start begins to fill the pool.
func (p *pool) start() {
	if p.limit > 0 {
		p.ended = make(chan struct{})
		go p.fill()
	}
}

// close stops filling the pool, and removes the blank boxes. A box whose building hangs is left to the
// next launcher.
func (p *pool) close() error {
	if p == nil || p.ended == nil {
		return nil
	}
	close(p.stop)
	select {
	case <-p.ended:
	case <-time.After(quickEnd):
	}
	var all []*box
	p.mu.Lock()
	for _, s := range p.shelves {
		all = append(all, s.ready...)
	}
	p.shelves, p.closed = map[blankKey]*shelf{}, true
	p.mu.Unlock()
	return p.l.discardAll(all)
}

// noteRequest notes that a client has sent a request.
func (p *pool) noteRequest() {
	if p.limit > 0 {
		p.asked.Store(time.Now().UnixNano())
	}
}

// owns reports whether a box is blank, or about to be.
func (p *pool) owns(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, blank := p.blank[id]
	return blank
}

// state describes the pool.
func (p *pool) state() engine.PoolState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := engine.PoolState{Limit: p.limit, Hits: p.hits, Misses: maps.Clone(p.misses)}
	now := time.Now()
	for _, share := range p.sharesLocked(now, p.limit) {
		s.Wanted += share
	}
	for _, shelf := range p.shelves {
		s.Ready += len(shelf.ready)
	}
	return s
}

// obtain returns a box that was asked for with b, of newBox: one of the pool, completed, or else b
// itself, built now. The box is not in l.boxes yet.
func (l *Launcher) obtain(w *work, b *box) (*box, error) {
	if blank := l.pool.take(b.spec); blank != nil {
		err := l.complete(w, blank, b.spec)
		if err == nil {
			l.pool.count(&l.pool.hits)
			l.pool.note(b.spec)
			return blank, nil
		}
		if blank.id == b.id { // its directory has the name that the other box needs
			err = errors.Join(err, l.abandon(blank, err))
			l.pool.drop(blank.name)
		} else {
			w.spare()
			l.pool.discardLater(blank)
		}
		if _, ok := errors.AsType[*engine.FieldError](err); ok { // the request is at fault
			return nil, err
		}
		l.pool.miss(engine.PoolBroken)
		if w.isOver() { // nobody waits
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "boxd-init: a box of the pool cannot be completed, another one is built: %v\n", oneline.Error(err))
	}
	if err := l.create(w, b); err != nil {
		return nil, err
	}
	l.pool.note(b.spec)
	return b, nil
}

func (p *pool) count(n *int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*n++
}

func (p *pool) miss(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.misses[why]++
}

// drop forgets that a box was blank.
func (p *pool) drop(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.blank, id)
}

// take returns the oldest living blank box that can be completed to become s, or nil. The caller completes the box or removes
// it, and calls drop.
func (p *pool) take(s engine.Spec) *box {
	if p.limit == 0 {
		return nil
	}
	key, ok := keyOf(s)
	if !ok {
		p.miss(engine.PoolSpec)
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	why := engine.PoolEmpty
	for shelf := p.shelves[key]; shelf != nil && len(shelf.ready) > 0; {
		b := shelf.ready[0]
		shelf.ready = slices.Delete(shelf.ready, 0, 1)
		if ended, err := linux.HasExited(b.pidfd, 0); !ended && err == nil {
			return b
		}
		why = engine.PoolBroken
		p.discardLater(b)
	}
	p.misses[why]++
	return nil
}

// discardLater removes a box in the background: nobody waits for it.
func (p *pool) discardLater(b *box) {
	w := p.l.works.add(&work{what: "removing a broken box of the pool", slow: true})
	go func() {
		defer w.end()
		p.discard(b)
	}()
}

// discard removes a box that nobody has used.
func (p *pool) discard(b *box) {
	if err := p.l.discard(b); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: removing a box of the pool: %v\n", oneline.Error(err))
	}
	p.drop(b.name)
}

// note notes the demand for a box of s, which has been built. A request for a box that cannot be built is no demand.
func (p *pool) note(s engine.Spec) {
	key, ok := keyOf(s)
	if p.limit == 0 || !ok {
		return
	}
	defer p.wake()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(key, s, time.Now())
}

func (p *pool) wake() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// noteLocked notes that a box of key was asked for.
func (p *pool) noteLocked(key blankKey, s engine.Spec, now time.Time) {
	found := p.shelves[key]
	if found == nil {
		found = &shelf{first: now}
		p.shelves[key] = found
	}
	found.like, found.last = blankOf(key, s), now
	minute := now.Unix() / 60
	d := &found.demand[minute%int64(len(found.demand))]
	if d.minute != minute {
		*d = minuteDemand{minute: minute}
	}
	d.count++
}

// demandAt returns how many boxes were asked for in the busiest of the last minutes, and in all of them.
func (s *shelf) demandAt(now time.Time) (peak, sum int64) {
	minute := now.Unix() / 60
	for _, d := range s.demand {
		if minute-d.minute < int64(len(s.demand)) {
			peak, sum = max(peak, d.count), sum+d.count
		}
	}
	return peak, sum
}

// wantedAt returns how many boxes would have met the demand of the busiest of the last minutes, but none after a single
// request, and no further ones before notBefore.
func (s *shelf) wantedAt(now time.Time) int {
	peak, sum := s.demandAt(now)
	switch {
	case sum < 2:
		return 0
	case now.Before(s.notBefore):
		return min(int(peak), len(s.ready))
	}
	return int(peak)
}

// failedLocked has no box of key built for a while, because one could not be built.
func (p *pool) failedLocked(key blankKey, now time.Time) {
	if s := p.shelves[key]; s != nil {
		s.pause = min(max(2*s.pause, failedPause), demandTime)
		s.notBefore = now.Add(s.pause)
	}
}

// sharesLocked divides limit blank boxes among the keys: each in turn gets one more until it has as
// many as it wants. Keys that were asked for in the last minute come first, then the others. The order is
// otherwise that of the first requests, so that requests in turn do not replace each other's boxes.
func (p *pool) sharesLocked(now time.Time, limit int) map[blankKey]int {
	var active, others []blankKey
	for key, s := range p.shelves {
		if now.Sub(s.last) < time.Minute {
			active = append(active, key)
		} else {
			others = append(others, key)
		}
	}
	shares := map[blankKey]int{}
	for _, keys := range [][]blankKey{active, others} {
		slices.SortFunc(keys, func(a, b blankKey) int { return p.shelves[a].first.Compare(p.shelves[b].first) })
		for given := true; given; {
			given = false
			for _, key := range keys {
				if limit > 0 && shares[key] < p.shelves[key].wantedAt(now) {
					shares[key]++
					limit--
					given = true
				}
			}
		}
	}
	return shares
}

// plan forgets keys without demand, and returns the boxes that are too many, which the caller removes. There may be
// limit boxes, which take memory bytes with their zygotes. missing is the spec of a box that should be built, if any; warm says that
// it should get its zygotes.
func (p *pool) plan(now time.Time, limit int, memory int64) (surplus []*box, missing *engine.Spec, warm bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	shares := p.sharesLocked(now, limit)
	for _, n := range shares {
		memory -= int64(n) * blankMemory // the rest is for zygotes
	}
	var lacking *shelf // of missing
	byAge := slices.SortedFunc(maps.Keys(p.shelves), func(a, b blankKey) int {
		return p.shelves[b].last.Compare(p.shelves[a].last)
	})
	for i, key := range byAge {
		s := p.shelves[key]
		keep := shares[key]
		if i >= maxKeys {
			keep = 0
		}
		if over := len(s.ready) - keep; over > 0 {
			surplus = append(surplus, s.ready[:over]...)
			s.ready = slices.Delete(s.ready, 0, over)
		}
		s.ready = slices.DeleteFunc(s.ready, func(b *box) bool {
			if b.warmth > 0 && b.warmth > memory {
				surplus = append(surplus, b)
				return true
			}
			memory -= b.warmth
			return false
		})
		if _, sum := s.demandAt(now); sum == 0 || i >= maxKeys {
			delete(p.shelves, key)
		} else if len(s.ready) < keep && missing == nil {
			like := s.like
			missing, lacking = &like, s
		}
	}
	if s := lacking; s != nil && len(missing.Zygotes) > 0 {
		warmth := cmp.Or(s.warmth, int64(len(missing.Zygotes))*zygoteMemory)
		warm = !now.Before(s.coldUntil) && warmth <= memory
		if warmth > memory && now.Sub(s.told) > demandTime {
			s.told = now
			fmt.Fprintf(os.Stderr, "boxd-init: boxes of the pool come without their warm interpreters, which take %s: 1/%d of the available memory is for the pool, and of that %s are left\n",
				spec.FormatSize(warmth), int(1/memoryShare), spec.FormatSize(max(memory, 0)&^0xfffff))
		}
	}
	return surplus, missing, warm
}

// fill keeps the pool as full as the demand asks for until stop is closed. It builds one box at a time, while the
// launcher and the processors have nothing else to do.
func (p *pool) fill() {
	defer close(p.ended)
	ticker := time.NewTicker(time.Second) // as demand is forgotten, or memory gets short
	defer ticker.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-p.more:
		case <-ticker.C:
		}
		p.fillOnce()
	}
}

// fillOnce removes the boxes that are too many, and builds those that are missing. It does the former also while it
// waits to build.
func (p *pool) fillOnce() {
	began, pause := time.Now(), quietBefore
	for {
		boxes, memory := p.room()
		surplus, missing, warm := p.plan(time.Now(), boxes, memory)
		for _, b := range surplus {
			p.discard(b)
		}
		if missing == nil {
			return
		}
		if p.mayBuild(time.Since(began), warm) {
			err := p.build(*missing, warm)
			if err != nil && !p.stopped() {
				fmt.Fprintf(os.Stderr, "boxd-init: building a box ahead of time, tried again later: %v\n", oneline.Error(err))
			}
			began, pause = time.Now(), quietBefore
		}
		select {
		case <-p.stop:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

func (p *pool) stopped() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}

// room returns how many blank boxes there may be now, and how many bytes they may take with their zygotes.
func (p *pool) room() (boxes int, memory int64) {
	p.l.mu.Lock()
	given := len(p.l.boxes)
	p.l.mu.Unlock()
	if given >= busyBoxes {
		return 0, 0
	}
	available, err := linux.MemAvailable()
	if err != nil {
		return 0, 0
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, 0
	}
	return roomFor(p.limit, available, files.Cur)
}

// roomFor returns how many of limit blank boxes fit into the shares of available bytes of memory and of files
// descriptors, and the former share.
func roomFor(limit int, available int64, files uint64) (boxes int, memory int64) {
	share := float64(available) * memoryShare
	return int(min(float64(limit), share/blankMemory, float64(files)*filesShare/blankFiles)), int64(share)
}

// mayBuild reports whether the pool may build a box now. Normally a processor has to be idle, and no client may be waiting. After
// fillPatience, or warmPatience for a box with zygotes, it is enough that no box is being created.
func (p *pool) mayBuild(waited time.Duration, warm bool) bool {
	patience := fillPatience
	if warm {
		patience = warmPatience
	}
	quiet := time.Since(time.Unix(0, p.asked.Load())) >= quietBefore && linux.HasIdleProcessor()
	return (quiet || waited > patience) && !p.l.works.buildsBox()
}

// buildsBox reports whether a box is being created. A create that hangs takes no processor, and may do so for ever.
func (a *works) buildsBox() bool {
	return a.find(func(w *work) bool { return w.box != "" && !w.over && w.stalled == 0 }) != nil
}

// build builds a blank box, with its zygotes if warm is true, or removes what it made of it. If a zygote cannot be
// started, the next boxes of the key have none.
func (p *pool) build(s engine.Spec, warm bool) error {
	key, _ := keyOf(s)
	s = blankOf(key, s)
	w := p.l.works.add(&work{what: "building a box ahead of time"})
	defer w.end()
	w.makes(s.ID, false)
	p.mu.Lock()
	p.blank[s.ID] = struct{}{}
	p.mu.Unlock()
	var unwarmed error
	b, err := p.l.newBox(w, s)
	if err == nil {
		b.blank = true
		if err = p.l.create(w, b); err == nil {
			if b.first, err = b.newSlot(); err == nil {
				err = p.l.mapAhead(b)
			}
			if err == nil && warm {
				unwarmed = b.warmAhead(p.stop)
				err = unwarmed
			}
			if err != nil {
				err = errors.Join(err, p.l.abandon(b, err))
			}
		}
	}
	if err == nil && !w.complete() {
		err = errors.Join(w.why, p.l.abandon(b, w.why))
	}
	if err != nil {
		p.drop(s.ID)
		p.mu.Lock()
		defer p.mu.Unlock()
		if found := p.shelves[key]; unwarmed != nil && found != nil {
			found.coldUntil = time.Now().Add(demandTime)
			return fmt.Errorf("boxes of this kind come without warm interpreters for %v: %w", demandTime, err)
		}
		p.failedLocked(key, time.Now())
		return err
	}
	w.spare()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.l.discard(b)
	}
	found := p.shelves[key]
	if found == nil { // nobody has asked for such a box for long: plan removes it
		found = &shelf{like: s, first: time.Now()}
		p.shelves[key] = found
	}
	found.ready = append(found.ready, b)
	found.pause = 0
	if b.warmth > 0 {
		found.warmth = b.warmth
	}
	return nil
}

// mapAhead makes the user namespace through which a directory of the service's client, such as a workspace, is mounted in
// a blank box. Making it would be a tenth of the hand-over.
func (l *Launcher) mapAhead(b *box) error {
	if l.service == nil || isShared(uint32(l.service.ClientUID)) || isShared(uint32(l.service.ClientGID)) {
		return nil
	}
	client := mounts.Owner{UID: l.service.ClientUID, GID: l.service.ClientGID}
	m := usersMap(client, b.spec.User, b.lease.Base)
	ns, err := mounts.UserNS(m)
	if err != nil {
		return fmt.Errorf("making id map: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.userNS[m.String()] = ns
	return nil
}

// complete makes a blank box the box of s. After a failure the caller removes it.
func (l *Launcher) complete(w *work, b *box, s engine.Spec) error {
	before := b.spec
	b.work, b.spec, b.blank = w, s, false
	w.onRefusal(func() { _ = b.kill() })
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"giving a box of the pool its name", func() error { return l.rename(b, s.ID) }},
		{"giving a box of the pool its limits", func() error { return limitError(b.group.Set(limitsOf(s, s.Limits))) }},
		{"giving a box of the pool its hostname", func() error {
			if s.Hostname == before.Hostname {
				return nil
			}
			return b.setHostname(s.Hostname)
		}},
	} {
		done := w.begin(step.name, "", nil)
		err := step.do()
		done()
		if err != nil {
			return err
		}
	}
	changed := make(chan error, 1)
	go func() { // in parallel, because neither needs the other
		done := w.begin("changing the root of a box of the pool", "", nil)
		err := l.changeRoot(b, before)
		done()
		changed <- err
	}()
	err := l.attachMounts(b)
	if err = errors.Join(<-changed, err); err != nil {
		return err
	}
	if err := l.verify(b); err != nil {
		return err
	}
	if err := l.finish(b); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.slots { // the first one, and those of zygotes and spares
		s.Watch()
	}
	return nil
}

// changeRoot changes what differs from the root of the spec before. What it shows of the limits also tells the time, so
// it is always written.
func (l *Launcher) changeRoot(b *box, before engine.Spec) error {
	if b.spec.TmpSize != before.TmpSize {
		if err := b.root.Resize(b.spec.TmpSize); err != nil {
			return err
		}
	}
	if b.spec.Hostname != before.Hostname {
		if err := b.root.Rename(b.spec.Hostname); err != nil {
			return err
		}
	}
	return l.image.Show(b.root.Visible(), figures(groupLimits(b.spec.Limits, b.spec.AllowDegraded)))
}

// rename gives a blank box its ID. The name of its directory decides which box it is, and bornName says what its
// cgroups and its lease are called, so it is one box at every moment.
func (l *Launcher) rename(b *box, id string) error {
	dir := filepath.Join(l.instance.boxes(), id)
	l.noteBorn(b.name, id) // before another box can get its directory
	if err := linux.Retry(func() error {
		return unix.Renameat2(unix.AT_FDCWD, b.dir, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE)
	}); err != nil {
		l.noteBorn(b.name, "")
		return &os.LinkError{Op: "rename", Old: b.dir, New: dir, Err: err}
	}
	b.id, b.dir = id, dir
	l.pool.drop(b.name)
	return nil
}

// setHostname sets the hostname that the kernel tells the box.
func (b *box) setHostname(name string) error {
	uts, err := os.Open(fmt.Sprintf("/proc/%d/ns/uts", b.pid))
	if err != nil {
		return err
	}
	defer uts.Close()
	if err := b.stillThere(); err != nil {
		return err
	}
	return linux.OnThrowawayThread(func() error {
		if err := linux.Setns(uts, unix.CLONE_NEWUTS); err != nil {
			return err
		}
		return os.NewSyscallError("sethostname", unix.Sethostname([]byte(name)))
	})
}

// bornLink is a symlink in the directory of a box that was built for the pool. It leads nowhere: its text is
// the name under which the box was built.
const bornLink = "born"

// bornName returns the name that the cgroups and the lease of a box have: its ID, unless it was built for the pool. dir is that of
// its instance.
func bornName(dir, id string) string {
	name, err := os.Readlink(filepath.Join(dir, "boxes", id, bornLink))
	if err != nil || (engine.Spec{ID: name}).Validate() != nil {
		return id
	}
	return name
}

// bornNames returns the IDs of the boxes whose bornName is another, by that name. dir is that of their instance.
func bornNames(dir string) (map[string]string, error) {
	boxes, err := os.ReadDir(filepath.Join(dir, "boxes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	ids := map[string]string{}
	for _, b := range boxes {
		if name := bornName(dir, b.Name()); name != b.Name() {
			ids[name] = b.Name()
		}
	}
	return ids, nil
}

// isBlank reports whether the box id of the instance with directory dir was in the pool of a launcher that is gone.
func isBlank(dir, id string) bool {
	name, err := os.Readlink(filepath.Join(dir, "boxes", id, bornLink))
	return err == nil && name == id
}
