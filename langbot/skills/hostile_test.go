package skills

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

func TestPaths(t *testing.T) {
	h := newHost(t)
	h.create("s")
	h.put("s/dir/f", "x")
	for _, action := range []string{"box_read_skill_file", "box_write_skill_file", "box_list_skill_files"} {
		for p, want := range map[string]string{
			"/etc/passwd": "path must be relative", "../other/f": "path must stay within the skill package root",
			"dir/../../f": "must stay within", "..": "must stay within", "a\x00b": "NUL",
		} {
			h.refused(action, data{"name": "s", "path": p, "content": "x"}, want)
		}
		h.refused(action, data{"name": "s", "path": 1}, "path")
	}
	h.refused("box_read_skill_file", data{"name": "s", "path": "none"}, "Skill file not found: none")
	h.refused("box_read_skill_file", data{"name": "s", "path": "dir"}, "Skill file not found: dir")
	h.refused("box_read_skill_file", data{"name": "s", "path": ""}, "Skill file not found: .")
	h.refused("box_read_skill_file", data{"name": "s", "path": "dir/f/x"}, "Skill file not found: dir/f/x")
	h.refused("box_read_skill_file", data{"name": "s"}, "path")
	h.refused("box_list_skill_files", data{"name": "s", "path": "none"}, "Skill directory not found: none")
	h.refused("box_list_skill_files", data{"name": "s", "path": "dir/f"}, "Skill directory not found: dir/f")
	h.refused("box_write_skill_file", data{"name": "s", "path": "dir"}, "cannot be written")
	h.refused("box_write_skill_file", data{"name": "s", "path": "."}, "path must name a file")
	h.refused("box_write_skill_file", data{"name": "s", "path": "dir/f/x"}, "cannot be written")
	h.refused("box_write_skill_file", data{"name": "s", "path": strings.Repeat("x", 256)}, "cannot be written")
	h.refused("box_write_skill_file", data{"name": "s", "path": "x", "content": strings.Repeat("x", maxText+1)}, "exceeds 1048576 bytes")
	h.refused("box_write_skill_file", data{"name": "s", "path": "x", "content": 5}, "content")
	if got := h.do("box_read_skill_file", data{"name": "s", "path": " ./dir//f "}); got["path"] != "dir/f" || got["content"] != "x" {
		t.Errorf("got %v", got)
	}
}

func TestReadBounds(t *testing.T) {
	h := newHost(t)
	h.create("s")
	h.put("s/long", strings.Repeat("x", maxText+1))
	h.put("s/whole", strings.Repeat("x", maxText))
	h.put("s/latin1", "\xe9")
	h.put("s/crlf", "a\r\nb\x00")
	h.refused("box_read_skill_file", data{"name": "s", "path": "long"}, "long exceeds 1048576 bytes")
	h.refused("box_read_skill_file", data{"name": "s", "path": "latin1"}, "Skill file is not valid UTF-8 text: latin1")
	if got := h.do("box_read_skill_file", data{"name": "s", "path": "whole"})["content"]; len(got.(string)) != maxText {
		t.Error("1 MiB cannot be read")
	}
	if got := h.do("box_read_skill_file", data{"name": "s", "path": "crlf"})["content"]; got != "a\r\nb\x00" {
		t.Errorf("got %q", got)
	}
}

func TestListing(t *testing.T) {
	h := newHost(t)
	h.create("s")
	for i := range 1005 {
		h.put(fmt.Sprintf("s/many/%04d", i), "")
	}
	h.put("s/.hidden/x", "")
	h.put("s/b/x", "")
	h.put("s/a", "12345")
	link(t, "a", h.path("s/in"))
	link(t, "/etc", h.path("s/out"))
	link(t, "nowhere", h.path("s/broken"))
	entries := func(d data) string {
		var all []string
		for _, e := range h.do("box_list_skill_files", d)["entries"].([]any) {
			all = append(all, fmt.Sprint(e.(data)["path"], ":", e.(data)["is_dir"], ":", e.(data)["size"]))
		}
		return strings.Join(all, " ")
	}
	const want = "SKILL.md:false:56 a:false:5 b:true:<nil> broken:false:<nil> in:false:5 many:true:<nil> out:false:<nil>"
	if got := entries(data{"name": "s"}); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := entries(data{"name": "s", "include_hidden": true}); got != ".hidden:true:<nil> "+want {
		t.Errorf("got %s", got)
	}
	for _, c := range []struct {
		max       any
		n         int
		truncated bool
	}{{nil, 200, true}, {1, 1, true}, {1000, 1000, true}, {5000, 1000, true}} {
		got := h.do("box_list_skill_files", data{"name": "s", "path": "many", "max_entries": c.max})
		if n := len(got["entries"].([]any)); n != c.n || got["truncated"] != c.truncated {
			t.Errorf("max_entries %v: %d entries, truncated %v", c.max, n, got["truncated"])
		}
	}
	if got := h.do("box_list_skill_files", data{"name": "s", "path": "b", "max_entries": 1}); got["truncated"] != false {
		t.Error("a whole list is called truncated")
	}
	for _, bad := range []any{0, -1, "5", 1.5, true} {
		h.refused("box_list_skill_files", data{"name": "s", "max_entries": bad}, "max_entries must be a positive integer")
	}
	h.refused("box_list_skill_files", data{"name": "s", "include_hidden": "yes"}, "include_hidden")
	for i := range maxEntries {
		h.put(fmt.Sprintf("s/many/%05d", i), "")
	}
	h.refused("box_list_skill_files", data{"name": "s", "path": "many"}, "exceeds 10000 entries")
}

