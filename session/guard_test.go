package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine/enginetest"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// fakeDisk is a file system of 1 MB of which programs in boxes take up a part with every
// look at it, until they are ended.
type fakeDisk struct {
	mu      sync.Mutex
	free    int64
	writers map[string]func() bool // by path of a file: whether it keeps writing
	hidden  []func() int64         // what others take with a look
}

// takeHidden has something take step bytes with every look while it is alive. box, if not
// nil, is the one whose processes have written them.
func (d *fakeDisk) takeHidden(step int64, box *enginetest.Box, alive func() bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hidden = append(d.hidden, func() int64 {
		if !alive() {
			return 0
		}
		if box != nil {
			box.Written.Add(step)
		}
		return step
	})
}

func (d *fakeDisk) left() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.free
}

// newGuarded is a bench with a disk, which has a floor of 50,000 bytes.
func newGuarded(t *testing.T) (*bench, *fakeDisk) {
	disk := &fakeDisk{free: 200_000, writers: map[string]func() bool{}}
	b := newBench(t)
	b.alter = func(o *Options) { o.MinFree, o.space = 5, disk.space }
	b.start()
	return b, disk
}

func (b *bench) boxOf(key Key) *enginetest.Box { return b.host.Box(b.get(key).Box) }

func (d *fakeDisk) space() (space, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const step = 10_000
	for path, alive := range d.writers {
		if !alive() {
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return space{}, err
		}
		_, err = f.Write(make([]byte, step))
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return space{}, err
		}
		d.free -= step
	}
	for _, take := range d.hidden {
		d.free = max(d.free-take(), 0)
	}
	return space{free: d.free, size: 1_000_000}, nil
}

// TestGuard: what fills the disk is ended before it is full, and nothing else is.
func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &fakeDisk{free: 300_000, writers: map[string]func() bool{}}
		b := newBench(t)
		b.alter = func(o *Options) { o.MinFree, o.space = 5, disk.space }
		b.start()
		large, writer, hard := keyA, keyB, Key{"t", "hard"}
		b.ensure(large, policy.Request{})
		b.ensure(writer, policy.Request{})
		b.ensure(hard, policy.Request{Wishes: spec.Wishes{WorkspaceSize: sizeOf(1 << 30)}})
		must(t, os.WriteFile(filepath.Join(b.workspace(large), "data"), make([]byte, 1<<20), 0o600))
		kept := []*Process{b.launch(large, "p", "serve"), b.launch(hard, "p", "serve")}
		p := b.launch(writer, "p", "serve")
		results := make(chan ExecResult, 1)
		go func() {
			res, err := b.Exec(ctx, me, writer, nil, Exec{Args: []string{"wait"}})
			if err != nil {
				t.Error(err)
			}
			results <- res
		}()
		synctest.Wait()
		disk.mu.Lock()
		disk.writers[filepath.Join(b.workspace(writer), "file")] = func() bool { return !isDone(p.Done()) }
		disk.mu.Unlock()
		<-p.Done()
		res := <-results
		for what, got := range map[string]engine.Result{"process": p.Result(), "command": res.Result} {
			if got.Verdict != engine.DiskQuota || !strings.HasPrefix(got.Limit, "min_free ") {
				t.Errorf("the %s ended as %+v", what, got)
			}
		}
		disk.mu.Lock()
		if disk.free < 0 || disk.free > 50_000 {
			t.Errorf("%d bytes are left, must be at most 50000", disk.free)
		}
		disk.mu.Unlock()
		time.Sleep(time.Minute) // there is still too little space, but nothing takes more of it
		for _, p := range kept {
			if v := p.View(); v.State != ProcessRunning {
				t.Errorf("a process that wrote nothing: %+v", v)
			}
		}
		if v := b.get(writer); v.State != Running || v.Execs != 0 || v.Processes != 0 {
			t.Errorf("the session: %+v", v)
		}
		b.exec(writer, "true") // such as one that removes files
		if !b.audit.has("disk-quota", "done") {
			t.Error("it is not in the audit log")
		}
		b.Close(context.Background(), false)
	})
}

