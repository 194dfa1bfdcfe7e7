package policy

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Language says how source code is run: it is written to a file in a new directory, and a
// command is started with it.
type Language struct {
	// Command is the command line. "{file}" in it stands for the path of the file, and
	// "{dir}" for its directory. Arguments of a request follow it.
	Command []string
	// File is the name of the file, such as "main.py".
	File string
	// Env are variables for the command, as KEY=VALUE; "{file}" and "{dir}" as in Command.
	Env []string
}

// LanguageConfig changes a language of a profile or adds one. Missing fields stay. Without
// any field, it removes the language.
type LanguageConfig struct {
	Command *[]string `yaml:"command"`
	File    *string   `yaml:"file"`
	Env     *[]string `yaml:"env"`
}

// Bounds of languages.
const (
	maxLanguages       = 64 // of a profile
	maxLanguageArgs    = 64
	maxLanguageEnv     = 64
	maxLanguageText    = 4 << 10 // bytes of an argument or a variable
	maxCodeFile        = 255     // bytes of the name of a file: NAME_MAX
	languageNameLen    = 64
	languageNameSet    = "abcdefghijklmnopqrstuvwxyz0123456789+#._-"
	placeFile          = "{file}"
	placeDir           = "{dir}"
	languageNameFormat = `a name must be 1 to 64 of a-z, 0-9, "+", "#", ".", "_" and "-"`
)

// apply changes or adds the language called name in all.
func (c LanguageConfig) apply(all map[string]Language, name string) {
	if c == (LanguageConfig{}) {
		delete(all, name)
		return
	}
	l := all[name]
	spec.CopyFields(&l, c)
	all[name] = l
}

func (p Profile) validateLanguages(field string) error {
	if n := len(p.CodeLanguages); n > maxLanguages {
		return &spec.FieldError{Field: field + ".languages", Value: fmt.Sprintf("(%d languages)", n), Rule: fmt.Sprintf("must be at most %d", maxLanguages)}
	}
	for _, name := range slices.Sorted(maps.Keys(p.CodeLanguages)) {
		if !validName(name, languageNameLen, languageNameSet) {
			return &spec.FieldError{Field: field + ".languages", Value: spec.Quote(name), Rule: languageNameFormat}
		}
		if err := p.CodeLanguages[name].validate(); err != nil {
			return inField(field+".languages."+name, err)
		}
	}
	return nil
}

func (l Language) validate() error {
	if len(l.Command) == 0 || len(l.Command) > maxLanguageArgs || l.Command[0] == "" {
		return &spec.FieldError{Field: "command", Value: fmt.Sprintf("(%d arguments)", len(l.Command)), Rule: fmt.Sprintf("must be a program and its arguments, at most %d in all", maxLanguageArgs)}
	}
	if !slices.ContainsFunc(l.Command, func(arg string) bool { return strings.Contains(arg, placeFile) || strings.Contains(arg, placeDir) }) {
		return &spec.FieldError{Field: "command", Value: fmt.Sprintf("%q", l.Command), Rule: `must contain "{file}" or "{dir}", or the command would not see the code`}
	}
	for _, arg := range l.Command {
		if len(arg) > maxLanguageText || strings.Contains(arg, "\x00") {
			return &spec.FieldError{Field: "command", Value: fmt.Sprintf("(%d bytes)", len(arg)), Rule: fmt.Sprintf("an argument must have at most %d bytes and no NUL", maxLanguageText)}
		}
	}
	if len(l.Env) > maxLanguageEnv {
		return &spec.FieldError{Field: "env", Value: fmt.Sprintf("(%d variables)", len(l.Env)), Rule: fmt.Sprintf("must be at most %d", maxLanguageEnv)}
	}
	for _, kv := range l.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || len(kv) > maxLanguageText || strings.Contains(kv, "\x00") {
			return &spec.FieldError{Field: "env", Value: spec.Quote(kv), Rule: fmt.Sprintf("must be KEY=VALUE, at most %d bytes and no NUL", maxLanguageText)}
		}
	}
	return ValidateCodeFile("file", l.File)
}

// ValidateCodeFile checks the name of a file of source code.
func ValidateCodeFile(field, name string) error {
	if name == "" || name == "." || name == ".." || len(name) > maxCodeFile || strings.ContainsAny(name, "/\x00") {
		return &spec.FieldError{Field: field, Value: spec.Quote(name), Rule: fmt.Sprintf(`must be the name of a file, such as "main.py", without "/" and with at most %d bytes`, maxCodeFile)}
	}
	return nil
}

// In returns the command line and environment that run the code in file, which is in dir.
func (l Language) In(dir, file string) (args, env []string) {
	place := strings.NewReplacer(placeFile, path.Join(dir, file), placeDir, dir)
	for _, arg := range l.Command {
		args = append(args, place.Replace(arg))
	}
	for _, kv := range l.Env {
		env = append(env, place.Replace(kv))
	}
	return args, env
}

// Language returns the language of a profile that a request means, and the name of the file
// for its code. An empty name means the one language whose files end as file does. An empty
// file means the language's.
func (p *Policy) Language(profile, name, file string) (Language, string, error) {
	if file != "" {
		if err := ValidateCodeFile("file", file); err != nil {
			return Language{}, "", err
		}
	}
	of, ok := p.profiles[profile]
	if !ok {
		return Language{}, "", &engine.FieldError{Field: "language", Value: spec.Quote(name),
			Rule: fmt.Sprintf("profile %s of this session is no longer configured: make the session anew with another", spec.Quote(profile))}
	}
	if name == "" {
		var err error
		if name, err = of.languageOf(file); err != nil {
			return Language{}, "", err
		}
	}
	l, ok := of.CodeLanguages[name]
	if !ok {
		return Language{}, "", &engine.FieldError{Field: "language", Value: spec.Quote(name), Rule: of.languageList()}
	}
	return l, cmp.Or(file, l.File), nil
}

// languageOf returns the one language whose files end as file does.
func (p Profile) languageOf(file string) (string, error) {
	ending := path.Ext(file)
	var found []string
	for name, l := range p.CodeLanguages {
		if ending != "" && path.Ext(l.File) == ending {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", &engine.FieldError{Field: "language", Value: `""`, Rule: fmt.Sprintf("must be given, because %s can be %s", spec.Quote(file), strings.Join(found, " or "))}
	case file == "":
		return "", &engine.FieldError{Field: "language", Value: `""`, Rule: p.languageList()}
	}
	return "", &engine.FieldError{Field: "language", Value: `""`, Rule: fmt.Sprintf("%s, because no language has files like %s", p.languageList(), spec.Quote(file))}
}

func (p Profile) languageList() string {
	if len(p.CodeLanguages) == 0 {
		return fmt.Sprintf("profile %s has no languages: add some with profiles.%s.languages", spec.Quote(p.Name), p.Name)
	}
	return fmt.Sprintf("must be one of profile %s: %s", spec.Quote(p.Name), strings.Join(slices.Sorted(maps.Keys(p.CodeLanguages)), ", "))
}
