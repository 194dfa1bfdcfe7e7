package native

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/sys/unix"
)

func exitStatus(code int) unix.WaitStatus         { return unix.WaitStatus(code << 8) }
func killedBy(signal unix.Signal) unix.WaitStatus { return unix.WaitStatus(signal) }
func count(n int64) *int64                        { return &n }
func receipt(oom, refused *int64) (r engine.Receipt) {
	r.OOMKills, r.PIDsLimitReached = oom, refused
	return r
}

// One of several reasons becomes the verdict. The kernel's counters matter only for a command
// that failed.
func TestJudge(t *testing.T) {
	limits := engine.Limits{Memory: 64 << 20, PIDs: 16, FileSize: 1 << 20}
	for _, c := range []struct {
		name       string
		reason     engine.Verdict
		status     unix.WaitStatus
		exited     bool
		background bool
		receipt    engine.Receipt
		want       engine.Verdict
		code       int
		limit      string
		fileSize   int64
	}{
		{"success", "", exitStatus(0), true, false, receipt(count(0), count(0)), engine.Exited, 0, "", 0},
		{"failure", "", exitStatus(3), true, false, receipt(nil, nil), engine.Exited, 3, "", 0},
		{"signal", "", killedBy(unix.SIGSEGV), true, false, receipt(count(0), count(0)), engine.Signaled, -1, "", 0},
		{"oom", "", killedBy(unix.SIGKILL), true, false, receipt(count(1), count(0)), engine.OOM, -1, "64 MiB", 0},
		{"oom of a child", "", exitStatus(1), true, false, receipt(count(1), count(0)), engine.OOM, 1, "64 MiB", 0},
		{"oom that it coped with", "", exitStatus(0), true, false, receipt(count(1), count(0)), engine.Exited, 0, "", 0},
		{"kill without oom count", "", killedBy(unix.SIGKILL), true, false, receipt(nil, nil), engine.Signaled, -1, "", 0},
		{"refused forks", "", exitStatus(1), true, false, receipt(count(0), count(9)), engine.PIDsLimit, 1, "16", 0},
		{"refused forks that it coped with", "", exitStatus(0), true, false, receipt(count(0), count(9)), engine.Exited, 0, "", 0},
		{"bomb whose shell has left", "", exitStatus(0), true, true, receipt(count(0), count(9)), engine.PIDsLimit, 0, "16", 0},
		{"memory before pids", "", exitStatus(1), true, false, receipt(count(1), count(1)), engine.OOM, 1, "64 MiB", 0},
		{"file size", "", killedBy(unix.SIGXFSZ), true, false, receipt(count(0), count(0)), engine.DiskQuota, -1, "file size 1 MiB", 1 << 20},
		{"that signal for no limit", "", killedBy(unix.SIGXFSZ), true, false, receipt(count(0), count(0)), engine.Signaled, -1, "", 0},
		{"a status that is no end", "", unix.WaitStatus(0x137f), true, false, receipt(nil, nil), engine.BoxLost, -1, "", 0},
		{"timeout", engine.TimedOut, killedBy(unix.SIGTERM), true, false, receipt(count(1), count(0)), engine.TimedOut, -1, "2s", 0},
		{"timeout that it handled", engine.TimedOut, exitStatus(0), true, false, receipt(nil, nil), engine.TimedOut, 0, "2s", 0},
		{"flood", engine.OutputLimit, killedBy(unix.SIGKILL), true, false, receipt(nil, nil), engine.OutputLimit, -1, "1 MiB", 0},
		{"canceled", engine.Canceled, 0, false, false, receipt(nil, nil), engine.Canceled, -1, "", 0},
		{"lost", engine.BoxLost, 0, false, false, receipt(nil, nil), engine.BoxLost, -1, "", 0},
	} {
		p := &process{account: account{box: &box{limits: limits}, slot: &slot{}}, cmd: engine.Command{Timeout: 2 * time.Second, OutputLimit: 1 << 20}}
		p.result.Receipt, p.fileSize = c.receipt, c.fileSize
		p.judge(c.reason, c.status, c.exited, c.background)
		r := p.result
		if r.Verdict != c.want || r.ExitCode != c.code || r.Limit != c.limit {
			t.Errorf("%s: %s, code %d, limit %q; want %s, %d, %q", c.name, r.Verdict, r.ExitCode, r.Limit, c.want, c.code, c.limit)
		}
	}
}

// TestHeldOutside: the verdict names how much of the limit was held outside the charge. A kill
// that only the launcher has counted is an OOM kill.
func TestHeldOutside(t *testing.T) {
	for _, c := range []struct {
		name   string
		held   rpc.OutsideHeld
		own    bool // the limit of the slot was hit
		kills  int64
		limit  string
		status unix.WaitStatus
	}{
		{"locks", rpc.OutsideHeld{Locks: 41 << 20}, false, 1, "64 MiB, of which 41 MiB held by file locks outside its charge", killedBy(unix.SIGKILL)},
		{"sockets", rpc.OutsideHeld{Sockets: 3 << 19}, false, 1, "64 MiB, of which 1.5 MiB held by sockets outside its charge", exitStatus(137)},
		{"both", rpc.OutsideHeld{Locks: 1 << 20, Sockets: 1 << 20, Killed: true}, false, 1, "64 MiB, of which 2 MiB held by file locks and sockets outside its charge", killedBy(unix.SIGKILL)},
		{"nothing", rpc.OutsideHeld{}, false, 1, "64 MiB", killedBy(unix.SIGKILL)},
		{"the slot's own limit", rpc.OutsideHeld{Locks: 2 << 20}, true, 1, "16 MiB", killedBy(unix.SIGKILL)},
	} {
		a := account{box: &box{limits: engine.Limits{Memory: 64 << 20}}, slot: &slot{}, outside: c.held, hitOwn: c.own}
		if c.own {
			a.slot.memory = 16 << 20
		}
		a.result.Receipt = receipt(count(c.kills), nil)
		a.conclude(ending{status: c.status, exited: true})
		if a.result.Verdict != engine.OOM || a.result.Limit != c.limit {
			t.Errorf("%s: %s, limit %q, want %q", c.name, a.result.Verdict, a.result.Limit, c.limit)
		}
	}
}

