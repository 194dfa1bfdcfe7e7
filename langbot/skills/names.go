package skills

import (
	"errors"
	"io/fs"
	"math"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Whose a name is. A box can write any name into the SKILL.md of a skill that it may
// write to, also that of another skill, which later sessions would then be given the
// wrong directory for. So a name that came through the store belongs to the directory
// that it came for, until that is gone or the store gives the name away again; what the
// SKILL.md says does not change it. Directories that got here otherwise have the name
// that they say they have, if nobody was given it: of several, the first by before.

// register is a directory in the root of each tree with a symlink per name, to the
// directory that the name belongs to. Nobody follows them. Boxes have directories of the
// root, never the root.
const register = ".boxd-names"

// IsPrivate says whether a name in a tree is for the store alone, and for no box.
func IsPrivate(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return first == private || first == register
}

// names is what the register says.
type names struct {
	given map[string]string // directories by name
	named map[string]string // names by directory
}

// readRegister reads the register, and takes out of it what is gone.
func (t *tree) readRegister() error {
	t.names = names{given: make(map[string]string), named: make(map[string]string)}
	list, err := readNames(t.root, register, maxEntries)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range list {
		dir, err := t.root.Readlink(path.Join(register, name))
		if err != nil {
			return err
		}
		t.given[name], t.named[dir] = dir, name
	}
	t.prune()
	return nil
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

// give makes name that of the directory, and its only one.
func (t *tree) give(name, dir string) error {
	if _, ok := t.given[name]; !ok && len(t.given) == maxEntries {
		return refuse("The workspace has %d skills: delete some before there are more", maxEntries)
	}
	t.forget(name)
	if old, ok := t.named[dir]; ok {
		t.forget(old)
	}
	if err := makeDirs(t.root, register); err != nil {
		return err
	}
	if err := t.root.Symlink(dir, path.Join(register, name)); err != nil {
		_ = t.root.Remove(register) // if it is empty
		return err
	}
	t.given[name], t.named[dir] = dir, name
	return nil
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
	_ = t.root.Remove(path.Join(register, name))
	_ = t.root.Remove(register) // if it is empty
}

// naming gives name to dir around do: if that fails, names are whose they were.
func (t *tree) naming(name, dir string, do func() error) error {
	oldDir, hadDir := t.given[name]
	oldName, hadName := t.named[dir]
	err := t.give(name, dir)
	if err == nil {
		err = do()
	}
	if err == nil {
		return nil
	}
	t.forget(name)
	if hadDir {
		_ = t.give(name, oldDir)
	}
	if hadName {
		_ = t.give(oldName, dir)
	}
	return err
}

// owner is a skill's place, and its name.
type owner struct {
	place
	name string
}

var errNotIts = errors.New("its name is that of another skill")

// owners are all skills, each name once. lost hears of the others.
func (o *op) owners(lost func(place, error)) ([]owner, error) {
	places, err := o.places()
	if err != nil {
		return nil, err
	}
	var owners []owner
	index := make(map[string]int)
	for _, p := range places {
		if err := o.ctx.Err(); err != nil {
			return nil, err
		}
		name, err := o.tree.name(p)
		if dir, given := o.tree.given[name]; err == nil && given && dir != p.dir {
			err = errNotIts
		}
		if err != nil {
			lost(p, err)
			continue
		}
		i, taken := index[name]
		switch {
		case !taken:
			index[name] = len(owners)
			owners = append(owners, owner{p, name})
		case o.tree.before(p.dir, owners[i].dir, name):
			lost(owners[i].place, errNotIts)
			owners[i].place = p
		default:
			lost(p, errNotIts)
		}
	}
	return owners, nil
}

// silent is for owners, where the list has told the log already.
func silent(place, error) {}

// rename gives a skill the name in the entry file that its client has just written, unless
// that is somebody else's.
func (o *op) rename(s Skill, text string) error {
	now, err := describe(path.Base(s.place.dir), []byte(text))
	if err != nil || now.Name == s.Name || o.tree.given[now.Name] != "" || s.place.dir == "." {
		return nil
	}
	owners, err := o.owners(silent)
	if err != nil {
		return err
	}
	for _, w := range owners {
		if w.name == now.Name && w.dir != s.place.dir {
			return nil
		}
	}
	return o.tree.give(now.Name, s.place.dir)
}

// before says which of two directories that nobody was given a name for has it: seen from
// the directory that has both in it, the one below that is called like that, else the
// older one. Neither is a box's choice, to which the directory that it has is a mount
// point: it cannot be renamed or replaced from there, and the time of a birth cannot be
// set at all. What lies deeper is a box's choice, and does not count.
func (t *tree) before(p, q, name string) bool {
	as, bs := strings.Split(p, "/"), strings.Split(q, "/")
	i := 0
	for i < len(as) && i < len(bs) && as[i] == bs[i] {
		i++
	}
	if i == len(as) || i == len(bs) { // a box was at work while it was looked for skills
		return len(as) < len(bs)
	}
	a, b := as[i], bs[i]
	if a == name || b == name {
		return a == name
	}
	up := path.Join(as[:i]...)
	if x, y := t.born(path.Join(up, a)), t.born(path.Join(up, b)); x != y {
		return x < y
	}
	return a < b
}

// born is when a directory was made, in nanoseconds; late where the file system does not
// know.
func (t *tree) born(dir string) int64 {
	d, err := t.root.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return math.MaxInt64
	}
	defer d.Close()
	st, err := linux.Statx(d, unix.STATX_BTIME)
	if err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return math.MaxInt64
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}