// Symlinks are followed within a package and never out of it, not even into another one.
func TestSymlinks(t *testing.T) {
	h := newHost(t)
	h.create("s")
	h.create("other")
	h.put("other/f", "secret")
	h.put("s/real/f", "old")
	outside := filepath.Join(h.dir, "outside")
	if err := os.WriteFile(outside, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"abs": outside, "up": "../other/f", "far": "../../../outside", "dir": "../other", "proc": "/proc/self/fd", "loop": "loop", "own": "/srv/skills/ws-1/s/real/f",
	} {
		link(t, to, h.path("s/"+name))
		p := name
		if name == "dir" || name == "proc" {
			p += "/f"
			h.refused("box_list_skill_files", data{"name": "s", "path": name}, "must stay within the skill package root")
		}
		want := "must stay within the skill package root"
		if name == "loop" {
			want = ""
		}
		h.refused("box_read_skill_file", data{"name": "s", "path": p}, want)
		h.refused("box_write_skill_file", data{"name": "s", "path": p, "content": "x"}, want)
		if name == "dir" {
			h.refused("box_write_skill_file", data{"name": "s", "path": "dir/a/b/c", "content": "x"}, want)
		}
	}
	if p, _ := os.ReadFile(outside); string(p) != "secret" || h.read("other/f") != "secret" {
		t.Error("something outside was written")
	}
	link(t, "real", h.path("s/in"))
	link(t, "in/f", h.path("s/inf"))
	h.do("box_write_skill_file", data{"name": "s", "path": "inf", "content": "new"})
	if h.read("s/real/f") != "new" {
		t.Error("a symlink within the package was replaced, not followed")
	}
	if st, err := os.Lstat(h.path("s/inf")); err != nil || st.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the symlink is gone: %v", err)
	}
	// Neither a linked entry file nor a linked directory is a skill.
	h.put("x/real.md", entryText1)
	link(t, "real.md", h.path("x/SKILL.md"))
	link(t, "s", h.path("linked"))
	if got := strings.Fields(h.list()); len(got) != 2 {
		t.Errorf("there are %q", got)
	}
	h.do("box_delete_skill", data{"name": "s"}) // the targets of its symlinks are not deleted
	if h.read("other/f") != "secret" {
		t.Error("a deletion followed a symlink")
	}
}

