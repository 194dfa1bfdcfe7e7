package skills

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
)

// list answers with all skills, the newest first.
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
		if err == nil && s.Name != w.name { // just now
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

// answerRoom is how many bytes of skills there can still be in an answer, which is one
// message, and bounded.
type answerRoom int

func (r *answerRoom) take(s Skill) bool {
	size, err := json.Marshal(s)
	*r -= answerRoom(len(size) + 1)
	return err == nil && *r >= 1<<10
}

// places finds all skills.
func (o *op) places() ([]place, error) {
	if o.tree.root == nil {
		return nil, nil
	}
	places, err := discover(o.ctx, o.tree.root, ".", listDepth)
	if errors.Is(err, errTooLong) {
		o.store.o.Logger.Warn("skills: there is more than is looked at", "root", o.tree.path, "entries", maxEntries, "skills", maxSkills)
		o.cut, err = true, nil
	}
	return places, err
}

func (o *op) passOver(p place, err error) {
	o.store.o.Logger.Info("skill passed over", "directory", o.tree.abs(p.dir), "error", err)
}

// holder returns where the skill of that name is, if it has an entry file.
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

// find returns the skill of that name, if it can be read.
func (o *op) find(name string) (Skill, bool, error) {
	p, ok, err := o.holder(name)
	if err != nil || !ok {
		return Skill{}, false, err
	}
	s, err := o.tree.load(p)
	return s, err == nil && s.Name == name, nil
}

// free refuses a name for what is, or will be, in dir if it is that of another skill which
// can be read. One that cannot has lost it to whoever wants it.
func (o *op) free(name, dir string) error {
	p, ok, err := o.holder(name)
	if err != nil || !ok || p.dir == dir {
		return err
	}
	_, err = o.tree.load(p)
	var broken refusal
	if errors.As(err, &broken) {
		return nil
	}
	if err != nil {
		return err
	}
	return refuse(`Skill with name "%s" already exists`, name)
}

// where returns the directory of the skill of that name, which may be all that is left
// of it: a box can take the entry file away, or make it what nobody reads.
func (o *op) where(name string) (string, bool, error) {
	if dir, ok := o.tree.given[name]; ok {
		return dir, true, nil
	}
	owners, err := o.known()
	if err != nil {
		return "", false, err
	}
	for _, w := range owners {
		if w.name == name {
			return w.dir, true, nil
		}
	}
	if o.tree.root == nil || o.cut || checkName(name) != nil || !isRealDir(o.tree.root, name) {
		return "", false, nil
	}
	for _, w := range owners { // it may be called like that, and have others in it
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

// need is find for the skill that the request names.
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
	if err != nil {
		return nil, err
	}
	if !ok {
		return map[string]any{"skill": nil}, nil
	}
	return map[string]any{"skill": s}, nil
}
