package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/agent/files/proto"
	"golang.org/x/sys/unix"
)

const unlimited = `{"max_bytes":1000000}`

// archive returns a tar archive of entries whose content is "x" up to their size.
func archive(t testing.TB, entries ...tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, strings.Repeat("x", int(h.Size)))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestUnpackReplaces: an existing file is replaced as a whole, an existing directory stays as it
// is, and incomplete content is an error that leaves no part of a file.
func TestUnpackReplaces(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/f", []byte("old"), 0o600), os.Mkdir(dir+"/d", 0o711), os.Symlink("f", dir+"/l")); err != nil {
		t.Fatal(err)
	}
	text := archive(t, tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 3, Mode: 0o6751}, tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o777},
		tar.Header{Name: "l", Typeflag: tar.TypeReg, Size: 2, Mode: 0o640}, tar.Header{Name: "n", Typeflag: tar.TypeDir, Mode: 0o055})
	for _, part := range []int{100, 512 + 1, 512 + 512} {
		if _, _, err := do(t, chunks(false, text[:part]), "unpack", dir, unlimited); !errors.Is(err, unix.ECANCELED) {
			t.Errorf("%d bytes: %v, want ECANCELED", part, err)
		}
		if content, _ := os.ReadFile(dir + "/f"); part < 1024 && string(content) != "old" {
			t.Errorf("%d bytes: %q", part, content)
		}
	}
	if _, reply, err := do(t, chunks(true, text[:700], text[700:]), "unpack", dir, unlimited); err != nil || reply.Tree.Files != 2 || reply.Tree.Bytes != 5 {
		t.Errorf("%+v, %v", reply.Tree, err)
	}
	if got := tree(t, dir); got != "d drwx--x--x\nf -rwxr-x--x xxx\nl -rw-r----- xx\nn drwxr-xr-x" {
		t.Errorf("%s", got)
	}
	if _, _, err := do(t, chunks(true, text), "unpack", dir, `{"max_bytes":4}`); !errors.Is(err, unix.EFBIG) {
		t.Errorf("%v, want EFBIG", err)
	}
}

// TestPackLooksFirst: what cannot be packed is reported before any output.
func TestPackLooksFirst(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "z"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 3000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, _, err := do(t, nil, "pack", dir, `{"max_bytes":5000}`)
	if !errors.Is(err, unix.EFBIG) || out != "" {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	if out, _, err := do(t, nil, "pack", dir, `{"max_bytes":5000,"globs":["a"]}`); err != nil || out == "" {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	for _, option := range []string{"", "{", `{"globs":[""]}`} {
		for _, op := range []string{"pack", "unpack", "watch"} {
			if _, _, err := do(t, chunks(true), op, dir, option); !errors.Is(err, unix.EINVAL) {
				t.Errorf("%s %s: %v, want EINVAL", op, option, err)
			}
		}
	}
}

// FuzzUnpack feeds arbitrary archives. Nothing is made or changed outside of the directory, and no
// more than the bound inside.
func FuzzUnpack(f *testing.F) {
	f.Add([]byte(archive(f, tar.Header{Name: "../a/b", Typeflag: tar.TypeReg, Size: 3, Mode: 0o644})))
	f.Add([]byte(archive(f, tar.Header{Name: "l", Linkname: "../out", Typeflag: tar.TypeSymlink}, tar.Header{Name: "l/x", Typeflag: tar.TypeReg, Size: 1})))
	f.Add([]byte(archive(f, tar.Header{Name: "h", Linkname: "../out/kept", Typeflag: tar.TypeLink}, tar.Header{Name: "h", Typeflag: tar.TypeReg, Size: 1})))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := errors.Join(os.MkdirAll(dir+"/in", 0o755), os.MkdirAll(dir+"/out", 0o755), os.WriteFile(dir+"/out/kept", []byte("kept"), 0o600)); err != nil {
			t.Fatal(err)
		}
		var parts []string
		for rest := string(text); rest != ""; {
			n := min(len(rest), proto.MaxChunk)
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		_, reply, _ := do(t, chunks(true, parts...), "unpack", dir+"/in", `{"max_bytes":10000}`)
		if reply.Tree != nil && reply.Tree.Bytes > 10000 {
			t.Errorf("%d bytes", reply.Tree.Bytes)
		}
		if got := tree(t, dir+"/out"); got != "kept -rw------- kept" {
			t.Errorf("outside: %s", got)
		}
		if above, _ := os.ReadDir(dir); len(above) != 2 {
			t.Errorf("above: %v", above)
		}
	})
}
