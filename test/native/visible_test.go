package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// visible are limits as a box sees them.
type visible struct{ mib, processors int }

func (v visible) limits() engine.Limits {
	return engine.Limits{Memory: int64(v.mib) * mib, CPUs: float64(v.processors), PIDs: 512}
}

// files is the output of filesScript.
func (v visible) files() string {
	online := "0"
	if v.processors > 1 {
		online = fmt.Sprintf("0-%d", v.processors-1)
	}
	return fmt.Sprintf("%d %d %d %d %s %s %s %d\n", v.mib<<10, v.processors, v.processors, 0, online, online, online, v.processors)
}

const filesScript = `echo $(sed -n 's/^MemTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo) $(grep -c ^processor /proc/cpuinfo) $(grep -c '^cpu[0-9]' /proc/stat) $(sed -n 's/^SwapTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo) \
$(cd /sys/devices/system/cpu; cat online possible present; ls -d cpu[0-9]* | wc -l)`

// few and all processors of this host; on one with a single processor they are the same.
var few, all = visible{512, 1}, visible{768, runtime.NumCPU()}

// TestVisibleLimits asks the files and programs that read them, before and after live changes.
func TestVisibleLimits(t *testing.T) {
	e := start(t)
	b := create(t, e, engine.Spec{Limits: few.limits()})
	for _, c := range []struct {
		needs, script string
		want          func(visible) string
	}{
		{"sh", filesScript, visible.files},
		{"free", "LC_ALL=C free -m | awk '/:/ {print $2}'", func(v visible) string { return fmt.Sprintf("%d\n0\n", v.mib) }},
		{"python3", "python3 -c 'import os; print(os.cpu_count())'", func(v visible) string { return fmt.Sprintln(v.processors) }},
		{"nproc", "nproc; echo $GOMAXPROCS $OMP_NUM_THREADS", func(v visible) string {
			if v.processors == runtime.NumCPU() {
				return fmt.Sprintf("%d\n\n", v.processors)
			}
			return fmt.Sprintf("%d\n%d %d\n", v.processors, v.processors, v.processors)
		}},
		{"getconf", "getconf _NPROCESSORS_ONLN; getconf _NPROCESSORS_CONF", func(v visible) string { return fmt.Sprintf("%[1]d\n%[1]d\n", v.processors) }},
		{"lscpu", `LC_ALL=C lscpu | awk -F: '/^(CPU.s.|Thread.s. per core|Core.s. per socket|Socket.s.):/ {print $2 + 0}'`,
			func(v visible) string { return fmt.Sprintf("%[1]d\n1\n%[1]d\n1\n", v.processors) }},
		{"node", `node -e 'const os = require("os"); console.log(os.cpus().length, os.totalmem() / 2 ** 20, process.availableMemory() <= os.totalmem())'`,
			func(v visible) string { return fmt.Sprintf("%d %d true\n", v.processors, v.mib) }},
	} {
		t.Run(c.needs, func(t *testing.T) {
			testutil.RequireProgram(t, c.needs)
			for _, v := range []visible{few, all, few} {
				update(t, b, v.limits())
				wantOutput(t, b, c.script, c.want(v))
			}
		})
	}
	t.Run("part of a processor", func(t *testing.T) {
		update(t, b, engine.Limits{CPUs: 0.3})
		wantOutput(t, b, "grep -c ^processor /proc/cpuinfo", "1\n")
	})
	t.Run("unlimited", func(t *testing.T) {
		update(t, b, engine.Limits{Memory: engine.Unlimited, CPUs: engine.Unlimited})
		host, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			t.Fatal(err)
		}
		total, _, _ := strings.Cut(string(host), "\n")
		wantOutput(t, b, "head -n 1 /proc/meminfo; grep -c ^processor /proc/cpuinfo", fmt.Sprintf("%s\n%d\n", total, runtime.NumCPU()))
	})
	t.Run("the user's variables", func(t *testing.T) {
		update(t, b, few.limits())
		c := shell("echo $GOMAXPROCS $OMP_NUM_THREADS")
		c.Env = []string{"GOMAXPROCS=7", "OMP_NUM_THREADS="}
		if o := run(t, b, c); o.Stdout != "7\n" {
			t.Errorf("printed %q", o.Stdout)
		}
	})
	t.Run("writable root", func(t *testing.T) {
		w, err := e.Create(t.Context(), engine.Spec{Limits: few.limits(), WritableRoot: true})
		if err != nil {
			t.Skip(err) // the host's file system cannot be id-mapped
		}
		t.Cleanup(func() { remove(t, w) })
		wantOutput(t, w, filesScript, few.files())
		update(t, w, all.limits())
		wantOutput(t, w, filesScript, all.files())
	})
}

