package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ConfigName is the name of the configuration in a bundle.
const ConfigName = "config.json"

// ociVersion is the version of the runtime specification that a bundle claims: 1.0.2 has
// everything that boxes need, and every runtime that exists reads it.
const ociVersion = "1.0.2"

// Box describes a box to a runtime. All paths are absolute.
type Box struct {
	// Root is the directory that becomes the root, in the mount namespace in which the
	// runtime is started. It is complete but for Dev and a new procfs at /proc.
	Root string
	// Dev is a directory, with its mounts, that is bind-mounted to /dev.
	Dev string
	// UserNS is the path of the user namespace to enter. Its ids 0 to IDs-1 are IDBase to
	// IDBase+IDs-1 of the host. The mount, PID, IPC and UTS namespaces are new ones. The box stays in the
	// network namespace in which the runtime is started: it belongs to the host's user namespace, and
	// runc before 1.2 enters the user namespace first, which may not enter another's network.
	UserNS      string
	IDBase, IDs int
	Hostname    string
	// Args, Env and UID are those of PID 1. Its group has the same number, and it has no
	// other groups. Its working directory is "/".
	Args, Env []string
	UID       int
	// Capabilities are those of PID 1, in all five sets, such as "CAP_KILL".
	Capabilities []string
	// Masked paths are hidden from the box, ReadOnly ones cannot be written.
	Masked, ReadOnly []string
}

// Config returns the configuration of a box. It is a pure function of b (see
// testdata/config.golden.json).
//
// It names neither a cgroup nor limits: with --rootless=true, no path, and a read-only cgroup2
// at /sys/fs/cgroup, runc leaves cgroups alone, and the box stays in those in which the
// runtime was started. It names no seccomp filter either: the agent installs one that was
// compiled once, with rules that an OCI configuration cannot express.
func Config(b Box) *specs.Spec {
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(b.IDBase), Size: uint32(b.IDs)}}
	return &specs.Spec{
		Version:  ociVersion,
		Root:     &specs.Root{Path: b.Root},
		Hostname: b.Hostname,
		Process: &specs.Process{
			User: specs.User{UID: uint32(b.UID), GID: uint32(b.UID)},
			Args: b.Args,
			Env:  b.Env,
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: b.Capabilities, Effective: b.Capabilities, Permitted: b.Capabilities,
				Inheritable: b.Capabilities, Ambient: b.Capabilities,
			},
			NoNewPrivileges: true,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "nodev", "noexec"}},
			// A bind mount at /dev also keeps the runtime from making devices and links in it.
			{Destination: "/dev", Type: "bind", Source: b.Dev, Options: []string{"rbind"}},
		},
		Linux: &specs.Linux{
			UIDMappings: ids,
			GIDMappings: ids,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace, Path: b.UserNS},
				{Type: specs.MountNamespace},
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
			},
			RootfsPropagation: "rprivate",
			MaskedPaths:       b.Masked,
			ReadonlyPaths:     b.ReadOnly,
		},
	}
}

// WriteBundle makes directory dir, for its owner only, with the configuration of a box.
func WriteBundle(dir string, s *specs.Spec) error {
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("writing bundle: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("writing bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, ConfigName), text, 0o600); err != nil {
		return fmt.Errorf("writing bundle: %w", err)
	}
	return nil
}
