package skills

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

const entryText1 = "---\nname: one\ndescription: first\nlicense: MIT\nallowed-tools:\n  - a\n  - b\n# a comment\n---\n\nDo one.\n"

func TestCreateRefused(t *testing.T) {
	h := newHost(t)
	h.create("taken")
	for _, c := range []struct {
		skill any
		want  string
	}{
		{nil, "skill must be an object"},
		{"x", "skill must be an object"},
		{data{}, "name is required"},
		{data{"name": "  "}, "name is required"},
		{data{"name": 7}, "skill.name must be a string"},
		{data{"name": "a b"}, "can only have"},
		{data{"name": "a/b"}, "can only have"},
		{data{"name": ".."}, "can only have"},
		{data{"name": "a\u0000"}, "can only have"},
		{data{"name": "a.b"}, "can only have"},
		{data{"name": "a\u202e"}, "can only have"},
		{data{"name": "--"}, "needs a letter"},
		{data{"name": strings.Repeat("é", 65)}, "must not exceed 64 characters"},
		{data{"name": "taken"}, `Skill with name "taken" already exists`},
		{data{"name": "new", "display_name": []string{"x"}}, "skill.display_name must be a string"},
		{data{"name": "new", "instructions": strings.Repeat("x", maxText)}, "SKILL.md exceeds 1048576 bytes"},
		{data{"name": "new", "description": strings.Repeat("x", maxFront)}, "exceed 16384 bytes"},
		{data{"name": "new", "package_root": "/etc"}, "package_root must stay within the Workspace skill root"},
		{data{"name": "new", "package_root": "/srv/skills/ws-1/../ws-2/x"}, "must stay within the Workspace skill root"},
		{data{"name": "new", "package_root": "/srv/skills/ws-11"}, "must stay within the Workspace skill root"},
		{data{"name": "new", "package_root": "taken"}, "must stay within the Workspace skill root"},
		{data{"name": "new", "package_root": "/srv/skills/ws-1"}, "not the root"},
		{data{"name": "new", "package_root": "/srv/skills/ws-1/.boxd"}, "must stay within the Workspace skill root"},
		{data{"name": "new", "package_root": "/srv/skills/ws-1/none"}, "Directory does not exist: /srv/skills/ws-1/none"},
	} {
		h.refused("box_create_skill", data{"skill": c.skill}, c.want)
	}
	h.refused("box_create_skill", data{}, "skill")
	if got := h.list(); got != "taken" {
		t.Errorf("there is %q", got)
	}
}

func TestNames(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"a", "A_b-9", "技能", "é", strings.Repeat("n", 64)} {
		if s := h.create(" " + name + " "); s["name"] != name {
			t.Errorf("%q became %q", name, s["name"])
		}
		if got := h.do("box_get_skill", data{"name": name})["skill"]; got == nil {
			t.Errorf("%q cannot be found", name)
		}
	}
}

// A directory without a skill is used as it is; one that contains a skill is refused.
func TestCreateInDirectory(t *testing.T) {
	h := newHost(t)
	h.put("plain/data.txt", "kept")
	h.create("plain")
	if h.read("plain/data.txt") != "kept" {
		t.Error("what was there is gone")
	}
	h.put("other/SKILL.md", entryText1)
	h.refused("box_create_skill", data{"skill": data{"name": "other"}}, "Skill directory already exists: /srv/skills/ws-1/other")
	h.put("deep/er/SKILL.md", "x")
	h.refused("box_create_skill", data{"skill": data{"name": "deep"}}, "Skill directory already exists")
	h.put("file", "x")
	h.refused("box_create_skill", data{"skill": data{"name": "file"}}, "Skill directory already exists")
	if err := os.Symlink("plain", h.path("link")); err != nil {
		t.Fatal(err)
	}
	h.refused("box_create_skill", data{"skill": data{"name": "link"}}, "Skill directory already exists")
}

func TestAdopt(t *testing.T) {
	h := newHost(t)
	h.put("dir/skill.md", entryText1)
	s := h.do("box_create_skill", data{"skill": data{"name": "mine", "display_name": "Mine", "description": " ", "package_root": "/srv/skills/ws-1/dir/"}})["skill"].(data)
	if s["name"] != "mine" || s["display_name"] != "Mine" || s["description"] != "first" || s["instructions"] != "Do one.\n" || s["package_root"] != "/srv/skills/ws-1/dir" || s["entry_file"] != "skill.md" {
		t.Errorf("got %v", s)
	}
	if text := h.read("dir/skill.md"); !strings.Contains(text, "license: MIT\nallowed-tools:\n  - a\n  - b\n") {
		t.Errorf("what else the head said is gone:\n%s", text)
	}
	if _, err := os.Stat(h.path("dir/SKILL.md")); err == nil {
		t.Error("there are two entry files now")
	}
	h.put("empty/x", "x")
	h.refused("box_create_skill", data{"skill": data{"name": "new", "package_root": "/srv/skills/ws-1/empty"}}, "No SKILL.md found in /srv/skills/ws-1/empty")
	h.put("dir/inner/SKILL.md", "x")
	h.refused("box_create_skill", data{"skill": data{"name": "new", "package_root": "/srv/skills/ws-1/dir/inner"}}, "lies in another skill")
	h.put("1/2/3/4/5/6/7/SKILL.md", "x")
	h.refused("box_create_skill", data{"skill": data{"name": "new", "package_root": "/srv/skills/ws-1/1/2/3/4/5/6/7"}}, "at most 6 directories deep")
	if err := os.Symlink("empty", h.path("link")); err != nil {
		t.Fatal(err)
	}
	h.refused("box_create_skill", data{"skill": data{"name": "new", "package_root": "/srv/skills/ws-1/link"}}, "Directory does not exist")
}