// available reads what a box sees of its free memory, in KiB.
func available(t *testing.T, b engine.Box) (kib int) {
	t.Helper()
	o := run(t, b, shell("sed -n 's/^MemAvailable: *\\([0-9]*\\) kB$/\\1/p' /proc/meminfo"))
	kib, err := strconv.Atoi(strings.TrimSpace(o.Stdout))
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

// TestVisibleUse: what commands use is seen while they run and gone when they have ended, and their
// time passes.
func TestVisibleUse(t *testing.T) {
	t.Parallel()
	b := newBox(t, engine.Spec{Limits: few.limits()})
	if kib := available(t, b); kib < 400<<10 || kib > 512<<10 {
		t.Errorf("%d KiB available in a new box", kib)
	}
	release, stdin := newGate()
	out := newScreen()
	c := python(hog, "256")
	c.Stdin, c.Stdout = stdin, out
	p := begin(t, b, c)
	out.Await(t, "taken")
	waitUntil(t, "the box sees less memory", func() bool { return available(t, b) < 256<<10 })
	wantOutput(t, b, "awk '/^cpu / {print ($2 + $4 > 0), ($5 > 0)}' /proc/stat", "1 1\n")
	release()
	wait(t, p)
	waitUntil(t, "the box sees its memory again", func() bool { return available(t, b) > 400<<10 })
}

// TestVisibleFilesAreFixed: a box cannot take the files away, change them, or reach what they
// cover.
func TestVisibleFilesAreFixed(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: few.limits()})
	o := run(t, b, python(`
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
files = [b"/proc/meminfo", b"/proc/cpuinfo", b"/proc/stat"]
def refused(what, call, *args):
    try:
        if call(*args) == -1: raise OSError(ctypes.get_errno(), "")
    except OSError: return
    print(what, args)
def leads(path):
    with open(path, "rb") as f: return f.read()
os.makedirs(b"/tmp/proc/a", exist_ok=True)
open("/tmp/file", "w").close()
for f in files:
    text = leads(f)
    for flags in (0, 1, 2, 4, 8): refused("umount", libc.umount2, f, flags)
    for flags in (32, 4096, 4096|16384, 32|1, 32|4096): refused("mount", libc.mount, b"/tmp/file", f, None, flags, None)
    refused("open_tree", libc.syscall, 428, -100, f, 1)
    refused("move_mount", libc.syscall, 429, -100, f, -100, b"/tmp/file", 0)
    refused("mount_setattr", libc.syscall, 442, -100, f, 0, b"\0" * 32, 32)
    for mode in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC): refused("open", os.open, f, mode)
    fd = os.open(f, os.O_RDONLY)
    refused("reopen", os.open, b"/proc/self/fd/%d" % fd, os.O_WRONLY)
    refused("write", os.pwrite, fd, b"x", 0)
    refused("ftruncate", os.ftruncate, fd, 0)
    refused("fchmod", os.fchmod, fd, 0o666)
    refused("fchown", os.fchown, fd, 0, 0)
    refused("utime", os.utime, f)
    refused("unlink", os.unlink, f)
    refused("rename", os.rename, f, b"/tmp/x")
    refused("rename over", os.rename, b"/tmp/file", f)
    refused("link", os.link, f, b"/tmp/x")
    refused("setxattr", os.setxattr, f, b"user.x", b"x")
    for other in (b"/proc/self/root" + f, b"/proc/thread-self/root" + f, b"/proc/./../proc/../" + f, b"/proc/self/task/%d/root" % os.getpid() + f, b"/proc/self/fd/%d" % fd, b"/proc/self/fd/../root" + f):
        # Numbers of use may be new.
        if leads(other).split(b"\n")[0] != text.split(b"\n")[0] and b"stat" not in f: print("another text", other)
    os.chdir(b"/proc/self")
    if len(leads(b".." + f[5:])) != len(leads(f)): print("another text by ..")
    os.close(fd)
cpu = b"/sys/devices/system/cpu"
for f in (cpu, cpu + b"/online"):
    for flags in (0, 2, 8): refused("umount", libc.umount2, f, flags)
    refused("unlink", os.unlink, f)
    refused("rename", os.rename, f, f + b"x")
    refused("chmod", os.chmod, f, 0o777)
    refused("open", os.open, f, os.O_WRONLY)
refused("bind over", libc.mount, b"/tmp/proc", cpu, None, 4096, None)
refused("create", os.open, cpu + b"/x", os.O_CREAT | os.O_WRONLY)
refused("mkdir", os.mkdir, cpu + b"/cpu7")
refused("rename", os.rename, b"/sys/devices", b"/sys/x")
refused("a sysfs", libc.mount, b"sysfs", b"/tmp/proc/a", b"sysfs", 0, None)
refused("a second procfs", libc.mount, b"proc", b"/tmp/proc/a", b"proc", 0, None)
refused("fsopen", libc.syscall, 430, b"proc", 0)
refused("unshare", libc.unshare, 0x10000000 | 0x20000)
for path in ("/proc/1/root/proc/meminfo", "/dev/.host/top", "/dev/.host/top/visible/meminfo", "/visible", "/../visible/meminfo"):
    refused("open", os.open, path, os.O_RDONLY)
`))
	want(t, o, engine.Exited, 0)
	if o.Stdout != "" {
		t.Errorf("a box can:\n%s", tail(o.Stdout))
	}
	wantOutput(t, b, filesScript, few.files())
}

