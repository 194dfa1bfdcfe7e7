package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/unpack/proto"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

var (
	someTime  = time.Unix(1_000_000_000, 123_456_789)
	allLimits = proto.Limits{Bytes: 1 << 20, Entries: 1000}
)

// entry is one of an archive in a test. Its owner is the user of the test, so that the tests need no privilege.
type entry struct {
	name  string
	kind  byte   // as tar.Header.Typeflag; 0 is a regular file
	body  string // or target
	mode  int64
	xattr map[string]string
	edit  func(*tar.Header)
}

func file(name, body string) entry { return entry{name: name, body: body, mode: 0o644} }
func directory(name string) entry  { return entry{name: name, kind: tar.TypeDir, mode: 0o755} }
func symlink(name, target string) entry {
	return entry{name: name, kind: tar.TypeSymlink, body: target, mode: 0o777}
}
func hardlink(name, target string) entry {
	return entry{name: name, kind: tar.TypeLink, body: target, mode: 0o644}
}

func (e entry) header() *tar.Header {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Uid: os.Getuid(), Gid: os.Getgid(), ModTime: someTime, Format: tar.FormatPAX}
	if e.kind != 0 {
		h.Typeflag = e.kind
	}
	if h.Typeflag == tar.TypeReg {
		h.Size = int64(len(e.body))
	} else {
		h.Linkname = e.body
	}
	for k, v := range e.xattr {
		if h.PAXRecords == nil {
			h.PAXRecords = make(map[string]string)
		}
		h.PAXRecords[paxXattr+k] = v
	}
	if e.edit != nil {
		e.edit(h)
	}
	return h
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.header()
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(e.body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// newLayer returns a new directory. At the end of the test it can be removed, whatever the modes in it.
func newLayer(t testing.TB) string {
	layer := t.TempDir()
	t.Cleanup(func() {
		filepath.WalkDir(layer, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				err = os.Chmod(p, 0o700)
			}
			return err
		})
	})
	return layer
}

// unpackTo writes an archive to the layer that is a new directory below t.TempDir.
func unpackTo(t testing.TB, content []byte, limits proto.Limits, below string) (string, proto.Result, error) {
	t.Helper()
	layer := newLayer(t)
	result, err := write(layer, below, bytes.NewReader(content), limits)
	return layer, result, err
}

