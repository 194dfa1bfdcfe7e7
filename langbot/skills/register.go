package skills

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Whose a name is. A box can write any name into the SKILL.md of a skill that it may
// write to, also that of another skill, which later sessions would then be given the
// wrong directory for. So a name that came through the store belongs to the directory
// that it came for, until that is gone or the store gives the name away again; what the
// SKILL.md says does not change it. Directories that got here otherwise have the name
// that they say they have, if nobody was given it: of several, the first by before.

// register is a directory in the root of each tree with a symlink per name, to the
// directory that the name belongs to. Nobody follows them. Boxes have directories of the
// root, never the root. Once there is one it stays: a tree without is one from before
// there were any, or has lost it.
//
// While a name changes hands, the symlink of the one who had it is there with a spare in
// front of its name, and counts where the other does not: where that is missing, or
// belongs to a directory that never came to be.
const (
	register = ".boxd-names"
	spare    = "." // no skill's name begins with it
)

func inRegister(name string) string { return path.Join(register, name) }

// IsPrivate says whether a name in a tree is for the store alone, and for no box.
func IsPrivate(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return first == private || first == register
}

// names is what the register says.
type names struct {
	given      map[string]string // directories by name
	named      map[string]string // names by directory
	registered bool              // there is a register
}

// readRegister reads the register, and takes out of it what is gone. bad hears of what
// does not belong there: it protects no name.
func (t *tree) readRegister(bad func(entry string)) error {
	t.names = names{given: make(map[string]string), named: make(map[string]string)}
	list, err := readNames(t.root, register, 2*maxEntries) // names, and spares
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	t.registered = true
	var spares []string
	for _, name := range list {
		if strings.HasPrefix(name, spare) {
			spares = append(spares, name)
		} else if err := t.readName(name, name, bad); err != nil {
			return err
		}
	}
	for _, entry := range spares {
		name := strings.TrimPrefix(entry, spare)
		if _, ok := t.given[name]; ok {
			_ = t.root.Remove(inRegister(entry))
		} else if err := t.readName(entry, name, bad); err != nil {
			return err
		}
	}
	return nil
}

// readName reads an entry of the register, which says whose name is.
func (t *tree) readName(entry, name string, bad func(entry string)) error {
	dir, err := t.root.Readlink(inRegister(entry))
	if errors.Is(err, unix.EINVAL) { // no symlink
		bad(entry)
		return nil
	}
	if err != nil {
		return err
	}
	if t.isGone(dir) {
		_ = t.root.Remove(inRegister(entry))
		return nil
	}
	if entry != name {
		_ = t.root.Rename(inRegister(entry), inRegister(name)) // if not, it counts as well
	}
	if other, ok := t.named[dir]; ok { // the store ended before it had taken the older one
		if t.givenAt(name).Before(t.givenAt(other)) {
			_ = t.root.Remove(inRegister(name))
			return nil
		}
		t.forget(other)
	}
	t.given[name], t.named[dir] = dir, name
	return nil
}

func (t *tree) givenAt(name string) time.Time {
	st, err := t.root.Lstat(inRegister(name))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// prune makes the names of what is gone nobody's.
func (t *tree) prune() {
	for name, dir := range t.given {
		if t.isGone(dir) {
			t.forget(name)
		}
	}
}

// isGone says whether there is no directory of that name. Only an answer counts: a disk
// that fails frees no names.
func (t *tree) isGone(dir string) bool {
	if !fs.ValidPath(dir) || dir == "." || IsPrivate(dir) {
		return true // was not written here
	}
	st, err := t.root.Lstat(dir)
	if err == nil {
		return !st.IsDir()
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// forget makes name nobody's. A symlink that cannot be removed now is left to the next
// action.
func (t *tree) forget(name string) {
	dir, ok := t.given[name]
	if !ok {
		return
	}
	delete(t.given, name)
	if t.named[dir] == name {
		delete(t.named, dir)
	}
	_ = t.root.Remove(inRegister(name))
}

// gift is a name that was given to a directory, until that is kept or undone. A nil one is
// a name that the directory had already.
type gift struct {
	t         *tree
	name, dir string
	from      string // the directory that had the name, if any
	old       string // the name that dir has had, if any
}

// give makes name that of dir, and its only one once the gift is kept. If it fails nothing
// has changed.
func (t *tree) give(name, dir string) (*gift, error) {
	if t.given[name] == dir {
		return nil, nil
	}
	g := &gift{t, name, dir, t.given[name], t.named[dir]}
	if g.from == "" && len(t.given) >= maxEntries {
		return nil, refuse("The workspace has %d skills: delete some before there are more", maxEntries)
	}
	if err := makeDirs(t.root, register); err != nil {
		return nil, err
	}
	if g.from != "" {
		if err := t.root.Rename(inRegister(name), inRegister(spare+name)); err != nil {
			return nil, err
		}
	} else {
		_ = t.root.Remove(inRegister(name)) // what does not belong there
	}
	if err := t.root.Symlink(dir, inRegister(name)); err != nil {
		if g.from != "" {
			err = errors.Join(err, t.root.Rename(inRegister(spare+name), inRegister(name)))
		}
		return nil, err
	}
	delete(t.named, g.from)
	t.given[name], t.named[dir] = dir, name
	return g, nil
}

// keep ends what the name and the directory were before.
func (g *gift) keep() {
	if g == nil {
		return
	}
	if g.from != "" {
		_ = g.t.root.Remove(inRegister(spare + g.name))
	}
	g.t.forget(g.old)
}

// undo makes names whose they were. It takes no room.
func (g *gift) undo() error {
	if g == nil {
		return nil
	}
	t := g.t
	delete(t.given, g.name)
	delete(t.named, g.dir)
	if g.old != "" {
		t.named[g.dir] = g.old
	}
	if g.from == "" {
		return t.root.Remove(inRegister(g.name))
	}
	t.given[g.name], t.named[g.from] = g.from, g.name
	return t.root.Rename(inRegister(spare+g.name), inRegister(g.name))
}

// naming gives name to dir around do: if that fails, names are whose they were. The root
// has no name in the register.
func (t *tree) naming(name, dir string, do func() error) error {
	if dir == "." {
		return do()
	}
	g, err := t.give(name, dir)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return errors.Join(err, g.undo())
	}
	g.keep()
	return nil
}

// registerAll gives their names to the skills of a tree without a register, where only one
// says that it has it: all names at once, or none for now.
func (o *op) registerAll() error {
	claims, err := o.claims(silent)
	if err != nil {
		return err
	}
	count := make(map[string]int)
	for _, c := range claims {
		count[c.name]++
	}
	claims = slices.DeleteFunc(claims, func(c owner) bool { return count[c.name] > 1 || c.dir == "." })
	t := o.tree
	stage, err := t.staging()
	if err != nil {
		return err
	}
	defer t.tidy(o.ctx)
	for _, c := range claims {
		if err := t.root.Symlink(c.dir, path.Join(stage, c.name)); err != nil {
			return err
		}
	}
	if err := t.root.Rename(stage, register); err != nil {
		return err
	}
	t.registered = true
	for _, c := range claims {
		t.given[c.name], t.named[c.dir] = c.dir, c.name
	}
	return nil
}