// The verdict names the memory limit of the process only if that one was hit.
func TestMemoryLimitOf(t *testing.T) {
	const own, boxes = 16 << 20, 64 << 20
	figure := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		name     string
		own, box int64
		use      cgroups.Usage
		want     int64
	}{
		{"none of its own", 0, boxes, cgroups.Usage{OOMs: figure(1), MemoryPeak: figure(boxes)}, boxes},
		{"its own, on cgroup2", own, boxes, cgroups.Usage{OOMs: figure(1), MemoryPeak: figure(own)}, own},
		{"the box's, on cgroup2", own, boxes, cgroups.Usage{OOMs: figure(0), MemoryPeak: figure(own)}, boxes},
		{"its own, on v1", own, boxes, cgroups.Usage{MemoryPeak: figure(own - 100<<10)}, own},
		{"the box's, on v1", own, boxes, cgroups.Usage{MemoryPeak: figure(own / 2)}, boxes},
		{"its own above the box's", 2 * boxes, boxes, cgroups.Usage{MemoryPeak: figure(boxes)}, boxes},
		{"no figure", own, boxes, cgroups.Usage{}, own},
		{"a box without one", own, engine.Unlimited, cgroups.Usage{OOMs: figure(0), MemoryPeak: figure(0)}, own},
	} {
		a := account{slot: &slot{memory: c.own}, hitOwn: c.use.HitOwn(c.own)}
		if got := a.memoryLimit(engine.Limits{Memory: c.box}); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestFilled: whether a command has filled a volume.
func TestFilled(t *testing.T) {
	const slack, plenty = 1 << 20, 8 << 20
	left := func(bytes, files int64) level { return level{bytes: bytes, files: files, known: true} }
	for _, c := range []struct {
		name        string
		slack       int64
		before, now level
		want        bool
	}{
		{"tmpfs, filled", 0, left(plenty, 9), left(0, 8), true},
		{"tmpfs, almost", 0, left(plenty, 9), left(4096, 8), false},
		{"tmpfs, full before", 0, left(0, 9), left(0, 8), false},
		{"tmpfs, no inode left", 0, left(plenty, 9), left(plenty, 0), true},
		{"tmpfs, none before", 0, left(plenty, 0), left(4096, 0), false},
		{"disk, filled", slack, left(plenty, 9), left(0, 8), true},
		{"disk, no room for one more write", slack, left(plenty, 9), left(slack, 8), true},
		{"disk, room", slack, left(plenty, 9), left(slack+1, 8), false},
		{"disk, the rest of it", slack, left(slack, 9), left(4096, 9), true},
		{"disk, almost full and a file more", slack, left(4096, 9), left(4096, 8), true},
		{"disk, almost full and untouched", slack, left(4096, 9), left(4096, 9), false},
		{"disk, made room", slack, left(4096, 9), left(8192, 10), false},
		{"disk, no inode left", slack, left(plenty, 9), left(plenty, 0), true},
		{"unknown before", slack, level{}, left(0, 8), true},
		{"unknown afterwards", slack, left(plenty, 9), level{}, false},
	} {
		v := volume{}
		v.Slack = c.slack
		if got := v.filled(c.before, c.now); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A descriptor of a volume keeps it mounted. So it is closed when the volume is detached,
// when the box is removed, and at once if the box is gone already.
func TestVolumeSet(t *testing.T) {
	open := func() *os.File {
		f, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	s := &volumeSet{}
	detached, kept, late := open(), open(), open()
	s.add([]rpc.Volume{{Path: "/a"}, {Path: "/b"}}, []*os.File{detached, kept})
	before := levels(s)
	s.drop([]string{"/a", "/c"})
	if _, err := detached.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("detached: %v", err)
	}
	if now := before[0].of.level(); now.known {
		t.Error("the level of what was detached is known")
	}
	if len(levels(s)) != 1 || !levels(s)[0].known {
		t.Errorf("watched: %+v", levels(s))
	}
	s.close()
	s.add([]rpc.Volume{{Path: "/c"}}, []*os.File{late})
	for name, f := range map[string]*os.File{"kept": kept, "late": late} {
		if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(levels(s)) != 0 {
		t.Error("a box that is gone has volumes")
	}
}

// TestJudgeGuest: behind gVisor, a process that the kernel has killed for memory is a helper of ours. That
// was the end of the command only if the command ended in this way.
func TestJudgeGuest(t *testing.T) {
	for status, want := range map[unix.WaitStatus]engine.Verdict{
		killedBy(unix.SIGKILL): engine.OOM, killedBy(unix.SIGTERM): engine.Signaled, exitStatus(3): engine.Exited, exitStatus(0): engine.Exited,
	} {
		b := &box{spec: engine.Spec{Isolation: spec.IsolationGVisor}, limits: engine.Limits{Memory: 128 << 20}}
		p := &process{account: account{box: b, slot: &slot{}}}
		p.result.Receipt = receipt(count(1), nil)
		p.judge("", status, true, false)
		if r := p.result; r.Verdict != want || (r.Receipt.OOMKills != nil) != (want == engine.OOM) {
			t.Errorf("status %v: %+v, want %s", status, r, want)
		}
	}
}
