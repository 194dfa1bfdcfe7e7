package native

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/services"
)

// startPool runs an engine with a pool of at most limit boxes.
func startPool(t testing.TB, dir string, limit int) *native.Engine {
	t.Helper()
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := native.Start(ctx, native.Options{InitPath: initPath, StateDir: dir, Pool: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func poolOf(t testing.TB, e engine.Pooled) engine.PoolState {
	t.Helper()
	s, err := e.Pool(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// awaitPool waits until there are n blank boxes.
func awaitPool(t testing.TB, e engine.Pooled, n int) {
	t.Helper()
	waitUntil(t, fmt.Sprintf("%d boxes are in the pool", n), func() bool { return poolOf(t, e).Ready == n })
}

// demand creates two boxes: one request alone has the pool build none.
func demand(t testing.TB, e engine.Engine, s engine.Spec) {
	t.Helper()
	for range 2 {
		create(t, e, s)
	}
}

// hit creates a box and fails unless it is one of the pool.
func hit(t testing.TB, e engine.Engine, s engine.Spec) engine.Box {
	t.Helper()
	before := poolOf(t, e.(engine.Pooled))
	b := create(t, e, s)
	if after := poolOf(t, e.(engine.Pooled)); after.Hits != before.Hits+1 {
		t.Fatalf("a create of %+v got no box of the pool: %+v, before %+v", s, after, before)
	}
	return b
}

// insideProbe prints what a command can learn of its box, one fact in each line, in the same order.
const insideProbe = `
import glob, os, resource, socket, stat, subprocess
def show(name, value): print(name, repr(value))
def text(path):
    try:
        with open(path, errors="replace") as f: return f.read()
    except OSError as e: return e.strerror
for f in ("mountinfo", "mounts", "cgroup", "uid_map", "gid_map", "setgroups", "limits", "status", "environ", "cmdline", "oom_score_adj",
          "loginuid", "timerslack_ns", "personality", "attr/current", "sched", "autogroup", "mountstats", "coredump_filter", "timens_offsets"):
    for line in text("/proc/self/" + f).split("\n"): show("self/" + f, line)
for f in ("status", "cmdline", "cgroup", "limits", "comm", "environ", "uid_map", "oom_score_adj", "mountinfo", "timerslack_ns", "sessionid"):
    for line in text("/proc/1/" + f).split("\n"): show("1/" + f, line)
show("threads of 1", sorted(text(p) for p in glob.glob("/proc/1/task/*/comm")) != [])
for f in ("cpuinfo", "cmdline", "version", "filesystems", "net/dev", "net/route", "net/if_inet6", "net/unix", "net/sockstat", "sysvipc/shm", "sysvipc/msg", "keys",
          "sys/kernel/hostname", "sys/kernel/domainname", "sys/kernel/shmmax", "sys/kernel/msgmni", "sys/fs/mqueue/queues_max", "sys/user/max_user_namespaces",
          "sys/net/ipv4/ip_unprivileged_port_start", "sys/net/ipv4/ip_local_port_range", "sys/net/ipv6/conf/all/disable_ipv6", "sys/net/core/somaxconn"):
    for line in text("/proc/" + f).split("\n"): show(f, line)
show("meminfo", [l for l in text("/proc/meminfo").split("\n") if l.startswith(("MemTotal", "Swap"))])
show("cpus in stat", [l.split()[0] for l in text("/proc/stat").split("\n") if l.startswith("cpu")])
show("uname", os.uname()[:2]); show("hostname", socket.gethostname()); show("fqdn", socket.getfqdn())
show("ids", (os.getresuid(), os.getresgid(), os.getgroups())); show("cwd", os.getcwd()); show("umask", os.umask(0)); show("env", sorted(os.environ.items()))
show("session", (os.getpid() == os.getsid(0), os.getppid(), os.getpgrp() == os.getpid())); show("nice", (os.getpriority(os.PRIO_PROCESS, 0), os.getpriority(os.PRIO_PROCESS, 1), os.sched_getscheduler(0)))
show("affinity", sorted(os.sched_getaffinity(0))); show("fds", sorted(os.listdir("/proc/self/fd")))
show("rlimits", [(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) if n.startswith("RLIMIT_")])
for d in ("/", "/tmp", "/home/box", "/dev/shm", "/dev", "/proc", "/etc", "/usr", "/workspace", "/mnt/a", "/mnt/b", "/proc/meminfo", "/sys/devices/system/cpu"):
    try:
        s = os.statvfs(d); show("statvfs " + d, (s.f_bsize, s.f_blocks, s.f_bfree if d not in ("/etc", "/usr", "/workspace", "/mnt/a", "/mnt/b") else 0, s.f_files if d != "/proc" else 0, s.f_flag, s.f_namemax))
    except OSError as e: show("statvfs " + d, e.strerror)
def walk(top, depth):
    try: names = sorted(os.listdir(top))
    except OSError as e: return show("list " + top, e.strerror)
    for name in names:
        path = top.rstrip("/") + "/" + name
        try: s = os.lstat(path)
        except OSError as e: show(path, e.strerror); continue
        content = os.readlink(path) if stat.S_ISLNK(s.st_mode) else text(path) if stat.S_ISREG(s.st_mode) and s.st_size < 65536 and not path.startswith(("/proc/", "/usr")) else ""
        show(path, (oct(s.st_mode), s.st_uid, s.st_gid, s.st_nlink if path != "/proc" else 0, s.st_size if not stat.S_ISLNK(s.st_mode) else 0, s.st_rdev, content))
        if stat.S_ISDIR(s.st_mode) and depth > 0: walk(path, depth - 1)
for top, depth in (("/", 0), ("/etc", 1), ("/.box", 1), ("/tmp", 3), ("/home", 3), ("/dev", 2), ("/run", 3), ("/var", 3), ("/root", 3), ("/workspace", 2), ("/mnt", 3), ("/sys", 6)): walk(top, depth)
show("proc", [n for n in os.listdir("/proc") if not n.isdigit()].sort()); show("processes", len([n for n in os.listdir("/proc") if n.isdigit()]))
for path in ("/x", "/etc/x", "/tmp/x", "/home/box/x", "/dev/x", "/dev/shm/x", "/proc/x", "/usr/x", "/run/x", "/workspace/x", "/mnt/a/x", "/mnt/b/x"):
    try: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)); os.unlink(path); show("create " + path, "yes")
    except OSError as e: show("create " + path, e.strerror)
try: socket.sethostname("other"); show("sethostname", "yes")
except OSError as e: show("sethostname", e.strerror)
`

// Facts that differ between any two boxes.
var (
	// The mounts of a box have numbers of their own, and so have the devices of its tmpfs.
	mountNumbers = regexp.MustCompile(`^(self|1)/mountinfo ['"]\d+ \d+ \d+:\d+ `)
	peerGroups   = regexp.MustCompile(`master:\d+`)
	cgroupNames  = regexp.MustCompile(`boxd/[a-z0-9]+\.box-[a-z2-7]{26}`)
	hostIDs      = regexp.MustCompile(`\b\d{10}\b`)
	slotNames    = regexp.MustCompile(`/work/\d+`)
	// Times and counters of the probe itself, and of PID 1, which does a little from time to time.
	volatile = regexp.MustCompile(`^(self|1)/(sched|status '(State|Vm|Rss|voluntary|nonvoluntary|Cpus_allowed|Mems|Pid|NSpid|NStgid|NSpgid|NSsid|Tgid|Ngid|Threads|HugetlbPages))` +
		`|^cpuinfo '(cpu MHz|bogomips)|^(self/mountstats|net/sockstat|self/autogroup)`)
)

// factsInside returns what a command learns of its box, with the box's own numbers replaced.
func factsInside(t testing.TB, b engine.Box, user engine.User) []string {
	t.Helper()
	base := hostID(t, b) - user.UID
	o := run(t, b, python(insideProbe))
	if o.Result.ExitCode != 0 {
		t.Fatalf("the probe fails: %+v", o)
	}
	var facts []string
	for line := range strings.Lines(o.Stdout) {
		line = strings.TrimSpace(line)
		if volatile.MatchString(line) {
			continue
		}
		facts = append(facts, anonymous(line, b.ID(), base))
	}
	return facts
}

// anonymous replaces what two boxes cannot have in common.
func anonymous(line, id string, base int) string {
	line = mountNumbers.ReplaceAllString(line, "$1/mountinfo ")
	line = peerGroups.ReplaceAllString(line, "master:N")
	line = cgroupNames.ReplaceAllString(line, "boxd/BOX")
	line = slotNames.ReplaceAllString(line, "/work/N")
	line = strings.ReplaceAll(line, id, "ID")
	return hostIDs.ReplaceAllStringFunc(line, func(text string) string {
		if n, err := strconv.Atoi(text); err == nil && n >= base && n < base+65536 {
			return "BASE+" + strconv.Itoa(n-base)
		}
		return text
	})
}

// counters are files of cgroups that count what a box and the launcher do, or hold a time.
var counters = regexp.MustCompile(`(cpu\.stat|cpu\.stat\.local|cpuacct\.|cgroup\.(stat|procs|threads|events)|memory\.(stat|current|numa_stat|usage_in_bytes|max_usage|memsw\.usage|memsw\.max_usage|kmem\.usage|kmem\.max|kmem\.slabinfo|kmem\.tcp\.usage|kmem\.tcp\.max|pressure|peak|failcnt|events)|tasks|.*pressure|io\.stat|pids\.(current|peak))`)

// factsOutside returns what the host sees of a box: the files of its cgroups, and PID 1 in /proc.
func factsOutside(t testing.TB, b engine.Box, user engine.User) []string {
	t.Helper()
	base := hostID(t, b) - user.UID
	inits := services.Init(t, b.ID())
	if len(inits) != 1 {
		t.Fatalf("PID 1 of the box: %v", inits)
	}
	proc := fmt.Sprintf("/proc/%d/", inits[0])
	var facts []string
	add := func(name, value string) {
		facts = append(facts, anonymous(name+" "+strings.TrimSpace(value), b.ID(), base))
	}
	for _, name := range []string{"cmdline", "environ", "uid_map", "gid_map", "setgroups", "limits", "oom_score_adj", "timerslack_ns", "personality", "loginuid", "sessionid", "coredump_filter", "comm", "cgroup"} {
		text, err := os.ReadFile(proc + name)
		if err != nil {
			text = []byte(err.(*fs.PathError).Err.Error())
		}
		add(name, string(text))
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if !regexp.MustCompile(`^(State|Vm|Rss|vol|nonvol|Pid|NS|Tgid|PPid|Threads|Hugetlb|SigPnd|ShdPnd|SigQ)`).MatchString(line) {
			add("status", line)
		}
	}
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, _ := os.Readlink(proc + "fd/" + fd.Name())
		target = regexp.MustCompile(`\[\d+\]`).ReplaceAllString(target, "[N]")
		add("fd", target)
	}
	own, err := os.ReadFile(proc + "cgroup")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(filepath.Dir(regexp.MustCompile(`(?m)^0::(.*)/init$`).FindStringSubmatch(string(own))[1] + "/init"))
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu"} {
		top := filepath.Join(root, "boxd", name)
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || counters.MatchString(filepath.Base(path)) {
				return nil
			}
			rel, _ := filepath.Rel(top, path)
			info, err := d.Info()
			if err != nil {
				return nil
			}
			value := ""
			if !d.IsDir() && info.Mode()&0o444 != 0 {
				text, err := os.ReadFile(path)
				value = string(text)
				if err != nil {
					value = err.(*fs.PathError).Err.Error()
				}
			}
			add(root+" "+slotNames.ReplaceAllString("/"+rel, "/work/N"), fmt.Sprint(info.Mode(), " ", value))
			return nil
		})
	}
	slices.Sort(facts)
	return slices.Compact(facts) // slots are alike
}

// wantSame compares facts of a box of the pool with those of a cold one.
func wantSame(t *testing.T, what string, pooled, cold []string) {
	t.Helper()
	if len(cold) < 50 {
		t.Fatalf("%s: only %d facts", what, len(cold))
	}
	if slices.Equal(pooled, cold) {
		return
	}
	for i := range max(len(pooled), len(cold)) {
		var p, c string
		if i < len(pooled) {
			p = pooled[i]
		}
		if i < len(cold) {
			c = cold[i]
		}
		if p != c {
			t.Errorf("%s: a box of the pool and a cold one differ:\n%.2000s\n%.2000s", what, p, c)
			return
		}
	}
}

// TestPoolBox: neither from inside nor from outside can a box of the pool be told from one that was built on
// request, whatever changed at its hand-over.
func TestPoolBox(t *testing.T) {
	testutil.Long(t)
	workspace, work := hostWorkspace(t)
	other := engine.Mount{Source: workspace, Target: "/mnt/b", ReadOnly: true}
	inner := engine.Mount{Source: workspace, Target: "/workspace/inner"}
	cold := start(t)
	for _, c := range []struct {
		name        string
		long        bool // see testutil.Long
		first, then engine.Spec
	}{
		{"the same", true, engine.Spec{}, engine.Spec{}},
		{"other limits", false, engine.Spec{}, engine.Spec{Limits: engine.Limits{Memory: 96 << 20, PIDs: 33, CPUs: 0.4, OpenFiles: 99, FileSize: 1 << 20}}},
		{"higher limits", true, engine.Spec{Limits: engine.Limits{Memory: 64 << 20, PIDs: 20, CPUs: 0.2}}, engine.Spec{Limits: engine.Limits{Memory: 700 << 20, PIDs: 900, CPUs: 2}}},
		{"hostname and sizes", true, engine.Spec{}, engine.Spec{Hostname: "another.example", TmpSize: 5 << 20}},
		{"shorter hostname", true, engine.Spec{Hostname: "a-rather-long-name", TmpSize: 100 << 20}, engine.Spec{Hostname: "b"}},
		{"mounts", false, engine.Spec{}, engine.Spec{Mounts: []engine.Mount{other, work, inner}}},
		{"user", true, engine.Spec{User: engine.User{UID: 1000, GID: 1000}}, engine.Spec{User: engine.User{UID: 1000, GID: 1000}, Mounts: []engine.Mount{work}, Limits: engine.Limits{Memory: 40 << 20}}},
		{"no limits", true, engine.Spec{Limits: engine.Limits{Memory: -1, PIDs: -1, CPUs: -1}}, engine.Spec{Limits: engine.Limits{Memory: -1, PIDs: -1, CPUs: -1}}},
		{"writable", false, engine.Spec{WritableRoot: true, UpperSize: 9 << 20}, engine.Spec{WritableRoot: true, UpperSize: 9 << 20, TmpSize: 3 << 20, Mounts: []engine.Mount{work}, Limits: engine.Limits{Memory: 80 << 20}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.long {
				testutil.Long(t)
			}
			if c.first.WritableRoot {
				if _, ok := createWritable(t, cold, engine.Spec{}); !ok {
					return
				}
			}
			warm := startPool(t, stateDir(t), 1)
			demand(t, warm, c.first)
			awaitPool(t, warm, 1)
			p, q := hit(t, warm, c.then), create(t, cold, c.then)
			user := c.then.User
			wantSame(t, "outside, before the first command", factsOutside(t, p, user), factsOutside(t, q, user))
			wantSameReceipt(t, p, q)
			wantSame(t, "inside", factsInside(t, p, user), factsInside(t, q, user))
			wantSame(t, "outside", factsOutside(t, p, user), factsOutside(t, q, user))
		})
	}
}

// wantSameReceipt compares what the same command uses in a box of the pool and in a cold one.
func wantSameReceipt(t *testing.T, pooled, cold engine.Box) {
	t.Helper()
	p, c := run(t, pooled, shell("true")).Receipt, run(t, cold, shell("true")).Receipt
	if (p.MemoryPeak == nil) != (c.MemoryPeak == nil) || (p.PIDsPeak == nil) != (c.PIDsPeak == nil) {
		t.Fatalf("receipts differ: %+v, cold %+v", p, c)
	}
	if c.MemoryPeak != nil && max(*p.MemoryPeak, *c.MemoryPeak)-min(*p.MemoryPeak, *c.MemoryPeak) > 512<<10 {
		t.Errorf("the command had %d bytes of memory at most, in a cold box %d", *p.MemoryPeak, *c.MemoryPeak)
	}
	if c.PIDsPeak != nil && *p.PIDsPeak != *c.PIDsPeak {
		t.Errorf("the command had %d processes at most, in a cold box %d", *p.PIDsPeak, *c.PIDsPeak)
	}
}

// hostWorkspace makes a directory with a file, and a mount of it.
func hostWorkspace(t testing.TB) (dir string, m engine.Mount) {
	t.Helper()
	dir, m = workspace(t, 4321, 4321)
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, m
}

// poolService runs a service with a pool, and a client of it.
func poolService(t testing.TB, limit int) (*native.Service, *services.Service) {
	t.Helper()
	host := services.Start(t, native.LauncherOptions{Pool: limit, MountRoots: []string{"/"}})
	return connect(t, host.Socket), host
}

// hitLive creates boxes until one is of the pool, and returns that one. The others are removed.
func hitLive(t testing.TB, s *native.Service, spec engine.Spec) engine.LiveBox {
	t.Helper()
	for range 10 {
		before := poolOf(t, s).Hits
		b := createLive(t, s, spec)
		if poolOf(t, s).Hits > before {
			return b
		}
		remove(t, b)
		waitUntil(t, "the pool has a box, or wants none after a single request", func() bool { p := poolOf(t, s); return p.Ready > 0 || p.Wanted == 0 })
	}
	t.Fatalf("no box is of the pool: %+v", poolOf(t, s))
	return nil
}

// blankInits returns the processes that are PID 1 of a blank box of a state directory, by the box.
func blankInits(t testing.TB, dir string) map[string]int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "run-*", "boxes", "*", "born"))
	if err != nil {
		t.Fatal(err)
	}
	inits := map[string]int{}
	for _, link := range found {
		id := filepath.Base(filepath.Dir(link))
		if name, err := os.Readlink(link); err != nil || name != id {
			continue // it was handed over
		}
		if pids := services.Init(t, id); len(pids) == 1 {
			inits[id] = pids[0]
		}
	}
	return inits
}

