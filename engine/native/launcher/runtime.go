package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// boxRuntime makes the namespaces of boxes and starts their PID 1, which is our agent. Everything
// else of a box belongs to the launcher, whichever runtime the box has: its directories, ids,
// cgroups, root, user and network namespace, mounts, its adoption and its removal.
//
// Its methods are called by several goroutines at once, for different boxes.
type boxRuntime interface {
	// prepare describes box b to the runtime. It starts no process of the box. The box has its
	// directories, cgroups, namespaces and root by now.
	//
	// control is the agent's end of its first connection, which the agent expects as descriptor
	// agent.ControlFD; home is the cgroup2 directory of PID 1 (cgroups.Group.InitDir). The caller
	// closes both when the birth is over.
	prepare(b *box, control, home *os.File) (birth, error)
	// look returns the name and version of the program that makes the boxes, or, with
	// engine.ErrNoEngine, why there can be no boxes. It may answer from an earlier look; if fresh
	// is true, that was at most freshTime ago. It takes some 5 s at most.
	look(fresh bool) (program string, err error)
	// forget removes what the runtime keeps of the box called name (cgroupName) outside of the
	// box's directories and cgroups, once all of its processes have ended. It does nothing for
	// a name that it does not know: the box may be one of an earlier launcher, or incomplete.
	forget(ctx context.Context, name string) error
}

// birth is the start of one box.
type birth interface {
	// start starts PID 1 in the box's cgroups, and returns when it has its namespaces: its mount
	// table is the box's own, and mounts that are added to it stay. The agent itself may still
	// be starting. After a failure, every process that is left is in the box's cgroups, which
	// the caller kills.
	start() (initProcess, error)
}

// initProcess is PID 1 of a box as its birth hands it over. The caller owns pidfd.
type initProcess struct {
	pid   int      // on the host
	pidfd *os.File // opened while pid could not be another process's
	// reap waits for the end of PID 1 and reaps it. It is nil if PID 1 is not a child of this
	// process. Then pidfd says when it has ended.
	reap func()
}

// awaitEnd waits until PID 1 has ended and reaps it. If it is no child of this process, it does nothing.
func (p initProcess) awaitEnd() {
	_ = linux.Retry(func() error { return unix.Waitid(unix.P_PIDFD, int(p.pidfd.Fd()), nil, unix.WEXITED, nil) })
}

// takeInit opens the process pid as PID 1 of a box that another program has started in it, and checks
// that the program did as it was told: it may be of any version. It does not check what verify
// checks of every box.
func (b *box) takeInit(pid int) (p initProcess, err error) {
	p.pid = pid
	if p.pidfd, err = linux.PidfdOpen(pid); err != nil {
		return p, err
	}
	inBox := false
	defer func() {
		if err != nil {
			if inBox { // perhaps not in its cgroups, which the caller kills
				_ = linux.PidfdSignal(p.pidfd, unix.SIGKILL)
				p.awaitEnd() // at once, if PID 1 is no child
			}
			p.pidfd.Close()
			err = fmt.Errorf("process %d: %w", pid, err)
		}
	}()
	if err := b.checkNamespaces(pid); err != nil {
		return p, err
	}
	if err := linux.PidfdSignal(p.pidfd, 0); err != nil { // what was read is of this process
		return p, err
	}
	inBox = true
	in, err := b.group.HasInit(pid)
	if err != nil {
		return p, err
	}
	if !in {
		return p, errors.New("is not in the cgroups of the box: its limits would not hold")
	}
	status, err := readStatus(pid)
	if err != nil {
		return p, err
	}
	if fields := strings.Fields(status["NSpid"]); len(fields) < 2 || fields[len(fields)-1] != "1" {
		return p, fmt.Errorf("has the numbers %q: is not PID 1 of a namespace", status["NSpid"])
	}
	if status["PPid"] == strconv.Itoa(os.Getpid()) {
		p.reap = p.awaitEnd
	}
	return p, linux.PidfdSignal(p.pidfd, 0)
}

// checkNamespaces checks that process pid is in the user and network namespace of the box, shares no
// other namespace with this process, and has the root of the box.
func (b *box) checkNamespaces(pid int) error {
	for _, ns := range []struct {
		name string
		same string // path of the namespace that it must be; empty: any but this process's
	}{
		{"user", fdPath(b.user)}, {"net", fdPath(b.network)}, {"mnt", ""}, {"pid", ""}, {"ipc", ""}, {"uts", ""},
	} {
		path := fmt.Sprintf("/proc/%d/ns/%s", pid, ns.name)
		same, err := sameFile(path, cmp.Or(ns.same, "/proc/self/ns/"+ns.name))
		if err != nil {
			return err
		}
		if same != (ns.same != "") {
			return fmt.Errorf("is in another %s namespace than it should be", ns.name)
		}
	}
	same, err := sameFile(fmt.Sprintf("/proc/%d/root", pid), b.root.Path())
	if err == nil && !same {
		err = errors.New("has another root than it should have")
	}
	return err
}

func sameFile(a, b string) (bool, error) {
	x, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y), err
}

// kind names a runtime by what a client asks for.
type kind struct{ engine, isolation string }

var nativeKind = kind{spec.EngineNative, spec.IsolationNamespaces}

func kindOf(s engine.Spec) kind { return kind{s.Engine, s.Isolation} }

// openRuntimes makes the runtimes of this launcher. It looks at no program: a runtime does that when
// it is needed.
func (l *Launcher) openRuntimes(programs rpc.Runtimes) {
	libcontainer := native{&l.programs}
	runc := &ociRuntime{ociPrograms: ociPrograms{name: "runc", path: programs.OCI}, programs: &l.programs}
	l.runtimes = map[kind]boxRuntime{
		nativeKind: libcontainer,
		{spec.EngineOCI, spec.IsolationNamespaces}: runc,
		{spec.EngineOCI, spec.IsolationGVisor}:     &gvisor{ociPrograms: ociPrograms{name: "runsc", path: programs.GVisor}, native: libcontainer, launcher: l, dir: filepath.Join(l.instance.private(), "guest")},
	}
	if l.containerd = l.openContainerd(programs, runc); l.containerd != nil {
		l.runtimes[kind{spec.EngineContainerd, spec.IsolationNamespaces}] = l.containerd
	}
	l.reclaiming = make(chan struct{}, 1)
	l.creating = map[kind]chan struct{}{}
	for k := range l.runtimes {
		// One create per processor. With twice as many, a hundred boxes are ready 15 % sooner,
		// but commands in other boxes wait 10 to 20 % longer meanwhile.
		l.creating[k] = make(chan struct{}, runtime.NumCPU())
	}
}
