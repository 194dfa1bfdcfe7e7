package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/images"
)

// fakeLayers is an engine's layers and an unpacker: the ID of a layer is the hash of its blob.
type fakeLayers struct{ ids []string }

func (f *fakeLayers) Unpack(_ context.Context, l images.Layer) (images.Unpacked, error) {
	h := sha256.New()
	n, err := io.Copy(h, l.Blob)
	id := hex.EncodeToString(h.Sum(nil))
	f.ids = slices.Compact(slices.Sorted(slices.Values(append(f.ids, id))))
	return images.Unpacked{ID: id, Bytes: n, Entries: 1, Sum: id}, err
}

func (f *fakeLayers) Sum(_ context.Context, id string) (string, error)   { return id, nil }
func (f *fakeLayers) Layers(context.Context) ([]string, error)           { return f.ids, nil }
func (f *fakeLayers) RemoveLayer(context.Context, string) error          { return nil }
func (f *fakeLayers) MakeLayer(context.Context, string) error            { panic("not used") }
func (f *fakeLayers) PublishLayer(context.Context, string, string) error { panic("not used") }
func (f *fakeLayers) AbandonLayer(context.Context, string) error         { panic("not used") }

// ociLayout writes an OCI layout with one image, whose configuration is config, and returns its directory.
func ociLayout(t *testing.T, name, config string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	digest := func(b []byte) string {
		sum := sha256.Sum256(b)
		return hex.EncodeToString(sum[:])
	}
	blob := func(kind string, b []byte) string {
		if err := os.WriteFile(filepath.Join(dir, "blobs/sha256", digest(b)), b, 0o644); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%d`, kind, digest(b), len(b))
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c := blob("config.v1+json", fmt.Appendf(nil, `{"os":"linux","architecture":%q,"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"config":%s}`, runtime.GOARCH, digest(layer.Bytes()), config))
	l := blob("layer.v1.tar", layer.Bytes())
	m := blob("manifest.v1+json", []byte(`{"schemaVersion":2,"config":`+c+`},"layers":[`+l+`}]}`))
	index := `{"schemaVersion":2,"manifests":[` + m + fmt.Sprintf(`,"annotations":{"org.opencontainers.image.ref.name":%q}}]}`, name)
	for file, text := range map[string]string{"index.json": index, "oci-layout": `{"imageLayoutVersion":"1.0.0"}`} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// local makes v use images below a directory of the test.
func (v *invocation) local(t *testing.T, dir string, layers *fakeLayers) {
	t.Helper()
	lookup := v.LookupEnv
	v.LookupEnv = func(key string) (string, bool) {
		switch key {
		case "BOXD_DATA_DIR":
			return dir, true
		case "BOXD_SOCKET", "BOXD_URL", "DOCKER_CONFIG":
			return "", false
		}
		return lookup(key)
	}
	v.OpenImages = func(_ context.Context, o EngineOptions, _ map[string]images.Registry) (*images.Store, func() error, error) {
		if o.DataDir != dir || o.InitPath == "" {
			t.Errorf("%+v", o)
		}
		s, err := images.Open(ImagesDir(o.DataDir), images.Options{Unpacker: layers, Layers: layers})
		if err != nil {
			return nil, nil, err
		}
		return s, s.Close, nil
	}
}

// TestLocalFieldIsAFlag: if the store of this host refuses a field, the message names the user's flag.
func TestLocalFieldIsAFlag(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"image import - --local", `--name "": must be given, because this is taken for a root file system`},
		{"image import - --local --name a --platform b", `--platform "b": must be OS/ARCHITECTURE`},
		{"image pull a --local --platform b", `--platform "b": must be OS/ARCHITECTURE`},
	} {
		v := newInvocation(t)
		v.local(t, t.TempDir(), &fakeLayers{})
		var archive bytes.Buffer
		if err := tar.NewWriter(&archive).Close(); err != nil {
			t.Fatal(err)
		}
		v.Stdin = &archive
		status := v.Main(strings.Fields(c.args))
		if line := v.stderr.String(); status != 125 || !strings.Contains(line, ": "+c.want) || strings.Count(line, "\n") != 1 {
			t.Errorf("boxd %s: status %d, %q, want %q", c.args, status, line, c.want)
		}
	}
}

// What an image says holds where no flag says otherwise.
func TestRunImage(t *testing.T) {
	dir, layers := t.TempDir(), &fakeLayers{}
	do := func(status int, args ...string) *invocation {
		t.Helper()
		v := newInvocation(t)
		v.local(t, dir, layers)
		v.fake.files = map[string]string{"/etc/passwd": "root:x:0:0::/:\nnode:x:1000:100::/:\neight:x:8:9::/:\n"}
		if got := v.Main(args); got != status {
			t.Fatalf("boxd %q: status %d, %q", args, got, v.stderr.String())
		}
		return v
	}
	do(0, "image", "ls", "--local") // there is no store yet
	for name, config := range map[string]string{
		"full":  `{"Env":["A=image","B=image","PATH=/opt/bin"],"Entrypoint":["/entry","-x"],"Cmd":["default"],"WorkingDir":"/srv","User":"1000:5","Labels":{"a":"b"}}`,
		"uid":   `{"User":"7","Cmd":["c"]}`,
		"name":  `{"User":"node","Cmd":["c"]}`,
		"gid":   `{"User":"8","Cmd":["c"]}`,
		"ghost": `{"User":"ghost","Cmd":["c"]}`,
		"high":  `{"User":"70000:0","Cmd":["c"]}`,
		"proc":  `{"WorkingDir":"/proc/self/fd/8","Cmd":["c"]}`,
		"empty": `{}`,
	} {
		do(0, "image", "import", "--local", ociLayout(t, name, config), "--name", name)
	}
	if got := do(0, "image", "ls", "--local", "-q").stdout.String(); got != "empty\nfull\nghost\ngid\nhigh\nname\nproc\nuid\n" {
		t.Errorf("%q", got)
	}
	if got := do(0, "image", "ls", "--local").stdout.String(); !strings.HasPrefix(got, "IMAGE\tDIGEST\tPLATFORM\tSIZE\tAGE\nempty\t") || strings.Contains(got, "\t-") {
		t.Errorf("%q", got)
	}
	var inspected struct{ Layers, Entrypoint []string }
	if err := json.Unmarshal(do(0, "image", "inspect", "--local", "full").stdout.Bytes(), &inspected); err != nil || !slices.Equal(inspected.Layers, layers.ids) || len(inspected.Entrypoint) != 2 {
		t.Errorf("%+v, %v", inspected, err)
	}
	for _, c := range []struct {
		args string
		user engine.User
		cmd  engine.Command
	}{
		{"full --", engine.User{UID: 1000, GID: 5}, engine.Command{Args: []string{"/entry", "-x", "default"}, Env: []string{"A=image", "B=image", "PATH=/opt/bin"}, Dir: "/srv", MakeDir: true}},
		{"full -e A=flag -u 3 -w /tmp -- x", engine.User{UID: 3, GID: 3}, engine.Command{Args: []string{"x"}, Env: []string{"A=flag", "B=image", "PATH=/opt/bin"}, Dir: "/tmp"}},
		{"full --workspace /srv/w -- x", engine.User{UID: 1000, GID: 5}, engine.Command{Args: []string{"x"}, Env: []string{"A=image", "B=image", "PATH=/opt/bin"}}},
		{"uid", engine.User{UID: 7}, engine.Command{Args: []string{"c"}}},
		{"name", engine.User{UID: 1000, GID: 100}, engine.Command{Args: []string{"c"}}},
		{"gid", engine.User{UID: 8, GID: 9}, engine.Command{Args: []string{"c"}}},
		{"name -u 9", engine.User{UID: 9, GID: 9}, engine.Command{Args: []string{"c"}}},
		{"empty -- x", engine.User{}, engine.Command{Args: []string{"x"}}},
	} {
		v := do(0, append([]string{"run", "--image"}, strings.Fields(c.args)...)...)
		got := v.fake.cmd
		got.Stdin, got.Stdout, got.Stderr = nil, nil, nil
		if !reflect.DeepEqual(got, c.cmd) || v.fake.spec.User != c.user || !slices.Equal(v.fake.spec.Layers, layers.ids) || v.fake.spec.Image == engine.HostImage || v.fake.options.DataDir != dir {
			t.Errorf("%s: %+v, %+v, %+v", c.args, got, v.fake.spec, v.fake.options)
		}
	}
	for args, want := range map[string]string{
		"ghost":                  `boxd: --image "ghost": image refused: its user "ghost" is not in its /etc/passwd: ask for a user by number`,
		"high":                   `boxd: --image "high": image refused: its user "70000:0" is 70000:0, and a box has the ids 0 to 65534`,
		"proc":                   `boxd: --image "proc": dir "/proc/self/fd/8": must not be below /proc`,
		"empty":                  `boxd: --image "empty": it has no command of its own: boxd run --image empty -- CMD`,
		"gone --pull=never -- x": `boxd: --image "gone": unknown image: boxd image pull --local gone`,
	} {
		v := do(125, append([]string{"run", "--image"}, strings.Fields(args)...)...)
		if line := v.stderr.String(); !strings.HasPrefix(line, want) || strings.Count(line, "\n") != 1 {
			t.Errorf("%s: %q, want %q", args, line, want)
		}
	}
}
