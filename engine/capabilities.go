package engine

import (
	"cmp"

	"github.com/boxd/boxd/engine/spec"
)

// Capability is something that boxes do or have. Package engine/conformance has at least one
// test of each.
type Capability struct {
	Name string // as in [Difference]
	// Meaning says in one line what users get.
	Meaning string
}

// The names of capabilities.
const (
	CanCreate       = "create"
	CanExec         = "exec"
	CanStdio        = "stdio"
	CanTerminal     = "terminal"
	CanExitStatus   = "exit-status"
	CanEnd          = "end"
	CanKillTree     = "kill-tree"
	CanMemory       = "memory-limit"
	CanSocketMemory = "socket-memory"
	CanPIDs         = "pids-limit"
	CanCPU          = "cpu-limit"
	CanFileLimits   = "file-limits"
	CanReceipts     = "receipts"
	CanAttribute    = "attribution"
	CanShow         = "shown-limits"
	CanUpdate       = "update-limits"
	CanMount        = "mounts"
	CanMountLive    = "live-mounts"
	CanRoot         = "root"
	CanLayers       = "layers"
	CanVolumes      = "volumes"
	CanNetwork      = "private-network"
	CanNetworked    = "loopback-sockets"
	CanPorts        = "ports"
	CanEvents       = "events"
	CanUsage        = "usage"
	CanManaged      = "managed-processes"
	CanManagedLimit = "managed-memory"
	CanAdopt        = "adoption"
	CanRestart      = "launcher-restart"
	CanPause        = "pause"
)

// Capabilities are all of them, in the order in which documents list them.
var Capabilities = []Capability{
	{CanCreate, "a box is created, found by its ID, discarded and removed, and a cancelled create leaves nothing"},
	{CanExec, "a command has the arguments, environment, user and directory that were asked for, and nothing of the caller"},
	{CanStdio, "stdin, stdout and stderr arrive byte for byte, through files and pipes too"},
	{CanTerminal, "a command can have a terminal, with resizing, keys and an end of file"},
	{CanExitStatus, "exit statuses 0 to 255, signals, and why a program did not start are exact"},
	{CanEnd, "timeouts, cancellation, their grace, and limits of output hold"},
	{CanKillTree, "when the end of a command is reported, everything that it started is gone"},
	{CanMemory, "the memory limit holds, with the verdict oom and the number of kills"},
	{CanSocketMemory, "socket buffers are bounded with the memory limit"},
	{CanPIDs, "the limit of processes holds exactly, with the verdict pids-limit"},
	{CanCPU, "the limit of processor time holds, and throttled time is counted"},
	{CanFileLimits, "limits of open files, file size and /tmp hold"},
	{CanReceipts, "a receipt has the processor time, memory peak and number of processes of one command with all its descendants"},
	{CanAttribute, "a limit that one command hits is not taken for the end of another"},
	{CanShow, "programs see the limits of the box, and not the host's memory and processors, in /proc and in /sys/devices/system/cpu"},
	{CanUpdate, "limits of a running box can be changed"},
	{CanMount, "directories, files and volumes are mounted read-only or read-write, and belong to their owner on the host"},
	{CanMountLive, "mounts of a running box come and go, and its processes see it"},
	{CanRoot, "the root is the host's system read-only, or writable; the host name is the box's"},
	{CanLayers, "the root can be made of the layers of an image, which boxes write"},
	{CanVolumes, "a full volume fails its writer with the verdict disk-quota, and outlives boxes"},
	{CanNetwork, "a box has a loopback of its own and reaches nothing else"},
	{CanNetworked, "the caller listens and connects on the loopback of the box, without a process in it"},
	{CanPorts, "the ports that processes listen on are listed"},
	{CanEvents, "the kernel's kills and refused forks are reported as they happen"},
	{CanUsage, "memory, processes and processor time of a box can be read at any time"},
	{CanManaged, "managed processes keep their stdio in buffers of the box, with offsets"},
	{CanManagedLimit, "a managed process can have a memory limit of its own"},
	{CanAdopt, "the next client takes over a box with its managed processes, byte for byte"},
	{CanRestart, "nothing in a box notices that its launcher is killed, and the next one goes on with it"},
	{CanPause, "a box stands still, with the timeouts of its commands, and goes on; that outlives clients and launchers"},
}

// Difference says that an engine holds a promise in another way, or not at all.
type Difference struct {
	Engine    string `json:"engine"`
	Isolation string `json:"isolation"`
	// Capability is the name of one of [Capabilities].
	Capability string `json:"capability"`
	// Instead says in one line what holds instead.
	Instead string `json:"instead"`
	// Reason says in one line why.
	Reason string `json:"reason"`
	// Cases are the tests of package engine/conformance that fail because of it: each of
	// them, and no other test of the capability.
	Cases []string `json:"-"`
}