// The store does not wait for anything that a box puts in place of a file.
func TestSpecialFiles(t *testing.T) {
	h := newHost(t)
	h.create("s")
	for _, at := range []string{"s/fifo", "fake/SKILL.md", "s/d/SKILL.md"} {
		if err := os.MkdirAll(filepath.Dir(h.path(at)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(h.path(at), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	socket, err := net.Listen("unix", h.path("s/sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	link(t, "fifo", h.path("s/link"))
	for _, name := range []string{"fifo", "sock", "link"} {
		h.refused("box_read_skill_file", data{"name": "s", "path": name}, "Skill file not found: "+name)
		h.refused("box_list_skill_files", data{"name": "s", "path": name}, "Skill directory not found: "+name)
	}
	h.refused("box_write_skill_file", data{"name": "s", "path": "fifo", "content": "x"}, "cannot be written")
	h.refused("box_write_skill_file", data{"name": "s", "path": "fifo/x", "content": "x"}, "cannot be written")
	if got := h.list(); got != "s" {
		t.Errorf("there is %q", got)
	}
	h.refused("box_scan_skill_directory", data{"path": "/srv/skills/ws-1/fake"}, "No SKILL.md found")
	if err := os.Remove(h.path("s/SKILL.md")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(h.path("s/SKILL.md"), 0o666); err != nil {
		t.Fatal(err)
	}
	if got := h.list(); got != "" {
		t.Errorf("there is %q", got)
	}
}

// Files are written atomically, and stay executable.
func TestWriteReplaces(t *testing.T) {
	h := newHost(t)
	h.create("s")
	h.put("s/run.sh", "old")
	if err := os.Chmod(h.path("s/run.sh"), 0o700); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(h.path("s/run.sh"))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	h.do("box_write_skill_file", data{"name": "s", "path": "run.sh", "content": "newer"})
	h.do("box_write_skill_file", data{"name": "s", "path": "a/b/c.txt"})
	p := make([]byte, 10)
	if n, _ := reader.Read(p); string(p[:n]) != "old" {
		t.Errorf("who had it open reads %q", p[:n])
	}
	for name, mode := range map[string]fs.FileMode{"run.sh": 0o755, "a/b/c.txt": 0o644, "a/b": fs.ModeDir | 0o755} {
		if st, err := os.Stat(h.path("s/" + name)); err != nil || st.Mode() != mode {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	// Anything that a box puts in the way of the next write is removed.
	h.put("s/"+staged+"/deep/x", "x")
	h.do("box_write_skill_file", data{"name": "s", "path": "run.sh", "content": "3"})
	if h.read("s/run.sh") != "3" {
		t.Error("not written")
	}
	h.clean()
}

// Deleting works whatever modes and depth a box's directories have, and the next action finishes a
// deletion that a crash interrupted.
func TestDeleteHostileTree(t *testing.T) {
	asStranger(t)
	h := newHost(t)
	for _, top := range []string{"s", private} {
		h.put(top+"/SKILL.md", "x")
		h.put(top+"/a/b/c", "x")
		deep, err := os.OpenRoot(h.path(top))
		if err != nil {
			t.Fatal(err)
		}
		for range 400 {
			if err := deep.Mkdir("d", 0o755); err != nil {
				t.Fatal(err)
			}
			next, err := deep.OpenRoot("d")
			deep.Close()
			if err != nil {
				t.Fatal(err)
			}
			deep = next
		}
		deep.Close()
		for name, mode := range map[string]fs.FileMode{"/a/b/c": 0, "/a/b": 0, "/a": 0o400, "": 0o500} {
			defer os.Chmod(h.path(top+name), 0o755)
			if err := os.Chmod(h.path(top+name), mode); err != nil && !errors.Is(err, fs.ErrPermission) {
				t.Fatal(err)
			}
		}
	}
	h.do("box_delete_skill", data{"name": "s"})
	if left := h.left(); len(left) != 0 {
		t.Errorf("%v was left", left)
	}
}

// asStranger drops root's rights to files for the rest of a test that runs as root. Its thread is
// thrown away.
func asStranger(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread()
	if err := errors.Join(unix.Setfsgid(65534), unix.Setfsuid(65534)); err != nil {
		t.Fatal(err)
	}
}

// A box writes, moves and links as fast as it can while every action runs. Nothing outside is
// touched, nothing blocks, and every action is answered.
func TestRaces(t *testing.T) {
	h := newHost(t)
	h.create("s")
	h.create("other")
	h.put("other/f", "secret")
	outside := filepath.Join(h.dir, "outside")
	if err := os.MkdirAll(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for seed := range 3 {
		wg.Go(func() { meddle(t, h.path("s"), outside, uint64(seed), stop) })
	}
	for i := range 100 {
		for _, action := range []string{"box_write_skill_file", "box_read_skill_file", "box_list_skill_files", "box_update_skill", "box_scan_skill_directory", "box_list_skills"} {
			p := []string{"a/f", "f", "a/b/f", "b/f"}[i%4]
			got, err := h.try(action, data{"name": "s", "path": p, "content": "new", "skill": data{"instructions": "y"}})
			if action == "box_scan_skill_directory" {
				got, err = h.try(action, data{"path": "/srv/skills/ws-1/s"})
			}
			if err == nil && got["content"] == "secret" {
				t.Fatal("a file of outside was read")
			}
		}
	}
	close(stop)
	wg.Wait()
	if p, _ := os.ReadFile(filepath.Join(outside, "f")); string(p) != "secret" || h.read("other/f") != "secret" {
		t.Error("something outside was written")
	}
	if names, _ := os.ReadDir(outside); len(names) != 1 {
		t.Errorf("outside there is %v", names)
	}
	if err := os.RemoveAll(h.path("s/SKILL.md")); err != nil {
		t.Fatal(err)
	}
	h.put("s/SKILL.md", "x")
	h.do("box_delete_skill", data{"name": "s"})
	h.clean()
}

// meddle acts as a box: it sees only the package, and links to names that it knows of.
func meddle(t *testing.T, pkg, outside string, seed uint64, stop <-chan struct{}) {
	box, err := os.OpenRoot(pkg)
	if err != nil {
		t.Error(err)
		return
	}
	defer box.Close()
	r := rand.New(rand.NewPCG(seed, 1))
	names := []string{"a", "a/f", "a/b", "b", "f", "SKILL.md", staged, "a/b/f"}
	for {
		select {
		case <-stop:
			return
		default:
		}
		name := names[r.IntN(len(names))]
		switch r.IntN(8) {
		case 0:
			_ = box.Symlink(outside, name)
		case 1:
			_ = box.Symlink("../../outside/f", name)
		case 2:
			_ = box.Symlink("../other", name)
		case 3:
			_ = syscall.Mkfifo(filepath.Join(pkg, filepath.Base(name)), 0o666)
		case 4:
			_ = box.Mkdir(name, 0o755)
		case 5:
			if f, err := box.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NONBLOCK, 0o644); err == nil {
				_, _ = f.WriteString("---\nname: s\n---\nx")
				f.Close()
			}
		case 6:
			_ = box.Rename(name, names[r.IntN(len(names))])
		case 7:
			_ = box.Remove(name)
		}
	}
}
