package skills

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
)

// A box can write any name into the SKILL.md of a skill that it may write to, even the name of
// another skill; later sessions would then get the wrong directory for that name. So a name that
// came through the store belongs to the directory that it was given to, whatever the SKILL.md
// says, until that directory is gone or the store gives the name away again. A directory that did
// not come through the store has the name in its SKILL.md, unless the store gave that name away.
// If several claim the same name, the method before decides.

// register is a directory in the root of each tree. It has one symlink per name, which points to
// the directory that the name belongs to; nobody follows it. Boxes get directories of the root,
// never the root itself. Once a tree has a register, it keeps it: a tree without one is older
// than registers, or has lost it.
//
// While a name changes hands, the symlink of the previous owner is kept under a name that begins
// with a spare. It counts if the new symlink is missing, or points to a directory that does not
// exist.
const (
	register = ".boxd-names"
	spare    = "." // no skill's name begins with it
)

func inRegister(name string) string { return path.Join(register, name) }

// IsPrivate reports whether a name in a tree is reserved for the store and hidden from boxes.
func IsPrivate(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return first == private || first == register
}

// names is the content of the register.
type names struct {
	given      map[string]string // directories by name
	named      map[string]string // names by directory
	registered bool              // the register exists
}

// readRegister reads the register, and removes the names of directories that are gone. It calls bad
// for entries that are not symlinks, which protect no name.
func (t *tree) readRegister(bad func(entry string)) error {
	t.names = names{given: make(map[string]string), named: make(map[string]string)}
	list, err := readNames(t.root, register, 2*maxEntries) // names and spares
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

// readName reads an entry of the register, which says which directory has the name.
func (t *tree) readName(entry, name string, bad func(entry string)) error {
	dir, err := t.root.Readlink(inRegister(entry))
	if errors.Is(err, unix.EINVAL) { // not a symlink
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
		_ = t.root.Rename(inRegister(entry), inRegister(name)) // if this fails, the spare still counts
	}
	if other, ok := t.named[dir]; ok { // the store died before it removed the older name
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

// prune releases the names of directories that are gone.
func (t *tree) prune() {
	for name, dir := range t.given {
		if t.isGone(dir) {
			t.forget(name)
		}
	}
}

// isGone reports whether a directory certainly does not exist. A failing disk releases no names.
func (t *tree) isGone(dir string) bool {
	if !fs.ValidPath(dir) || dir == "." || IsPrivate(dir) {
		return true // not written by the store
	}
	st, err := t.root.Lstat(dir)
	if err == nil {
		return !st.IsDir()
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// forget releases name. A symlink that cannot be removed now is left to the next action.
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

// give makes name the name of dir, and its only one once the caller calls keep. It pushes the steps
// that revert this onto undo, even if it fails part-way. Reverting needs no disk space.
func (t *tree) give(name, dir string, undo *cleanup.Stack) (keep func(), err error) {
	from, old := t.given[name], t.named[dir] // the directory that has the name, and the name that dir has, if any
	if from == dir {
		return func() {}, nil
	}
	if from == "" && len(t.given) >= maxEntries {
		return nil, refuse("The workspace has %d skills: delete some before you add more", maxEntries)
	}
	if err := makeDirs(t.root, register); err != nil {
		return nil, err
	}
	if from == "" {
		_ = t.root.Remove(inRegister(name)) // an entry that is not a symlink
	} else {
		if err := t.root.Rename(inRegister(name), inRegister(spare+name)); err != nil {
			return nil, err
		}
		undo.Push(func() error { return t.root.Rename(inRegister(spare+name), inRegister(name)) })
	}
	if err := t.root.Symlink(dir, inRegister(name)); err != nil {
		return nil, err
	}
	delete(t.named, from)
	t.given[name], t.named[dir] = dir, name
	undo.Push(func() error {
		delete(t.given, name)
		delete(t.named, dir)
		if old != "" {
			t.named[dir] = old
		}
		if from == "" {
			return t.root.Remove(inRegister(name))
		}
		t.given[name], t.named[from] = from, name
		return nil // the spare replaces the symlink
	})
	return func() {
		if from != "" {
			_ = t.root.Remove(inRegister(spare + name))
		}
		t.forget(old)
	}, nil
}

// naming gives name to dir while do runs. If do fails, all names belong to their previous owners
// again. The root has no name in the register.
func (t *tree) naming(name, dir string, do func() error) (err error) {
	if dir == "." {
		return do()
	}
	var undo cleanup.Stack
	defer undo.Undo(&err)
	keep, err := t.give(name, dir, &undo)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	undo.Release()
	keep()
	return nil
}

// registerAll creates the register of a tree without one. It gives names to the skills whose name
// no other skill claims: to all of them at once, or to none for now.
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
