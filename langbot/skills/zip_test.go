package skills

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/langbot/transfer"
)

// file is an entry of an archive that a test creates; all fields but the name are optional.
type file struct {
	name, content string
	mode          fs.FileMode
}

func makeZip(t testing.TB, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate}
		if strings.HasSuffix(f.name, "/") {
			h.Method = zip.Store
		}
		if f.mode != 0 {
			h.SetMode(f.mode)
		}
		e, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(e, f.content); err != nil && !strings.HasSuffix(f.name, "/") {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// rawZip writes archives that no library would write: one stored entry after the other, with the
// given local headers.
type rawEntry struct {
	name, local   string // local: the name in the local header, if it differs
	content       string
	flags, method uint16
	size, packed  int64 // in the directory, if they differ; -1 is 0
	header        int64 // offset in the directory, if it differs
	sum           uint32
}

func rawZip(entries ...rawEntry) []byte {
	var b, dir bytes.Buffer
	put := func(w *bytes.Buffer, values ...any) {
		for _, v := range values {
			_ = binary.Write(w, binary.LittleEndian, v)
		}
	}
	or := func(v int64, other int) uint32 {
		switch v {
		case 0:
			return uint32(other)
		case -1:
			return 0
		}
		return uint32(v)
	}
	for _, e := range entries {
		at := b.Len()
		local := e.name
		if e.local != "" {
			local = e.local
		}
		sum := crc32.ChecksumIEEE([]byte(e.content))
		if e.sum != 0 {
			sum = e.sum
		}
		n := len(e.content)
		sizes := []any{sum, or(e.packed, n), or(e.size, n)}
		put(&b, uint32(localMagic), uint16(20), e.flags, e.method, uint32(0))
		put(&b, sizes...)
		put(&b, uint16(len(local)), uint16(0))
		b.WriteString(local + e.content)
		put(&dir, uint32(centralMagic), uint16(20), uint16(20), e.flags, e.method, uint32(0))
		put(&dir, sizes...)
		put(&dir, uint16(len(e.name)), uint16(0), uint16(0), uint16(0), uint16(0), uint32(0), or(e.header, at))
		dir.WriteString(e.name)
	}
	at := b.Len()
	n := uint16(len(entries))
	b.Write(dir.Bytes())
	put(&b, uint32(endMagic), uint16(0), uint16(0), n, n, uint32(dir.Len()), uint32(at), uint16(0))
	return b.Bytes()
}

// send uploads a file as a client does and returns its key.
func (h *host) send(p []byte) string {
	h.t.Helper()
	const key = "0123456789abcdef-0123456789abcdef0123456789abcdef.zip"
	for i := 0; i == 0 || i*transfer.MaxChunk < len(p); i++ {
		raw, _ := json.Marshal(data{
			"file_key": key, "chunk_index": i, "chunk_amount": i + 1,
			"chunk_base64": base64.StdEncoding.EncodeToString(p[i*transfer.MaxChunk : min(len(p), (i+1)*transfer.MaxChunk)]),
		})
		if err := h.files.Chunk(raw); err != nil {
			h.t.Fatal(err)
		}
	}
	return key
}

// zip requests an action on an archive.
func (h *host) zip(action string, p []byte, d data) data {
	h.t.Helper()
	request := data{"file_key": h.send(p), "filename": "my skills.zip"}
	for k, v := range d {
		request[k] = v
	}
	return h.do(action, request)
}

// zipRefused fails the test unless both actions refuse an archive with want.
func (h *host) zipRefused(p []byte, d data, want string) {
	h.t.Helper()
	for _, action := range []string{"box_preview_skill_zip", "box_install_skill_zip"} {
		request := data{"file_key": h.send(p), "filename": "my-skills.zip"}
		for k, v := range d {
			request[k] = v
		}
		h.refused(action, request, want)
		if got := h.list(); got != "" {
			h.t.Fatalf("%q was installed", got)
		}
		if names := h.left(); len(names) != 0 {
			h.t.Errorf("%v was left", names)
		}
	}
}

func field(t *testing.T, d data, key string) string {
	t.Helper()
	var all []string
	for _, s := range d["skills"].([]any) {
		all = append(all, fmt.Sprint(s.(data)[key]))
	}
	return strings.Join(all, " ")
}

func skillFile(name string) file { return file{name: name + "SKILL.md", content: entryText1} }

func TestZip(t *testing.T) {
	h := newHost(t)
	p := makeZip(t, file{name: "top/"}, skillFile("top/"), file{name: "top/bin/run", content: "#!", mode: 0o100700 | fs.ModeSetuid}, file{name: "top/doc/a.txt", content: "a", mode: 0o600},
		file{name: "top/empty/"}, file{name: "top/setup.py", content: "x"}, file{name: "top/in.zip", content: string(makeZip(t, file{name: "../../x", content: "x"}))})
	got := h.zip("box_preview_skill_zip", p, nil)
	s := got["skills"].([]any)[0].(data)
	if s["name"] != "one" || s["source_path"] != "" || s["package_root"] != "/srv/skills/ws-1/my-skills-upload" || s["entry_file"] != "SKILL.md" || s["python_project"] != true || s["instructions"] != "Do one.\n" || s["updated_at"] == "" {
		t.Errorf("preview: %v", s)
	}
	if h.list() != "" {
		t.Error("a preview installed something")
	}
	s = h.zip("box_install_skill_zip", p, nil)["skills"].([]any)[0].(data)
	if _, ok := s["source_path"]; ok || s["name"] != "one" || s["package_root"] != "/srv/skills/ws-1/my-skills-upload" {
		t.Errorf("install: %v", s)
	}
	for name, mode := range map[string]fs.FileMode{"bin/run": 0o755, "doc/a.txt": 0o644, "empty": fs.ModeDir | 0o755, "bin": fs.ModeDir | 0o755, ".": fs.ModeDir | 0o755, "in.zip": 0o644} {
		if st, err := os.Stat(h.path("my-skills-upload/" + name)); err != nil || st.Mode() != mode {
			t.Errorf("%s: %v %v", name, st, err)
		}
	}
	h.clean()
	h.refused("box_install_skill_zip", data{"file_key": h.send(p), "filename": "my-skills.zip"}, "Skill directory already exists: /srv/skills/ws-1/my-skills-upload")
	h.refused("box_install_skill_zip", data{"file_key": h.send(p), "filename": "other.zip"}, `Skill with name "one" already exists`)
	h.refused("box_install_skill_zip", data{"file_key": "gone", "filename": "other.zip"}, "no such file")
	if names, _ := os.ReadDir(h.path(".")); len(names) != 2 { // and the register
		t.Errorf("there is %v", names)
	}
}

func several(t *testing.T) []byte {
	return makeZip(t, file{name: "top/readme", content: "x"},
		file{name: "top/two/SKILL.md", content: "---\nname: second\n---\n"}, file{name: "top/two/x/SKILL.md", content: "inner"},
		file{name: "top/one/skill.md", content: "---\nname: first\n---\n"},
		file{name: "top/group/three/SKILL.md", content: "third"}, file{name: "top/group/deep/er/SKILL.md", content: "too deep"})
}

func TestZipChoice(t *testing.T) {
	h := newHost(t)
	got := h.zip("box_preview_skill_zip", several(t), nil)
	if f := field(t, got, "source_path"); f != "group/three one two" {
		t.Errorf("sources %s", f)
	}
	if f := field(t, got, "package_root"); f != "/srv/skills/ws-1/my-skills-three-upload /srv/skills/ws-1/my-skills-one-upload /srv/skills/ws-1/my-skills-two-upload" {
		t.Errorf("targets %s", f)
	}
	if f := field(t, got, "name"); f != "my-skills-three-upload first second" {
		t.Errorf("names %s", f)
	}
	h.refused("box_install_skill_zip", data{"file_key": h.send(several(t))}, "Multiple skills found. Please choose one or more source_paths: group/three, one, two")
	h.refused("box_install_skill_zip", data{"file_key": h.send(several(t)), "source_paths": []string{"one", "none"}}, `Invalid source_path "none". Available: group/three, one, two`)
	h.refused("box_install_skill_zip", data{"file_key": h.send(several(t)), "source_paths": "one"}, "source_paths must be a list")
	if h.list() != "" {
		t.Fatal("something was installed")
	}
	got = h.zip("box_install_skill_zip", several(t), data{"source_paths": []string{"two/", "two", ` \group\three `}, "source_path": "one"})
	if f := field(t, got, "name"); f != "second my-skills-three-upload first" {
		t.Errorf("installed %s", f)
	}
	if h.read("my-skills-two-upload/x/SKILL.md") != "inner" {
		t.Error("a part of a skill is missing")
	}
	if _, err := os.Stat(h.path("my-skills-two-upload/readme")); err == nil {
		t.Error("more than the skill was installed")
	}
}

func TestZipSubdir(t *testing.T) {
	h := newHost(t)
	if f := field(t, h.zip("box_preview_skill_zip", several(t), data{"source_subdir": `/group\`}), "source_path"); f != "deep/er three" {
		t.Errorf("in group: %s", f)
	}
	if f := field(t, h.zip("box_preview_skill_zip", several(t), data{"source_subdir": "two", "target_suffix": "", "filename": "技 能!.tar.zip"}), "package_root"); f != "/srv/skills/ws-1/技-能--tar" {
		t.Errorf("two: %s", f)
	}
	for subdir, want := range map[string]string{
		"none": "source_subdir does not exist in the uploaded archive: none", "readme": "does not exist", "..": "source_subdir must stay within", "a/../../b": "source_subdir must stay within",
		"one/x\x00": "does not exist", "top": "does not exist",
	} {
		h.zipRefused(several(t), data{"source_subdir": subdir}, want)
	}
	h.zipRefused(several(t), data{"target_suffix": "../x"}, "target_suffix can only have")
	h.zipRefused(several(t), data{"target_suffix": 1}, "target_suffix")
	h.zipRefused(several(t), data{"filename": strings.Repeat("n", 250) + ".zip"}, "filename exceeds")
	h.zipRefused(makeZip(t, file{name: "a", content: "x"}), nil, "No SKILL.md found")
	h.zipRefused(makeZip(t), nil, "No SKILL.md found")
}

func TestStem(t *testing.T) {
	for filename, want := range map[string]string{
		"my-skills.zip": "my-skills", "": "uploaded-skill", ".zip": "zip", "a.b.zip": "a-b", "/x/y.zip": "y", "..": "uploaded-skill", "../..": "uploaded-skill",
		"-_x_-.zip": "x", "a b": "a-b", "技能.zip": "技能", `c:\x.zip`: "c--x", "a\x00b.zip": "a-b", "???": "uploaded-skill", "\xff.zip": "uploaded-skill",
	} {
		if got := stem(filename); got != want {
			t.Errorf("%q became %q, want %q", filename, got, want)
		}
	}
}

// All or nothing: the second of two skills cannot be installed, so the first is not either.
func TestZipAllOrNothing(t *testing.T) {
	h := newHost(t)
	p := makeZip(t, skillFile("a/"), skillFile("b/"))
	h.zipRefusedInstall(p, data{"source_paths": []string{"a", "b"}}, `Skill with name "one" already exists`)
	p = makeZip(t, file{name: "x/a/SKILL.md", content: "x"}, file{name: "y/a/SKILL.md", content: "x"})
	h.zipRefusedInstall(p, data{"source_paths": []string{"x/a", "y/a"}}, "Two of the chosen skills would have the same directory")
	p = makeZip(t, file{name: "a/SKILL.md", content: "x"}, file{name: "b/SKILL.md", content: "\xff"})
	h.zipRefusedInstall(p, data{"source_paths": []string{"a", "b"}}, "b/SKILL.md: SKILL.md is not valid UTF-8 text")
	h.put("my-skills-b-upload", "a file")
	h.refused("box_install_skill_zip", data{"file_key": h.send(makeZip(t, file{name: "a/SKILL.md", content: "x"}, file{name: "b/SKILL.md", content: "y"})), "filename": "my-skills.zip", "source_paths": []string{"a", "b"}},
		"Skill directory already exists: /srv/skills/ws-1/my-skills-b-upload")
	if got := h.list(); got != "" {
		t.Errorf("there is %q", got)
	}
}

// Skills that do not fit into an answer are not installed: the client would never learn of them.
func TestZipLongAnswer(t *testing.T) {
	h := newHost(t)
	text := make([]byte, maxText-100) // six times as long in JSON
	for i, source := 0, rand.New(rand.NewSource(1)); i < len(text); i++ {
		text[i] = byte(1 + source.Intn(8))
	}
	var files []file
	for _, name := range []string{"a", "b", "c"} {
		files = append(files, file{name: name + "/SKILL.md", content: "---\nname: " + name + "\n---\n" + string(text)})
	}
	const want = "The skills of the uploaded archive together exceed"
	p := makeZip(t, files...)
	h.zipRefused(p, data{"source_paths": []string{"a", "b", "c"}}, want)
	h.zip("box_install_skill_zip", p, data{"source_paths": []string{"a", "b"}})
}

// A client that leaves while its archive is unpacked leaves nothing of it.
func TestZipCanceled(t *testing.T) {
	h := newHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	raw, _ := json.Marshal(data{"file_key": h.send(several(t)), "source_paths": []string{"one", "two"}})
	unpacked := 0
	watched := &countdown{Context: ctx, at: 12, then: func() { unpacked, _ = countFiles(h.dir); cancel() }}
	if _, err := h.store.Do(watched, h.root(h.ns), "box_install_skill_zip", raw, h.files); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left, _ := countFiles(h.dir); unpacked == 0 || left != 0 {
		t.Errorf("%d files were there when it was given up, and then %d", unpacked, left)
	}
	h.clean()
}

// countdown is a context that calls then after a number of calls of Err.
type countdown struct {
	context.Context
	at   int
	then func()
}

func (c *countdown) Err() error {
	if c.at--; c.at == 0 {
		c.then()
	}
	return c.Context.Err()
}

func countFiles(dir string) (n int, err error) {
	return n, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return nil
	})
}

func (h *host) zipRefusedInstall(p []byte, d data, want string) {
	h.t.Helper()
	request := data{"file_key": h.send(p), "filename": "my-skills.zip"}
	for k, v := range d {
		request[k] = v
	}
	h.refused("box_install_skill_zip", request, want)
	if names := h.left(); len(names) != 0 {
		h.t.Errorf("%v was left", names)
	}
}

func TestZipNames(t *testing.T) {
	ok := skillFile("")
	for name, want := range map[string]string{
		"../x": "leads out", "a/../../x": "leads out", "a/../x": "leads out", "..": "leads out", "/x": "is absolute", "//x": "is absolute", "C:x": "names a drive", "c:/x": "names a drive",
		`a\b`: `has a "\"`, `..\x`: `has a "\"`, "a\x00b": "has control characters", "a\nb": "has control characters", "\x7f": "has control characters", "./": "is empty", ".": "is empty", "a/..": "is empty", "a/../b": "leads out",
		strings.Repeat("x", 256): "is too long", strings.Repeat("x/", 600): "is too long", strings.Repeat("x/", 40) + "x": "is too deep",
	} {
		h := newHost(t)
		h.zipRefused(makeZip(t, ok, file{name: name, content: "x"}), nil, "Uploaded archive contains an unsafe path: ")
		h.zipRefused(makeZip(t, ok, file{name: name, content: "x"}), nil, want)
	}
	h := newHost(t)
	h.zipRefused(rawZip(rawEntry{name: "SKILL.md", content: "x"}, rawEntry{name: "", content: "x"}), nil, "is empty")
	h.zipRefused(rawZip(rawEntry{name: "SKILL.md", content: "x"}, rawEntry{name: "\xff", content: "x", flags: flagUTF8}), nil, "is not valid UTF-8")
	h.zip("box_install_skill_zip", rawZip(rawEntry{name: "SKILL.md", content: "x"}, rawEntry{name: "\x81ber", content: "x"}, rawEntry{name: "技", content: "y"}, rawEntry{name: "./a/./b", content: "z"}), nil)
	if h.read("my-skills-upload/über") != "x" || h.read("my-skills-upload/技") != "y" || h.read("my-skills-upload/a/b") != "z" {
		t.Error("names are not as they were meant")
	}
	// Errors contain escape sequences only in quoted form.
	h = newHost(t)
	h.zipRefused(makeZip(t, ok, file{name: "\x1b[2J/../x", content: "x"}), nil, `\x1b[2J`)
}

func TestZipTwice(t *testing.T) {
	h := newHost(t)
	ok := skillFile("")
	h.zipRefused(makeZip(t, ok, ok), nil, "contains a path twice: SKILL.md")
	h.zipRefused(makeZip(t, ok, file{name: "./SKILL.md", content: "x"}), nil, "contains a path twice: SKILL.md")
	h.zipRefused(makeZip(t, ok, file{name: "a/"}, file{name: "a/"}), nil, "contains a path twice: a")
	h.zipRefused(makeZip(t, ok, file{name: "a", content: "x"}, file{name: "a/"}), nil, "a")
	h.zipRefused(makeZip(t, ok, file{name: "a", content: "x"}, file{name: "a/b", content: "x"}), nil, "both a file and a directory: a")
	h.zipRefused(makeZip(t, ok, file{name: "a/b", content: "x"}, file{name: "a", content: "x"}), nil, "both a file and a directory: a")
	h.zipRefused(rawZip(rawEntry{name: "SKILL.md", content: "x"}, rawEntry{name: "a/", content: "x"}), nil, "both a file and a directory: a")
	// Names that differ to this file system are two files.
	h.zip("box_install_skill_zip", makeZip(t, ok, file{name: "a", content: "1"}, file{name: "A", content: "2"}, file{name: "\u00e9", content: "3"}, file{name: "e\u0301", content: "4"}), nil)
	if h.read("my-skills-upload/a")+h.read("my-skills-upload/A")+h.read("my-skills-upload/\u00e9")+h.read("my-skills-upload/e\u0301") != "1234" {
		t.Error("names were merged")
	}
}

func TestZipTypes(t *testing.T) {
	h := newHost(t)
	ok := skillFile("")
	for _, mode := range []fs.FileMode{fs.ModeSymlink, fs.ModeNamedPipe, fs.ModeSocket, fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice} {
		h.zipRefused(makeZip(t, ok, file{name: "x", content: "/etc/passwd", mode: mode | 0o777}), nil, "contains a symbolic link or special file: x")
	}
	h.zipRefused(makeZip(t, ok, file{name: "x", content: "x", mode: fs.ModeDir | 0o755}), nil, "both a file and a directory: x")
	h.zipRefused(rawZip(rawEntry{name: "SKILL.md", content: "x", flags: 1}), nil, "Uploaded archive is encrypted")
	h.zipRefused(rawZip(rawEntry{name: "SKILL.md", content: "x", flags: 1 << 6}), nil, "Uploaded archive is encrypted")
	h.zipRefused(rawZip(rawEntry{name: "SKILL.md", content: "x", method: 12}), nil, "compression method 12")
}

func TestZipSizes(t *testing.T) {
	h := newHost(t)
	ok := skillFile("")
	noise := make([]byte, 200<<10)
	rand.New(rand.NewSource(1)).Read(noise)
	h.zipRefused(nil, nil, "Uploaded file is empty")
	if _, err := openArchive(memoryFile(t, nil), maxZipSize+1); err == nil || !strings.Contains(err.Error(), "exceeds the compressed size limit of 20971520 bytes") {
		t.Errorf("got %v", err)
	}
	h.zipRefused(makeZip(t, ok, file{name: "zeros", content: string(make([]byte, 1<<20))}), nil, "exceeds a compression ratio of 100: zeros")
	// The following archives are refused by their headers, before anything is unpacked.
	first := rawEntry{name: "SKILL.md", content: "x"}
	h.zipRefused(rawZip(first, rawEntry{name: "big", content: string(noise), method: zip.Deflate, size: maxZipFile + 1}), nil, "entry exceeds the uncompressed size limit of 16777216 bytes: big")
	many := []rawEntry{first}
	for i := range 5 {
		many = append(many, rawEntry{name: fmt.Sprint(i), content: string(noise), method: zip.Deflate, size: 15 << 20})
	}
	h.zipRefused(rawZip(many...), nil, "exceeds the total uncompressed size limit of 67108864 bytes")
	var entries []file
	for i := range 10_001 {
		entries = append(entries, file{name: fmt.Sprint(i)})
	}
	h.zipRefused(makeZip(t, append(entries[:maxZipEntries], ok)...), nil, "too many entries: 513, which exceeds 512")
	h.zipRefused(makeZip(t, append(entries, ok)...), nil, "too many entries: 10002, which exceeds 512")
	h.zip("box_install_skill_zip", makeZip(t, append(entries[:maxZipEntries-1], ok)...), nil)
	h.do("box_delete_skill", data{"name": "one"})
	h.zipRefused(makeZip(t, file{name: "SKILL.md", content: strings.Repeat("x", maxText) + string(noise)}), nil, "SKILL.md exceeds 1048576 bytes")
}

// False headers are detected before or while the entry is unpacked.
func TestZipLies(t *testing.T) {
	ok := rawEntry{name: "SKILL.md", content: "x"}
	long := strings.Repeat("content ", 100)
	for name, p := range map[string][]byte{
		"no zip":                   []byte("hello"),
		"zeros":                    make([]byte, 1000),
		"size below":               rawZip(ok, rawEntry{name: "a", content: long, size: 5}),
		"size above":               rawZip(ok, rawEntry{name: "a", content: long, size: 900}),
		"packed above":             rawZip(ok, rawEntry{name: "a", content: long, packed: 801, size: 801}),
		"packed far above":         rawZip(ok, rawEntry{name: "a", content: long, packed: 1 << 30, size: 1 << 30}),
		"wrong sum":                rawZip(ok, rawEntry{name: "a", content: long, sum: 1}),
		"not deflate":              rawZip(ok, rawEntry{name: "a", content: long, method: 8}),
		"another name":             rawZip(ok, rawEntry{name: "a", local: "b", content: long}),
		"a longer name":            rawZip(ok, rawEntry{name: "a", local: "ab", content: long}),
		"no local header":          rawZip(ok, rawEntry{name: "a", content: long, header: 3}),
		"header outside":           rawZip(ok, rawEntry{name: "a", content: long, header: 1 << 20}),
		"zip64 sizes":              rawZip(ok, rawEntry{name: "a", content: long, size: 1<<32 - 1, packed: 1<<32 - 1}),
		"zip64 offset":             rawZip(ok, rawEntry{name: "a", content: long, header: 1<<32 - 1}),
		"one within another":       rawZip(ok, rawEntry{name: "a", content: string(rawZip(rawEntry{name: "b", content: "y"}))}, rawEntry{name: "b", content: "y", header: 39 + 31}),
		"the same bytes twice":     rawZip(ok, rawEntry{name: "a", content: long}, rawEntry{name: "a", content: long, header: 39}),
		"something before":         append([]byte("#!/bin/sh\n"), rawZip(ok)...),
		"something behind":         append(rawZip(ok), 'x'),
		"two archives":             append(rawZip(ok), rawZip(rawEntry{name: "SKILL.md", content: "other"})...),
		"zip64 end":                patch(rawZip(ok), 10, 0xff, 0xff, 0xff, 0xff),
		"zip64 directory":          patch(rawZip(ok), 16, 0xff, 0xff, 0xff, 0xff),
		"fewer than said":          patch(rawZip(ok), 8, 2, 0, 2, 0),
		"more than said":           patch(rawZip(ok, rawEntry{name: "b", content: "y"}), 8, 1, 0, 1, 0),
		"none said":                patch(rawZip(ok), 8, 0, 0, 0, 0),
		"a disk of many":           patch(rawZip(ok), 4, 1, 0),
		"a comment that is longer": patch(rawZip(ok), 20, 1, 0),
		"directory size":           patch(rawZip(ok), 12, 1, 0, 0, 0),
		"directory offset":         patch(rawZip(ok), 16, 1, 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.zipRefused(p, nil, "Uploaded file must be a valid .zip archive")
		})
	}
}

// patch changes bytes of the record at the end of an archive without a comment.
func patch(p []byte, at int, with ...byte) []byte {
	copy(p[len(p)-endSize+at:], with)
	return p
}

// A truncated archive is refused, wherever it ends.
func TestZipTruncated(t *testing.T) {
	p := makeZip(t, skillFile(""), file{name: "a/b", content: "hello"})
	for n := 1; n < len(p); n += 7 {
		f := memoryFile(t, p[:n])
		if _, err := openArchive(f, int64(n)); err == nil {
			t.Fatalf("%d of %d bytes were taken", n, len(p))
		}
		f.Close()
	}
}

func TestZipComment(t *testing.T) {
	commented := func(comment string) []byte {
		p := rawZip(rawEntry{name: "SKILL.md", content: "x"})
		return append(patch(p, 20, byte(len(comment)), byte(len(comment)>>8)), comment...)
	}
	h := newHost(t)
	h.zip("box_install_skill_zip", commented(strings.Repeat("c", maxComment)), nil)
	h = newHost(t)
	h.zip("box_install_skill_zip", commented("PK\x05\x06 is how it ends"), nil)
	// Comments that are, or could be, the end of another archive.
	h = newHost(t)
	h.zipRefused(commented(strings.Repeat("PK\x05\x06", 16383)), nil, "valid .zip archive")
	h.zipRefused(commented(string(rawZip(rawEntry{name: "SKILL.md", content: "other"}))), nil, "valid .zip archive")
}

func memoryFile(t testing.TB, p []byte) *os.File {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(p); err != nil {
		t.Fatal(err)
	}
	return f
}
