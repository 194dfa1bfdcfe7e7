package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// fakeDisk is a file system of 1 MB of which programs in boxes take up a part with every
// look at it, until they are ended.
type fakeDisk struct {
	mu      sync.Mutex
	free    int64
	writers map[string]func() bool // by path of a file: whether it goes on
}

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
		b.ensure(hard, policy.Request{WorkspaceSize: sizeOf(1 << 30)})
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
		time.Sleep(time.Minute) // there is still too little, but nobody takes from it
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

// TestGuardOfWhatIsNotSeen: a writer whose files cannot be measured does not fill the disk
// either, though it is not the first to go.
func TestGuardOfWhatIsNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hidden := filepath.Join(t.TempDir(), "deleted and still open")
		disk := &fakeDisk{free: 200_000, writers: map[string]func() bool{}}
		b := newBench(t)
		b.alter = func(o *Options) { o.MinFree, o.space = 5, disk.space }
		b.start()
		p := b.launch(keyA, "p", "serve")
		disk.mu.Lock()
		disk.writers[hidden] = func() bool { return !isDone(p.Done()) }
		disk.mu.Unlock()
		<-p.Done()
		disk.mu.Lock()
		defer disk.mu.Unlock()
		if disk.free < 0 || disk.free > 25_000 {
			t.Errorf("%d bytes are left", disk.free)
		}
		b.Close(context.Background(), false)
	})
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
			b.host.noLimits = engine.ErrUnenforceable
		}
		var mu sync.Mutex
		asked := 0
		b.host.setHook(func(_ context.Context, op, _ string) error {
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
		limit, limited := b.host.limits[dir]
		if limited != free || limited && limit[0] != 100<<30 {
			t.Errorf("project quota %v: limit %+v", free, limit)
		}
		must(t, b.Remove(ctx, me, keyA))
		if limit := b.host.limits[dir]; limit[0] != 0 {
			t.Errorf("the limit of a workspace that is gone: %+v", limit)
		}
		if want := map[bool]int{true: 3, false: 1}[free]; asked != want {
			t.Errorf("project quota %v: asked %d times, want %d", free, asked, want)
		}
		b.Close(ctx, false)
	}
}
