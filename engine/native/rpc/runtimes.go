package rpc

// Runtimes names the programs that build boxes for a launcher, besides the launcher itself. Only root
// chooses them, when it starts the launcher.
type Runtimes struct {
	// OCI is the path of the OCI runtime of engine "oci": absolute and cleaned, of a program
	// that only root can write or replace. Empty: runc, in the first of oci.Dirs that has it.
	OCI string `json:",omitempty"`
	// Containerd is the path of boxd-containerd, which speaks to containerd for the launcher: as
	// for OCI. Empty: it is beside boxd-init if the caller starts the launcher, and there is
	// no engine "containerd" otherwise.
	Containerd string `json:",omitempty"`
	// ContainerdAddress is the path of containerd's socket. Empty: where distributions have it.
	ContainerdAddress string `json:",omitempty"`
	// ContainerdRuntime names a runtime of containerd. Its shim must run a program as it runs runc:
	// others, such as io.containerd.runsc.v1 and io.containerd.kata.v2, have kernels of their own, in
	// which no process of this host can be PID 1 of a box. Empty: io.containerd.runc.v2.
	ContainerdRuntime string `json:",omitempty"`
	// GVisor is the path of runsc, for isolation "gvisor", under the same rules. Empty: runsc, in
	// the first of oci.Dirs that has it.
	GVisor string `json:",omitempty"`
}

// Parse takes one option of the launcher's command line, which are
//
//	--oci-runtime PATH, --gvisor-runtime PATH, --containerd PATH, --containerd-address PATH,
//	--containerd-runtime NAME
//
// It returns false for an unknown one.
func (r *Runtimes) Parse(name, value string) bool {
	switch name {
	case "--oci-runtime":
		r.OCI = value
	case "--containerd":
		r.Containerd = value
	case "--containerd-address":
		r.ContainerdAddress = value
	case "--containerd-runtime":
		r.ContainerdRuntime = value
	case "--gvisor-runtime":
		r.GVisor = value
	default:
		return false
	}
	return true
}

// Args is the inverse of Parse.
func (r Runtimes) Args() (args []string) {
	for _, option := range [][2]string{
		{"--oci-runtime", r.OCI}, {"--gvisor-runtime", r.GVisor}, {"--containerd", r.Containerd},
		{"--containerd-address", r.ContainerdAddress}, {"--containerd-runtime", r.ContainerdRuntime},
	} {
		if option[1] != "" {
			args = append(args, option[0], option[1])
		}
	}
	return args
}
