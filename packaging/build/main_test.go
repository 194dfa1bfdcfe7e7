package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil { // where the command works
		panic(err)
	}
	os.Exit(m.Run())
}

// run runs a command in the root of the repository and returns its standard output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, out, stderr.Bytes())
	}
	return string(out)
}

// makePackages returns the packages by their suffixes. settings are further ones of make.
func makePackages(t *testing.T, umask string, settings ...string) map[string]string {
	t.Helper()
	bin := t.TempDir()
	run(t, "sh", "-c", "umask "+umask+" && SOURCE_DATE_EPOCH=1795508302 exec make packages VERSION=v0.1.0 BIN="+bin+" "+strings.Join(settings, " "))
	found := map[string]string{}
	files, err := os.ReadDir(filepath.Join(bin, "packages"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		path := filepath.Join(bin, "packages", f.Name())
		found[filepath.Ext(path)] = path
	}
	if names := slices.Sorted(maps.Keys(found)); !slices.Equal(names, []string{".deb", ".gz", ".json", ".rpm"}) || len(files) != 4 {
		t.Fatalf("packages %q of %d files", names, len(files))
	}
	return found
}

// file is an entry of an archive.
type file struct {
	mode    int64
	content []byte
}

// untar returns the files of a tarball, without directories, by name without prefix. All entries must belong
// to root and have one time.
func untar(t *testing.T, r io.Reader, prefix string) map[string]file {
	t.Helper()
	files := map[string]file{}
	var date time.Time
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if date.IsZero() {
			date = h.ModTime
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(date) || h.Mode&0o6022 != 0 {
			t.Errorf("%s: user %d, group %d, mode %o, time %v, want root's, and %v", h.Name, h.Uid, h.Gid, h.Mode, h.ModTime, date)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			if h.Mode != 0o755 {
				t.Errorf("%s: mode %o, want 0755", h.Name, h.Mode)
			}
		case tar.TypeReg:
			content, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			files[strings.TrimPrefix(h.Name, prefix)] = file{h.Mode, content}
		default:
			t.Errorf("%s: type %q", h.Name, h.Typeflag)
		}
	}
}

func TestPackages(t *testing.T) {
	packages := makePackages(t, "022")
	deb := untar(t, strings.NewReader(run(t, "dpkg-deb", "--fsys-tarfile", packages[".deb"])), "./")

	t.Run("everything that make install installs", func(t *testing.T) {
		dir := t.TempDir()
		run(t, "make", "install", "BIN="+filepath.Join(t.TempDir(), "bin"), "DESTDIR="+dir)
		// Where the files of packages have other names.
		renamed := map[string]string{docs + "/LICENSE": docs + "/licenses.txt"}
		want := map[string]bool{}
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(dir, path)
			if page := regexp.MustCompile(`/man\d/.*\.\d$`); page.MatchString(name) {
				renamed[name] = name + ".gz"
			}
			if to := renamed[name]; to != "" {
				name = to
			}
			want[name] = true
			return err
		})
		if err != nil || len(want) < 50 {
			t.Fatalf("%d files, %v", len(want), err)
		}
		for _, name := range []string{"changelog.gz", "changelog.Debian.gz", "copyright", "sbom.cdx.json", "licenses.txt"} {
			want[docs+"/"+name] = true
		}
		for _, name := range []string{"etc/boxd/config.yaml", "etc/boxd/launcher.yaml", "usr/lib/systemd/system/boxd.service.d/config.conf", "usr/share/lintian/overrides/boxd"} {
			want[name] = true
		}
		if got, want := slices.Sorted(maps.Keys(deb)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
			t.Errorf("the .deb has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})

	t.Run("the same files in every format", func(t *testing.T) {
		want := slices.DeleteFunc(slices.Sorted(maps.Keys(deb)), func(name string) bool { return name == "usr/share/lintian/overrides/boxd" })
		f, err := os.Open(packages[".gz"])
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		tarball := untar(t, z, strings.TrimSuffix(filepath.Base(packages[".gz"]), ".tar.gz")+"/")
		if got := slices.Sorted(maps.Keys(tarball)); !slices.Equal(got, want) {
			t.Errorf("the tarball has %q, want %q", got, want)
		}
		for name, f := range tarball {
			if d := deb[name]; d.mode != f.mode || !bytes.Equal(d.content, f.content) {
				t.Errorf("%s: %d bytes, mode %o; in the .deb %d bytes, mode %o", name, len(f.content), f.mode, len(d.content), d.mode)
			}
		}
		var rpm []string
		for line := range strings.Lines(run(t, "rpm", "-qp", "--qf", `[%{FILEMODES:perms} %{FILEUSERNAME} %{FILENAMES}\n]`, packages[".rpm"])) {
			fields := strings.Fields(line)
			if fields[1] != "root" {
				t.Errorf("rpm: %s", line)
			}
			if !strings.HasPrefix(line, "d") {
				rpm = append(rpm, strings.TrimPrefix(fields[2], "/"))
			}
		}
		slices.Sort(rpm)
		if !slices.Equal(rpm, want) {
			t.Errorf("the .rpm has %q, want %q", rpm, want)
		}
	})

	t.Run("licences and bill of materials", func(t *testing.T) {
		licences := string(deb[docs+"/licenses.txt"].content)
		var bom cdx.BOM
		if err := cdx.NewBOMDecoder(bytes.NewReader(deb[docs+"/sbom.cdx.json"].content), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatal(err)
		}
		if beside, err := os.ReadFile(packages[".json"]); err != nil || !bytes.Equal(beside, deb[docs+"/sbom.cdx.json"].content) {
			t.Errorf("the bill of materials beside the packages differs from the one in them: %v", err)
		}
		listed := map[string]cdx.Component{}
		for _, c := range *bom.Components {
			listed[c.BOMRef] = c
			if c.Licenses == nil || (*c.Licenses)[0].Expression == "" {
				t.Errorf("bill of materials: %s has no licence", c.BOMRef)
			}
		}
		needs := map[string][]string{}
		for _, d := range *bom.Dependencies {
			needs[d.Ref] = *d.Dependencies
		}
		check := func(program, name, version, purl string) {
			t.Helper()
			if !strings.Contains(licences, "\n"+name+" "+version+"\n") || !strings.Contains(licences, "\n"+name+" "+version+": ") {
				t.Errorf("licenses.txt does not list %s %s with a text", name, version)
			}
			if _, ok := listed[purl]; !ok || !slices.Contains(needs[program], purl) {
				t.Errorf("bill of materials: %s of %s is missing", purl, program)
			}
		}
		count := 0
		for path, f := range deb {
			if f.mode&0o111 == 0 {
				continue
			}
			count++
			if _, ok := listed[path]; !ok || !slices.Contains(needs["boxd"], path) {
				t.Errorf("bill of materials: %s is missing", path)
			}
			info, err := buildinfo.Read(bytes.NewReader(f.content))
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			for _, m := range info.Deps {
				if m.Path != module {
					check(path, m.Path, m.Version, "pkg:golang/"+m.Path+"@"+m.Version)
				}
			}
			number := strings.TrimPrefix(info.GoVersion, "go")
			check(path, "Go runtime and standard library", number, "pkg:golang/std@"+number)
			for _, library := range []string{"glibc", "libgcc"} {
				if (program{path, info}).cgo() && !regexp.MustCompile(`\n`+library+` \S+: copyright\n`).MatchString(licences) {
					t.Errorf("licenses.txt does not have %s, which is in %s", library, path)
				}
			}
		}
		if count < 3 {
			t.Errorf("%d programs", count)
		}
		var page struct{ Dependencies map[string]string }
		if text, err := os.ReadFile("ui/package.json"); err != nil || json.Unmarshal(text, &page) != nil || len(page.Dependencies) == 0 {
			t.Fatalf("ui/package.json: %v, %q", err, page)
		}
		for name, version := range page.Dependencies {
			check("usr/bin/boxd", name, version, "pkg:npm/"+strings.Replace(name, "@", "%40", 1)+"@"+version)
		}
	})

	t.Run("units", func(t *testing.T) {
		for name, f := range deb {
			if !strings.HasSuffix(name, ".service") {
				continue
			}
			for _, word := range regexp.MustCompile(`/usr/(bin|libexec)/\S+`).FindAllString(string(f.content), -1) {
				if deb[strings.TrimPrefix(word, "/")].mode != 0o755 {
					t.Errorf("%s names %s, which is no program of the package", name, word)
				}
			}
		}
		if conffiles := run(t, "dpkg-deb", "-I", packages[".deb"], "conffiles"); strings.TrimSpace(conffiles) != "/etc/boxd/config.yaml\n/etc/boxd/launcher.yaml" {
			t.Errorf("conffiles: %q", conffiles)
		}
	})

	t.Run("lintian", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), "lintian", "--allow-root", "--fail-on", "error,warning", packages[".deb"]).CombinedOutput()
		if err != nil {
			t.Errorf("lintian: %v\n%s", err, out)
		}
	})

	t.Run("reproducible", func(t *testing.T) {
		again := makePackages(t, "077")
		for suffix, path := range packages {
			first, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if second, err := os.ReadFile(again[suffix]); err != nil || !bytes.Equal(first, second) {
				t.Errorf("%s differs between two builds: %v", filepath.Base(path), err)
			}
		}
	})
}

