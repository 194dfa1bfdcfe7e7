package conformance

import (
	"testing"

	"github.com/boxd/boxd/engine"
)

// testCase is a case of the suite.
type testCase struct {
	name       string
	capability string // what it tests, of engine.Capabilities
	run        func(*suite, testing.TB)
	flags
}

// flags of a case.
type flags struct {
	waits bool // it waits more than it computes, so it runs beside others
	long  bool // see testutil.Long
	slow  bool // it takes seconds: see Options.Thorough
	bare  bool // it needs no program of the box: see Options.NoPrograms
}

// cases are all cases of the suite.
var cases = []testCase{
	{"Remove", engine.CanCreate, (*suite).remove, flags{}},
	{"SameID", engine.CanCreate, (*suite).sameID, flags{long: true, waits: true}},
	{"CreateCanceled", engine.CanCreate, (*suite).createCanceled, flags{long: true}},
	{"ManyBoxes", engine.CanCreate, (*suite).manyBoxes, flags{long: true, slow: true}},
	{"Invalid", engine.CanCreate, (*suite).invalid, flags{long: true}},
	{"NoShell", engine.CanExec, (*suite).noShell, flags{long: true}},
	{"Environment", engine.CanExec, (*suite).environment, flags{long: true}},
	{"User", engine.CanExec, (*suite).user, flags{long: true}},
	{"Credentials", engine.CanExec, (*suite).credentials, flags{}},
	{"Dir", engine.CanExec, (*suite).dir, flags{long: true}},
	{"ExitStatus", engine.CanExitStatus, (*suite).exitStatus, flags{long: true}},
	{"StartErrors", engine.CanExitStatus, (*suite).startErrors, flags{long: true}},
	{"Descriptors", engine.CanExec, (*suite).descriptors, flags{}},
	{"Session", engine.CanExec, (*suite).session, flags{long: true}},
	{"ReopenStreams", engine.CanStdio, (*suite).reopenStreams, flags{long: true}},
	{"ProcIsPrivate", engine.CanExec, (*suite).procIsPrivate, flags{}},
	{"Timers", engine.CanExec, (*suite).timers, flags{long: true}},
	{"StreamsExact", engine.CanStdio, (*suite).streamsExact, flags{long: true}},
	{"Stdin", engine.CanStdio, (*suite).stdin, flags{long: true}},
	{"StdinNeverComes", engine.CanStdio, (*suite).stdinNeverComes, flags{long: true}},
	{"OutputToFile", engine.CanStdio, (*suite).outputToFile, flags{long: true}},
	{"OutputToPipe", engine.CanStdio, (*suite).outputToPipe, flags{long: true}},
	{"StreamsArrive", engine.CanStdio, (*suite).streamsArrive, flags{long: true}},
	{"WriterFails", engine.CanStdio, (*suite).writerFails, flags{long: true}},
	{"SlowWriter", engine.CanStdio, (*suite).slowWriter, flags{long: true}},
	{"Terminal", engine.CanTerminal, (*suite).terminal, flags{long: true}},
	{"TerminalAtItsEnd", engine.CanTerminal, (*suite).terminalAtItsEnd, flags{long: true}},
	{"TerminalLimit", engine.CanTerminal, (*suite).terminalLimit, flags{long: true}},
	{"TerminalResize", engine.CanTerminal, (*suite).terminalResize, flags{long: true}},
	{"TerminalKeys", engine.CanTerminal, (*suite).terminalKeys, flags{long: true}},
	{"TerminalJobs", engine.CanTerminal, (*suite).terminalJobs, flags{long: true}},
	{"TerminalHangup", engine.CanTerminal, (*suite).terminalHangup, flags{}},
	{"TerminalLimits", engine.CanTerminal, (*suite).terminalLimits, flags{}},
	{"TerminalTail", engine.CanTerminal, (*suite).terminalTail, flags{waits: true, long: true, slow: true}},
	{"Timeout", engine.CanKillTree, (*suite).timeout, flags{waits: true}},
	{"TimeoutIsGentle", engine.CanEnd, (*suite).timeoutIsGentle, flags{waits: true, long: true}},
	{"TimeoutNotReached", engine.CanEnd, (*suite).timeoutNotReached, flags{long: true}},
	{"Cancel", engine.CanKillTree, (*suite).cancel, flags{long: true}},
	{"CancelGrace", engine.CanEnd, (*suite).cancelGrace, flags{long: true, waits: true}},
	{"Signal", engine.CanExitStatus, (*suite).signal, flags{long: true}},
	{"SignalOtherUser", engine.CanEnd, (*suite).signalOtherUser, flags{long: true}},
	{"Background", engine.CanKillTree, (*suite).background, flags{}},
	{"Concurrent", engine.CanReceipts, (*suite).concurrent, flags{long: true}},
	{"AtThePIDsLimit", engine.CanPIDs, (*suite).atThePIDsLimit, flags{}},
	{"SocketMemory", engine.CanSocketMemory, (*suite).socketMemory, flags{}},
	{"MemoryLimit", engine.CanMemory, (*suite).memoryLimit, flags{}},
	{"MemoryLimitOfChild", engine.CanMemory, (*suite).memoryLimitOfChild, flags{}},
	{"PIDsLimit", engine.CanPIDs, (*suite).pidsLimit, flags{slow: true}},
	{"PIDsLimitExact", engine.CanPIDs, (*suite).pidsLimitExact, flags{}},
	{"CPULimit", engine.CanCPU, (*suite).cpuLimit, flags{waits: true}},
	{"Unlimited", engine.CanMemory, (*suite).unlimited, flags{}},
	{"ReceiptPIDs", engine.CanReceipts, (*suite).receiptPIDs, flags{waits: true}},
	{"ReceiptMemory", engine.CanReceipts, (*suite).receiptMemory, flags{}},
	{"ReceiptTime", engine.CanReceipts, (*suite).receiptTime, flags{}},
	{"Attribution", engine.CanAttribute, (*suite).attribution, flags{}},
	{"UpdateMemory", engine.CanUpdate, (*suite).updateMemory, flags{}},
	{"UpdatePIDs", engine.CanUpdate, (*suite).updatePIDs, flags{}},
	{"UpdateCPUs", engine.CanUpdate, (*suite).updateCPUs, flags{waits: true}},
	{"UpdateFiles", engine.CanFileLimits, (*suite).updateFiles, flags{}},
	{"RefusedUpdateLeavesMounts", engine.CanMountLive, (*suite).refusedUpdateLeavesMounts, flags{}},
	{"Ownership", engine.CanMount, (*suite).ownership, flags{long: true}},
	{"ForeignFiles", engine.CanMount, (*suite).foreignFiles, flags{}},
	{"MountOptions", engine.CanMount, (*suite).mountOptions, flags{}},
	{"LiveMounts", engine.CanMountLive, (*suite).liveMounts, flags{}},
	{"NestedLiveMounts", engine.CanMountLive, (*suite).nestedLiveMounts, flags{}},
	{"MountWithin", engine.CanMount, (*suite).mountWithin, flags{}},
	{"MountsInWorkspace", engine.CanMountLive, (*suite).mountsInWorkspace, flags{}},
	{"ManyNestedMounts", engine.CanMountLive, (*suite).manyNestedMounts, flags{}},
	{"Loopback", engine.CanNetwork, (*suite).loopback, flags{}},
	{"SamePort", engine.CanNetwork, (*suite).samePort, flags{long: true}},
	{"HostUnreachable", engine.CanNetwork, (*suite).hostUnreachable, flags{}},
	{"NetworkBounds", engine.CanNetwork, (*suite).networkBounds, flags{}},
	{"ListenInBox", engine.CanNetworked, (*suite).listenInBox, flags{}},
	{"ListenRefused", engine.CanNetworked, (*suite).listenRefused, flags{}},
	{"DialBox", engine.CanNetworked, (*suite).dialBox, flags{}},
	{"DialGivesUp", engine.CanNetworked, (*suite).dialGivesUp, flags{}},
	{"NetworkOutlivesLauncher", engine.CanRestart, (*suite).networkOutlivesLauncher, flags{waits: true}},
	{"VolumeFull", engine.CanVolumes, (*suite).volumeFull, flags{long: true, waits: true}},
	{"VolumeFullAfterAdoption", engine.CanVolumes, (*suite).volumeFullAfterAdoption, flags{long: true, waits: true}},
	{"VolumeStays", engine.CanVolumes, (*suite).volumeStays, flags{long: true, waits: true}},
	{"VolumeInUse", engine.CanVolumes, (*suite).volumeInUse, flags{long: true, waits: true}},
	{"Managed", engine.CanManaged, (*suite).managed, flags{}},
	{"ManagedEndings", engine.CanManaged, (*suite).managedEndings, flags{waits: true, long: true}},
	{"ManagedBackground", engine.CanManaged, (*suite).managedBackground, flags{long: true, waits: true}},
	{"ManagedBulk", engine.CanManaged, (*suite).managedBulk, flags{long: true, slow: true}},
	{"ManagedBackPressure", engine.CanManaged, (*suite).managedBackPressure, flags{long: true}},
	{"ManagedEndsUnread", engine.CanManaged, (*suite).managedEndsUnread, flags{long: true}},
	{"ManagedDropOldest", engine.CanManaged, (*suite).managedDropOldest, flags{long: true}},
	{"ManagedInput", engine.CanManaged, (*suite).managedInput, flags{long: true}},
	{"ManagedInputOfNobody", engine.CanManaged, (*suite).managedInputOfNobody, flags{long: true}},
	{"ManagedTerminal", engine.CanManaged, (*suite).managedTerminal, flags{long: true}},
	{"ManagedTerminalAtItsEnd", engine.CanManaged, (*suite).managedTerminalAtItsEnd, flags{long: true}},
	{"ManagedTerminalEnd", engine.CanManaged, (*suite).managedTerminalEnd, flags{long: true}},
	{"ManagedDevStdio", engine.CanManaged, (*suite).managedDevStdio, flags{long: true}},
	{"ManagedTree", engine.CanManaged, (*suite).managedTree, flags{}},
	{"ManagedMany", engine.CanManaged, (*suite).managedMany, flags{long: true}},
	{"ManagedRefused", engine.CanManaged, (*suite).managedRefused, flags{long: true}},
	{"ManagedBoxLost", engine.CanManaged, (*suite).managedBoxLost, flags{long: true}},
	{"ManagedHold", engine.CanManaged, (*suite).managedHold, flags{long: true}},
	{"ManagedRemoved", engine.CanManaged, (*suite).managedRemoved, flags{}},
	{"ManagedEnlargedPipe", engine.CanManaged, (*suite).managedEnlargedPipe, flags{waits: true, long: true, slow: true}},
	{"ManagedMemory", engine.CanManagedLimit, (*suite).managedMemory, flags{}},
	{"ManagedMemoryOfTrees", engine.CanManagedLimit, (*suite).managedMemoryOfTrees, flags{}},
	{"ManagedKept", engine.CanRestart, (*suite).managedKept, flags{long: true, waits: true}},
	{"ManagedDropStderr", engine.CanManaged, (*suite).managedDropStderr, flags{long: true}},
	{"ManagedOutlivesClients", engine.CanAdopt, (*suite).managedOutlivesClients, flags{waits: true, long: true}},
	{"ManagedEndsAlone", engine.CanAdopt, (*suite).managedEndsAlone, flags{long: true, waits: true}},
	{"ClientsComeAndGo", engine.CanAdopt, (*suite).clientsComeAndGo, flags{long: true, waits: true}},
	{"LauncherKilled", engine.CanRestart, (*suite).launcherKilled, flags{waits: true}},
	{"Events", engine.CanEvents, (*suite).events, flags{long: true}},
	{"InitKilled", engine.CanCreate, (*suite).initKilled, flags{}},
}
