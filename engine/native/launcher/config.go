package launcher

import (
	"slices"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/rootfs"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// agentID is the user and group of PID 1: the last of the box's ids, which no
// command can have.
const agentID = engine.MaxID + 1

// agentCaps are the capabilities that starting a command needs: to become the command's
// user, to signal it, and to drop these capabilities. CAP_WAKE_ALARM is for zygotes, see
// spawn.h: the kernel gives it a meaning in the host's user namespace only.
var agentCaps = []string{"CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SETPCAP", "CAP_WAKE_ALARM"}

// unpackerCaps are those that user 0 of a box that unpacks has, which the agent passes on: for
// the metadata of files. Without CAP_DAC_OVERRIDE it writes a directory before it makes it read-only.
var unpackerCaps = []string{"CAP_CHOWN", "CAP_DAC_READ_SEARCH", "CAP_FOWNER"}

// capsOf returns the capabilities of PID 1, and the form that they have in
// /proc/<pid>/status: of agentCaps, bits 5 (KILL), 6 (SETGID), 7 (SETUID), 8 (SETPCAP) and 35 (WAKE_ALARM)
// of capabilities(7); of unpackerCaps, bits 0 (CHOWN), 2 (DAC_READ_SEARCH) and 3 (FOWNER).
func capsOf(spec engine.Spec) (names []string, mask string) {
	if isGVisor(spec) {
		return sandboxCaps, sandboxCapMask
	}
	if spec.Unpacks {
		return slices.Concat(agentCaps, unpackerCaps), "00000008000001ed"
	}
	return agentCaps, "00000008000001e0"
}

// initID is the user and group of PID 1 in the box.
func initID(spec engine.Spec) int {
	if isGVisor(spec) {
		return 0
	}
	return agentID
}

// agentDebug keeps the agent small: it returns freed memory at once, and on a host whose
// transparent_hugepage is "always" its few pages of heap do not become 2 MiB each
// (measured: 6.6 MB private instead of 1.5).
const agentDebug = "GODEBUG=madvdontneed=1,disablethp=1"

// agentProcs is the number of processors of the agent's Go runtime. Two threads wait in system calls most
// of the time. Each holds a processor, whose monitor would retake it every few microseconds unless another
// processor is idle. With two, four clients run 3 to 6 % fewer commands; a fourth makes the agent 60 KiB larger.
const agentProcs = "GOMAXPROCS=3"

// agentEnv is the environment of PID 1. Changing these settings in the agent would stop its threads once for each.
// GOMEMLIMIT is the size that its Go runtime tries hard not to exceed.
var agentEnv = []string{"PATH=/usr/bin:/bin", "HOME=/", agentDebug, agentProcs, "GOGC=50", "GOMEMLIMIT=8MiB"}

// config describes the box to libcontainer. It is a pure function of its
// arguments (see testdata/config.golden.json).
//
// libcontainer gets no cgroups to manage. With Rootless, no path, and a read-only
// cgroup2 in this mount namespace, its cgroup manager does nothing. Package cgroups does
// it all, and avoids the RCU grace periods. libcontainer installs no seccomp filter
// either: the agent installs a program that was compiled once, which saves every box a
// run of libseccomp.
func config(spec engine.Spec, id, root, dev, user, network string, base int) *configs.Config {
	ids := []configs.IDMap{{ContainerID: 0, HostID: int64(base), Size: idRange}}
	caps, _ := capsOf(spec)
	masked, readOnly := rootfs.ProcPaths(rootfs.MaskedProc), rootfs.ProcPaths(rootfs.ReadOnlyProc)
	if isGVisor(spec) {
		// Only PID 1 sees this /proc. The sandbox mounts one for itself, which the kernel allows
		// only where one is visible as a whole (mount_too_revealing in fs/namespace.c).
		masked, readOnly = nil, nil
	}
	noswitch := unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	return &configs.Config{
		Rootfs:      root,
		UIDMappings: ids,
		GIDMappings: ids,
		Namespaces: configs.Namespaces{
			{Type: configs.NEWUSER, Path: user}, {Type: configs.NEWNS}, {Type: configs.NEWPID},
			{Type: configs.NEWNET, Path: network}, {Type: configs.NEWIPC}, {Type: configs.NEWUTS},
		},
		RootPropagation: unix.MS_PRIVATE | unix.MS_REC,
		Mounts: []*configs.Mount{
			{Source: "proc", Device: "proc", Destination: "/proc", Flags: noswitch},
			{Source: dev, Device: "bind", Destination: "/dev", Flags: unix.MS_BIND | unix.MS_REC},
		},
		MaskPaths:       masked,
		ReadonlyPaths:   readOnly,
		Hostname:        spec.Hostname,
		NoNewPrivileges: true,
		Capabilities: &configs.Capabilities{
			Bounding: caps, Effective: caps, Permitted: caps,
			Inheritable: caps, Ambient: caps,
		},
		Cgroups: &cgroups.Cgroup{
			Name:      id,
			Rootless:  true,
			Resources: &cgroups.Resources{},
		},
		RootlessCgroups: true,
	}
}
