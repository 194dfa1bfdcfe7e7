package oci

import (
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Guest is a gVisor sandbox around the root of a box. The box's own PID 1 runs runsc, outside of
// the sandbox and inside of everything else that boxd makes for a box: its user, network, PID and
// mount namespaces, its cgroups, its root with all of its mounts. So runsc makes neither cgroups
// nor networks, and its state ends with the box.
type Guest struct {
	Hostname string
	// Dirs are where runsc finds the root, and keeps its state and the bundle.
	Root, State, Bundle string
	// Init is the directory with our program boxd-agent, which starts the commands. Commands find
	// it at GuestInit, read-only.
	Init string
	// Writable: commands can write to the root itself.
	Writable bool
	// Mounts are the places in the root at which other file systems begin that commands write to,
	// parents first. gVisor does not cache what it reads of them: others may write there too, and a
	// full file system must refuse the write itself.
	Mounts []GuestMount
}

// GuestMount is a mount at Target, an absolute path in the box.
type GuestMount struct {
	Target   string
	ReadOnly bool
	NoExec   bool // no program in it can be executed, which the host would refuse as well
}

// GuestID is the name of the sandbox, the only one in its state directory.
const GuestID = "box"

// GuestInit is where the sandbox has the directory Guest.Init. No root of a box has anything there.
const GuestInit = "/sys/boxd"

// guestUser is the user of our helper in the sandbox: the last ID of a box, which no command can
// have, and with what starting a command as any other user takes.
const guestUser = 65535

var guestCaps = []string{"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"}

// guestEnv keeps our helpers in the sandbox small.
var guestEnv = []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=32MiB", "PATH=/usr/bin:/bin"}

func guestProcess(role string) *specs.Process {
	return &specs.Process{
		User: specs.User{UID: guestUser, GID: guestUser},
		Args: []string{GuestInit + "/boxd-agent", role},
		Env:  guestEnv,
		Cwd:  "/",
		Capabilities: &specs.LinuxCapabilities{
			Bounding: guestCaps, Effective: guestCaps, Permitted: guestCaps, Inheritable: guestCaps, Ambient: guestCaps,
		},
		NoNewPrivileges: true,
	}
}

// Config returns the config.json of the bundle. PID 1 of the sandbox is our helper.
func (g Guest) Config() *specs.Spec {
	c := &specs.Spec{
		Version:  specs.Version,
		Root:     &specs.Root{Path: g.Root, Readonly: !g.Writable},
		Hostname: g.Hostname,
		Process:  guestProcess("guest-init"),
		Mounts:   []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		// Namespaces of the sandbox, not of the host. There is no network namespace: the sandbox
		// uses the one of its parent.
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		}},
	}
	c.Mounts = append(c.Mounts, specs.Mount{Destination: GuestInit, Type: "bind", Source: g.Init, Options: []string{"bind", "nosuid", "nodev", "ro"}})
	for _, m := range g.Mounts {
		options := []string{"rbind", "nosuid", "nodev", "rw"}
		if m.ReadOnly {
			options[3] = "ro"
		}
		if m.NoExec {
			options = append(options, "noexec")
		}
		c.Mounts = append(c.Mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: g.Root + m.Target, Options: options})
	}
	return c
}

// Process returns the process.json of the helper that starts one command.
func (g Guest) Process() *specs.Process { return guestProcess("guest") }

// flags are those of every call of runsc. The network is the sockets of the box's own network
// namespace, so that its proxy, its ports and its previews work as for any box. Nothing else of
// the host is open: neither Unix sockets nor FIFOs nor devices of a mount.
func (g Guest) flags() []string {
	access := "exclusive"
	if g.Writable {
		access = "shared"
	}
	return []string{
		"--root=" + g.State, "--platform=systrap", "--network=host", "--ignore-cgroups", "--overlay2=none", "--host-uds=none", "--host-fifo=none",
		"--file-access=" + access, "--file-access-mounts=shared", "--host-settings=ignore", "--gofer-network-namespace=host",
	}
}

// RunArgs returns the arguments of runsc that start the sandbox and write its process ID to
// pidFile.
func (g Guest) RunArgs(pidFile string) []string {
	return append(g.flags(), "run", "--detach", "--bundle="+g.Bundle, "--pid-file="+pidFile, GuestID)
}

// ExecArgs returns the arguments of runsc that start the helper in the running sandbox. process is
// the path of its process.json, and fds say which descriptor of runsc becomes
// which one of the helper.
func (g Guest) ExecArgs(process string, fds [][2]int) []string {
	args := append(g.flags(), "exec", "--process="+process)
	for _, fd := range fds {
		args = append(args, "--pass-fd="+strconv.Itoa(fd[0])+":"+strconv.Itoa(fd[1]))
	}
	return append(args, GuestID)
}
