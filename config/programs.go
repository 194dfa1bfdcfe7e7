package config

import "strings"

// Programs says what the engines other than native use. An empty value: what distributions have, where they
// have it.
type Programs struct {
	OCI struct {
		Runtime string `yaml:"runtime"` // path of runc, for isolation namespaces
		GVisor  string `yaml:"gvisor"`  // path of runsc, for isolation gvisor
	} `yaml:"oci"`
	Containerd struct {
		Address string `yaml:"address"` // path of its socket
		Runtime string `yaml:"runtime"` // name of its runtime; empty: io.containerd.runc.v2
	} `yaml:"containerd"`
}

// program is a key that says what the launcher executes, or what it believes.
type program struct {
	key    string
	value  *string
	isPath bool
}

func (p *Programs) all() []program {
	return []program{
		{"oci.runtime", &p.OCI.Runtime, true}, {"oci.gvisor", &p.OCI.GVisor, true},
		{"containerd.address", &p.Containerd.Address, true}, {"containerd.runtime", &p.Containerd.Runtime, false},
	}
}

// ProgramsOf returns the programs that an environment names, in the variables of the daemon.
func ProgramsOf(env func(name string) string) (p Programs) {
	for _, program := range p.all() {
		*program.value = env(EnvPrefix + strings.ToUpper(strings.ReplaceAll(program.key, ".", "_")))
	}
	return p
}
