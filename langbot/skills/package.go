package skills

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
)

// wish is a skill as a client asks for it. A nil field leaves the value open.
type wish struct {
	Name         *string
	DisplayName  *string
	Description  *string
	Instructions *string
	PackageRoot  *string
}

func (o *op) wish() (wish, error) {
	var w wish
	skill, err := protocol.Need(o.data, "skill")
	if err != nil {
		return w, err
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(skill, &object) != nil || object == nil {
		return w, refuse("skill must be an object")
	}
	for key, to := range map[string]**string{
		"name": &w.Name, "display_name": &w.DisplayName, "description": &w.Description,
		"instructions": &w.Instructions, "package_root": &w.PackageRoot,
	} {
		if raw, ok := object[key]; ok && json.Unmarshal(raw, to) != nil {
			return w, refuse("skill.%s must be a string", key)
		}
		if *to != nil && key != "instructions" {
			**to = strings.TrimSpace(**to)
		}
	}
	return w, nil
}

func (o *op) create() (any, error) {
	w, err := o.wish()
	if err != nil {
		return nil, err
	}
	name := or(w.Name, "")
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := o.free(name, ""); err != nil {
		return nil, err
	}
	f := front{Name: name, DisplayName: or(w.DisplayName, ""), Description: or(w.Description, ""), instructions: or(w.Instructions, "")}
	var p place
	if root := or(w.PackageRoot, ""); root != "" {
		p, err = o.adopt(root, f)
	} else {
		p, err = o.make(f)
	}
	if err != nil {
		return nil, err
	}
	return o.answer(p)
}

func or(s *string, other string) string {
	if s == nil {
		return other
	}
	return *s
}

// answer returns a skill that was just written.
func (o *op) answer(p place) (any, error) {
	s, err := o.tree.load(p)
	if err != nil {
		return nil, err
	}
	return map[string]any{"skill": s}, nil
}

// make creates the directory of a skill with its entry file. It uses an existing directory if that
// contains no skill.
func (o *op) make(f front) (place, error) {
	p := place{dir: f.Name, entry: entryFiles[0]}
	text, err := entryText(f)
	if err != nil {
		return p, err
	}
	_, err = o.tree.root.Lstat(p.dir)
	if err == nil {
		return p, o.makeIn(p, f)
	}
	stage, err := o.tree.staging()
	if err != nil {
		return p, err
	}
	defer o.tree.tidy(o.ctx)
	if err := create(o.tree.root, path.Join(stage, p.entry), fileMode, strings.NewReader(text)); err != nil {
		return p, err
	}
	return p, o.tree.naming(f.Name, p.dir, func() error { return o.tree.root.Rename(stage, p.dir) })
}

func (o *op) makeIn(p place, f front) error {
	taken := refuse("Skill directory already exists: %s", quote(o.tree.abs(p.dir)))
	if !isRealDir(o.tree.root, p.dir) {
		return taken
	}
	for dir, other := range o.tree.named {
		if other != f.Name && pathin.In(dir, p.dir) {
			return taken
		}
	}
	inside, err := discover(o.ctx, o.tree.root, p.dir, listDepth-1)
	if err != nil || len(inside) > 0 {
		return taken
	}
	return o.writeEntry(p, f)
}

// adopt makes a directory that has an entry file the skill f. Texts that f leaves empty come from
// the entry file.
func (o *op) adopt(root string, f front) (place, error) {
	dir, err := o.tree.rel("package_root", root)
	if err == nil && dir == "." {
		err = refuse("package_root must be a directory in the Workspace skill root, not the root")
	}
	if err != nil {
		return place{}, err
	}
	if !isRealDir(o.tree.root, dir) {
		return place{}, refuse("Directory does not exist: %s", quote(root))
	}
	p := place{dir: dir, entry: findEntry(o.tree.root, dir)}
	if p.entry == "" {
		return p, refuse("No SKILL.md found in %s", quote(root))
	}
	if strings.Count(dir, "/") >= listDepth {
		return p, refuse("package_root must lie at most %d directories deep in the Workspace skill root", listDepth)
	}
	for up := path.Dir(dir); up != "."; up = path.Dir(up) {
		if findEntry(o.tree.root, up) != "" {
			return p, refuse("package_root lies in another skill: %s", quote(o.tree.abs(up)))
		}
	}
	old, err := o.front(p)
	if err != nil {
		return p, err
	}
	f.DisplayName = orBlank(f.DisplayName, old.DisplayName)
	f.Description = orBlank(f.Description, old.Description)
	f.instructions = orBlank(f.instructions, old.instructions)
	f.others = old.others
	return p, o.writeEntry(p, f)
}

func orBlank(s, other string) string {
	if strings.TrimSpace(s) == "" {
		return other
	}
	return s
}

// front reads and parses an entry file.
func (o *op) front(p place) (front, error) {
	text, _, err := readFile(o.tree.root, path.Join(p.dir, p.entry), maxText)
	if err != nil {
		return front{}, o.tree.explain(err, path.Join(p.dir, p.entry))
	}
	return parseFront(string(text)), nil
}

// entryText returns an entry file that parses as f.
func entryText(f front) (string, error) {
	text := f.String()
	back := parseFront(text)
	if back.Name != f.Name || back.DisplayName != f.DisplayName || back.Description != f.Description {
		f.others = "" // written in a way that cannot be kept
		text = f.String()
	}
	if len(text) > maxText {
		return "", refuse("SKILL.md exceeds %d bytes", maxText)
	}
	if _, _, ok := cutFront(text); !ok {
		return "", refuse("name, display_name and description exceed %d bytes", maxFront)
	}
	return text, nil
}

// writeEntry replaces the entry file of the skill at p, and gives the skill its name.
func (o *op) writeEntry(p place, f front) error {
	text, err := entryText(f)
	if err != nil {
		return err
	}
	return o.tree.naming(f.Name, p.dir, func() error {
		pkg, err := subtree(o.tree.root, p.dir)
		if err != nil {
			return err
		}
		defer pkg.Close()
		return replace(pkg, p.entry, text)
	})
}

func (o *op) update() (any, error) {
	s, err := o.need()
	if err != nil {
		return nil, err
	}
	w, err := o.wish()
	if err != nil {
		return nil, err
	}
	if name := or(w.Name, ""); name != "" && name != s.Name {
		return nil, refuse("Renaming skills is not supported")
	}
	if root := or(w.PackageRoot, ""); root != "" && path.Clean(root) != s.PackageRoot {
		return nil, refuse("Updating package_root is not supported: create a skill of the other package")
	}
	f, err := o.front(s.place)
	if err != nil {
		return nil, err
	}
	f.Name = s.Name
	f.DisplayName = or(w.DisplayName, f.DisplayName)
	f.Description = or(w.Description, f.Description)
	f.instructions = or(w.Instructions, f.instructions)
	if err := o.writeEntry(s.place, f); err != nil {
		return nil, err
	}
	return o.answer(s.place)
}

// delete deletes the top-level directory that contains the skill.
func (o *op) delete() (any, error) {
	name, err := protocol.String(o.data, "name")
	if err != nil {
		return nil, err
	}
	dir, ok, err := o.where(name)
	if err == nil && !ok {
		err = notFound(name)
	}
	if err != nil {
		return nil, err
	}
	top, _, _ := strings.Cut(dir, "/")
	if top == "." {
		return nil, refuse("Only managed skills can be deleted, not one that is the Workspace skill root itself")
	}
	if err := o.tree.discard(o.ctx, top); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	o.tree.prune()
	return map[string]any{"deleted": name}, nil
}

func (o *op) scan() (any, error) {
	p, err := protocol.String(o.data, "path")
	if err != nil {
		return nil, err
	}
	dir, err := o.tree.rel("path", p)
	if err != nil {
		return nil, err
	}
	if o.tree.root == nil || !isRealDir(o.tree.root, dir) {
		return nil, refuse("Directory does not exist: %s", quote(p))
	}
	places, err := discover(o.ctx, o.tree.root, dir, scanDepth)
	if errors.Is(err, errTooLong) {
		return nil, refuse("%s exceeds %d entries or %d skills: choose a more specific path", quote(p), maxEntries, maxSkills)
	}
	if err != nil {
		return nil, err
	}
	switch len(places) {
	case 0:
		return nil, refuse("No SKILL.md found in %s or up to %d directories below it", quote(p), scanDepth)
	case 1:
		return o.tree.load(places[0])
	}
	var names []string
	for _, found := range places {
		names = append(names, quote(o.tree.abs(found.dir)))
	}
	return nil, refuse("Multiple skill directories found in %s: choose one of %s", quote(p), strings.Join(names, ", "))
}