// TestGuardOfWhatIsNotSeen: a writer whose files cannot be measured is ended, and not the
// one with a larger workspace, which writes little.
func TestGuardOfWhatIsNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, disk := newGuarded(t)
		innocent := b.launch(keyA, "p", "serve")
		must(t, os.WriteFile(filepath.Join(b.workspace(keyA), "data"), make([]byte, 1<<20), 0o600))
		p := b.launch(keyB, "p", "serve")
		disk.takeHidden(100, b.boxOf(keyA), func() bool { return !isDone(p.Done()) })
		disk.takeHidden(10_000, b.boxOf(keyB), func() bool { return !isDone(p.Done()) })
		<-p.Done()
		if r := p.Result(); r.Verdict != engine.DiskQuota {
			t.Errorf("it ended as %+v", r)
		}
		if left := disk.left(); left < 25_000 || left > 50_000 {
			t.Errorf("%d bytes are left", left)
		}
		time.Sleep(time.Minute)
		if v := innocent.View(); v.State != ProcessRunning {
			t.Errorf("a process that wrote little: %+v", v)
		}
		b.Close(context.Background(), false)
	})
}

// TestGuardOfTheHost: if another program fills the disk, the guard ends no session, though
// all of them write a little, and tells the operator once.
func TestGuardOfTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, disk := newGuarded(t)
		var all []*Process
		for _, key := range []Key{keyA, keyB} {
			p := b.launch(key, "p", "serve")
			all = append(all, p)
			disk.takeHidden(500, b.boxOf(key), func() bool { return disk.free > 0 })
		}
		must(t, os.WriteFile(filepath.Join(b.workspace(keyA), "data"), make([]byte, 1<<20), 0o600))
		disk.takeHidden(10_000, nil, func() bool { return true })
		time.Sleep(5 * time.Minute)
		if left := disk.left(); left != 0 {
			t.Fatalf("%d bytes are left: the test did not fill the disk", left)
		}
		for i, p := range all {
			if v := p.View(); v.State != ProcessRunning {
				t.Errorf("process %d: %+v", i, v)
			}
		}
		told := 0
		for _, e := range b.Errors() {
			if strings.Contains(e.Message, "something else fills the disk") {
				told++
			}
		}
		if told != 1 {
			t.Errorf("told %d times, must be once: %+v", told, b.Errors())
		}
		b.Close(context.Background(), false)
	})
}

// TestGuardOfNoise: a small loss, such as an entry in the daemon's log, ends no session
// that writes in place.
func TestGuardOfNoise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, disk := newGuarded(t)
		p := b.launch(keyA, "p", "serve")
		disk.takeHidden(155_000, nil, func() bool { return disk.free > 50_000 }) // to below the floor, at once
		disk.takeHidden(2, nil, func() bool { return true })
		box := b.boxOf(keyA)
		disk.takeHidden(0, box, func() bool { box.Written.Add(5000); return false })
		time.Sleep(2 * time.Minute)
		if left := disk.left(); left > 44_000 {
			t.Fatalf("%d bytes are left: the test has lost nothing", left)
		}
		if v := p.View(); v.State != ProcessRunning {
			t.Errorf("a process that writes in place: %+v", v)
		}
		b.Close(context.Background(), false)
	})
}

// TestGuardOfMany: many that fill the disk together are ended, though none of them takes much.
func TestGuardOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, disk := newGuarded(t)
		var all []*Process
		for _, name := range []string{"1", "2", "3", "4", "5", "6"} {
			p := b.launch(Key{"t", name}, "p", "serve")
			all = append(all, p)
			disk.takeHidden(1000, b.boxOf(Key{"t", name}), func() bool { return !isDone(p.Done()) })
		}
		for _, p := range all {
			<-p.Done()
		}
		if disk.left() == 0 {
			t.Error("nothing is left")
		}
		b.Close(context.Background(), false)
	})
}

// TestGuardOfWhatIsLeftBehind: a box that writes when nothing of it runs any more is removed,
// and the next use gets another one.
func TestGuardOfWhatIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, disk := newGuarded(t)
		b.ensure(keyB, policy.Request{})
		innocent := b.launch(keyA, "p", "serve")
		box := b.boxOf(keyB)
		disk.takeHidden(5_000, box, func() bool { return !isDone(box.Done()) })
		<-box.Done()
		if disk.left() == 0 {
			t.Error("nothing is left")
		}
		time.Sleep(time.Minute)
		if r := b.exec(keyB, "true"); !r.Session.Recreated {
			t.Errorf("the next use: %+v", r)
		}
		if v := innocent.View(); v.State != ProcessRunning {
			t.Errorf("a process that wrote nothing: %+v", v)
		}
		b.Close(context.Background(), false)
	})
}

// TestGuardOfUploads: a file operation for a caller is ended too, and the caller gets the
// reason.
func TestGuardOfUploads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, disk := newGuarded(t)
		b.ensure(keyB, policy.Request{})
		box, release, err := b.Access(ctx, me, keyB, nil, Access{Action: "file-write", Path: "x", Write: true})
		must(t, err)
		p, err := box.Start(ctx, engine.Command{Args: []string{"wait"}})
		must(t, err)
		var ended atomic.Bool
		disk.takeHidden(10_000, b.boxOf(keyB), func() bool { return !ended.Load() })
		if _, err := p.Wait(); !errors.Is(err, policy.ErrQuota) || !strings.Contains(err.Error(), "min_free") {
			t.Errorf("it ended with %v", err)
		}
		ended.Store(true)
		release()
		b.Close(context.Background(), false)
	})
}

