package skills

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// named is an entry file with a name and a recognisable text.
func named(name, text string) string { return "---\nname: " + name + "\n---\n" + text }

// install installs a skill as clients do: its directory is called stem-upload.
func (h *host) install(stem, name string) {
	h.t.Helper()
	h.zip("box_install_skill_zip", makeZip(h.t, file{name: "SKILL.md", content: named(name, "true")}), data{"filename": stem + ".zip"})
}

// is fails the test unless get and list find the skill of that name in dir, and list has no name
// twice.
func (h *host) is(name, dir string) {
	h.t.Helper()
	root := "/srv/skills/" + h.ns + "/" + dir
	s, _ := h.do("box_get_skill", data{"name": name})["skill"].(data)
	if s == nil || s["package_root"] != root || s["name"] != name {
		h.t.Errorf("%s is %v, want that in %s", name, s, dir)
	}
	var roots []string
	seen := make(map[any]bool)
	for _, l := range h.do("box_list_skills", data{})["skills"].([]any) {
		s := l.(data)
		if seen[s["name"]] {
			h.t.Errorf("%s is listed twice", s["name"])
		}
		if seen[s["name"]] = true; s["name"] == name {
			roots = append(roots, s["package_root"].(string))
		}
	}
	if fmt.Sprint(roots) != "["+root+"]" {
		h.t.Errorf("%s is listed in %v, want %s", name, roots, dir)
	}
}

// none fails the test if there is a skill of that name.
func (h *host) none(name string) {
	h.t.Helper()
	if s := h.do("box_get_skill", data{"name": name})["skill"]; s != nil {
		h.t.Errorf("%s is %v", name, s)
	}
	if strings.Contains(" "+h.list()+" ", " "+name+" ") {
		h.t.Errorf("%s is listed", name)
	}
}

// breakages are ways in which a box can break the entry file of a skill that it may write to.
func breakages(t *testing.T) map[string]func(entry string) error {
	return map[string]func(entry string) error{
		"nothing":   func(string) error { return nil },
		"FIFO":      func(e string) error { return syscall.Mkfifo(e, 0o666) },
		"directory": func(e string) error { return os.MkdirAll(e+"/SKILL.md", 0o755) },
		"symlink":   func(e string) error { return os.Symlink("../victim-upload/SKILL.md", e) },
		"dangling":  func(e string) error { return os.Symlink("none", e) },
		"latin1":    func(e string) error { return os.WriteFile(e, []byte("\xff"), 0o644) },
		"long":      func(e string) error { return os.WriteFile(e, make([]byte, maxText+1), 0o644) },
		"no mode":   func(e string) error { return os.WriteFile(e, []byte("x"), 0) },
		"renamed":   func(e string) error { return os.WriteFile(e, []byte(named("victim", "evil")), 0o644) },
		"nested": func(e string) error {
			dir := filepath.Join(filepath.Dir(e), "victim")
			return errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(dir+"/SKILL.md", []byte("evil"), 0o644))
		},
		"socket": func(e string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: e})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
	}
}

// A box that may write to one skill cannot take the name of another, whatever it writes to its
// directory, and whichever of the two is older.
func TestNameIsNotTaken(t *testing.T) {
	for _, first := range []string{"evil", "victim"} {
		t.Run(first, func(t *testing.T) {
			h := newHost(t)
			second := map[string]string{"evil": "victim", "victim": "evil"}[first]
			h.install(first, first)
			h.install(second, second)
			claim := named("victim", "evil")
			late := time.Now().Add(time.Hour)
			for _, at := range []string{"SKILL.md", "skill.md", "victim/SKILL.md", "a/victim/SKILL.md", "victim-upload/SKILL.md"} {
				if err := os.RemoveAll(h.path("evil-upload/SKILL.md")); err != nil {
					t.Fatal(err)
				}
				h.put("evil-upload/"+at, claim)
				if err := os.Chtimes(h.path("evil-upload/"+at), late, late); err != nil {
					t.Fatal(err)
				}
				h.is("victim", "victim-upload")
			}
			h.put("evil-upload/SKILL.md", claim)
			h.is("evil", "evil-upload") // keeps its own name
			h.do("box_update_skill", data{"name": "evil", "skill": data{"description": "d"}})
			if text := h.read("evil-upload/SKILL.md"); !strings.Contains(text, "name: evil\n") {
				t.Errorf("an update left\n%s", text)
			}
			h.put("evil-upload/SKILL.md", claim)

			// Not even while the other is broken; and deleting it deletes nothing else.
			if err := os.Remove(h.path("victim-upload/SKILL.md")); err != nil {
				t.Fatal(err)
			}
			h.none("victim")
			h.do("box_delete_skill", data{"name": "victim"})
			if isDir(h.path("victim-upload")) || !isDir(h.path("evil-upload")) {
				t.Error("the wrong directory was deleted")
			}
			h.none("victim")
			h.is("evil", "evil-upload")
			h.install("again", "victim")
			h.is("victim", "again-upload")
			h.clean()
		})
	}
}

