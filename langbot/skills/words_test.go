package skills

import (
	"io/fs"
	"strings"
	"testing"
)

// TestWords: LangBot's own tests look for these words in refusals
// (langbot-plugin-sdk, tests/box/test_skill_store.py).
func TestWords(t *testing.T) {
	h := newHost(t)
	named := func(name string) data { return data{"skill": data{"name": name}} }
	for _, c := range []struct {
		action string
		data   data
		want   string
	}{
		{"box_create_skill", named(""), "required"},
		{"box_create_skill", named("   "), "required"},
		{"box_create_skill", named("bad name!"), "letters, numbers"},
		{"box_create_skill", named(strings.Repeat("a", 65)), "exceed 64"},
		{"box_create_skill", data{"skill": data{"name": "stolen", "package_root": "/srv/skills/ws-2/private"}}, "Workspace skill root"},
		{"box_scan_skill_directory", data{"path": "/srv/skills/ws-2/private"}, "Workspace skill root"},
		{"box_delete_skill", data{"name": "none"}, "not found"},
		{"box_update_skill", data{"name": "none", "skill": data{}}, "not found"},
	} {
		h.refused(c.action, c.data, c.want)
	}
	ok := skillFile("pack/")
	h.zipRefused(makeZip(t, ok, file{name: "pack/link", content: "../../secret", mode: fs.ModeSymlink | 0o777}), nil, "symbolic link")
	for _, name := range []string{"../evil.txt", "/tmp/abs-evil.txt", "sub/../../escape.txt"} {
		h.zipRefused(makeZip(t, ok, file{name: name}), nil, "unsafe path")
	}
	many := []file{ok}
	for range maxZipEntries {
		many = append(many, file{name: "pack/" + strings.Repeat("x", len(many)%200+1) + strings.Repeat("y", len(many)/200)})
	}
	h.zipRefused(makeZip(t, many...), nil, "too many entries")
	h.zipRefused(makeZip(t, ok, file{name: "pack/zero", content: strings.Repeat("\x00", 1<<20)}), nil, "compression ratio")
	h.zipRefused(rawZip(rawEntry{name: "SKILL.md", content: "x", size: maxZipFile + 1}), nil, "entry exceeds the uncompressed size")
	h.zipRefused(nil, nil, "empty")
	h.zipRefused([]byte("not a zip at all"), nil, "valid .zip archive")
	h.zipRefused(makeZip(t, file{name: "pkg/readme.txt"}), nil, "No SKILL.md found")
	for subdir, want := range map[string]string{"../escape": "stay within the uploaded archive", "/etc": "does not exist in the uploaded archive", "missing": "does not exist in the uploaded archive"} {
		h.zipRefused(makeZip(t, ok), data{"source_subdir": subdir}, want)
	}
	h.put("SKILL.md", "---\nname: rootskill\n---\n\nbody\n")
	h.refused("box_delete_skill", data{"name": "rootskill"}, "Only managed skills")
}

// TestWordsOfSizes: the archive is refused by its size before anything in it is read.
func TestWordsOfSizes(t *testing.T) {
	_, err := openArchive(nil, maxZipSize+1)
	if err == nil || !strings.Contains(err.Error(), "compressed size limit") {
		t.Errorf("%v", err)
	}
}
