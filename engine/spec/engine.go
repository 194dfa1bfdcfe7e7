package spec

import (
	"cmp"
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

// Offers reports whether boxes of engine can have isolation at all; whether this host has what they
// need is another question. Empty words mean what they mean in a [Spec].
func Offers(engine, isolation string) bool {
	return engine == EngineOCI || cmp.Or(isolation, IsolationNamespaces) == IsolationNamespaces
}

// Walls lists the isolations that a session of s accepts, best first: the one that it asks for and,
// unless that is required, the weaker ones.
func (s Settings) Walls() []string {
	at := slices.Index(Isolations, s.Isolation)
	if s.Require || at < 0 {
		return []string{s.Isolation}
	}
	walls := slices.Clone(Isolations[:at+1])
	slices.Reverse(walls)
	return walls
}

// WeakestWall is the last of Walls.
func (s Settings) WeakestWall() string {
	walls := s.Walls()
	return walls[len(walls)-1]
}

// Weaker reports whether isolation a is a weaker wall than b.
func Weaker(a, b string) bool { return slices.Index(Isolations, a) < slices.Index(Isolations, b) }

// CheckWord checks that value is empty or one of words. field is its name in errors.
func CheckWord(field, value string, words []string) error {
	if value != "" && !slices.Contains(words, value) {
		return refuse(field, Quote(value), "must be one of %s", strings.Join(words, ", "))
	}
	return nil
}
