package skills

import (
	"os"
	"strings"
	"testing"
	"time"
)

// owner returns the directory to which the register assigns a name.
func (h *host) owner(name string) string {
	dir, _ := os.Readlink(h.path(register + "/" + name))
	return dir
}

// If the store dies while it gives a name away, either the old or the new owner has the name.
func TestRegisterAfterCrash(t *testing.T) {
	h := newHost(t)
	h.install("one", "one")
	h.install("two", "two")
	for _, dir := range []string{"one-upload", "two-upload"} {
		if err := os.Remove(h.path(dir + "/SKILL.md")); err != nil {
			t.Fatal(err)
		}
	}
	for what, c := range map[string]struct{ links, want string }{
		"before":         {".s>one-upload", "s>one-upload"},
		"not made":       {".s>one-upload s>none", "s>one-upload"},
		"made":           {".s>one-upload s>two-upload", "s>two-upload"},
		"neither":        {".s>none s>gone", ""},
		"two names":      {"old>one-upload new>one-upload", "new>one-upload"},
		"also by letter": {"z>one-upload a>one-upload", "a>one-upload"},
		"both":           {".s>two-upload old>one-upload s>one-upload", "s>one-upload"},
	} {
		if err := os.RemoveAll(h.path(register)); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(h.path(register), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Fields(c.links) {
			name, to, _ := strings.Cut(l, ">")
			link(t, to, h.path(register+"/"+name))
			time.Sleep(20 * time.Millisecond) // times have the resolution of the kernel's ticks
		}
		h.list()
		h.list()
		entries, err := os.ReadDir(h.path(register))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Name()+">"+h.owner(e.Name()))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: there is %q, want %q", what, got, c.want)
		}
	}
}

// In a tree that is older than registers, or has lost its register, the store registers the names
// that only one skill claims, before a box can take them.
func TestRegisterAll(t *testing.T) {
	h := newHost(t)
	h.put("a/SKILL.md", named("one", ""))
	h.put("b/deep/SKILL.md", named("two", ""))
	h.put("twice/SKILL.md", "x")
	h.put("c/SKILL.md", named("twice", ""))
	h.put("bad/SKILL.md", "\xff")
	h.list()
	for name, dir := range map[string]string{"one": "a", "two": "b/deep", "twice": "", "bad": "bad", "c": ""} {
		if got := h.owner(name); got != dir {
			t.Errorf("%s is that of %q, want %q", name, got, dir)
		}
	}
	h.put("b/deep/SKILL.md", named("one", "evil"))
	h.is("one", "a")
	h.is("two", "b/deep")
	h.put("a/SKILL.md", named("two", "evil"))
	h.is("one", "a")
	h.clean()
	if err := os.RemoveAll(h.path(register)); err != nil {
		t.Fatal(err)
	}
	h.put("a/SKILL.md", named("one", ""))
	h.put("b/deep/SKILL.md", named("two", ""))
	h.is("one", "a")
	if h.owner("one") != "a" || h.owner("two") != "b/deep" {
		t.Error("names were not registered again")
	}
	// Skills that come later are registered when a client changes them.
	h.put("late/SKILL.md", "x")
	h.put("later/SKILL.md", "x")
	h.list()
	if h.owner("late") != "" {
		t.Error("what was put there by hand was registered")
	}
	h.do("box_update_skill", data{"name": "late", "skill": data{"description": "d"}})
	h.do("box_write_skill_file", data{"name": "later", "path": "f", "content": "x"})
	h.put("late/SKILL.md", named("other", ""))
	h.put("later/SKILL.md", named("other", ""))
	h.is("late", "late")
	h.is("later", "later")
}

// A client's new name must not belong to another skill, even if that is not registered.
func TestClientTakesNoName(t *testing.T) {
	h := newHost(t)
	h.create("s")
	h.put("old/SKILL.md", "x")
	time.Sleep(20 * time.Millisecond)
	h.put("dir/SKILL.md", named("victim", ""))
	h.refused("box_write_skill_file", data{"name": "old", "path": "SKILL.md", "content": named("victim", "")}, `Skill with name "victim" already exists`)
	h.is("victim", "dir")
	h.is("old", "old")
}

// Creating and installing a skill check its name in the same way.
func TestNameIsFree(t *testing.T) {
	for what, breaks := range breakages(t) {
		h := newHost(t)
		h.install("victim", "victim")
		h.install("one", "s")
		h.install("two", "t")
		for _, dir := range []string{"one-upload", "two-upload"} {
			entry := h.path(dir + "/SKILL.md")
			if err := os.Remove(entry); err != nil {
				t.Fatal(err)
			}
			if err := breaks(entry); err != nil {
				t.Fatal(err)
			}
		}
		if what == "renamed" || what == "no mode" && os.Geteuid() == 0 {
			h.refused("box_create_skill", data{"skill": data{"name": "s"}}, `Skill with name "s" already exists`)
			p := makeZip(t, file{name: "SKILL.md", content: named("t", "")})
			h.refused("box_install_skill_zip", data{"file_key": h.send(p), "filename": "again.zip"}, `Skill with name "t" already exists`)
			continue
		}
		h.create("s")
		h.is("s", "s")
		h.install("again", "t")
		h.is("t", "again-upload")
		h.clean()
	}
	// A skill that the search no longer reaches still exists.
	h := newHost(t)
	h.put("top/in/SKILL.md", "x")
	h.list()
	h.put("top/SKILL.md", "x")
	h.refused("box_create_skill", data{"skill": data{"name": "in"}}, `Skill with name "in" already exists`)
	p := makeZip(t, file{name: "SKILL.md", content: named("in", "")})
	h.refused("box_install_skill_zip", data{"file_key": h.send(p), "filename": "again.zip"}, `Skill with name "in" already exists`)
	if h.owner("in") != "top/in" {
		t.Errorf("in is that of %s", h.owner("in"))
	}
}

// A name that no file can have is refused before anything is written.
func TestLongName(t *testing.T) {
	h := newHost(t)
	h.create("s")
	long := strings.Repeat("𐐀", 64)
	h.refused("box_create_skill", data{"skill": data{"name": long}}, "exceed 254 bytes")
	h.do("box_write_skill_file", data{"name": "s", "path": "SKILL.md", "content": named(long, "")})
	h.is("s", "s")
	h.zip("box_install_skill_zip", makeZip(t, file{name: "SKILL.md", content: named(long, "")}), data{"filename": "zip.zip"})
	h.is("zip-upload", "zip-upload")
	if name := long[4:]; checkName(name) != nil {
		t.Error("63 letters are refused")
	} else {
		h.create(name)
		h.is(name, name)
		h.clean()
	}
}

// A skill cannot be created in the directory of another, broken or not.
func TestCreateInNamed(t *testing.T) {
	h := newHost(t)
	h.install("called", "other")
	h.put("group/in/SKILL.md", "x")
	h.do("box_update_skill", data{"name": "in", "skill": data{}})
	for _, entry := range []string{"called-upload/SKILL.md", "group/in/SKILL.md"} {
		if err := os.Remove(h.path(entry)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"called-upload", "group"} {
		h.refused("box_create_skill", data{"skill": data{"name": name}}, "Skill directory already exists")
	}
	if h.owner("other") != "called-upload" || h.owner("in") != "group/in" {
		t.Errorf("other is that of %q, in of %q", h.owner("other"), h.owner("in"))
	}
}
