package native

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/images/install"
	"github.com/boxd/boxd/internal/testutil"
)

// imageStore is a store whose layers boxes of e unpack.
func imageStore(t testing.TB, e layerEngine, o install.Options) *images.Store {
	t.Helper()
	o.Layers = e
	o.Create = func(ctx context.Context, s engine.Spec) (engine.Box, error) {
		switch e := e.(type) {
		case privateLayers:
			return e.Engine.Create(ctx, s)
		case serviceLayers:
			return e.Service.Create(ctx, s)
		}
		panic("another engine")
	}
	s, err := images.Open(t.TempDir(), images.Options{Unpacker: install.New(o), Layers: e})
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

// tool runs a program of the host that writes images.
func tool(t testing.TB, args ...string) {
	t.Helper()
	testutil.RequireProgram(t, args[0])
	if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// umociImage writes an image of two layers as an OCI layout. Its only program is boxd, which needs no library. The second
// layer deletes a file and replaces a directory of the first.
func umociImage(t testing.TB) (layout string) {
	t.Helper()
	boxd, _ := testutil.BuildBinaries(t)
	dir := t.TempDir()
	layout, first, second := dir+"/layout", dir+"/first", dir+"/second"
	program, err := os.ReadFile(boxd)
	ok(t, err)
	for _, err := range []error{
		os.MkdirAll(first+"/bin", 0o755), os.MkdirAll(first+"/data/old", 0o755), os.MkdirAll(second+"/new", 0o700), os.MkdirAll(first+"/home/user", 0o750),
		os.WriteFile(first+"/bin/boxd", program, 0o755), os.WriteFile(first+"/data/gone", []byte("x"), 0o644), os.WriteFile(first+"/data/old/hidden", []byte("x"), 0o644),
		os.WriteFile(second+"/new/file", []byte("new"), 0o600), os.Chown(first+"/home/user", 1000, 1000), os.Symlink("/bin/boxd", second+"/link"),
	} {
		ok(t, err)
	}
	tool(t, "umoci", "init", "--layout", layout)
	tool(t, "umoci", "new", "--image", layout+":app")
	tool(t, "umoci", "insert", "--image", layout+":app", first+"/bin", "/bin")
	tool(t, "umoci", "insert", "--image", layout+":app", first+"/data", "/data")
	tool(t, "umoci", "insert", "--image", layout+":app", first+"/home", "/home")
	tool(t, "umoci", "insert", "--image", layout+":app", "--opaque", second+"/new", "/data/old")
	tool(t, "umoci", "insert", "--image", layout+":app", "--whiteout", "/data/gone")
	tool(t, "umoci", "config", "--image", layout+":app", "--config.entrypoint", "/bin/boxd", "--config.cmd", "version", "--config.env", "A=b", "--config.user", "1000")
	return layout
}

// checkApp fails unless a box of the image has what the layers of umociImage make.
func checkApp(t *testing.T, e layerEngine, img images.Image) {
	t.Helper()
	b := e.create(t, engine.Spec{Image: img.Name, Layers: img.Layers})
	defer remove(t, b)
	o := run(t, b, engine.Command{Args: append(slices.Clone(img.Entrypoint), img.Cmd...)})
	want(t, o, engine.Exited, 0)
	if !strings.Contains(o.Stdout, "boxd") {
		t.Errorf("the program of the image says %q", o.Stdout)
	}
	for path, present := range map[string]bool{"/bin/boxd": true, "/data/gone": false, "/data/old/hidden": false, "/data/old/file": true, "/home/user": true} {
		o := run(t, b, engine.Command{Args: []string{"/bin/boxd", "version"}, Dir: filepath.Dir(path)})
		want(t, o, engine.Exited, 0)
		_, err := tryRun(t, b, engine.Command{Args: []string{path}})
		if missing := errors.Is(err, engine.ErrNotFound); missing == present {
			t.Errorf("%s: %v, want it there: %v", path, err, present)
		}
	}
}

// TestImportForeign: what umoci and skopeo write becomes the same layers, whichever format it comes in, and a box runs it.
func TestImportForeign(t *testing.T) {
	testutil.Long(t)
	testutil.RequireRoot(t)
	e := startLayers(t)
	s := imageStore(t, e, install.Options{})
	layout, dir := umociImage(t), t.TempDir()
	tool(t, "skopeo", "copy", "oci:"+layout+":app", "oci-archive:"+dir+"/oci.tar:app")
	tool(t, "skopeo", "copy", "oci:"+layout+":app", "docker-archive:"+dir+"/docker.tar:example.com/app:1")
	var first images.Image
	for i, path := range []string{layout, dir + "/oci.tar", dir + "/docker.tar"} {
		img, err := s.Import(t.Context(), path, images.Request{Reference: fmt.Sprintf("example.com/app:%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = img
			checkApp(t, e, img)
		}
		if !slices.Equal(img.Layers, first.Layers) || len(img.Layers) != 5 || img.User != "1000" || !slices.Contains(img.Env, "A=b") {
			t.Errorf("%s: %+v, first %q", path, img, first.Layers)
		}
		ok(t, s.Verify(t.Context(), images.Shared, img.Name))
	}
	wantLayers(t, e, first.Layers)

	// A layer that was changed on disk is noticed.
	top := filepath.Join(e.data, "images", first.Layers[0], "fs", "bin", "boxd")
	f, err := os.OpenFile(top, os.O_WRONLY|os.O_APPEND, 0)
	ok(t, err)
	_, err = f.WriteString("x")
	ok(t, errors.Join(err, f.Close()))
	if err := s.Verify(t.Context(), images.Shared, first.Name); !errors.Is(err, images.ErrCorrupt) {
		t.Errorf("verifying a layer that was changed: %v", err)
	}

	for i := range 3 {
		ok(t, s.Remove(t.Context(), images.Shared, fmt.Sprintf("example.com/app:%d", i)))
	}
	if _, err := s.GC(t.Context()); err != nil {
		t.Error(err)
	}
	wantLayers(t, e, nil)
}

// wantLayers fails unless exactly these layers are published.
func wantLayers(t *testing.T, e engine.Layers, ids []string) {
	t.Helper()
	got, err := e.Layers(t.Context())
	ok(t, err)
	ids = slices.Clone(ids)
	slices.Sort(ids)
	if !slices.Equal(got, slices.Compact(ids)) {
		t.Errorf("layers %q, want %q", got, ids)
	}
}

// file is an entry of an archive.
func file(name, content string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), PAXRecords: map[string]string{"comment": content}}
}

// archive makes a tar stream; the content of a file is its comment.
func archive(t testing.TB, entries ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := h.PAXRecords["comment"]
		h.PAXRecords = nil
		ok(t, w.WriteHeader(h))
		_, err := w.Write([]byte(content))
		ok(t, err)
	}
	ok(t, w.Close())
	return b.Bytes()
}

func layerOf(text []byte) images.Layer {
	sum := sha256.Sum256(text)
	return images.Layer{Blob: bytes.NewReader(text), Size: int64(len(text)), DiffID: hex.EncodeToString(sum[:]), MaxBytes: 16 << 20}
}

func zipped(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(text)
	ok(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

// TestInstallRefuses: an archive that is damaged or breaks a rule is one error of the right kind, and leaves nothing.
func TestInstallRefuses(t *testing.T) {
	testutil.Long(t)
	testutil.RequireRoot(t)
	e := startLayers(t)
	u := install.New(install.Options{Create: func(ctx context.Context, s engine.Spec) (engine.Box, error) { return e.Engine.Create(ctx, s) }, Layers: e})
	good := archive(t, &tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, file("d/f", "content"))
	cut := zipped(t, good)
	flipped := slices.Clone(cut)
	flipped[len(flipped)-6] ^= 1 // in the checksum
	for _, c := range []struct {
		name  string
		layer images.Layer
		kind  error
	}{
		{"truncated", with(layerOf(good), cut[:len(cut)-9]), images.ErrCorrupt},
		{"bit flipped", with(layerOf(good), flipped), images.ErrCorrupt},
		{"another archive", with(layerOf(good), archive(t, file("x", "y"))), images.ErrCorrupt},
		{"no archive", layerOf(bytes.Repeat([]byte("x"), 4096)), images.ErrCorrupt},
		{"id out of range", layerOf(archive(t, &tar.Header{Name: "f", Typeflag: tar.TypeReg, Uid: 65535})), images.ErrRefused},
		{"too large", layerOf(archive(t, file("f", strings.Repeat("x", 17<<20)))), images.ErrRefused},
		{"bomb", with(layerOf(good), zipped(t, make([]byte, 100<<20))), images.ErrRefused},
		{"climbs", layerOf(archive(t, file("a/../../../f", "x"))), nil}, // cleaned, or refused
	} {
		before := slices.Clone(must2(e.Layers(t.Context())))
		got, err := u.Unpack(t.Context(), c.layer)
		if c.kind == nil && err == nil {
			ok(t, e.RemoveLayer(t.Context(), got.ID))
			continue
		}
		if err == nil || c.kind != nil && !errors.Is(err, c.kind) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %v", c.name, err, c.kind)
		}
		wantLayers(t, e, before)
		wantNothingUnpublished(t, e.data)
	}
	got, err := u.Unpack(t.Context(), with(layerOf(good), cut))
	if err != nil || got.ID != layerOf(good).DiffID || got.Bytes != 7 {
		t.Errorf("the archive as it should be: %+v, %v", got, err)
	}
}

func must2[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// with is the layer with another blob.
func with(l images.Layer, blob []byte) images.Layer {
	l.Blob, l.Size = bytes.NewReader(blob), int64(len(blob))
	return l
}

// wantNothingUnpublished fails if the launcher has kept an unpublished layer.
func wantNothingUnpublished(t *testing.T, data string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(data, "images", "new", "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("unpublished layers are left: %q, %v", left, err)
	}
}

// hostile is what an archive that has taken over a command of the unpacker tries. Each line that succeeds is a way out.
var hostile = []struct{ name, script string }{
	{"writes to the host's directories", "for d in /etc /usr /bin /root /var /srv /home /opt /boot; do : >$d/boxd-out && echo way out: $d; done"},
	{"writes to a layer below", ": >/below/0/fs/x && echo way out; chmod 777 /below/0/fs && echo way out"},
	{"mounts", "mount -t tmpfs x /mnt && echo way out; mount -o remount,rw /below/0 && echo way out"},
	{"makes devices", "mknod /layer/fs/null c 1 3 && echo way out; mknod /tmp/disk b 8 0 && echo way out"},
	{"makes a setuid program", "cp /bin/sh /layer/fs/sh && chmod 4755 /layer/fs/sh && echo way out"},
	{"follows links out of the layer", "ln -s / /layer/fs/root && : >/layer/fs/root/etc/boxd-out && echo way out"},
	{"reads other disks and kernel memory", "[ $(head -qc1 /dev/sda /dev/vda /proc/kcore /dev/mem | wc -c) != 0 ] && echo way out"},
	{"uses the network", "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 1)' && echo way out"},
	{"gets privileges", "unshare -r true && echo way out; unshare -m true && echo way out; chroot / true && echo way out"},
	{"sees processes", "ls -d /proc/[0-9]* | wc -l | { read n; [ $n -gt 20 ] && echo way out; }"},
	{"sees other layers", "find / -xdev -name images -type d 2>/dev/null | grep . && echo way out"},
}

// TestHostileUnpacker: the fence is the box, whatever runs in it instead of the unpacker.
func TestHostileUnpacker(t *testing.T) {
	testutil.Long(t)
	testutil.RequireRoot(t)
	e := startLayers(t)
	publish(t, e, "base", idA, "echo base >fs/base")
	create := func(ctx context.Context, s engine.Spec) (engine.Box, error) { return e.Engine.Create(ctx, s) }
	for _, command := range []string{"inflate", "write"} {
		for _, h := range hostile {
			t.Run(command+" "+h.name, func(t *testing.T) {
				u := install.New(install.Options{Create: create, Layers: e, Commands: func(args []string) engine.Command {
					script := "cat"
					switch {
					case args[0] == command:
						script = "{ " + h.script + "; } 2>/dev/null | tee /dev/stderr | grep -q 'way out' && exit 65; cat"
					case args[0] == "sum":
						script = "echo '{\"sha256\":\"" + strings.Repeat("c", 64) + "\"}'"
					}
					if args[0] == "write" {
						script = "mkdir -m 755 -p /layer/fs; " + script + " >/dev/null; echo '{\"bytes\":1}'"
						if args[0] == command {
							script = strings.Replace(script, "exit 65", "echo way out >&2 && exit 65", 1)
						}
					}
					return engine.Command{Args: []string{"sh", "-c", script}}
				}})
				l := layerOf([]byte("any text"))
				l.Below, l.ChainID = []string{idA}, idB
				got, err := u.Unpack(t.Context(), l)
				if err != nil {
					t.Fatalf("%v", err)
				}
				ok(t, e.RemoveLayer(t.Context(), got.ID))
				wantNothingUnpublished(t, e.data)
			})
		}
	}
	for _, dir := range []string{"/etc", "/usr", "/bin", "/root", "/var", "/srv", "/home", "/opt", "/boot"} {
		if _, err := os.Lstat(dir + "/boxd-out"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s/boxd-out: %v", dir, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(e.data, "images", idA, "fs", "base")); err != nil || string(text) != "base\n" {
		t.Errorf("the layer below: %q, %v", text, err)
	}
}

// TestHostileInflate: the decompressor, which reads the hostile stream first, cannot touch the layer that the other
// command writes, even where the archive gives files to its user.
func TestHostileInflate(t *testing.T) {
	testutil.RequireRoot(t)
	e := startLayers(t)
	text := archive(t, &tar.Header{Name: "theirs/", Typeflag: tar.TypeDir, Mode: 0o777, Uid: 1, Gid: 1}, file("theirs/f", "content"))
	real := install.New(install.Options{Create: func(ctx context.Context, s engine.Spec) (engine.Box, error) {
		b, err := e.Engine.Create(ctx, s)
		if err != nil {
			return nil, err
		}
		return meddler{b}, nil
	}, Layers: e})
	got, err := real.Unpack(t.Context(), layerOf(text))
	if err != nil {
		t.Fatal(err)
	}
	names := must2(os.ReadDir(filepath.Join(e.data, "images", got.ID, "fs", "theirs")))
	if len(names) != 1 || names[0].Name() != "f" {
		t.Errorf("in the layer: %v", names)
	}
	wantNothingUnpublished(t, e.data)
}

// meddler is a box whose inflate also tries to write to the layer, before and after it passes the stream on.
type meddler struct{ engine.Box }

func (m meddler) Start(ctx context.Context, c engine.Command) (engine.Process, error) {
	if c.Args[0] == "inflate" {
		c.Builtin, c.Args = "", []string{"sh", "-c", `try() { for f in /layer/fs/theirs/x /layer/fs/x /layer/x; do echo x >$f && exit 65; done; }
			{ try; cat; sleep 0.3; try; } 2>/dev/null; exit 0`}
	}
	return m.Box.Start(ctx, c)
}
