package ledger

import "slices"

// kind is one sort of object that a command can make the kernel hold.
type kind struct {
	name    string
	workers int                // processes that make them at once; 0 is one
	take    func(*hoard) error // in the box: makes objects and keeps them
	held    counter            // on the host
	limit   func() bound       // what one box may hold
	// watched kinds are bounded by the launcher alone, which looks several times a second and
	// lowers the box's memory limit: what counts is what the box still holds then.
	watched bool
	// slow kinds grow by less than 250 MB a second where nothing bounds them: the short form has
	// a smaller box for them, and more time.
	slow bool
	// bareless says why the counter cannot be tried without a box.
	bareless string
	why      string // what keeps it there, or would hurt
}

// kinds are all that is known. The rules they prove, and what no rule can, are in SECURITY.md.
var kinds = slices.Concat(socketKinds, tcpKinds, optionKinds, fileKinds, lockKinds, memoryKinds, ipcKinds, processKinds)

func findKind(name string) (kind, bool) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}
