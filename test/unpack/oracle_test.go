package unpack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// run runs a program, which must succeed.
func run(t *testing.T, stdin []byte, program string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", program, args, err, &stderr)
	}
	return out
}

// buildApply builds the program in ./containerd.
func buildApply(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "apply")
	cmd := exec.Command("go", "build", "-o", program, ".")
	cmd.Dir = "containerd"
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("go build in test/unpack/containerd: %v: %s", err, out)
		}
		t.Skipf("go build in test/unpack/containerd: %v: %s", err, out)
	}
	return program
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	Manifests     []descriptor `json:"manifests,omitempty"`
	Config        *descriptor  `json:"config,omitempty"`
	Layers        []descriptor `json:"layers,omitempty"`
}

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// makeLayout writes an OCI layout of one image, "t".
func makeLayout(t *testing.T, streams [][]byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	save := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(kind string, content []byte) descriptor {
		d := descriptor{MediaType: "application/vnd.oci.image." + kind, Digest: digest(content), Size: len(content)}
		save("blobs/"+strings.Replace(d.Digest, ":", "/", 1), content)
		return d
	}
	marshal := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	m := manifest{SchemaVersion: 2}
	var diffIDs []string
	for _, s := range streams {
		diffIDs = append(diffIDs, digest(s))
		m.Layers = append(m.Layers, blob("layer.v1.tar+gzip", gzipped(t, s)))
	}
	config := blob("config.v1+json", marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	}))
	m.Config = &config
	d := blob("manifest.v1+json", marshal(m))
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": "t"}
	save("index.json", marshal(manifest{SchemaVersion: 2, Manifests: []descriptor{d}}))
	save("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return dir
}