// Packages for arm64 have programs for arm64, which an emulator starts, and say what C library of arm64 is in them.
func TestOtherArchitecture(t *testing.T) {
	packages := makePackages(t, "022", "GOARCH=arm64", "CC=aarch64-linux-gnu-gcc")
	if got := run(t, "dpkg-deb", "-f", packages[".deb"], "Architecture"); got != "arm64\n" {
		t.Errorf("the .deb is for %q", got)
	}
	if got := run(t, "rpm", "-qp", "--qf", "%{ARCH}", packages[".rpm"]); got != "aarch64" {
		t.Errorf("the .rpm is for %q", got)
	}
	dir := t.TempDir()
	run(t, "dpkg-deb", "-x", packages[".deb"], dir)
	programs, err := readPrograms(dir)
	if err != nil || programs.arch() != "arm64" || len(programs) < 3 {
		t.Fatalf("%d programs, %v", len(programs), err)
	}
	for _, name := range []string{"usr/bin/boxd", "usr/libexec/boxd/boxd-init"} {
		if got := run(t, "qemu-aarch64-static", filepath.Join(dir, name), "version"); !strings.Contains(got, "v0.1.0") {
			t.Errorf("%s version: %q", name, got)
		}
	}
	licences, err := os.ReadFile(filepath.Join(dir, docs, "licenses.txt"))
	if err != nil || !regexp.MustCompile(`\nglibc \S+cross\S*: copyright\n`).Match(licences) {
		t.Errorf("licenses.txt has no glibc for arm64: %v", err)
	}
}