// TestPoolSurvives: a box of the pool outlives launchers under its ID, as any box does. Those that were not
// handed over yet are removed, and the next launcher builds others.
func TestPoolSurvives(t *testing.T) {
	s, host := poolService(t, 2)
	_, work := hostWorkspace(t)
	b := hitLive(t, s, engine.Spec{Mounts: []engine.Mount{work}, Limits: engine.Limits{Memory: 64 * mib}, Labels: map[string]string{"of": "mine"}})
	wantOutput(t, b, "cat /workspace/file", "content")
	waitUntil(t, "a blank box is there", func() bool { return len(blankInits(t, host.State)) > 0 })
	blank := blankInits(t, host.State)
	if ids, err := s.Boxes(t.Context()); err != nil || !slices.Equal(ids, []string{b.ID()}) {
		t.Errorf("boxes: %q, %v, want %q", ids, err, b.ID())
	}
	killLauncher(t, host.State)
	wantOutput(t, b, "cat /workspace/file", "content")
	if err := s.Health(t.Context()); err != nil {
		t.Error(err)
	}
	for id, pid := range blank {
		if pids := services.Init(t, id); len(pids) > 0 {
			t.Errorf("PID 1 of blank box %s, %d, outlives its launcher", id, pid)
		}
	}
	change(t, b, engine.Change{Limits: &engine.Limits{Memory: 48 * mib}, Detach: []string{work.Target}})
	if o := run(t, b, python(hog, "256")); o.Verdict != engine.OOM || o.Limit != "48 MiB" {
		t.Errorf("at the memory limit: %+v", o.Result)
	}
	boxtest.WantEvent(t, b, engine.EventOOM)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	host.Stop(false)
	host.Start()
	s = connect(t, host.Socket)
	adopted := adoptLive(t, s, b.ID())
	if got := adopted.Spec(); got.Labels["of"] != "mine" || got.Limits.Memory != 48*mib {
		t.Errorf("adopted with %+v", got)
	}
	wantOutput(t, adopted, "hostname", "box\n")
	remove(t, adopted)
	if pids := services.Init(t, b.ID()); len(pids) > 0 {
		t.Errorf("removed, but PID 1 is there: %v", pids)
	}
	remove(t, hitLive(t, s, engine.Spec{}))
}

