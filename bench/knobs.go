package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/seccomp"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// knob is one thing that isolates, or a sum of them.
type knob struct {
	name, what string
	sample     sample
	close      func()
	why        string // why it is not measured
}

// knobs measures what each part of a box costs: namespaces, filters and cgroups by starting the command
// of all rows with that part alone, mounts and cgroups by making and removing them, and what boxd
// adds by boxes and commands with and without it.
func (b *bench) knobs(ctx context.Context) {
	for _, f := range []func(context.Context) error{b.kernelKnobs, b.mountKnobs, b.boxKnobs, b.auditKnob} {
		if err := f(ctx); err != nil {
			b.fail("knob", err)
			return
		}
	}
}

// namespaces are those of a box.
var namespaces = []struct {
	name string
	flag uintptr
}{
	{"user", unix.CLONE_NEWUSER}, {"mount", unix.CLONE_NEWNS}, {"pid", unix.CLONE_NEWPID}, {"net", unix.CLONE_NEWNET},
	{"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"cgroup", unix.CLONE_NEWCGROUP},
}

// kernelKnobs start the command with one part each, and with all of them.
func (b *bench) kernelKnobs(context.Context) error {
	var all []*knob
	var every uintptr
	for _, ns := range namespaces {
		every |= ns.flag
		all = append(all, &knob{name: "ns." + ns.name, what: "fork+exec in a new " + ns.name + " namespace", sample: timed(func() error { return inNamespaces(ns.flag) })})
	}
	all = append(all,
		&knob{name: "ns.all", what: "fork+exec in all of these namespaces", sample: timed(func() error { return inNamespaces(every) })},
		filtered("seccomp", "fork+exec under the seccomp policy of a box", restrictSeccomp),
		filtered("landlock", "fork+exec under Landlock (not used by boxes)", restrictLandlock),
		filtered("seccomp-landlock", "fork+exec under both", func() error { return errors.Join(restrictSeccomp(), restrictLandlock()) }))
	groups, err := cgroups.Detect()
	if err != nil {
		return err
	}
	defer groups.Close()
	for _, controller := range []string{"memory", "pids", "cpu", "freezer"} {
		if at := groups.Mountpoint(controller); at != "" && groups.Mode() != cgroups.Unified {
			all = append(all, grouped("cgroup."+controller, "a cgroup of controller "+controller+", fork+exec in it, removing it", filepath.Join(at, b.id())))
		}
	}
	if at := unifiedMount(); at != "" {
		all = append(all, grouped("cgroup.v2", "a cgroup of cgroup v2, fork+exec in it, removing it", filepath.Join(at, b.id())))
	}
	var here []*knob
	samples := []sample{timed(bare)}
	for _, k := range all {
		if k.close != nil {
			defer k.close()
		}
		if k.why == "" {
			if _, err := k.sample(); err != nil {
				k.why = err.Error()
			}
		}
		if k.why != "" {
			b.skip("knob."+k.name, k.what, k.why)
			continue
		}
		here = append(here, k)
		samples = append(samples, k.sample)
	}
	s, err := b.alternate(b.n/2, samples...)
	if err != nil {
		return err
	}
	for i, k := range here {
		b.times("knob."+k.name, k.what, s[i+1], s[0], "", goal{})
	}
	return nil
}

// inNamespaces runs the command in new namespaces.
func inNamespaces(flags uintptr) error {
	cmd := exec.Command(command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		// Of IDs that boxd leases to no box.
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: bundleIDs, Size: bundleSize}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = ids, ids
		cmd.SysProcAttr.GidMappingsEnableSetgroups = true
	}
	return cmd.Run()
}

// filtered starts the command from a thread that has been restricted: programs inherit that.
func filtered(name, what string, restrict func() error) *knob {
	work := make(chan chan error)
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		if err == nil {
			err = restrict()
		}
		ready <- err
		if err != nil {
			return
		}
		for done := range work {
			done <- bare()
		}
	}()
	k := &knob{name: name, what: what}
	if err := <-ready; err != nil {
		k.why = err.Error()
		return k
	}
	k.close = func() { close(work) }
	k.sample = timed(func() error {
		done := make(chan error)
		work <- done
		return <-done
	})
	return k
}

