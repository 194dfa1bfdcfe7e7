package skills

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
)

// installZip installs all chosen skills of an archive, or none.
func (o *op) installZip() (any, error) {
	a, found, err := o.upload()
	if err != nil {
		return nil, err
	}
	defer a.file.Close()
	chosen, err := o.choose(found)
	if err != nil {
		return nil, err
	}
	if err := o.checkTargets(chosen); err != nil {
		return nil, err
	}
	stage, err := o.tree.staging()
	if err != nil {
		return nil, err
	}
	defer o.tree.tidy(o.ctx)
	if err := o.stage(a, chosen, stage); err != nil {
		return nil, err
	}
	if err := o.checkNames(a, chosen); err != nil {
		return nil, err
	}
	if err := o.moveIn(chosen, stage); err != nil {
		return nil, err
	}
	skills := []Skill{}
	for _, c := range chosen {
		s, err := o.tree.load(place{c.target, c.entry})
		if err != nil {
			return nil, err
		}
		skills = append(skills, s)
	}
	return map[string]any{"skills": skills}, nil
}

// choose returns the candidates that the request asks for, in its order.
func (o *op) choose(found []*candidate) ([]*candidate, error) {
	paths, err := o.sourcePaths()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(found))
	for i, c := range found {
		if names[i] = quote(c.source); c.source == "" {
			names[i] = "."
		}
	}
	if len(paths) == 0 {
		if len(found) == 1 {
			return found, nil
		}
		return nil, refuse("Multiple skills found. Please choose one or more source_paths: %s", strings.Join(names, ", "))
	}
	var chosen []*candidate
	for _, p := range paths {
		i := slices.IndexFunc(found, func(c *candidate) bool { return c.source == p })
		if i < 0 {
			return nil, refuse(`Invalid source_path "%s". Available: %s`, quote(p), strings.Join(names, ", "))
		}
		chosen = append(chosen, found[i])
	}
	return chosen, nil
}

func (o *op) sourcePaths() ([]string, error) {
	var list []string
	if raw := protocol.Value(o.data, "source_paths"); raw != nil && json.Unmarshal(raw, &list) != nil {
		return nil, refuse("source_paths must be a list of strings")
	}
	for i := range list {
		list[i] = sourcePath(list[i])
	}
	one, err := protocol.StringOr(o.data, "source_path", "")
	if err != nil {
		return nil, err
	}
	if one = sourcePath(one); one != "" {
		list = append(list, one)
	}
	var paths []string
	for _, p := range list {
		if !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	return paths, nil
}

// checkTargets refuses directories that exist already.
func (o *op) checkTargets(chosen []*candidate) error {
	taken := make(map[string]bool)
	for _, c := range chosen {
		if taken[c.target] {
			return refuse("Two of the chosen skills would have the same directory: %s", quote(o.tree.abs(c.target)))
		}
		taken[c.target] = true
		if _, err := o.tree.root.Lstat(c.target); err == nil {
			return refuse("Skill directory already exists: %s", quote(o.tree.abs(c.target)))
		}
	}
	return nil
}

// stage unpacks the chosen skills into numbered directories in stage.
func (o *op) stage(a *archive, chosen []*candidate, stage string) error {
	root, err := subtree(o.tree.root, stage)
	if err != nil {
		return err
	}
	defer root.Close()
	for i := range chosen {
		if err := makeDirs(root, strconv.Itoa(i)); err != nil {
			return err
		}
	}
	to := func(e zipEntry) string { // no skill contains another
		for i, c := range chosen {
			if rel, ok := pathin.Rel(e.name, c.dir); ok {
				return path.Join(strconv.Itoa(i), rel)
			}
		}
		return ""
	}
	mkdir := func(e zipEntry) error {
		if at := to(e); at != "" {
			return makeDirs(root, at)
		}
		return nil
	}
	return a.unpack(o.ctx, mkdir, func(e zipEntry, r io.Reader) error {
		at := to(e)
		if at == "" {
			return nil
		}
		if err := makeDirs(root, path.Dir(at)); err != nil {
			return err
		}
		err := create(root, at, e.mode, r)
		if errors.Is(err, fs.ErrExist) {
			return refuse("Uploaded archive contains a path twice for this file system: %s", quote(e.name))
		}
		return err
	})
}

// checkNames refuses chosen skills whose name another skill has, and more skills than fit into an
// answer.
func (o *op) checkNames(a *archive, chosen []*candidate) error {
	names := make(map[string]bool)
	room := answerRoom(maxListText)
	for _, c := range chosen {
		if err := o.readText(a, c); err != nil {
			return err
		}
		if err := o.describeCandidate(a, c); err != nil {
			return err
		}
		if !room.take(c.skill) {
			return errAnswer
		}
		c.text, c.skill.Instructions = nil, "" // read again after the installation
		if names[c.skill.Name] {
			return refuse(`Skill with name "%s" already exists`, c.skill.Name)
		}
		if err := o.free(c.skill.Name, c.target); err != nil {
			return err
		}
		names[c.skill.Name] = true
	}
	return nil
}

func (o *op) readText(a *archive, c *candidate) error {
	r, err := a.entries[a.files[path.Join(c.dir, c.entry)]].open(o.ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	return keepText([]*candidate{c}, r.e, r)
}

// moveIn gives the staged skills their names and moves them to their places. If that fails for one,
// it undoes all of it.
func (o *op) moveIn(chosen []*candidate, stage string) (err error) {
	var undo cleanup.Stack
	defer undo.Undo(&err)
	var names []func()
	for i, c := range chosen {
		staged := path.Join(stage, strconv.Itoa(i))
		keep, err := o.tree.give(c.skill.Name, c.target, &undo)
		if err != nil {
			return err
		}
		names = append(names, keep)
		if err := o.tree.root.Rename(staged, c.target); err != nil {
			return err
		}
		undo.Push(func() error { return o.tree.root.Rename(c.target, staged) })
	}
	undo.Release()
	for _, keep := range names {
		keep()
	}
	return nil
}
