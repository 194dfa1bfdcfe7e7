package native

import (
	"os"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/command"
	"golang.org/x/sys/unix"
)

// spawnMsg returns the request that asks the agent to start cmd in the slot of birth, the cgroup
// directory and v1 tasks files; none if the slot has the process already.
func (a *account) spawnMsg(cmd *engine.Command, birth []*os.File) *wire.SpawnMsg {
	limits := a.box.currentLimits()
	a.fileSize = limits.FileSize
	args, env := cmd.Args, cmd.Env
	if cmd.Builtin != "" {
		args, env = append([]string{builtinName, cmd.Builtin}, args...), builtinEnv
	} else {
		env = append(env[:len(env):len(env)], command.ProcessorEnv(env, limits)...)
	}
	return &wire.SpawnMsg{
		Args:    args,
		Self:    cmd.Builtin != "",
		Env:     env,
		Dir:     cmd.Dir,
		MakeDir: cmd.MakeDir,
		TTY:     cmd.TTY != nil,
		UID:     uint32(cmd.User.UID),
		GID:     uint32(cmd.User.GID),
		Rlimits: append(command.Rlimits(limits), a.box.kernelLimits(limits)...),
		Tasks:   uint32(max(len(birth)-1, 0)),
	}
}

// helperTasks is how many tasks in a gVisor box are boxd's while it runs one command: two Go programs.
const helperTasks = 10

// kernelLimits returns the limits of the box that its own kernel enforces. gVisor counts a task to the
// user of the process that runsc has started, whoever it becomes (Task.userCounters): so all tasks
// of the box count to one limit, our helpers among them.
func (b *box) kernelLimits(l engine.Limits) []wire.Rlimit {
	if !b.behindGVisor() || l.PIDs <= 0 {
		return nil
	}
	return []wire.Rlimit{{Resource: unix.RLIMIT_NPROC, Soft: uint64(l.PIDs + helperTasks), Hard: uint64(l.PIDs + helperTasks)}}
}

// builtinName is the name of a builtin in the box's list of processes.
const builtinName = "boxd-agent"

// builtinEnv keeps a builtin, which is a Go program, to few threads: each counts
// against the box's pids limit, and the collector alone would make two more.
var builtinEnv = []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=16MiB"}
