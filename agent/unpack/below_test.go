package unpack

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/unpack/proto"
	"golang.org/x/sys/unix"
)

// stack writes archives as layers, each with all earlier ones below it, and returns the directory of the last one.
func stack(t *testing.T, archives ...[]entry) (layer string, result proto.Result) {
	t.Helper()
	below := t.TempDir()
	for i, entries := range archives {
		layer = filepath.Join(below, strconv.Itoa(i))
		if err := os.Mkdir(layer, 0o755); err != nil {
			t.Fatal(err)
		}
		limits := allLimits
		limits.Below = i
		var err error
		if result, err = write(layer, below, bytes.NewReader(archive(t, entries...)), limits); err != nil {
			t.Fatal(err)
		}
	}
	return layer, result
}

// TestInherits: directories that an archive does not contain are those of the layers below.
func TestInherits(t *testing.T) {
	d := func(name string, mode int64) entry { return entry{name: name, kind: tar.TypeDir, mode: mode} }
	type layers = [][]entry
	for _, c := range []struct {
		name   string
		layers layers
		want   string
	}{
		{"of the layer below", layers{{d("a", 0o711)}, {file("a/f", "")}}, lines("a/ 711", `a/f 644 ""`)},
		{"of the topmost", layers{{d("a", 0o711)}, {d("a", 0o700)}, {file("b", "")}, {file("a/f", "")}}, lines("a/ 700", `a/f 644 ""`)},
		{"of several", layers{{d("a", 0o711), d("a/b", 0o700)}, {d("a", 0o701)}, {file("a/b/f", "")}}, lines("a/ 701", "a/b/ 700", `a/b/f 644 ""`)},
		{"none", layers{{d("b", 0o711)}, {file("a/f", "")}}, lines("a/ 755", `a/f 644 ""`)},
		{"file", layers{{file("a", "")}, {file("a/f", "")}}, lines("a/ 755", `a/f 644 ""`)},
		{"deleted below", layers{{d("a", 0o711)}, {file(".wh.a", "")}, {file("a/f", "")}}, lines("a/ 755", `a/f 644 ""`)},
		{"replaced below", layers{{d("a", 0o711), d("a/b", 0o711)}, {file("a", "")}, {d("a", 0o700)}, {file("a/b/f", "")}}, lines("a/ 700", "a/b/ 755", `a/b/f 644 ""`)},
		{"in one that is opaque below", layers{{d("a", 0o711), d("a/b", 0o711)}, {d("a", 0o700), file("a/.wh..wh..opq", "")}, {file("a/b/f", "")}}, lines("a/ 700", "a/b/ 755", `a/b/f 644 ""`)},
		{"deleted here", layers{{d("a", 0o711)}, {file("a/f", ""), file(".wh.a", "")}}, lines("a/ 755", `a/f 644 ""`, "opaque a")},
		{"opaque here", layers{{d("a", 0o711), d("a/b", 0o711)}, {file("a/b/f", ""), file("a/.wh..wh..opq", "")}}, lines("a/ 711", "a/b/ 755", `a/b/f 644 ""`, "opaque a")},
		{"through a symlink below", layers{{d("usr", 0o755), d("usr/lib", 0o711), symlink("lib", "usr/lib")}, {file("lib/f", "")}}, lines("usr/ 755", "usr/lib/ 711", `usr/lib/f 644 ""`)},
		{"through a symlink out of the layer", layers{{symlink("a", "/../../etc"), d("etc", 0o711)}, {file("a/f", "")}}, lines("etc/ 711", `etc/f 644 ""`)},
		{"not through a symlink that is deleted", layers{{d("b", 0o711), symlink("a", "b")}, {file(".wh.a", ""), file("a/f", "")}}, lines("a/ 755", `a/f 644 ""`, "opaque a")},
		{"the top is opaque", layers{{d("a", 0o711), d("b", 0o711), file("c", "")}, {file("a/f", ""), file(".wh..wh..opq", "")}}, lines("a/ 755", `a/f 644 ""`, "b whiteout 0", "c whiteout 0", "opaque a")},
		{"whiteouts where nothing is", layers{{d("b", 0o711)}, {d("a", 0o700), file("a/.wh.x", ""), d("a/c", 0o700), file("a/c/.wh.x", "")}}, lines("a/ 700", "a/c/ 700")},
		{"whiteouts where something is", layers{{d("a", 0o711)}, {d("a", 0o700), file("a/.wh.x", "")}}, lines("a/ 700", "a/x whiteout 0")},
	} {
		t.Run(c.name, func(t *testing.T) {
			layer, result := stack(t, c.layers...)
			if got := tree(t, layer); got != c.want {
				t.Errorf("the layer has\n%s\nwant\n%s", got, c.want)
			}
			last := c.layers[len(c.layers)-1]
			_, alone, err := unpackTo(t, archive(t, last...), allLimits, "")
			if err != nil {
				t.Fatal(err)
			}
			if result.Inherits && !alone.Inherits {
				t.Error("without the layers below, the result does not say that the layer depends on them")
			}
		})
	}
}

// TestInheritsMetadata: such a directory has time, owner and attributes of the one below.
func TestInheritsMetadata(t *testing.T) {
	old := time.Unix(500, 600)
	layer, result := stack(t,
		[]entry{{name: "a", kind: tar.TypeDir, mode: 0o711, xattr: map[string]string{"user.x": "y"}, edit: func(h *tar.Header) { h.ModTime = old }}},
		[]entry{file("a/f", "")})
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(layer, "fs/a"), &st); err != nil {
		t.Fatal(err)
	}
	value := make([]byte, 10)
	n, err := unix.Getxattr(filepath.Join(layer, "fs/a"), "user.x", value)
	if !result.Inherits || st.Mtim != unix.NsecToTimespec(old.UnixNano()) || err != nil || string(value[:n]) != "y" {
		t.Errorf("%+v: time %v, attribute %q (%v)", result, st.Mtim, value[:max(n, 0)], err)
	}
}

// TestBelowUnchanged: a layer below is read only.
func TestBelowUnchanged(t *testing.T) {
	below := t.TempDir()
	write0 := filepath.Join(below, "0")
	if err := os.Mkdir(write0, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := write(write0, "", bytes.NewReader(archive(t, directory("d"), file("d/f", "text"), symlink("l", "d"), symlink("m", "d/f"))), allLimits); err != nil {
		t.Fatal(err)
	}
	before, err := sum(write0)
	if err != nil {
		t.Fatal(err)
	}
	limits := allLimits
	limits.Below = 1
	hostile := archive(t, file("l/f", "other"), file("l/g", ""), file("d/.wh.f", ""), file("m", "other"), file(".wh..wh..opq", ""))
	if _, _, err := unpackTo(t, hostile, limits, below); err != nil {
		t.Fatal(err)
	}
	if after, err := sum(write0); err != nil || after != before {
		t.Errorf("sum %+v (%v), want %+v", after, err, before)
	}
}