// TestVisibleWhileRead changes limits under many readers: each text is one of the two, with the figures
// in their places.
func TestVisibleWhileRead(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: few.limits()})
	out := newScreen()
	release, stdin := newGate()
	c := python(`
import os, re, sys
sizes, processors = [int(a) for a in sys.argv[1:3]], [int(a) for a in sys.argv[3:]]
readers, seen = [], set()
for i in range(16):
    if os.fork() == 0:
        while True:
            text = open("/proc/meminfo", "rb").read()
            total, available = (int(re.search(name + rb": +(\d+) kB\n", text)[1]) for name in (b"MemTotal", b"MemAvailable"))
            cpus = open("/proc/cpuinfo", "rb").read().count(b"processor\t"), len(re.findall(rb"(?m)^cpu\d", open("/proc/stat", "rb").read()))
            cpus += len(os.listdir("/sys/devices/system/cpu/")) - 5,
            online = open("/sys/devices/system/cpu/online", "rb").read()
            if online not in (b"0\n", b"0-%d\n" % (max(processors) - 1)): print("online", online, flush=True)
            if total not in sizes or available > max(sizes) or set(cpus) - set(processors):
                print("seen", total, available, cpus, flush=True)
print("reading", flush=True)
sys.stdin.read()
os.killpg(0, 9)
`, fmt.Sprint(few.mib<<10), fmt.Sprint(all.mib<<10), fmt.Sprint(few.processors), fmt.Sprint(all.processors))
	c.Stdin, c.Stdout = stdin, out
	p := begin(t, b, c)
	out.Await(t, "reading")
	for range 100 {
		update(t, b, all.limits())
		update(t, b, few.limits())
	}
	release()
	wait(t, p)
	if text := out.String(); text != "" && text != "\n" {
		t.Errorf("readers have %s", tail(text))
	}
	wantOutput(t, b, filesScript, few.files())
}

// TestVisibleInDistress: the files can be read by a command at its limits, and from outside while the
// box is frozen.
func TestVisibleInDistress(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{Memory: 64 * mib, PIDs: 5, CPUs: 1}})
	o := run(t, b, python(`
import os
try:
    while os.fork(): pass
    __import__("time").sleep(3600)
except BlockingIOError: pass
print(open("/proc/meminfo").readline().split()[1])
`))
	if want := "65536\n"; o.Stdout != want {
		t.Errorf("at the pids limit: %q, %q", o.Stdout, tail(o.Stderr))
	}
	// What fills the memory is page cache of a file on tmpfs, which cannot be reclaimed.
	o = run(t, b, python(`
f, n = open("/dev/shm/x", "wb", buffering=0), 0
f.truncate(1 << 30)
while n < 52 << 20: n += f.write(b"x" * 4096)
print(open("/proc/meminfo").readline().split()[1])
`))
	if want := "65536\n"; o.Stdout != want {
		t.Errorf("at the memory limit: %q, %q", o.Stdout, tail(o.Stderr))
	}
	p := begin(t, b, shell("while :; do read x </proc/meminfo; done"))
	host, err := cgroups.Detect()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	group, err := host.OpenGroup(filepath.Base(filepath.Dir(filepath.Dir(workDirs(t, b)[0]))))
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ferr := group.Freeze(ctx)
	text, err := os.ReadFile("/proc/" + initPIDs(t, b)[0] + "/root/proc/meminfo")
	if err := errors.Join(ferr, err, group.Thaw()); err != nil || !strings.Contains(string(text), " 65536 kB\n") {
		t.Errorf("from outside of a frozen box: %v, %q", err, tail(string(text)))
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	wait(t, p)
}

// TestVisibleAfterLauncher: readers do not notice that the launcher is killed, and the next one shows
// changes in boxes that it did not make.
func TestVisibleAfterLauncher(t *testing.T) {
	s, dir := newService(t)
	b := createLive(t, s, engine.Spec{ID: "visible", Limits: few.limits()})
	t.Cleanup(func() { remove(t, b) })
	release, stdin := newGate()
	out := newScreen()
	c := python(`
import select, sys
print("reading", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for name in "meminfo", "cpuinfo", "stat":
        assert open("/proc/" + name).read(), name
`)
	c.Stdin, c.Stdout = stdin, out
	p := begin(t, b, c)
	out.Await(t, "reading")
	killLauncher(t, dir)
	wantOutput(t, b, filesScript, few.files())
	update(t, b, all.limits())
	wantOutput(t, b, filesScript, all.files())
	if kib := available(t, b); kib > 768<<10 {
		t.Errorf("%d KiB available", kib)
	}
	release()
	if r := wait(t, p); r.ExitCode != 0 {
		t.Errorf("the reader ended with %+v", r)
	}
}
