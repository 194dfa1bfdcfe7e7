package skills

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/boxd/boxd/langbot/protocol"
)

// list answers with all skills, the newest first.
func (o *op) list() (any, error) {
	places, err := o.places()
	if err != nil {
		return nil, err
	}
	skills := []Skill{}
	room := answerRoom(maxListText)
	for _, p := range places {
		if err := o.ctx.Err(); err != nil {
			return nil, err
		}
		s, err := o.tree.load(p)
		if err != nil {
			o.passOver(p, err)
			continue
		}
		if !room.take(s) {
			o.passOver(p, refuse("the skills together exceed %d bytes", maxListText))
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
		err = nil
	}
	return places, err
}

func (o *op) passOver(p place, err error) {
	o.store.o.Logger.Info("skill passed over", "directory", o.tree.abs(p.dir), "error", err)
}

// find returns the skill of that name: the newest, if it is the name of several.
func (o *op) find(name string) (Skill, bool, error) {
	places, err := o.places()
	if err != nil {
		return Skill{}, false, err
	}
	var found Skill
	ok := false
	for _, p := range places {
		if err := o.ctx.Err(); err != nil {
			return Skill{}, false, err
		}
		if n, err := o.tree.name(p); err != nil || n != name {
			continue
		}
		s, err := o.tree.load(p)
		if err != nil || s.Name != name {
			continue
		}
		if !ok || s.updated.After(found.updated) {
			found, ok = s, true
		}
	}
	return found, ok, nil
}

// names are those of all skills.
func (o *op) names() (map[string]bool, error) {
	places, err := o.places()
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for _, p := range places {
		if err := o.ctx.Err(); err != nil {
			return nil, err
		}
		if n, err := o.tree.name(p); err == nil {
			names[n] = true
		}
	}
	return names, nil
}

// need is find for the skill that the request names.
func (o *op) need() (Skill, error) {
	name, err := protocol.String(o.data, "name")
	if err != nil {
		return Skill{}, err
	}
	s, ok, err := o.find(name)
	if err == nil && !ok {
		err = refuse(`Skill "%s" not found`, quote(name))
	}
	return s, err
}

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
