package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/unpack/proto"
	"golang.org/x/sys/unix"
)

// FuzzWrite: no archive makes the writer touch a file outside of the layer, panic, write more than the limits, or
// leave what it cannot read.
func FuzzWrite(f *testing.F) {
	f.Add(archive(f, directory("d/"), file("d/f", "x"), symlink("d/l", "../f"), hardlink("h", "d/f"), file("d/.wh.x", ""), file("d/.wh..wh..opq", "")))
	f.Add(archive(f, symlink("a", "/"), file("a/outside/victim", "x"), symlink("b", "../.."), file("b/outside/victim", "x"), hardlink("c", "b/outside/victim")))
	f.Add(archive(f, file("a/b", "1"), file(".wh.a", ""), file("a", ""), directory("a"), entry{name: "p", kind: tar.TypeFifo, mode: 0o600}, file("p/x", "")))
	f.Add(archive(f, entry{name: "a", mode: 0o444, xattr: map[string]string{"user.x": "y"}}, entry{name: "c", kind: tar.TypeChar}, file("../../outside/victim", "x")))
	f.Fuzz(func(t *testing.T, content []byte) {
		base := newLayer(t)
		layer, outside := filepath.Join(base, "x/layer"), filepath.Join(base, "outside")
		for _, dir := range []string{layer, outside} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(outside, "victim"), []byte("as it was"), 0o600); err != nil {
			t.Fatal(err)
		}
		var before, after unix.Stat_t
		if err := unix.Stat(filepath.Join(outside, "victim"), &before); err != nil {
			t.Fatal(err)
		}
		limits := proto.Limits{Bytes: 1 << 16, Entries: 64}
		result, err := write(layer, "", bytes.NewReader(content), limits)
		if err != nil && strings.ContainsAny(err.Error(), "\n\r\x1b") {
			t.Errorf("error %q is not one line", err)
		}
		if err != nil && os.Getuid() == 0 && status(err) == proto.Failed {
			t.Errorf("the archive is the reason for an error that does not say so: %v", err)
		}
		if err := unix.Stat(filepath.Join(outside, "victim"), &after); err != nil || before.Ctim != after.Ctim || before.Nlink != after.Nlink {
			t.Fatalf("the file outside has changed: %+v, %v", after, err)
		}
		for dir, want := range map[string]int{base: 2, outside: 1, filepath.Join(base, "x"): 1} {
			if names, err := os.ReadDir(dir); err != nil || len(names) != want {
				t.Fatalf("%s has %v, %v", dir, names, err)
			}
		}
		if err != nil {
			return
		}
		if os.Getuid() == 0 { // who else may not read what the archive says that nobody may
			total, err := sum(layer)
			if err != nil || total.Bytes > limits.Bytes || total.Files > 2*limits.Entries+1 || result.Bytes > limits.Bytes {
				t.Errorf("sum %+v of result %+v: %v", total, result, err)
			}
		}
	})
}

// FuzzInflate: no stream makes the decompressor panic or write more than the limit.
func FuzzInflate(f *testing.F) {
	f.Add([]byte("text"))
	f.Add(gzipped(f, "text", "more"))
	f.Add(zstded(f, "text", "more"))
	f.Add(gzipped(f, strings.Repeat("x", 1<<17)))
	f.Add(zstded(f, strings.Repeat("x", 1<<17)))
	f.Fuzz(func(t *testing.T, content []byte) {
		var out bytes.Buffer
		err := inflate(&out, bytes.NewReader(content), 1<<16)
		if out.Len() > 1<<16 || err != nil && status(err) == proto.Failed {
			t.Errorf("%d bytes, error %v", out.Len(), err)
		}
	})
}

// TestRandomTrees: what is written is what the archive has.
func TestRandomTrees(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 0))
		names := []string{"a", "b", "c", "ü", "with space", strings.Repeat("long", 60)}
		entries := map[string]entry{}
		var order []string // parents first
		dirs := []string{""}
		for range r.IntN(60) {
			name := dirs[r.IntN(len(dirs))] + names[r.IntN(len(names))]
			if _, ok := entries[name]; ok || strings.Count(name, "/") > 8 {
				continue
			}
			var e entry
			switch r.IntN(5) {
			case 0, 1:
				e = entry{name: name, kind: tar.TypeDir, mode: int64(r.IntN(0o2000)) &^ 0o1000}
				dirs = append(dirs, name+"/")
			case 2:
				e = symlink(name, strings.Repeat("../", r.IntN(5))+names[r.IntN(len(names))])
			case 3:
				e = entry{name: name, kind: tar.TypeFifo, mode: int64(r.IntN(0o1000))}
			default:
				e = entry{name: name, body: strings.Repeat("x", r.IntN(3*512)), mode: int64(r.IntN(0o1000)), xattr: map[string]string{"user.n": name}}
			}
			e.edit = func(h *tar.Header) { h.ModTime = someTime.Add(1 << r.IntN(60)) }
			entries[name] = e
			order = append(order, name)
		}
		var list []entry
		headers := map[string]*tar.Header{}
		for _, name := range order {
			e := entries[name]
			h := e.header()
			headers[name] = h
			e.edit = func(to *tar.Header) { *to = *h }
			list = append(list, e)
		}
		layer, _, err := unpackTo(t, archive(t, list...), allLimits, "")
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for name, h := range headers {
			compare(t, filepath.Join(layer, "fs", name), h, entries[name])
		}
		if os.Getuid() != 0 {
			continue
		}
		if s, err := sum(layer); err != nil || s.Files != int64(len(list)+1) {
			t.Errorf("seed %d: sum %+v, %v; want %d files", seed, s, err, len(list)+1)
		}
	}
}