// restrictSeccomp installs the policy of a box in this thread.
func restrictSeccomp() error {
	program, err := seccomp.Compile()
	if err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(program) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(program)))}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// restrictLandlock lets this thread do everything below / that Landlock 1 knows (13 rights).
func restrictLandlock() error {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: 1<<13 - 1}
	fd, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	if errno != 0 {
		return os.NewSyscallError("landlock_create_ruleset", errno)
	}
	defer unix.Close(int(fd))
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	rule := unix.LandlockPathBeneathAttr{Allowed_access: attr.Handled_access_fs, Parent_fd: int32(root)}
	if _, _, errno := unix.RawSyscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return os.NewSyscallError("landlock_add_rule", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return os.NewSyscallError("landlock_restrict_self", errno)
	}
	return nil
}

// unifiedMount is where a cgroup2 tree is mounted; "" without one.
func unifiedMount() string {
	for _, at := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(at, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return at
		}
	}
	return ""
}

// grouped makes a cgroup, runs the command in it, and removes it. On v2 the command is started in the
// cgroup (clone3); on v1 the thread that starts it enters the cgroup and leaves it.
func grouped(name, what, dir string) *knob {
	unified := filepath.Dir(dir) == unifiedMount()
	return &knob{name: name, what: what, sample: timed(func() (err error) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, removeGroup(dir)) }()
		if unified {
			fd, err := os.Open(dir)
			if err != nil {
				return err
			}
			defer fd.Close()
			cmd := exec.Command(command)
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
			return cmd.Run()
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		enter := func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "tasks"), []byte(strconv.Itoa(unix.Gettid())), 0)
		}
		if err := enter(dir); err != nil {
			return err
		}
		err = bare()
		return errors.Join(err, enter(filepath.Dir(dir)))
	})}
}

// removeGroup waits for the last process of a cgroup to be gone, which its parent hears of before.
func removeGroup(dir string) error {
	for began := time.Now(); ; {
		err := os.Remove(dir)
		if !errors.Is(err, unix.EBUSY) || time.Since(began) > time.Second {
			return err
		}
	}
}

// mountKnobs make a mount each and let it go.
func (b *bench) mountKnobs(context.Context) error {
	dir := filepath.Join(b.scratch, "mounts")
	for _, name := range []string{"lower", "upper", "work"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	ids := fmt.Sprintf("0 %d %d\n", bundleIDs, bundleSize)
	userNS, err := linux.NewUserNS(ids, ids)
	if err != nil {
		return err
	}
	defer userNS.Close()
	tree := func(attr unix.MountAttr) error {
		f, err := linux.OpenTree(nil, "/usr", unix.OPEN_TREE_CLONE)
		if err != nil {
			return err
		}
		defer f.Close()
		if attr == (unix.MountAttr{}) {
			return nil
		}
		return linux.MountSetattr(f, false, attr)
	}
	made := func(kind string, options ...linux.Option) error {
		f, err := linux.NewMount(kind, 0, options...)
		if err != nil {
			return err
		}
		return f.Close()
	}
	all := []*knob{
		{name: "mount.bind", what: "a bind mount of /usr, made and let go", sample: timed(func() error { return tree(unix.MountAttr{}) })},
		{name: "mount.readonly", what: "… read-only", sample: timed(func() error {
			return tree(unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV})
		})},
		{name: "mount.idmapped", what: "… id-mapped", sample: timed(func() error {
			return tree(unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userNS.Fd())})
		})},
		{name: "mount.tmpfs", what: "a tmpfs, made and let go", sample: timed(func() error { return made("tmpfs", linux.Option{Key: "size", Value: "1m"}) })},
		{name: "mount.overlay", what: "an overlay of /usr, made and let go", sample: timed(func() error {
			return made("overlay", linux.Option{Key: "lowerdir", Value: "/usr"}, linux.Option{Key: "upperdir", Value: filepath.Join(dir, "upper")}, linux.Option{Key: "workdir", Value: filepath.Join(dir, "work")})
		})},
		{name: "mount.proc", what: "a proc, made and let go", sample: timed(func() error { return made("proc") })},
	}
	var samples []sample
	all = slices.DeleteFunc(all, func(k *knob) bool {
		if _, err := k.sample(); err != nil {
			b.skip("knob."+k.name, k.what, err.Error())
			return true
		}
		samples = append(samples, k.sample)
		return false
	})
	s, err := b.alternate(b.n/2, samples...)
	if err != nil {
		return err
	}
	for i, k := range all {
		b.times("knob."+k.name, k.what, s[i], s[0], "the bind mount", goal{})
	}
	return nil
}

