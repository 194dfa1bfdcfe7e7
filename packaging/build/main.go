// Command build makes the packages of boxd from what "make install" has installed in a directory: a .deb,
// an .rpm and a tarball, all from packaging/nfpm.yaml, and beside them the bill of materials that is also in
// them. It is called by "make packages", in the root of the repository.
//
// It is a module of its own because nfpm brings some thirty modules that nothing else here needs.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const docs = "usr/share/doc/boxd"

func main() {
	stage := flag.String("stage", "", "`DIR` in which \"make install\" has installed boxd; files are added to it")
	out := flag.String("out", "", "`DIR` for the packages")
	version := flag.String("version", "", "`VERSION` of boxd, as \"git describe\" prints it")
	maintainer := flag.String("maintainer", "", "`NAME <ADDRESS>` of who makes the packages")
	flag.Parse()
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	switch {
	case flag.NArg() > 0 || *stage == "" || *out == "" || *version == "" || *maintainer == "":
		err = errors.New("-stage, -out, -version and -maintainer are needed: call it with \"make packages\"")
	case err != nil:
		err = fmt.Errorf("SOURCE_DATE_EPOCH=%q: want the seconds since 1970 that all files get as their time", os.Getenv("SOURCE_DATE_EPOCH"))
	default:
		p := packages{stage: *stage, out: *out, maintainer: *maintainer, date: time.Unix(epoch, 0).UTC()}
		p.version = packageVersion(*version, p.date)
		err = p.build()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}

// packages is one build of all packages.
type packages struct {
	stage, out string
	version    string // as packages have it, without a release
	maintainer string
	date       time.Time // of all files: two builds of one commit have the same bytes
}

var (
	released = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)
	unsafe   = regexp.MustCompile(`[^A-Za-z0-9.]+`)
)

// packageVersion turns what "git describe" prints into a version that dpkg and rpm sort rightly: v0.1.0 is 0.1.0,
// commits after it are 0.1.0+N.gHASH, and a tree without a tag is older than every release: 0~DATE.HASH.
func packageVersion(described string, date time.Time) string {
	m := released.FindStringSubmatch(described)
	if m == nil {
		return "0~" + date.Format("20060102") + "." + unsafe.ReplaceAllString(described, ".")
	}
	version := m[1]
	if m[2] != "" {
		version += "+" + m[2] + ".g" + m[3]
	}
	switch {
	case m[4] == "":
		return version
	case m[2] == "":
		return version + "+dirty"
	default:
		return version + ".dirty"
	}
}

func (p packages) build() error {
	programs, err := readPrograms(p.stage)
	if err != nil {
		return err
	}
	parts, err := programs.parts()
	if err != nil {
		return err
	}
	bom, err := p.billOfMaterials(programs, parts)
	if err != nil {
		return err
	}
	if err := p.documents(licences(parts), bom); err != nil {
		return err
	}
	// Older packages would be taken for those of this build.
	if err := errors.Join(os.RemoveAll(p.out), os.MkdirAll(p.out, 0o755)); err != nil {
		return err
	}
	arch := programs.arch()
	config, err := nfpm.ParseFileWithEnvMapping("packaging/nfpm.yaml", func(name string) string {
		return map[string]string{"ARCH": arch, "VERSION": p.version, "MAINTAINER": p.maintainer, "STAGE": p.stage}[name]
	})
	if err != nil {
		return err
	}
	if err := p.write("boxd-"+p.version+".cdx.json", func(f *os.File) error { _, err := f.Write(bom); return err }); err != nil {
		return err
	}
	for _, format := range []string{"deb", "rpm"} {
		info, err := p.info(config, format)
		if err != nil {
			return err
		}
		packager, err := nfpm.Get(format)
		if err != nil {
			return err
		}
		if err := p.write(packager.ConventionalFileName(info), func(f *os.File) error { return packager.Package(info, f) }); err != nil {
			return err
		}
	}
	info, err := p.info(config, "tar")
	if err != nil {
		return err
	}
	name := "boxd-" + p.version + "-linux-" + arch
	return p.write(name+".tar.gz", func(f *os.File) error { return tarball(f, info, name) })
}

func (p packages) info(config nfpm.Config, format string) (*nfpm.Info, error) {
	info, err := config.Get(format)
	if err != nil {
		return nil, err
	}
	info.MTime = p.date
	if format == "deb" {
		info.License = "" // Debian has a file for it, and no such field
	}
	return nfpm.WithDefaults(info), nil
}

func (p packages) write(name string, content func(*os.File) error) error {
	f, err := os.Create(filepath.Join(p.out, name))
	if err == nil {
		err = errors.Join(content(f), f.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Println(filepath.Join(p.out, name))
	return nil
}

// documents adds to the stage what packages have beside the files of "make install", compresses manual
// pages, and gives every file the time of the build.
func (p packages) documents(licences string, bom []byte) error {
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	debian := fmt.Sprintf("boxd (%s-1) unstable; urgency=medium\n\n  * changelog.gz has the changes of each release.\n\n -- %s  %s\n", p.version, p.maintainer, p.date.Format(time.RFC1123Z))
	for name, text := range map[string][]byte{
		"copyright":           []byte(copyright),
		"licenses.txt":        []byte(licences),
		"sbom.cdx.json":       bom,
		"changelog.gz":        zipped(changelog),
		"changelog.Debian.gz": zipped([]byte(debian)),
	} {
		if err := os.WriteFile(filepath.Join(p.stage, docs, name), text, 0o644); err != nil {
			return err
		}
	}
	// licenses.txt begins with it. Debian wants no second file of this kind.
	if err := os.Remove(filepath.Join(p.stage, docs, "LICENSE")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(p.stage, "usr/share/man/man*/*.[1-9]"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		if err := errors.Join(os.WriteFile(page+".gz", zipped(text), 0o644), os.Remove(page)); err != nil {
			return err
		}
	}
	return filepath.WalkDir(p.stage, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, p.date, p.date)
	})
}

// zipped compresses as "gzip -9n" does: without name and time.
func zipped(text []byte) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
	z.Write(text)                                         // to memory
	z.Close()
	return b.Bytes()
}

// copyright is what Debian wants to read at this place; the texts are in licenses.txt.
var copyright = strings.TrimLeft(`
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: boxd
Source: https://github.com/boxd/boxd
Comment:
 The programs are linked statically with software of others. NOTICE lists the
 modules of each program, and licenses.txt has their copyright notices and
 licences in full, as their authors published them.

Files: *
Copyright: 2026 the boxd authors
License: Apache-2.0
 On Debian systems, the full text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
`, "\n")