// tree describes the files of a layer, one a line: type, mode and name; of files with content this, of symlinks the
// target.
func tree(t testing.TB, layer string) string {
	t.Helper()
	var b strings.Builder
	top := filepath.Join(layer, "fs")
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(top, p)
		if err != nil || name == "." {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			fmt.Fprintf(&b, "%s/ %o", name, st.Mode&0o7777)
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%s -> %s", name, target)
		case unix.S_IFREG:
			content, err := os.ReadFile(p)
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
			fmt.Fprintf(&b, "%s %o %q", name, st.Mode&0o7777, content)
		case unix.S_IFCHR:
			fmt.Fprintf(&b, "%s whiteout %d", name, st.Rdev)
		default:
			fmt.Fprintf(&b, "%s type %o", name, st.Mode)
		}
		b.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := readOpaque(layer)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range list {
		fmt.Fprintf(&b, "opaque %s\n", name)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func lines(l ...string) string { return strings.Join(l, "\n") }

// TestWrite: one line for each rule of what an archive becomes.
func TestWrite(t *testing.T) {
	dev := entry{name: "null", kind: tar.TypeChar, mode: 0o666, edit: func(h *tar.Header) { h.Devmajor, h.Devminor = 1, 3 }}
	for _, c := range []struct {
		rule    string
		entries []entry
		want    string
		result  string // what is not zero of Result beside Entries and Bytes
	}{
		{"nothing", nil, "", ""},
		{"ordinary", []entry{directory("d/"), file("d/f", "x"), symlink("d/l", "../f"), hardlink("h", "d/f")}, lines("d/ 755", `d/f 644 "x"`, "d/l -> ../f", `h 644 "x"`), ""},
		{"names are cleaned", []entry{directory("./"), file("/abs", "1"), file("../../up", "2"), file("./dot", "3"), directory("x//y/"), file("x/../z", "4")}, lines(`abs 644 "1"`, `dot 644 "3"`, `up 644 "2"`, "x/ 755", "x/y/ 755", `z 644 "4"`), "inherits"},
		{"modes are exact", []entry{{name: "a", mode: 0o000}, {name: "b", mode: 0o777}, {name: "d", kind: tar.TypeDir, mode: 0o555}, file("d/f", ""), {name: "s", kind: tar.TypeDir, mode: 0o1777}}, lines(`a 0 ""`, `b 777 ""`, "d/ 555", `d/f 644 ""`, "s/ 1777"), ""},
		{"no setuid", []entry{{name: "a", mode: 0o4755}, {name: "d", kind: tar.TypeDir, mode: 0o2775}}, lines(`a 755 ""`, "d/ 775"), "setuid:2"},
		{"no devices", []entry{dev}, "", "device:1"},
		{"a device replaces", []entry{file("null", "x"), directory("d"), file("d/f", "x"), entry{name: "d", kind: tar.TypeBlock}, dev}, "", "device:2"},
		{"FIFOs", []entry{{name: "p", kind: tar.TypeFifo, mode: 0o640}}, "p type 10640", ""},
		{"file over file", []entry{file("a", "1"), file("a", "2")}, `a 644 "2"`, ""},
		{"file over symlink", []entry{file("b", "1"), symlink("a", "b"), file("a", "2")}, lines(`a 644 "2"`, `b 644 "1"`), ""},
		{"file over directory", []entry{directory("a"), file("a/b/c", "1"), file("a", "2")}, `a 644 "2"`, ""},
		{"directory over file", []entry{file("a", "1"), directory("a"), file("a/b", "2")}, lines("a/ 755", `a/b 644 "2"`, "opaque a"), ""},
		{"directory over directory", []entry{directory("a"), file("a/b", "1"), {name: "a", kind: tar.TypeDir, mode: 0o700}}, lines("a/ 700", `a/b 644 "1"`), ""},
		{"directory over symlink", []entry{directory("b"), symlink("a", "b"), directory("a"), file("a/f", "1")}, lines("a/ 755", `a/f 644 "1"`, "b/ 755", "opaque a"), ""},
		{"symlink over directory", []entry{directory("a"), file("a/b", "1"), symlink("a", "x")}, "a -> x", ""},
		{"through a symlink", []entry{directory("real"), symlink("link", "real"), file("link/f", "1")}, lines("link -> real", "real/ 755", `real/f 644 "1"`), ""},
		{"through an absolute symlink", []entry{directory("d"), symlink("d/up", "/e"), file("d/up/f", "1")}, lines("d/ 755", "d/up -> /e", "e/ 755", `e/f 644 "1"`), "inherits"},
		{"through a symlink upwards", []entry{symlink("a", "../../../etc"), file("a/passwd", "1")}, lines("a -> ../../../etc", "etc/ 755", `etc/passwd 644 "1"`), "inherits"},
		{"hard link to a symlink", []entry{symlink("a", "/etc/passwd"), hardlink("b", "a")}, lines("a -> /etc/passwd", "b -> /etc/passwd"), ""},
		{"hard link over a file", []entry{file("a", "1"), file("b", "2"), hardlink("b", "a")}, lines(`a 644 "1"`, `b 644 "1"`), ""},
		{"hard link over a directory", []entry{file("a", "1"), file("b/c", "2"), hardlink("b", "a")}, lines(`a 644 "1"`, `b 644 "1"`), ""},
		{"hard link with a target from the top", []entry{file("a", "1"), hardlink("b", "/../a")}, lines(`a 644 "1"`, `b 644 "1"`), ""},
		{"whiteout", []entry{directory("d"), file("d/.wh.a", "")}, lines("d/ 755", "d/a whiteout 0"), ""},
		{"whiteout before its entry", []entry{file(".wh.a", ""), file("a", "1")}, `a 644 "1"`, ""},
		{"whiteout after its entry", []entry{file("a", "1"), file(".wh.a", "")}, `a 644 "1"`, ""},
		{"whiteout before its directory", []entry{file(".wh.a", ""), directory("a"), file("a/b", "1")}, lines("a/ 755", `a/b 644 "1"`, "opaque a"), ""},
		{"whiteout after its directory", []entry{directory("a"), file("a/b", "1"), file(".wh.a", "")}, lines("a/ 755", `a/b 644 "1"`, "opaque a"), ""},
		{"whiteout of a directory without entry", []entry{file("a/b", "1"), file(".wh.a", "")}, lines("a/ 755", `a/b 644 "1"`, "opaque a"), ""},
		{"whiteouts in a file", []entry{file("a", "1"), file("a/.wh.b", ""), file("a/.wh..wh..opq", ""), file("a/b/.wh.c", "")}, `a 644 "1"`, ""},
		{"whiteouts in what becomes a file", []entry{file("a/.wh.b", ""), file("a", "1")}, `a 644 "1"`, ""},
		{"opaque before siblings", []entry{directory("d"), file("d/.wh..wh..opq", ""), file("d/f", "1")}, lines("d/ 755", `d/f 644 "1"`, "opaque d"), ""},
		{"opaque after siblings", []entry{directory("d"), file("d/f", "1"), file("d/.wh..wh..opq", "")}, lines("d/ 755", `d/f 644 "1"`, "opaque d"), ""},
		{"whiteouts in opaque directories", []entry{directory("d"), file("d/.wh.f", ""), file("d/.wh..wh..opq", ""), directory("d/e"), file("d/e/.wh.g", "")}, lines("d/ 755", "d/e/ 755", "opaque d"), ""},
		{"opaque top", []entry{file(".wh..wh..opq", ""), directory("d")}, lines("d/ 755", "opaque d"), "inherits"},
		{"metadata of AUFS", []entry{file(".wh..wh.plnk/1.2", "x"), directory("d"), file("d/.wh..wh.aufs", "")}, "d/ 755", ""},
		{"missing parents", []entry{file("a/b/c", "1")}, lines("a/ 755", "a/b/ 755", `a/b/c 644 "1"`), "inherits"},
		{"parents that come later", []entry{file("a/b", "1"), {name: "a", kind: tar.TypeDir, mode: 0o711}}, lines("a/ 711", `a/b 644 "1"`), ""},
		{"capabilities", []entry{{name: "a", mode: 0o755, xattr: map[string]string{"security.capability": "x"}}}, `a 755 ""`, "capability:1"},
		{"attributes", []entry{{name: "a", mode: 0o755, xattr: map[string]string{"trusted.overlay.opaque": "y", "user.overlay.opaque": "y", "security.selinux": "x"}}}, `a 755 ""`, "xattr:3"},
		{"attributes of a symlink", []entry{{name: "a", kind: tar.TypeSymlink, body: "b", xattr: map[string]string{"user.x": "y"}}}, "a -> b", "xattr:1"},
		{"global headers", []entry{{name: "", kind: tar.TypeXGlobalHeader, edit: func(h *tar.Header) {
			*h = tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "../g", PAXRecords: map[string]string{"comment": "x"}}
		}}}, "", ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			layer, result, err := unpackTo(t, archive(t, c.entries...), allLimits, "")
			if err != nil {
				t.Fatal(err)
			}
			if got := tree(t, layer); got != c.want {
				t.Errorf("the layer has\n%s\nwant\n%s", got, c.want)
			}
			got := ""
			if result.Inherits {
				got = "inherits"
			}
			for kind, n := range result.Skipped {
				got += fmt.Sprintf("%s:%d", kind, n)
			}
			if got != c.result || result.Entries != int64(len(c.entries)) {
				t.Errorf("result %+v, want %q and %d entries", result, c.result, len(c.entries))
			}
		})
	}
}

