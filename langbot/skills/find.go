package skills

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
)

// list returns all skills, the most recently updated first.
func (o *op) list() (any, error) {
	owners, err := o.owners(o.passOver)
	if err != nil {
		return nil, err
	}
	skills := []Skill{}
	room := answerRoom(maxListText)
	for _, w := range owners {
		if err := o.ctx.Err(); err != nil {
			return nil, err
		}
		s, err := o.tree.load(w.place)
		if err == nil && s.Name != w.name { // it changed just now
			err = errNotIts
		}
		if err != nil {
			o.passOver(w.place, err)
			continue
		}
		if !room.take(s) {
			o.passOver(w.place, refuse("the skills together exceed %d bytes", maxListText))
			break
		}
		skills = append(skills, s)
	}
	slices.SortStableFunc(skills, func(a, b Skill) int { return b.updated.Compare(a.updated) })
	return map[string]any{"skills": skills}, nil
}

// answerRoom is how many more bytes of skills fit into an answer, which is one message of bounded
// size.
type answerRoom int

func (r *answerRoom) take(s Skill) bool {
	size, err := json.Marshal(s)
	*r -= answerRoom(len(size) + 1)
	return err == nil && *r >= 1<<10
}

// places locates all skills.
func (o *op) places() ([]place, error) {
	if o.tree.root == nil {
		return nil, nil
	}
	places, err := discover(o.ctx, o.tree.root, ".", listDepth)
	if errors.Is(err, errTooLong) {
		o.store.log.Warn("skills: the search reached a bound", "root", o.tree.path, "entries", maxEntries, "skills", maxSkills)
		o.cut, err = true, nil
	}
	return places, err
}

func (o *op) passOver(p place, err error) {
	o.store.log.Info("skill passed over", "directory", o.tree.abs(p.dir), "error", err)
}

// holder locates the skill of that name, if it has an entry file.
func (o *op) holder(name string) (place, bool, error) {
	if dir, ok := o.tree.given[name]; ok {
		p := place{dir, findEntry(o.tree.root, dir)}
		return p, p.entry != "" && isRealDir(o.tree.root, dir), nil
	}
	owners, err := o.known()
	if err != nil {
		return place{}, false, err
	}
	i := slices.IndexFunc(owners, func(w owner) bool { return w.name == name })
	if i < 0 {
		return place{}, false, nil
	}
	return owners[i].place, true, nil
}

// find reads the skill of that name; ok is false if there is none that can be read.
func (o *op) find(name string) (Skill, bool, error) {
	p, ok, err := o.holder(name)
	if err != nil || !ok {
		return Skill{}, false, err
	}
	s, err := o.tree.load(p)
	return s, err == nil && s.Name == name, nil
}

// free refuses a name for the skill in dir if another skill has it. A skill that cannot be read
// does not keep its name.
func (o *op) free(name, dir string) error {
	p, ok, err := o.holder(name)
	if err != nil || !ok || p.dir == dir {
		return err
	}
	_, err = o.tree.load(p)
	if _, broken := errors.AsType[refusal](err); broken {
		return nil
	}
	if err != nil {
		return err
	}
	return refuse(`Skill with name "%s" already exists`, name)
}

// where returns the directory of the skill of that name. The entry file may be missing or
// unreadable, because a box can do that to it.
func (o *op) where(name string) (string, bool, error) {
	if p, _, err := o.holder(name); err != nil || p.dir != "" {
		return p.dir, err == nil, err
	}
	owners, err := o.known()
	if err != nil {
		return "", false, err
	}
	if o.tree.root == nil || o.cut || checkName(name) != nil || !isRealDir(o.tree.root, name) {
		return "", false, nil
	}
	for _, w := range owners { // a directory of that name may contain other skills
		if pathin.In(w.dir, name) {
			return "", false, nil
		}
	}
	for dir := range o.tree.named {
		if pathin.In(dir, name) {
			return "", false, nil
		}
	}
	return name, true, nil
}

// need reads the skill that the request names.
func (o *op) need() (Skill, error) {
	name, err := protocol.String(o.data, "name")
	if err != nil {
		return Skill{}, err
	}
	s, ok, err := o.find(name)
	if err == nil && !ok {
		err = notFound(name)
	}
	return s, err
}

func notFound(name string) error { return refuse(`Skill "%s" not found`, quote(name)) }

func (o *op) get() (any, error) {
	name, err := protocol.String(o.data, "name")
	if err != nil {
		return nil, err
	}
	s, ok, err := o.find(name)
	if !ok {
		return map[string]any{"skill": nil}, err
	}
	return map[string]any{"skill": s}, err
}
