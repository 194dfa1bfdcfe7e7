package skills

import (
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
)

// candidate is a skill in an archive, with the directory that it gets when it is installed.
type candidate struct {
	place  // in the archive
	source string
	target string // in the tree
	text   []byte
	skill  Skill
}

// upload takes the archive that the request names, and finds the skills in it. The caller closes the
// archive's file.
func (o *op) upload() (*archive, []*candidate, error) {
	key, err := protocol.String(o.data, "file_key")
	if err != nil {
		return nil, nil, err
	}
	f, size, err := o.files.Take(key)
	if err != nil {
		return nil, nil, err
	}
	a, err := openArchive(f, size)
	var found []*candidate
	if err == nil {
		a.strip()
		found, err = o.candidates(a)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return a, found, nil
}

func (o *op) candidates(a *archive) ([]*candidate, error) {
	subdir, err := protocol.StringOr(o.data, "source_subdir", "")
	if err != nil {
		return nil, err
	}
	if subdir = sourcePath(subdir); subdir != "" {
		if err := a.enter(subdir); err != nil {
			return nil, err
		}
	}
	var found []*candidate
	for _, p := range a.discover() {
		source, _ := pathin.Rel(p.dir, a.base)
		if source == "." {
			source = ""
		}
		c := &candidate{place: p, source: source}
		if c.target, err = o.target(source); err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	if len(found) == 0 {
		return nil, refuse("No SKILL.md found in the uploaded archive or up to %d directories below its top", scanDepth)
	}
	slices.SortFunc(found, func(x, y *candidate) int { return strings.Compare(x.source, y.source) })
	return found, nil
}

// sourcePath cleans a path in an archive that a client wrote; "" is the top.
func sourcePath(p string) string {
	p = strings.Trim(strings.ReplaceAll(strings.TrimSpace(p), `\`, "/"), "/")
	if p == "." {
		return ""
	}
	return p
}

// target names the directory for a skill of the request's archive.
func (o *op) target(source string) (string, error) {
	filename, err := protocol.StringOr(o.data, "filename", "skill.zip")
	if err != nil {
		return "", err
	}
	suffix, err := protocol.StringOr(o.data, "target_suffix", "upload")
	if err != nil {
		return "", err
	}
	name := stem(filename)
	if leaf := path.Base(source); source != "" && leaf != name {
		name += "-" + leaf
	}
	if suffix != "" {
		if strings.ContainsFunc(suffix, isOdd) {
			return "", refuse("target_suffix can only have letters, digits, - and _")
		}
		name += "-" + suffix
	}
	if len(name) > maxZipComponent {
		return "", refuse("filename exceeds the length of a directory name: %d bytes with the source path and the suffix", maxZipComponent)
	}
	return name, nil
}

// stem turns the name of a file, without its extension, into a name for a directory.
func stem(filename string) string {
	name := path.Base(strings.TrimSpace(filename))
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		name = name[:i]
	}
	name = strings.Map(func(r rune) rune {
		if isOdd(r) {
			return '-'
		}
		return r
	}, name)
	if name = strings.Trim(name, "-_"); name == "" {
		return "uploaded-skill"
	}
	return name
}

// isOdd reports whether r is replaced in the names of new directories.
func isOdd(r rune) bool {
	return r == unicode.ReplacementChar || r != '-' && r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r)
}

var errAnswer = refuse("The skills of the uploaded archive together exceed %d bytes", maxListText)

// previewZip returns the skills of an archive. It unpacks all of the archive and discards the result.
func (o *op) previewZip() (any, error) {
	a, found, err := o.upload()
	if err != nil {
		return nil, err
	}
	defer a.file.Close()
	err = a.unpack(o.ctx, func(zipEntry) error { return nil }, func(e zipEntry, r io.Reader) error {
		return keepText(found, e, r)
	})
	if err != nil {
		return nil, err
	}
	skills := []Skill{}
	room := answerRoom(maxListText)
	for _, c := range found {
		if err := o.describeCandidate(a, c); err != nil {
			return nil, err
		}
		if !room.take(c.skill) {
			return nil, errAnswer
		}
		skills = append(skills, c.skill)
	}
	return map[string]any{"skills": skills}, nil
}

// keepText stores the text of an archive entry that is the entry file of a candidate.
func keepText(found []*candidate, e zipEntry, r io.Reader) error {
	for _, c := range found {
		if e.name != path.Join(c.dir, c.entry) {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(r, maxText+1))
		if err != nil {
			return err
		}
		if len(text) > maxText {
			return refuse("%s exceeds %d bytes", quote(e.name), maxText)
		}
		c.text = text
	}
	return nil
}

func (o *op) describeCandidate(a *archive, c *candidate) error {
	s, err := describe(c.target, c.text)
	if err != nil {
		return refuse("%s: %v", quote(path.Join(c.dir, c.entry)), err)
	}
	s.PackageRoot, s.EntryFile, s.SourcePath = o.tree.abs(c.target), c.entry, &c.source
	s.PythonProject = isPython(func(name string) fs.FileMode {
		at := path.Join(c.dir, name)
		if _, ok := a.files[at]; ok {
			return 0
		}
		if a.dirs[at] {
			return fs.ModeDir
		}
		return fs.ModeIrregular
	})
	now := timestamp(time.Now())
	s.CreatedAt, s.UpdatedAt = now, now
	c.skill = s
	return nil
}