// layersOf returns the blobs of the layers of the last image in an OCI layout, lowest first.
func layersOf(t *testing.T, layout string) [][]byte {
	t.Helper()
	read := func(name string, v any) []byte {
		content, err := os.ReadFile(filepath.Join(layout, name))
		if err == nil && v != nil {
			err = json.Unmarshal(content, v)
		}
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	blob := func(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }
	var index, m manifest
	read("index.json", &index)
	read(blob(index.Manifests[len(index.Manifests)-1]), &m)
	var blobs [][]byte
	for _, l := range m.Layers {
		blobs = append(blobs, read(blob(l), nil))
	}
	return blobs
}

func gzipped(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// differences are files of which another program makes something else, for a reason.
type differences struct {
	umoci, containerd []string
	// refused says that containerd refuses the image.
	refused bool
}

func onlyContainerd(names ...string) differences { return differences{containerd: names} }

// allAgree unpacks an image by boxd, by umoci, and by containerd's code in the program apply.
func allAgree(t *testing.T, apply, layout string, but differences) {
	t.Helper()
	blobs := layersOf(t, layout)
	var streams [][]byte
	for _, b := range blobs {
		streams = append(streams, command(t, t.TempDir(), b, "inflate", "1000000000"))
	}
	loose := looseDirs(t, streams)
	ours := listing(t, mounted(t, blobs), loose)

	bundle := filepath.Join(t.TempDir(), "bundle")
	run(t, nil, "umoci", "unpack", "--image", layout+":t", bundle)
	compare(t, "umoci", ours, listing(t, filepath.Join(bundle, "rootfs"), loose), but.umoci...)

	dir := filepath.Join(t.TempDir(), "root")
	mkdir(t, dir)
	for i, s := range streams {
		if but.refused && i == len(streams)-1 {
			cmd := exec.Command(apply, dir)
			cmd.Stdin = bytes.NewReader(s)
			if out, err := cmd.CombinedOutput(); err == nil {
				t.Errorf("containerd accepts the image: %s", out)
			}
			return
		}
		run(t, s, apply, dir)
	}
	compare(t, "containerd", ours, listing(t, dir, loose), but.containerd...)
}

// e is an entry of a layer: its name ends in "/" for a directory; "name -> target" is a symlink, "name => target" a hard
// link; other names are files, with the name as content.
func layer(t *testing.T, entries ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, e := range entries {
		h := &tar.Header{Name: e, Typeflag: tar.TypeReg, Mode: 0o640, Uid: i, Gid: 100 + i, ModTime: time.Unix(1e9+int64(i), 5e8), Format: tar.FormatPAX}
		if name, target, ok := strings.Cut(e, " -> "); ok {
			h.Name, h.Linkname, h.Typeflag, h.Mode = name, target, tar.TypeSymlink, 0o777
		} else if name, target, ok := strings.Cut(e, " => "); ok {
			h.Name, h.Linkname, h.Typeflag = name, target, tar.TypeLink
			for j, f := range entries[:i] { // the same metadata, as archivers write it
				if f, _, _ = strings.Cut(f, " -> "); f == path.Clean("/" + target)[1:] {
					h.Uid, h.Gid, h.ModTime = j, 100+j, time.Unix(1e9+int64(j), 5e8)
				}
			}
		} else if strings.HasSuffix(e, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o751
		} else if strings.HasSuffix(e, "|") {
			h.Typeflag = tar.TypeFifo
		} else {
			h.Size = int64(len(e))
			h.PAXRecords = map[string]string{"SCHILY.xattr.user.name": e}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(e)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestOracles: three programs agree on images of odd shapes, on real ones, and on those of other programs.
func TestOracles(t *testing.T) {
	testutil.RequireRoot(t)
	testutil.RequireProgram(t, "umoci")
	testutil.RequireProgram(t, "skopeo")
	apply := buildApply(t)
	t.Run("odd", func(t *testing.T) { oddImages(t, apply) })
	t.Run("real", func(t *testing.T) { realTree(t, apply) })
	t.Run("foreign", func(t *testing.T) { foreignImages(t, apply) })
}

func oddImages(t *testing.T, apply string) {
	type layers = [][]string
	for _, c := range []struct {
		name   string
		layers layers
		but    differences
	}{
		{"ordinary", layers{{"./", "a/", "a/f", "a/l -> f", "a/h => a/f", "p|"}}, onlyContainerd(".")}, // it has no metadata of the top directory
		{"names", layers{{"/abs", "../up", "./dot", "x/", "x/../y", "x//z", "new\nline", "\xff\xfe", strings.Repeat("n", 255)}}, differences{}},
		{"replaced in a layer", layers{{"a", "a/", "a/f", "b/", "b/f", "b", "c -> b", "c", "d", "d -> a"}}, onlyContainerd("b")}, // it gives a file the time of the directory before it
		{"replaced by a layer", layers{{"a/", "a/f", "b", "c -> a", "d/", "d/g"}, {"a", "b/", "b/f", "c/", "c/f", "d/", "d/f"}}, differences{}},
		{"deleted", layers{{"a/", "a/f", "a/g", "b", "c/", "c/f"}, {"a/", "a/.wh.f", ".wh.b", ".wh.c"}}, differences{}},
		{"deleted and made anew", layers{{"a/", "a/f", "b/", "b/f"}, {".wh.a", "a/", "a/g", "b", ".wh.b"}, {"a/", "a/h"}}, onlyContainerd("b")}, // its whiteouts delete what its own layer has, against the specification
		{"deleted twice", layers{{"a/", "a/f"}, {".wh.a"}, {"a/", "a/g"}, {"a/", "a/.wh.g"}}, differences{}},
		{"deleted in a file", layers{{"a/", "a/f"}, {"a", "a/.wh.f"}}, differences{refused: true}}, // umoci writes such layers
		{"opaque first", layers{{"a/", "a/f", "a/b/", "a/b/f"}, {"a/", "a/.wh..wh..opq", "a/g", "a/b/", "a/b/g"}}, differences{}},
		{"opaque last", layers{{"a/", "a/f", "a/b/", "a/b/f"}, {"a/", "a/b/", "a/b/g", "a/g", "a/.wh..wh..opq"}}, differences{umoci: []string{"a/b"}}}, // it changes a time while it looks for what to delete
		{"opaque top", layers{{"a/", "a/f", "b/", "b/f", "c"}, {".wh..wh..opq", "a/", "a/g"}}, differences{}},
		{"opaque above another", layers{{"a/", "a/f"}, {"a/", "a/.wh..wh..opq", "a/g"}, {"a/", "a/h"}, {"a/", "a/.wh.g"}}, differences{}},
		{"missing parents", layers{{"a/", "a/b/", "a/b/f"}, {"a/b/g"}, {"a/b/h", "x/y/z"}}, differences{}},
		{"parents come later", layers{{"a/", "a/f"}, {"a/b/c", "a/b/", "a/"}}, differences{}},
		{"through symlinks", layers{{"usr/", "usr/lib/", "lib -> usr/lib", "lib/f", "up -> ../../usr", "up/g", "abs -> /usr/lib", "abs/h"}}, differences{}},
		{"through symlinks below", layers{{"usr/", "usr/lib/", "lib -> usr/lib"}, {"lib/f", "usr/lib/g"}}, differences{}},
		{"to symlinks", layers{{"a -> /etc/passwd", "b => a", "c/", "d -> c"}, {"d", "a"}}, differences{}},
		{"hard links", layers{{"a", "b => a", "c/", "c/d => /b", "e => ../a"}, {"b"}}, differences{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var streams [][]byte
			for _, entries := range c.layers {
				streams = append(streams, layer(t, entries...))
			}
			allAgree(t, apply, makeLayout(t, streams), c.but)
		})
	}
}

// realTree packs directories of this machine, in the formats of tar(1).
func realTree(t *testing.T, apply string) {
	for _, format := range []string{"gnu", "posix", "ustar"} {
		t.Run(format, func(t *testing.T) {
			stream := run(t, nil, "tar", "-C", "/", "--format="+format, "--one-file-system", "-c", "usr/share/zoneinfo", "usr/sbin", "dev/null", "var/mail")
			allAgree(t, apply, makeLayout(t, [][]byte{stream}), differences{})
		})
	}
}

// foreignImages are written by umoci and skopeo.
func foreignImages(t *testing.T, apply string) {
	dir := t.TempDir()
	layout, bundle := filepath.Join(dir, "layout"), filepath.Join(dir, "bundle")
	run(t, nil, "umoci", "init", "--layout", layout)
	run(t, nil, "umoci", "new", "--image", layout+":t")
	for _, change := range []string{
		"mkdir -p a/b etc; echo 1 >a/f; echo 2 >a/b/g; ln -s ../a etc/l; ln a/f a/h; chmod 600 a/f; chown 5:6 a/b",
		"rm -r a/b; rm a/h; echo 3 >a/new; touch -d @5 etc; setfattr -n user.x -v y a/new 2>/dev/null || true",
		"rm etc/l; mkdir etc/l; echo 4 >etc/l/f; rm -r a",
	} {
		if err := os.RemoveAll(bundle); err != nil {
			t.Fatal(err)
		}
		run(t, nil, "umoci", "unpack", "--image", layout+":t", bundle)
		run(t, nil, "sh", "-ec", "cd "+filepath.Join(bundle, "rootfs")+"; "+change)
		run(t, nil, "umoci", "repack", "--image", layout+":t", bundle)
	}
	t.Run("umoci", func(t *testing.T) { allAgree(t, apply, layout, differences{}) })

	saved, again := filepath.Join(dir, "saved.tar"), filepath.Join(dir, "again")
	run(t, nil, "skopeo", "--insecure-policy", "copy", "oci:"+layout+":t", "docker-archive:"+saved+":t:1")
	run(t, nil, "skopeo", "--insecure-policy", "copy", "docker-archive:"+saved, "oci:"+again+":t")
	t.Run("skopeo", func(t *testing.T) { allAgree(t, apply, again, differences{}) })

	zstd := filepath.Join(dir, "zstd")
	run(t, nil, "skopeo", "--insecure-policy", "copy", "--dest-compress-format", "zstd", "docker-archive:"+saved, "oci:"+zstd+":t")
	t.Run("zstd", func(t *testing.T) {
		blobs := layersOf(t, zstd)
		if !bytes.HasPrefix(blobs[0], []byte{0x28, 0xb5, 0x2f, 0xfd}) {
			t.Fatalf("skopeo wrote %x, not zstd", blobs[0][:4])
		}
		compare(t, "gzip", listing(t, mounted(t, blobs), nil), listing(t, mounted(t, layersOf(t, layout)), nil))
	})
}