// TestPoolBroken: if a blank box has ended, the request gets another box, built for it, and nothing is left of
// the broken one.
func TestPoolBroken(t *testing.T) {
	dir := stateDir(t)
	e := startPool(t, dir, 1)
	demand(t, e, engine.Spec{})
	awaitPool(t, e, 1)
	blank := blankInits(t, dir)
	if len(blank) != 1 {
		t.Fatalf("blank boxes: %v", blank)
	}
	for id, pid := range blank {
		process, err := linux.PidfdOpen(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer process.Close()
		if err := linux.PidfdSignal(process, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if ended, err := linux.HasExited(process, patience); !ended || err != nil {
			t.Fatal(ended, err)
		}
		b := create(t, e, engine.Spec{})
		wantOutput(t, b, "echo here", "here\n")
		if s := poolOf(t, e); s.Misses[engine.PoolBroken] != 1 || s.Hits != 0 {
			t.Errorf("%+v", s)
		}
		waitUntil(t, "the broken box is removed", func() bool {
			left, err := filepath.Glob(filepath.Join(dir, "run-*", "boxes", id))
			return len(left) == 0 && err == nil
		})
	}
	// What is wrong with a request is its own fault, and costs it no second box.
	awaitPool(t, e, 1)
	if _, err := e.Create(t.Context(), engine.Spec{Mounts: []engine.Mount{{Source: "/does/not/exist", Target: "/x"}}}); err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("a mount of nothing: %v", err)
	}
	awaitPool(t, e, 1)
	hit(t, e, engine.Spec{})
}

// pythonZygote is a zygote that all commands "python3" use.
func pythonZygote() []engine.Zygote {
	return []engine.Zygote{{Name: "python", Command: []string{"python3"}, Preload: []string{"json"}, Match: true}}
}

// needsWarmPool skips the test on a host whose pool has no memory for warm interpreters: they take some 20 MiB, and the pool
// 1/128 of what is available.
func needsWarmPool(t testing.TB) {
	t.Helper()
	available, err := linux.MemAvailable()
	if err != nil {
		t.Fatal(err)
	}
	if available < 4<<30 {
		t.Skipf("%d MiB of memory are available, and the pool needs 4 GiB to keep an interpreter warm", available>>20)
	}
}

// TestPoolZygote: a box of the pool comes with its zygotes, so that its first command is a warm one: with the limits, the
// mounts and the hostname of this box, a receipt of its own, and nothing of the one before it.
func TestPoolZygote(t *testing.T) {
	needsWarmPool(t)
	e := startPool(t, stateDir(t), 1)
	s := engine.Spec{Zygotes: pythonZygote(), Hostname: "mine", TmpSize: 2 * mib}
	s.Zygotes[0].Preload = []string{"json", "uuid"} // the latter looks at the hostname
	s.Limits.Memory = 96 * mib
	others := s
	others.Hostname = "other"
	demand(t, e, others)
	awaitPool(t, e, 1)
	if o := warm(t, create(t, e, s), boxtest.Python("import platform; print(platform.node())")); o.Stdout != "mine\n" || poolOf(t, e).Hits != 0 {
		t.Errorf("%q, %+v: a box came with an interpreter that knows another hostname", o.Stdout, poolOf(t, e))
	}
	if o := boxtest.Run(t, hit(t, e, others), boxtest.Python("import platform; print(platform.node())")); !o.Warm || o.Stdout != "other\n" {
		t.Errorf("in a box with another hostname: warm %v, %q", o.Warm, o.Stdout)
	}
	e = startPool(t, stateDir(t), 1)
	demand(t, e, s)
	awaitPool(t, e, 1)
	s.Mounts = []engine.Mount{{Source: t.TempDir(), Target: "/workspace"}}
	b := hit(t, e, s)
	o := boxtest.Run(t, b, boxtest.Python("import json, os, platform\nopen('mine', 'w').close()\nprint(json.dumps([os.getcwd(), platform.node(), os.statvfs('/tmp').f_blocks * 4096]))"))
	boxtest.Want(t, o, engine.Exited, 0)
	if !o.Warm || o.Stdout != fmt.Sprintf("[\"/workspace\", \"mine\", %d]\n", 2*mib) {
		t.Errorf("the first command: warm %v, %q", o.Warm, o.Stdout)
	}
	if r := o.Receipt; r.PIDsPeak == nil || *r.PIDsPeak != 1 || r.MemoryPeak == nil || *r.MemoryPeak > 16*mib {
		t.Errorf("its receipt: %+v", r)
	}
	if o := boxtest.Run(t, b, boxtest.Python("x = b'x' * (200 << 20)")); !o.Warm || o.Verdict != engine.OOM || o.Limit != "96 MiB" {
		t.Errorf("at the memory limit: warm %v, %+v", o.Warm, o.Result)
	}
	if o := warm(t, b, boxtest.Python("print(1)")); o.Stdout != "1\n" { // the second and the third one have taken both spares
		t.Errorf("%q", o.Stdout)
	}
	change(t, b, engine.Change{Limits: &engine.Limits{OpenFiles: 64}})
	if o := warm(t, b, boxtest.Python("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))")); o.Stdout != "(64, 64)\n" {
		t.Errorf("after a change of open files: %q", o.Stdout)
	}
	remove(t, b)
}

// TestPoolZygoteKilled: if the zygotes of a blank box have ended, the box is as good as one without, and gets others.
func TestPoolZygoteKilled(t *testing.T) {
	needsWarmPool(t)
	dir := stateDir(t)
	e := startPool(t, dir, 1)
	s := engine.Spec{Zygotes: pythonZygote()}
	demand(t, e, s)
	awaitPool(t, e, 1)
	killed := 0
	for id, init := range blankInits(t, dir) {
		for _, pid := range services.Commands(t, id) {
			if pid == init {
				continue
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			killed++
		}
	}
	if killed != 3 {
		t.Errorf("%d processes of a zygote and its spares are in the blank box", killed)
	}
	b := hit(t, e, s)
	o := boxtest.Run(t, b, boxtest.Python("print(1)"))
	boxtest.Want(t, o, engine.Exited, 0)
	if o.Warm || o.Stdout != "1\n" {
		t.Errorf("without spares: warm %v, %q", o.Warm, o.Stdout)
	}
	warm(t, b, boxtest.Python("pass"))
}

// TestPoolZygoteSlow: while an interpreter takes long to start ahead of time, the launcher is well, builds boxes, and ends
// at once.
func TestPoolZygoteSlow(t *testing.T) {
	if !testutil.Full() {
		t.Skip("takes 7 s: only in make full")
	}
	needsWarmPool(t)
	host := services.Start(t, native.LauncherOptions{Pool: 2})
	client := connect(t, host.Socket)
	s := engine.Spec{Zygotes: pythonZygote()}
	s.Zygotes[0].Preload = []string{"asyncio", "decimal", "email.mime.text", "http.server", "logging.handlers", "multiprocessing", "ssl", "unittest", "urllib.request", "xmlrpc.client"}
	s.Limits.CPUs = 0.01
	for range 2 {
		remove(t, createLive(t, client, s))
	}
	boxtest.WaitUntil(t, "a blank box has an interpreter", func() bool {
		for id := range blankInits(t, host.State) {
			return len(services.Commands(t, id)) > 0
		}
		return false
	})
	for end := time.Now().Add(7 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := client.Health(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if state := poolOf(t, client); state.Ready != 0 {
		t.Errorf("the interpreter was not slow: %+v", state)
	}
	b := createLive(t, client, engine.Spec{})
	wantOutput(t, b, "echo here", "here\n")
	remove(t, b)
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	began := time.Now()
	host.Stop(false)
	if took := time.Since(began); took > 5*time.Second { // of 20 that the interpreter may take, and 10 that the pool may
		t.Errorf("the launcher took %v to end", took)
	}
	host.Start()
}

// TestPoolZygoteBroken: boxes whose zygotes cannot be started come from the pool without them.
func TestPoolZygoteBroken(t *testing.T) {
	e := startPool(t, stateDir(t), 1)
	s := engine.Spec{Zygotes: pythonZygote()}
	s.Zygotes[0].Preload = []string{"no_such_module"}
	demand(t, e, s)
	awaitPool(t, e, 1)
	o := boxtest.Run(t, hit(t, e, s), boxtest.Python("print(1)"))
	boxtest.Want(t, o, engine.Exited, 0)
	if o.Warm || o.Stdout != "1\n" {
		t.Errorf("warm %v, %q", o.Warm, o.Stdout)
	}
}

// TestPoolOnce: however many clients ask at once, nobody gets a box that another one has or had.
func TestPoolOnce(t *testing.T) {
	if !testutil.Full() {
		t.Skip("takes long: only in make full")
	}
	e := startPool(t, stateDir(t), 4)
	for range 4 {
		create(t, e, engine.Spec{})
	}
	awaitPool(t, e, 4)
	var mu sync.Mutex
	inits := map[int]string{}
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for range 5 {
				b, err := e.Create(t.Context(), engine.Spec{})
				if err != nil {
					t.Error(err)
					return
				}
				var out strings.Builder
				script := "ls -A /tmp /home/box /dev/shm; touch /tmp/used /home/box/used /dev/shm/used; ls /proc | grep -c '^[0-9]'"
				r, err := engine.Run(t.Context(), b, engine.Command{Args: []string{"sh", "-c", script}, Stdout: &out})
				if err != nil || r.ExitCode != 0 || strings.Contains(out.String(), "used") {
					t.Errorf("%+v, %q, %v", r, out.String(), err)
				}
				pids := services.Init(t, b.ID())
				mu.Lock()
				for _, pid := range pids {
					start, err := linux.StartTime(pid)
					key := pid + int(start)<<24
					if other := inits[key]; other != "" || err != nil {
						t.Errorf("box %s has PID 1 of %s, %v", b.ID(), other, err)
					}
					inits[key] = b.ID()
				}
				mu.Unlock()
				time.Sleep(25 * time.Millisecond)
				if err := b.Remove(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	if s := poolOf(t, e); s.Hits < 4 || s.Hits+s.Misses[engine.PoolEmpty] != 24 || len(s.Misses) > 1 || s.Ready > s.Limit {
		t.Errorf("%+v", s)
	}
	t.Logf("%+v", poolOf(t, e))
}

// TestPoolChaos kills the launcher at random moments while boxes of the pool are built, taken, used and removed.
// Nobody notices but by a delay, and nothing is left.
func TestPoolChaos(t *testing.T) {
	testutil.Long(t)
	s, host := poolService(t, 3)
	kills := 3
	if testutil.Full() {
		kills = 60
	}
	_, work := hostWorkspace(t)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	hits := int64(0)
	var users sync.WaitGroup
	for range 2 {
		users.Go(func() {
			for ctx.Err() == nil {
				if err := useBox(t.Context(), s, "", work); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(100 * time.Millisecond) // in which the pool is filled
			}
		})
	}
	rng := rand.New(rand.NewPCG(seedOf(t), 0))
	for range kills {
		waitUntil(t, "a box is taken from the pool", func() bool { return poolOf(t, s).Hits > 0 })
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		hits += poolOf(t, s).Hits
		killLauncher(t, host.State)
	}
	end()
	users.Wait()
	remove(t, hitLive(t, s, engine.Spec{}))
	if ids, err := s.Boxes(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("boxes in the end: %q, %v", ids, err)
	}
	// Only the last launcher's blank boxes have IDs.
	leases, err := os.ReadDir(filepath.Join(host.State, "ids"))
	if err != nil || len(leases) > poolOf(t, s).Limit+1 {
		t.Errorf("%d ranges of IDs are leased, %v", len(leases), err)
	}
	t.Logf("%d boxes were taken from the pool", hits)
}

// TestPoolIdle: a launcher with a pool builds no box before two of a kind have been asked for.
func TestPoolIdle(t *testing.T) {
	e := startPool(t, stateDir(t), 8)
	if s := poolOf(t, e); s.Ready != 0 || s.Wanted != 0 || s.Limit != 8 {
		t.Errorf("%+v", s)
	}
	create(t, e, engine.Spec{ID: "chosen"})
	create(t, e, engine.Spec{})
	if s := poolOf(t, e); s.Wanted != 0 || s.Misses[engine.PoolSpec] != 1 || s.Misses[engine.PoolEmpty] != 1 {
		t.Errorf("after a box with an ID of ours and a single other one: %+v", s)
	}
}
