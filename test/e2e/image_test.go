package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// applets are the names that busybox has in the images of the tests.
var applets = []string{"sh", "cat", "echo", "env", "head", "id", "ls", "seq", "sleep", "test", "true"}

// busybox returns the path of a busybox that needs no library.
func busybox(t *testing.T) string {
	t.Helper()
	path := testutil.RequireProgram(t, "busybox")
	if err := exec.Command("ldd", path).Run(); err == nil {
		t.Skip("busybox is not static")
	}
	return path
}

// rootFS makes a root file system: busybox, if shell is set, or only the program /show, which is busybox too; and
// files with their contents.
func rootFS(t *testing.T, shell bool, files map[string]string) string {
	t.Helper()
	program, err := os.ReadFile(busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, content string, mode fs.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), mode)); err != nil {
			t.Fatal(err)
		}
	}
	if shell {
		write("bin/busybox", string(program), 0o755)
		for _, name := range applets {
			if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
				t.Fatal(err)
			}
		}
	} else {
		write("busybox", string(program), 0o755)
	}
	for name, content := range files {
		write(name, content, 0o644)
	}
	return dir
}

// tool runs a program of the host.
func tool(t *testing.T, args ...string) {
	t.Helper()
	testutil.RequireProgram(t, args[0])
	if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// tarOf packs a directory.
func tarOf(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive.tar")
	tool(t, "tar", "-C", dir, "--numeric-owner", "-cf", path, ".")
	return path
}

// What the image of umociLayout says without a command, and with the one that begins with it.
const (
	appSays = "default b /srv/data 1234:2345\n"
	appWith = `echo $A $(pwd) $(id -u):$(id -g)`
)

// umociLayout is an OCI layout that umoci has written, with an image "app" of four layers. Its user has a name, and
// its last layer removes the file /etc/gone.
func umociLayout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	layout := filepath.Join(dir, "umoci")
	files := rootFS(t, true, map[string]string{"etc/passwd": "root:x:0:0::/:/bin/sh\napp:x:1234:2345::/:/bin/sh\n", "etc/gone": "x", "srv/data/x": ""})
	app := layout + ":app"
	tool(t, "umoci", "init", "--layout", layout)
	tool(t, "umoci", "new", "--image", app)
	tool(t, "umoci", "insert", "--image", app, files+"/bin", "/bin")
	tool(t, "umoci", "insert", "--image", app, files+"/etc", "/etc")
	tool(t, "umoci", "insert", "--image", app, files+"/srv", "/srv")
	tool(t, "umoci", "insert", "--image", app, "--whiteout", "/etc/gone")
	tool(t, "umoci", "config", "--image", app, "--config.env", "A=b", "--config.env", "GREETING=default", "--config.user", "app", "--config.workingdir", "/srv/data",
		"--config.entrypoint", "/bin/sh", "--config.entrypoint", "-c", "--config.cmd", `echo $GREETING $A $(pwd) $(id -u):$(id -g)`, "--config.label", "org.example.note=kept", "--config.stopsignal", "SIGUSR1")
	return layout
}

