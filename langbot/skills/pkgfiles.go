package skills

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/langbot/protocol"
)

// Bounds of a listing.
const (
	defaultListed = 200
	maxListed     = 1000
)

// entry is a name in a listing.
type entry struct {
	Path  string `json:"path"`
	Name  string `json:"name"`
	IsDir bool   `json:"is_dir"`
	Size  *int64 `json:"size"` // nil for what is no file
}

// inPackage is a request about a name in a skill's package.
type inPackage struct {
	skill Skill
	pkg   *os.Root
	name  string // cleaned, relative
}

// open finds the skill and the name in it that the request is about.
func (o *op) open(fallback string) (*inPackage, error) {
	name, err := o.pathInPackage(fallback)
	if err != nil {
		return nil, err
	}
	s, err := o.need()
	if err != nil {
		return nil, err
	}
	pkg, err := subtree(o.tree.root, s.place.dir)
	if err != nil {
		return nil, err
	}
	return &inPackage{s, pkg, name}, nil
}

func (o *op) pathInPackage(fallback string) (string, error) {
	var p string
	var err error
	if fallback == "" {
		p, err = protocol.String(o.data, "path")
	} else {
		p, err = protocol.StringOr(o.data, "path", fallback)
	}
	if err != nil {
		return "", err
	}
	switch p = strip(p); {
	case p == "":
		p = "."
	case path.IsAbs(p):
		return "", refuse("path must be relative to the skill package root")
	case strings.ContainsRune(p, 0):
		return "", refuse("path must not have NUL characters")
	}
	clean := path.Clean(p)
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", errOutside
	}
	return clean, nil
}

const errOutside = refusal("path must stay within the skill package root")

// explain says what is wrong with a name in a package.
func (in *inPackage) explain(err error, what string) error {
	switch {
	case escapes(err):
		return errOutside
	case errors.Is(err, errTooLong):
		return refuse("%s exceeds %d bytes", quote(in.name), maxText)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotRegular), errors.Is(err, unix.ENOTDIR),
		errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return refuse("Skill %s not found: %s", what, quote(in.name))
	}
	return refuse("Skill %s %s: %v", what, quote(in.name), reason(err))
}

// subject is how answers name the skill.
func (in *inPackage) subject() any { return map[string]string{"name": in.skill.Name} }

func (o *op) listFiles() (any, error) {
	hidden, err := boolOr(o.data, "include_hidden", false)
	if err != nil {
		return nil, err
	}
	limit, err := intOr(o.data, "max_entries", defaultListed)
	if err != nil {
		return nil, err
	}
	if limit < 1 {
		return nil, refuse("max_entries must be a positive integer")
	}
	in, err := o.open(".")
	if err != nil {
		return nil, err
	}
	defer in.pkg.Close()
	names, err := readNames(in.pkg, in.name, maxEntries)
	if errors.Is(err, errTooLong) {
		return nil, refuse("Skill directory %s exceeds %d entries", quote(in.name), maxEntries)
	}
	if err != nil {
		return nil, in.explain(err, "directory")
	}
	entries, truncated := in.entries(names, hidden, int(min(limit, maxListed)))
	return map[string]any{"skill": in.subject(), "base_path": in.name, "entries": entries, "truncated": truncated}, nil
}

// entries describes at most limit of names, and says whether there are more.
func (in *inPackage) entries(names []string, hidden bool, limit int) ([]entry, bool) {
	list := []entry{}
	for _, name := range names {
		if !hidden && strings.HasPrefix(name, ".") {
			continue
		}
		e := entry{Path: path.Join(in.name, name), Name: name}
		st, err := in.pkg.Stat(e.Path) // of a symlink that leads out: neither
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := in.pkg.Lstat(e.Path); err != nil {
				continue // deleted meanwhile
			}
		}
		if len(list) == limit {
			return list, true
		}
		if err == nil && st.IsDir() {
			e.IsDir = true
		} else if err == nil {
			size := st.Size()
			e.Size = &size
		}
		list = append(list, e)
	}
	return list, false
}

func (o *op) readFile() (any, error) {
	in, err := o.open("")
	if err != nil {
		return nil, err
	}
	defer in.pkg.Close()
	p, _, err := readFile(in.pkg, in.name, maxText)
	if err != nil {
		return nil, in.explain(err, "file")
	}
	if !utf8.Valid(p) {
		return nil, refuse("Skill file is not valid UTF-8 text: %s", quote(in.name))
	}
	return map[string]any{"skill": in.subject(), "path": in.name, "content": string(p)}, nil
}

func (o *op) writeFile() (any, error) {
	content, err := protocol.StringOr(o.data, "content", "")
	if err != nil {
		return nil, err
	}
	if len(content) > maxText {
		return nil, refuse("content exceeds %d bytes", maxText)
	}
	in, err := o.open("")
	if err != nil {
		return nil, err
	}
	defer in.pkg.Close()
	name, err := o.nameAfter(in, content)
	if err != nil {
		return nil, err
	}
	if err := o.tree.naming(name, in.skill.place.dir, func() error { return in.write(content) }); err != nil {
		return nil, err
	}
	return map[string]any{"skill": in.subject(), "path": in.name, "bytes_written": len(content)}, nil
}

// nameAfter is the name of the skill once the file has that content: another one if that is
// its entry file, and says so. What is another's is refused before anything is written.
func (o *op) nameAfter(in *inPackage, content string) (string, error) {
	s := in.skill
	if in.name != entryFiles[0] && in.name != s.place.entry {
		return s.Name, nil
	}
	after, err := describe(s.Name, []byte(content))
	if err != nil {
		return "", err
	}
	return after.Name, o.free(after.Name, s.place.dir)
}

// write writes the file with the directories above it, or nothing.
func (in *inPackage) write(content string) error {
	if in.name == "." || in.name == staged {
		return refuse("path must name a file")
	}
	made, err := makeMissing(in.pkg, path.Dir(in.name))
	if err == nil {
		err = replace(in.pkg, in.name, content)
	}
	if err == nil {
		return nil
	}
	for _, dir := range slices.Backward(made) {
		_ = in.pkg.Remove(dir)
	}
	switch {
	case escapes(err):
		return errOutside
	case diskroom.IsFull(err):
		return err
	}
	return refuse("Skill file %s cannot be written: %v", quote(in.name), reason(err))
}

// boolOr and intOr read values that can be missing, or null.

func boolOr(data json.RawMessage, key string, other bool) (bool, error) {
	if raw := protocol.Value(data, key); raw != nil && string(raw) != "null" {
		if err := json.Unmarshal(raw, &other); err != nil {
			return false, refuse("%s must be true or false", key)
		}
	}
	return other, nil
}

func intOr(data json.RawMessage, key string, other int64) (int64, error) {
	if raw := protocol.Value(data, key); raw != nil && string(raw) != "null" {
		if err := json.Unmarshal(raw, &other); err != nil {
			return 0, refuse("%s must be a positive integer", key)
		}
	}
	return other, nil
}
