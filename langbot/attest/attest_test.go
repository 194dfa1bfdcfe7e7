package attest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

var bg = context.Background()

// ask measures with a fake and checks that nothing is left behind.
func ask(t *testing.T, f *fake, o Options) Report {
	t.Helper()
	return askOf(t, f, o, Places{})
}

// askOf is ask for workspaces and skills in directories of the host.
func askOf(t *testing.T, f *fake, o Options, where Places) Report {
	t.Helper()
	if o.Scratch == "" {
		o.Scratch = t.TempDir()
	}
	o.Engine = f
	p := New(o)
	defer p.Close()
	r := p.Report(t.Context(), 0, where)
	if f.live != 0 && f.errs["remove"] == nil || len(f.volumes) != 0 && f.errs["remove"] == nil {
		t.Errorf("left: %d boxes, volumes %v", f.live, f.volumes)
	}
	if len(r.Checks) != len(Names) {
		t.Errorf("%d checks", len(r.Checks))
	}
	for name, c := range r.Checks {
		if c.OK != (c.Reason == "") || strings.ContainsAny(c.Reason, "\n\r\t") || len(c.Reason) > 1000 {
			t.Errorf("%s: %+v", name, c)
		}
	}
	return r
}

func TestSound(t *testing.T) {
	f := newFake()
	r := ask(t, f, Options{Storage: f})
	if failed := r.Failed(); len(failed) != 0 {
		t.Errorf("a sound host: %v", r.Checks)
	}
	if err := f.specs[0].Validate(); err != nil {
		t.Errorf("the probe box: %v", err)
	}
}