// A part without a licence file, or one that NOTICE does not list, stops the build.
func TestMissingLicence(t *testing.T) {
	parts := []*part{{name: "example.com/m", version: "v1.0.0", licence: "MIT", texts: []text{{"NOTICE", "x"}}}}
	if _, err := complete(parts); err == nil || !strings.Contains(err.Error(), "example.com/m v1.0.0") {
		t.Errorf("without a licence file: %v", err)
	}
	parts[0].texts = append(parts[0].texts, text{"sub/LICENSE-MIT", "y"})
	if _, err := complete(parts); err != nil {
		t.Error(err)
	}
	parts[0].licence = ""
	if _, err := complete(parts); err == nil {
		t.Error("without an entry in NOTICE: no error")
	}
}

// Versions must sort by age, for dpkg.
func TestPackageVersion(t *testing.T) {
	date := time.Unix(1795508302, 0).UTC()
	described := []string{"509ed00", "v0.1.0", "v0.1.0-dirty", "v0.1.0-3-g509ed00", "v0.1.0-3-g509ed00-dirty", "v0.1.0-12-gabcdef0", "v0.2.0"}
	want := []string{"0~20261124.509ed00", "0.1.0", "0.1.0+dirty", "0.1.0+3.g509ed00", "0.1.0+3.g509ed00.dirty", "0.1.0+12.gabcdef0", "0.2.0"}
	for i, d := range described {
		got := packageVersion(d, date)
		if got != want[i] {
			t.Errorf("%s: %s, want %s", d, got, want[i])
		}
		if i > 0 && !strings.HasSuffix(want[i-1], "+dirty") {
			run(t, "dpkg", "--compare-versions", want[i-1]+"-1", "lt", got+"-1")
		}
	}
	if got := packageVersion("unknown", date); got != "0~20261124.unknown" {
		t.Error(got)
	}
}
