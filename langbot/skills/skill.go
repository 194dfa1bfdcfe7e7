package skills

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Bounds of what is read.
const (
	maxText     = 1 << 20  // bytes of a text file
	maxListText = 16 << 20 // bytes of all entry files that are listed, and of the answer
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

// describe makes a skill of an entry file's text. The directory's name is the skill's
// unless the text has one that can be.
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
	s.PythonProject = isPython(func(name string) (fs.FileMode, bool) {
		st, err := t.root.Lstat(path.Join(p.dir, name))
		if err != nil {
			return 0, false
		}
		return st.Mode(), true
	})
	s.updated = st.ModTime()
	s.UpdatedAt = timestamp(s.updated)
	s.CreatedAt = timestamp(changed(st))
	return s, nil
}

// headSize is enough of an entry file to know the name of the skill.
const headSize = maxFront + 1<<10

// name is that of the skill at p, of which it reads no more than that needs.
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
	n, err := readFull(f, head)
	if err != nil {
		return "", err
	}
	head = bytes.ToValidUTF8(head[:n], []byte("\ufffd"))
	s, err := describe(path.Base(t.abs(p.dir)), head)
	return s.Name, err
}

func readFull(f *os.File, p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m, err := f.Read(p[n:])
		n += m
		if err != nil || m == 0 {
			break
		}
	}
	return n, nil
}

// explain says what is wrong with reading the text file name: a refusal if it is the file.
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

// isPython says whether a directory is a Python project by what is in it.
func isPython(look func(name string) (fs.FileMode, bool)) bool {
	for _, name := range []string{"requirements.txt", "pyproject.toml", "setup.py", "setup.cfg"} {
		if mode, ok := look(name); ok && mode.IsRegular() {
			return true
		}
	}
	mode, ok := look(".venv")
	return ok && mode.IsDir()
}

// maxName is the bytes of a name, which is one of a directory, and with a spare before it
// in the register. NAME_MAX is 255.
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
		alnum := unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsNumber(r)
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

// changed is when a file's inode was changed last: the closest to its creation that every
// file system keeps.
func changed(st fs.FileInfo) time.Time {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return time.Unix(sys.Ctim.Sec, sys.Ctim.Nsec)
	}
	return st.ModTime()
}

func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000-07:00") }

// strip takes white space off both ends, as clients do.
func strip(s string) string { return strings.TrimSpace(s) }