// newImageCLI is a boxd whose images are in a directory of the test.
func newImageCLI(t *testing.T) *cli {
	t.Helper()
	c := newCLI(t)
	dir, err := os.MkdirTemp("/tmp", "boxd-e2e-images-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c.data = filepath.Join(dir, "data")
	c.env = append(c.env, "BOXD_DATA_DIR="+c.data, "DOCKER_CONFIG="+dir, "BOXD_SOCKET=", "BOXD_URL=")
	return c
}

// ok calls boxd, which must succeed, and returns its stdout.
func (c *cli) ok(args ...string) string {
	c.t.Helper()
	got := c.run(args...)
	if got.status != 0 {
		c.t.Fatalf("boxd %.200q: %v", args, got)
	}
	return got.stdout
}

// tree lists what is below the directories, whatever is in the files.
func tree(t *testing.T, dirs ...string) (all []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			all = append(all, path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	return all
}

// TestImageFiles: boxd image import FILE and boxd run --image NAME work on what skopeo and umoci wrote, and on root file
// systems.
func TestImageFiles(t *testing.T) {
	t.Parallel()
	c := newImageCLI(t)
	layout, dir := umociLayout(t), t.TempDir()
	app := layout + ":app"
	tool(t, "skopeo", "copy", "-q", "oci:"+app, "oci:"+dir+"/layout:made/by:skopeo")
	tool(t, "skopeo", "copy", "-q", "oci:"+app, "oci-archive:"+dir+"/oci.tar:made/by:2")
	tool(t, "skopeo", "copy", "-q", "oci:"+app, "docker-archive:"+dir+"/docker.tar:example.com/app:1")
	for _, i := range []struct{ path, flag, name string }{
		{layout, "app", "app"}, {dir + "/layout", "", "made/by:skopeo"}, {dir + "/oci.tar", "", "made/by:2"}, {dir + "/docker.tar", "", "example.com/app:1"},
	} {
		args := []string{"image", "import", i.path, "-q"}
		if i.flag != "" {
			args = append(args, "--name", i.flag)
		}
		if got := c.run(args...); got != (result{0, i.name + "\n", ""}) {
			t.Fatalf("boxd %q: %v", args, got)
		}
		c.want(result{0, appSays, ""}, "--image", i.name)
		c.want(result{0, "b /srv/data 1234:2345\n", ""}, "--image", i.name, "--", "sh", "-c", appWith)
	}
	c.want(result{0, "c / 7:8\n", ""}, "--image", "app", "--env", "A=c", "-w", "/", "--user", "7:8", "--", "sh", "-c", appWith)
	c.want(result{1, "", "cat: can't open '/etc/gone': No such file or directory\n"}, "--image", "app", "--", "cat", "/etc/gone")
	if got := c.run("run", "--image", "app", "--", "python3"); got.status != 127 { // that is the host's
		t.Errorf("%v", got)
	}
	if got := c.ok("image", "inspect", "app", "--format", `{{index .labels "org.example.note"}} {{.user}} {{.stop_signal}} {{len .layers}}`); got != "kept app SIGUSR1 4\n" {
		t.Errorf("inspect: %q", got)
	}
	if got := c.ok("image", "verify", "--all"); strings.Count(got, ": ok\n") != 4 {
		t.Errorf("verify: %q", got)
	}
	layers, _ := filepath.Glob(filepath.Join(c.data, "images", strings.Repeat("?", 64)))
	if len(layers) != 4 {
		t.Errorf("four forms of one image have the layers %q", layers)
	}

	// A root file system, as it is or packed. It needs neither a shell nor /etc/passwd.
	bare := rootFS(t, false, nil)
	archive := tarOf(t, bare)
	text, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(text)
	z.Close()
	if err := os.WriteFile(dir+"/root.tar.gz", zipped.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"root-tar": archive, "root-gz": dir + "/root.tar.gz", "root-dir": bare, "root-stdin": "-"} {
		c.stdin = bytes.NewReader(text)
		c.ok("image", "import", path, "--name", name)
		c.stdin = nil
		c.want(result{0, "0\n", ""}, "--image", name, "--", "/busybox", "id", "-u")
		c.want(result{0, "4711\n", ""}, "--image", name, "--user", "4711:4711", "--", "/busybox", "id", "-u")
	}
	c.wantRefused(125, c.run("run", "--image", "root-tar"), "no command of its own", "boxd run --image root-tar -- CMD")

	// Nothing stays of what is removed.
	names := strings.Fields(c.ok("image", "ls", "-q"))
	c.ok(append([]string{"image", "rm"}, names...)...)
	if got := c.ok("image", "gc"); !strings.HasPrefix(got, "deleted images: 0, layers: ") || len(names) != 8 {
		t.Errorf("%q: gc: %q", names, got)
	}
	if left := tree(t, filepath.Join(c.data, "images"), filepath.Join(c.data, "store", "blobs"), filepath.Join(c.data, "store", "new")); slices.ContainsFunc(left, func(path string) bool { return len(filepath.Base(path)) == 64 }) {
		t.Errorf("left: %q", left)
	}
}

// badArchive makes a tar archive of one entry.
func badArchive(t *testing.T, h tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&h), w.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bad.tar")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// damage copies a file and changes its text.
func damage(t *testing.T, path string, change func([]byte) []byte) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), filepath.Base(path))
	if err := os.WriteFile(out, change(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestBadImageFiles: each is one line that says what is wrong, and nothing is left.
func TestBadImageFiles(t *testing.T) {
	t.Parallel()
	c := newImageCLI(t)
	layout, dir := umociLayout(t), t.TempDir()
	tool(t, "skopeo", "copy", "-q", "oci:"+layout+":app", "oci-archive:"+dir+"/oci.tar:app")
	tool(t, "skopeo", "copy", "-q", "oci:"+layout+":app", "docker-archive:"+dir+"/docker.tar:app")
	tool(t, "umoci", "config", "--image", layout+":app", "--tag", "arm", "--architecture", "arm64")
	tool(t, "skopeo", "copy", "-q", "oci:"+layout+":arm", "oci-archive:"+dir+"/arm.tar:arm")
	good := tarOf(t, rootFS(t, false, nil))
	tool(t, "gzip", "-k", good)
	flip := func(at func(int) int) func([]byte) []byte {
		return func(b []byte) []byte { b[at(len(b))] ^= 1; return b }
	}
	half := func(n int) int { return n / 2 }
	c.ok("image", "import", good, "--name", "good")
	empty := t.TempDir()
	if err := errors.Join(os.CopyFS(dir+"/part", os.DirFS(layout)), os.Remove(dir+"/part/oci-layout")); err != nil {
		t.Fatal(err)
	}
	dirs := []string{filepath.Join(c.data, "images"), filepath.Join(c.data, "store")}
	before := tree(t, dirs...)
	for _, b := range []struct {
		name, path string
		want       []string
	}{
		{"truncated OCI archive", damage(t, dir+"/oci.tar", func(b []byte) []byte { return b[:len(b)/2] }), []string{"image is damaged"}},
		{"bit flipped in an OCI archive", damage(t, dir+"/oci.tar", flip(half)), []string{"image is damaged", "sha256:"}},
		{"truncated docker archive", damage(t, dir+"/docker.tar", func(b []byte) []byte { return b[:len(b)/2] }), []string{"image is damaged"}},
		{"bit flipped in a docker archive", damage(t, dir+"/docker.tar", flip(half)), []string{"image is damaged"}},
		{"truncated root file system", damage(t, good, func(b []byte) []byte { return b[:len(b)/2] }), []string{"image is damaged"}},
		{"truncated gzip", damage(t, good+".gz", func(b []byte) []byte { return b[:len(b)/2] }), []string{"image is damaged"}},
		{"bit flipped in gzip", damage(t, good+".gz", flip(half)), []string{"image is damaged"}},
		{"root file system without its end mark", damage(t, good, func(b []byte) []byte { return bytes.TrimRight(b, "\x00") }), []string{"image is damaged"}},
		{"empty directory", empty, []string{"image refused", "the archive has no files: a root file system needs some"}},
		{"empty archive", tarOf(t, empty), []string{"image refused", "the archive has no files: a root file system needs some"}},
		{"OCI layout without oci-layout", dir + "/part", []string{"image is damaged", "no file oci-layout"}},
		{"foreign architecture", dir + "/arm.tar", []string{"no image for this host", "arm64"}},
		{"user out of range", badArchive(t, tar.Header{Name: "f", Uid: 65535}), []string{"image refused", "65535"}},
		{"group out of range", badArchive(t, tar.Header{Name: "f", Gid: 1 << 30}), []string{"image refused", "1073741824"}},
		{"no archive", "/etc/passwd", []string{"image is damaged"}},
		{"no file", "/nonexistent", []string{"no such file"}},
		{"a device", "/dev/null", []string{"image refused"}},
	} {
		t.Run(b.name, func(t *testing.T) {
			c.t = t
			c.wantRefused(125, c.run("image", "import", "-q", b.path, "--name", "bad"), b.want...)
			if after := tree(t, dirs...); !slices.Equal(before, after) {
				t.Errorf("before %q\nafter %q", before, after)
			}
		})
	}
	c.t = t
	c.wantRefused(125, c.run("run", "--image", "bad", "--pull", "never", "--", "true"), "--image", "bad", "unknown image", "boxd image import")
	c.wantRefused(125, c.run("image", "inspect", "bad"), "unknown image")
	c.wantRefused(125, c.run("run", "--image", "good@sha256:"+strings.Repeat("0", 64), "--pull", "never", "--", "true"), "unknown image")
	c.want(result{0, "0\n", ""}, "--image", "good", "--", "/busybox", "id", "-u")
}

// TestImageKilled: an import that was killed leaves nothing, and the next one works.
func TestImageKilled(t *testing.T) {
	c := newImageCLI(t)
	c.ok("image", "import", tarOf(t, rootFS(t, false, nil)), "--name", "good")
	dirs := []string{filepath.Join(c.data, "images"), filepath.Join(c.data, "store")}
	before := tree(t, dirs...)
	big := make([]byte, 48<<20)
	rand.Read(big)
	archive := tarOf(t, rootFS(t, false, map[string]string{"big": string(big)}))
	for _, text := range []string{"image unpack [", "unpack [####"} {
		p := c.openPTY(24, 80, "image", "import", archive, "--name", "big")
		p.await(text)
		p.cmd.Process.Kill()
		p.wait()
		c.awaitNothingLeft() // the launcher ends after it
		if got := c.run("image", "inspect", "big"); got.status == 0 {
			t.Logf("%q: it was done before the kill", text)
			c.ok("image", "rm", "big")
		}
		c.ok("image", "gc")
		if after := tree(t, dirs...); !slices.Equal(before, after) {
			t.Errorf("%q: before %q\nafter %q", text, before, after)
		}
	}
	p := c.openPTY(24, 80, "image", "import", archive, "--name", "big")
	p.await("layers: 1, 49")
	if status := p.wait(); status != 0 {
		t.Errorf("status %d", status)
	}
	c.want(result{0, "50331648\n", ""}, "--image", "big", "--", "/busybox", "stat", "-c", "%s", "/big")
}

// TestImageFullDisk: a disk that is full is one line, and nothing is left on it.
func TestImageFullDisk(t *testing.T) {
	c := newImageCLI(t)
	testutil.RequireProgram(t, "mkfs.ext4")
	dir := filepath.Dir(c.data)
	disk, on := filepath.Join(dir, "disk"), filepath.Join(dir, "small")
	if err := errors.Join(os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 10<<20), os.Mkdir(on, 0o755)); err != nil {
		t.Fatal(err)
	}
	tool(t, "mkfs.ext4", "-q", "-O", "^has_journal", disk)
	tool(t, "mount", "-o", "loop", disk, on)
	t.Cleanup(func() {
		if err := unix.Unmount(on, 0); err != nil {
			t.Error(err)
		}
	})
	small := tarOf(t, rootFS(t, false, nil))
	big := tarOf(t, rootFS(t, false, map[string]string{"big": strings.Repeat("0123456789abcdef", 1<<20)}))
	data := filepath.Join(on, "data")
	c.ok("image", "import", small, "--name", "small", "--data-dir", data)
	before := tree(t, on)
	c.wantRefused(125, c.run("image", "import", "-q", big, "--name", "big", "--data-dir", data), "no space for the image")
	if after := tree(t, on); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter %q", before, after)
	}
	c.want(result{0, "0\n", ""}, "--image", "small", "--data-dir", data, "--", "/busybox", "id", "-u")
}
