package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"
)

const module = "github.com/boxd/boxd"

// program is one program of boxd. Go writes into it which modules it was linked with.
type program struct {
	path string // below the stage
	info *buildinfo.BuildInfo
}

type programs []program

// readPrograms returns the Go programs in stage, which are all programs in it.
func readPrograms(stage string) (programs, error) {
	var all programs
	err := filepath.WalkDir(stage, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		stat, err := d.Info()
		if err != nil || stat.Mode().Perm()&0o111 == 0 {
			return err
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return fmt.Errorf("executable file %q is no Go program, so what it contains is unknown: %w", path, err)
		}
		name, err := filepath.Rel(stage, path)
		all = append(all, program{name, info})
		return err
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("directory %q: no programs: run \"make packages\"", stage)
	}
	for _, p := range all {
		if err == nil && p.setting("GOARCH") != all.arch() {
			err = fmt.Errorf("%s is built for %s, another program for %s: run \"make packages\" again", p.path, p.setting("GOARCH"), all.arch())
		}
	}
	return all, err
}

// arch returns the architecture of the programs, as Go calls it.
func (ps programs) arch() string { return ps[0].setting("GOARCH") }

// setting returns a setting of the build that made the program.
func (p program) setting(key string) string {
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// cgo reports whether the program contains C, and so the C library.
func (p program) cgo() bool { return p.setting("CGO_ENABLED") == "1" }

// part is software of others in programs of boxd.
type part struct {
	name, version string
	purl          string // https://github.com/package-url/purl-spec
	sum           string // the h1: hash of a module in go.sum; else empty
	licence       string // an SPDX expression
	programs      []string
	texts         []text // licences and notices, as published
}

type text struct{ file, content string }

// parts returns all parts of the programs, sorted by name. It fails if the licence of one is unknown.
func (ps programs) parts() ([]part, error) {
	spdx, err := statedLicences()
	if err != nil {
		return nil, err
	}
	found := map[string]*part{}
	var cgo []string
	var goVersion string
	for _, p := range ps {
		goVersion = cmp.Or(goVersion, p.info.GoVersion)
		if p.info.GoVersion != goVersion {
			return nil, fmt.Errorf("%s is built with %s, another program with %s: run \"make packages\" again", p.path, p.info.GoVersion, goVersion)
		}
		if p.cgo() {
			cgo = append(cgo, p.path)
		}
		for _, m := range p.info.Deps {
			if m.Path == module {
				continue // boxd-containerd is a module of its own
			}
			if m.Replace != nil {
				return nil, fmt.Errorf("module %s is replaced by %s: packages have published modules only", m.Path, m.Replace.Path)
			}
			id := m.Path + "@" + m.Version
			if found[id] == nil {
				found[id] = &part{name: m.Path, version: m.Version, purl: "pkg:golang/" + id, sum: m.Sum, licence: spdx[m.Path]}
			}
			found[id].programs = append(found[id].programs, p.path)
		}
	}
	if err := readModules(found); err != nil {
		return nil, err
	}
	golang, err := goPart(ps, goVersion)
	if err != nil {
		return nil, err
	}
	all := append(slices.Collect(maps.Values(found)), golang)
	if len(cgo) > 0 {
		libraries, err := libraryParts(cgo, ps.arch())
		if err != nil {
			return nil, err
		}
		all = append(all, libraries...)
	}
	page, err := pageParts(ps)
	if err != nil {
		return nil, err
	}
	all = append(all, page...)
	return complete(all)
}

// complete sorts parts by name, and fails if one has no licence.
func complete(parts []*part) ([]part, error) {
	var missing []error
	sorted := make([]part, 0, len(parts))
	for _, p := range parts {
		if p.licence == "" || !slices.ContainsFunc(p.texts, func(t text) bool { return licenceFile.MatchString(filepath.Base(t.file)) }) {
			missing = append(missing, fmt.Errorf("%s %s: NOTICE says %q, and the source has %d licences and notices: want an entry and a licence", p.name, p.version, p.licence, len(p.texts)))
		}
		slices.Sort(p.programs)
		sorted = append(sorted, *p)
	}
	slices.SortFunc(sorted, func(a, b part) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.version, b.version))
	})
	return sorted, errors.Join(missing...)
}

