package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"
)

func TestParseRoot(t *testing.T) {
	for _, c := range []struct {
		text string
		want mountRoot
		err  string
	}{
		{"/srv/a", mountRoot{path: "/srv/a"}, ""},
		{"/", mountRoot{path: "/"}, ""},
		{"/srv/a:ro", mountRoot{path: "/srv/a", readOnly: true}, ""},
		{"/srv/a:no-root-owned", mountRoot{path: "/srv/a", noRootOwned: true}, ""},
		{"/srv/a:ro:no-root-owned", mountRoot{path: "/srv/a", readOnly: true, noRootOwned: true}, ""},
		{"/srv/a:no-root-owned:ro", mountRoot{path: "/srv/a", readOnly: true, noRootOwned: true}, ""},
		{"", mountRoot{}, "absolute"},
		{":ro", mountRoot{}, "absolute"},
		{"srv", mountRoot{}, "absolute"},
		{"/srv/", mountRoot{}, "cleaned"},
		{"/srv/../etc", mountRoot{}, "cleaned"},
		{"/srv\x00", mountRoot{}, "absolute"},
		{"/srv\n", mountRoot{}, "absolute"},
		{"/" + strings.Repeat("x", 300), mountRoot{}, "absolute"},
		{"/srv:", mountRoot{}, `option ""`},
		{"/srv:ro:", mountRoot{}, `option ""`},
		{"/srv:ro:ro", mountRoot{}, "at most once"},
		{"/srv:rw", mountRoot{}, `option "rw"`},
		{"/srv:RO", mountRoot{}, `option "RO"`},
		{"/srv: ro", mountRoot{}, `option " ro"`},
	} {
		got, err := parseRoot(c.text)
		if got != c.want || c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%q: %+v, %v, want %+v, %q", c.text, got, err, c.want, c.err)
		}
	}
}

// TestRootsAddUp: a root that is named twice, or lies in another root, has the restrictions of
// both.
func TestRootsAddUp(t *testing.T) {
	for _, c := range []struct{ roots, want string }{
		{"/a /b", "/a /b"},
		{"/a /a:ro", "/a:ro"},
		{"/a:no-root-owned /a /a:ro", "/a:ro:no-root-owned"},
		{"/a:ro /a/b", "/a:ro /a/b:ro"},
		{"/a/b/c /a:no-root-owned /a/b", "/a:no-root-owned /a/b:no-root-owned /a/b/c:no-root-owned"},
		{"/a /ab:ro", "/a /ab:ro"},
		{"/a /a/b:ro", "is more restricted"},
		{"/ /a:no-root-owned", "is more restricted"},
		{"/a:ro /a/b:no-root-owned", "is more restricted"},
		{"/a b", "absolute"},
	} {
		all, err := newRoots(strings.Fields(c.roots), "")
		var got []string
		for _, r := range all {
			text := r.path
			if r.readOnly {
				text += ":ro"
			}
			if r.noRootOwned {
				text += ":no-root-owned"
			}
			got = append(got, text)
		}
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && strings.Join(got, " ") != c.want {
			t.Errorf("%s: %s, %v, want %q", c.roots, got, err, c.want)
		}
	}
}

func TestRootOf(t *testing.T) {
	all, err := newRoots([]string{"/srv", "/srv/in", "/own"}, "/srv/state/workspaces")
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		"/srv": "/srv", "/srv/": "/srv", "//srv/./x": "/srv", "/srv/in": "/srv/in", "/srv/in/x": "/srv/in", "/srv/inner": "/srv",
		"/srv/state/workspaces/t/s": "/srv/state/workspaces", "/srv/state": "/srv", "/": "", "/srvx": "", "/etc": "", "": "",
		"/srv/../etc": "/srv", // and is refused there: the kernel judges ".."
		"/etc/../srv": "",
	} {
		if got, ok := all.of(source); got.path != want || ok != (want != "") {
			t.Errorf("%q: %q, want %q", source, got.path, want)
		}
	}
}

