package rpc

// Runtimes names the programs that build boxes for a launcher, besides the launcher itself. Only root
// chooses them, when it starts the launcher.
type Runtimes struct {
	// OCI is the path of the OCI runtime of engine "oci": absolute and cleaned, of a program
	// that only root can write or replace. Empty: runc, in the first of oci.Dirs that has it.
	OCI string `json:",omitempty"`
	// GVisor is the path of runsc, for isolation "gvisor", under the same rules. Empty: runsc, in
	// the first of oci.Dirs that has it.
	GVisor string `json:",omitempty"`
}

// Parse takes one option of the launcher's command line. It returns false for an unknown one.
func (r *Runtimes) Parse(name, value string) bool {
	switch name {
	case "--oci-runtime":
		r.OCI = value
	case "--gvisor-runtime":
		r.GVisor = value
	default:
		return false
	}
	return true
}

// Args is the inverse of Parse.
func (r Runtimes) Args() (args []string) {
	if r.OCI != "" {
		args = append(args, "--oci-runtime", r.OCI)
	}
	if r.GVisor != "" {
		args = append(args, "--gvisor-runtime", r.GVisor)
	}
	return args
}
