package native

import (
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"golang.org/x/sys/unix"
)

// spawnMsg is cmd as the agent is asked for it.
func (a *account) spawnMsg(cmd *engine.Command) *wire.SpawnMsg {
	limits := a.box.currentLimits()
	a.fileSize = limits.FileSize
	args, env := cmd.Args, cmd.Env
	if cmd.Builtin != "" {
		args, env = append([]string{builtinName, cmd.Builtin}, args...), builtinEnv
	} else {
		env = append(env[:len(env):len(env)], processorEnv(env, limits)...)
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
		Rlimits: rlimits(limits),
		Tasks:   uint32(len(a.slot.birth) - 1),
	}
}

// builtinName is what a builtin is called in the box's list of processes.
const builtinName = "boxd-init"

// builtinEnv keeps a builtin, which is a Go program, to few threads: each counts
// against the box's pids limit, and the collector alone would make two more.
var builtinEnv = []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=16MiB"}

// processorEnv tells programs of the limit of processors that do not read files, by variables
// that env does not set. Go's runtime and OpenMP, and nproc(1), ask the scheduler, which knows of
// no limit. On a host with no more processors there is nothing to tell.
func processorEnv(env []string, l engine.Limits) (more []string) {
	host := runtime.NumCPU()
	n := l.Processors(host)
	if n == host {
		return nil
	}
	for _, name := range []string{"GOMAXPROCS=", "OMP_NUM_THREADS="} {
		if !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name) }) {
			more = append(more, name+strconv.Itoa(n))
		}
	}
	return more
}

// softOpenFiles is what a program has that asks for no more: programs that use select(2), or
// close all descriptors that they might have, are made for it.
const softOpenFiles = 1024

// rlimits are the per-process limits of a command.
func rlimits(l engine.Limits) []wire.Rlimit {
	r := slices.Clone(wire.BoxRlimits)
	if l.OpenFiles > 0 {
		hard := uint64(l.OpenFiles)
		r = append(r, wire.Rlimit{Resource: unix.RLIMIT_NOFILE, Soft: min(hard, softOpenFiles), Hard: hard})
	}
	size := uint64(math.MaxUint64) // RLIM_INFINITY
	if l.FileSize > 0 {
		size = uint64(l.FileSize)
	}
	return append(r, wire.Rlimit{Resource: unix.RLIMIT_FSIZE, Soft: size, Hard: size})
}