// TestHostSource: the access to the host of a client that is not root.
func TestHostSource(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(base, name) }
	for _, err := range []error{
		os.MkdirAll(at("rw/dir"), 0o755), os.MkdirAll(at("ro/dir"), 0o755), os.MkdirAll(at("own/dir"), 0o755),
		os.MkdirAll(at("out/dir"), 0o755), os.MkdirAll(at("clean/dir"), 0o755),
		os.Symlink("../out/dir", at("rw/out")), os.Symlink(at("out"), at("rw/absolute")), os.Symlink("dir", at("rw/in")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	me := os.Getuid()
	roots, err := newRoots([]string{at("rw"), at("ro") + ":ro", at("missing"), at("clean") + ":no-root-owned"}, at("own"))
	if err != nil {
		t.Fatal(err)
	}
	const outside = "is outside of the launcher's mount roots: root names them in /etc/boxd/launcher.yaml or with --mount-root"
	notMine := "only what belongs to the launcher's client"
	rootOwned := ""
	if me == 0 || os.Getgid() == 0 {
		rootOwned = "belongs to root"
	}
	for _, c := range []struct {
		m    engine.Mount
		make bool
		uid  int
		want string
	}{
		{engine.Mount{Source: at("rw/dir")}, false, 7, ""},
		{engine.Mount{Source: at("rw")}, false, 7, ""},
		{engine.Mount{Source: at("rw/in")}, false, 7, ""},
		{engine.Mount{Source: at("rw/out")}, false, 7, "leaves the directory"},
		{engine.Mount{Source: at("rw/absolute")}, false, 7, "leaves the directory"},
		{engine.Mount{Source: at("rw") + "/../out/dir"}, false, 7, "leaves the directory"},
		{engine.Mount{Source: at("out/dir")}, false, 7, outside},
		{engine.Mount{Source: at("out/dir")}, false, 0, ""}, // root's own client
		{engine.Mount{Source: at("out/dir"), Within: at("out")}, false, 7, outside},
		{engine.Mount{Source: at("out/none"), Within: at("out")}, true, 7, outside},
		{engine.Mount{Source: base, Within: "/"}, false, 7, outside},
		{engine.Mount{Source: "/", Within: "/"}, false, 7, outside},
		{engine.Mount{Source: "/etc/shadow"}, false, 7, outside},
		{engine.Mount{Source: at("rw/dir"), Within: "/"}, false, 7, ""},
		{engine.Mount{Source: at("rw/dir"), Within: at("rw/dir")}, false, 7, ""},
		{engine.Mount{Source: at("rw/out"), Within: "/"}, false, 7, "leaves the directory"},
		{engine.Mount{Source: at("rw/dir"), NoLinks: base}, false, 7, ""},
		{engine.Mount{Source: at("rw/in"), NoLinks: base}, false, 7, "passes a symlink"},
		{engine.Mount{Source: at("rw/new/er"), Within: at("rw")}, true, 7, ""},
		{engine.Mount{Source: at("rw/above/er"), Within: base}, true, 7, ""},
		{engine.Mount{Source: at("rw/out/new"), Within: at("rw")}, true, 7, "symlink"},
		{engine.Mount{Source: at("ro/dir")}, false, 7, "is read-only"},
		{engine.Mount{Source: at("ro/dir"), ReadOnly: true}, false, 7, ""},
		{engine.Mount{Source: at("ro/new"), Within: at("ro"), ReadOnly: true}, true, 7, "does not exist"},
		{engine.Mount{Source: at("missing/x")}, false, 7, "cannot be opened"},
		{engine.Mount{Source: at("missing/x"), Within: at("missing")}, true, 7, "cannot be opened"},
		{engine.Mount{Source: at("clean/dir")}, false, 7, rootOwned},
		{engine.Mount{Source: at("clean/dir"), ReadOnly: true}, false, 7, rootOwned},
		{engine.Mount{Source: at("clean/new"), Within: at("clean")}, true, 7, rootOwned},
		{engine.Mount{Source: at("own/dir")}, false, me + 1, notMine},
		{engine.Mount{Source: at("own/new"), Within: at("own")}, true, me + 1, notMine},
	} {
		if c.make && c.want == "" && me != 0 {
			continue // only root makes directories as their owner
		}
		l := &Launcher{service: &service{ServiceOptions: ServiceOptions{ClientUID: c.uid}, roots: roots}}
		c.m.Target = "/t"
		src, err := l.hostSource(c.m, c.make)
		if err == nil {
			src.Close()
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v, make %t, for %d: %v, want %q", c.m, c.make, c.uid, err, c.want)
		}
		var field *engine.FieldError
		if err != nil && (!errors.As(err, &field) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%+v: %q is not one line about a field", c.m, err)
		}
	}
	if rootOwned != "" {
		if _, err := os.Lstat(at("clean/new")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("made in a directory of root's: %v", err)
		}
	}
}

func TestParseRootsFile(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "",
		"# nothing\n\n":         "",
		"mount_roots: []":       "",
		"mount_roots:\n":        "",
		"mount_roots: # x":      "",
		"mount_roots: [/srv/a]": "/srv/a",
		"mount_roots: [ /srv/a , \"/b:ro\",'/c d', ] # x\n":           "/srv/a|/b:ro|/c d",
		"mount_roots:\n- /a\n- \"/b:ro\"\n":                           "/a|/b:ro",
		"# x\nmount_roots:   # y\n\n  - /a # z\n  # q\n  -  '/b'\r\n": "/a|/b",
		"mount_roots: [/srv/a:ro:no-root-owned]":                      "/srv/a:ro:no-root-owned",
		"mount_root: [/a]":                                            `1: must be "mount_roots:"`,
		"mount_roots: [/a]\nx: 1":                                     `2: must be "mount_roots:"`,
		"{mount_roots: [/a]}":                                         `1: must be "mount_roots:"`,
		" mount_roots: [/a]":                                          `1: must be "mount_roots:"`,
		"- /a":                                                        `1: must be "mount_roots:"`,
		"mount_roots: /a":                                             "1: mount_roots must be a list",
		"mount_roots: null":                                           "1: mount_roots must be a list",
		"mount_roots:[/a]":                                            "1: mount_roots must be a list",
		"mount_roots: [/a\n/b]":                                       "1: has a list that does not end on its line",
		"mount_roots: [/a] x":                                         "1: has something after the list",
		"mount_roots: [/a]#x":                                         "1: has something after the list",
		"mount_roots: [&x /a]":                                        "1: must name an absolute path",
		"mount_roots: [*x]":                                           "1: must name an absolute path",
		"mount_roots: [,]":                                            "1: must name an absolute path",
		"mount_roots: [/a: b]":                                        "1: has a character",
		"mount_roots: [/a{b]":                                         "1: has a character",
		"mount_roots: [\"/a\\n\"]":                                    "1: must have neither backslashes",
		"mount_roots: ['/a''b']":                                      "1: must have neither backslashes",
		"mount_roots: [\"/a]":                                         "1: has a quote that does not end",
		"mount_roots:\n\t- /a":                                        "2: has a tab",
		"mount_roots:\n  - /a\n - /b":                                 "3: must be indented",
		"mount_roots:\n - a":                                          "2: must name an absolute path",
		"mount_roots:\n - - /a":                                       "2: must name an absolute path",
		"mount_roots:\n -":                                            `2: must be "mount_roots:"`,
		"mount_roots:\n - /a\n   /b":                                  `3: must be "mount_roots:"`,
		"mount_roots:\n - '/a' b":                                     "2: has more than one root",
		"mount_roots:\nmount_roots:":                                  "2: mount_roots is there twice",
		"mount_roots: []\n- /a":                                       `2: must be "mount_roots:"`,
		"---\nmount_roots: []":                                        `1: must be "mount_roots:"`,
		"mount_roots:\n" + strings.Repeat("- /a\n", maxRoots+1):       "are more than",
	} {
		roots, err := parseRootsFile(text)
		if err != nil && (want == "" || !strings.Contains(err.Error(), want)) || err == nil && strings.Join(roots, "|") != want {
			t.Errorf("%.60q: %q, %v, want %q", text, roots, err, want)
		}
	}
}