// statedLicences returns the SPDX expressions of the modules in NOTICE, which a test of boxd compares with
// the licence files of the modules.
func statedLicences() (map[string]string, error) {
	notice, err := os.ReadFile("NOTICE")
	if err != nil {
		return nil, err
	}
	stated := map[string]string{}
	for line := range strings.Lines(string(notice)) {
		if path, licence, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(line, "    ") {
			stated[path] = strings.ReplaceAll(strings.TrimSpace(licence), " and ", " AND ")
		}
	}
	return stated, nil
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright)s?([.-].*)?$`)
	licenceDir  = regexp.MustCompile(`(?i)^licen[cs]es$`) // such as that of freetype
	noticeFile  = regexp.MustCompile(`(?i)^(notice|patents)s?([.-].*)?$`)
)

// readModules reads the licences and notices in the sources of modules.
func readModules(modules map[string]*part) error {
	cmd := exec.Command("go", append([]string{"mod", "download", "-json"}, slices.Sorted(maps.Keys(modules))...)...)
	cmd.Dir = "packaging/build"
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go mod download: %w\n%s", err, out)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var m struct{ Path, Version, Dir, Sum string }
		if err := d.Decode(&m); err != nil {
			return fmt.Errorf("go mod download: %w", err)
		}
		p := modules[m.Path+"@"+m.Version]
		if p == nil || m.Sum != p.sum {
			return fmt.Errorf("module %s@%s: its source is not what the program was built of", m.Path, m.Version)
		}
		if p.texts, err = readTexts(m.Dir); err != nil {
			return err
		}
	}
	return nil
}

// readTexts returns the licences and notices below dir: some modules have packages with other authors.
func readTexts(dir string) ([]text, error) {
	var texts []text
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"testdata", "vendor", "node_modules"}, d.Name()):
			return filepath.SkipDir // not linked
		case !d.Type().IsRegular() || filepath.Ext(d.Name()) == ".go":
			return nil
		case !licenceFile.MatchString(d.Name()) && !noticeFile.MatchString(d.Name()) && !licenceDir.MatchString(filepath.Base(filepath.Dir(path))):
			return nil
		}
		content, err := os.ReadFile(path)
		name, rerr := filepath.Rel(dir, path)
		texts = append(texts, text{name, inUTF8(content)})
		return errors.Join(err, rerr)
	})
	return texts, err
}

// inUTF8 returns content, which is in UTF-8 or, as the licence of FreeType, in Latin-1.
func inUTF8(content []byte) string {
	if utf8.Valid(content) {
		return string(content)
	}
	var b strings.Builder
	for _, c := range content {
		b.WriteRune(rune(c))
	}
	return b.String()
}

func goPart(ps programs, version string) (*part, error) {
	out, err := exec.Command("go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	root, now, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if now != version {
		return nil, fmt.Errorf("the programs are built with %s, this is %s: run \"make packages\" again", version, now)
	}
	number := strings.TrimPrefix(version, "go")
	p := &part{name: "Go runtime and standard library", version: number, purl: "pkg:golang/std@" + number, licence: "BSD-3-Clause"}
	for _, program := range ps {
		p.programs = append(p.programs, program.path)
	}
	p.texts, err = readFiles(filepath.Join(root, "LICENSE"), filepath.Join(root, "PATENTS"))
	return p, err
}

// libraryParts describes what programs with C contain of the distribution that builds them, which has packages
// of their own for other architectures.
func libraryParts(programs []string, arch string) ([]*part, error) {
	gcc, err := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), "-dumpversion").Output()
	if err != nil {
		return nil, fmt.Errorf("version of the C compiler: %w", err)
	}
	cross := ""
	if arch != runtime.GOARCH {
		cross = "-" + arch + "-cross"
	}
	var parts []*part
	for _, l := range []struct{ name, debian, licence, full string }{
		{"glibc", "libc6-dev" + cross, "LGPL-2.1-or-later", "LGPL-2.1"},
		{"libgcc", "libgcc-" + strings.TrimSpace(string(gcc)) + "-dev" + cross, "GPL-3.0-or-later WITH GCC-exception-3.1", "GPL-3"},
	} {
		version, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", l.debian).Output()
		if err != nil {
			return nil, fmt.Errorf("version of package %s, which is in %q: build packages on Debian or Ubuntu: %w", l.debian, programs, err)
		}
		p := &part{name: l.name, version: string(version), purl: "pkg:deb/debian/" + l.debian + "@" + string(version), licence: l.licence, programs: slices.Clone(programs)}
		if p.texts, err = readFiles("/usr/share/doc/"+l.debian+"/copyright", "/usr/share/common-licenses/"+l.full); err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

func readFiles(paths ...string) ([]text, error) {
	var texts []text
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text{filepath.Base(path), string(content)})
	}
	return texts, nil
}

// pageParts returns the npm packages in the operator's page. The build of the page writes them to
// ui/dist/licenses.txt, separated by lines "----", each with name and version in the first line.
func pageParts(ps programs) ([]*part, error) {
	const file = "ui/dist/licenses.txt"
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(ps, func(p program) bool { return filepath.Base(p.path) == "boxd" })
	if i < 0 {
		return nil, errors.New("no program boxd, which contains the operator's page")
	}
	_, list, _ := strings.Cut(string(content), "\n\n") // a sentence
	var parts []*part
	for section := range strings.SplitSeq(list, "\n----\n") {
		title, licence, ok := strings.Cut(strings.TrimSpace(section), "\n")
		name, version, versioned := strings.Cut(title, " ")
		if !ok || !versioned || !strings.Contains(licence, "Permission is hereby granted, free of charge") {
			return nil, fmt.Errorf("%s: %q: want the name, the version and the MIT licence of a package", file, title)
		}
		parts = append(parts, &part{name: name, version: version, purl: "pkg:npm/" + strings.Replace(name, "@", "%40", 1) + "@" + version, licence: "MIT",
			programs: []string{ps[i].path}, texts: []text{{"licenses.txt", licence + "\n"}}})
	}
	return parts, nil
}

// licences is the file with the licences of all parts. A text that several parts have is in it once.
func licences(parts []part) string {
	var b strings.Builder
	b.WriteString("boxd is licensed under the Apache License, version 2.0. Its programs contain the software\nof others in this list; the texts below it are their licences and notices.\n\n")
	owners := map[string][]string{}
	var texts []string
	for _, p := range parts {
		fmt.Fprintf(&b, "%s %s\n    %s\n    in %s\n", p.name, p.version, p.licence, strings.Join(p.programs, ", "))
		for _, t := range p.texts {
			if owners[t.content] == nil {
				texts = append(texts, t.content)
			}
			owners[t.content] = append(owners[t.content], fmt.Sprintf("%s %s: %s", p.name, p.version, t.file))
		}
	}
	for _, t := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 78), strings.Join(owners[t], "\n"), strings.TrimSpace(t))
	}
	return b.String()
}