// Differences are all differences between engines. The engine native with the isolation
// namespaces has none: it is what the others are compared with. Package engine/conformance
// fails if a promise is broken that is not listed here, and if one that is listed is not.
var Differences = []Difference{
	{spec.EngineOCI, spec.IsolationGVisor, CanCreate, "as in a native box, but /proc shows a user namespace that has all IDs", "it is that of the kernel of the box, which is in the user namespace of the box itself", []string{"ManyBoxes"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanEnd, "timeouts, cancellation and limits of output hold; the processes on the host are those of the whole sandbox", "the host does not see the processes of a kernel of its own", []string{"TimeoutIsGentle", "CancelGrace", "CancelGraceOfYoung"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanCPU, "the limit holds, for the kernel of the box as well; throttled time of one command is not counted", "as for receipts", []string{"CPULimit"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanLayers, "the root can be made of layers, but no layer is unpacked in a gVisor box", "unpacking needs capabilities that no command of a sandbox gets", []string{"LayeredRoot"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanVolumes, "as in a native box, but volumes are mounted when the box is created", "the kernel of the box takes mounts only at its start", []string{"VolumeHeld", "VolumeFullAfterAdoption", "VolumeInUse"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanEvents, "forks that the limit refuses are not reported, and the kill for memory is the end of the box", "as for the limits", []string{"Events"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanAdopt, "as in a native box, without receipts, terminals and mounts of a running box", "as for those", []string{"ManagedOutlivesClients", "ManagedEndsAlone", "ClientsComeAndGo"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanRestart, "as in a native box, without mounts of a running box and memory limits of managed processes", "as for those", []string{"ManagedKept", "LauncherKilled"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanExec, "a command sees a helper of boxd beside PID 1 in /proc, has no timer slack, no signal masks in its status, and no seccomp filter", "a kernel of its own has its own /proc, in which the helper starts the command, and takes the place of the filter", []string{"Credentials", "Session", "ProcIsPrivate", "Timers"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanStdio, "a write to a pipe without a reader fails with EPIPE, but sends no SIGPIPE; a write of more than fits into the pipe writes what fits, and returns how much", "gVisor does both as the system says only for pipes that were made in the box", []string{"WriterFails", "WholeWrite"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanTerminal, "a command that asks for a terminal is refused, and the terminals that a command opens itself are not bounded", "the kernel of the box has terminals of its own, and takes none of the host's as one", []string{"Terminal", "TerminalAtItsEnd", "TerminalLimit", "TerminalResize", "TerminalKeys", "TerminalJobs", "TerminalHangup", "TerminalLimits", "TerminalTail"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanKillTree, "everything that a command started is killed, but the processes on the host are those of the whole sandbox", "the host does not see the processes of a kernel of its own", []string{"Timeout", "Cancel", "Background"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanMemory, "a box needs 128 MiB; at the limit the whole box is lost, with the verdict oom", "the host counts and kills the kernel of the box, which holds the memory of all commands", []string{"MemoryLimit", "MemoryLimitOfChild"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanSocketMemory, "sockets count to the limit of the box, which is at least 128 MiB", "as for the memory limit", []string{"SocketMemory"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanPIDs, "fork fails at the limit, without a verdict; helpers of boxd count as well, with some five threads for each running command, and ten more are allowed for them", "the kernel of the box enforces the limit, and reports nothing", []string{"AtThePIDsLimit", "PIDsLimit", "PIDsLimitExact"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanReceipts, "receipts have the time and the bytes of stdio, and nothing else", "the host measures the sandbox as a whole, and boxd estimates nothing", []string{"Concurrent", "ReceiptPIDs", "ReceiptMemory", "ReceiptTime"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanAttribute, "there is no verdict about a limit of processes, and at the memory limit every command has the verdict oom", "as for the limits", []string{"Attribution"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanShow, "/proc and /sys show the host's memory and processors", "they are those of the kernel of the box, to which no limit of the host applies", []string{"ShownLimits"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanUpdate, "a new limit of processes holds for commands that start later; the memory is at least 128 MiB, and no receipt shows the effect of a new limit of processor time", "it is a resource limit of each command; else as for the limits and receipts", []string{"UpdateMemory", "UpdatePIDs", "UpdateCPUs"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanMount, "as in a native box, but all of them are attached when the box is created; named pipes made there exist only in the box, and device files are those of its kernel", "the kernel of the box takes mounts only at its start, and has pipes and devices of its own", []string{"Ownership", "MountOptions", "MountWithin"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanMountLive, "refused", "the kernel of the box takes mounts only at its start", []string{"RefusedUpdateLeavesMounts", "LiveMounts", "NestedLiveMounts", "MountsInWorkspace", "ManyNestedMounts"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanUsage, "figures include the kernel of the box: some 30 MiB and 15 processes", "the host measures the sandbox as a whole", []string{"Usage"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanManaged, "as in a native box, but without figures of what a process has used, without terminals, without larger pipes on request, and each counts to the limit of processes with its helper", "as for receipts, terminals and limits; the pipes are the host's", []string{"Managed", "ManagedEndings", "ManagedTerminal", "ManagedTerminalAtItsEnd", "ManagedTerminalEnd", "ManagedMany", "ManagedRefused", "ManagedBoxLost", "ManagedRemoved", "ManagedEnlargedPipe"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanManagedLimit, "refused", "the host cannot tell the memory of one process from that of the sandbox", []string{"ManagedMemory", "ManagedMemoryOfTrees"}},
	{spec.EngineOCI, spec.IsolationGVisor, CanPause, "refused", "programs of a sandbox whose processes are frozen can die of signals that they have not caused", []string{"Pause", "PausedTimeout", "PausedEnds", "PauseOutlives", "PauseReclaims"}},
}

// DifferencesOf returns the differences of an engine and an isolation. Empty words stand for native
// and namespaces.
func DifferencesOf(engine, isolation string) (list []Difference) {
	engine, isolation = cmp.Or(engine, spec.EngineNative), cmp.Or(isolation, spec.IsolationNamespaces)
	for _, d := range Differences {
		if d.Engine == engine && d.Isolation == isolation {
			list = append(list, d)
		}
	}
	return list
}
