// Package command says what the programs of a box are started with because of its limits, and how
// its zygotes are started: by a client for its box, and by the launcher for a box of the pool.
package command

import (
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/sys/unix"
)

// Zygote returns the request that starts z as user in a box of s, which has its defaults, under the limits l.
// The caller sets Spawn.Tasks.
func Zygote(z spec.Zygote, user engine.User, s engine.Spec, l engine.Limits) *wire.ZygoteMsg {
	c := engine.Command{Args: z.Command, Dir: "/", User: &user}.WithDefaults(s)
	return &wire.ZygoteMsg{
		Preload: z.Preload,
		Spawn: wire.SpawnMsg{
			Args:    c.Args,
			Env:     append(slices.Clone(c.Env), ProcessorEnv(c.Env, l)...),
			Dir:     c.Dir,
			UID:     uint32(user.UID),
			GID:     uint32(user.GID),
			Rlimits: Rlimits(l),
		},
	}
}

// ProcessorEnv returns variables that tell programs the processor limit, except those that env
// sets. Go's runtime, OpenMP and nproc(1) do not read the files that show the limit; they ask
// the scheduler, which does not know it. ProcessorEnv returns nothing on a host that has no more
// processors than the limit.
func ProcessorEnv(env []string, l engine.Limits) (more []string) {
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

// softOpenFiles is the soft limit of open files, which a program can raise. Programs that use
// select(2), or that close all possible descriptors, are made for it.
const softOpenFiles = 1024

// Rlimits returns the per-process limits of a command.
func Rlimits(l engine.Limits) []wire.Rlimit {
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
