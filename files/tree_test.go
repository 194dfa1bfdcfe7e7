package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/engine"
)

// archiveOf returns an archive of entries whose content is zeros.
func archiveOf(t testing.TB, entries ...*tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = w.Write(make([]byte, h.Size))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func regular(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name} }
func directoryOf(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}
}

// TestPackIsChecked: whatever the box sends, the caller gets a tree that stays below its top.
func TestPackIsChecked(t *testing.T) {
	long := strings.Repeat("x", maxName+1)
	global := func(text string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{LeftOut: text}}
	}
	for _, c := range []struct {
		what    string
		ok      bool
		entries []*tar.Header
	}{
		{"nothing", true, nil},
		{"a tree", true, []*tar.Header{regular("a"), directoryOf("b"), directoryOf("b/c"), regular("b/c/d"), regular("b/e"), regular("c")}},
		{"a prefix first", true, []*tar.Header{directoryOf("a"), regular("a/x"), regular("a.png")}},
		{"left out", true, []*tar.Header{global("fifo a/b")}},
		{"above", false, []*tar.Header{regular("../a")}},
		{"dots", false, []*tar.Header{directoryOf("a"), regular("a/../b")}},
		{"absolute", false, []*tar.Header{regular("/a")}},
		{"dot", false, []*tar.Header{directoryOf(".")}},
		{"double slash", false, []*tar.Header{directoryOf("a"), regular("a//b")}},
		{"no name", false, []*tar.Header{regular("")}},
		{"long name", false, []*tar.Header{regular(long)}},
		{"twice", false, []*tar.Header{regular("a"), regular("a")}},
		{"unsorted", false, []*tar.Header{regular("b"), regular("a")}},
		{"no directory", false, []*tar.Header{regular("a/b")}},
		{"in a file", false, []*tar.Header{regular("a"), regular("a/b")}},
		{"through a symlink", false, []*tar.Header{{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc"}, regular("a/passwd")}},
		{"symlink, then directory", false, []*tar.Header{{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc"}, directoryOf("a"), regular("a/passwd")}},
		{"a closed directory", false, []*tar.Header{directoryOf("a"), directoryOf("b"), regular("a/x")}},
		{"no target", false, []*tar.Header{{Typeflag: tar.TypeSymlink, Name: "a"}}},
		{"hard link", false, []*tar.Header{{Typeflag: tar.TypeLink, Name: "a", Linkname: "/etc/shadow"}}},
		{"device", false, []*tar.Header{{Typeflag: tar.TypeBlock, Name: "a"}}},
		{"FIFO", false, []*tar.Header{{Typeflag: tar.TypeFifo, Name: "a"}}},
		{"nothing left out", false, []*tar.Header{global("file a")}},
		{"left out with a size", false, []*tar.Header{{Typeflag: tar.TypeReg, Name: "a", PAXRecords: map[string]string{proto.OmittedSize: "5"}}}},
		{"other record", false, []*tar.Header{{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "/etc/passwd"}}}},
		{"too long", false, []*tar.Header{{Typeflag: tar.TypeReg, Name: "a", Size: 2000}}},
		{"too long together", false, []*tar.Header{{Typeflag: tar.TypeReg, Name: "a", Size: 600}, {Typeflag: tar.TypeReg, Name: "b", Size: 600}}},
	} {
		var out bytes.Buffer
		b := &box{stdout: archiveOf(t, c.entries...), stderr: "{}", result: exited(0)}
		err := Pack(t.Context(), b, Options{}, "d", PackOptions{MaxBytes: 1000}, &out)
		if (err == nil) != c.ok || err != nil && (!errors.Is(err, ErrProtocol) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v", c.what, err)
		}
		if c.ok && len(c.entries) > 0 && !strings.Contains(out.String(), "a") {
			t.Errorf("%s: %q", c.what, out.String())
		}
	}
}

// TestPackIsCleaned: owners, setuid bits, odd times and records of the box are not passed on.
func TestPackIsCleaned(t *testing.T) {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "a", Mode: 0o6755, Uid: 1000, Gid: 1000, Uname: "root", ModTime: time.Unix(1<<55, 5), PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}
	var out bytes.Buffer
	if err := Pack(t.Context(), &box{stdout: archiveOf(t, h), stderr: "{}", result: exited(0)}, Options{}, "d", PackOptions{}, &out); err != nil {
		t.Fatal(err)
	}
	got, err := tar.NewReader(&out).Next()
	if err != nil || got.Mode != 0o755 || got.Uid != 0 || got.Uname != "" || got.ModTime.Year() != 9999 || got.PAXRecords["SCHILY.xattr.security.capability"] != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestPackEnds: an archive is complete only if the box says so and sends all of it.
func TestPackEnds(t *testing.T) {
	whole := archiveOf(t, &tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 700})
	full := errors.New("caller is full")
	for _, c := range []struct {
		what   string
		b      *box
		w      io.Writer
		want   error
		padded bool
	}{
		{"whole", &box{stdout: whole, stderr: "{}", result: exited(0)}, nil, nil, false},
		{"cut", &box{stdout: whole[:700], stderr: "{}", result: exited(0)}, nil, ErrProtocol, false},
		{"rubbish", &box{stdout: strings.Repeat("x", 2000), stderr: "{}", result: exited(0)}, nil, ErrProtocol, false},
		{"endless", &box{stdout: whole + strings.Repeat("\x00", 1<<20), stderr: "{}", result: exited(0)}, nil, ErrProtocol, false},
		{"failed", &box{stdout: whole, stderr: `{"failure":{"errno":13,"step":"opening","path":"YQo="}}`, result: exited(1)}, nil, ErrRefused, false},
		{"too large", &box{stderr: `{"failure":{"errno":27}}`, result: exited(1)}, nil, ErrTooLarge, false},
		{"no words", &box{stdout: whole, result: exited(0)}, nil, ErrProtocol, false},
		{"not started", &box{err: engine.ErrBoxLost}, nil, engine.ErrBoxLost, false},
		{"caller", &box{stdout: whole, stderr: "{}", result: exited(0)}, failing{full}, full, false},
	} {
		var out bytes.Buffer
		w := c.w
		if w == nil {
			w = &out
		}
		err := Pack(t.Context(), c.b, Options{}, "d", PackOptions{MaxBytes: 4096}, w)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
		if bytes.HasSuffix(out.Bytes(), make([]byte, 1024)) != (c.want == nil) {
			t.Errorf("%s: has an end of archive: %v", c.what, c.want != nil)
		}
	}
}

func TestUnpackAnswers(t *testing.T) {
	b := &box{stderr: `{"tree":{"files":2,"bytes":3}}`, result: exited(0)}
	tree, err := Unpack(t.Context(), b, Options{}, "d", strings.NewReader("abc"), UnpackOptions{Globs: []string{"*.c"}, MaxBytes: 5, MakeParents: true})
	if err != nil || tree != (Tree{Files: 2, Bytes: 3}) {
		t.Errorf("%+v, %v", tree, err)
	}
	if want := []string{"unpack", "d", `{"globs":["*.c"],"max_bytes":5,"parents":true}`}; !slices.Equal(b.cmd.Args, want) || b.stdin.String() != "\x00\x00\x00\x03abc\x00\x00\x00\x00" {
		t.Errorf("%q, %q", b.cmd.Args, b.stdin.String())
	}
	for answer, want := range map[string]error{
		`{}`: ErrProtocol, `{"tree":{"files":-1}}`: ErrProtocol, `{"tree":{"bytes":-1}}`: ErrProtocol, `{"failure":{"errno":35}}`: engine.ErrInvalid, `{"failure":{"errno":74,"step":"reading the archive"}}`: engine.ErrInvalid, `{"failure":{"errno":28}}`: ErrRefused, `{"failure":{"errno":27}}`: ErrTooLarge,
	} {
		if _, err := Unpack(t.Context(), &box{stderr: answer, result: exited(0)}, Options{}, "d", strings.NewReader(""), UnpackOptions{}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", answer, err, want)
		}
	}
	if _, err := Unpack(t.Context(), &box{stderr: "{}", result: exited(0)}, Options{}, "d", strings.NewReader("abc"), UnpackOptions{MaxBytes: 2}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
}

func TestMade(t *testing.T) {
	omitted := func(text string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: "d/b", PAXRecords: map[string]string{proto.OmittedSize: text}}
	}
	made := func(entries ...*tar.Header) ([]MadeFile, bool, error) {
		return Made(t.Context(), &box{stdout: archiveOf(t, entries...), stderr: `{"truncated":true}`, result: exited(0)}, Options{}, ".", []string{"**/*"}, time.Unix(7, 9))
	}
	a := &tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 2, Mode: 0o640}
	list, more, err := made(a, directoryOf("d"), omitted("123456789012"))
	if err != nil || !more || len(list) != 2 || string(list[0].Content) != "\x00\x00" || list[0].Mode != "0640" || list[0].Omitted || !list[1].Omitted || list[1].Size != 123456789012 {
		t.Errorf("%+v, %v, %v", list, more, err)
	}
	for _, text := range []string{"-1", "x", "99999999999999999999"} {
		if _, _, err := made(directoryOf("d"), omitted(text)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", text, err)
		}
	}
	var many []*tar.Header
	for i := range MadeFiles + 1 {
		many = append(many, regular(string([]byte{'a' + byte(i/26), 'a' + byte(i%26)})))
	}
	if _, _, err := made(many...); !errors.Is(err, ErrProtocol) {
		t.Errorf("too many: %v", err)
	}
	if _, _, err := made(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: MadeBytes + 1}); !errors.Is(err, ErrProtocol) {
		t.Errorf("too large: %v", err)
	}
}

// FuzzTree feeds arbitrary archives of a box. Whatever is passed on is a tree below its top.
func FuzzTree(f *testing.F) {
	f.Add([]byte(archiveOf(f, regular("a"), directoryOf("b"), regular("b/c"))))
	f.Add([]byte(archiveOf(f, &tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc"}, regular("a/b"))))
	f.Fuzz(func(t *testing.T, archive []byte) {
		directories, seen, total := map[string]bool{"": true}, map[string]bool{}, int64(0)
		err := readTree(bytes.NewReader(archive), 1<<20, true, func(h *tar.Header, content io.Reader) error {
			n, err := io.Copy(io.Discard, content)
			total += n
			if h.Typeflag == tar.TypeXGlobalHeader {
				return err
			}
			name := strings.TrimSuffix(h.Name, "/")
			above := ""
			if i := strings.LastIndexByte(name, '/'); i >= 0 {
				above = name[:i]
			}
			if seen[name] || !directories[above] || strings.HasPrefix(name, "/") || slices.Contains(strings.Split(name, "/"), "..") || h.Mode > 0o777 || h.Mode < 0 {
				t.Errorf("passed on %+v", h)
			}
			seen[name] = true
			directories[name] = h.Typeflag == tar.TypeDir
			if err := tar.NewWriter(io.Discard).WriteHeader(h); err != nil {
				t.Errorf("%+v: %v", h, err)
			}
			return err
		})
		if total > 1<<20 {
			t.Errorf("%d bytes", total)
		}
		if err != nil && len(err.Error()) > 12000 {
			t.Errorf("%d bytes of error", len(err.Error()))
		}
	})
}
