package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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

// TestUnpackOutside: an archive of a directory is not unpacked into it, by whatever path.
func TestUnpackOutside(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(dir+"/from/sub", 0o755), os.MkdirAll(dir+"/from2", 0o755), os.Symlink("from/sub", dir+"/link"), os.Symlink("from", dir+"/same")); err != nil {
		t.Fatal(err)
	}
	whole := archive(t, tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 3, Mode: 0o600})
	text := func() io.Reader { return chunks(true, whole) }
	for _, from := range []string{"/from", "/same", "/link/..", "/from/."} {
		option := `{"max_bytes":1000,"parents":true,"outside":"` + dir + from + `"}`
		for _, to := range []string{"/from", "/from/", "/from/sub", "/from/new/a/b", "/link", "/link/new", "/same", "/from2/../from/x"} {
			if _, _, err := do(t, text(), "unpack", dir+to, option); !errors.Is(err, proto.Inside) {
				t.Errorf("%s into %s: %v", from, to, err)
			}
		}
		for _, to := range []string{"", "/from2", "/from2/new/a", "/from/../other"} {
			if _, _, err := do(t, text(), "unpack", dir+to, option); err != nil {
				t.Errorf("%s into %s: %v", from, to, err)
			}
		}
	}
	if entries, err := os.ReadDir(dir + "/from"); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	if _, _, err := do(t, text(), "unpack", dir, `{"max_bytes":1000,"outside":"`+dir+`/none"}`); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v, want ENOENT", err)
	}
}

// TestUnpackChmod: a new directory gets its mode, and never what another process puts in its place.
func TestUnpackChmod(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/victim", 0o700), os.Mkdir(dir+"/in", 0o700)); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for !stop.Load() {
			if unix.Rmdir(dir+"/in/d") == nil {
				_ = os.Symlink("../victim", dir+"/in/d")
			}
		}
	})
	text := archive(t, tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o777})
	for range 2000 {
		_, _, _ = do(t, chunks(true, text), "unpack", dir+"/in", unlimited)
		_ = unix.Unlink(dir + "/in/d")
	}
	stop.Store(true)
	swapping.Wait()
	if got := tree(t, dir); !strings.Contains(got, "victim drwx------") {
		t.Errorf("%s", got)
	}
}

// TestPackCounts: an archive has about as many bytes as were counted before it was written, also with
// long names and files that are left out.
func TestPackCounts(t *testing.T) {
	dir := t.TempDir()
	deep := dir
	for range 10 {
		deep += "/" + strings.Repeat("d", 200)
	}
	err := os.MkdirAll(deep, 0o755)
	for i := range 50 {
		err = errors.Join(err, unix.Mkfifo(fmt.Sprintf("%s/%d", deep, i), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := do(t, nil, "pack", dir, unlimited)
	if err != nil || len(out) < 50*2500 {
		t.Fatalf("%d bytes, %v", len(out), err)
	}
	if _, _, err := do(t, nil, "pack", dir, fmt.Sprintf(`{"max_bytes":%d}`, len(out)*3/4)); !errors.Is(err, unix.EFBIG) {
		t.Errorf("%v, want EFBIG", err)
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
