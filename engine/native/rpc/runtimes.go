package rpc

import (
	"maps"
	"slices"
)

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

// options are the fields and their options on the launcher's command line.
func (r *Runtimes) options() map[string]*string {
	return map[string]*string{
		"--oci-runtime": &r.OCI, "--gvisor-runtime": &r.GVisor,
		"--containerd": &r.Containerd, "--containerd-address": &r.ContainerdAddress, "--containerd-runtime": &r.ContainerdRuntime,
	}
}

// Parse takes one option of the launcher's command line. It returns false for an unknown one.
func (r *Runtimes) Parse(name, value string) bool {
	field := r.options()[name]
	if field != nil {
		*field = value
	}
	return field != nil
}

// Args is the inverse of Parse.
func (r Runtimes) Args() (args []string) {
	options := r.options()
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if value := *options[name]; value != "" {
			args = append(args, name, value)
		}
	}
	return args
}