// A broken skill can be deleted.
func TestDeleteBroken(t *testing.T) {
	for what, breaks := range breakages(t) {
		t.Run(what, func(t *testing.T) {
			h := newHost(t)
			h.install("victim", "victim")
			h.install("zip", "s")
			h.create("t")
			h.put("u/SKILL.md", "x") // by hand
			for name, dir := range map[string]string{"s": "zip-upload", "t": "t", "u": "u"} {
				entry := h.path(dir + "/SKILL.md")
				if err := os.Remove(entry); err != nil {
					t.Fatal(err)
				}
				if err := breaks(entry); err != nil {
					t.Fatal(err)
				}
				if got := h.do("box_delete_skill", data{"name": name}); got["deleted"] != name || isDir(h.path(dir)) {
					t.Errorf("%s: %v, and the directory is there: %v", name, got, isDir(h.path(dir)))
				}
				h.refused("box_delete_skill", data{"name": name}, "not found")
			}
			h.is("victim", "victim-upload")
		})
	}
}

// Only directories of the root that bear the name of a skill are deleted, and none that contains
// another skill.
func TestDeleteIsNoHole(t *testing.T) {
	h := newHost(t)
	h.create("victim")
	h.install("called", "other") // in called-upload
	h.put("group/one/SKILL.md", "x")
	h.put("broken-upload/x", "x")
	h.put("file", "x")
	h.put("a.b/x", "x")
	h.put("deep/broken/x", "x")
	outside := filepath.Join(h.dir, "outside")
	if err := os.MkdirAll(outside+"/broken", 0o755); err != nil {
		t.Fatal(err)
	}
	link(t, outside, h.path("link"))
	link(t, "victim", h.path("victim2"))
	for _, name := range []string{
		"", ".", "..", "../outside", "/", "victim/..", "victim/.", "./victim", "link", "link/broken", "victim2", "file", "a.b", "deep/broken", "broken", "called-upload",
		"group", private, register, register + "/victim", "/srv/skills/ws-1/victim", "victim\x00", "\xff", strings.Repeat("x", 65),
	} {
		h.refused("box_delete_skill", data{"name": name}, "")
	}
	for _, dir := range []string{"victim", "called-upload", "group/one", "deep/broken", "a.b", "../outside/broken", "broken-upload"} {
		if !isDir(h.path(dir)) {
			t.Errorf("%s is gone", dir)
		}
	}
	h.do("box_delete_skill", data{"name": "broken-upload"})
	h.clean()
}

// Among directories to which the store gave no name, the one that bears the name has it, else the
// older one; anything deeper than the point where their paths diverge does not count.
func TestNameOfOthers(t *testing.T) {
	h := newHost(t)
	h.put("old/SKILL.md", named("x", ""))
	time.Sleep(20 * time.Millisecond) // birth times have the resolution of the kernel's ticks
	h.put("a/x/SKILL.md", named("x", ""))
	if !h.tells(t, "old") {
		t.Skip("this file system does not know when a directory was made")
	}
	h.is("x", "old")
	if err := os.RemoveAll(h.path("old/SKILL.md")); err != nil {
		t.Fatal(err)
	}
	h.put("old/y/z/SKILL.md", named("x", "")) // counts as old as the directory old
	h.is("x", "old/y/z")
	h.put("x/SKILL.md", "the youngest, but called so")
	h.is("x", "x")
	h.put("a/x/SKILL.md", named("x", "newest"))
	h.is("x", "x")
	// A name that the store gives takes precedence.
	h.put("b/SKILL.md", named("free", ""))
	h.do("box_create_skill", data{"skill": data{"name": "y", "package_root": "/srv/skills/ws-1/b"}})
	h.put("y/SKILL.md", "by hand")
	h.is("y", "b")
	h.put("b/SKILL.md", named("z", ""))
	h.is("y", "b")
	if err := os.RemoveAll(h.path("b")); err != nil { // by hand
		t.Fatal(err)
	}
	h.is("y", "y")
	if _, err := os.Lstat(h.path(register + "/y")); err == nil {
		t.Error("the register has a name of what is gone")
	}
}