// TestRootsFileIsRoots: a file that others can change is refused.
func TestRootsFileIsRoots(t *testing.T) {
	for _, c := range []struct {
		uid, mode uint32
		want      bool
	}{
		{0, 0o644, true}, {0, 0o600, true}, {0, 0o755, true}, {0, 0o1755, true},
		{1, 0o644, false}, {1, 0o444, false}, {0, 0o664, false}, {0, 0o646, false}, {0, 0o1777, false},
	} {
		if got := isRoots(unix.Stat_t{Uid: c.uid, Mode: c.mode}); got != c.want {
			t.Errorf("%d %o: %t", c.uid, c.mode, got)
		}
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	good := "mount_roots: [/srv]\n"
	for _, err := range []error{
		os.WriteFile(at("good"), []byte(good), 0o644), os.WriteFile(at("open"), nil, 0o600), os.Chmod(at("open"), 0o666),
		os.Symlink("good", at("link")), os.Mkdir(at("dir"), 0o755), unix.Mkfifo(at("fifo"), 0o600),
		os.WriteFile(at("bad"), []byte("\nmount_roots: /srv"), 0o644), os.WriteFile(at("long"), make([]byte, maxRootsFile+1), 0o644),
		os.Mkdir(at("shared"), 0o755), os.WriteFile(at("shared/file"), []byte(good), 0o644), os.Chmod(at("shared"), 0o777),
		os.Chmod(dir, 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	isRoot := os.Getuid() == 0
	for name, want := range map[string]string{
		"good": "", "missing": "", "none/file": "", "open": "must belong to root", "link": "must not be a symlink", "dir": "must be a regular file",
		"fifo": "must be a regular file", "bad": fmt.Sprintf("mount roots: %s:2: mount_roots must be", at("bad")), "long": "is longer than",
		"shared/file": "the directory of",
	} {
		if !isRoot && !slices.Contains([]string{"missing", "none/file", "link", "dir", "fifo"}, name) {
			want = "must belong to root"
		}
		roots, err := readRootsFile(at(name))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %q, %v, want %q", name, roots, err, want)
		}
		if (name == "good" && isRoot) != (len(roots) > 0) {
			t.Errorf("%s: %q", name, roots)
		}
	}
}

// FuzzRootsFile: a file that is accepted means the same to a YAML library.
func FuzzRootsFile(f *testing.F) {
	for _, text := range []string{
		"mount_roots: [/srv/a, \"/srv/b:ro\", '/c']\n", "mount_roots:\n  - /a\n  - \"/b:no-root-owned\" # c\n", "mount_roots: []", "mount_roots:\n- /a:ro:no-root-owned\n",
		"mount_roots: [ /a b , ] # x", "mount_roots: [/a#b, /c d]", "mount_roots:\n - /a?-b=c;d~e+(f)$g^<\n", "mount_roots: [/a: b]", "mount_roots:\n - /a:\n", "mount_roots:\n - /a # \n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		roots, err := parseRootsFile(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("%q: not one line", err)
			}
			return
		}
		var read struct {
			MountRoots []string `yaml:"mount_roots"`
		}
		if err := yaml.UnmarshalWithOptions([]byte(text), &read, yaml.DisallowUnknownField()); err != nil && strings.Contains(text, "mount_roots") {
			t.Fatalf("%q: read as %q, but is not YAML: %v", text, roots, err)
		}
		if !slices.Equal(roots, read.MountRoots) {
			t.Errorf("%q: read as %q, is %q", text, roots, read.MountRoots)
		}
	})
}

// FuzzMountRoot: an accepted root is an absolute, cleaned directory, and the arguments that a
// launcher passes on are parsed to the same root again.
func FuzzMountRoot(f *testing.F) {
	for _, text := range []string{"/srv/a", "/srv/a:ro", "/srv/a:ro:no-root-owned", "/:no-root-owned", "a", "/a:", "/a/../b", "/a:ro:ro"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRoot(text)
		o, perr := ParseService([]string{"--state-dir", "/run/boxd", "--client", "1:1", "--mount-root", text})
		if (err == nil) != (perr == nil) {
			t.Fatalf("%q: %v, as a flag %v", text, err, perr)
		}
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("%q: not one line", err)
			}
			return
		}
		if !filepath.IsAbs(r.path) || filepath.Clean(r.path) != r.path || strings.ContainsAny(r.path, ":\x00\n") || !strings.HasPrefix(text, r.path) || r.own {
			t.Errorf("%q: %+v", text, r)
		}
		again, err := ParseService(o.args()[1:])
		if err != nil || !slices.Equal(again.MountRoots, []string{text}) {
			t.Errorf("%q passed on: %q, %v", text, again.MountRoots, err)
		}
	})
}