// Each check fails as soon as its subject is wrong, and no other check fails with it.
func TestUnsound(t *testing.T) {
	own := func(ns string) string {
		link, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		return ns + "=" + link
	}
	scratch := t.TempDir()
	over := func(name string) []engine.VolumeState {
		return []engine.VolumeState{{Volume: engine.Volume{Name: name}, UsedBytes: volumeSize + 1}}
	}
	type answers = func([]string) (engine.Result, string)
	type unsound struct {
		check, script string
		answer        answers
		want          string
	}
	cases := []unsound{
		{NamespaceIsolation, "namespaces", without(soundNamespaces, "uid", "uid=0 0"), "user \"0 0\""},
		{NamespaceIsolation, "namespaces", without(soundNamespaces, "uid"), "user"},
		{NamespaceIsolation, "namespaces", ends(engine.BoxLost), "box-lost"},

		{MountIsolation, "mounts", without(soundMounts, "end", "seen=x", "end=ok"), "sees " + scratch},
		{MountIsolation, "mounts", without(soundMounts, "end", "shared=12 shared:1", "end=ok"), "shares mounts"},
		{MountIsolation, "mounts", without(soundMounts, "made"), "could not write anywhere"},
		{MountIsolation, "mounts", without(soundMounts, "end"), "broke off"},
		{MountIsolation, "mounts", without(soundMounts, "dir"), "broke off"},
		{MountIsolation, "mounts", without(soundMounts, "dir", "dir=/ "+dirOf(t, "/")), "has / of this host"},
		{MountIsolation, "mounts", without(soundMounts, "x", "dir=/etc "+dirOf(t, "/etc")), "has /etc of this host"},
		{MountIsolation, "mounts", writeOn(scratch), "of this host"},

		{NetworkIsolation, "network", dial, "reached a server"},
		{NetworkIsolation, "network", without(soundNetwork, "end", "connected=yes", "end=ok"), "reached a server"},
		{NetworkIsolation, "network", seesPort, "sees listeners"},
		{NetworkIsolation, "network", seesAbstract, "sees abstract sockets"},
		{NetworkIsolation, "network", without(soundNetwork, "end"), "broke off"},
		{NetworkIsolation, "network", without(soundNetwork, "dev"), "broke off"},
		{NetworkIsolation, "network", without(soundNetwork, "tcp"), "broke off"},
		{NetworkIsolation, "network", without(soundNetwork, "unix"), "broke off"},
		{NetworkIsolation, "network", without(soundNetwork, "x", "route=eth0\t00000000"), "route through eth0"},
		{NetworkIsolation, "network", without(soundNetwork, "x", "ipv6_route=0 0 0 eth1"), "route through eth1"},

		{BoundedEphemeralStorage, "fill", instead("fill", fmt.Sprintf("/dev/shm 1 %d", tmpSize-4096), fmt.Sprint("/dev/shm 0 ", 2*tmpSize)), "/dev/shm of a box took 2 MiB"},
		{BoundedEphemeralStorage, "fill", instead("fill", fmt.Sprintf("/tmp 1 %d", tmpSize-4096), "/tmp 1 0"), "no room at all"},
		{BoundedEphemeralStorage, "fill", instead("fill", "fill=/ ", "fill=/no "), "/ of a box could not be written"},
		{BoundedEphemeralStorage, "fill", instead("fill", "full=/home/box\n", ""), "another reason"},
		{BoundedEphemeralStorage, "fill", says(), "could not be written"},

		{InodeQuota, "inodes", instead("inodes", fmt.Sprint("/skills ", volumeInodes-2), fmt.Sprint("/skills ", 2*volumeInodes)), "128 files could be made in /skills"},
		{InodeQuota, "inodes", instead("inodes", "full=/workspace\n", ""), "in /workspace"},
		{InodeQuota, "inodes", instead("inodes", fmt.Sprint("/workspace ", volumeInodes-2), "/workspace 0"), "no file could be made"},
		{InodeQuota, "inodes", says(), "no file could be made"},

		{CgroupV2, "cgroup", says("cgroup=12:cpu,cpuacct:/boxd", "cgroup=5:memory:/boxd", "cgroup=4:pids:/boxd", "cgroup=1:name=systemd:/", "cgroup=0::/boxd"), "memory, pids and cpu are limited by cgroup v1 here"},
		{CgroupV2, "cgroup", says("cgroup=5:memory:/boxd", "cgroup=0::/boxd"), "memory is limited by cgroup v1 here"},
		{CgroupV2, "cgroup", says("cgroup=0::/"), "no cgroup of its own"},
		{CgroupV2, "cgroup", says(), "no cgroup of its own"},
		{CgroupV2, "dd", ends(engine.Exited), "not oom"},
		{CgroupV2, "forks", ends(engine.Exited), "not pids-limit"},
		{CgroupV2, "spin", spun(0), "did not have to wait"},
		{CgroupV2, "spin", ends(engine.TimedOut), "did not have to wait"},
	}
	for _, ns := range namespaces {
		cases = append(cases,
			unsound{NamespaceIsolation, "namespaces", without(soundNamespaces, ns, own(ns)), "shares namespaces with this host: " + ns},
			unsound{NamespaceIsolation, "namespaces", without(soundNamespaces, ns), "does not say what its namespaces are: " + ns})
	}
	for i, c := range cases {
		t.Run(fmt.Sprint(i, " ", c.check), func(t *testing.T) {
			f := newFake()
			f.answers[c.script] = c.answer
			wantOnly(t, ask(t, f, Options{Storage: f, Scratch: scratch}), c.want, c.check)
			left, _ := filepath.Glob(scratch + "/*")
			for _, name := range left { // of the fake's box
				if !strings.HasSuffix(name, ".box") {
					t.Errorf("%s was left", name)
				}
				os.Remove(name)
			}
		})
	}
	t.Run("accounts", func(t *testing.T) {
		f := newFake()
		f.states = over(workspaceVolume)
		wantOnly(t, ask(t, f, Options{Storage: f}), "it uses 4 MiB of 4 MiB", HardWorkspaceQuota)
		f.states = over(skillsVolume)
		wantOnly(t, ask(t, f, Options{Storage: f}), "it uses", HardSkillStorageQuota)
	})
}

