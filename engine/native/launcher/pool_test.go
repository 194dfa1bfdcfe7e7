package launcher

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

func python() []engine.Zygote {
	return []engine.Zygote{{Name: "python", Command: []string{"python3"}, Preload: []string{"json"}}}
}

// TestPoolKey: whatever cannot change in a blank box tells keys apart, and nothing else does.
func TestPoolKey(t *testing.T) {
	base := engine.Spec{ID: "s-abcdefghij234567klmn"}
	of := func(change func(*engine.Spec)) blankKey {
		t.Helper()
		s := base
		change(&s)
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		key, ok := keyOf(s.WithDefaults())
		if !ok {
			t.Fatalf("the pool has no boxes like %+v", s)
		}
		return key
	}
	same := of(func(*engine.Spec) {})
	writable := of(func(s *engine.Spec) { s.WritableRoot = true })
	for name, change := range map[string]func(*engine.Spec){
		"another ID": func(s *engine.Spec) { s.ID = "s-777777777777777777ab" },
		"limits": func(s *engine.Spec) {
			s.Limits = engine.Limits{Memory: 1 << 30, PIDs: 9, CPUs: 3, OpenFiles: 100, FileSize: 9}
		},
		"sizes and hostname": func(s *engine.Spec) { s.TmpSize, s.Hostname = 1<<20, "other" },
		"mounts and labels": func(s *engine.Spec) {
			s.Mounts, s.Labels = []engine.Mount{{Source: "/srv", Target: "/srv"}}, map[string]string{"a": "b"}
		},
		"zygotes, with mounts that they may read": func(s *engine.Spec) {
			s.Zygotes, s.Mounts = python(), []engine.Mount{{Source: "/srv", Target: "/home/box"}}
		},
		"the default, stated": func(s *engine.Spec) { s.Hostname, s.Engine, s.Limits.Memory = "box", "native", 512<<20 },
	} {
		if of(change) != same {
			t.Errorf("%s: needs another blank box", name)
		}
	}
	keys := map[blankKey]string{same: "the base", writable: "a writable root"}
	for name, change := range map[string]func(*engine.Spec){
		"form of the ID":             func(s *engine.Spec) { s.ID = "box-abcdefghijklmnopqrstuvwxyz" },
		"user":                       func(s *engine.Spec) { s.User.UID = 7 },
		"group":                      func(s *engine.Spec) { s.User.GID = 7 },
		"allow degraded":             func(s *engine.Spec) { s.AllowDegraded = true },
		"no memory limit":            func(s *engine.Spec) { s.Limits.Memory = engine.Unlimited },
		"no pids limit":              func(s *engine.Spec) { s.Limits.PIDs = engine.Unlimited },
		"no CPU limit":               func(s *engine.Spec) { s.Limits.CPUs = engine.Unlimited },
		"upper size":                 func(s *engine.Spec) { s.WritableRoot, s.UpperSize = true, 1<<20 },
		"hostname, writable":         func(s *engine.Spec) { s.WritableRoot, s.Hostname = true, "other" },
		"zygotes":                    func(s *engine.Spec) { s.Zygotes = python() },
		"their names":                func(s *engine.Spec) { s.Zygotes = python(); s.Zygotes[0].Name = "other" },
		"their commands":             func(s *engine.Spec) { s.Zygotes = python(); s.Zygotes[0].Command[0] = "python3.11" },
		"their spares":               func(s *engine.Spec) { s.Zygotes = python(); s.Zygotes[0].Spares = 3 },
		"their modules":              func(s *engine.Spec) { s.Zygotes = python(); s.Zygotes[0].Preload = []string{"re"} },
		"a hostname that they see":   func(s *engine.Spec) { s.Zygotes, s.Hostname = python(), "other" },
		"a limit that they see":      func(s *engine.Spec) { s.Zygotes, s.Limits.Memory = python(), 1<<30 },
		"part of a processor":        func(s *engine.Spec) { s.Zygotes, s.Limits.CPUs = python(), 0.5 },
		"a limit of their processes": func(s *engine.Spec) { s.Zygotes, s.Limits.OpenFiles = python(), 100 },
		"a size that they see":       func(s *engine.Spec) { s.Zygotes, s.TmpSize = python(), 1<<20 },
	} {
		key := of(change)
		if keys[key] != "" {
			t.Errorf("%s: the same blank box as for %s", name, keys[key])
		}
		keys[key] = name
	}
	for name, s := range map[string]engine.Spec{
		"an image":         {ID: base.ID, Image: "x", Layers: []string{"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}},
		"unpacks":          {ID: base.ID, Unpacks: true},
		"another engine":   {ID: base.ID, Engine: "oci"},
		"gVisor":           {ID: base.ID, Engine: "oci", Isolation: "gvisor"},
		"a chosen ID":      {ID: "my-box"},
		"a long chosen ID": {ID: "s-my-box-with-a-long-name-of-its-own"},
		"digits":           {ID: "s-00000000000000000000"},
		"no ID":            {},
	} {
		if key, ok := keyOf(s.WithDefaults()); ok {
			t.Errorf("%s: the pool has boxes of key %+v", name, key)
		}
	}
}

// TestBlankSpec: a blank box has nothing of the request after which it is built but what its key and the way
// to build it need, and an ID that looks like others.
func TestBlankSpec(t *testing.T) {
	s := engine.Spec{ID: "box-abcdefghijklmnopqrstuvwxyz", Mounts: []engine.Mount{{Source: "/srv", Target: "/srv"}}, Labels: map[string]string{"tenant": "t"}}.WithDefaults()
	key, _ := keyOf(s)
	blank := blankOf(key, s)
	again, ok := keyOf(blank)
	if !ok || again != key || blank.ID == s.ID || len(blank.ID) != len(s.ID) || len(blank.Mounts) != 0 || len(blank.Labels) != 0 {
		t.Errorf("%+v", blank)
	}
	if err := blank.Validate(); err != nil {
		t.Error(err)
	}
}

// TestPoolWarm: boxes get their zygotes ahead of time while there is memory for them, and are given up for their memory
// before others are.
func TestPoolWarm(t *testing.T) {
	const mib = 1 << 20
	p := newPool(nil, 8)
	now := time.Unix(1_000_000*60, 0)
	s := specOf(0)
	s.Zygotes = python()
	key, _ := keyOf(s)
	for range 3 {
		p.noteLocked(key, s, now)
	}
	want := func(what string, memory int64, surplus int, missing, warm bool) {
		t.Helper()
		over, spec, hot := p.plan(now, 8, memory)
		if len(over) != surplus || (spec != nil) != missing || hot != warm {
			t.Errorf("%s: %d boxes too many, missing %v, warm %v", what, len(over), spec != nil, hot)
		}
		if spec != nil && len(spec.Zygotes) != 1 {
			t.Errorf("%s: a box with the zygotes %+v", what, spec.Zygotes)
		}
	}
	want("at first", 16*mib+6*mib, 0, true, true)
	want("with little memory", 16*mib+6*mib-1, 0, true, false)
	found := p.shelves[key]
	found.warmth = 30 * mib
	want("when more was measured", 30*mib+6*mib-1, 0, true, false)
	found.coldUntil = now.Add(time.Second)
	want("after a failure", 1<<40, 0, true, false)
	found.coldUntil = now
	found.ready = []*box{{id: "a", warmth: 30 * mib}, {id: "b"}}
	want("with one", 60*mib+6*mib, 0, true, true)
	want("with one and no memory for another", 60*mib+6*mib-1, 0, true, false)
	want("when its own memory is short", 30*mib+6*mib-1, 1, true, false)
	if len(found.ready) != 1 || found.ready[0].id != "b" {
		t.Errorf("%d boxes are left", len(found.ready))
	}
}

// specOf is a request of one of several kinds.
func specOf(kind int) engine.Spec {
	return engine.Spec{ID: "s-abcdefghij234567klmn", User: engine.User{UID: kind}}.WithDefaults()
}

// ask notes n requests of a kind at a time.
func ask(p *pool, kind, n int, at time.Time) {
	key, _ := keyOf(specOf(kind))
	for range n {
		p.noteLocked(key, specOf(kind), at)
	}
}

// TestPoolDemand: the pool has as many boxes of a kind as the busiest of the last minutes asked for, within its
// limit, which the kinds share, and forgets kinds that nobody asks for.
func TestPoolDemand(t *testing.T) {
	p := newPool(nil, 8)
	now := time.Unix(1_000_000*60, 0)
	shares := func(limit int) (list [3]int) {
		for kind := range list {
			key, _ := keyOf(specOf(kind))
			list[kind] = p.sharesLocked(now, limit)[key]
		}
		return list
	}
	want := func(what string, got, want [3]int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v boxes of each kind, want %v", what, got, want)
		}
	}
	want("before any request", shares(8), [3]int{})
	ask(p, 0, 1, now)
	want("after a single request", shares(8), [3]int{})
	ask(p, 0, 19, now)
	want("after twenty", shares(8), [3]int{8, 0, 0})
	want("when memory is short", shares(3), [3]int{3, 0, 0})
	want("without room", shares(0), [3]int{})
	ask(p, 1, 2, now.Add(time.Second))
	want("with another kind", shares(8), [3]int{6, 2, 0})
	now = now.Add(3 * time.Minute)
	ask(p, 2, 7, now)
	want("a kind of now comes before those of earlier", shares(8), [3]int{1, 0, 7})
	now = now.Add(demandTime - 3*time.Minute)
	want("when the first requests are forgotten", shares(8), [3]int{0, 0, 7})
	now = now.Add(demandTime)
	want("when all are", shares(8), [3]int{})
	if surplus, missing, _ := p.plan(now, 8, 0); len(surplus) != 0 || missing != nil || len(p.shelves) != 0 {
		t.Errorf("after that: %d boxes too many, %v missing, %d kinds", len(surplus), missing, len(p.shelves))
	}
}

// TestPoolPlan: what is too many is given up, oldest first, and what is missing is named.
func TestPoolPlan(t *testing.T) {
	p := newPool(nil, 8)
	now := time.Now()
	ask(p, 0, 3, now)
	key, _ := keyOf(specOf(0))
	if surplus, missing, _ := p.plan(now, 8, 0); len(surplus) != 0 || missing == nil || missing.ID == specOf(0).ID {
		t.Fatalf("%d too many, missing %v", len(surplus), missing)
	}
	old, young := &box{id: "old"}, &box{id: "young"}
	p.shelves[key].ready = []*box{old, young}
	if surplus, missing, _ := p.plan(now, 1, 0); len(surplus) != 1 || surplus[0] != old || missing != nil {
		t.Errorf("when memory is short: %v too many, missing %v", surplus, missing)
	}
	if b := p.take(specOf(0)); b != young {
		t.Errorf("the next request gets %v", b)
	}
	if b := p.take(specOf(0)); b != nil {
		t.Errorf("the one after it gets %v", b)
	}
	p.take(engine.Spec{ID: "chosen"}.WithDefaults())
	p.note(engine.Spec{ID: "chosen"}.WithDefaults())
	if s := p.state(); s.Misses[engine.PoolEmpty] != 1 || s.Misses[engine.PoolSpec] != 1 || s.Ready != 0 || s.Wanted != 3 || s.Limit != 8 {
		t.Errorf("%+v", s)
	}
	for kind := 1; kind < 2*maxKeys; kind++ {
		ask(p, kind, 1, now.Add(time.Duration(kind)*time.Second))
	}
	if p.plan(now.Add(3*time.Minute), 8, 0); len(p.shelves) != maxKeys || p.shelves[key] != nil {
		t.Errorf("%d kinds are remembered", len(p.shelves))
	}
}

// TestPoolDead: a box that has ended is passed over, and removed while nobody waits for it.
func TestPoolDead(t *testing.T) {
	l := &Launcher{works: newWorks()}
	l.pool = newPool(l, 8)
	ask(l.pool, 0, 3, time.Now())
	dead := func() *box {
		process := exec.Command("true")
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		b := &box{id: rand.Text()}
		b.init()
		var err error
		if b.pidfd, err = linux.PidfdOpen(process.Process.Pid); err != nil {
			t.Fatal(err)
		}
		if err := process.Wait(); err != nil {
			t.Fatal(err)
		}
		l.pool.blank[b.name] = struct{}{}
		return b
	}
	key, _ := keyOf(specOf(0))
	alive, one, two := &box{id: "alive"}, dead(), dead()
	l.pool.shelves[key].ready = []*box{one, alive, two}
	if b := l.pool.take(specOf(0)); b != alive {
		t.Errorf("the request gets %+v", b)
	}
	if b := l.pool.take(specOf(0)); b != nil {
		t.Errorf("the next one gets %+v", b)
	}
	if s := l.pool.state(); s.Misses[engine.PoolBroken] != 1 || s.Misses[engine.PoolEmpty] != 0 || s.Ready != 0 {
		t.Errorf("%+v", s)
	}
	for end := time.Now().Add(10 * time.Second); !l.works.idle() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if !one.removed || !two.removed || l.pool.owns(one.name) || l.pool.owns(two.name) {
		t.Error("they are not removed")
	}
}

// TestBornName: the name under which a box of the pool was built is its own until it is removed: no new box gets it, and
// what is left of one with this ID is removed without the cgroups.
func TestBornName(t *testing.T) {
	dir := t.TempDir()
	i := &instance{state: dir, dir: filepath.Join(dir, "run-x")}
	at := func(id string, more ...string) string {
		return filepath.Join(append([]string{i.boxes(), id}, more...)...)
	}
	for _, d := range []string{filepath.Join(dir, "ids"), i.boxes(), i.private(), filepath.Join(i.private(), "born"), at("blank")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("born", at("blank", bornLink)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(at("blank"), at("born")); err != nil {
		t.Fatal(err)
	}
	l := &Launcher{instance: i, works: newWorks(), born: map[string]string{}}
	l.pool = newPool(l, 1)
	b := &box{id: "born", name: "born", dir: at("born")}
	if err := l.rename(b, "mine"); err != nil {
		t.Fatal(err)
	}
	if err := l.rename(&box{id: "none", name: "none", dir: at("none")}, "other"); err == nil || l.takenBy("none", "") {
		t.Errorf("a box that is not there: %v", err)
	}
	other := &box{id: "born"}
	other.init()
	if err := l.reserve(other); !errors.Is(err, fs.ErrExist) {
		t.Errorf("another box has the name: %v", err)
	}
	if err := l.discard(other); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(at("born")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	if _, err := os.Stat(filepath.Join(i.private(), "born")); err != nil || !l.takenBy("born", "born") {
		t.Errorf("the first box has lost its name: %v", err)
	}
	// A launcher that was killed in reserve leaves the directory.
	if err := os.Mkdir(at("born"), 0o711); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(i.boxes())
	if err != nil || len(entries) != 2 || entries[0].Name() != "born" {
		t.Fatal(entries, err)
	}
	if failed := sweepBoxes(t.Context(), i.dir, entries[:1], nil); len(failed) > 0 { // it would need a host for cgroups
		t.Error(failed)
	}
	if _, err := os.Stat(at("born")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("swept: %v", err)
	}
	l.noteUnremoved("born", "born")
	if err := l.removeAgain("born"); err != nil || !l.takenBy("born", "born") {
		t.Errorf("the first box has lost its name: %v", err)
	}
}

// TestPoolFailure: boxes of other kinds are built while those of one kind cannot be, which are tried again later and
// later.
func TestPoolFailure(t *testing.T) {
	p := newPool(nil, 1)
	now := time.Now()
	ask(p, 0, 5, now)
	ask(p, 1, 5, now.Add(time.Second))
	missing := func(after time.Duration) int {
		t.Helper()
		_, missing, _ := p.plan(now.Add(after), 1, 0)
		if missing == nil {
			return -1
		}
		return missing.User.UID
	}
	key, _ := keyOf(specOf(0))
	if uid := missing(0); uid != 0 {
		t.Errorf("at first a box of kind %d is built", uid)
	}
	p.failedLocked(key, now)
	if uid := missing(failedPause - 1); uid != 1 {
		t.Errorf("after a failure a box of kind %d is built", uid)
	}
	if uid := missing(failedPause); uid != 0 {
		t.Errorf("after the pause a box of kind %d is built", uid)
	}
	p.failedLocked(key, now)
	if uid := missing(2*failedPause - 1); uid != 1 {
		t.Errorf("after a second failure a box of kind %d is built", uid)
	}
	other, _ := keyOf(specOf(1))
	p.failedLocked(other, now)
	if uid := missing(failedPause - 1); uid != -1 {
		t.Errorf("when none can be built, one of kind %d is", uid)
	}
	p.failedLocked(blankKey{}, now) // it was forgotten meanwhile
}

// TestNoPool: without a limit nothing is remembered.
func TestNoPool(t *testing.T) {
	p := newPool(nil, 0)
	p.noteRequest()
	p.start()
	p.note(specOf(0))
	if b := p.take(specOf(0)); b != nil || len(p.shelves) != 0 || len(p.misses) != 0 {
		t.Errorf("%v, %v", b, p)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
	for _, text := range []string{"-1", "65", "x", ""} {
		if _, err := parsePool(text); err == nil {
			t.Errorf("%q is a size of a pool", text)
		}
	}
}

// TestPoolRoom: blank boxes take only their shares of the host's memory and of the launcher's descriptors.
func TestPoolRoom(t *testing.T) {
	const plenty = 1 << 40
	for _, c := range []struct {
		limit     int
		available int64
		files     uint64
		boxes     int
		memory    int64
	}{
		{64, plenty, plenty, 64, plenty / 128},
		{64, 1 << 30, plenty, 4, 8 << 20},
		{2, 1 << 30, plenty, 2, 8 << 20},
		{64, 0, plenty, 0, 0},
		{64, plenty, 1024, 7, plenty / 128},
		{64, plenty, 100, 0, plenty / 128},
		{64, plenty, unix.RLIM_INFINITY, 64, plenty / 128},
	} {
		if boxes, memory := roomFor(c.limit, c.available, c.files); boxes != c.boxes || memory != c.memory {
			t.Errorf("with %d bytes and %d descriptors: room for %d of %d and %d bytes, want %d and %d", c.available, c.files, boxes, c.limit, memory, c.boxes, c.memory)
		}
	}
}
