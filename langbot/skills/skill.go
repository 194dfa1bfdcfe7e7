package skills

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Bounds of what is read.
const (
	maxText     = 1 << 20  // bytes of a text file
	maxListText = 16 << 20 // bytes of all skills in one answer
)

// Skill is a skill as clients see it.
type Skill struct {
	Name          string  `json:"name"`
	DisplayName   string  `json:"display_name"`
	Description   string  `json:"description"`
	Instructions  string  `json:"instructions"`
	PackageRoot   string  `json:"package_root"`
	EntryFile     string  `json:"entry_file"`
	PythonProject bool    `json:"python_project"`
	CreatedAt     string  `json:"created_at"`
	UpdatedAt     string  `json:"updated_at"`
	SourcePath    *string `json:"source_path,omitempty"` // in previews only

	place   place
	updated time.Time
}

// describe makes a skill from the text of its entry file. Its name is the one in the text, or that of
// the directory if the text has no valid one.
func describe(dir string, text []byte) (Skill, error) {
	if !utf8.Valid(text) {
		return Skill{}, refuse("SKILL.md is not valid UTF-8 text")
	}
	f := parseFront(string(text))
	s := Skill{Name: f.Name, Description: f.Description, Instructions: f.instructions}
	s.DisplayName = cmp.Or(f.DisplayName, f.Name, dir)
	if checkName(s.Name) != nil {
		s.Name = dir
	}
	return s, checkName(s.Name)
}

// load reads the skill at p.
func (t *tree) load(p place) (Skill, error) {
	text, st, err := readFile(t.root, path.Join(p.dir, p.entry), maxText)
	if err != nil {
		return Skill{}, t.explain(err, path.Join(p.dir, p.entry))
	}
	given := t.named[p.dir]
	s, err := describe(cmp.Or(given, path.Base(t.abs(p.dir))), text)
	if err != nil {
		return Skill{}, err
	}
	s.Name = cmp.Or(given, s.Name)
	s.PackageRoot, s.EntryFile, s.place = t.abs(p.dir), p.entry, p
	s.PythonProject = isPython(func(name string) fs.FileMode {
		st, err := t.root.Lstat(path.Join(p.dir, name))
		if err != nil {
			return fs.ModeIrregular
		}
		return st.Mode()
	})
	s.updated = st.ModTime()
	s.UpdatedAt = timestamp(s.updated)
	s.CreatedAt = timestamp(changed(st))
	return s, nil
}

// headSize is how much of an entry file is enough to read the skill's name.
const headSize = maxFront + 1<<10

// name returns the name of the skill at p, and reads no more of it than necessary.
func (t *tree) name(p place) (string, error) {
	if given, ok := t.named[p.dir]; ok {
		return given, nil
	}
	f, _, err := openFile(t.root, path.Join(p.dir, p.entry))
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, headSize)
	n, _ := io.ReadFull(f, head) // a shorter file is normal
	head = bytes.ToValidUTF8(head[:n], []byte("\ufffd"))
	s, err := describe(path.Base(t.abs(p.dir)), head)
	return s.Name, err
}

// explain turns an error about reading the text file name into an answer for the client. It is a
// refusal if the file itself is to blame.
func (t *tree) explain(err error, name string) error {
	switch {
	case errors.Is(err, errTooLong):
		return refuse("%s exceeds %d bytes", quote(t.abs(name)), maxText)
	case errors.Is(err, fs.ErrNotExist):
		return refuse("Skill file not found: %s", quote(t.abs(name)))
	case escapes(err), errors.Is(err, errNotRegular), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOTDIR),
		errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return refuse("%s: %v", quote(t.abs(name)), reason(err))
	}
	return fmt.Errorf("%s: %w", quote(t.abs(name)), reason(err))
}

// isPython reports whether a directory is a Python project, by the modes of names in it; that of a
// missing one is ModeIrregular.
func isPython(mode func(name string) fs.FileMode) bool {
	for _, name := range []string{"requirements.txt", "pyproject.toml", "setup.py", "setup.cfg"} {
		if mode(name).IsRegular() {
			return true
		}
	}
	return mode(".venv").IsDir()
}

// maxName bounds a name in bytes. It is used as a name of a directory, and in the register with a
// spare in front; NAME_MAX is 255.
const maxName = 254

// checkName checks the name of a skill.
func checkName(name string) error {
	if name == "" {
		return refuse("Skill name is required")
	}
	if utf8.RuneCountInString(name) > 64 {
		return refuse("Skill name must not exceed 64 characters")
	}
	if len(name) > maxName {
		return refuse("Skill name must not exceed %d bytes", maxName)
	}
	letters := false
	for _, r := range name {
		alnum := unicode.IsLetter(r) || unicode.IsNumber(r)
		letters = letters || alnum
		if !alnum && r != '-' && r != '_' || r == utf8.RuneError {
			return refuse("Skill name can only have letters, numbers, - and _")
		}
	}
	if !letters {
		return refuse("Skill name needs a letter or number")
	}
	return nil
}

// changed returns the time of the last change of a file's inode, which comes closest to its creation
// among the times that every file system keeps.
func changed(st fs.FileInfo) time.Time {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return time.Unix(sys.Ctim.Sec, sys.Ctim.Nsec)
	}
	return st.ModTime()
}

func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000-07:00") }
