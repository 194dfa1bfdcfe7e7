package rootfs

// ProcPath is a path of /proc that a box must not read or write, with the reason.
type ProcPath struct{ Path, Reason string }

// MaskedProc are the paths that are hidden from a box. Most of them belong to the
// host's root and are already inaccessible, because no ID of a box maps to root. They
// are hidden so that no mistake elsewhere exposes them. Paths that a kernel does not
// have are skipped. Each path costs a mount, so files that only the host's root can
// read (kmsg, kpage*, slabinfo, vmallocinfo) are listed only if other runtimes mask them
// as well.
//
// The list is based on the default of container runtimes (maskedPaths in the OCI
// specifications of containerd and Podman).
var MaskedProc = []ProcPath{
	{"/proc/acpi", "state of the hardware, sleep and wake-up controls"},
	{"/proc/asound", "sound hardware of the host"},
	{"/proc/interrupts", "timing of key strokes and devices of the host"},
	{"/proc/kcore", "the memory of the kernel"},
	{"/proc/keys", "names of keys, in keyrings of others too"},
	{"/proc/latency_stats", "what other processes wait for"},
	{"/proc/pressure", "load of the host; a process that ends waits for RCU once for each trigger that it has set there, for minutes in all"},
	{"/proc/sched_debug", "names and timing of all processes of the host (before Linux 5.13)"},
	{"/proc/scsi", "disks of the host, and commands to remove them"},
	{"/proc/timer_list", "kernel addresses and processes of the host"},
	{"/proc/timer_stats", "processes of the host (before Linux 4.11)"},
}

// ReadOnlyProc are the paths that a box may read but not write. Some files below them are
// settings of the box's own namespaces (/proc/sys/net, kernel/shm* and others) and belong to
// the box's root, so file permissions alone do not protect them.
//
// The list is based on readonlyPaths, like MaskedProc.
var ReadOnlyProc = []ProcPath{
	{"/proc/bus", "PCI and input devices of the host"},
	{"/proc/fs", "controls of file systems, of nfsd and ext4 among others"},
	{"/proc/irq", "which processor handles which device"},
	{"/proc/sys", "kernel settings: core_pattern and modprobe name programs that the host runs as root"},
	{"/proc/sysrq-trigger", "reboots or crashes the host"},
}

// ProcPaths returns the paths alone, as libcontainer takes them.
func ProcPaths(list []ProcPath) []string {
	paths := make([]string, len(list))
	for i, p := range list {
		paths[i] = p.Path
	}
	return paths
}
