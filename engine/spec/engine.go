package spec

import (
	"slices"
	"strings"
)

// The engines that build boxes.
const (
	EngineNative     = "native"     // boxd itself, with libcontainer
	EngineOCI        = "oci"        // an OCI runtime that boxd starts: runc, or runsc for IsolationGVisor
	EngineContainerd = "containerd" // a containerd of the host
)

// defaultEngine is the Engine of a Spec that names none. It is a variable for tests, which link
// programs with another one, to run what was written for boxes of any engine ("make … ENGINE=oci").
var defaultEngine = EngineNative

// Engines are the values of [Spec].Engine, in the order in which boxd tries them by default.
var Engines = []string{EngineNative, EngineOCI, EngineContainerd}

// The walls between a box and its host, the weaker first.
const (
	IsolationNamespaces = "namespaces" // the host's kernel, behind namespaces and seccomp
	IsolationGVisor     = "gvisor"     // a kernel in user space between the box and the host's
)

// Isolations are the values of [Spec].Isolation, the weaker first.
var Isolations = []string{IsolationNamespaces, IsolationGVisor}

// CheckWord checks that value is empty or one of words. field is its name in errors.
func CheckWord(field, value string, words []string) error {
	if value != "" && !slices.Contains(words, value) {
		return refuse(field, Quote(value), "must be one of %s", strings.Join(words, ", "))
	}
	return nil
}