// tells reports whether the file system records birth times.
func (h *host) tells(t *testing.T, dir string) bool {
	t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, h.path(dir), 0, unix.STATX_BTIME, &st); err != nil {
		t.Fatal(err)
	}
	return st.Mask&unix.STATX_BTIME != 0
}

// A client, unlike a box, can write another name into the entry file if that is free.
func TestClientRenames(t *testing.T) {
	h := newHost(t)
	h.install("zip", "s")
	h.create("taken")
	h.create("broken")
	if err := os.Remove(h.path("broken/SKILL.md")); err != nil {
		t.Fatal(err)
	}
	write := func(skill, name string) {
		h.do("box_write_skill_file", data{"name": skill, "path": "SKILL.md", "content": named(name, "")})
	}
	// The name of another skill is refused before anything is written.
	before := h.read("zip-upload/SKILL.md")
	h.refused("box_write_skill_file", data{"name": "s", "path": "SKILL.md", "content": named("taken", "")}, `Skill with name "taken" already exists`)
	if h.read("zip-upload/SKILL.md") != before {
		t.Error("the file was written")
	}
	h.is("s", "zip-upload")
	h.is("taken", "taken")
	write("s", "broken") // which cannot be read
	h.is("broken", "zip-upload")
	h.none("s")
	write("broken", "s")
	write("s", "free")
	h.is("free", "zip-upload")
	h.none("s")
	h.put("zip-upload/SKILL.md", named("s", "")) // a box writes it again
	h.is("free", "zip-upload")
	h.create("s")
	h.is("s", "s")
	h.clean()
}

// After a failure, names belong to their previous owners.
func TestNamesAfterFailure(t *testing.T) {
	h := newHost(t)
	h.install("zip", "s")
	if err := os.RemoveAll(h.path("zip-upload/SKILL.md")); err != nil {
		t.Fatal(err)
	}
	// The entry file cannot be written because it is a directory; the name was given before that.
	if err := os.MkdirAll(h.path("s/SKILL.md"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.refused("box_create_skill", data{"skill": data{"name": "s"}}, "not a regular file")
	if to, err := os.Readlink(h.path(register + "/s")); to != "zip-upload" {
		t.Errorf("s is that of %q, %v", to, err)
	}
	// The name of a broken skill can be given to another.
	if err := os.RemoveAll(h.path("s")); err != nil {
		t.Fatal(err)
	}
	h.create("s")
	h.is("s", "s")
	h.do("box_delete_skill", data{"name": "zip-upload"})
	h.is("s", "s")
	h.clean()
}

// Links that somebody put into the register are not followed, and the register still works.
func TestRegister(t *testing.T) {
	h := newHost(t)
	h.create("s")
	outside := filepath.Join(h.dir, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"a": outside, "b": "../outside", "c": ".", "d": private, "e": register, "f": "none", "g": "s/SKILL.md", "h": "s/SKILL.md/x"} {
		link(t, to, h.path(register+"/"+name))
		h.refused("box_delete_skill", data{"name": name}, "not found")
		if _, err := os.Lstat(h.path(register + "/" + name)); err == nil {
			t.Errorf("%s is that of %s", name, to)
		}
	}
	if !isDir(outside) {
		t.Error("what is outside is gone")
	}
	h.is("s", "s")
	// An entry that is not a symlink protects no name and does no harm.
	h.put(register+"/x/SKILL.md", "x")
	h.put(register+"/y", "x")
	h.put(register+"/.z", "x")
	var log strings.Builder
	h.store.log = slog.New(slog.NewTextHandler(&log, nil))
	h.is("s", "s")
	for _, name := range []string{"x", "y", ".z"} {
		if !strings.Contains(log.String(), register+"/"+name+"\n") && !strings.Contains(log.String(), register+"/"+name+" ") {
			t.Errorf("nothing is said about %s:\n%s", name, &log)
		}
	}
	h.create("y")
	h.is("y", "y")
	h.do("box_delete_skill", data{"name": "s"})
	h.none("s")
	for name, want := range map[string]bool{register: true, register + "/x": true, private: true, ".boxd-namesake": false, "s": false, "s/" + register: false} {
		if IsPrivate(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