// dirOf returns the line of a box that has a directory of this host.
func dirOf(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("stat", "-c", "%d:%i", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// wantOnly fails the test unless exactly the given checks fail, with a reason that contains want.
func wantOnly(t *testing.T, r Report, want string, checks ...string) {
	t.Helper()
	if got := strings.Join(r.Failed(), " "); got != strings.Join(checks, " ") {
		t.Errorf("false are %q, want %q: %v", got, checks, r.Checks)
		return
	}
	for _, name := range checks {
		if !strings.Contains(r.Checks[name].Reason, want) {
			t.Errorf("%s: %q, want %q", name, r.Checks[name].Reason, want)
		}
	}
}

// The two quotas are one experiment with two subjects.
func TestUnsoundQuota(t *testing.T) {
	for dir, check := range map[string]string{engine.WorkspaceTarget: HardWorkspaceQuota, skillsTarget: HardSkillStorageQuota} {
		only := func(old, with string) func([]string) (engine.Result, string) {
			return func(args []string) (engine.Result, string) {
				if args[1] != dir {
					return sound["quota"](args)
				}
				return instead("quota", old, with)(args)
			}
		}
		for _, c := range []struct{ old, with, want string }{
			{fmt.Sprintf("%s 1 %d", dir, volumeSize-4096), fmt.Sprintf("%s 0 %d", dir, 2*volumeSize), "took 8 MiB, its size is 4 MiB"},
			{fmt.Sprintf("%s 1 ", dir), fmt.Sprintf("%s 0 ", dir), "took"},
			{fmt.Sprintf("full=%s\n", dir), "", "another reason"},
			{"fill=", "x=", "could not be written"},
			{"other=/tmp\n", "", "/tmp could not be written either"},
		} {
			f := newFake()
			f.answers["quota"] = only(c.old, c.with)
			wantOnly(t, ask(t, f, Options{Storage: f}), c.want, check)
		}
	}
}

// A check whose experiment fails is false with the reason of the failure; the rest is measured.
func TestTrouble(t *testing.T) {
	trouble := errors.New("no\nloop devices")
	quota := []string{HardWorkspaceQuota, HardSkillStorageQuota, InodeQuota}
	for call, checks := range map[string][]string{
		"make " + workspaceVolume: {HardWorkspaceQuota, InodeQuota},
		"make " + skillsVolume:    {HardSkillStorageQuota, InodeQuota},
		"mount":                   quota,
		"create":                  Names,
		"volumes":                 {HardWorkspaceQuota, HardSkillStorageQuota},
		"namespaces":              {NamespaceIsolation},
		"mounts":                  {MountIsolation},
		"network":                 {NetworkIsolation},
		"fill":                    {BoundedEphemeralStorage},
		"quota":                   {HardWorkspaceQuota, HardSkillStorageQuota},
		"inodes":                  {InodeQuota},
		"cgroup":                  {CgroupV2},
		"dd":                      {CgroupV2},
		"forks":                   {CgroupV2},
		"update":                  {CgroupV2},
		"spin":                    {CgroupV2},
	} {
		t.Run(call, func(t *testing.T) {
			f := newFake()
			f.errs[call] = trouble
			r := ask(t, f, Options{Storage: f})
			wantOnly(t, r, "no loop devices", checks...)
			if r.Late != "" { // it failed, and did not hang
				t.Errorf("late: %q", r.Late)
			}
		})
	}
	t.Run("no launcher", func(t *testing.T) {
		f := newFake()
		f.errs["create"] = fmt.Errorf("%w: the making of a box hangs", engine.ErrNoLauncher)
		if r := ask(t, f, Options{Storage: f}); !strings.Contains(r.Late, "the making of a box hangs") {
			t.Errorf("late: %q", r.Late)
		}
	})
	t.Run("no storage", func(t *testing.T) {
		wantOnly(t, ask(t, newFake(), Options{}), "no storage of limited size", quota...)
	})
	t.Run("no scratch", func(t *testing.T) {
		f := newFake()
		r := ask(t, f, Options{Storage: f, Scratch: "/nonexistent"})
		wantOnly(t, r, "no control", Names...)
		if len(f.calls) != 0 {
			t.Errorf("calls %v", f.calls)
		}
	})
	t.Run("remove", func(t *testing.T) { // is told to the log
		f := newFake()
		f.errs["remove"] = trouble
		wantOnly(t, ask(t, f, Options{Storage: f}), "")
	})
}

// A host that cannot provide a writable root can give all other guarantees; a read-only root that
// takes data still fails the check.
func TestReadOnlyRoot(t *testing.T) {
	f := newFake()
	f.errs["writable root"] = errors.New("cannot be id-mapped")
	f.answers["fill"] = func(args []string) (engine.Result, string) {
		return engine.Result{Verdict: engine.Exited}, fmt.Sprintf("fill=/tmp 1 %[1]d\nfull=/tmp\nfill=%[2]s 1 %[1]d\nfull=%[2]s\nfill=/dev/shm 1 %[1]d\nfull=/dev/shm\n", tmpSize-4096, engine.HomeTarget)
	}
	wantOnly(t, ask(t, f, Options{Storage: f}), "")
	if len(f.specs) != 1 || f.specs[0].WritableRoot || f.specs[0].UpperSize != 0 || len(f.specs[0].Mounts) != 2 {
		t.Errorf("boxes of %+v", f.specs)
	}
	whole := f.answers["fill"]
	f.answers["fill"] = func(args []string) (engine.Result, string) {
		r, out := whole(args)
		return r, out + "fill=/ 1 4096\n"
	}
	wantOnly(t, ask(t, f, Options{Storage: f}), "read-only root", BoundedEphemeralStorage)
}

// Skills in a directory of the host are measured there.
func TestHostSkills(t *testing.T) {
	dir := t.TempDir()
	f := newFake()
	o := Options{Storage: f}
	where := Places{Skills: engine.Directory{Path: dir, Within: filepath.Dir(dir)}}
	wantOnly(t, askOf(t, f, o, where), "")
	m := f.specs[0].Mounts[1]
	if m.Source != dir+"/.boxd-attest" || m.Within != where.Skills.Within || m.Volume != "" || f.limits[m.Source] != 0 {
		t.Errorf("mounted %+v, limits then %v", m, f.limits)
	}
	if names, _ := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
	unlimited := o
	unlimited.SkillsUnlimited = true
	wantOnly(t, askOf(t, f, unlimited, where), "no limit of skills is configured", HardSkillStorageQuota, InodeQuota)
	f.errs["limit"] = fmt.Errorf("%w: tmpfs has no project quota", engine.ErrUnenforceable)
	wantOnly(t, askOf(t, f, o, where), "tmpfs has no project quota", HardSkillStorageQuota, InodeQuota)
	if names, _ := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
	f.errs["open"] = errors.New("not in a root")
	wantOnly(t, askOf(t, f, o, where), "not in a root", HardSkillStorageQuota, InodeQuota)
}

// Workspaces in a directory of the host are measured there.
func TestHostWorkspaces(t *testing.T) {
	dir := t.TempDir()
	f := newFake()
	p := New(Options{Engine: f, Storage: f, Scratch: t.TempDir()})
	defer p.Close()
	of := engine.Directory{Path: dir, Within: filepath.Dir(dir)}
	wantOnly(t, p.Report(bg, time.Minute, Places{Workspaces: of}), "")
	m := f.specs[0].Mounts[0]
	if m.Source != dir+"/.boxd-attest-workspace" || m.Target != engine.WorkspaceTarget || m.Within != of.Within || m.Volume != "" || f.limits[m.Source] != 0 {
		t.Errorf("mounted %+v, limits then %v", m, f.limits)
	}
	f.errs["limit"] = fmt.Errorf("%w: tmpfs has no project quota", engine.ErrUnenforceable)
	wantOnly(t, p.Report(bg, 0, Places{Workspaces: of}), "tmpfs has no project quota", HardWorkspaceQuota, InodeQuota)
	wantOnly(t, p.Report(bg, time.Minute, Places{}), "") // volumes can do it
	wantOnly(t, p.Report(bg, time.Minute, Places{Workspaces: of}), "tmpfs has no project quota", HardWorkspaceQuota, InodeQuota)
	if names, _ := os.ReadDir(dir); len(names) != 0 || len(f.volumes) != 0 || len(f.specs) != 3 {
		t.Errorf("left: %v, %v after %d boxes", names, f.volumes, len(f.specs))
	}
}

// Nothing is measured until somebody asks, and then once for all callers.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.hang = make(chan struct{})
		f.errs["create"] = errors.New("enough was seen")
		p := New(Options{Engine: f, Scratch: t.TempDir()})
		defer p.Close()
		synctest.Wait()
		if len(f.calls) != 0 {
			t.Fatalf("calls %v before anybody asked", f.calls)
		}
		reports := make(chan Report)
		for range 10 {
			go func() { reports <- p.Report(bg, time.Minute, Places{}) }()
		}
		synctest.Wait()
		gone, cancel := context.WithCancel(bg)
		go func() { reports <- p.Report(gone, time.Minute, Places{}) }()
		cancel()
		if r := <-reports; len(r.Failed()) != len(Names) || !strings.Contains(r.Checks[CgroupV2].Reason, "nobody waited") {
			t.Errorf("one who left: %v", r.Checks)
		} else if r.Late == "" {
			t.Error("one who left was not told that it is late")
		}
		close(f.hang)
		first := <-reports
		for range 9 {
			if r := <-reports; r.At != first.At {
				t.Error("there were two measurements")
			}
		}
		if len(f.calls) != 2 { // with a writable root and without one
			t.Errorf("calls %v", f.calls)
		}
		time.Sleep(unmeasuredAge)
		if r := p.Report(bg, time.Minute, Places{}); r.At != first.At {
			t.Error("what failed a moment ago was tried again")
		}
		time.Sleep(time.Second)
		if r := p.Report(bg, time.Minute, Places{}); r.At == first.At || len(f.calls) != 4 {
			t.Error("what could not be measured was not tried again")
		}
		delete(f.errs, "create")
		time.Sleep(unmeasuredAge + time.Second)
		first = p.Report(bg, time.Minute, Places{})
		time.Sleep(time.Minute)
		if r := p.Report(bg, time.Minute, Places{}); r.At != first.At || first.unmeasured {
			t.Error("what is just young enough was measured again")
		}
		time.Sleep(time.Second)
		if r := p.Report(bg, time.Minute, Places{}); r.At == first.At {
			t.Error("what is too old was not measured again")
		}
	})
}