// TestWriteRefuses: one line for each rule that an archive can break.
func TestWriteRefuses(t *testing.T) {
	owner := func(uid, gid int) func(*tar.Header) { return func(h *tar.Header) { h.Uid, h.Gid = uid, gid } }
	small := proto.Limits{Bytes: 10, Entries: 3}
	for _, c := range []struct {
		rule    string
		entries []entry
		limits  proto.Limits
		status  int
		want    string // in the error
	}{
		{"owner", []entry{{name: "a", edit: owner(65535, 0)}}, allLimits, proto.Refused, "ids outside of the box's range"},
		{"group", []entry{{name: "a", edit: owner(0, 1<<31)}}, allLimits, proto.Refused, "ids outside of the box's range"},
		{"negative owner", []entry{{name: "a", edit: func(h *tar.Header) { h.Uid, h.Format = -1, tar.FormatGNU }}}, allLimits, proto.Refused, "ids outside of the box's range"},
		{"name of an entry", []entry{file(strings.Repeat("x", 256), "")}, allLimits, proto.Refused, "longer than 255 bytes"},
		{"name in a symlink", []entry{symlink("l", strings.Repeat("x", 256)), file("l/f", "")}, allLimits, proto.Refused, "longer than 255 bytes"},
		{"path", []entry{file(strings.Repeat("xxxxxxxxxxxxxxx/", 256)+"f", "")}, allLimits, proto.Refused, "longer than 4095 bytes"},
		{"depth", []entry{file(strings.Repeat("x/", 257)+"f", "")}, allLimits, proto.Refused, "more than 256 directories deep"},
		{"depth through symlinks", []entry{file(strings.Repeat("x/", 255)+"f", ""), symlink("s", strings.Repeat("x/", 255)), file("s/y/z/f", "")}, allLimits, proto.Refused, "more than 256 directories deep"},
		{"entries", []entry{file("a", ""), file("a", ""), file("a", ""), file("a", "")}, small, proto.Refused, "more than 3 entries"},
		{"missing directories", []entry{file("a/b/c/d", "")}, small, proto.Refused, "more than 3 entries"},
		{"bytes", []entry{file("a", "123456"), file("b", "12345")}, small, proto.Refused, "more than 10 bytes"},
		{"bytes of a file that is replaced", []entry{file("a", "123456"), file("a", "12345")}, small, proto.Refused, "more than 10 bytes"},
		{"bytes that overflow", []entry{file("a", "1"), {name: "b", edit: func(h *tar.Header) { h.Size = 1<<63 - 1 }}}, small, proto.Refused, "more than 10 bytes"},
		{"file as directory", []entry{file("a", ""), file("a/b", "")}, allLimits, proto.Refused, `"a": not a directory`},
		{"FIFO as directory", []entry{{name: "a", kind: tar.TypeFifo}, file("a/b", "")}, allLimits, proto.Refused, `"a": not a directory`},
		{"top that is a file", []entry{file(".", "x")}, allLimits, proto.Refused, "must be a directory"},
		{"top that is a symlink", []entry{symlink("/", "/etc")}, allLimits, proto.Refused, "must be a directory"},
		{"symlink loop", []entry{symlink("a", "b"), symlink("b", "a"), file("a/f", "")}, allLimits, proto.Refused, "more than 40 symlinks"},
		{"hard link without target", []entry{hardlink("a", "/etc/passwd")}, allLimits, proto.Refused, "no such file"},
		{"hard link out of the layer", []entry{hardlink("a", "../../../../../../../../etc/passwd")}, allLimits, proto.Refused, "no such file"},
		{"hard link through a symlink out of the layer", []entry{symlink("s", "/etc"), hardlink("a", "s/passwd")}, allLimits, proto.Refused, "no such file"},
		{"hard link to itself", []entry{file("a", ""), hardlink("a", "a")}, allLimits, proto.Refused, "no such file"},
		{"hard link to a directory", []entry{directory("a"), hardlink("b", "a")}, allLimits, proto.Refused, "no such file"},
		{"hard link to the top", []entry{hardlink("b", ".")}, allLimits, proto.Refused, "no such file"},
		{"hard link to a whiteout", []entry{file(".wh.a", ""), hardlink("b", "a")}, allLimits, proto.Refused, "no such file"},
		{"hard link into what it replaces", []entry{file("a/b", ""), hardlink("a", "a/b")}, allLimits, proto.Refused, "no such file"},
		{"whiteout of nothing", []entry{file(".wh.", "")}, allLimits, proto.Corrupt, "whiteout without a name"},
		{"whiteout of a directory itself", []entry{file("d/.wh..", "")}, allLimits, proto.Corrupt, "whiteout without a name"},
		{"whiteout of a parent", []entry{file("d/.wh...", "")}, allLimits, proto.Corrupt, "whiteout without a name"},
		{"content of a whiteout", []entry{file(".wh.d/f", "")}, allLimits, proto.Corrupt, "a whiteout has no content"},
		{"symlink without target", []entry{{name: "a", kind: tar.TypeSymlink}}, allLimits, proto.Corrupt, "its target must have"},
		{"long symlink", []entry{symlink("a", strings.Repeat("x", 4096))}, allLimits, proto.Corrupt, "its target must have"},
		{"contiguous file", []entry{{name: "a", kind: tar.TypeCont}}, allLimits, proto.Refused, "no layer has such entries"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, e := range c.entries {
				h := e.header()
				if err := w.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
				if h.Typeflag == tar.TypeReg {
					w.Write([]byte(e.body))
				}
			}
			w.Flush()
			_, _, err := unpackTo(t, b.Bytes(), c.limits, "")
			checkError(t, err, c.status, c.want)
		})
	}
}

