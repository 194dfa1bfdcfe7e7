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
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
)

// Bounds of a listing.
const (
	defaultListed = 200
	maxListed     = 1000
)

// entry is one line of a listing.
type entry struct {
	Path  string `json:"path"`
	Name  string `json:"name"`
	IsDir bool   `json:"is_dir"`
	Size  *int64 `json:"size"` // nil unless it is a file
}

// inPackage is a request about a name in a skill's package.
type inPackage struct {
	skill Skill
	pkg   *os.Root
	name  string // cleaned, relative
}

// open opens the package of the skill that the request names, for the path p in it; err is that of
// reading p.
func (o *op) open(p string, err error) (*inPackage, error) {
	if err != nil {
		return nil, err
	}
	p = strings.TrimSpace(p)
	clean := path.Clean(p)
	switch {
	case path.IsAbs(p):
		return nil, refuse("path must be relative to the skill package root")
	case strings.ContainsRune(p, 0):
		return nil, refuse("path must not have NUL characters")
	case !pathin.In(clean, "."):
		return nil, errOutside
	}
	s, err := o.need()
	if err != nil {
		return nil, err
	}
	pkg, err := subtree(o.tree.root, s.place.dir)
	if err != nil {
		return nil, err
	}
	return &inPackage{s, pkg, clean}, nil
}

const errOutside = refusal("path must stay within the skill package root")

// explain turns an error about the name into an answer for the client.
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
	hidden, err := optional(o.data, "include_hidden", false, "true or false")
	if err != nil {
		return nil, err
	}
	limit, err := optional[int64](o.data, "max_entries", defaultListed, "a positive integer")
	if err != nil {
		return nil, err
	}
	if limit < 1 {
		return nil, refuse("max_entries must be a positive integer")
	}
	in, err := o.open(protocol.StringOr(o.data, "path", "."))
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

// entries describes at most limit of names, and reports whether there are more.
func (in *inPackage) entries(names []string, hidden bool, limit int) ([]entry, bool) {
	list := []entry{}
	for _, name := range names {
		if !hidden && strings.HasPrefix(name, ".") {
			continue
		}
		e := entry{Path: path.Join(in.name, name), Name: name}
		st, err := in.pkg.Stat(e.Path) // fails for a symlink that leads out, which is neither
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
	in, err := o.open(protocol.String(o.data, "path"))
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
	in, err := o.open(protocol.String(o.data, "path"))
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

// nameAfter returns the name that the skill has once the file has that content, which may be a new
// one if this is its entry file. It refuses the name of another skill, before anything is written.
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

// write writes the file and creates missing directories above it. If it fails, it leaves nothing
// behind.
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

// optional reads a value that may be missing or null.
func optional[T any](data json.RawMessage, key string, missing T, rule string) (T, error) {
	value := missing
	if raw := protocol.Value(data, key); raw != nil && string(raw) != "null" && json.Unmarshal(raw, &value) != nil {
		return missing, refuse("%s must be %s", key, rule)
	}
	return value, nil
}
