package spec

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Bounds of zygotes.
const (
	MaxZygotes       = 4  // of a box
	MaxZygotePreload = 64 // modules of one zygote
	MaxSpares        = 8  // of one zygote
	DefaultSpares    = 2
	maxZygoteName    = 32   // bytes
	maxModule        = 128  // bytes
	maxZygoteProgram = 4096 // bytes: PATH_MAX
)

// zygoteOptions are the options of Python with which a zygote can run: they change nothing that a
// command could give it later.
var zygoteOptions = []string{"-B", "-E", "-I", "-O", "-OO", "-P", "-s", "-S"}

// Zygote is an interpreter that a box keeps warm. A command that uses it is taken over by a
// spare, a process that was forked from the interpreter ahead of time, instead of starting a
// new one. The command has its own limits, receipt and end, as if it had been started; it
// shares the interpreter's seed for hashes of strings with other commands of the box.
//
// Zygotes make commands faster and promise nothing else: where a command cannot be taken over
// (it has a terminal, or the box has a kernel of its own, or no spare is ready), it is started.
type Zygote struct {
	// Name is 1 to 32 of a-z, 0-9 and "-", starting with a letter or digit, and unique in its
	// box. A command asks for the zygote by this name.
	Name string `json:"name" yaml:"name" doc:"Name by which a command asks for it."`
	// Command is how commands call the interpreter: its program, such as python3 or the absolute
	// path of a Python 3, and options among -B, -E, -I, -O, -OO, -P, -s and -S.
	Command []string `json:"command" yaml:"command" doc:"How commands call the interpreter: the program, and options of it."`
	// Preload are the modules that the interpreter imports ahead of time, at most
	// MaxZygotePreload, such as "json" or "os.path". One that cannot be imported leaves the box
	// without this zygote; its commands are started.
	Preload []string `json:"preload,omitempty" yaml:"preload" doc:"Modules that are imported ahead of time."`
	// Match lets every command whose first arguments equal Command use the zygote, also if it
	// does not ask for it.
	Match bool `json:"match,omitempty" yaml:"match" doc:"Commands of this interpreter use it without asking for it."`
	// Spares is how many forked processes wait for commands, for each user that has run one; 1
	// to MaxSpares, 0 is DefaultSpares. Each counts against the box's memory and pids limits.
	Spares int `json:"spares,omitempty" yaml:"spares" doc:"Processes that wait for commands, for each user that has run one."`
}

// WithDefaults returns z with its defaults. It shares no slice with z.
func (z Zygote) WithDefaults() Zygote {
	z.Command, z.Preload = slices.Clone(z.Command), slices.Clone(z.Preload)
	z.Spares = cmp.Or(z.Spares, DefaultSpares)
	return z
}

// Serves reports whether args is a command line of the interpreter.
func (z Zygote) Serves(args []string) bool {
	n := len(z.Command)
	return n > 0 && len(args) >= n && slices.Equal(args[:n], z.Command)
}

// FindZygote returns the zygote of zygotes for a command: the one called name or, if name is
// empty, the one that matches most of args. It returns nil if there is none for an empty name. A name
// that zygotes does not have, or whose zygote runs another interpreter than args, is a
// *[FieldError].
func FindZygote(zygotes []Zygote, name string, args []string) (*Zygote, error) {
	var best *Zygote
	var names []string
	for i := range zygotes {
		z := &zygotes[i]
		names = append(names, Quote(z.Name))
		switch {
		case name == "" && z.Match && z.Serves(args) && (best == nil || len(best.Command) < len(z.Command)):
			best = z
		case name == z.Name && z.Serves(args):
			return z, nil
		case name == z.Name:
			return nil, refuse("zygote", Quote(name), "runs commands that begin with %s: change args, or leave zygote empty", Quote(strings.Join(z.Command, " ")))
		}
	}
	switch {
	case name == "":
		return best, nil
	case len(zygotes) == 0:
		return nil, refuse("zygote", Quote(name), "must be empty: the box has no zygotes")
	}
	return nil, refuse("zygote", Quote(name), "must be empty or one of %s", strings.Join(names, ", "))
}

// IsZygoteName reports whether a zygote can be called name.
func IsZygoteName(name string) bool {
	return name != "" && len(name) <= maxZygoteName && only(name, lowerDigits+"-") && name[0] != '-'
}

// ValidateZygotes checks the zygotes of a box. field is their name in errors, which are of type
// *[FieldError].
func ValidateZygotes(field string, zygotes []Zygote) error {
	if len(zygotes) > MaxZygotes {
		return refuse(field, fmt.Sprint(len(zygotes)), "must be at most %d", MaxZygotes)
	}
	for i, z := range zygotes {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := z.validate(at); err != nil {
			return err
		}
		for _, other := range zygotes[:i] {
			if other.Name == z.Name {
				return refuse(at+".name", Quote(z.Name), "is the name of an earlier zygote: choose another")
			}
			if other.Match && z.Match && slices.Equal(other.Command, z.Command) {
				return refuse(at+".match", "true", "must be false: zygote %s matches the same commands", Quote(other.Name))
			}
		}
	}
	return nil
}

func (z Zygote) validate(at string) error {
	if !IsZygoteName(z.Name) {
		return refuse(at+".name", Quote(z.Name), `must be 1 to %d of a-z, 0-9 and "-", starting with a letter or digit`, maxZygoteName)
	}
	if len(z.Command) == 0 {
		return refuse(at+".command", "[]", `must be an interpreter such as ["python3"]`)
	}
	for i, option := range z.Command[1:] {
		if !slices.Contains(zygoteOptions, option) || slices.Contains(z.Command[1:1+i], option) {
			return refuse(fmt.Sprintf("%s.command[%d]", at, i+1), Quote(option), "must be one of the options %s, each once; others belong to commands", strings.Join(zygoteOptions, ", "))
		}
	}
	program := z.Command[0]
	if len(program) > maxZygoteProgram || strings.ContainsRune(program, 0) || !strings.HasPrefix(path.Base(program), "python") {
		return refuse(at+".command[0]", QuotePath(program), `must be "python3", or the name or path of another Python 3`)
	}
	if strings.Contains(program, "/") && !path.IsAbs(program) {
		return refuse(at+".command[0]", QuotePath(program), "must be a name without a slash, or an absolute path")
	}
	if len(z.Preload) > MaxZygotePreload {
		return refuse(at+".preload", fmt.Sprint(len(z.Preload)), "must be at most %d modules", MaxZygotePreload)
	}
	for i, module := range z.Preload {
		if !isModule(module) {
			return refuse(fmt.Sprintf("%s.preload[%d]", at, i), Quote(module), `must be the name of a module, such as "json" or "os.path", of at most %d bytes`, maxModule)
		}
	}
	return CheckCount(at+".spares", int64(z.Spares), 1, MaxSpares)
}

// isModule reports whether name is a dotted name of ASCII identifiers.
func isModule(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if part == "" || !only(part, alnum+"_") || part[0] >= '0' && part[0] <= '9' {
			return false
		}
	}
	return len(name) <= maxModule
}