// TestCulprit: the share of the loss decides, and then who takes most.
func TestCulprit(t *testing.T) {
	a, b := new(session), new(session)
	for name, c := range map[string]struct {
		list []taker
		lost int64
		want *session
	}{
		"nobody":                              {nil, 100, nil},
		"nobody writes":                       {[]taker{{s: a, size: 1000, active: true}}, 100, nil},
		"too little":                          {[]taker{{s: a, grew: flow{lately: 24}, active: true}, {s: b, wrote: flow{lately: 24}, active: true}}, 100, nil},
		"a quarter":                           {[]taker{{s: a, grew: flow{lately: 25}, active: true}}, 100, a},
		"a quarter together":                  {[]taker{{s: a, grew: flow{lately: 12}, active: true}, {s: b, grew: flow{lately: 13}, active: true}}, 100, b},
		"the largest growth, not workspace":   {[]taker{{s: a, size: 1000, grew: flow{lately: 30}, active: true}, {s: b, grew: flow{lately: 70}, active: true}}, 100, b},
		"hidden":                              {[]taker{{s: a, grew: flow{lately: 10}, wrote: flow{lately: 10}, active: true}, {s: b, wrote: flow{lately: 90}, active: true}}, 100, b},
		"seen growth before writing in place": {[]taker{{s: a, wrote: flow{lately: 500}, active: true}, {s: b, grew: flow{lately: 90}, wrote: flow{lately: 90}, active: true}}, 100, b},
		"one that has ended":                  {[]taker{{s: a, grew: flow{lately: 60}}, {s: b, grew: flow{lately: 30}, active: true}}, 100, b},
		"only one that has ended":             {[]taker{{s: a, grew: flow{lately: 60}, wrote: flow{lately: 60}}}, 100, nil},
	} {
		if got, _ := culprit(c.list, c.lost); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestFlow: written bytes count as far as the disk lost them, in the same look or the ones
// before and after.
func TestFlow(t *testing.T) {
	type look struct{ wrote, lost int64 }
	for name, c := range map[string]struct {
		looks []look
		want  int64
	}{
		"at once":           {[]look{{100, 100}}, 100},
		"lost a bit later":  {[]look{{100, 0}, {0, 100}}, 100},
		"lost a bit sooner": {[]look{{0, 100}, {100, 0}}, 100},
		"lost much later":   {[]look{{100, 0}, {0, 0}, {0, 100}}, 0},
		"in place":          {[]look{{1000, 0}, {1000, 0}, {1000, 7}}, 7},
		"a file truncated":  {[]look{{-100, 100}}, 0},
	} {
		var f flow
		var last int64
		for _, l := range c.looks {
			f, last = f.next(l.wrote, l.lost+last), l.lost
		}
		if f.lately != c.want {
			t.Errorf("%s: %d bytes, want %d", name, f.lately, c.want)
		}
	}
}

// TestShare: where directories can have a limit at no cost, each workspace has one; where
// they cannot, that is asked once.
func TestShare(t *testing.T) {
	for _, free := range []bool{true, false} {
		b := newBench(t)
		b.alter = func(o *Options) {
			o.MinFree, o.space = 5, func() (space, error) { return space{400 << 30, 400 << 30}, nil }
		}
		if !free {
			b.host.RefuseLimits(engine.ErrUnenforceable)
		}
		var mu sync.Mutex
		asked := 0
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "limit-directory" {
				mu.Lock()
				asked++
				mu.Unlock()
			}
			return nil
		})
		b.start()
		b.ensure(keyA, policy.Request{})
		b.ensure(keyB, policy.Request{})
		dir := b.workspace(keyA)
		limit := b.host.Limit(dir)
		limited := limit != (enginetest.Limit{})
		if limited != free || limited && limit.Bytes != 100<<30 {
			t.Errorf("project quota %v: limit %+v", free, limit)
		}
		must(t, b.Remove(ctx, me, keyA))
		if limit := b.host.Limit(dir); limit.Bytes != 0 {
			t.Errorf("the limit of a workspace that is gone: %+v", limit)
		}
		if want := map[bool]int{true: 3, false: 1}[free]; asked != want {
			t.Errorf("project quota %v: asked %d times, want %d", free, asked, want)
		}
		b.Close(ctx, false)
	}
}