// boxKnobs compare boxes with a setting to boxes without it.
func (b *bench) boxKnobs(ctx context.Context) (err error) {
	dir := b.mountDir()
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	with := func(change func(*engine.Spec)) sample {
		spec := b.spec()
		change(&spec)
		return func() (time.Duration, error) {
			begin := time.Now()
			box, err := b.engine.Create(ctx, spec)
			if err != nil {
				return 0, err
			}
			took := time.Since(begin)
			return took, box.Remove(ctx)
		}
	}
	mounts := func(n int) func(*engine.Spec) {
		return func(s *engine.Spec) {
			for i := range n {
				s.Mounts = append(s.Mounts, engine.Mount{Source: dir, Target: fmt.Sprint("/mnt/", i)})
			}
		}
	}
	s, err := b.alternate(max(b.n/8, 5), with(func(*engine.Spec) {}),
		with(func(s *engine.Spec) {
			s.Limits = engine.Limits{Memory: engine.Unlimited, PIDs: engine.Unlimited, CPUs: engine.Unlimited}
		}),
		with(func(s *engine.Spec) { s.WritableRoot = true }), with(mounts(1)), with(mounts(10)))
	if err != nil {
		return err
	}
	for i, k := range []struct{ name, what string }{
		{"unlimited", "create a box without limits"}, {"writable-root", "create a box with a writable root (overlay)"},
		{"mounts1", "create a box with a mount"}, {"mounts10", "create a box with ten mounts"},
	} {
		b.times("knob.box."+k.name, k.what, s[i+1], s[0], "a box with the defaults", goal{})
	}
	box, err := b.engine.Create(ctx, b.spec())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Remove(context.WithoutCancel(ctx))) }()
	// Of a captured command: it ends when its output has, and a terminal is output.
	s, err = b.alternate(b.n/2, timed(func() error { return execTrue(ctx, box) }), capturedSample(ctx, box), timed(func() error {
		return exitedZero(engine.Run(ctx, box, engine.Command{Args: []string{command}, Timeout: time.Minute}))
	}))
	if err != nil {
		return err
	}
	b.times("knob.exec.captured", "exec with its output captured", s[1], s[0], "exec without output", goal{})
	b.times("knob.exec.timeout", "exec with a timeout", s[2], s[0], "exec without one", goal{})
	return b.relayKnob(ctx)
}

// relayKnob compares a managed process, whose output comes by WebSocket, to a command of the API.
func (b *bench) relayKnob(ctx context.Context) (err error) {
	s, err := b.serve()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	if err := s.ensure(ctx, "stream"); err != nil {
		return err
	}
	n := 0
	through := timed(func() error {
		n++
		id := fmt.Sprint("p", n)
		a, err := s.attach(ctx, id, []string{"sh", "-c", "echo; exec sleep 1000"})
		if err != nil {
			return err
		}
		defer a.Close()
		return receive(a, 1)
	})
	figures, err := b.alternate(max(b.n/16, 5), timed(func() error { return s.exec(ctx, "stream") }), func() (time.Duration, error) {
		took, err := through()
		return took, errors.Join(err, s.client.RemoveProcess(ctx, "stream", fmt.Sprint("p", n)))
	})
	if err != nil {
		return err
	}
	b.times("knob.relay", "start a managed process, attach, first byte by WebSocket", figures[1], figures[0], "exec over the daemon's socket", goal{})
	return nil
}

// auditKnob measures a line of the audit log, of which a command over the API writes two.
func (b *bench) auditKnob(context.Context) error {
	log, err := audit.Open(filepath.Join(b.scratch, "audit.log"), audit.Options{})
	if err != nil {
		return err
	}
	s, err := b.alternate(b.n, timed(func() error {
		return log.Append(audit.Entry{Tenant: "bench", Actor: "token:bench", Action: "exec", Session: "bench-1", Decision: audit.Allow})
	}))
	if err = errors.Join(err, log.Close()); err != nil {
		return err
	}
	b.times("knob.audit", "a line of the audit log, on a tmpfs", s[0], nil, "", goal{})
	return nil
}