// compare compares a file with the entry that it comes from.
func compare(t *testing.T, path string, h *tar.Header, e entry) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		if !errors.Is(err, unix.EACCES) || os.Getuid() == 0 {
			t.Error(err)
		}
		return
	}
	kinds := map[byte]uint32{tar.TypeReg: unix.S_IFREG, tar.TypeDir: unix.S_IFDIR, tar.TypeSymlink: unix.S_IFLNK, tar.TypeFifo: unix.S_IFIFO}
	if st.Mode != kinds[h.Typeflag]|uint32(h.Mode) || int(st.Uid) != h.Uid || int(st.Gid) != h.Gid || st.Mtim != unix.NsecToTimespec(h.ModTime.UnixNano()) {
		t.Errorf("%s is %o %d:%d %v, want %o %d:%d %v", path, st.Mode, st.Uid, st.Gid, st.Mtim, h.Mode, h.Uid, h.Gid, h.ModTime)
	}
	if os.Getuid() != 0 {
		return
	}
	switch h.Typeflag {
	case tar.TypeReg:
		value := make([]byte, 4096)
		n, err := unix.Getxattr(path, "user.n", value)
		if err != nil || string(value[:n]) != e.name {
			t.Errorf("%s: attribute %q, %v", path, value[:max(n, 0)], err)
		}
		if content, err := os.ReadFile(path); err != nil || string(content) != e.body {
			t.Errorf("%s: %q, %v", path, content, err)
		}
	case tar.TypeSymlink:
		if target, err := os.Readlink(path); err != nil || target != h.Linkname {
			t.Errorf("%s -> %q, %v", path, target, err)
		}
	}
}