func TestUpdate(t *testing.T) {
	h := newHost(t)
	h.put("one/SKILL.md", entryText1)
	s := h.do("box_update_skill", data{"name": "one", "skill": data{"display_name": "One: \"1\"", "instructions": nil}})["skill"].(data)
	if s["display_name"] != `One: "1"` || s["description"] != "first" || s["instructions"] != "Do one.\n" {
		t.Errorf("got %v", s)
	}
	text := h.read("one/SKILL.md")
	if !strings.Contains(text, "license: MIT\nallowed-tools:\n  - a\n  - b\n# a comment\n") || strings.Count(text, "name:") != 2 {
		t.Errorf("the head became\n%s", text)
	}
	s = h.do("box_update_skill", data{"name": "one", "skill": data{"name": "one", "description": "", "instructions": "new", "package_root": "/srv/skills/ws-1/one/"}})["skill"].(data)
	if s["description"] != "" || s["instructions"] != "new" || s["display_name"] != `One: "1"` {
		t.Errorf("got %v", s)
	}
	h.refused("box_update_skill", data{"name": "one", "skill": data{"name": "two"}}, "Renaming skills is not supported")
	h.refused("box_update_skill", data{"name": "one", "skill": data{"package_root": "/srv/skills/ws-1/two"}}, "Updating package_root is not supported")
	h.refused("box_update_skill", data{"name": "one", "skill": data{"description": 1}}, "skill.description must be a string")
	h.refused("box_update_skill", data{"name": "one"}, "skill")
	if text := h.read("one/SKILL.md"); !strings.HasSuffix(text, "---\n\nnew") {
		t.Errorf("the file became\n%s", text)
	}
}

// A client's texts are returned unchanged.
func TestTextsComeBack(t *testing.T) {
	h := newHost(t)
	for i, text := range []string{
		"plain", "a: b", "'", `"`, `\`, "#x", "- x", "yes", "null", "1.0", "2026-01-01", "a\nb", "a\tb", "---", "{x}", "*a", "&a", "!t", "%x", "@x", "`x",
		"\u0000\u0001\u007f\u0085\u00a0\u2028\ufeff", "技能 🧰", "\U0010ffff", "trailing:", ": x", "? x", "| x", "> x", "[", "~",
	} {
		name := fmt.Sprint("s", i)
		want := strings.TrimSpace(text)
		s := h.do("box_create_skill", data{"skill": data{"name": name, "display_name": text, "description": text, "instructions": text}})["skill"].(data)
		if s["name"] != name || s["description"] != want || s["instructions"] != text || want != "" && s["display_name"] != want {
			t.Errorf("%q became %q", text, s)
		}
		h.do("box_update_skill", data{"name": name, "skill": data{}})
		if s := h.do("box_get_skill", data{"name": name})["skill"].(data); s["description"] != want || s["instructions"] != text {
			t.Errorf("%q became %q by an update of nothing", text, s)
		}
	}
}

// delete deletes the whole top-level directory.
func TestDeleteNested(t *testing.T) {
	h := newHost(t)
	h.put("top/a/SKILL.md", "x")
	h.put("top/b/SKILL.md", "x")
	h.put("other/SKILL.md", "x")
	h.do("box_delete_skill", data{"name": "a"})
	if got := h.list(); got != "other" {
		t.Errorf("there is %q", got)
	}
	h.put("SKILL.md", "---\nname: root\n---\n")
	h.refused("box_delete_skill", data{"name": "root"}, "Only managed skills can be deleted")
}