// checkError: one line, with the status and the text that the caller relies on.
func checkError(t *testing.T, err error, want int, text string) {
	t.Helper()
	if err == nil {
		t.Fatal("the archive was accepted")
	}
	if got := status(err); got != want || !strings.Contains(err.Error(), text) {
		t.Errorf("error %q with status %d, want %q with status %d", err, got, text, want)
	}
	if strings.ContainsAny(err.Error(), "\n\r\x1b") || len(err.Error()) > 1000 {
		t.Errorf("error %q is not one short line", err)
	}
}

// A digest protects layers, some of which have no end mark. Without one the mark has to be there, wherever the
// archive was cut off.
func TestWriteEndMark(t *testing.T) {
	full := archive(t, directory("d"), file("d/f", strings.Repeat("x", 700)))
	members := len(full) - 1024
	whole := allLimits
	whole.Root = true
	for _, n := range []int{0, 1536, members} { // a directory has two blocks of PAX records and one of its own
		if _, _, err := unpackTo(t, full[:n], allLimits, ""); err != nil {
			t.Errorf("%d bytes of a layer: %v", n, err)
		}
		_, _, err := unpackTo(t, full[:n], whole, "")
		checkError(t, err, proto.Corrupt, "reading the archive: the archive ends without its end mark: it was cut off")
	}
	_, _, err := unpackTo(t, full[:3072], whole, "")
	checkError(t, err, proto.Corrupt, `entry "d/f": the archive ends without its end mark`)
	for _, n := range []int{members + 512, members + 1024} {
		if _, _, err := unpackTo(t, full[:n], whole, ""); err != nil {
			t.Errorf("%d bytes with an end mark: %v", n, err)
		}
	}
}