// TestWriteStreams: archives that are damaged, that hide their sizes, and readers that fail.
func TestWriteStreams(t *testing.T) {
	whole := archive(t, file("a", strings.Repeat("x", 1000)), file("b", "y"))
	sparse := archive(t, entry{name: "s", body: strings.Repeat("x", 512), edit: func(h *tar.Header) { h.ModTime, h.Format = time.Unix(0, 0), tar.FormatUSTAR }})
	copy(sparse[156:], "S") // GNU sparse in its old form, of one block
	copy(sparse[257:], "ustar  \x00")
	rechecksum(sparse)
	bomb := archive(t, entry{name: "a", body: "2097152 x=" + strings.Repeat("x", 2<<20-11) + "\n", edit: func(h *tar.Header) { h.ModTime, h.Format = time.Unix(0, 0), tar.FormatUSTAR }}, file("a", ""))
	bomb[156] = 'x'
	rechecksum(bomb)
	paxSparse := archive(t, entry{name: "a", edit: func(h *tar.Header) { h.PAXRecords = map[string]string{"BOXD.sparse.major": "1"} }})
	paxSparse = bytes.Replace(paxSparse, []byte("BOXD.sparse.major=1\n"), []byte("GNU.sparse.major=10"+"\n"), 1)
	negative := bytes.Clone(whole)
	copy(negative[1024+124:], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff") // base 256
	rechecksum(negative[1024:])
	broken := errors.New("broken")
	for _, c := range []struct {
		name   string
		in     io.Reader
		status int // 0: accepted
		want   string
	}{
		{"no end mark", bytes.NewReader(whole[:len(whole)-1024]), 0, ""},
		{"half an end mark", bytes.NewReader(whole[:len(whole)-512]), 0, ""},
		{"padding", io.MultiReader(bytes.NewReader(whole), bytes.NewReader(make([]byte, 1<<20))), 0, ""},
		{"truncated content", bytes.NewReader(whole[:1024+512+700]), proto.Corrupt, `entry "a": unexpected EOF`},
		{"truncated header", bytes.NewReader(whole[:1024+100]), proto.Corrupt, "unexpected EOF"},
		{"checksum", bytes.NewReader(append([]byte{1}, whole[1:]...)), proto.Corrupt, "invalid tar header"},
		{"not an archive", strings.NewReader(strings.Repeat("text", 1000)), proto.Corrupt, "invalid tar header"},
		{"negative size", bytes.NewReader(negative), proto.Corrupt, "invalid tar header"},
		{"sparse", bytes.NewReader(sparse), proto.Refused, "sparse"},
		{"PAX bomb", bytes.NewReader(bomb), proto.Corrupt, "too long"},
		{"reader", io.MultiReader(bytes.NewReader(whole[:700]), errorReader{broken}), proto.Failed, "broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := write(t.TempDir(), "", c.in, proto.Limits{Bytes: 1 << 20, Entries: 100})
			if c.status == 0 && err != nil {
				t.Error(err)
			}
			if c.status != 0 {
				checkError(t, err, c.status, c.want)
			}
		})
	}
	if _, err := write(t.TempDir(), "", bytes.NewReader(paxSparse), allLimits); err == nil {
		t.Error("sparse file by PAX records: accepted")
	}
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

// rechecksum corrects the checksum of a header.
func rechecksum(header []byte) {
	copy(header[148:156], "        ")
	sum := 0
	for _, b := range header[:512] {
		sum += int(b)
	}
	for i := 153; i >= 148; i-- {
		header[i] = '0' + byte(sum%8)
		sum /= 8
	}
	header[154] = 0
}

// TestWriteReadsAll: the caller computes a digest of what is read.
func TestWriteReadsAll(t *testing.T) {
	in := bytes.NewReader(append(archive(t, file("a", "x")), bytes.Repeat([]byte("junk"), 1<<18)...))
	if _, err := write(t.TempDir(), "", in, allLimits); err != nil || in.Len() != 0 {
		t.Errorf("%d bytes were not read; %v", in.Len(), err)
	}
}

// TestWriteUmask: neither the umask nor what a directory finally forbids matters.
func TestWriteUmask(t *testing.T) {
	layer := newLayer(t)
	defer unix.Umask(unix.Umask(0o777))
	in := archive(t, entry{name: "d", kind: tar.TypeDir, mode: 0}, file("a/b", ""), file("d/f", "x"), entry{name: "p", kind: tar.TypeFifo, mode: 0o622})
	if _, err := write(layer, "", bytes.NewReader(in), allLimits); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint32{"": 0o40755, "d": 0o40000, "a": 0o40755, "a/b": 0o100644, "p": 0o10622} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(layer, "fs", name), &st); err != nil || st.Mode != want {
			t.Errorf("%q: mode %o, want %o (%v)", name, st.Mode, want, err)
		}
	}
}

// TestWriteOwners: ids up to that of the last user of a box.
func TestWriteOwners(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it gives files away")
	}
	give := func(e entry, uid, gid int) entry {
		e.edit = func(h *tar.Header) { h.Uid, h.Gid = uid, gid }
		return e
	}
	layer, _, err := unpackTo(t, archive(t, give(directory("d"), 1, 2), give(file("d/f", "x"), proto.MaxID, 0), give(symlink("l", "f"), 0, proto.MaxID), give(entry{name: "p", kind: tar.TypeFifo}, 3, 4)), allLimits, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]owner{"": {0, 0}, "d": {1, 2}, "d/f": {proto.MaxID, 0}, "l": {0, proto.MaxID}, "p": {3, 4}} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(layer, "fs", name), &st); err != nil || int(st.Uid) != want.uid || int(st.Gid) != want.gid {
			t.Errorf("%q belongs to %d:%d, want %v (%v)", name, st.Uid, st.Gid, want, err)
		}
	}
}

// TestWriteOpaqueList: the list of opaque directories, which the launcher reads, has a bound.
func TestWriteOpaqueList(t *testing.T) {
	var entries []entry
	deep := strings.Repeat(strings.Repeat("x", maxName)+"/", 15)
	for i := range proto.MaxOpaque/len(deep) + 1 {
		entries = append(entries, file(fmt.Sprintf("%s%06d/%s", deep, i, opaqueName), ""))
	}
	limits := proto.Limits{Bytes: 1, Entries: 1 << 20}
	_, _, err := unpackTo(t, archive(t, entries...), limits, "")
	checkError(t, err, proto.Refused, "opaque directories")
	layer, _, err := unpackTo(t, archive(t, entries[:10]...), limits, "")
	if err != nil {
		t.Fatal(err)
	}
	if list, err := readOpaque(layer); err != nil || len(list) != 10 {
		t.Errorf("%d directories are listed, %v; want 10", len(list), err)
	}
}