// A measurement that hangs is aborted, and Close waits no longer than necessary.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.hang = make(chan struct{})
		p := New(Options{Engine: f, Storage: f, Scratch: t.TempDir()})
		began := time.Now()
		r := p.Report(bg, 0, Places{})
		if took := time.Since(began); took != measureTime {
			t.Errorf("took %v", took)
		}
		wantOnly(t, r, "deadline exceeded", Names...)
		if !strings.Contains(r.Late, "deadline exceeded") {
			t.Errorf("late: %q", r.Late)
		}
		go p.Report(bg, 0, Places{})
		synctest.Wait()
		began = time.Now()
		p.Close()
		if took := time.Since(began); took != 0 {
			t.Errorf("closing took %v", took)
		}
		if len(f.volumes) != 0 || f.live != 0 {
			t.Errorf("left: %v, %d", f.volumes, f.live)
		}
		wantOnly(t, p.Report(bg, time.Hour, Places{}), "deadline exceeded", Names...) // the last one
		p = New(Options{Engine: f, Scratch: t.TempDir()})
		p.Close()
		wantOnly(t, p.Report(bg, time.Hour, Places{}), "shutting down", Names...)
	})
}

// A box whose commands never end is removed with its storage: the time for that begins when the
// time to measure is over.
func TestStuckBox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.stuck = true
		p := New(Options{Engine: f, Storage: f, Scratch: t.TempDir()})
		r := p.Report(bg, 0, Places{})
		wantOnly(t, r, "deadline exceeded", Names...)
		if r.Late == "" || !r.unmeasured {
			t.Errorf("late: %q, unmeasured: %v", r.Late, r.unmeasured)
		}
		p.Close()
		if len(f.volumes) != 0 || f.live != 0 {
			t.Errorf("left: %v, %d boxes", f.volumes, f.live)
		}
	})
}