func TestScan(t *testing.T) {
	h := newHost(t)
	h.put("pkg/a/b/SKILL.md", entryText1)
	h.put("pkg/a/b/pyproject.toml", "")
	s := h.do("box_scan_skill_directory", data{"path": "/srv/skills/ws-1/pkg"})
	if s["name"] != "one" || s["package_root"] != "/srv/skills/ws-1/pkg/a/b" || s["python_project"] != true {
		t.Errorf("got %v", s)
	}
	h.put("deep/1/2/3/SKILL.md", "x")
	h.refused("box_scan_skill_directory", data{"path": "/srv/skills/ws-1/deep"}, "No SKILL.md found in /srv/skills/ws-1/deep")
	h.put("two/a/SKILL.md", "x")
	h.put("two/b/SKILL.md", "x")
	h.refused("box_scan_skill_directory", data{"path": "/srv/skills/ws-1/two"}, "Multiple skill directories found in /srv/skills/ws-1/two: choose one of /srv/skills/ws-1/two/a, /srv/skills/ws-1/two/b")
	h.refused("box_scan_skill_directory", data{"path": "/srv/skills/ws-1/none"}, "Directory does not exist: /srv/skills/ws-1/none")
	h.refused("box_scan_skill_directory", data{"path": "/srv/skills/ws-1/pkg/a/b/SKILL.md"}, "Directory does not exist")
	h.refused("box_scan_skill_directory", data{"path": "/"}, "path must stay within the Workspace skill root")
	h.refused("box_scan_skill_directory", data{"path": ""}, "path must stay within the Workspace skill root")
	h.refused("box_scan_skill_directory", data{"path": "/srv/skills/ws-1/pkg\x00"}, "Directory does not exist")
	h.put("bad/SKILL.md", "\xff")
	h.refused("box_scan_skill_directory", data{"path": "/srv/skills/ws-1/bad"}, "is not valid UTF-8 text")
}

// The list begins with the newest skill, and skips those that cannot be read.
func TestList(t *testing.T) {
	h := newHost(t)
	now := time.Now()
	for i, name := range []string{"old", "new", "mid"} {
		h.put(name+"/SKILL.md", "text")
		at := now.Add([]time.Duration{-time.Hour, 0, -time.Minute}[i])
		if err := os.Chtimes(h.path(name+"/SKILL.md"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	h.put("bad/SKILL.md", "\xff")
	h.put("long/SKILL.md", strings.Repeat("x", maxText+1))
	h.put("not a name/SKILL.md", "x")
	h.put("x/y/SKILL.md/file", "a directory is no entry file")
	if err := os.Symlink("new", h.path("link")); err != nil {
		t.Fatal(err)
	}
	if got := h.list(); got != "new mid old" {
		t.Errorf("got %q", got)
	}
	// Of two with one name the newest does not win, because a box can always write last.
	h.put("a/SKILL.md", "---\nname: old\n---\nsecond")
	if got := h.do("box_get_skill", data{"name": "old"})["skill"].(data); got["instructions"] != "text" {
		t.Errorf("got %v", got)
	}
	if got := h.list(); got != "new mid old" {
		t.Errorf("got %q", got)
	}
}

func TestDiscovery(t *testing.T) {
	h := newHost(t)
	h.put("1/2/3/4/5/six/SKILL.md", "x")
	h.put("1/2/3/4/5/6/seven/SKILL.md", "x")
	h.put("outer/SKILL.md", "x")
	h.put("outer/inner/SKILL.md", "x")
	h.put(".boxd/x/SKILL.md", "x") // what a crash left
	got := strings.Fields(h.list())
	if len(got) != 2 || !strings.Contains(strings.Join(got, " "), "six") || !strings.Contains(strings.Join(got, " "), "outer") {
		t.Errorf("found %q", got)
	}
	h.clean()
}

// Too many entries cannot hide skills in higher directories.
func TestDiscoveryBounds(t *testing.T) {
	h := newHost(t)
	h.put("junk/file", "")
	for i := range maxEntries + 1 {
		if err := os.Mkdir(h.path(fmt.Sprintf("junk/%d", i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h.put("unseen/in/SKILL.md", "x")
	h.put("zzz/SKILL.md", "x")
	if got := h.list(); got != "zzz" {
		t.Errorf("found %q", got)
	}
	h.refused("box_delete_skill", data{"name": "unseen"}, "not found") // there may be a skill in it
	h.refused("box_scan_skill_directory", data{"path": "/srv/skills/ws-1/junk"}, "exceeds 10000 entries")
	h.do("box_delete_skill", data{"name": "zzz"})

	h.ns = "many"
	for i := range maxSkills + 10 {
		h.put(fmt.Sprintf("s%04d/SKILL.md", i), "x")
	}
	if got := len(strings.Fields(h.list())); got != maxSkills {
		t.Errorf("%d skills are listed", got)
	}
}

// An answer fits into one message.
func TestListSize(t *testing.T) {
	h := newHost(t)
	for i := range 20 {
		h.put(fmt.Sprintf("s%d/SKILL.md", i), strings.Repeat("x", maxText))
	}
	if got := len(strings.Fields(h.list())); got != 15 {
		t.Errorf("%d skills of 1 MiB are listed", got)
	}
	h.create("one-more")
	h.do("box_get_skill", data{"name": "s19"}) // can be asked for one by one
}
