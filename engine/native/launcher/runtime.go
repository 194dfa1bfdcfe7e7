package launcher

import (
	"context"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
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

// kind names a runtime by what a client asks for.
type kind struct{ engine, isolation string }

func kindOf(s engine.Spec) kind { return kind{s.Engine, s.Isolation} }

// openRuntimes makes the runtimes of this launcher. It looks at no program of the host: see checkEngine.
func (l *Launcher) openRuntimes() {
	l.runtimes = map[kind]boxRuntime{
		{spec.EngineNative, spec.IsolationNamespaces}: native{},
		{spec.EngineOCI, spec.IsolationGVisor}:        &gvisor{path: "/tmp/rs/runsc", dir: filepath.Join(l.instance.private(), "guest")},
	}
}
